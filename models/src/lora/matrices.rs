//! Adapters whose narrow matrices stay apart from the weights, so that each sequence of a batch can choose one.

use std::collections::BTreeMap;
use std::path::Path;

use irpa::{ArchiveError, Checkpoint, ModelFiles};

use super::adapter::{Adapter, ModuleUpdate};
use super::error::{LoraError, LoraProblem};
use super::{check_numbers, place, read};
use crate::Opened;

/// The narrow matrices of an adapter, by the weight that they change, such as
/// `model.layers.0.self_attn.q_proj.weight`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoraMatrices(pub BTreeMap<String, NarrowMatrices>);

/// Two matrices that change the result of a linear layer: y = W · x + b · (a · x).
#[derive(Clone, Debug, PartialEq)]
pub struct NarrowMatrices {
    /// The number of rows of `a`.
    pub rank: usize,
    /// The features that the layer reads.
    pub inputs: usize,
    /// The features that the layer computes.
    pub outputs: usize,
    /// `[rank, inputs]`
    pub a: Vec<f32>,
    /// `[outputs, rank]`, with the scale of the adapter.
    pub b: Vec<f32>,
}

impl NarrowMatrices {
    /// Appends ranks: the sum of both changes.
    fn add(&mut self, other: &Self) {
        let rank = self.rank + other.rank;
        let (before, after) = (self.b.chunks(self.rank.max(1)), other.b.chunks(other.rank.max(1)));
        self.b = before.zip(after).flat_map(|(before, after)| [before, after].concat()).collect();
        self.a.extend(&other.a);
        self.rank = rank;
    }
}

impl Opened {
    /// Reads an adapter that requests choose, and leaves the weights as they are.
    ///
    /// # Errors
    /// Returns an error if the adapter cannot be read, has no module in the network, or does not only add to linear
    /// layers.
    pub fn lora_matrices(&self, files: &ModelFiles, path: &Path) -> Result<LoraMatrices, LoraError> {
        let checkpoint = self.weights(files)?;
        let adapter = read(path, self, files)?;
        check_numbers(&adapter.tensors)?;
        let (mut all, mut problems) = (BTreeMap::<String, NarrowMatrices>::new(), Vec::new());
        let merged = |tensor: &str, does| LoraProblem::Merged { tensor: tensor.to_owned(), does };
        problems.extend(adapter.replaced.iter().map(|(tensor, _)| merged(tensor, "replaces a weight")));
        for update in &adapter.updates {
            if let Some(tensor) = &update.magnitude {
                problems.push(merged(tensor, "sets the lengths of rows (DoRA)"));
            } else if update.a_transposed {
                problems.push(merged(&update.a, "changes the embedding"));
            } else {
                match place::parts(&adapter, update, self, &checkpoint) {
                    Err(problem) => problems.push(problem),
                    Ok(parts) => {
                        for part in parts {
                            let (weight, matrices) = narrow(&adapter, update, part, &checkpoint)?;
                            if matrices.b.iter().any(|number| !number.is_finite()) {
                                problems.push(too_large(update.scale));
                            }
                            let known = all.get_mut(&weight).map(|known| known.add(&matrices));
                            known.unwrap_or_else(|| drop(all.insert(weight, matrices)));
                        }
                    }
                }
            }
        }
        if problems.is_empty() && all.is_empty() {
            problems.push(LoraProblem::Nothing);
        }
        if problems.is_empty() {
            Ok(LoraMatrices(all))
        } else {
            Err(LoraError::Tensors { path: path.to_owned(), problems })
        }
    }
}

/// The scale of an adapter, `lora_alpha` divided by the rank, makes numbers infinite.
fn too_large(scale: f64) -> LoraProblem {
    LoraProblem::Field {
        key: "lora_alpha".into(),
        found: format!("the scale {scale}"),
        expected: "a scale with which all numbers of B are finite in f32",
        help: "check whether the file is damaged",
    }
}

/// The matrices of a part of a weight, for all outputs of the weight.
fn narrow(
    adapter: &Adapter,
    update: &ModuleUpdate,
    part: place::WeightPart,
    checkpoint: &Checkpoint,
) -> Result<(String, NarrowMatrices), ArchiveError> {
    let place::WeightPart { weight, outputs: changed, first, inputs_first } = part;
    let (_, a) = adapter.tensors.matrix(&update.a)?;
    let ([_, rank], stored) = adapter.tensors.matrix(&update.b)?;
    let shape =
        |axis: usize| checkpoint.get(&weight).and_then(|found| found.shape.get(axis)).copied().unwrap_or(0);
    let (outputs, inputs) = (shape(usize::from(inputs_first)), shape(usize::from(!inputs_first)));
    let mut b = vec![0.0; outputs * rank];
    for (row, output) in changed.enumerate() {
        let scaled =
            stored[(first + row) * rank..][..rank].iter().map(|x| (f64::from(*x) * update.scale) as f32);
        b[output * rank..][..rank].iter_mut().zip(scaled).for_each(|(to, x)| *to = x);
    }
    Ok((weight, NarrowMatrices { rank, inputs, outputs, a, b }))
}
