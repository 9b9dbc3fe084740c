//! The code blocks of the documents: of README and its neighbours, of the Python package, and of the book.
#![allow(dead_code, reason = "each program that tests them uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub struct CodeBlock {
    /// The document, from the root of the checkout.
    pub document: String,
    /// The line of its fence.
    pub line: usize,
    /// The word after the fence: `sh`, `rust`, `text`. For an indented line with figures beside it,
    /// [`FIGURE`].
    pub kind: String,
    pub text: String,
    /// The requirement in the comment on the previous line: `<!-- needs: torch -->`.
    pub needs: Option<String>,
    /// The file that the paragraph before it says has this text: "`src/main.rs` has …".
    pub path: Option<String>,
    /// The text that the commands print: a `text` block right behind them.
    pub output: Option<String>,
}

impl CodeBlock {
    /// Its commands: without comments, and as one line where they go over several.
    pub fn commands(&self) -> Vec<String> {
        let joined = self.text.replace("\\\n", " ");
        let without =
            |line: &str| line.split_once(" #").map_or(line, |(command, _)| command).trim().to_owned();
        let is_command = |line: &String| !line.is_empty() && !line.starts_with('#');
        let lines = joined.lines().map(without);
        let commands = lines.flat_map(|line| line.split("; ").map(str::to_owned).collect::<Vec<_>>());
        commands.filter(is_command).collect()
    }
}

/// The words of a command as a shell has them, quotes being no part of them.
pub fn words(command: &str) -> Vec<String> {
    shlex::split(command).unwrap_or_else(|| panic!("`{command}` has a quote without an end"))
}

pub fn blocks(root: &Path) -> Vec<CodeBlock> {
    let single = ["README.md", "SECURITY.md", "CONTRIBUTING.md", "STYLE.md", "tools/python/README.md"];
    let mut paths: Vec<PathBuf> = single.map(|path| root.join(path)).into();
    paths.extend(pages(root));
    paths.iter().flat_map(|path| of(path.strip_prefix(root).unwrap().to_str().unwrap(), path)).collect()
}

/// The pages of the book, its table of contents included.
pub fn pages(root: &Path) -> Vec<PathBuf> {
    let mut folders = vec![root.join("docs")];
    let mut pages = Vec::new();
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match path.extension() {
                Some(extension) if extension == "md" => pages.push(path),
                _ if path.is_dir() => folders.push(path),
                _ => {}
            }
        }
    }
    pages.sort();
    pages
}

/// The pages about networks of one's own, in the order in which tests follow them command for command.
pub const OWN_NETWORK: [&str; 4] = [
    "docs/tutorials/own-network.md",
    "docs/guides/port-a-model.md",
    "docs/tutorials/numbers.md",
    "docs/guides/own-command-line.md",
];

pub fn own_network(root: &Path) -> Vec<CodeBlock> {
    OWN_NETWORK.iter().flat_map(|page| of(page, &root.join(page))).collect()
}

fn of(document: &str, path: &Path) -> Vec<CodeBlock> {
    let text = fs::read_to_string(path).unwrap();
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    let (mut before, mut path, mut is_behind) = ("", None, false);
    while let Some((at, line)) = lines.next() {
        if let Some(kind) = line.strip_prefix("```") {
            let needs = before.strip_prefix("<!-- needs: ").and_then(|rest| rest.strip_suffix(" -->"));
            let inside = lines.by_ref().map(|(_, line)| line).take_while(|line| !line.starts_with("```"));
            let text = inside.fold(String::new(), |text, line| text + line + "\n");
            blocks.push(CodeBlock {
                document: document.to_owned(),
                line: at + 1,
                kind: kind.to_owned(),
                text,
                needs: needs.map(str::to_owned),
                path: path.take(),
                output: None,
            });
            if let [.., commands, output] = &mut blocks[..]
                && (&*commands.kind, &*output.kind) == ("sh", "text")
                && is_behind
            {
                commands.output = Some(output.text.clone());
            }
            (before, is_behind) = ("", true);
            continue;
        }
        is_behind &= line.is_empty();
        if before.is_empty() && !line.is_empty() {
            path = line
                .strip_prefix('`')
                .and_then(|rest| rest.split_once("` has "))
                .map(|(path, _)| path.to_owned());
        }
        let is_command = |line: &str| COMMANDS.iter().any(|command| line.starts_with(command));
        if let Some(command) = line.strip_prefix("    ").filter(|line| is_command(line) && !is_form(line)) {
            blocks.push(CodeBlock {
                document: document.to_owned(),
                line: at + 1,
                kind: FIGURE.to_owned(),
                text: command.to_owned() + "\n",
                needs: Some("the time that the figures took".to_owned()),
                path: None,
                output: None,
            });
        }
        before = line;
    }
    blocks
}

/// The kind of a command that figures come from.
pub const FIGURE: &str = "figure";

const COMMANDS: [&str; 4] = ["tracewright ", "target/release/tracewright ", "trace-dump ", "cargo xtask "];

/// Whether a line says which forms a command has.
fn is_form(line: &str) -> bool {
    line.contains(['[', '|', '…'])
}
