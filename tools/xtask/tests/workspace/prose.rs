//! Checks STYLE.md's rules for plain prose in documents, doc comments, help and error texts.
//!
//! A sentence is checked after code, links and markup are taken out of it: `code` counts as one word. To widen the scope,
//! give `SCOPE` another reader that yields fragments with their lines.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::repository;

/// Splits a text into fragments.
type Reader = fn(&str) -> Vec<Fragment>;

/// Whether a reader reads the file of this path.
type Kind = fn(&str) -> bool;

/// The kinds of files, and the reader that splits such a text into fragments. Doc comments include the help of command lines. Those of tests are not read.
const SCOPE: [(Kind, Reader); 3] = [
    (|path| path.ends_with(".md"), markdown),
    (|path| path.ends_with(".rs"), doc_comments),
    (|path| path.ends_with(".rs"), error_texts),
];

/// Folders and files that are not rewritten yet.
const NOT_YET: [&str; 0] = [];

/// Sentences that may break a rule: file, words of the sentence, reason. None needs it today.
const EXCEPTIONS: &[(&str, &str, &str)] = &[(
    "tools/cli/src/options/sampling.rs",
    "penalties;dry;",
    "a list of llama.cpp, which puts `;` between its items",
)];

/// The longest sentence, in words.
const WORDS: usize = 30;

/// Words that only this project uses, and the field's terms.
const TERMS: [(&str, &str); 17] = [
    ("swallow", "fuse"),
    ("swallows", "fuses"),
    ("swallowed", "fused"),
    ("numbers part", "outputs diverge"),
    ("products of weights", "matmuls"),
    ("a product over", "a matmul over"),
    ("what layers remember", "state, KV cache"),
    ("a layer remembers", "a layer caches"),
    ("vectors of texts", "embeddings"),
    ("vector of a text", "embedding"),
    ("many machines", "distributed"),
    ("goes about it", "works"),
    ("stands in a", "is in a"),
    ("rows at once", "sequences in parallel"),
    ("texts at once", "sequences in parallel"),
    ("program is made for", "target"),
    ("the machine it is made for", "the target"),
];

/// A clause as the subject: these words begin a sentence only as a question.
const OPENINGS: [&str; 4] = ["What", "Of", "Where", "Whoever"];

/// Nouns for things with a text. These contain, set or report, but they do not speak.
const SPEAKERS: [&str; 14] = [
    "file",
    "files",
    "flag",
    "flags",
    "option",
    "manifest",
    "archive",
    "checkpoint",
    "table",
    "configuration",
    "header",
    "metadata",
    "page",
    "README",
];

/// A piece of text that no sentence crosses: a paragraph, an item of a list, a cell of a table.
struct Fragment {
    line: usize,
    text: String,
}

/// The prose of a Markdown file: no blocks of code, no comments.
fn markdown(text: &str) -> Vec<Fragment> {
    let mut fragments: Vec<Fragment> = Vec::new();
    let (mut in_code, mut in_comment, mut open) = (false, false, false);
    for (line, content) in text.lines().enumerate().map(|(at, content)| (at + 1, content)) {
        let trimmed = content.trim_start();
        if trimmed.starts_with("```") {
            (in_code, open) = (!in_code, false);
        } else if in_code {
        } else if in_comment || trimmed.starts_with("<!--") {
            in_comment = !trimmed.contains("-->");
            open = false;
        } else if trimmed.is_empty() || (content.starts_with("    ") && !open) || trimmed.starts_with("{{#") {
            open = false;
        } else if trimmed.starts_with('|') {
            let cells = trimmed.trim_matches('|').split(" | ");
            fragments.extend(cells.map(|cell| Fragment { line, text: cell.trim().to_owned() }));
            open = false;
        } else {
            let item = ["- ", "* ", "> "].iter().find_map(|mark| trimmed.strip_prefix(mark));
            let item = item.or_else(|| {
                trimmed.split_once(". ").filter(|(n, _)| n.parse::<u32>().is_ok()).map(|(_, t)| t)
            });
            let heading = trimmed.starts_with('#').then(|| trimmed.trim_start_matches('#').trim());
            match (fragments.last_mut().filter(|_| open), item.or(heading)) {
                (Some(last), None) => write!(last.text, " {trimmed}").unwrap(),
                (_, begun) => fragments.push(Fragment { line, text: begun.unwrap_or(trimmed).to_owned() }),
            }
            open = heading.is_none();
        }
    }
    fragments
}

