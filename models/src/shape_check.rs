//! What a configuration claims of its checkpoint, compared with what the checkpoint's header shows: before a network of
//! sizes that belong to no weights is recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use errors::Listed;
use irpa::{Checkpoint, CheckpointTensor};
use trace::key_pattern;

/// A size that a configuration says, and where a checkpoint shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredSize {
    /// The key of the configuration; a product of two has a `×` between them.
    pub key: String,
    /// What the configuration says.
    pub value: usize,
    /// Where the checkpoint shows it.
    pub shown: Evidence,
}

/// Where a checkpoint shows a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// At least so many numbers follow this in the names of tensors.
    Numbers(&'static str),
    /// An extent of the first tensor whose name has one of these patterns, in which a `*` is a number.
    Extent(&'static [(&'static str, usize)]),
}

/// Why a configuration and a checkpoint are not those of one model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the configuration has other sizes than the weights in `{}`; take both from one model, or correct the configuration:{}",
    .path.display(), Listed(.problems)
)]
pub struct OtherSizes {
    /// The checkpoint.
    pub path: PathBuf,
    /// All sizes that differ.
    pub problems: Vec<OtherSize>,
}

/// A size of which a configuration says something else than a checkpoint shows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{key}` is {claimed}, the checkpoint has {found} ({shown})")]
pub struct OtherSize {
    /// The key of the configuration.
    pub key: String,
    /// What the configuration says.
    pub claimed: usize,
    /// What the checkpoint shows.
    pub found: usize,
    /// Where it does.
    pub shown: String,
}

impl DeclaredSize {
    /// So many layers, or whatever else is numbered behind `prefix`.
    pub fn numbers(key: &str, value: usize, prefix: &'static str) -> Self {
        Self { key: key.into(), value, shown: Evidence::Numbers(prefix) }
    }

    /// An extent of one of these tensors.
    pub fn extent(key: &str, value: usize, tensors: &'static [(&'static str, usize)]) -> Self {
        Self { key: key.into(), value, shown: Evidence::Extent(tensors) }
    }
}

/// Compares the sizes that [a network's configuration claims](crate::Architecture::sizes) with what the header of its
/// checkpoint shows, whose tensors are [named](crate::Architecture::named) as the network names them, or as an embedding does,
/// without `model.`. What it does not show differs in nothing here: what is missing is said when all parameters are compared.
///
/// # Errors
/// All sizes that differ.
pub fn check_sizes(claims: &[DeclaredSize], checkpoint: &Checkpoint) -> Result<(), OtherSizes> {
    let mut first: BTreeMap<String, &CheckpointTensor> = BTreeMap::new();
    for tensor in checkpoint.tensors() {
        first.entry(key_pattern(&tensor.name)).or_insert(tensor);
    }
    let differs = |claim: &DeclaredSize| {
        let (found, shown) = match claim.shown {
            Evidence::Numbers(prefix) => names(prefix).find_map(|prefix| numbers(checkpoint, prefix))?,
            Evidence::Extent(tensors) => tensors.iter().find_map(|(pattern, axis)| {
                let tensor = names(pattern).find_map(|pattern| first.get(pattern))?;
                Some((*tensor.shape.get(*axis)?, format!("`{}` is {:?}", tensor.name, tensor.shape)))
            })?,
        };
        // Layers beyond those that are read are listed with all tensors that nobody reads.
        let differs = match claim.shown {
            Evidence::Numbers(_) => claim.value > found,
            Evidence::Extent(_) => claim.value != found,
        };
        let other = OtherSize { key: claim.key.clone(), claimed: claim.value, found, shown };
        differs.then_some(other)
    };
    let problems: Vec<OtherSize> = claims.iter().filter_map(differs).collect();
    match problems.is_empty() {
        true => Ok(()),
        false => Err(OtherSizes { path: checkpoint.path().into(), problems }),
    }
}

/// What begins as the names of a language model do, and of a tower alone.
fn names(name: &str) -> impl Iterator<Item = &str> {
    [Some(name), name.strip_prefix("model.")].into_iter().flatten()
}

/// How many numbers follow a prefix in the names of tensors, and what shows it; nothing if none does.
fn numbers(checkpoint: &Checkpoint, prefix: &str) -> Option<(usize, String)> {
    let number =
        |tensor: &CheckpointTensor| tensor.name.strip_prefix(prefix)?.split('.').next()?.parse().ok();
    let numbers: BTreeSet<usize> = checkpoint.tensors().filter_map(number).collect();
    let shown = format!("`{prefix}{}` to `{prefix}{}`", numbers.first()?, numbers.last()?);
    Some((numbers.len(), shown))
}
