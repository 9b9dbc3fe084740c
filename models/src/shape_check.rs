//! Compares the sizes in a configuration with the tensor names and shapes in a checkpoint's header. If the
//! configuration belongs to another model, Tracewright reports the error before it records the network.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use errors::Listed;
use irpa::{Checkpoint, CheckpointTensor};
use trace::key_pattern;

/// A size in a configuration, and the names or shapes of tensors that must agree with the size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredSize {
    /// The key of the configuration, or two keys with a `×` between the keys if the size is a product.
    pub key: String,
    /// The value of the configuration key.
    pub value: usize,
    /// The tensor names or tensor shapes in the checkpoint from which Tracewright reads the size.
    pub shown: Evidence,
}

/// Tensor names or tensor shapes in a checkpoint from which Tracewright reads a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The size is the number of different integers that follow this prefix in tensor names.
    Numbers(&'static str),
    /// For the first tensor that matches a pattern, in which `*` is an integer, at the given axis.
    Extent(&'static [(&'static str, usize)]),
}

/// The configuration and the checkpoint belong to different models.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the sizes in the configuration differ from the weights in `{}`; take the configuration and the weights \
    from one model, or correct the configuration:{}",
    .path.display(), Listed(.problems)
)]
pub struct OtherSizes {
    /// Path of the checkpoint's file.
    pub path: PathBuf,
    /// All sizes that differ, each with the configuration's value and the checkpoint's value.
    pub problems: Vec<OtherSize>,
}

/// A size whose values in a configuration and in a checkpoint differ.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key `{key}` is {claimed}, but the checkpoint has {found} ({shown})")]
pub struct OtherSize {
    /// The configuration key that contains the size.
    pub key: String,
    /// The size in the configuration.
    pub claimed: usize,
    /// The size in the checkpoint.
    pub found: usize,
    /// The tensor or the range of tensor names in the checkpoint from which Tracewright reads the size.
    pub shown: String,
}

impl DeclaredSize {
    /// Layers or other items, whose index follows `prefix` in names of tensors.
    pub fn numbers(key: &str, value: usize, prefix: &'static str) -> Self {
        Self { key: key.into(), value, shown: Evidence::Numbers(prefix) }
    }

    /// Declares a size that is an extent of one of the tensors `tensors`.
    pub fn extent(key: &str, value: usize, tensors: &'static [(&'static str, usize)]) -> Self {
        Self { key: key.into(), value, shown: Evidence::Extent(tensors) }
    }
}

/// Compares [configured sizes](crate::Architecture::sizes) with a checkpoint under [the network's
/// names](crate::Opened::weights), perhaps without `model.`. Sizes without tensors are left to the later
/// check of missing ones. The error lists all that differ.
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
        // If the checkpoint has more layers than the configuration, a later check reports the
        // additional tensors.
        let differs = match claim.shown {
            Evidence::Numbers(_) => claim.value > found,
            Evidence::Extent(_) => claim.value != found,
        };
        let other = OtherSize { key: claim.key.clone(), claimed: claim.value, found, shown };
        differs.then_some(other)
    };
    let problems: Vec<OtherSize> = claims.iter().filter_map(differs).collect();
    if problems.is_empty() { Ok(()) } else { Err(OtherSizes { path: checkpoint.path().into(), problems }) }
}

/// With and without the prefix `model.`.
fn names(name: &str) -> impl Iterator<Item = &str> {
    [Some(name), name.strip_prefix("model.")].into_iter().flatten()
}

/// The different integers after `prefix`, and the first and last name; `None` without any.
fn numbers(checkpoint: &Checkpoint, prefix: &str) -> Option<(usize, String)> {
    let number =
        |tensor: &CheckpointTensor| tensor.name.strip_prefix(prefix)?.split('.').next()?.parse().ok();
    let numbers: BTreeSet<usize> = checkpoint.tensors().filter_map(number).collect();
    let shown = format!("`{prefix}{}` to `{prefix}{}`", numbers.first()?, numbers.last()?);
    Some((numbers.len(), shown))
}
