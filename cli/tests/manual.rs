//! What shells and `man` read.

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
