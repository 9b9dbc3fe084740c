//! Evaluates recipes, which compute parameters from checkpoint tensors. The module evaluates a recipe in
//! pieces of bounded size, so the memory consumption does not depend on the size of a weight.

use rayon::prelude::*;

use irpa::{ArchiveError, Checkpoint, Sink};
use ops::format::{PANEL, Quantized};
use ops::ops::{Pack, Quantize};
use ops::{Op, TensorType, Value, WeightFormat};
use trace::{Parameter, Recipe};

use crate::finite::{NewNumbers, are_kept, lost};
use crate::pieces::{PIECE, PieceReader};

pub(crate) fn write(
    parameter: &Parameter,
    checkpoint: &Checkpoint,
    sink: &mut Sink<'_>,
) -> Result<(), ArchiveError> {
    match &parameter.recipe {
        None => write_source(&parameter.key, &parameter.ty, checkpoint, sink),
        Some(recipe) => write_recipe(recipe, checkpoint, sink),
    }
}

fn write_source(
    key: &str,
    ty: &TensorType,
    checkpoint: &Checkpoint,
    sink: &mut Sink<'_>,
) -> Result<(), ArchiveError> {
    match checkpoint.get(key) {
        Some(tensor) if tensor.blocks().is_some() || (tensor.element().is_some() && !tensor.is_plain()) => {
            let recipe = Recipe::Source(key.to_owned(), ty.clone());
            write_made(&recipe, checkpoint, sink)
        }
        _ => sink.write_converted(checkpoint, key, ty.element),
    }
}

/// [`PIECE`] elements at a time.
fn write_made(recipe: &Recipe, checkpoint: &Checkpoint, sink: &mut Sink<'_>) -> Result<(), ArchiveError> {
    let made = PieceReader::new(recipe, checkpoint, false)?;
    let element = made.ty.element;
    let mut values = vec![0.0f32; PIECE];
    let mut bytes = vec![0; element.bytes(PIECE)];
    for start in (0..made.ty.count()).step_by(PIECE) {
        let count = PIECE.min(made.ty.count() - start);
        made.read(start, &mut values[..count]);
        if !are_kept(&made, &values[..count]) {
            return Err(lost(&made, recipe, checkpoint, NewNumbers::Each(element)));
        }
        for (i, value) in values[..count].iter().enumerate() {
            element.store(&mut bytes, i, element.encode((*value).into()));
        }
        sink.write(&bytes[..element.bytes(count)])?;
    }
    Ok(())
}

/// From `start` on, rounded to the declared type.
pub fn read(
    checkpoint: &Checkpoint,
    key: &str,
    ty: &TensorType,
    start: usize,
    out: &mut [f32],
) -> Result<(), ArchiveError> {
    let made = PieceReader::source(key, ty, checkpoint, true)?;
    made.read(start, out);
    if are_kept(&made, out) {
        Ok(())
    } else {
        let recipe = Recipe::Source(key.to_owned(), ty.clone());
        Err(lost(&made, &recipe, checkpoint, NewNumbers::Each(ty.element)))
    }
}

/// In the declared type. `None` if the tensor is missing or has another shape.
pub fn value(checkpoint: &Checkpoint, key: &str, ty: &TensorType) -> Option<Value> {
    let tensor = checkpoint.get(key).filter(|tensor| tensor.has_shape(&ty.shape))?;
    match tensor.element() {
        // Without a conversion through f32, this value is exact for types with more precision than f32.
        Some(_) if tensor.is_plain() => {
            let value = Value::from_bytes(checkpoint.ty(key).ok()?, checkpoint.data(key).ok()?);
            Some(if value.ty == *ty { value } else { Value::new(ty.clone(), value.data) })
        }
        _ => {
            let made = PieceReader::source(key, ty, checkpoint, false).ok()?;
            let mut values = vec![0.0; ty.count()];
            made.read(0, &mut values);
            Some(Value::new(ty.clone(), values.into_iter().map(f64::from)))
        }
    }
}