/// The doc comments of a Rust file, `///` and `//!`, are Markdown between empty lines.
fn doc_comments(text: &str) -> Vec<Fragment> {
    let docs = text.lines().map(|content| {
        let comment = content.trim_start();
        let doc = comment.strip_prefix("///").or_else(|| comment.strip_prefix("//!")).unwrap_or_default();
        doc.strip_prefix(' ').unwrap_or(doc)
    });
    markdown(&docs.collect::<Vec<_>>().join("\n"))
}

/// The texts of `#[error("…")]`. A placeholder is a word.
fn error_texts(text: &str) -> Vec<Fragment> {
    let mut fragments = Vec::new();
    for (at, attribute) in text.match_indices(concat!("#[", "error(")) {
        let rest = text[at + attribute.len()..].trim_start();
        let Some(literal) = rest.strip_prefix('"') else { continue };
        let mut is_escaped = false;
        let end = literal.find(|c| {
            let ends = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            ends
        });
        let line = text[..at].lines().count();
        let literal = literal[..end.unwrap()].replace("\\\n", " ");
        fragments.push(Fragment { line, text: literal.replace(['{', '}'], "").replace("\\\"", "'") });
    }
    fragments
}

/// Code becomes one word, a link its text, an address nothing.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    for (at, piece) in text.split('`').enumerate() {
        plain += if at % 2 == 0 { piece } else { "Code" };
    }
    while let Some((before, (_, after))) =
        plain.split_once("](").and_then(|(before, rest)| Some((before, rest.split_once(')')?)))
    {
        plain = format!("{before}]{after}");
    }
    plain.replace(['*', '[', ']', '!', '"', '“', '”'], "")
}

/// Sentences end at a full stop, a question mark or a colon before a new sentence's capital.
fn sentences(text: &str) -> Vec<String> {
    let mut sentences = vec![String::new()];
    let words: Vec<&str> = text.split_whitespace().collect();
    for (at, word) in words.iter().enumerate() {
        let sentence = sentences.last_mut().unwrap();
        if !sentence.is_empty() {
            sentence.push(' ');
        }
        sentence.push_str(word);
        let bare = word.trim_end_matches([')', '\'']);
        let ends = bare.ends_with(['.', '?']) && !["e.g.", "i.e.", "vs.", "al."].contains(&bare);
        let next = words.get(at + 1).and_then(|next| next.trim_start_matches('(').chars().next());
        if ends && next.is_none_or(|first| first.is_uppercase() || first.is_numeric()) {
            sentences.push(String::new());
        }
    }
    sentences.retain(|sentence| !sentence.is_empty());
    sentences
}

/// The rules that a sentence breaks.
fn broken(sentence: &str) -> Vec<String> {
    let mut rules = Vec::new();
    let words: Vec<&str> =
        sentence.split_whitespace().map(|word| word.trim_matches(|c: char| !c.is_alphanumeric())).collect();
    let count = words.iter().filter(|word| word.chars().any(char::is_alphabetic)).count();
    if count > WORDS {
        rules.push(format!("{count} words, at most {WORDS}"));
    }
    if sentence.matches(';').count() > 1 {
        rules.push("more than one `;`".to_owned());
    }
    let is_clause = words.len() > 4 && !sentence.ends_with('?');
    if is_clause && OPENINGS.contains(&words[0]) {
        rules.push(format!("begins with the clause `{} …`", words[0]));
    }
    let lower = format!(" {} ", words.join(" ").to_lowercase());
    for (private, field) in TERMS {
        if lower.contains(&format!(" {private} ")) {
            rules.push(format!("`{private}`, the field's term is `{field}`"));
        }
    }
    for pair in words.windows(2) {
        let speaks = ["say", "says", "said"].contains(&pair[1]);
        if speaks && (SPEAKERS.contains(&pair[0]) || pair[0] == "Code" || pair[0].ends_with(".md")) {
            rules.push(format!("`{} {}`: it contains, sets, declares or reports", pair[0], pair[1]));
        }
    }
    rules
}

