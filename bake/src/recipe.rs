//! What a recipe makes, a bounded piece at a time: memory does not depend on the size of a weight.

use rayon::prelude::*;

use irpa::{ArchiveError, Checkpoint, Sink};
use ops::format::PANEL;
use ops::ops::{Pack, Quantize};
use ops::{Op, TensorType, Value};
use trace::{Parameter, Recipe};

/// Elements made at a time.
const PIECE: usize = 1 << 14;

/// Writes the data of a parameter.
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
    sink.write_converted(checkpoint.data(key)?, checkpoint.ty(key)?.element, ty.element)
}

fn write_recipe(recipe: &Recipe, checkpoint: &Checkpoint, sink: &mut Sink<'_>) -> Result<(), ArchiveError> {
    match recipe {
        Recipe::Source(key, ty) => write_source(key, ty, checkpoint, sink),
        // One after the other in memory too.
        Recipe::Op(Op::Concatenate(concatenate), pieces) if concatenate.axis == 0 => {
            pieces.iter().try_for_each(|piece| write_recipe(piece, checkpoint, sink))
        }
        Recipe::Op(Op::Reshape(_), operands) => write_recipe(&operands[0], checkpoint, sink),
        Recipe::Op(Op::Pack(Pack { format }), operands) => {
            let bytes = |rows, inputs| format.packed(rows, inputs).bytes();
            let pack = |rows: &[f32], inputs, bytes: &mut [u8]| format.pack_panel(rows, inputs, bytes);
            write_panels(&operands[0], bytes, pack, checkpoint, sink)
        }
        Recipe::Op(Op::Quantize(Quantize { format, part }), operands) => {
            let row = |inputs| format.grouped(*part, 1, inputs).map_or(0, |ty| ty.bytes());
            let bytes = |rows, inputs| rows * row(inputs);
            let quantize = |rows: &[f32], inputs, bytes: &mut [u8]| {
                let bytes = bytes.chunks_exact_mut(row(inputs));
                rows.chunks(inputs).zip(bytes).for_each(|(row, bytes)| format.group_row(*part, row, bytes));
            };
            write_panels(&operands[0], bytes, quantize, checkpoint, sink)
        }
        Recipe::Op(..) => {
            let made = Made::new(recipe, checkpoint)?;
            let element = made.ty.element;
            let mut values = vec![0.0f32; PIECE];
            let mut bytes = vec![0; element.bytes(PIECE)];
            for start in (0..made.ty.count()).step_by(PIECE) {
                let count = PIECE.min(made.ty.count() - start);
                made.read(start, &mut values[..count]);
                for (i, value) in values[..count].iter().enumerate() {
                    element.store(&mut bytes, i, element.encode((*value).into()));
                }
                sink.write(&bytes[..element.bytes(count)])?;
            }
            Ok(())
        }
    }
}

/// Panels that are made together, on all threads.
const PANELS: usize = 64;

/// Writes a matrix in a form that is made of sixteen rows at a time: `bytes` says how many those of so many rows of so
/// many inputs are, `make` makes them.
fn write_panels(
    matrix: &Recipe,
    bytes: impl Fn(usize, usize) -> usize + Sync,
    make: impl Fn(&[f32], usize, &mut [u8]) + Sync,
    checkpoint: &Checkpoint,
    sink: &mut Sink<'_>,
) -> Result<(), ArchiveError> {
    let made = Made::new(matrix, checkpoint)?;
    let [outputs, inputs] = made.ty.shape[..] else { unreachable!("`check` has inferred it") };
    let panel = bytes(PANEL, inputs);
    let make_all = |first: usize, made_bytes: &mut Vec<u8>| {
        made_bytes.resize(bytes((outputs - first).min(PANEL * PANELS), inputs), 0);
        made_bytes.par_chunks_mut(panel).enumerate().for_each(|(index, bytes)| {
            let row = first + index * PANEL;
            let mut numbers = vec![0.0; PANEL.min(outputs - row) * inputs];
            made.read(row * inputs, &mut numbers);
            make(&numbers, inputs, bytes);
        });
    };
    // While some are written, the next are made.
    let (mut next, mut written) = (Vec::new(), Vec::new());
    for first in (0..outputs).step_by(PANEL * PANELS) {
        rayon::in_place_scope(|scope| {
            scope.spawn(|_| make_all(first, &mut next));
            sink.write(&written)
        })?;
        std::mem::swap(&mut next, &mut written);
    }
    sink.write(&written)
}

/// A recipe with its types and the bytes it starts from.
struct Made<'a> {
    ty: TensorType,
    from: From<'a>,
}

enum From<'a> {
    /// The bytes of a tensor and their type, which may be another than the declared one.
    Source(&'a [u8], TensorType),
    Op(&'a Op, Vec<Made<'a>>),
}

