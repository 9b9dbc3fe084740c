//! What the documents tell a reader to type is typed: each block of commands that says of itself nothing else runs, in the
//! order of its document, on the model that comes with the repository.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::blocks::{CHAPTER, CodeBlock, FIGURE, blocks};
use crate::support::*;

/// `cargo run --bin NAME -- …` runs the program that is built already.
const CARGO: &str = "#!/bin/sh
[ \"$1\" = run ] || exit 64
while [ \"$1\" != --bin ]; do shift; done
shift; name=\"$1\"; shift 2
exec \"$name\" \"$@\"
";

/// A folder with what the documents take for granted.
fn workplace() -> TempDir {
    let folder = folder();
    let at = |path: &str| folder.path().join(path);
    for path in ["bin", "target/release"] {
        fs::create_dir_all(at(path)).unwrap();
    }
    for (path, name) in
        [(env!("CARGO_BIN_EXE_tracewright"), "tracewright"), (env!("CARGO_BIN_EXE_trace-dump"), "trace-dump")]
    {
        symlink(path, at("bin").join(name)).unwrap();
        symlink(path, at("target/release").join(name)).unwrap();
    }
    fs::write(at("bin/cargo"), CARGO).unwrap();
    fs::set_permissions(at("bin/cargo"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink(demo(), at("demo")).unwrap();
    symlink(demo(), at("MODEL_DIR")).unwrap();
    symlink(demo().join("config.json"), at("config.json")).unwrap();
    symlink(demo().join("model.safetensors"), at("FILE.safetensors")).unwrap();
    // Lines of Rust, for whoever shows them.
    symlink(root().join("models"), at("models")).unwrap();
    let schema = r#"{"type": "object", "properties": {"name": {"enum": ["fox", "owl"]}}, "required": ["name"],
        "additionalProperties": false, "x-guidance": {"whitespace_flexible": false}}"#;
    fs::write(at("schema.json"), schema).unwrap();
    fs::write(at("animal.json"), schema).unwrap();
    fs::write(at("answer.lark"), "start: \"yes\" | \"no\"\n").unwrap();
    folder
}

fn run_block(block: &CodeBlock, folder: &Path) {
    let CodeBlock { document, line, text, .. } = block;
    let path = format!("{}:/usr/bin:/bin", folder.join("bin").display());
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", text]).current_dir(folder).stdin(Stdio::null()).env_clear().env("PATH", path);
    shell.env("TRACEWRIGHT_IREE_COMPILE", iree_compile());
    shell.env("TRACEWRIGHT_CACHE", root().join(".tracewright/cache"));
    let output = shell.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{document}:{line}: {}\n{text}\n{said}", output.status);
    assert!(!said.contains("panicked"), "{document}:{line}\n{said}");
}

#[test]
fn what_the_documents_say_to_type_runs() {
    let all = blocks(root());
    // Another test follows that one command for command.
    let is_run =
        |block: &&CodeBlock| block.kind == "sh" && block.needs.is_none() && block.document != CHAPTER;
    let mut runs: Vec<&CodeBlock> = all.iter().filter(is_run).collect();
    let commands: usize = runs.iter().map(|block| block.commands().len()).sum();
    assert!(runs.len() > 12 && commands > 30, "{} blocks, {commands} commands", runs.len());
    // In the short form those of the first page: another test looks whether we know the words of all.
    runs.retain(|block| block.document == "README.md" || is_long());
    for document in runs.chunk_by(|a, b| a.document == b.document) {
        let folder = workplace();
        document.iter().for_each(|block| run_block(block, folder.path()));
    }
}

/// A block is of a kind that something looks at.
#[test]
fn every_block_is_looked_at() {
    for CodeBlock { document, line, kind, .. } in blocks(root()) {
        let is_file_of_example = document == CHAPTER && ["rust,ignore", "json"].contains(&&*kind);
        let is_known = ["sh", "text", "rust", "rust,no_run", FIGURE].contains(&&*kind);
        assert!(is_known || is_file_of_example, "{document}:{line}: `{kind}` is neither run nor compiled");
    }
    // Rust is compiled as a part of these.
    let sources =
        ["src/lib.rs", "tests/src/lib.rs"].map(|path| fs::read_to_string(root().join(path)).unwrap());
    for block in blocks(root()).iter().filter(|block| matches!(&*block.kind, "rust" | "rust,no_run")) {
        let include = format!("{}\")]", block.document);
        assert!(
            sources.iter().any(|source| source.contains(&include)),
            "no test compiles `{}`",
            block.document
        );
    }
}

/// What a text links to outside of its blocks of code, without addresses of the network.
fn links(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    let links = prose
        .flat_map(|text| text.split("](").skip(1))
        .filter_map(|rest| rest.split_once(')').map(|(link, _)| link));
    links.filter(|link| !link.contains("://") && !link.contains(' ')).collect()
}

/// Links lead to files that are there, and those of the book's chapters to what is in the book.
#[test]
fn links_lead_somewhere() {
    let docs = root().join("docs");
    let files = fs::read_dir(&docs).unwrap().map(|file| file.unwrap().path());
    let chapters: Vec<_> = files.filter(|path| path.extension().is_some_and(|e| e == "md")).collect();
    let others = ["README.md", "ARCHITECTURE.md", "SECURITY.md"].map(|name| root().join(name));
    let mut count = 0;
    for document in chapters.iter().chain(&others) {
        let text = fs::read_to_string(document).unwrap();
        for link in links(&text) {
            let file = link.split('#').next().unwrap();
            let place = document.parent().unwrap().join(file);
            assert!(file.is_empty() || place.exists(), "{}: `{link}` leads nowhere", document.display());
            let leaves = document.starts_with(&docs) && !place.canonicalize().unwrap().starts_with(&docs);
            assert!(!leaves, "{}: `{link}` is not in the book", document.display());
            count += 1;
        }
    }
    assert!(count > 50, "{count} links");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    for chapter in chapters.iter().map(|path| path.file_name().unwrap().to_str().unwrap()) {
        assert!(
            chapter == "SUMMARY.md" || links(&summary).contains(&chapter),
            "`{chapter}` is not in SUMMARY.md"
        );
    }
}
