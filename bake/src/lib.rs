//! Turns a checkpoint into the archive of a trace's parameters.
//!
//! Before it writes the first byte, `bake` checks that the checkpoint contains every parameter with its shape
//! and a convertible element type. `bake` also checks that every tensor of the checkpoint is used or known to
//! be ignorable. `bake` reports all problems together.

mod compensate;
mod mismatch;
mod quantize;
pub mod random;
mod recipe;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use irpa::{BlockFormat, Checkpoint, CheckpointTensor, NewEntry, StoredNumbers, Watch, WriteOptions};
use ops::{ElementType, Form, InferError, LayoutOp, TensorType, WeightFormat};
use trace::{Parameter, Recipe, Trace};

use mismatch::{Moved, declarations, list};

pub use compensate::{Importance, Moments};
pub use mismatch::{Declared, Problem};
pub use quantize::{QuantizeError, Quantizer};
pub use recipe::{read, value};

/// A tensor that a checkpoint may contain although the model does not read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ignorable {
    /// A tensor whose key has this suffix, such as a table that the model computes itself.
    Suffix(&'static str),
    /// A tensor whose key has this prefix, such as another part of a multimodal checkpoint.
    Prefix(&'static str),
    /// Any key with this prefix and then a number of at least `from`, such as `model.layers.46.`. Such layers
    /// are for multi-token prediction.
    LayersFrom {
        /// The prefix before the number.
        prefix: &'static str,
        from: usize,
    },
    /// A tensor with this key that the network declares, although simplification found that no result depends
    /// on the tensor.
    Unread(String),
    /// A tensor with this key whose content equals the content of another tensor. This happens if a tied
    /// weight is stored twice.
    EqualTo {
        /// The key that may be present.
        key: String,
        other: String,
    },
}

/// Options of [`bake`].
pub struct BakeOptions<'a> {
    /// Whether each entry of the archive gets metadata with its type and hash.
    pub metadata: bool,
    /// The callback for the progress, which can also stop the bake.
    pub watch: Option<Watch<'a>>,
}

impl Default for BakeOptions<'_> {
    fn default() -> Self {
        Self { metadata: true, watch: None }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Baked {
    pub bytes: u64,
    /// The keys of tensors whose elements were converted, each with the old and the new type.
    pub converted: Vec<(String, ElementType, ElementType)>,
    /// The number of block-quantized tensors that were converted to each format.
    pub blocks: BTreeMap<FromBlocks, usize>,
    /// Keys of the checkpoint that were ignored.
    pub ignored: Vec<String>,
}

/// A checkpoint that passed the checks, with the plan for [`write()`].
#[derive(Clone, Debug)]
pub struct Checked(Baked);

impl Checked {
    /// The statistics of the planned bake. The field `bytes` is still 0.
    pub fn planned(&self) -> &Baked {
        &self.0
    }
}

/// The conversion of a tensor that a checkpoint stores in quantized blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FromBlocks {
    pub from: BlockFormat,
    /// The new format of the tensor. If the format is `None`, the tensor gets the element type.
    pub to: (Option<WeightFormat>, ElementType),
}

impl FromBlocks {
    /// Whether the conversion keeps the exact value of every number.
    pub fn is_exact(&self) -> bool {
        match (self.from, self.to) {
            (BlockFormat::Q8_0 | BlockFormat::Q5_0 | BlockFormat::Q4_0, (Some(WeightFormat::Q8), _)) => true,
            (BlockFormat::Q4_0, (Some(WeightFormat::Q4), _)) => true,
            (BlockFormat::Q4K, (Some(WeightFormat::Q4K), _)) => true,
            (BlockFormat::Mxfp4, (Some(WeightFormat::Mxfp4), _)) => true,
            (_, (Some(WeightFormat::Q8 | WeightFormat::Q4 | WeightFormat::Q4K | WeightFormat::Mxfp4), _)) => {
                false
            }
            (BlockFormat::Mxfp4, (_, ElementType::Bf16)) => true,
            (_, (_, element)) => element == ElementType::F32,
        }
    }
}

