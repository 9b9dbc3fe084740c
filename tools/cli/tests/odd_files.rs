//! Files that are no files, that are too much, and streams that take nothing.
#![cfg(unix)]

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::support::*;

fn pipe(path: &Path) {
    let _ = fs::remove_file(path);
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Runs what could wait for ever, for half a minute.
fn soon(command: &Command) -> Command {
    let mut limited = Command::new("timeout");
    limited.args(["-s", "KILL", "30"]).arg(command.get_program()).args(command.get_args()).env_clear();
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited
}

#[test]
fn a_pipe_or_a_folder_in_place_of_a_model_s_file() {
    for name in ["config.json", "model.safetensors"] {
        let model = copied("llama-untied");
        let file = model.path().join(name);
        pipe(&file);
        let command = bare(&["bake", text(model.path()), "-o", "/nowhere/x.irpa"]);
        refused(&mut soon(&command), 1, &[name, "not a regular file"]);
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        refused(&mut soon(&command), 1, &[name, "a folder"]);
    }
    #[cfg(feature = "iree")]
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"] {
        let model = folder();
        for (path, _) in listing(&demo()) {
            fs::copy(&path, model.path().join(path.file_name().unwrap())).unwrap();
        }
        pipe(&model.path().join(name));
        let command = tracewright(&["generate", text(model.path()), "--chat", "Hello", "-n", "1"]);
        refused(&mut soon(&command), 1, &[name, "not a regular file"]);
    }
}

#[test]
fn a_file_that_is_too_large_is_not_read() {
    let model = copied("llama-untied");
    let config = model.path().join("config.json");
    fs::File::options().write(true).open(&config).unwrap().set_len(1 << 36).unwrap();
    let command = bare(&["bake", text(model.path()), "-o", "/nowhere/x.irpa"]);
    refused(&mut soon(&command), 1, &["config.json", "68719476736 bytes", "at most"]);
}

#[test]
fn a_full_stderr_is_no_failure() {
    let (model, out) = (fixture("llama-untied"), folder());
    let archive = out.path().join("model.irpa");
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = bare(&["bake", text(&model), "-o", text(&archive)]);
    let status = command.args(SMALL).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(0));
    let status = bare(&["bake", "/nowhere", "-o", text(&archive)]).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(1), "an error that cannot be said is one still");
    let status = bare(&["bake"]).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(2), "so is wrong usage");
}

#[test]
fn a_configuration_is_judged_before_weights_are_missed() {
    let model = copied("llama-untied");
    fs::remove_file(model.path().join("model.safetensors")).unwrap();
    let out = folder();
    let archive = out.path().join("x.irpa");
    let mut commands = vec![bare(&["bake", text(model.path()), "-o", text(&archive)])];
    #[cfg(feature = "iree")]
    {
        commands.push(tracewright(&["generate", text(model.path()), "--tokens", "5"]));
        commands.push(tracewright(&["export", text(model.path()), "-o", text(&out.path().join("x"))]));
    }
    for command in &mut commands {
        refused(command, 1, &["no checkpoint in"]);
    }
    edit_config(model.path(), |config| drop(config.insert("hidden_size".into(), json!("sixty"))));
    for command in &mut commands {
        refused(command, 1, &["`hidden_size` is \"sixty\""]);
    }
}

/// A snapshot as the hub's tools make it: links to blobs.
fn snapshot(model: &Path, hub: &Path) -> std::path::PathBuf {
    let [snapshot, blobs] = ["snapshots/0a1b", "blobs"].map(|name| hub.join(name));
    [&snapshot, &blobs].into_iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
    for (path, _) in listing(model) {
        let name = path.file_name().unwrap().to_str().unwrap();
        fs::copy(&path, blobs.join(format!("of-{name}"))).unwrap();
        std::os::unix::fs::symlink(format!("../../blobs/of-{name}"), snapshot.join(name)).unwrap();
    }
    snapshot
}

