//! Weights that several tensors of a file describe together, as in quantized Hugging Face folders. The other
//! crates see one tensor, whose name ends in `.weight`, in quantized blocks.

mod floats;
mod integers;

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use ops::format::{BlockFormat, Quantized};
use safetensors::Dtype;

use crate::{Checkpoint, CheckpointTensor, StoredNumbers, StoredOrder};

pub use floats::{FloatScale, FloatsLayout, JoinedFloats};
pub use integers::{CodeOrder, IntegersLayout, JoinedIntegers};

/// The data of the further tensors, such as scales, in the order of [`NewTensor::parts`].
pub(crate) type Parts<'a> = [&'a [u8]; 4];

/// How the numbers of a weight follow from the data of its tensors. Rows are the outputs of a matmul, whatever
/// the order of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    Floats(JoinedFloats),
    Integers(JoinedIntegers),
}

/// How a folder stores the weights of some modules, from `quantization_config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinedLayout {
    Floats(FloatsLayout),
    Integers(IntegersLayout),
}

impl Joined {
    /// The blocks that have the numbers without loss.
    pub fn blocks(self) -> BlockFormat {
        match self {
            Self::Floats(floats) => floats.blocks(),
            Self::Integers(integers) => integers.blocks(),
        }
    }

    /// As f32, row by row from the number `start` on.
    pub(crate) fn read(self, main: &[u8], parts: Parts<'_>, start: usize, out: &mut [f32]) {
        match self {
            Self::Floats(floats) => floats.read(main, parts, start, out),
            Self::Integers(integers) => integers.read(main, parts, start, out),
        }
    }

    /// The block of the `count` numbers from `start` on; `None` if these are no whole block.
    pub(crate) fn quantized(
        self,
        main: &[u8],
        parts: Parts<'_>,
        start: usize,
        count: usize,
    ) -> Option<Quantized> {
        match self {
            Self::Floats(floats) => floats.quantized(main, parts, start, count),
            Self::Integers(integers) => integers.quantized(main, parts, start, count),
        }
    }

    /// The row of the file's matrix that is this tensor's first row.
    pub(crate) fn first_row(self) -> usize {
        match self {
            Self::Floats(floats) => floats.first,
            Self::Integers(integers) => integers.first,
        }
    }

    fn from_row(self, first: usize) -> Self {
        match self {
            Self::Floats(floats) => Self::Floats(floats.from_row(first)),
            Self::Integers(integers) => Self::Integers(integers.from_row(first)),
        }
    }
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

/// The reason why tensors of a file together are no weight.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}`: the tensor `{name}` {problem}", .file.display())]
pub struct JoinProblem {
    pub file: PathBuf,
    pub name: String,
    pub problem: PartProblem,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartProblem {
    #[error("has no tensor `{0}` beside it, expected one; download the model again")]
    Missing(String),
    #[error("has the shape {found:?}, expected {expected:?}; download the model again")]
    Shape { found: Vec<usize>, expected: Vec<usize> },
    #[error("has the type {found:?}, expected {}; download the model again", OneOf(.expected))]
    Dtype { found: Dtype, expected: &'static [Dtype] },
    #[error("has the value {found} at the index {index}, expected {expected}; {help}")]
    Value { found: String, index: usize, expected: String, help: &'static str },
    /// The description in `quantization_config` does not fit the tensor.
    #[error("is quantized with {found}, expected {expected}; {help}")]
    Layout { found: String, expected: &'static str, help: &'static str },
}

struct OneOf<'a>(&'a [Dtype]);

impl fmt::Display for OneOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, dtype) in self.0.iter().enumerate() {
            write!(f, "{}{dtype:?}", if place == 0 { "" } else { " or " })?;
        }
        Ok(())
    }
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
            let stored = StoredNumbers::Joined(joined.from_row(joined.first_row() + index * rows));
            let range: Range<usize> = self.range.clone();
            Self { name: format!("{before}{part}"), stored, shape: shape.to_vec(), range, ..self.clone() }
        };
        parts.iter().enumerate().map(piece).collect()
    }
}
