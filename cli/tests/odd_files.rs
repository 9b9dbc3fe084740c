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