/// All that is wrong with a file, a line for each sentence and rule.
fn findings(path: &str, text: &str, read: Reader) -> Vec<String> {
    let mut found = Vec::new();
    for Fragment { line, text } in read(text) {
        for sentence in sentences(&plain(&text)) {
            let excused = EXCEPTIONS.iter().any(|(file, words, _)| path == *file && sentence.contains(words));
            for rule in broken(&sentence).into_iter().filter(|_| !excused) {
                found.push(format!("{path}:{line}: {rule}\n    {sentence}"));
            }
        }
    }
    found
}

/// The files of the checkout that git knows.
fn tracked(root: &Path) -> Vec<String> {
    let listed = Command::new("git").args(["ls-files"]).current_dir(root).output().unwrap();
    String::from_utf8(listed.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn prose_is_plain() {
    let root = repository();
    let (mut read, mut found) = (0, Vec::new());
    for path in tracked(&root).iter().filter(|path| !NOT_YET.iter().any(|not_yet| path.starts_with(not_yet)))
    {
        let readers: Vec<Reader> =
            SCOPE.iter().filter(|(is_read, _)| is_read(path)).map(|(_, reader)| *reader).collect();
        // A file that is deleted and not staged yet is nobody's to read.
        let Ok(text) = fs::read_to_string(root.join(path)) else { continue };
        read += usize::from(!readers.is_empty());
        found.extend(readers.iter().flat_map(|reader| findings(path, &text, *reader)));
    }
    assert!(read > 20, "{read} files");
    assert!(found.is_empty(), "{} sentences to rewrite:\n{}", found.len(), found.join("\n"));
}

#[test]
fn each_rule_finds_its_sentence() {
    let long = format!("The kernel {}.", "reads a row and ".repeat(8));
    for (sentence, rule) in [
        ("What is read of the file is in a table.", "`What …`"),
        ("Of 512 tokens attention takes 45 ms.", "`Of …`"),
        ("Where a target lacks it, the compiler ends.", "`Where …`"),
        ("Whoever reads it gets an error of its own.", "`Whoever …`"),
        ("A kernel swallows the norm before it.", "the field's term is `fuses`"),
        ("The file says it. `--quant` says more.", "`file says`"),
        ("One; two; three.", "more than one `;`"),
        (&long, "words, at most 30"),
    ] {
        let found = findings("a.md", sentence, markdown);
        assert_eq!(found.len(), if sentence.contains("--quant") { 2 } else { 1 }, "{sentence}: {found:?}");
        assert!(found[0].contains(rule), "{found:?}");
    }
    let variant = "#[error(\"the file says `{0}`; \\\n    mend it\")]\nBroken";
    assert_eq!(findings("a.rs", variant, error_texts).len(), 1);
    let documented = "/// The rows.\n///\n/// - one\nstruct Rows;\n//! What a file has is not a sentence.\nfn what() {}\n// What of that.\n";
    let found = findings("a.rs", documented, doc_comments);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("a.rs:5: "), "{found:?}");
    for fine in [
        "Where does it run?",
        "```\nWhat is code is not read here at all.\n```",
        "| What | Of which target |",
        "Tracewright reads `What is code; and; more`.",
    ] {
        assert!(findings("a.md", fine, markdown).is_empty(), "{fine}");
    }
}
