//! A command that writes a file replaces only a file of the same kind.

use std::fs;
use std::path::Path;
use std::process::Command;

use console::output::{self, OUTPUTS};

use crate::schemas::SIZES;
use crate::support::*;

/// A kind of file, the name that the file gets, and the command that writes it.
type Output = (&'static str, &'static str, fn(&Path) -> Command);

const FILE: &str = "out";

fn dump(out: &Path, more: &[&str]) -> Command {
    let mut command = trace_dump(&[text(&demo()), "-o", text(out)]);
    command.args(SMALL).args(more);
    command
}

fn bench(option: &str, out: &Path) -> Command {
    let mut command = tracewright(&["bench", "decode", text(&demo()), "--rounds", "1", "--tokens", "1"]);
    command.args(["--context", "64", "--chunk", "1", option, text(out)]);
    command
}

const WRITERS: &[Output] = &[
    (output::ARCHIVE.name, FILE, |out| {
        let mut command = bare(&["bake", text(&fixture("llama-untied")), "-o", text(out)]);
        command.args(SMALL);
        command
    }),
    (output::ARCHIVE.name, FILE, |out| {
        bare(&["bake", text(&fixture("llama-untied").join("model.safetensors")), "-o", text(out)])
    }),
    (output::SEQUENCE.name, FILE, |out| {
        let mut command = tracewright(&["generate", text(&fixture("llama-untied")), "--tokens", "5,17"]);
        command.args(SMALL).args(["-n", "2", "--prompt-cache", text(out)]);
        command
    }),
    (output::LOGITS.name, FILE, |out| {
        let mut command = tracewright(&["generate", text(&fixture("llama-untied")), "--tokens", "5,17"]);
        command.args(SMALL).args(["-n", "2", "--all-positions", "--save-logits", text(out)]);
        command
    }),
    (output::MESSAGES.name, FILE, |out| {
        // `/save` is typed, and a chat goes on behind an error.
        let mut command = Command::new("/bin/sh");
        let mut chat = tracewright(&["chat", text(&demo()), "-n", "4"]);
        chat.args(SIZES);
        let script = "said=$(printf 'Hello\\n/save %s\\n' \"$0\" | \"$@\" 2>&1); echo \"$said\" | grep -A9 '^error' >&2 && exit 1 || exit 0";
        command.args(["-c", script, text(out)]).arg(chat.get_program()).args(chat.get_args()).env_clear();
        command.env("PATH", "/usr/bin:/bin");
        command.envs(chat.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command
    }),
    (output::BENCHMARK.name, FILE, |out| bench("--json", out)),
    (output::PLOT.name, FILE, |out| bench("--plot", out)),
    (output::PROFILE.name, FILE, |out| bench("--trace", out)),
    (output::PAGE.name, "tracewright-bake.1", |out| bare(&["man", "-o", text(out.parent().unwrap())])),
    (output::TRACE.name, FILE, |out| dump(out, &["--emit", "text", "--layer", "0"])),
    (output::MODULE.name, FILE, |out| dump(out, &["--emit", "mlir"])),
    (output::COUNTS.name, FILE, |out| dump(out, &["--emit", "counts"])),
    (output::HTML.name, FILE, |out| dump(out, &["--emit", "html"])),
    (output::REPORT.name, FILE, |out| dump(out, &["--emit", "json"])),
    (output::DRAWING.name, FILE, |out| dump(out, &["--emit", "svg", "--layer", "0"])),
    (output::GRAPH.name, FILE, |out| dump(out, &["--emit", "dot", "--layer", "0"])),
    (output::EXPLANATION.name, FILE, |out| dump(out, &["--explain", "decode:5"])),
];

/// A file of weights that is not the command's own, a configuration, and whatever else looks like an output and is none.
fn others() -> Vec<(&'static str, Vec<u8>)> {
    let model = fixture("llama-tied");
    let read = |name: &str| fs::read(model.join(name)).unwrap();
    vec![
        ("model.safetensors", read("model.safetensors")),
        ("config.json", read("config.json")),
        ("golden.safetensors", fs::read(fixture("llama-untied").join("golden.safetensors")).unwrap()),
        ("index.html", b"<!doctype html>\n<html lang=\"en\"><title>mine</title></html>".to_vec()),
        ("drawing.svg", b"<svg xmlns=\"http://www.w3.org/2000/svg\"/>".to_vec()),
        ("graph.dot", b"digraph \"mine\" { a -> b }".to_vec()),
        ("list.json", b"[{\"name\": \"mine\"}]".to_vec()),
        ("module.mlir", b"module @mine {}".to_vec()),
        ("manual.1", b".TH ls 1\n.SH NAME\n".to_vec()),
        ("notes.txt", b"functions are mine".to_vec()),
    ]
}

#[test]
fn every_output_replaces_its_own_kind_and_nothing_else() {
    let named: Vec<_> = WRITERS.iter().map(|(kind, ..)| *kind).collect();
    for kind in OUTPUTS {
        assert!(named.contains(&kind.name), "no command here writes {}", kind.name);
        for (name, content) in others() {
            assert!(!(kind.is)(&content), "`{name}` would pass for {}", kind.name);
        }
    }
    for (kind, name, write) in WRITERS {
        let folder = folder();
        let path = folder.path().join(name);
        // Nothing, its own, an empty one.
        succeed(&mut write(&path));
        assert!(fs::metadata(&path).unwrap().len() > 5, "{kind}");
        succeed(&mut write(&path));
        fs::write(&path, "").unwrap();
        succeed(&mut write(&path));
        assert!(
            OUTPUTS.iter().any(|known| known.name == *kind && (known.is)(&fs::read(&path).unwrap())),
            "{kind}"
        );
        // Files of others, by their own name and by a link.
        let (other, content) = others().swap_remove(0);
        fs::write(&path, &content).unwrap();
        let words = [
            "error[TW0009]",
            "cannot replace",
            text(&path),
            "because: it is not ",
            kind,
            "write to another path",
        ];
        refused(&mut write(&path), 1, &words);
        assert_eq!(fs::read(&path).unwrap(), content, "{kind}");
        #[cfg(unix)]
        {
            let target = folder.path().join(other);
            fs::rename(&path, &target).unwrap();
            std::os::unix::fs::symlink(other, &path).unwrap();
            let leads = format!("it is a link to `{}`", target.canonicalize().unwrap().display());
            refused(&mut write(&path), 1, &["error[TW0009]", text(&path), &leads, kind]);
            assert_eq!(fs::read(&target).unwrap(), content, "{kind}");
            assert!(path.symlink_metadata().unwrap().is_symlink());
            fs::remove_file(&target).unwrap();
            refused(&mut write(&path), 1, &["cannot replace", text(&path), "is missing"]);
        }
    }
}

/// A folder that is written replaces no file of others, by whatever name it goes.
#[cfg(unix)]
#[test]
fn a_folder_that_is_written_leaves_what_links_lead_to() {
    let writers: [fn(&Path) -> Command; 3] = [
        |out| bare(&["random", text(&fixture("llama-untied")), "-o", text(out)]),
        |out| export_xla(&fixture("llama-untied"), out),
        |out| {
            let mut command = tracewright(&["export", text(&fixture("llama-untied")), "-o", text(out)]);
            command.args(SMALL);
            command
        },
    ];
    for write in writers {
        for name in ["model.safetensors", "config.json", "model.irpa", "prefill.mlir"] {
            let (mine, out) = (folder(), folder());
            let target = mine.path().join("mine");
            fs::write(&target, "mine").unwrap();
            std::os::unix::fs::symlink(&target, out.path().join(name)).unwrap();
            // Where the command has no file of this name it does its work.
            run(&mut write(out.path()));
            assert_eq!(fs::read_to_string(&target).unwrap(), "mine", "{name}");
        }
    }
}

/// A model is never written into its own folder, by whatever name the folder goes, and no message advises to remove what
/// is being read.
#[cfg(unix)]
#[test]
fn a_model_is_not_written_into_itself() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let model = at("m");
    fs::create_dir(&model).unwrap();
    for (path, _) in listing(&demo()) {
        fs::copy(&path, model.join(path.file_name().unwrap())).unwrap();
    }
    std::os::unix::fs::symlink("m", at("link")).unwrap();
    fs::copy(fixture("gguf").join("q4_0.gguf"), at("x.gguf")).unwrap();
    std::os::unix::fs::symlink("x.gguf", at("y")).unwrap();
    let before = listing(folder.path());
    for (source, out, what) in [
        ("m", "m", "is the model's own folder; write to another folder"),
        ("m", "./m/", "is the model's own folder"),
        ("m", "link", "is the model's own folder"),
        ("link", "m", "is the model's own folder"),
        ("x.gguf", "x.gguf", "is a file of the model itself; write to a"),
        ("x.gguf", "./y", "is a file of the model itself; write to a"),
    ] {
        for command in [&["quantize"][..], &["export"], &["export", "--engine", "xla"]] {
            // XLA reads no GGUF files.
            if source.ends_with("gguf") && command.contains(&"xla") {
                continue;
            }
            let mut command = tracewright(&[command, &[source, "-o", out]].concat());
            let ran = refused(command.current_dir(folder.path()), 1, &["error[TW0008]", what]);
            assert!(!ran.err.contains("remove"), "{}", ran.err);
        }
    }
    assert_eq!(listing(folder.path()), before);
    // What another model has left is found before the slow work, and stays.
    let taken = at("taken");
    fs::create_dir(&taken).unwrap();
    fs::write(taken.join("tokenizer.json"), "{}").unwrap();
    for (out, file) in [("taken", "taken/tokenizer.json"), ("taken/tokenizer.json", "tokenizer.json")] {
        let mut command = tracewright(&["quantize", "m", "-o", out, "--calibrate", "no/such.txt"]);
        let words = ["error[TW0009]", file, "exists; write to another folder, or move this file away"];
        refused(command.current_dir(folder.path()), 1, &words);
    }
    assert_eq!(listing(&taken).len(), 1);
}
