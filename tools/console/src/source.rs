//! Shows the lines of Rust code that errors and reports refer to.

use std::io::Write as _;
use std::path::Path;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};
use tracewright::errors::{Place, escaped};
use tracewright::files::{self, limits};

const SHOWN: usize = 3;

/// A node's file, such as `models/src/llama.rs`, relative to the current folder, or to a crate or room in it.
pub fn read(file: &str) -> Option<String> {
    let path = Path::new(file);
    if path.is_absolute() {
        return None;
    }
    ["", "..", "../.."]
        .into_iter()
        .find_map(|up| files::read_text(&Path::new(up).join(path), limits::SOURCE).ok())
}

/// In rustc's format, each line once, without files that cannot be read.
pub fn show(places: &[Place]) {
    let mut lines: Vec<(&str, u32, Vec<&str>)> = Vec::new();
    for Place { path, file, line } in places {
        match lines.iter_mut().find(|(known, number, _)| (*known, number) == (file, line)) {
            Some((.., paths)) if paths.contains(&&**path) => {}
            Some((.., paths)) => paths.push(path),
            None => lines.push((file, *line, vec![path])),
        }
    }
    for (file, line, paths) in lines.iter().take(SHOWN) {
        if let Some(shown) = read(file).and_then(|text| snippet(file, *line, paths, &text)) {
            // The error itself was already printed. If writing to stderr fails, there is nothing
            // else to do.
            let _ = writeln!(anstream::stderr(), "{shown}");
        }
    }
}

/// Formats a source line, and lists the fields of the network that this line declares or computes.
fn snippet(file: &str, line: u32, paths: &[&str], text: &str) -> Option<String> {
    let shown = escaped(text.lines().nth((line as usize).checked_sub(1)?)?);
    let start = shown.len() - shown.trim_start().len();
    let paths: Vec<String> =
        paths.iter().filter(|path| !path.is_empty()).map(|path| format!("`{}`", escaped(path))).collect();
    let title =
        if paths.is_empty() { "recorded here".to_owned() } else { format!("in {}", paths.join(", ")) };
    let source = Snippet::source(&shown).line_start(line as usize).path(file);
    let marked = AnnotationKind::Primary.span(start..shown.trim_end().len());
    let group = Level::NOTE.secondary_title(title).element(source.annotation(marked));
    Some(Renderer::styled().render(&[group]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_shown_with_its_line() {
        let shown = |line, text| snippet("net/src/lib.rs", line, &["model.norm"], text);
        let text = "fn forward() {\n    x.norm()?;\n}\n";
        let styled = shown(2, text).unwrap();
        let plain = anstream::adapter::strip_str(&styled).to_string();
        expect_test::expect![[r#"
            note: in `model.norm`
             --> net/src/lib.rs:2:5
              |
            2 |     x.norm()?;
              |     ^^^^^^^^^^"#]]
        .assert_eq(&plain);
        let styled = shown(1, "x.\u{1b}[31mnorm()").unwrap();
        let plain = anstream::adapter::strip_str(&styled).to_string();
        assert!(plain.contains("1 | x.\\u{1b}[31mnorm()"), "{plain}");
        assert_eq!(shown(0, text), None);
        assert_eq!(shown(4, text), None);
    }
}
