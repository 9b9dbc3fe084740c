//! Finds the existing path that a misspelled path resembles.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// The most names that are compared in a folder.
const NAMES: usize = 10_000;

/// An existing path that differs only in a few characters; `None` if the path itself exists.
pub fn near_path(path: &Path) -> Option<PathBuf> {
    let mut found = PathBuf::new();
    let mut is_other = false;
    for component in path.components() {
        let next = found.join(component);
        if next.exists() {
            found = next;
            continue;
        }
        let Component::Normal(name) = component else { return None };
        found.push(near_name(&found, name.to_str()?)?);
        is_other = true;
    }
    is_other.then_some(found)
}

/// Returns the name in a folder that differs least from `name`, in at most a third of its characters.
fn near_name(folder: &Path, name: &str) -> Option<String> {
    let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let entries = fs::read_dir(here).ok()?.flatten().take(NAMES);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let (lower, most) = (name.to_lowercase(), name.chars().count() / 3);
    let distance = |other: String| (strsim::osa_distance(&lower, &other.to_lowercase()), other);
    let near = names.filter(|other| !other.starts_with('.')).map(distance);
    near.filter(|(distance, _)| *distance <= most).min().map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelled_path_is_near_to_an_existing_one() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["models/base", "models/Large-2", "q"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        fs::write(folder.path().join("models/model-q4.gguf"), "").unwrap();
        for (text, expected) in [
            ("models/bsae", Some("models/base")),
            ("model/base", Some("models/base")),
            ("modles/bas", Some("models/base")),
            ("models/large-2", Some("models/Large-2")),
            ("models/model-q5.gguf", Some("models/model-q4.gguf")),
            ("models/base", None),
            ("models/huge", None),
            ("org/base", None),
            ("models/base/config", None),
            ("p", None),
        ] {
            let near = near_path(&folder.path().join(text));
            assert_eq!(near, expected.map(|name| folder.path().join(name)), "{text}");
        }
    }
}