/// The blob of one file is gone, as after a download that was cut off: never a file that is not there, or that one does
/// without.
#[test]
fn a_link_to_a_file_that_is_missing() {
    let sharded = folder();
    for (path, _) in listing(&fixture("llama-bias")) {
        if !path.ends_with("golden.safetensors") {
            fs::copy(&path, sharded.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    let gguf = folder();
    fs::copy(fixture("gguf").join("q4_0.gguf"), gguf.path().join("model.gguf")).unwrap();
    let demo = copied_demo();
    for (name, content) in
        [("chat_template.jinja", "{{ messages[0].content }}"), ("special_tokens_map.json", "{}")]
    {
        fs::write(demo.path().join(name), content).unwrap();
    }
    let cases: &[(&Path, &[&str])] = &[
        (demo.path(), &["config.json", "model.safetensors"]),
        #[cfg(feature = "iree")]
        (
            demo.path(),
            &["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"],
        ),
        (sharded.path(), &["model.safetensors.index.json", "model-00002-of-00003.safetensors"]),
        (gguf.path(), &["model.gguf"]),
    ];
    for (model, names) in cases {
        for name in *names {
            let hub = folder();
            let snapshot = snapshot(model, hub.path());
            fs::remove_file(hub.path().join("blobs").join(format!("of-{name}"))).unwrap();
            let (file, out) = (snapshot.join(name), hub.path().join("out"));
            let is_gguf = name.ends_with(".gguf");
            let place = if is_gguf { &file } else { &snapshot };
            let words = [
                text(&file),
                &format!("it is a link to `../../blobs/of-{name}`, which is missing")[..],
                "download",
            ];
            let is_read_by_all = is_gguf || name.starts_with("model") || *name == "config.json";
            let mut commands = Vec::new();
            if is_read_by_all {
                commands.push(bare(&["bake", text(place), "-o", text(&out)]));
                commands.push(bare(&["plan", text(place)]));
                commands.push(export_xla(place, &out));
            }
            #[cfg(feature = "iree")]
            {
                commands.push(tracewright(&["generate", text(place), "--chat", "Hello", "-n", "1"]));
                commands.push(tracewright(&["chat", text(place)]));
            }
            for command in &mut commands {
                refused(command, 1, &words);
            }
            assert!(!out.exists());
        }
    }
    // What goes along with an export is never left out in silence.
    #[cfg(feature = "iree")]
    for name in ["tokenizer.json", "special_tokens_map.json"] {
        let hub = folder();
        let snapshot = snapshot(demo.path(), hub.path());
        fs::remove_file(hub.path().join("blobs").join(format!("of-{name}"))).unwrap();
        let out = hub.path().join("out");
        let mut export =
            tracewright(&["export", text(&snapshot), "-o", text(&out), "--context", "64", "--chunk", "1"]);
        refused(&mut export, 1, &[name, "which is missing"]);
        refused(&mut export_xla(&snapshot, &out), 1, &[name, "which is missing"]);
        assert!(!out.exists());
    }
}

/// A file that git or a browser left in place of the real one, or nothing of one.
#[test]
fn what_a_download_left_in_place_of_a_file() {
    const LEFT: [(&str, &str); 3] = [
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 2114\n",
            "a git-lfs pointer instead of the file; run `git lfs pull`",
        ),
        ("<!DOCTYPE html>\n<html><head>", "an HTML page instead of the file; download the file again"),
        ("", "download the file again"),
    ];
    for (content, words) in LEFT {
        let mut cases = vec![("config.json", false), ("model.safetensors", false)];
        if cfg!(feature = "iree") {
            cases.extend(
                ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]
                    .map(|name| (name, true)),
            );
        }
        for (name, is_text) in cases {
            let model = copied_demo();
            fs::write(model.path().join(name), content).unwrap();
            // Of an empty file of weights the size is said.
            let words = if content.is_empty() && name == "model.safetensors" {
                "download or save the file again"
            } else {
                words
            };
            let mut command = if is_text {
                tracewright(&["generate", text(model.path()), "--chat", "Hello", "-n", "1"])
            } else {
                bare(&["bake", text(model.path()), "-o", "/nowhere/x.irpa"])
            };
            let ran = refused(&mut command, 1, &[name, words]);
            let is_format = ran.err.starts_with("error[TW0203]");
            assert!(is_format || name == "model.safetensors", "{}", ran.err);
        }
        let files = folder();
        let [gguf, archive, index] =
            ["m.gguf", "m.irpa", "s/model.safetensors.index.json"].map(|name| files.path().join(name));
        fs::create_dir(files.path().join("s")).unwrap();
        fs::copy(fixture("llama-untied").join("config.json"), files.path().join("s/config.json")).unwrap();
        for file in [&gguf, &archive, &index] {
            fs::write(file, content).unwrap();
        }
        let out = "/nowhere/x.irpa";
        if !content.is_empty() {
            refused(&mut bare(&["bake", text(&gguf), "-o", out]), 1, &["m.gguf", words]);
            refused(&mut bare(&["verify", text(&archive)]), 1, &["m.irpa", words]);
            refused(
                &mut bare(&["bake", text(&files.path().join("s")), "-o", out]),
                1,
                &["index.json", words],
            );
        }
    }
}
