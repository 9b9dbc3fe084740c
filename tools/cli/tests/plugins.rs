//! PJRT plugins that are missing, damaged, too old, of another platform, without a device or without memory. Each is an
//! error with a code, and the error names the plugin and the remedy.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::*;

/// Builds a plugin that fails in the named way.
fn fake(folder: &Path, fault: &str, platform: &str) -> PathBuf {
    let plugin = folder.join(format!("{fault}-{platform}.so"));
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-w", &format!("-DFAULT={fault}"), &format!("-DPLATFORM=\"{platform}\"")]);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_plugin.c");
    let built = cc.arg("-o").arg(&plugin).arg(source).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    plugin
}

/// Runs `generate` with a plugin.
fn generate(cache: &Path, plugin: &Path, more: &[&str]) -> Ran {
    let model = fixture("llama-untied");
    let command = ["generate", text(&model), "--tokens", "5,17,3", "-n", "2", "--engine", "xla"];
    let mut generate = bare(&[&command[..], SMALL, &["--plugin", text(plugin)], more].concat());
    run(generate.env("TRACEWRIGHT_CACHE", cache))
}

#[test]
fn a_plugin_that_fails_is_an_error_with_its_reason() {
    let folder = folder();
    let cache = folder.path().join("cache");
    for (fault, platform, words) in [
        (
            "NO_TABLE",
            "cpu",
            &["error[TW0713]", "is not a PJRT plugin", "returns no table", "install another"][..],
        ),
        (
            "OLD",
            "cpu",
            &["error[TW0713]", "version 0.54 of the PJRT API, expected 0.106", "install a newer plugin"],
        ),
        ("NEXT_MAJOR", "cpu", &["error[TW0713]", "version 1.106 of the PJRT API, expected 0.106"]),
        ("SHORT_TABLE", "cpu", &["error[TW0713]", "lacks the function `", "install another plugin"]),
        ("HOLE", "cpu", &["error[TW0713]", "lacks the function `client_create`", "install another plugin"]),
        (
            "NO_DRIVER",
            "cuda",
            &["error[TW0711]", "does not start: the plugin reports UNAVAILABLE: no driver of"],
        ),
        ("NO_DEVICE", "cuda", &["error[TW0712]", "`cuda` has 0 device(s)"]),
        ("NO_DEVICE", "cpu", &["error[TW0712]", "`cpu` has 0 device(s)"]),
        ("COMPILE", "cpu", &["error[TW0714]", "does not compile: the plugin reports UNIMPLEMENTED: no such"]),
        ("COMPILE_MEMORY", "cpu", &["error[TW0715]", "no memory left to compile the module", "4.00GiB"]),
        ("UPLOAD_MEMORY", "cpu", &["error[TW0715]", "no memory left to upload a tensor", "0.25GiB are free"]),
    ] {
        let plugin = fake(folder.path(), fault, platform);
        let ran = generate(&cache, &plugin, &[]);
        assert_eq!(ran.code, Some(1), "{fault}: {}", ran.err);
        assert_eq!(ran.out, "", "{fault}");
        for word in words {
            assert!(ran.err.contains(word), "{fault}: no `{word}` in {}", ran.err);
        }
    }
    let plugin = fake(folder.path(), "NONE", "rocm");
    let ran = generate(&cache, &plugin, &["--device", "cpu"]);
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(
        ran.err.contains("error[TW0713]: the plugin's platform is `rocm`, but the device is `cpu`"),
        "{}",
        ran.err
    );
}

#[test]
fn a_file_that_is_no_plugin_is_an_error() {
    let folder = folder();
    let (cache, damaged) = (folder.path().join("cache"), folder.path().join("damaged.so"));
    let whole = std::fs::read(fake(folder.path(), "NONE", "cpu")).unwrap();
    for part in [whole.len() / 8, whole.len() / 3, whole.len() / 2] {
        std::fs::write(&damaged, &whole[..part]).unwrap();
        let ran = generate(&cache, &damaged, &[]);
        assert_eq!(ran.code, Some(1), "{part} bytes: {}", ran.err);
        for word in
            ["error[TW0713]", &format!("is damaged: the file has {part} bytes"), "install the plugin again"]
        {
            assert!(ran.err.contains(word), "no `{word}` in {}", ran.err);
        }
    }
    let (missing, text_file) = (folder.path().join("missing.so"), root().join("README.md"));
    for path in [&missing, &text_file] {
        let ran = generate(&cache, path, &[]);
        assert_eq!(ran.code, Some(1), "{}", ran.err);
        for word in ["error[TW0713]", "cannot be loaded", "because: ", "help: "] {
            assert!(ran.err.contains(word), "{}", ran.err);
        }
        assert!(ran.err.contains(text(path)), "{}", ran.err);
    }
    // Without the option, no folder of Python packages has a plugin.
    let model = fixture("llama-untied");
    let found =
        run(&mut bare(&["generate", text(&model), "--tokens", "5", "--engine", "xla", "--device", "cuda"]));
    assert_eq!(found.code, Some(1), "{}", found.err);
    for word in [
        "error[TW0713]: Tracewright found no PJRT plugin for `cuda`",
        "install the package `jax-cuda13-pjrt`",
        "--plugin PATH",
    ] {
        assert!(found.err.contains(word), "{}", found.err);
    }
    assert!(!cache.join("executables").exists());
}

#[test]
fn options_of_iree_are_errors_with_xla() {
    let model = fixture("llama-untied");
    let model = text(&model);
    let (generate, tokens) = (["generate", model, "--tokens", "5"], ["--tokens", "5,17,3"]);
    for (command, option) in [
        (&generate[..], &["--threads", "2"][..]),
        (&generate, &["--activations", "8"]),
        (&generate, &["--target", "cpu", "--device", "cpu"]),
        (&generate, &["--verify"]),
        (&["serve", model], &["--activations", "16"]),
        (&["embed", model, "--tokens", "5"], &["--threads", "2"]),
        (&["embed", model, "--tokens", "5"], &["--tuning", "off"]),
        (&["bench", "decode", model], &["--threads", "2"]),
        (&["bench", "prefill", model], &["--trace", "profile.json"]),
        (&["bench", "decode", model], &["--tuning", "off"]),
        (&[&["bisect", model][..], &tokens].concat(), &["--activations", "16"]),
    ] {
        let command = [command, &["--engine", "xla", "--plugin", "plugin.so"], option].concat();
        let ran = run(&mut bare(&command));
        assert_eq!(ran.code, Some(2), "{command:?}: {}", ran.err);
        assert!(ran.err.contains(&format!("`{}", option[0])), "{command:?}: {}", ran.err);
    }
}
