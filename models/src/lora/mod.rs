//! Low-rank adapters (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021), which change the weights
//! of a model. Tracewright adds an adapter to the weights once, before it rounds or quantizes them.

mod adapter;
mod error;
mod gguf;
mod matrices;
mod peft;
mod place;
mod targets;

use std::path::{Path, PathBuf};
use std::str::FromStr;

use irpa::{ArchiveError, Checkpoint, Gguf, LowRank, ModelFiles, TensorChange};

use crate::Opened;
use crate::fit::{Fitted, OpenWarning};
use crate::quantized::stored_in;

use adapter::Adapter;

pub use error::{LoraError, LoraProblem};
pub use matrices::{LoraMatrices, NarrowMatrices};

/// An adapter, and a factor for everything that it adds. The adapter is a folder that the library PEFT wrote, or a
/// GGUF file.
///
/// ```
/// use tracewright_models::LoraFile;
///
/// let half: LoraFile = "my-adapter=0.5".parse()?;
/// assert_eq!(half, LoraFile { path: "my-adapter".into(), scale: 0.5 });
/// # Ok::<(), std::convert::Infallible>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LoraFile {
    /// The folder or the file.
    pub path: PathBuf,
    /// 1 for the adapter as trained. Adapters that replace weights, and those with DoRA, have no other scale.
    pub scale: f32,
}

impl FromStr for LoraFile {
    type Err = std::convert::Infallible;

    /// `PATH` or `PATH=SCALE`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let scaled = text.rsplit_once('=').and_then(|(path, scale)| Some((path, scale.parse::<f32>().ok()?)));
        Ok(match scaled {
            Some((path, scale)) if scale.is_finite() => Self { path: path.into(), scale },
            _ => Self { path: text.into(), scale: 1.0 },
        })
    }
}

impl Fitted {
    /// Adds adapters to the weights, one after the other.
    ///
    /// # Errors
    /// Returns an error if an adapter cannot be read, has an option that Tracewright cannot apply, or has a tensor
    /// without a module in the network.
    pub fn with_adapters(mut self, files: &ModelFiles, adapters: &[LoraFile]) -> Result<Self, LoraError> {
        if adapters.is_empty() {
            return Ok(self);
        }
        let mut checkpoint = self.checkpoint.clone();
        for file in adapters {
            let adapter = read(&file.path, &self.network, files)?;
            check_numbers(&adapter.tensors)?;
            let changes = changes(&adapter, file.scale, &self.network, &checkpoint)?;
            checkpoint = checkpoint.adapted(&adapter.tensors, changes)?;
        }
        self.warnings.extend(unquantized(&self.checkpoint, &checkpoint));
        self.network.stored = stored_in(&checkpoint);
        self.network.renamed = Some(checkpoint.clone());
        self.checkpoint = checkpoint;
        Ok(self)
    }
}

fn read(path: &Path, network: &Opened, files: &ModelFiles) -> Result<Adapter, LoraError> {
    if Gguf::is_at(path) { gguf::read(path, network, files) } else { peft::read(path) }
}

/// Otherwise `bake` would find the number only in the sum, and name the model's file.
fn check_numbers(tensors: &Checkpoint) -> Result<(), ArchiveError> {
    for tensor in tensors.tensors() {
        if tensor.blocks().is_none() {
            tensors.ty(&tensor.name)?;
        }
        if let Some(lost) = tensors.first_lost(&tensor.name, "f32", f32::is_finite)? {
            return Err(lost.into());
        }
    }
    Ok(())
}

/// The error lists all tensors that do not fit.
fn changes(
    adapter: &Adapter,
    scale: f32,
    network: &Opened,
    checkpoint: &Checkpoint,
) -> Result<Vec<(String, TensorChange)>, LoraError> {
    let (mut all, mut problems) = (Vec::new(), Vec::new());
    let refuse = |problems| LoraError::Tensors { path: adapter.path.clone(), problems };
    let other_scale = |tensor: &str, does| {
        let problem = || LoraProblem::Scale { found: scale.to_string(), tensor: tensor.to_owned(), does };
        (scale != 1.0).then(problem)
    };
    for (tensor, weight) in &adapter.replaced {
        // The weight as it was before training.
        let is_base = tensor.ends_with(".base_layer.weight");
        problems.extend(other_scale(tensor, "replaces a weight").filter(|_| !is_base));
        match place::whole(adapter, tensor, weight, network, checkpoint) {
            Ok(name) => match checkpoint.get(&name).is_some_and(|found| found.is_adapted) {
                false => all.push((name, TensorChange::Replace(tensor.clone()))),
                true if is_base => {}
                true => problems.push(LoraProblem::Twice { tensor: tensor.clone(), weight: name }),
            },
            Err(problem) => problems.push(problem),
        }
    }
    for update in &adapter.updates {
        let magnitude = update.magnitude.as_deref();
        problems.extend(magnitude.and_then(|tensor| other_scale(tensor, "sets the lengths of rows (DoRA)")));
        match place::parts(adapter, update, network, checkpoint) {
            Ok(parts) => all.extend(parts.into_iter().map(|part| {
                let place::WeightPart { weight, outputs, first, inputs_first } = part;
                let low_rank = LowRank {
                    a: update.a.clone(),
                    b: update.b.clone(),
                    a_transposed: update.a_transposed,
                    scale: (update.scale * f64::from(scale)) as f32,
                    outputs,
                    first,
                    inputs_first,
                    magnitude: update.magnitude.clone(),
                };
                (weight, TensorChange::Add(low_rank))
            })),
            Err(problem) => problems.push(problem),
        }
    }
    match (all.is_empty(), problems.is_empty()) {
        (_, false) => Err(refuse(problems)),
        (true, true) => Err(refuse(vec![LoraProblem::Nothing])),
        (false, true) => Ok(all),
    }
}

/// The warning that matrices lose the quantized format of their file.
fn unquantized(before: &Checkpoint, after: &Checkpoint) -> Option<OpenWarning> {
    let lost = |name: &str| {
        let blocks = before.get(name)?.blocks()?;
        after.get(name)?.is_merged().then(|| blocks.word().to_owned())
    };
    let mut formats: Vec<String> = before.tensors().filter_map(|tensor| lost(&tensor.name)).collect();
    let matrices = formats.len();
    formats.sort_unstable();
    formats.dedup();
    (matrices > 0).then_some(OpenWarning::Unquantized { matrices, formats })
}