impl fmt::Display for FromBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to {
            (Some(format), _) => write!(f, "{} as {}", self.from, format.word())?,
            (None, element) => write!(f, "{} as {element}", self.from)?,
        }
        match (self.is_exact(), self.to.0) {
            (true, _) => f.write_str(", exactly"),
            (false, Some(WeightFormat::Q8)) => {
                f.write_str(", each number off by at most 0.5 % of its group's largest")
            }
            (false, Some(WeightFormat::Q4)) => {
                f.write_str(", each number off by at most 13 % of its group's largest")
            }
            (false, _) => f.write_str(", rounded"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BakeError {
    /// The checkpoint differs from the model's parameters. Tracewright wrote nothing.
    #[error("checkpoint `{}` does not fit the model: {} problem(s){}", .path.display(), .problems.len(), list(.problems))]
    Mismatch { path: PathBuf, problems: Vec<Problem> },
    /// A recipe is invalid, or its result has another type than its parameter.
    #[error("the recipe that computes the tensor `{key}` is wrong")]
    Recipe { key: String, source: Box<InferError> },
    /// Reading or writing an archive failed.
    #[error(transparent)]
    Archive(#[from] irpa::ArchiveError),
}

impl BakeError {
    /// Adds to the error the places where `trace` declares the tensors.
    #[must_use]
    pub fn declared_in(mut self, trace: &Trace) -> Self {
        if let Self::Mismatch { problems, .. } = &mut self {
            let mut known = declarations(trace);
            for problem in problems {
                if let Problem::Shape { key, declared, .. } = problem {
                    *declared = known.remove(key);
                }
            }
        }
        self
    }
}

/// Reads `parameters` from `checkpoint`, and writes them to the archive `out`. Floats are converted to the
/// declared element type. The memory does not depend on the size of the checkpoint.
///
/// # Errors
/// Returns all differences between the checkpoint and the parameters before anything is written. Also returns
/// an error if reading or writing fails. After an error, no new file is left.
pub fn bake(
    checkpoint: &Checkpoint,
    parameters: &[Parameter],
    ignorable: &[Ignorable],
    out: &Path,
    options: BakeOptions<'_>,
) -> Result<Baked, BakeError> {
    let checked = check(checkpoint, parameters, ignorable)?;
    write(checkpoint, parameters, checked, out, options)
}

/// Writes the archive like [`bake`]. Call [`check`] with the same checkpoint and parameters before this function.
///
/// # Errors
/// Returns an error if reading or writing fails. After an error, no new file is left.
pub fn write(
    checkpoint: &Checkpoint,
    parameters: &[Parameter],
    Checked(mut baked): Checked,
    out: &Path,
    options: BakeOptions<'_>,
) -> Result<Baked, BakeError> {
    checkpoint.check_output(out)?;
    baked.bytes = parameters.iter().map(|p| p.ty.bytes() as u64).sum();
    let by_key: BTreeMap<&str, &Parameter> = parameters.iter().map(|p| (p.key.as_str(), p)).collect();
    let entries = parameters.iter().map(entry).collect();
    let options = WriteOptions { metadata: options.metadata, watch: options.watch };
    irpa::write(out, entries, options, |entry, sink| -> Result<(), irpa::ArchiveError> {
        recipe::write(by_key[entry.name()], checkpoint, sink)
    })?;
    Ok(baked)
}

/// Creates the archive's entry for a parameter.
fn entry(parameter: &Parameter) -> NewEntry {
    let entry = NewEntry::tensor(&parameter.key, parameter.ty.clone());
    let Some(recipe) = &parameter.recipe else { return entry };
    let mut text = String::new();
    recipe.print(&mut text);
    let sources = parameter.sources().into_iter().map(|(key, _)| key.to_owned()).collect();
    entry.with_recipe(text, sources)
}

/// Tensors that a checkpoint may contain because the network declares them, although simplification removed
/// them. The argument `recorded` contains the parameters of the recorded trace. The argument `parameters`
/// contains the parameters of the simplified trace.
pub fn unread(recorded: &[Parameter], parameters: &[Parameter]) -> Vec<Ignorable> {
    fn keys(of: &[Parameter]) -> BTreeSet<&str> {
        of.iter().flat_map(Parameter::sources).map(|(key, _)| key).collect()
    }
    let (recorded, read) = (keys(recorded), keys(parameters));
    recorded.difference(&read).map(|&key| Ignorable::Unread(key.to_owned())).collect()
}

/// Compares a checkpoint with the parameters of a model.
///
/// # Errors
/// Returns an error if the checkpoint and the parameters differ. The error lists all differences.
pub fn check(
    checkpoint: &Checkpoint,
    parameters: &[Parameter],
    ignorable: &[Ignorable],
) -> Result<Checked, BakeError> {
    let mut baked = Baked::default();
    let mut problems = Vec::new();
    let mut read: BTreeMap<&str, &TensorType> = BTreeMap::new();
    let mut blocks: BTreeSet<(&str, FromBlocks)> = BTreeSet::new();
    for parameter in parameters {
        check_recipe(parameter)?;
        read.extend(parameter.sources());
        for (key, ty) in parameter.sources() {
            if let Some(from) = checkpoint.get(key).and_then(CheckpointTensor::blocks) {
                blocks.insert((key, FromBlocks { from, to: (format(parameter), ty.element) }));
            }
        }
    }
    blocks.into_iter().for_each(|(_, what)| *baked.blocks.entry(what).or_default() += 1);
    let mut unread: Vec<_> = checkpoint.tensors().filter(|t| !read.contains_key(t.name.as_str())).collect();
    let missing: Vec<&str> = read.keys().copied().filter(|key| checkpoint.get(key).is_none()).collect();
    let keys: Vec<&str> = unread.iter().map(|t| t.name.as_str()).collect();
    if let Some(moved) = Moved::find(&missing, &keys) {
        let twins: BTreeSet<&str> = moved.keys.values().copied().collect();
        read.retain(|key, _| !moved.keys.contains_key(key));
        unread.retain(|tensor| !twins.contains(tensor.name.as_str()));
        problems.push(moved.problem());
    }
    for (key, ty) in read {
        let Some(tensor) = checkpoint.get(key) else {
            let nearest = unread.iter().map(|t| (strsim::jaro(key, &t.name), &t.name));
            let nearest =
                nearest.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(similarity, _)| *similarity > 0.8);
            let nearest = nearest.map(|(_, name)| name.clone());
            problems.push(Problem::Missing { key: key.to_owned(), ty: ty.clone(), nearest });
            continue;
        };
        let file = checkpoint.file(tensor).to_owned();
        if tensor.shape != ty.shape {
            let (expected, found) = (ty.shape.clone(), tensor.shape.clone());
            let (key, file) = (key.to_owned(), file.clone());
            problems.push(Problem::Shape { key, file, expected, found, declared: None });
        }
        match (tensor.stored, tensor.element()) {
            (_, Some(element)) if element == ty.element => {}
            (_, Some(element)) if element.is_float() && ty.element.is_float() => {
                baked.converted.push((key.to_owned(), element, ty.element));
            }
            (StoredNumbers::Blocks(_) | StoredNumbers::Rows(..) | StoredNumbers::Mxfp4, _)
                if ty.element.is_float() => {}
            (stored, _) => {
                let found = match stored {
                    StoredNumbers::Each(dtype) => format!("{dtype:?}"),
                    StoredNumbers::Blocks(blocks) | StoredNumbers::Rows(blocks, _) => blocks.to_string(),
                    StoredNumbers::Mxfp4 => BlockFormat::Mxfp4.to_string(),
                };
                problems.push(Problem::Element { key: key.to_owned(), file, expected: ty.element, found });
            }
        }
    }
    for tensor in unread {
        let key = &tensor.name;
        let matches = |rule: &&Ignorable| match rule {
            Ignorable::Suffix(suffix) => key.ends_with(suffix),
            Ignorable::Prefix(prefix) => key.starts_with(prefix),
            Ignorable::LayersFrom { prefix, from } => {
                let number =
                    key.strip_prefix(prefix).and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
                number.is_some_and(|number| number >= *from)
            }
            Ignorable::Unread(twin) | Ignorable::EqualTo { key: twin, .. } => key == twin,
        };
        match ignorable.iter().find(matches) {
            // The checkpoint was made from another checkpoint, and a shard still contains this old tensor.
            None if tensor.unlisted => baked.ignored.push(key.clone()),
            None => {
                problems.push(Problem::Extra { key: key.clone(), file: checkpoint.file(tensor).to_owned() })
            }
            Some(Ignorable::EqualTo { other, .. }) if !checkpoint.holds_equal(key, other) => {
                problems.push(Problem::NotEqual { key: key.clone(), other: other.clone() });
            }
            Some(_) => baked.ignored.push(key.clone()),
        }
    }
    match problems.is_empty() {
        true => Ok(Checked(baked)),
        false => Err(BakeError::Mismatch { path: checkpoint.path().to_owned(), problems }),
    }
}

/// Checks that a recipe's result has the type of its parameter.
fn check_recipe(parameter: &Parameter) -> Result<(), BakeError> {
    let Some(recipe) = &parameter.recipe else { return Ok(()) };
    let what = "a parameter and what is made must have one type";
    let made = recipe.ty().and_then(|right| match parameter.ty == right {
        true => Ok(()),
        false => Err(InferError::Mismatch { op: "recipe", what, left: parameter.ty.clone(), right }),
    });
    made.map_err(|source| BakeError::Recipe { key: parameter.key.clone(), source: Box::new(source) })
}

/// The storage format of a parameter; `None` if the archive stores the parameter in an element type.
pub fn format(parameter: &Parameter) -> Option<WeightFormat> {
    let Recipe::Op(op, _) = parameter.recipe.as_deref()? else { return None };
    match op.form() {
        Form::Archive(LayoutOp::Pack(pack)) => Some(pack.format),
        Form::Archive(LayoutOp::Quantize(quantize)) => Some(quantize.format),
        Form::Primitive | Form::Composite(_) | Form::Idiom(_) | Form::Kernel => None,
    }
}