impl<'a> Made<'a> {
    fn new(recipe: &'a Recipe, checkpoint: &'a Checkpoint) -> Result<Self, ArchiveError> {
        Ok(match recipe {
            Recipe::Source(key, ty) => {
                let from = From::Source(checkpoint.data(key)?, checkpoint.ty(key)?);
                Self { ty: ty.clone(), from }
            }
            Recipe::Op(op, operands) => {
                let operands =
                    operands.iter().map(|o| Self::new(o, checkpoint)).collect::<Result<Vec<_>, _>>()?;
                let types: Vec<&TensorType> = operands.iter().map(|o| &o.ty).collect();
                let Ok(ty) = op.infer(&types) else { unreachable!("`check` has inferred it") };
                Self { ty, from: From::Op(op, operands) }
            }
        })
    }

    /// The elements from `start` on, in row-major order. Recipes are of floats, all of which an f32 can have.
    fn read(&self, start: usize, out: &mut [f32]) {
        match &self.from {
            From::Source(bytes, stored) => {
                stored.element.decode_all(bytes, start, out);
                if stored.element != self.ty.element {
                    out.iter_mut().for_each(|value| *value = self.ty.element.round((*value).into()) as f32);
                }
            }
            From::Op(Op::Reshape(_), operands) => operands[0].read(start, out),
            From::Op(Op::Concatenate(concatenate), pieces) => {
                self.read_pieces(concatenate.axis, pieces, start, out)
            }
            From::Op(Op::Permute(permute), operands) => {
                let strides = strides(&operands[0].ty.shape);
                let strides: Vec<usize> = permute.order.iter().map(|&axis| strides[axis]).collect();
                self.read_strided(&strides, &operands[0], start, out);
            }
            From::Op(Op::BroadcastInDim(broadcast), operands) => {
                let mut moved = vec![0; self.ty.rank()];
                let shape = &operands[0].ty.shape;
                for ((&axis, stride), &extent) in broadcast.axes.iter().zip(strides(shape)).zip(shape) {
                    moved[axis] = if extent == 1 { 0 } else { stride };
                }
                self.read_strided(&moved, &operands[0], start, out);
            }
            From::Op(Op::Constant(constant), _) if constant.value.as_splat().is_some() => {
                let bits = constant.value.as_splat().unwrap_or_default();
                out.fill(self.ty.element.decode(bits) as f32);
            }
            From::Op(Op::Constant(constant), _) => {
                let value = constant.value.to_value();
                out.iter_mut().zip(&value.data[start..]).for_each(|(out, value)| *out = *value as f32);
            }
            // Elementwise: a piece of the result needs the same pieces of the operands.
            From::Op(op, operands) => {
                let piece = |operand: &Made<'_>| {
                    let mut data = vec![0.0; out.len()];
                    operand.read(start, &mut data);
                    Value::new(
                        TensorType::new(operand.ty.element, [out.len()]),
                        data.into_iter().map(f64::from),
                    )
                };
                let operands: Vec<Value> = operands.iter().map(piece).collect();
                let ty = TensorType::new(self.ty.element, [out.len()]);
                let value = op.eval(&operands.iter().collect::<Vec<_>>(), &ty);
                out.iter_mut().zip(&value.data).for_each(|(out, value)| *out = *value as f32);
            }
        }
    }

    fn read_pieces(&self, axis: usize, pieces: &[Made<'_>], start: usize, out: &mut [f32]) {
        let row: usize = self.ty.shape[axis..].iter().product();
        let mut done = 0;
        while done < out.len() {
            let (index, mut column) = ((start + done) / row, (start + done) % row);
            for piece in pieces {
                let width: usize = piece.ty.shape[axis..].iter().product();
                if column < width {
                    let count = (width - column).min(out.len() - done);
                    piece.read(index * width + column, &mut out[done..done + count]);
                    done += count;
                    break;
                }
                column -= width;
            }
        }
    }

    /// Elements whose place in the operand moves by a stride for each axis of the result.
    fn read_strided(&self, moves: &[usize], operand: &Made<'_>, start: usize, out: &mut [f32]) {
        let shape = &self.ty.shape;
        let own = strides(shape);
        let place = |flat: usize| -> usize {
            (0..shape.len()).map(|axis| flat / own[axis] % shape[axis] * moves[axis]).sum()
        };
        // Along the last axis the operand is a run, or one element after another.
        let last = shape.last().copied().unwrap_or(1);
        let step = moves.last().copied().unwrap_or(0);
        let mut done = 0;
        while done < out.len() {
            let flat = start + done;
            let count = (last - flat % last).min(out.len() - done);
            let from = place(flat);
            match step {
                1 => operand.read(from, &mut out[done..done + count]),
                _ => (0..count).for_each(|i| operand.read(from + i * step, &mut out[done + i..=done + i])),
            }
            done += count;
        }
    }
}

/// How far apart neighbours along each axis are.
fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}
