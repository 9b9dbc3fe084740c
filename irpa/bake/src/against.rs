//! Compares the numbers of an archive with the numbers of a checkpoint, bit by bit.

use std::collections::{BTreeMap, BTreeSet};

use irpa::{Archive, ArchiveError, Checkpoint, Entry, Tracker, Watch};
use ops::format::{GROUP, GroupPart, PANEL};
use ops::{ElementType, Form, LayoutOp, Reader, TensorType, WeightFormat};
use rayon::prelude::*;
use trace::Recipe;

use crate::pieces::{PIECE, PieceReader};

/// The rows that are compared between two reports of progress.
const ROWS: usize = 64 * PANEL;

/// The numbers of an archive that are those of the checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// For each type in the checkpoint and each type in the archive, such as `Q4_K` and `q4_k`.
    pub types: BTreeMap<(String, &'static str), Equal>,
    /// The tensors of the checkpoint that no entry of the archive contains.
    pub unread: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Equal {
    pub entries: usize,
    pub numbers: u64,
    /// Whether the archive's type is narrower, so that its numbers are those of the checkpoint rounded to it.
    pub rounded: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum AgainstError {
    /// The entry does not name the checkpoint's tensors.
    #[error(
        "the entry `{entry}` of the archive has no type, because the archive was written without metadata"
    )]
    Untyped { entry: String },
    #[error("the recipe of the entry `{entry}` of the archive is invalid: {what}")]
    Recipe { entry: String, what: String },
    #[error("the checkpoint has no tensor `{key}`, from which the entry `{entry}` of the archive is made")]
    Missing { entry: String, key: String },
    #[error(
        "the tensor `{key}` has the shape {found:?} in the checkpoint, expected {expected:?} for the archive"
    )]
    Shape { key: String, expected: Vec<usize>, found: Vec<usize> },
    /// The first number that differs.
    #[error(
        "the entry `{entry}` of the archive, row {row}, column {column}: the number is {found}, and the checkpoint has {expected}"
    )]
    Number { entry: String, row: usize, column: usize, expected: f32, found: f32 },
    /// The archive stores integers and scales in separate tensors, and those of a row differ.
    #[error("the entry `{entry}` of the archive, row {row}: the numbers differ from those of the checkpoint")]
    Row { entry: String, row: usize },
    #[error(transparent)]
    Archive(#[from] ArchiveError),
}

/// Compares every entry of the archive. The numbers of quantized blocks must be equal. Other numbers must
/// be those of the checkpoint, rounded to the archive's type.
///
/// # Errors
/// Returns an error at the first number that differs, and if the checkpoint lacks a tensor.
pub fn compare(
    archive: &Archive,
    checkpoint: &Checkpoint,
    watch: Option<Watch<'_>>,
) -> Result<Compared, AgainstError> {
    let mut compared = Compared::default();
    let mut read = BTreeSet::new();
    let total = archive.entries().iter().filter_map(|entry| Some(entry.ty.as_ref()?.bytes() as u64)).sum();
    let mut tracker = Tracker::new(archive.path(), total, watch);
    for entry in archive.entries() {
        let recipe = recipe_of(entry)?;
        for (key, ty) in recipe.sources() {
            let missing = || AgainstError::Missing { entry: entry.name.clone(), key: key.to_owned() };
            let tensor = checkpoint.get(key).ok_or_else(missing)?;
            if !tensor.has_shape(&ty.shape) {
                let (expected, found) = (ty.shape.clone(), tensor.shape.clone());
                return Err(AgainstError::Shape { key: key.to_owned(), expected, found });
            }
            read.insert(key.to_owned());
        }
        let matrix = Packed::of(&recipe);
        let made = PieceReader::new(matrix.numbers, checkpoint, matrix.grouped())?;
        compare_entry(archive, entry, (&matrix, &made), &mut tracker)?;
        let (from, rounded) = stored(&recipe, checkpoint, matrix.grouped());
        let to = matrix.format.map_or(made.ty.element.name(), WeightFormat::word);
        let counted = compared.types.entry((from, to)).or_default();
        counted.entries += 1;
        counted.numbers += made.ty.count() as u64;
        counted.rounded |= rounded;
    }
    let unread = checkpoint.tensors().filter(|tensor| !read.contains(&tensor.name));
    compared.unread = unread.map(|tensor| tensor.source.clone()).collect();
    Ok(compared)
}

/// An entry without a recipe is the tensor with its name.
fn recipe_of(entry: &Entry) -> Result<Recipe, AgainstError> {
    let ty = entry.ty.clone().ok_or_else(|| AgainstError::Untyped { entry: entry.name.clone() })?;
    let wrong = |what: String| AgainstError::Recipe { entry: entry.name.clone(), what };
    let Some(text) = &entry.recipe else { return Ok(Recipe::Source(entry.name.clone(), ty)) };
    let recipe = Recipe::parse(&mut Reader::new(text)).map_err(|error| wrong(error.to_string()))?;
    match recipe.ty() {
        Ok(made) if made == ty => Ok(recipe),
        Ok(made) => Err(wrong(format!("its result has the type {made}, expected {ty}"))),
        Err(error) => Err(wrong(error.to_string())),
    }
}

/// How the archive stores the numbers of a recipe.
struct Packed<'r> {
    numbers: &'r Recipe,
    /// `None` for plain numbers.
    format: Option<WeightFormat>,
    /// `None` if one tensor contains the matrix.
    part: Option<GroupPart>,
}

