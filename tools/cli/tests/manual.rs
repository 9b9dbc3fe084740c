//! Completions and manual pages.

use std::fs;

use crate::support::*;

/// The commands that help lists.
fn commands() -> Vec<String> {
    let help = succeed(&mut bare(&["--help"])).out;
    let (_, rest) = help.split_once("Commands:\n").unwrap();
    let lines = rest.lines().take_while(|line| !line.is_empty());
    let names =
        lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).filter(|name| !name.is_empty());
    let names: Vec<String> = names.filter(|name| *name != "help").map(str::to_owned).collect();
    assert!(names.len() > 10, "{names:?}");
    names
}

#[test]
fn shells_complete_every_command() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = succeed(&mut bare(&["completions", shell])).out;
        for word in commands().iter().map(String::as_str).chain(["quant", "save-logits"]) {
            assert!(script.contains(word), "{word} in {shell}");
        }
    }
    refused(&mut bare(&["completions", "tcsh"]), 2, &["tcsh", "bash"]);
}

#[test]
fn every_command_has_a_page() {
    let out = folder();
    let pages = out.path().join("pages");
    succeed(&mut bare(&["man", "-o", text(&pages)]));
    for name in commands().iter().map(|name| format!("tracewright-{name}")).chain(["tracewright".into()]) {
        let page = fs::read_to_string(pages.join(format!("{name}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS") && page.contains(&name.replace('-', "\\-")), "{name}: {page}");
    }
    let file = out.path().join("file");
    fs::write(&file, "").unwrap();
    refused(&mut bare(&["man", "-o", text(&file)]), 1, &[text(&file)]);
}

/// Builds without a runtime lack the flags of the sampling steps.
#[cfg(feature = "iree")]
#[test]
fn the_help_of_every_command() {
    let mut all = succeed(&mut bare(&["--help"])).out;
    for name in commands() {
        all.push_str(&format!(
            "\n$ tracewright {name} --help\n{}",
            succeed(&mut bare(&[&name, "--help"])).out
        ));
    }
    for name in ["decode", "prefill", "matmul", "attention"] {
        all.push_str(&format!(
            "\n$ tracewright bench {name} --help\n{}",
            succeed(&mut bare(&["bench", name, "--help"])).out
        ));
    }
    expect_test::expect_file![root().join("tools/cli/tests/goldens/help.txt")].assert_eq(&all);
}

/// Every flag of every command can be given by the environment, which help says, and a flag goes before its variable.
#[test]
fn every_flag_has_a_variable() {
    let mut flags = 0;
    for name in commands() {
        let help = succeed(&mut bare(&[&name, "--help"])).out;
        let lines = help.lines().map(str::trim_start);
        let entries: Vec<&str> = lines.filter(|line| line.starts_with('-')).collect();
        for entry in entries {
            let Some((_, rest)) = entry.split_once("--") else { continue };
            let long = rest.split([' ', ',', '[']).next().unwrap();
            if ["help", "version"].contains(&long) {
                continue;
            }
            let variable = format!("[env: TRACEWRIGHT_{}=", long.to_uppercase().replace('-', "_"));
            let (_, after) = help.split_once(entry).unwrap();
            let of_this = after.split("\n  ").take(12).collect::<Vec<_>>().join(" ");
            assert!(entry.contains(&variable) || of_this.contains(&variable), "{name} --{long}: {help}");
            flags += 1;
        }
    }
    assert!(flags > 60, "{flags}");
    let folder = folder();
    let random = |command: &mut std::process::Command, out: &str| {
        let out = folder.path().join(out);
        let config = fixture("llama-untied").join("config.json");
        succeed(command.args(["random", text(&config), "-o", text(&out)]));
        fs::read(out.join("model.safetensors")).unwrap()
    };
    let plain = random(&mut bare(&[]), "plain");
    let one = random(bare(&[]).env("TRACEWRIGHT_SEED", "1"), "one");
    assert_ne!(plain, one);
    let config = fixture("llama-untied").join("config.json");
    let out = folder.path().join("flag");
    let mut command = bare(&["random", text(&config), "-o", text(&out), "--seed", "0"]);
    succeed(command.env("TRACEWRIGHT_SEED", "1"));
    assert_eq!(fs::read(out.join("model.safetensors")).unwrap(), plain);
    refused(bare(&["plan", text(&config)]).env("TRACEWRIGHT_CONTEXT", "many"), 2, &["many", "--context"]);
}

#[cfg(feature = "iree")]
#[test]
fn flags_have_the_forms_that_other_programs_have() {
    let config = fixture("llama-untied").join("config.json");
    let plan = |flag: &str| succeed(&mut bare(&["plan", text(&config), flag, "40", "--json"])).out;
    for flag in ["-c", "--ctx-size", "--context"] {
        assert_eq!(serde_json::from_str::<serde_json::Value>(&plan(flag)).unwrap()["context"], 40, "{flag}");
    }
    let help = succeed(&mut bare(&["generate", "--help"])).out;
    for words in
        ["-t, --threads", "-s, --seed", "-n, --max-tokens", "--n-predict", "--system-prompt", "--temperature"]
    {
        assert!(help.contains(words), "`{words}` is not in\n{help}");
    }
}
