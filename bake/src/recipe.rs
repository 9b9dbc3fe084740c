//! Evaluates recipes, which compute parameters from checkpoint tensors. The module evaluates a
//! recipe in pieces of bounded size, so the memory consumption does not depend on the size of a
//! weight.

use rayon::prelude::*;

use std::borrow::Cow;

use irpa::{ArchiveError, Checkpoint, CheckpointTensor, Sink, StoredOrder, TensorNumbers};
use ops::format::{PANEL, Quantized};
use ops::ops::{Binary, BinaryKind, Constant, Convert, Pack, Permute, Quantize, Reshape, Unary, UnaryKind};
use ops::{ElementType, Literal, Op, TensorType, Value, WeightFormat};
use trace::{Parameter, Recipe};

/// The number of elements that the evaluator of a recipe computes at a time.
const PIECE: usize = 1 << 14;

/// Writes the data of a parameter to an archive.
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
        Some(tensor) if tensor.blocks().is_some() || tensor.arranged != StoredOrder::Same => {
            write_made(&PieceReader::source(key, ty, checkpoint, false)?, sink)
        }
        _ => sink.write_converted(checkpoint.data(key)?, checkpoint.ty(key)?.element, ty.element),
    }
}

/// Evaluates a recipe and writes its result, [`PIECE`] elements at a time.
fn write_made(made: &PieceReader<'_>, sink: &mut Sink<'_>) -> Result<(), ArchiveError> {
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

/// Reads the numbers of a checkpoint's tensor from the index `start` on, and rounds the numbers to
/// the type that the network declares.
///
/// # Errors
/// Returns an error if the checkpoint does not contain the tensor.
pub fn read(
    checkpoint: &Checkpoint,
    key: &str,
    ty: &TensorType,
    start: usize,
    out: &mut [f32],
) -> Result<(), ArchiveError> {
    PieceReader::source(key, ty, checkpoint, true)?.read(start, out);
    Ok(())
}

/// Returns a tensor of a checkpoint, converted to the type that the network declares. The result is
/// `None` if the tensor is missing, or if the tensor's shape is not the declared shape.
pub fn value(checkpoint: &Checkpoint, key: &str, ty: &TensorType) -> Option<Value> {
    let tensor = checkpoint.get(key).filter(|tensor| tensor.shape == ty.shape)?;
    match tensor.element() {
        // Without a conversion through f32, this value is exact for types with more precision than f32.
        Some(_) if tensor.arranged == StoredOrder::Same => {
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
            let pack = |panel: &Panel<'_, '_>, bytes: &mut [u8]| match format.element() {
                Some(_) => format.pack_panel(&panel.numbers, panel.inputs, bytes),
                None => {
                    let known = |row, column| panel.quantized(*format, row, column);
                    format.pack_groups(&panel.numbers, panel.inputs, bytes, known);
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
                for (index, (numbers, bytes)) in rows.enumerate() {
                    format.group_row(*part, numbers, bytes, |column| panel.quantized(*format, index, column));
                }
            };
            write_panels(&operands[0], *format, bytes, quantize, checkpoint, sink)
        }
        Recipe::Op(..) => write_made(&PieceReader::new(recipe, checkpoint, false)?, sink),
    }
}

/// The number of panels that the threads pack in memory before one thread writes these panels to
/// the archive.
const PANELS: usize = 64;

/// Writes a matrix in a packed format, in which each panel contains sixteen rows of the matrix. The
/// callback `bytes` returns the size of a packed matrix with a given number of rows and inputs. The
/// callback `make` packs one panel of the matrix.
fn write_panels(
    matrix: &Recipe,
    format: WeightFormat,
    bytes: impl Fn(usize, usize) -> usize + Sync,
    make: impl Fn(&Panel<'_, '_>, &mut [u8]) + Sync,
    checkpoint: &Checkpoint,
    sink: &mut Sink<'_>,
) -> Result<(), ArchiveError> {
    let made = PieceReader::new(matrix, checkpoint, format.element().is_none())?;
    let [outputs, inputs] = made.ty.shape[..] else { unreachable!("`check` has inferred it") };
    let panel = bytes(PANEL, inputs);
    let make_all = |first: usize, made_bytes: &mut Vec<u8>| {
        made_bytes.resize(bytes((outputs - first).min(PANEL * PANELS), inputs), 0);
        made_bytes.par_chunks_mut(panel).enumerate().for_each(|(index, bytes)| {
            let row = first + index * PANEL;
            let mut numbers = vec![0.0; PANEL.min(outputs - row) * inputs];
            made.read(row * inputs, &mut numbers);
            make(&Panel { made: &made, first: row, inputs, numbers }, bytes);
        });
    };
    // One thread writes panels while the other threads compute the next panels.
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

/// Sixteen rows of a matrix, which the archive stores together.
struct Panel<'p, 'a> {
    made: &'p PieceReader<'a>,
    first: usize,
    inputs: usize,
    numbers: Vec<f32>,
}

impl Panel<'_, '_> {
    /// Returns quantized numbers of a matrix in the checkpoint, beginning at the given row and
    /// column. The result is `None` if `format` cannot store the quantized numbers unchanged.
    fn quantized(&self, format: WeightFormat, row: usize, column: usize) -> Option<Quantized> {
        let together = format.together()?.min(self.inputs - column);
        let stored = self.made.quantized((self.first + row) * self.inputs + column, together)?;
        stored.kept_in(format)
    }
}

/// Reads any range of a recipe's result. The reader contains the result type of each operation in
/// the recipe, and reads the numbers of the source tensors.
struct PieceReader<'a> {
    ty: TensorType,
    from: PieceSource<'a>,
}

enum PieceSource<'a> {
    /// The numbers of a checkpoint's tensor, and the element type to which [`PieceReader`] rounds
    /// the numbers.
    Source(TensorNumbers<'a>, Option<ElementType>),
    Op(Cow<'a, Op>, Vec<PieceReader<'a>>),
}

impl<'a> PieceReader<'a> {
    /// Creates a reader for the result of a recipe. Set `grouped` if the archive stores the result
    /// in quantized groups. If `grouped` is true, the reader does not round numbers from the
    /// checkpoint's quantized blocks to an element type.
    fn new(recipe: &'a Recipe, checkpoint: &'a Checkpoint, grouped: bool) -> Result<Self, ArchiveError> {
        match recipe {
            Recipe::Source(key, ty) => Self::source(key, ty, checkpoint, grouped),
            Recipe::Op(op, operands) => {
                let operands = operands.iter().map(|o| Self::new(o, checkpoint, grouped));
                let operands = operands.collect::<Result<Vec<_>, _>>()?;
                Ok(Self::op(Cow::Borrowed(op), operands))
            }
        }
    }

    fn op(op: Cow<'a, Op>, mut operands: Vec<Self>) -> Self {
        // Two permutations that cancel each other leave the operand unchanged.
        let turned_back = match (&*op, &operands[..]) {
            (Op::Permute(outer), [Self { from: PieceSource::Op(inner, _), .. }]) => match &**inner {
                Op::Permute(inner) => {
                    (0..inner.order.len()).all(|axis| inner.order[outer.order[axis]] == axis)
                }
                _ => false,
            },
            _ => false,
        };
        if turned_back
            && let Some(Self { from: PieceSource::Op(_, mut inner), .. }) = operands.pop()
            && let Some(same) = inner.pop()
        {
            return same;
        }
        let types: Vec<&TensorType> = operands.iter().map(|o| &o.ty).collect();
        let Ok(ty) = op.infer(&types) else { unreachable!("`check` has inferred it") };
        Self { ty, from: PieceSource::Op(op, operands) }
    }

    /// Creates a reader for a tensor of the checkpoint. The reader returns the elements in the
    /// order of the model's tensor, even if the checkpoint stores the elements in another order.
    fn source(
        key: &str,
        ty: &TensorType,
        checkpoint: &'a Checkpoint,
        grouped: bool,
    ) -> Result<Self, ArchiveError> {
        let numbers = checkpoint.numbers(key)?;
        let tensor = checkpoint.get(key);
        let kept = grouped && tensor.is_some_and(|tensor| tensor.blocks().is_some());
        let stored = tensor.and_then(CheckpointTensor::element);
        let as_stored = |shape: Vec<usize>, element: ElementType| {
            let rounded = (!kept && stored != Some(element)).then_some(element);
            Self { ty: TensorType::new(element, shape), from: PieceSource::Source(numbers, rounded) }
        };
        let one = |op: Op, operand: Self| Self::op(Cow::Owned(op), vec![operand]);
        let (shape, element) = (ty.shape.clone(), ty.element);
        Ok(match tensor.map_or(StoredOrder::Same, |tensor| tensor.arranged) {
            StoredOrder::Same => as_stored(shape, element),
            StoredOrder::Transposed => {
                let (mut stored, mut order) = (shape, (0..ty.rank()).collect::<Vec<_>>());
                let last = ty.rank().saturating_sub(2);
                stored[last..].reverse();
                order[last..].reverse();
                one(Permute { order }.into(), as_stored(stored, element))
            }
            StoredOrder::PermutedRope { heads } => {
                let (rows, row) = shape.split_first().map_or((1, &[][..]), |(rows, row)| (*rows, row));
                let pairs = as_stored([&[heads, rows / heads / 2, 2], row].concat(), element);
                let order = [0, 2, 1].into_iter().chain(3..3 + row.len()).collect();
                one(Reshape { shape: shape.clone() }.into(), one(Permute { order }.into(), pairs))
            }
            // The subtraction is in f32, because a narrow type cannot represent every number plus 1.
            StoredOrder::PlusOne => {
                let wide = as_stored(shape.clone(), ElementType::F32);
                let value = Literal::splat(wide.ty.clone(), -1.0);
                let one_less = Self::op(Cow::Owned(Constant { value }.into()), Vec::new());
                let add = Binary { kind: BinaryKind::Add }.into();
                let less = Self::op(Cow::Owned(add), vec![wide, one_less]);
                if element == ElementType::F32 { less } else { one(Convert { to: element }.into(), less) }
            }
            StoredOrder::NegativeExponential => {
                let wide = as_stored(shape.clone(), ElementType::F32);
                let positive = one(Unary { kind: UnaryKind::Negate }.into(), wide);
                let log = one(Unary { kind: UnaryKind::Log }.into(), positive);
                if element == ElementType::F32 { log } else { one(Convert { to: element }.into(), log) }
            }
        })
    }

    /// Returns the quantized integers and the scale of `count` numbers from the index `start` on.
    /// The result is `None` unless the `count` numbers form one quantized group in the checkpoint.
    fn quantized(&self, start: usize, count: usize) -> Option<Quantized> {
        match &self.from {
            PieceSource::Source(numbers, _) => numbers.quantized(start, count),
            PieceSource::Op(op, operands) => match &**op {
                Op::Reshape(_) => operands[0].quantized(start, count),
                Op::Concatenate(concatenate) => {
                    let row: usize = self.ty.shape[concatenate.axis..].iter().product();
                    let (index, mut column) = (start / row, start % row);
                    for piece in operands {
                        let width: usize = piece.ty.shape[concatenate.axis..].iter().product();
                        if column < width {
                            let whole = column + count <= width;
                            return whole.then(|| piece.quantized(index * width + column, count))?;
                        }
                        column -= width;
                    }
                    None
                }
                Op::Permute(permute) => {
                    let (operand, last) = (&operands[0], self.ty.rank().checked_sub(1)?);
                    let run = permute.order[last] == last
                        && start % self.ty.shape[last] + count <= self.ty.shape[last];
                    let (own, theirs) = (strides(&self.ty.shape), strides(&operand.ty.shape));
                    let place =
                        |axis: usize| start / own[axis] % self.ty.shape[axis] * theirs[permute.order[axis]];
                    run.then(|| operand.quantized((0..=last).map(place).sum(), count))?
                }
                _ => None,
            },
        }
    }

    /// Reads elements of the result in row-major order, from the index `start` on. The function
    /// returns f32 numbers, because an f32 can represent every number that a recipe computes.
    fn read(&self, start: usize, out: &mut [f32]) {
        match &self.from {
            PieceSource::Source(numbers, rounded) => {
                numbers.read(start, out);
                if let Some(element) = rounded {
                    out.iter_mut().for_each(|value| *value = element.round((*value).into()) as f32);
                }
            }
            PieceSource::Op(op, operands) => self.compute(op, operands, start, out),
        }
    }

    fn compute(&self, op: &Op, operands: &[PieceReader<'_>], start: usize, out: &mut [f32]) {
        match op {
            Op::Reshape(_) => operands[0].read(start, out),
            Op::Concatenate(concatenate) => self.read_pieces(concatenate.axis, operands, start, out),
            Op::Permute(permute) => {
                let strides = strides(&operands[0].ty.shape);
                let strides: Vec<usize> = permute.order.iter().map(|&axis| strides[axis]).collect();
                self.read_strided(&strides, &operands[0], start, out);
            }
            Op::BroadcastInDim(broadcast) => {
                let mut moved = vec![0; self.ty.rank()];
                let shape = &operands[0].ty.shape;
                for ((&axis, stride), &extent) in broadcast.axes.iter().zip(strides(shape)).zip(shape) {
                    moved[axis] = if extent == 1 { 0 } else { stride };
                }
                self.read_strided(&moved, &operands[0], start, out);
            }
            Op::Constant(constant) if constant.value.as_splat().is_some() => {
                let bits = constant.value.as_splat().unwrap_or_default();
                out.fill(self.ty.element.decode(bits) as f32);
            }
            Op::Constant(constant) => {
                let value = constant.value.to_value();
                out.iter_mut().zip(&value.data[start..]).for_each(|(out, value)| *out = *value as f32);
            }
            // An elementwise operation needs the same piece of each operand as of the result.
            op => {
                let piece = |operand: &PieceReader<'_>| {
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

    fn read_pieces(&self, axis: usize, pieces: &[PieceReader<'_>], start: usize, out: &mut [f32]) {
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

    /// Reads elements of an operation's operand. For each axis of the result, `moves` contains the
    /// distance in the operand's data between neighbouring elements along this axis.
    fn read_strided(&self, moves: &[usize], operand: &PieceReader<'_>, start: usize, out: &mut [f32]) {
        let shape = &self.ty.shape;
        let own = strides(shape);
        let place = |flat: usize| -> usize {
            (0..shape.len()).map(|axis| flat / own[axis] % shape[axis] * moves[axis]).sum()
        };
        // Along the last axis, the elements are consecutive in the operand, or are read one by one.
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

/// Returns the stride of each axis of a row-major tensor, counted in elements.
fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}
