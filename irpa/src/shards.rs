//! Reads the shards of a checkpoint, and compares the shards with the index.

use crate::index::{Index, PassedOver, ShardDifference};
use crate::{ArchiveError, Checkpoint, CheckpointTensor, IndexProblem};
use errors::WithCauses;
use std::{
    collections::BTreeSet,
    path::{Component, Path, PathBuf},
};

impl Checkpoint {
    /// Adds the tensors of all shards. The error lists all contradictions with the index.
    ///
    /// Checkpoints that replace tensors of another one have them in several shards. Then the index decides, or
    /// else the last name, as in Hugging Face transformers 5.24 (`modeling_utils.py`, `merged_state_dict`).
    pub(crate) fn add_shards(&mut self, path: &Path) -> Result<(), ArchiveError> {
        let index = Index::read(path)?;
        let mut problems = Vec::new();
        let (mut absent, mut broken) = (BTreeSet::new(), Vec::new());
        for shard in index.shards() {
            let file = path.with_file_name(shard);
            if !is_plain(shard) {
                problems.push(IndexProblem::ShardName(shard.into()));
                absent.insert(shard);
            } else if !files::is_there(&file) {
                problems.push(IndexProblem::MissingShard(shard.into()));
                absent.insert(shard);
            } else {
                let tensors = self.add_file(file).unwrap_or_else(|error| {
                    absent.insert(shard);
                    broken.push((shard, error));
                    Vec::new()
                });
                for tensor in tensors {
                    let listed = index.weight_map.get(&tensor.name);
                    if listed.is_none_or(|listed| listed == shard) {
                        let tensor = CheckpointTensor { unlisted: listed.is_none(), ..tensor };
                        self.tensors.insert(tensor.name.clone(), tensor);
                    }
                }
            }
        }
        for (name, shard) in &index.weight_map {
            if !absent.contains(shard.as_str()) && !self.tensors.contains_key(name) {
                problems.push(IndexProblem::MissingTensor { name: name.clone(), shard: shard.clone() });
            }
        }
        // If the only problem is one broken file, the error is about this file.
        match broken.pop() {
            Some((_, error)) if problems.is_empty() && broken.is_empty() => return Err(error),
            last => broken.extend(last),
        }
        problems.extend(broken.into_iter().map(|(shard, error)| IndexProblem::BrokenShard {
            shard: shard.into(),
            reason: WithCauses(&error).to_string(),
        }));
        if problems.is_empty() {
            Ok(())
        } else {
            Err(ArchiveError::IndexMismatch { path: path.into(), problems })
        }
    }
}

/// Rejects the path separators of all operating systems.
fn is_plain(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(part)), None) if part == name)
        && !name.contains(['/', '\\', ':', '\0'])
}

/// Bytes at both ends of a tensor for [`Checkpoint::differs_from`]: enough for trained weights, and fast.
const COMPARED: usize = 64;

impl Checkpoint {
    /// Compares this single file with an index's shards: names, types, shapes, and both ends of each tensor.
    /// `None` if they are equal, all are missing, or one cannot be read.
    pub(crate) fn differs_from(&self, index: PathBuf) -> Option<PassedOver> {
        let weights = Index::read(&index).ok()?;
        if !weights.shards().iter().any(|shard| files::is_there(&index.with_file_name(shard))) {
            return None;
        }
        let names = self.tensors().map(|tensor| tensor.name.as_str()).collect::<BTreeSet<_>>();
        let listed = weights.weight_map.keys().map(String::as_str).collect::<BTreeSet<_>>();
        if let Some(&name) = names.symmetric_difference(&listed).next() {
            let difference = if names.contains(name) {
                ShardDifference::OnlyInFile
            } else {
                ShardDifference::OnlyInShards
            };
            let tensor = name.to_owned();
            return Some(PassedOver { index, tensor, difference });
        }
        let mut shards = Checkpoint::empty(&index);
        shards.add_shards(&index).ok()?;
        let differs = |tensor: &CheckpointTensor| {
            let other = shards.get(&tensor.name)?;
            let ends = |checkpoint: &Checkpoint| {
                let bytes = checkpoint.data(&tensor.name).ok()?;
                let most = bytes.len().min(COMPARED);
                Some([bytes[..most].to_vec(), bytes[bytes.len() - most..].to_vec()])
            };
            match () {
                () if (&tensor.shape, tensor.stored) != (&other.shape, other.stored) => {
                    Some(ShardDifference::Type)
                }
                () if ends(self) != ends(&shards) => Some(ShardDifference::Numbers),
                () => None,
            }
        };
        let (tensor, difference) =
            self.tensors().find_map(|tensor| Some((tensor.name.clone(), differs(tensor)?)))?;
        Some(PassedOver { index, tensor, difference })
    }
}
