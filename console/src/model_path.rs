//! What is named as a model: the path to read, or what is there instead of a model.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy as _;
use tracewright::errors::FileError;
use tracewright::files::{BrokenLink, is_there};
use tracewright::irpa::{ArchiveError, HubFolder, UnsupportedFormat};

use crate::error::ConsoleError;
use crate::network::preset;

/// The path to read for a model: of a folder in the hub's cache its snapshot. What is known not to be a model is refused;
/// all else is left to its reader.
pub fn resolved(model: &Path) -> Result<PathBuf, ConsoleError> {
    if let Some(target) = BrokenLink::at(model) {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, target);
        return Err(FileError { action: "open", path: model.to_owned(), source }.into());
    }
    if !is_there(model) {
        return match hub_name(model).filter(|_| preset(model).is_none()) {
            Some(name) => Err(ConsoleError::HubName { downloaded: downloaded(&name), name }),
            None => Ok(model.to_owned()),
        };
    }
    if let Some(hub) = HubFolder::at(model) {
        return Ok(hub.snapshot()?.to_owned());
    }
    let foreign = match model.is_dir() {
        true if ["config.json", "manifest.json"].iter().any(|name| is_there(&model.join(name))) => None,
        true => UnsupportedFormat::of_folder(model)?,
        false => UnsupportedFormat::of_file(model, &head(model)),
    };
    match foreign {
        Some(format) => Err(ArchiveError::Foreign { path: model.to_owned(), format }.into()),
        None => Ok(model.to_owned()),
    }
}

/// The first bytes of a regular file, as far as they can be read.
fn head(path: &Path) -> Vec<u8> {
    let mut head = Vec::new();
    if path.is_file() {
        // What cannot be read is said by its reader.
        let _ = File::open(path).and_then(|file| file.take(1 << 10).read_to_end(&mut head));
    }
    head
}

/// The name on the Hugging Face hub that a path looks like, which is not there: `org/name`, an address, or a name without
/// an organization if the hub's cache has it.
fn hub_name(path: &Path) -> Option<String> {
    const ADDRESSES: [&str; 4] =
        ["https://huggingface.co/", "http://huggingface.co/", "huggingface.co/", "hf://"];
    let text = path.to_str()?;
    let address = ADDRESSES.iter().find_map(|start| text.strip_prefix(start));
    let mut parts = address.unwrap_or(text).split('/');
    let (first, second, rest) = (parts.next()?, parts.next().filter(|name| !name.is_empty()), parts.next());
    let is_name = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    let is_file =
        |name: &str| [".json", ".safetensors", ".gguf", ".irpa"].iter().any(|end| name.ends_with(end));
    match second {
        Some(second) if is_name(first) && is_name(second) => {
            let is_whole = address.is_some() || (rest.is_none_or(str::is_empty) && !is_file(second));
            // `models/llama` is a path that is misspelt, if there is a folder `models`.
            (is_whole && (address.is_some() || !Path::new(first).is_dir()))
                .then(|| format!("{first}/{second}"))
        }
        None if is_name(first) && downloaded(first).is_some() => Some(first.to_owned()),
        _ => None,
    }
}

/// The folder of a model in the hub's cache, where `huggingface_hub` keeps it.
fn downloaded(name: &str) -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || {
        let home = variable("HF_HOME")
            .or_else(|| Some(etcetera::choose_base_strategy().ok()?.cache_dir().join("huggingface")));
        home.map(|home| home.join("hub"))
    };
    let cache = variable("HF_HUB_CACHE").or_else(home)?;
    let hub = HubFolder::at(&cache.join(format!("models--{}", name.replace('/', "--"))))?;
    hub.snapshot().ok().map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_on_the_hub_is_no_path() {
        for (path, expected) in [
            ("HuggingFaceTB/SmolLM2-135M", Some("HuggingFaceTB/SmolLM2-135M")),
            ("org/name/", Some("org/name")),
            ("https://huggingface.co/org/name/tree/main", Some("org/name")),
            ("hf://org/name", Some("org/name")),
            ("./org/name", None),
            ("../name", None),
            ("/org/name", None),
            ("a/b/c", None),
            ("src/nothing", None),
            ("org/config.json", None),
            ("org/model.gguf", None),
            ("nowhere", None),
            ("~/name", None),
        ] {
            assert_eq!(hub_name(Path::new(path)).as_deref(), expected, "{path}");
        }
    }
}
