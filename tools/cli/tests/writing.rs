//! Files that are written, and files that are spared: the model's own, special files, another run's folder.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::*;

fn generate(model: &Path, logits: &Path) -> Command {
    let mut command = tracewright(&["generate", text(model), "--tokens", "5,17", "-n", "2"]);
    command.args(SMALL).args(["--save-logits", text(logits)]);
    command
}

fn bake(model: &Path, archive: &Path) -> Command {
    let mut command = bare(&["bake", text(model), "-o", text(archive)]);
    command.args(SMALL);
    command
}

fn export(model: &Path, out: &Path) -> Command {
    let mut command = tracewright(&["export", text(model), "-o", text(out)]);
    command.args(SMALL);
    command
}

/// The call of a command that writes a file.
type Writes = fn(&Path, &Path) -> Command;

#[test]
fn no_output_replaces_a_file_of_the_model() {
    let writes: [Writes; 2] = [generate, bake];
    for write in writes {
        let (model, out) = (copied("llama-untied"), folder());
        let before = listing(model.path());
        for name in ["model.safetensors", "config.json"] {
            let file = model.path().join(name);
            let content = fs::read(&file).unwrap();
            let hard = out.path().join(format!("hard-{name}"));
            fs::hard_link(&file, &hard).unwrap();
            let mut places = vec![file.clone(), hard];
            #[cfg(unix)]
            {
                let soft = out.path().join(format!("soft-{name}"));
                std::os::unix::fs::symlink(&file, &soft).unwrap();
                places.push(soft);
            }
            for place in &places {
                let words = [text(place), "a file of the model itself", "write to another path"];
                refused(&mut write(model.path(), place), 1, &words);
                assert_eq!(fs::read(place).unwrap(), content, "{}", place.display());
            }
        }
        assert_eq!(listing(model.path()), before);
    }
}

/// A checkpoint may be given by one of its files; those beside it are no less the model's.
#[test]
fn no_archive_replaces_what_is_beside_a_file_of_the_model() {
    let model = copied("llama-untied");
    let index = model.path().join("model.safetensors.index.json");
    let named = r#"{"metadata": {}, "weight_map": {}}"#;
    fs::write(&index, named).unwrap();
    let before = listing(model.path());
    for (source, out) in [
        ("model.safetensors", "config.json"),
        ("model.safetensors.index.json", "model.safetensors.index.json"),
    ] {
        let [source, out] = [source, out].map(|name| model.path().join(name));
        let mut bake = bare(&["bake", text(&source), "-o", text(&out)]);
        refused(&mut bake, 1, &[text(&out), "a file of the model itself", "write to another path"]);
        assert_eq!(listing(model.path()), before);
    }
}

#[test]
fn no_logits_replace_a_file_of_an_export() {
    let out = folder();
    let made = out.path().join("export");
    succeed(&mut export(&fixture("llama-untied"), &made));
    for name in ["manifest.json", "model.vmfb", "model.irpa", "model.mlir", "config.json"] {
        let (file, before) = (made.join(name), fs::read(made.join(name)).unwrap());
        let mut command = bare(&["generate", text(&made), "--tokens", "5", "-n", "1", "--save-logits"]);
        refused(command.arg(&file), 1, &["a file of the model itself"]);
        assert_eq!(fs::read(&file).unwrap(), before);
    }
    // An archive beside the weights that it is made of is none of them, the second time too.
    let model = copied("llama-untied");
    for _ in 0..2 {
        succeed(&mut bake(model.path(), &model.path().join("model.irpa")));
    }
}

#[test]
fn an_export_does_not_go_into_the_model_s_own_folder() {
    let model = copied("llama-untied");
    let before = listing(model.path());
    refused(
        &mut export(model.path(), model.path()),
        1,
        &["the model's own folder", "write to another folder"],
    );
    assert_eq!(listing(model.path()), before);
}

#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_not_replaced_and_a_link_is_followed() {
    use std::os::unix::fs::FileTypeExt as _;

    let (model, out) = (fixture("llama-untied"), folder());
    let pipe = out.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let writes: [Writes; 2] = [generate, bake];
    for write in writes {
        refused(&mut write(&model, &pipe), 1, &["cannot replace", text(&pipe), "not a regular file"]);
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
        refused(&mut write(&model, out.path()), 1, &["cannot replace", text(out.path()), "a folder"]);

        let (file, link) = (out.path().join("file"), out.path().join("link"));
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        succeed(&mut write(&model, &link));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink(), "the link stays");
        assert!(fs::metadata(&file).unwrap().len() > 100, "what it leads to is written");
        fs::remove_file(&link).unwrap();
    }
}

/// The model that an export is of, by its module and by its configuration.
fn whose(out: &Path) -> [bool; 2] {
    let manifest: Value = serde_json::from_slice(&fs::read(out.join("manifest.json")).unwrap()).unwrap();
    let tied = manifest["parameters"].get("lm_head.weight").is_none();
    let config: Value = serde_json::from_slice(&fs::read(out.join("config.json")).unwrap()).unwrap();
    [tied, config["tie_word_embeddings"] == true]
}

