//! Reads the parameters of a trace from a checkpoint, and writes the parameters to an archive.
//!
//! Before `bake` writes the first byte, it checks every parameter. The checkpoint must contain each
//! parameter with the shape that the network declares and an element type that `bake` can convert.
//! `bake` also checks that the model reads or explicitly ignores every tensor of the checkpoint.
//! `bake` reports all problems in one error.

mod against;
mod compensate;
mod finite;
mod mismatch;
mod pieces;
mod quantize;
pub mod random;
mod recipe;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use irpa::{BlockFormat, Checkpoint, CheckpointTensor, NewEntry, StoredNumbers, Watch, WriteOptions};
use ops::{ElementType, Form, InferError, LayoutOp, TensorType, WeightFormat};
use trace::{Ignorable, Parameter, Recipe, Trace};

use mismatch::{Moved, declarations, list};

pub use against::{AgainstError, Compared, Equal, compare};
pub use compensate::{Importance, Moments};
pub use mismatch::{Declared, Problem};
pub use quantize::{QuantizeError, Quantizer, check_new_checkpoint};
pub use recipe::{read, value};

pub struct BakeOptions<'a> {
    /// Whether the archive stores the type and the hash of each parameter.
    pub metadata: bool,
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
    /// The keys of the tensors whose element type was converted, each with the old and the new element type.
    pub converted: Vec<(String, ElementType, ElementType)>,
    /// For each conversion from quantized blocks, the number of tensors.
    pub blocks: BTreeMap<FromBlocks, usize>,
    pub ignored: Vec<String>,
}

/// The result of [`check`] for a checkpoint without problems. Pass the result of [`check`] to [`write()`].
#[derive(Clone, Debug)]
pub struct Checked(Baked);

impl Checked {
    /// [`bytes`](Baked::bytes) is 0, because only [`write()`] counts the written bytes.
    pub fn planned(&self) -> &Baked {
        &self.0
    }
}

/// A tensor's format in the checkpoint's quantized blocks and in the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FromBlocks {
    pub from: BlockFormat,
    /// `None` stands for plain elements of the type.
    pub to: (Option<WeightFormat>, ElementType),
}

impl FromBlocks {
    pub fn is_exact(&self) -> bool {
        match self.to {
            (Some(format), _) if format.element().is_none() => self.from.is_kept_in(format),
            (_, ElementType::Bf16) => self.from == BlockFormat::Mxfp4,
            (_, element) => element == ElementType::F32,
        }
    }
}

impl fmt::Display for FromBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to {
            (Some(format), _) => write!(f, "{} as {}", self.from, format.word())?,
            (None, element) => write!(f, "{} as {element}", self.from)?,
        }
        f.write_str(if self.is_exact() { ", exactly" } else { ", rounded" })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BakeError {
    /// The tensors of the checkpoint don't match the parameters of the model. Tracewright wrote nothing.
    #[error("checkpoint `{}` does not fit the model: {} problem(s){}", .path.display(), .problems.len(), list(.problems))]
    Mismatch { path: PathBuf, problems: Vec<Problem> },
    /// The recipe is invalid, or its result has another type than the parameter.
    #[error("the recipe that computes the tensor `{key}` is wrong")]
    Recipe { key: String, source: Box<InferError> },
    #[error(transparent)]
    Archive(#[from] irpa::ArchiveError),
}

impl BakeError {
    /// Adds the source lines at which `trace` declares the tensors.
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

/// Writes the parameters to the archive `out`, with floats in the declared element type. The memory
/// consumption does not depend on the size of the checkpoint.
///
/// # Errors
/// If checkpoint and parameters differ, the error lists all differences, and nothing is written. No error
/// leaves a new file on the disk.
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

/// Writes the same archive as [`bake`]; call [`check`] first. No error leaves a new file on the disk.
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

fn entry(parameter: &Parameter) -> NewEntry {
    let entry = NewEntry::tensor(&parameter.key, parameter.ty.clone());
    let Some(recipe) = &parameter.recipe else { return entry };
    let mut text = String::new();
    recipe.print(&mut text);
    let sources = parameter.sources().into_iter().map(|(key, _)| key.to_owned()).collect();
    entry.with_recipe(text, sources)
}

/// Tensors that the network declares, but the simplifier removed, so that a checkpoint may still contain
/// them.
pub fn unread(recorded: &[Parameter], parameters: &[Parameter]) -> Vec<Ignorable> {
    fn keys(of: &[Parameter]) -> BTreeSet<&str> {
        of.iter().flat_map(Parameter::sources).map(|(key, _)| key).collect()
    }
    let (recorded, read) = (keys(recorded), keys(parameters));
    recorded.difference(&read).map(|&key| Ignorable::Unread(key.to_owned())).collect()
}

/// The error lists all differences between the checkpoint and the parameters.
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
        if !tensor.has_shape(&ty.shape) {
            let (expected, found) = (ty.shape.clone(), tensor.shape.clone());
            let (key, file) = (key.to_owned(), file.clone());
            problems.push(Problem::Shape { key, file, expected, found, declared: None });
        }
        match (tensor.stored, tensor.element()) {
            (_, Some(element)) if element == ty.element => {}
            (_, Some(element)) if element.is_float() && ty.element.is_float() => {
                baked.converted.push((key.to_owned(), element, ty.element));
            }
            _ if tensor.blocks().is_some() && ty.element.is_float() => {}
            (stored, _) => {
                let found = match stored {
                    StoredNumbers::Each(dtype) => format!("{dtype:?}"),
                    _ => tensor.blocks().map(|blocks| blocks.to_string()).unwrap_or_default(),
                };
                problems.push(Problem::Element { key: key.to_owned(), file, expected: ty.element, found });
            }
        }
    }
    for tensor in unread {
        let key = &tensor.name;
        match ignorable.iter().find(|rule| may_be_ignored(rule, key)) {
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
    if problems.is_empty() {
        Ok(Checked(baked))
    } else {
        Err(BakeError::Mismatch { path: checkpoint.path().to_owned(), problems })
    }
}

fn may_be_ignored(rule: &Ignorable, key: &str) -> bool {
    match rule {
        Ignorable::Suffix(suffix) => key.ends_with(suffix),
        Ignorable::Prefix(prefix) => key.starts_with(prefix),
        Ignorable::LayersFrom { prefix, from } => {
            let number =
                key.strip_prefix(prefix).and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
            number.is_some_and(|number| number >= *from)
        }
        Ignorable::Unread(twin) | Ignorable::EqualTo { key: twin, .. } => key == twin,
    }
}

fn check_recipe(parameter: &Parameter) -> Result<(), BakeError> {
    let Some(recipe) = &parameter.recipe else { return Ok(()) };
    let what = "the parameter and the result of the recipe must have one type";
    let made = recipe.ty().and_then(|right| {
        if parameter.ty == right {
            Ok(())
        } else {
            Err(InferError::Mismatch { op: "recipe", what, left: parameter.ty.clone(), right })
        }
    });
    made.map_err(|source| BakeError::Recipe { key: parameter.key.clone(), source: Box::new(source) })
}

/// `None` for plain elements.
pub fn format(parameter: &Parameter) -> Option<WeightFormat> {
    let Recipe::Op(op, _) = parameter.recipe.as_deref()? else { return None };
    match op.form() {
        Form::Archive(LayoutOp::Pack(pack)) => Some(pack.format),
        Form::Archive(LayoutOp::Quantize(quantize)) => Some(quantize.format),
        Form::Primitive | Form::Composite(_) | Form::Idiom(_) | Form::Kernel => None,
    }
}
