//! Reads the index of a checkpoint that consists of several files. The index maps each tensor to a file.

use crate::ArchiveError;
use crate::unsupported::{INDEX, SINGLE};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Path, PathBuf},
};

#[derive(Deserialize)]
pub(crate) struct Index {
    pub weight_map: BTreeMap<String, String>,
}

impl Index {
    pub fn read(path: &Path) -> Result<Self, ArchiveError> {
        let text = files::read_text(path, files::limits::INDEX)?;
        files::parse_json(&text).map_err(|source| ArchiveError::Index { path: path.into(), source })
    }

    pub fn shards(&self) -> BTreeSet<&str> {
        self.weight_map.values().map(String::as_str).collect()
    }
}

/// An index that was ignored for a single safetensors file with other weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedOver {
    pub index: PathBuf,
    /// The first tensor, in the order of names, that differs between the single file and the shards.
    pub tensor: String,
    pub difference: ShardDifference,
}

/// The difference between a tensor in the single file and the tensor with the same name in the shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardDifference {
    OnlyInFile,
    OnlyInShards,
    Type,
    Numbers,
}

impl fmt::Display for PassedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, tensor, difference } = self;
        let folder = index.parent().unwrap_or(index);
        let differs = match difference {
            ShardDifference::OnlyInFile => format!("only `{SINGLE}` has `{tensor}`"),
            ShardDifference::OnlyInShards => format!("only the shards have `{tensor}`"),
            ShardDifference::Type => format!("`{tensor}` has another shape or type in each"),
            ShardDifference::Numbers => format!("`{tensor}` has other numbers in each"),
        };
        write!(
            f,
            "`{}` holds two checkpoints, `{SINGLE}` and the shards of `{INDEX}`: {differs}; `{SINGLE}` is read; remove \
             the one that you do not mean",
            folder.display()
        )
    }
}
