//! The name of a model on the hub.

use std::fmt;
use std::path::{Component, Path};

use crate::near_path;

/// A name of a model such as `org/name`, optionally with a revision and a file: `org/name@revision:file`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelName {
    /// Such as `org/name`.
    pub repository: String,
    /// The revision, which is a branch, a tag or a commit. The default revision is the branch `main`.
    pub revision: Option<String>,
    /// A file, or a part of a GGUF file's name such as `Q4_K_M`; `None` for the whole model.
    pub file: Option<String>,
}

impl ModelName {
    /// Parses the name of a model, or the address of the model's web page. The result is `None` for
    /// any other text, such as the path `./org/name`.
    ///
    /// ```
    /// use tracewright_hub::ModelName;
    ///
    /// let name = ModelName::parse("org/name@v2:model-Q4_0.gguf").unwrap();
    /// assert_eq!((name.repository.as_str(), name.file.as_deref()), ("org/name", Some("model-Q4_0.gguf")));
    /// assert_eq!(ModelName::parse("./org/name"), None);
    /// ```
    pub fn parse(text: &str) -> Option<Self> {
        const ADDRESSES: [&str; 4] =
            ["https://huggingface.co/", "http://huggingface.co/", "huggingface.co/", "hf://"];
        match ADDRESSES.iter().find_map(|start| text.strip_prefix(start)) {
            Some(page) => Self::of_page(page),
            None => {
                let (text, file) = divided(text, ':');
                let (repository, revision) = divided(text, '@');
                let repository = repository.strip_suffix('/').unwrap_or(repository);
                let is_file = |end: &&str| repository.ends_with(end);
                if [".json", ".safetensors", ".gguf", ".irpa"].iter().any(is_file) {
                    return None;
                }
                Self::of_parts(repository, revision, file)
            }
        }
    }

    /// `None` if the path or its first folder exists, or it [resembles](near_path) an existing path.
    /// `hf://org/name` is always a name on the hub.
    pub fn of_path(path: &Path) -> Option<Self> {
        let text = path.to_str()?;
        let name = Self::parse(text)?;
        let is_address = text.contains("://") || text.starts_with("huggingface.co/");
        let first = Path::new(text.split_once('/')?.0);
        let is_local = || path.symlink_metadata().is_ok() || first.is_dir() || near_path(path).is_some();
        (is_address || !is_local()).then_some(name)
    }

    /// `org/name`, `org/name/tree/main` or `org/name/blob/main/model.gguf`.
    fn of_page(page: &str) -> Option<Self> {
        let page = page.split(['?', '#']).next()?;
        let (page, file) = divided(page, ':');
        let mut parts = page.trim_end_matches('/').splitn(5, '/');
        let repository = format!("{}/{}", parts.next()?, parts.next()?);
        match (parts.next(), parts.next(), parts.next()) {
            (None, ..) => {
                let (repository, revision) = divided(&repository, '@');
                Self::of_parts(repository, revision, file)
            }
            (Some("tree"), revision, None) => Self::of_parts(&repository, revision, file),
            (Some("blob" | "resolve"), revision, Some(file)) => {
                Self::of_parts(&repository, revision, Some(file))
            }
            _ => None,
        }
    }

    fn of_parts(repository: &str, revision: Option<&str>, file: Option<&str>) -> Option<Self> {
        let (org, name) = repository.split_once('/')?;
        let is_name = |part: &str| {
            part.starts_with(|c: char| c.is_ascii_alphanumeric())
                && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
                // Folder names in the cache contain `--` instead of `/`, so names must not contain `--`.
                && !part.contains("--")
                && !part.contains("..")
        };
        let is_plain = |part: Option<&str>| part.is_none_or(is_inside);
        let own = |part: Option<&str>| part.map(str::to_owned);
        (is_name(org) && is_name(name) && is_plain(revision) && is_plain(file)).then(|| Self {
            repository: repository.to_owned(),
            revision: own(revision),
            file: own(file),
        })
    }

    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

pub(crate) fn is_inside(path: &str) -> bool {
    !path.is_empty()
        && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
        && !path.chars().any(|c| c.is_control() || c == '\\')
}

/// At the first `mark`.
fn divided(text: &str, mark: char) -> (&str, Option<&str>) {
    text.split_once(mark).map_or((text, None), |(before, after)| (before, Some(after)))
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repository)?;
        self.revision.iter().try_for_each(|revision| write!(f, "@{revision}"))?;
        self.file.iter().try_for_each(|file| write!(f, ":{file}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_on_the_hub_is_no_path() {
        for (text, expected) in [
            ("HuggingFaceTB/SmolLM2-135M", Some("HuggingFaceTB/SmolLM2-135M")),
            ("org/name/", Some("org/name")),
            ("org/name:model.Q4_0.gguf", Some("org/name:model.Q4_0.gguf")),
            ("org/name:Q4_K_M", Some("org/name:Q4_K_M")),
            ("org/name@v1.0:sub/model.gguf", Some("org/name@v1.0:sub/model.gguf")),
            ("https://huggingface.co/org/name", Some("org/name")),
            ("https://huggingface.co/org/name/tree/main", Some("org/name@main")),
            ("https://huggingface.co/org/name/blob/main/a.gguf?x=1", Some("org/name@main:a.gguf")),
            ("hf://org/name@dev", Some("org/name@dev")),
            ("https://huggingface.co/org/name/discussions", None),
            ("https://huggingface.co/org", None),
            ("./org/name", None),
            ("../name", None),
            ("/org/name", None),
            ("a/b/c", None),
            ("org/config.json", None),
            ("org/model.gguf", None),
            ("org/name:../x", None),
            ("org/name:", None),
            ("org/a--b", None),
            ("org/..", None),
            ("nowhere", None),
            ("~/name", None),
            ("", None),
        ] {
            assert_eq!(ModelName::parse(text).map(|name| name.to_string()).as_deref(), expected, "{text}");
        }
    }
}