#[test]
fn exports_into_one_folder_at_once_do_not_mix() {
    let out = folder();
    let target = out.path().join("export");
    let models = ["llama-tied", "llama-untied"].map(fixture);
    for (number, model) in models.iter().enumerate() {
        succeed(&mut export(model, &out.path().join(number.to_string()))); // Compiled before it matters.
    }
    for _ in 0..2 {
        let children: Vec<_> = (0..6).map(|i| spawn(&mut export(&models[i % 2], &target))).collect();
        let mut made = 0;
        for child in children {
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            match output.status.code() {
                Some(0) => made += 1,
                code => assert!(
                    code == Some(1) && said.contains("another process is writing an export into"),
                    "{code:?} {said}"
                ),
            }
        }
        assert!(made > 0, "one of them is first");
        let [module, config] = whose(&target);
        assert_eq!(module, config, "an export of two models");
        succeed(&mut bare(&["generate", text(&target), "--tokens", "5", "-n", "1"]));
    }
    // One that is late is refused before it touches anything.
    let before = listing(&target);
    let file = fs::File::create(target.join(".tracewright-lock")).unwrap();
    file.lock().unwrap();
    refused(
        &mut export(&models[0], &target),
        1,
        &["another process is writing an export into", text(&target)],
    );
    drop(file);
    fs::remove_file(target.join(".tracewright-lock")).unwrap();
    assert_eq!(listing(&target), before);
}

#[test]
fn an_export_over_another_leaves_nothing_of_it() {
    let out = folder();
    let model = copied_demo();
    fs::write(model.path().join("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    let mut first = tracewright(&["export", text(model.path()), "-o", text(out.path())]);
    succeed(first.args(["--context", "64", "--chunk", "1"]));
    for name in ["tokenizer.json", "chat_template.jinja"] {
        assert!(out.path().join(name).exists(), "{name}");
    }
    fs::write(out.path().join("notes.txt"), "mine").unwrap();
    succeed(&mut export(&fixture("llama-untied"), out.path()));
    let names: Vec<_> = listing(out.path()).into_iter().map(|(path, _)| path).collect();
    let expected = ["config.json", "manifest.json", "model.irpa", "model.mlir", "model.vmfb", "notes.txt"];
    assert_eq!(names, expected.map(|name| out.path().join(name)));
}

/// An export replaces no file that another export has not written, whatever its name.
#[test]
fn an_export_replaces_no_files_of_others() {
    let model = fixture("llama-untied");
    let engines: [(Writes, _); 2] = [(export, "model.mlir"), (export_xla, "prefill.mlir")];
    for (write, written) in engines {
        // Another model's; a program's of the web; a note of the user's with an export's name.
        for (name, content) in
            [("config.json", "{}"), ("manifest.json", r#"{"name": "app"}"#), (written, "module {}")]
        {
            let out = folder();
            let file = out.path().join(name);
            fs::write(&file, content).unwrap();
            let before = listing(out.path());
            refused(
                &mut write(&model, out.path()),
                1,
                &[text(&file), "contains no export", "write to another folder"],
            );
            assert_eq!(listing(out.path()), before);
        }
        // What a run left that was killed, whose lock is still there, is an export's.
        let out = folder();
        for name in ["config.json", ".tracewright-lock"] {
            fs::write(out.path().join(name), "").unwrap();
        }
        succeed(&mut write(&model, out.path()));
    }
}

/// Nothing of the one engine's export stays beside the other's.
#[test]
fn an_export_for_one_engine_replaces_that_for_the_other() {
    let (model, out, alone) = (fixture("llama-untied"), folder(), folder());
    fs::write(out.path().join("notes.mlir"), "mine").unwrap();
    fs::write(alone.path().join("notes.mlir"), "mine").unwrap();
    let names = |out: &Path| -> Vec<_> {
        listing(out).into_iter().map(|(path, _)| path.file_name().unwrap().to_owned()).collect()
    };
    succeed(&mut export_xla(&model, alone.path()));
    succeed(&mut export(&model, out.path()));
    succeed(&mut export_xla(&model, out.path()));
    assert_eq!(names(out.path()), names(alone.path()));
    succeed(&mut export(&model, out.path()));
    let expected = ["config.json", "manifest.json", "model.irpa", "model.mlir", "model.vmfb", "notes.mlir"];
    assert_eq!(names(out.path()), expected);
}

#[cfg(unix)]
#[test]
fn what_is_written_may_be_read_by_whom_the_umask_lets() {
    use std::os::unix::fs::PermissionsExt as _;

    let (out, model) = (folder(), fixture("llama-untied"));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let ordinary = out.path().join("ordinary");
    fs::write(&ordinary, "").unwrap();
    let cache = out.path().join("cache");
    succeed(generate(&model, &out.path().join("logits")).args(["--cache", text(&cache)]));
    succeed(&mut bake(&model, &out.path().join("archive")));
    let written = listing(out.path());
    assert!(written.len() > 4, "{written:?}");
    for (path, _) in written {
        assert_eq!(mode(&path), mode(&ordinary), "{}", path.display());
    }
}

/// The folder of a bare name is the one that the command runs in.
#[test]
fn no_output_replaces_a_model_by_its_bare_name() {
    let model = copied("llama-untied");
    let before = listing(model.path());
    for (mut command, out) in [
        (trace_dump(&["config.json", "-o", "config.json"]), "config.json"),
        (trace_dump(&["config.json", "-o", "model.safetensors"]), "model.safetensors"),
        (bare(&["bake", "model.safetensors", "-o", "config.json"]), "config.json"),
    ] {
        let words = format!("`{out}` is a file of the model itself");
        refused(command.current_dir(model.path()), 1, &[&words]);
        assert_eq!(listing(model.path()), before);
    }
}