fn write_recipe(recipe: &Recipe, checkpoint: &Checkpoint, sink: &mut Sink<'_>) -> Result<(), ArchiveError> {
    match recipe {
        Recipe::Source(key, ty) => write_source(key, ty, checkpoint, sink),
        // The operands of a concatenation along the first axis also follow each other in memory.
        Recipe::Op(Op::Concatenate(concatenate), pieces) if concatenate.axis == 0 => {
            pieces.iter().try_for_each(|piece| write_recipe(piece, checkpoint, sink))
        }
        Recipe::Op(Op::Reshape(_), operands) => write_recipe(&operands[0], checkpoint, sink),
        Recipe::Op(Op::Pack(Pack { format }), operands) => {
            let bytes = |rows, inputs| format.packed(rows, inputs).bytes();
            let pack = |panel: &Panel<'_, '_>, bytes: &mut [u8]| {
                let known = |row, column| panel.quantized(*format, row, column);
                match (format.element(), format.floats()) {
                    (Some(_), _) => {
                        format.pack_panel(&panel.numbers, panel.inputs, bytes);
                        are_kept(panel.made, &panel.numbers)
                    }
                    (_, Some(_)) => format.pack_floats(&panel.numbers, panel.inputs, bytes, known),
                    (None, None) => format.pack_groups(&panel.numbers, panel.inputs, bytes, known),
                }
            };
            write_panels(&operands[0], *format, bytes, pack, checkpoint, sink)
        }
        Recipe::Op(Op::Quantize(Quantize { format, part }), operands) => {
            let row = |inputs| format.grouped(*part, 1, inputs).map_or(0, |ty| ty.bytes());
            let bytes = |rows, inputs| rows * row(inputs);
            let quantize = |panel: &Panel<'_, '_>, bytes: &mut [u8]| {
                let inputs = panel.inputs;
                let rows = panel.numbers.chunks(inputs).zip(bytes.chunks_exact_mut(row(inputs)));
                rows.enumerate().fold(true, |all, (index, (numbers, bytes))| {
                    let known = |column| panel.quantized(*format, index, column);
                    all & format.group_row(*part, numbers, bytes, known)
                })
            };
            write_panels(&operands[0], *format, bytes, quantize, checkpoint, sink)
        }
        Recipe::Op(..) => write_made(recipe, checkpoint, sink),
    }
}

/// The number of panels that the threads pack in memory before one thread writes these panels to the archive.
const PANELS: usize = 64;

/// Packs panels of sixteen rows. `bytes` is the size of a packed matrix of some rows and inputs. `make` packs
/// a panel, and returns whether the format keeps all numbers.
fn write_panels(
    matrix: &Recipe,
    format: WeightFormat,
    bytes: impl Fn(usize, usize) -> usize + Sync,
    make: impl Fn(&Panel<'_, '_>, &mut [u8]) -> bool + Sync,
    checkpoint: &Checkpoint,
    sink: &mut Sink<'_>,
) -> Result<(), ArchiveError> {
    let made = PieceReader::new(matrix, checkpoint, format.element().is_none())?;
    let [outputs, inputs] = made.ty.shape[..] else { unreachable!("`check` has inferred it") };
    let panel = bytes(PANEL, inputs);
    let make_all = |first: usize, made_bytes: &mut Vec<u8>| {
        made_bytes.resize(bytes((outputs - first).min(PANEL * PANELS), inputs), 0);
        made_bytes.par_chunks_mut(panel).enumerate().all(|(index, bytes)| {
            let row = first + index * PANEL;
            let mut numbers = vec![0.0; PANEL.min(outputs - row) * inputs];
            made.read(row * inputs, &mut numbers);
            make(&Panel { made: &made, first: row, inputs, numbers }, bytes)
        })
    };
    // One thread writes panels while the other threads compute the next panels.
    let (mut next, mut written) = (Vec::new(), Vec::new());
    for first in (0..outputs).step_by(PANEL * PANELS) {
        let mut kept = true;
        rayon::in_place_scope(|scope| {
            scope.spawn(|_| kept = make_all(first, &mut next));
            sink.write(&written)
        })?;
        if !kept {
            let target = format.element().map_or(NewNumbers::Groups(format), NewNumbers::Each);
            return Err(lost(&made, matrix, checkpoint, target));
        }
        std::mem::swap(&mut next, &mut written);
    }
    sink.write(&written)
}

/// Sixteen rows of a matrix, which the archive stores together.
struct Panel<'p, 'a> {
    made: &'p PieceReader<'a>,
    first: usize,
    inputs: usize,
    numbers: Vec<f32>,
}

impl Panel<'_, '_> {
    /// `None` if `format` cannot store the quantized numbers unchanged.
    fn quantized(&self, format: WeightFormat, row: usize, column: usize) -> Option<Quantized> {
        let together = format.together()?.min(self.inputs - column);
        let stored = self.made.quantized((self.first + row) * self.inputs + column, together)?;
        stored.kept_in(format)
    }
}