impl<'r> Packed<'r> {
    fn of(recipe: &'r Recipe) -> Self {
        let plain = Self { numbers: recipe, format: None, part: None };
        let Recipe::Op(op, operands) = recipe else { return plain };
        let Some(numbers) = operands.first() else { return plain };
        match op.form() {
            Form::Archive(LayoutOp::Pack(pack)) => Self { numbers, format: Some(pack.format), part: None },
            Form::Archive(LayoutOp::Quantize(quantize)) => {
                Self { numbers, format: Some(quantize.format), part: Some(quantize.part) }
            }
            Form::Primitive | Form::Composite(_) | Form::Idiom(_) | Form::Kernel => plain,
        }
    }

    /// Whether the format stores the numbers of blocks unchanged.
    fn grouped(&self) -> bool {
        self.format.is_some_and(|format| format.element().is_none())
    }
}

/// The types of the recipe's tensors in the checkpoint, and whether the archive rounds their numbers.
fn stored(recipe: &Recipe, checkpoint: &Checkpoint, grouped: bool) -> (String, bool) {
    let mut names = BTreeSet::new();
    let mut rounded = false;
    for (key, ty) in recipe.sources() {
        let Some(tensor) = checkpoint.get(key) else { continue };
        let (blocks, element) = (tensor.blocks(), tensor.element());
        names.extend(blocks.map(|blocks| blocks.word()).or(element.map(ElementType::name)));
        rounded |= !grouped && element != Some(ty.element) && ty.element != ElementType::F32;
    }
    (names.into_iter().collect::<Vec<_>>().join(" and "), rounded)
}

fn compare_entry(
    archive: &Archive,
    entry: &Entry,
    (matrix, made): (&Packed<'_>, &PieceReader<'_>),
    tracker: &mut Tracker<'_, '_>,
) -> Result<(), AgainstError> {
    let wrong = |what: &str| AgainstError::Recipe { entry: entry.name.clone(), what: what.to_owned() };
    let data = archive.data(&entry.name).ok_or_else(|| wrong("the entry repeats a pattern"))?;
    let &Packed { format: Some(format), part, .. } = matrix else {
        return compare_plain(entry, made, data, tracker);
    };
    let [outputs, inputs] = made.ty.shape[..] else { return Err(wrong("no matrix is packed")) };
    let row_bytes = |rows: usize| match part {
        Some(part) => format.grouped(part, rows, inputs).map_or(0, |ty| ty.bytes()),
        None => format.packed(rows, inputs).bytes(),
    };
    for first in (0..outputs).step_by(ROWS) {
        let rows = ROWS.min(outputs - first);
        let before = row_bytes(first);
        let data = &data[before..before + row_bytes(rows)];
        let panels = data.par_chunks(row_bytes(PANEL)).enumerate();
        let differing = panels.filter_map(|(index, bytes)| {
            let row = first + index * PANEL;
            let mut expected = vec![0.0; PANEL.min(outputs - row) * inputs];
            made.read(row * inputs, &mut expected);
            let Some(part) = part else {
                let mut found = vec![0.0; expected.len()];
                format.unpack_panel(bytes, inputs, &mut found);
                let at = first_difference(&expected, &found)?;
                let (row, column, entry) = (row + at / inputs, at % inputs, entry.name.clone());
                let (expected, found) = (expected[at], found[at]);
                return Some((row, AgainstError::Number { entry, row, column, expected, found }));
            };
            let rows = expected.chunks(inputs).zip(bytes.chunks(row_bytes(1))).enumerate();
            let mut differing = rows.filter(|(at, (numbers, bytes))| {
                let known = |column: usize| {
                    let together = format.together()?.min(inputs - column);
                    made.quantized((row + at) * inputs + column, together)?.kept_in(format)
                };
                let mut own = vec![0; bytes.len()];
                format.group_row(part, numbers, &mut own, known);
                let mut blocks = (0..inputs).step_by(format.together().unwrap_or(GROUP));
                own != *bytes || blocks.any(|column| known(column).is_none())
            });
            let row = row + differing.next()?.0;
            Some((row, AgainstError::Row { entry: entry.name.clone(), row }))
        });
        if let Some((_, error)) = differing.min_by_key(|(row, _)| *row) {
            return Err(error);
        }
        tracker.advance(data.len())?;
    }
    Ok(())
}

/// Compares numbers that are not quantized.
fn compare_plain(
    entry: &Entry,
    made: &PieceReader<'_>,
    data: &[u8],
    tracker: &mut Tracker<'_, '_>,
) -> Result<(), AgainstError> {
    let TensorType { element, .. } = made.ty;
    let row = made.ty.shape.last().copied().unwrap_or(1).max(1);
    for start in (0..made.ty.count()).step_by(PIECE) {
        let mut expected = vec![0.0; PIECE.min(made.ty.count() - start)];
        let mut found = expected.clone();
        made.read(start, &mut expected);
        element.decode_all(data, start, &mut found);
        if let Some(at) = first_difference(&expected, &found) {
            let (row, column) = ((start + at) / row, (start + at) % row);
            let (expected, found) = (expected[at], found[at]);
            return Err(AgainstError::Number { entry: entry.name.clone(), row, column, expected, found });
        }
        tracker.advance(element.bytes(found.len()))?;
    }
    Ok(())
}

/// The place of the first number with other bits.
fn first_difference(expected: &[f32], found: &[f32]) -> Option<usize> {
    expected.iter().zip(found).position(|(expected, found)| expected.to_bits() != found.to_bits())
}
