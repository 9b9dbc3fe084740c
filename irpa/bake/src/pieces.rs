//! Computes any range of a recipe's result, so that a weight never has to fit into the memory.

use std::borrow::Cow;

use irpa::{ArchiveError, Checkpoint, CheckpointTensor, StoredOrder, TensorNumbers};
use ops::format::Quantized;
use ops::ops::{Binary, BinaryKind, Constant, Convert, Permute, Reshape, Unary, UnaryKind};
use ops::{ElementType, Literal, Op, TensorType, Value};
use trace::Recipe;

/// The number of elements that the evaluator of a recipe computes at a time.
pub(crate) const PIECE: usize = 1 << 14;

/// Reads any range of a recipe's result.
pub(crate) struct PieceReader<'a> {
    pub(crate) ty: TensorType,
    /// Whether numbers change, and do not only move; then one that is not finite is an error.
    pub(crate) converts: bool,
    from: PieceSource<'a>,
}

enum PieceSource<'a> {
    /// With the element type to which [`PieceReader`] rounds.
    Source(TensorNumbers<'a>, Option<ElementType>),
    Op(Cow<'a, Op>, Vec<PieceReader<'a>>),
}

impl<'a> PieceReader<'a> {
    /// With `grouped`, the archive stores quantized groups, and numbers of the checkpoint's blocks and sums with
    /// an adapter are not rounded before.
    pub(crate) fn new(
        recipe: &'a Recipe,
        checkpoint: &'a Checkpoint,
        grouped: bool,
    ) -> Result<Self, ArchiveError> {
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
        let converts = matches!(&*op, Op::Convert(_)) || operands.iter().any(|operand| operand.converts);
        Self { ty, converts, from: PieceSource::Op(op, operands) }
    }

    /// In the order of the model's tensor, whatever the checkpoint's order.
    pub(crate) fn source(
        key: &str,
        ty: &TensorType,
        checkpoint: &'a Checkpoint,
        grouped: bool,
    ) -> Result<Self, ArchiveError> {
        let numbers = checkpoint.numbers(key)?;
        let tensor = checkpoint.get(key);
        let in_blocks = tensor.is_some_and(|tensor| tensor.blocks().is_some());
        let is_merged = tensor.is_some_and(CheckpointTensor::is_merged);
        let kept = grouped && (in_blocks || is_merged);
        let stored = tensor.and_then(CheckpointTensor::element);
        let as_stored = |shape: Vec<usize>, element: ElementType| {
            let rounded = (!kept && stored != Some(element)).then_some(element);
            let converts = in_blocks || is_merged || rounded.is_some();
            let ty = TensorType::new(element, shape);
            Self { ty, converts, from: PieceSource::Source(numbers, rounded) }
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
                let less = Self { converts: true, ..Self::op(Cow::Owned(add), vec![wide, one_less]) };
                if element == ElementType::F32 { less } else { one(Convert { to: element }.into(), less) }
            }
            StoredOrder::NegativeExponential => {
                let wide = as_stored(shape.clone(), ElementType::F32);
                let positive = one(Unary { kind: UnaryKind::Negate }.into(), wide);
                let log = Self { converts: true, ..one(Unary { kind: UnaryKind::Log }.into(), positive) };
                if element == ElementType::F32 { log } else { one(Convert { to: element }.into(), log) }
            }
        })
    }

    /// `None` unless the numbers are one quantized group of the checkpoint.
    pub(crate) fn quantized(&self, start: usize, count: usize) -> Option<Quantized> {
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

    /// Row-major, as f32, which can represent every number that a recipe computes.
    pub(crate) fn read(&self, start: usize, out: &mut [f32]) {
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

    /// `moves` has, for each axis of the result, the distance between neighbours in the operand's data.
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
