//! How quantized Hugging Face folders store weights: the tensors of a module, and the weight that they are together.

mod floats;
mod integers;

use std::collections::BTreeSet;
use std::ops::Range;

use safetensors::Dtype;

use crate::checkpoint::{Checkpoint, CheckpointTensor, StoredOrder};
use crate::gguf::StoredNumbers;
use crate::join_problem::{JoinProblem, PartProblem};
use crate::joined::Joined;

pub use floats::{FloatScale, FloatsLayout};
pub use integers::IntegersLayout;

/// How a folder stores the weights of some modules, from `quantization_config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinedLayout {
    Floats(FloatsLayout),
    Integers(IntegersLayout),
}

impl JoinedLayout {
    /// `None` if the module has no quantized weight.
    fn join(&self, module: &Module<'_>) -> Result<Option<NewTensor>, JoinProblem> {
        match self {
            Self::Floats(layout) => layout.join(module),
            Self::Integers(layout) => layout.join(module),
        }
    }
}

/// The tensors of a module, whose names begin with its name.
struct Module<'a> {
    checkpoint: &'a Checkpoint,
    name: &'a str,
}

/// A weight that replaces the tensors of which it is made.
struct NewTensor {
    joined: Joined,
    shape: Vec<usize>,
    /// The name's end of the tensor that has the numbers, and of the further ones: at most four.
    main: &'static str,
    parts: Vec<&'static str>,
    /// Tensors that the numbers repeat, or that do not change them.
    unused: Vec<&'static str>,
}

impl<'a> Module<'a> {
    fn get(&self, end: &str) -> Option<&'a CheckpointTensor> {
        self.checkpoint.get(&format!("{}{end}", self.name))
    }

    /// A tensor beside the tensor `beside`, with one of the types and this shape.
    fn part(
        &self,
        beside: &CheckpointTensor,
        end: &str,
        dtypes: &'static [Dtype],
        shape: &[usize],
    ) -> Result<&'a CheckpointTensor, JoinProblem> {
        let tensor = self.get(end);
        let missing = || PartProblem::Missing(format!("{}{end}", self.name));
        let tensor = tensor.ok_or_else(|| self.problem(beside, missing()))?;
        self.dtype(tensor, dtypes)?;
        self.shape(tensor, shape)?;
        Ok(tensor)
    }

    fn dtype(&self, tensor: &CheckpointTensor, expected: &'static [Dtype]) -> Result<Dtype, JoinProblem> {
        match tensor.stored {
            StoredNumbers::Each(dtype) if expected.contains(&dtype) => Ok(dtype),
            StoredNumbers::Each(found) => Err(self.problem(tensor, PartProblem::Dtype { found, expected })),
            _ => Err(self.problem(tensor, PartProblem::Dtype { found: Dtype::U8, expected })),
        }
    }

    fn shape(&self, tensor: &CheckpointTensor, expected: &[usize]) -> Result<(), JoinProblem> {
        if tensor.shape == expected {
            return Ok(());
        }
        let (found, expected) = (tensor.shape.clone(), expected.to_vec());
        Err(self.problem(tensor, PartProblem::Shape { found, expected }))
    }

    fn data(&self, tensor: &CheckpointTensor) -> &'a [u8] {
        &self.checkpoint.files[tensor.file].1[tensor.range.clone()]
    }

    fn problem(&self, tensor: &CheckpointTensor, problem: PartProblem) -> JoinProblem {
        JoinProblem { file: self.checkpoint.file(tensor).to_owned(), name: tensor.source.clone(), problem }
    }
}

impl Checkpoint {
    /// Replaces the tensors of quantized modules by their weights. `layout_of` gets the name of a module, such
    /// as `model.layers.3.mlp.up_proj`. The tensors of a module with a problem stay as they are.
    #[must_use]
    pub fn joined(mut self, layout_of: impl Fn(&str) -> Option<JoinedLayout>) -> (Self, Vec<JoinProblem>) {
        let modules: BTreeSet<&str> =
            self.tensors.keys().filter_map(|name| Some(name.rsplit_once('.')?.0)).collect();
        let (mut found, mut problems) = (Vec::new(), Vec::new());
        for name in modules {
            let module = Module { checkpoint: &self, name };
            match layout_of(name).map_or(Ok(None), |layout| layout.join(&module)) {
                Ok(new) => found.extend(new.map(|new| (name.to_owned(), new))),
                Err(problem) => problems.push(problem),
            }
        }
        for (module, new) in found {
            self.replace(&module, new);
        }
        (self, problems)
    }

    fn replace(&mut self, module: &str, new: NewTensor) {
        let NewTensor { joined, shape, main, parts, unused } = new;
        let mut take = |end: &str| self.tensors.remove(&format!("{module}{end}"));
        let Some(main) = take(main) else { return };
        let parts = parts.into_iter().filter_map(&mut take).map(|part| (part.file, part.range)).collect();
        unused.into_iter().for_each(|end| drop(take(end)));
        let (name, stored) = (format!("{module}.weight"), StoredNumbers::Joined(joined));
        let new = CheckpointTensor { name, stored, shape, parts, arranged: StoredOrder::Same, ..main };
        self.tensors.insert(new.name.clone(), new);
    }
}

impl CheckpointTensor {
    /// Equal runs of rows, with these ends of their names.
    pub(crate) fn joined_pieces(&self, before: &str, parts: &[&str], shape: &[usize]) -> Vec<Self> {
        let StoredNumbers::Joined(joined) = self.stored else { return Vec::new() };
        let rows = shape.first().copied().unwrap_or_default();
        let piece = |(index, part): (usize, &&str)| {
            let stored = StoredNumbers::Joined(joined.starting_at(joined.first_row() + index * rows));
            let range: Range<usize> = self.range.clone();
            Self { name: format!("{before}{part}"), stored, shape: shape.to_vec(), range, ..self.clone() }
        };
        parts.iter().enumerate().map(piece).collect()
    }
}
