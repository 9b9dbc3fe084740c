//! Converts `grouped_linear` and `grouped_rows` to primitive operations, for quantized weights
//! without a kernel.

use ops::format::{
    ActivationBits, DOUBLED_FLOATS, GROUP, GROUPS, Groups, IGNORED_BITS, Integers, LARGEST_ACTIVATION,
    OUTLIER, RESIDUAL_STEPS,
};
use ops::ops::{
    BinaryKind, BroadcastInDim, Compare, Concatenate, Constant, Direction, DotGeneral, Gather, GroupedLinear,
    GroupedRows, Iota, Narrow, OptimizationBarrier, Reduce, ReduceKind, Reshape, Select, UnaryKind,
};
use ops::{ElementType, InferError, Literal, TensorType, WeightFormat};
use trace::{Builder, NodeId};

use super::linear::product;

/// For at most this number of activation rows, a program with one integer matmul per group is faster than a
/// matmul of dequantized numbers. For many activation rows, the program with one matmul per group takes too
/// long to write and read the results of all groups. For 8192 outputs and 2048 inputs on two VNNI cores (IREE
/// 3.13), integer matmuls take 0.5 ms for 1 activation row, 8 ms for 16 and 120 ms for 128. A matmul of
/// dequantized numbers takes 29 ms for 1 activation row, 28 ms for 16 rows and 60 ms for 128 rows.
const ROWS_OF_INTEGERS: usize = 32;

/// The scales of the groups in a quantized weight, as f32 `[…, groups]`. If the weight format has minima, the
/// struct contains the scales and the minima; the code subtracts the minima from the numbers of a group.
#[derive(Clone, Copy)]
struct Scales {
    scales: NodeId,
    minima: Option<NodeId>,
}

impl Scales {
    /// Computes the scales from the tensors that store a weight: either scales, or steps `[…,
    /// groups / 8, 2]` and counts `[…, groups, 2]`. Without minima, there is one step for all
    /// sixteen counts, which belong to groups of 16.
    fn of(b: &mut Builder<'_>, groups: &Groups, parts: &[NodeId]) -> Result<Self, InferError> {
        let scales = b.convert(parts[0], ElementType::F32)?;
        let Some(&counts) = parts.get(1) else {
            let minima = groups.minima;
            return if minima { Self::of_both(b, scales) } else { Ok(Self { scales, minima: None }) };
        };
        let counts = b.convert(counts, ElementType::F32)?;
        let scales = match f64::from(groups.unit) {
            1.0 => scales,
            unit => b.with_scalar(BinaryKind::Multiply, scales, unit)?,
        };
        let shape = b.ty(counts).shape.clone();
        let mut blocks = b.ty(scales).shape.clone();
        let last = blocks.len() - 1;
        if !groups.minima {
            let scales = b.op(Reshape { shape: blocks[..last].to_vec() }, &[scales])?;
            blocks[last] = groups.parts() * GROUPS;
            let counts = b.op(Reshape { shape: blocks }, &[counts])?;
            let scales = scaled(b, counts, scales, (0..last).collect())?;
            let shape = [&shape[..last - 1], &[groups.parts() * shape[last - 1]]].concat();
            return Ok(Self { scales: b.op(Reshape { shape }, &[scales])?, minima: None });
        }
        blocks.insert(last, groups.parts() * GROUPS);
        let counts = b.op(Reshape { shape: blocks }, &[counts])?;
        let both = scaled(b, counts, scales, (0..last).chain([last + 1]).collect())?;
        let shape = [&shape[..last - 1], &[groups.parts() * shape[last - 1], 2]].concat();
        let both = b.op(Reshape { shape }, &[both])?;
        Self::of_both(b, both)
    }

    /// Takes the scales and minima `[…, groups, 2]` apart.
    fn of_both(b: &mut Builder<'_>, both: NodeId) -> Result<Self, InferError> {
        let shape = b.ty(both).shape.clone();
        let last = shape.len() - 1;
        let mut one = |start| {
            let part = b.op(Narrow { axis: last, start, length: 1 }, &[both])?;
            b.op(Reshape { shape: shape[..last].to_vec() }, &[part])
        };
        Ok(Self { scales: one(0)?, minima: Some(one(1)?) })
    }
}

/// Quantizes the activations once, and uses the quantized activations for all outputs. Multiplies
/// each integer product by the scale of the activation group and the scale of the weight group.
pub(crate) fn linear(
    b: &mut Builder<'_>,
    op: &GroupedLinear,
    operands: &[NodeId],
) -> Result<NodeId, InferError> {
    let (x, integers) = (operands[0], operands[1]);
    let mut shape = b.ty(x).shape.clone();
    let inputs = shape.pop().unwrap_or_default();
    let rows = shape.iter().product();
    let [outputs, groups, _] = b.ty(integers).shape[..] else { unreachable!("inferred") };
    shape.push(outputs);

    let x = b.op(Reshape { shape: vec![rows, inputs] }, &[x])?;
    let x = b.convert(x, ElementType::F32)?;
    let x = filled_up(b, x, groups * GROUP)?;
    let x = b.op(Reshape { shape: vec![rows, groups, GROUP] }, &[x])?;
    let planes = in_integers(b, x, op.activations)?;
    let own = op.format.facts();
    let scales = Scales::of(b, own, &operands[2..])?;

    let sums = if rows <= ROWS_OF_INTEGERS {
        let parts = planes.into_iter().map(|plane| of_integers(b, own, plane, (integers, scales)));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        total(b, &parts)?
    } else {
        let parts = planes
            .into_iter()
            .map(|[x, x_scales]| numbers(b, vec![x], Scales { scales: x_scales, minima: None }, GROUP));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let x = total(b, &parts)?;
        let weight = unpacked(b, own, integers)?;
        let weight = numbers(b, weight, scales, own.group)?;
        product(b, x, weight)?
    };
    let rounded = b.convert(sums, op.element)?;
    b.op(Reshape { shape }, &[rounded])
}

/// Computes a matmul like [`linear`] for XLA, but without rounding the activations. In a call with
/// at most `fused_rows` activation rows, the sums of products read the stored integers directly. In
/// a call with more activation rows, XLA first writes the dequantized weight, in the element type of
/// the activations, and then multiplies.
pub(crate) fn linear_in_xla(
    b: &mut Builder<'_>,
    (format, element, fused_rows): (WeightFormat, ElementType, usize),
    operands: &[NodeId],
) -> Result<NodeId, InferError> {
    let (x, parts) = (operands[0], &operands[1..]);
    let mut shape = b.ty(x).shape.clone();
    let inputs = shape.pop().unwrap_or_default();
    let rows = shape.iter().product();
    let [outputs, groups, _] = b.ty(parts[0]).shape[..] else { unreachable!("inferred") };
    shape.push(outputs);

    let weight = dequantized(b, format.facts(), parts)?;
    let x = b.op(Reshape { shape: vec![rows, inputs] }, &[x])?;
    let x = filled_up(b, x, groups * GROUP)?;
    let sums = if rows <= fused_rows {
        sums_of_rows(b, x, weight)?
    } else {
        let weight = b.op(Reshape { shape: vec![outputs, groups * GROUP] }, &[weight])?;
        let weight = b.convert(weight, b.ty(x).element)?;
        product(b, x, weight)?
    };
    let rounded = b.convert(sums, element)?;
    b.op(Reshape { shape }, &[rounded])
}

/// Computes x · weightᵀ as one sum of products per row of x, in f32. XLA's CUDA compiler fuses the
/// dequantization and the sums of all rows into one kernel, which reads each integer of the weight
/// once. In a matmul operation, XLA would first write the dequantized weight to memory.
fn sums_of_rows(b: &mut Builder<'_>, x: NodeId, weight: NodeId) -> Result<NodeId, InferError> {
    let shape = b.ty(weight).shape.clone();
    let x = b.convert(x, ElementType::F32)?;
    // Without this barrier, XLA computes the activations again for each output.
    let x = b.op(OptimizationBarrier {}, &[x])?;
    let rows = b.ty(x).shape[0];
    let mut row = |start| {
        let row = b.op(Narrow { axis: 0, start, length: 1 }, &[x])?;
        let row = b.op(Reshape { shape: shape[1..].to_vec() }, &[row])?;
        let row = spread(b, row, weight, (1..shape.len()).collect())?;
        let products = b.binary(BinaryKind::Multiply, weight, row)?;
        let sums = b.op(Reduce { kind: ReduceKind::Add, axes: (1..shape.len()).collect() }, &[products])?;
        b.op(Reshape { shape: vec![1, shape[0]] }, &[sums])
    };
    let sums = (0..rows).map(&mut row).collect::<Result<Vec<_>, _>>()?;
    if let [sums] = sums[..] { Ok(sums) } else { b.op(Concatenate { axis: 0 }, &sums) }
}

/// Returns the numbers of a weight as f32 `[…, groups, 32]`, or `[…, groups, 2, 16]` for 4-bit
/// integers, from the tensors that store the weight. All operations are elementwise. None is a
/// division, because XLA does not fuse a division into several kernels.
fn dequantized(b: &mut Builder<'_>, groups: &Groups, parts: &[NodeId]) -> Result<NodeId, InferError> {
    let Scales { scales, minima } = Scales::of(b, groups, &parts[1..])?;
    let axes: Vec<usize> = (0..b.ty(scales).rank()).collect();
    let mut planes = Vec::new();
    for plane in planes_of(b, groups, parts[0])? {
        let (width, bytes) = plane;
        let fields = fields(b, width, bytes, true)?;
        planes.push(in_order(b, &fields)?);
    }
    let numbers = if let ([stored], 1) = (&planes[..], groups.parts()) {
        integers(b, groups, *stored)?
    } else {
        let shape = [&b.ty(scales).shape[..], &[groups.group]].concat();
        let planes = planes.into_iter().map(|plane| b.op(Reshape { shape: shape.clone() }, &[plane]));
        let planes = planes.collect::<Result<Vec<_>, _>>()?;
        combined(b, groups, planes)?
    };
    let numbers = scaled(b, numbers, scales, axes.clone())?;
    let Some(minima) = minima else { return Ok(numbers) };
    let minima = spread(b, minima, numbers, axes)?;
    b.binary(BinaryKind::Subtract, numbers, minima)
}

/// Joins the fields of bytes in the order of their columns, as axes of two.
fn in_order(b: &mut Builder<'_>, fields: &[NodeId]) -> Result<NodeId, InferError> {
    if let [one] = fields {
        return Ok(*one);
    }
    let every_other = |first: usize| fields.iter().skip(first).step_by(2).copied().collect::<Vec<_>>();
    let (even, odd) = (in_order(b, &every_other(0))?, in_order(b, &every_other(1))?);
    side_by_side(b, even, odd)
}

/// Joins two tensors `[…, 16]` to one tensor `[…, 2, 16]`. The function uses a selection, because XLA
/// does not fuse a concatenation into a sum.
fn side_by_side(b: &mut Builder<'_>, first: NodeId, second: NodeId) -> Result<NodeId, InferError> {
    let mut shape = b.ty(first).shape.clone();
    let axis = shape.len() - 1;
    shape.insert(axis, 2);
    let half = b.op(Iota { ty: TensorType::new(ElementType::I32, [2]), axis: 0 }, &[])?;
    let zero = b.splat(half, 0.0)?;
    let is_first = b.op(Compare { direction: Direction::Eq }, &[half, zero])?;
    let is_first = b.op(BroadcastInDim { shape: shape.clone(), axes: vec![axis] }, &[is_first])?;
    let axes: Vec<usize> = (0..shape.len()).filter(|at| *at != axis).collect();
    let mut wide = |part| b.op(BroadcastInDim { shape: shape.clone(), axes: axes.clone() }, &[part]);
    let (first, second) = (wide(first)?, wide(second)?);
    b.op(Select {}, &[is_first, first, second])
}

/// Multiplies the integers of the selected weight rows by their scales, for XLA.
pub(crate) fn rows_in_xla(
    b: &mut Builder<'_>,
    op: &GroupedRows,
    operands: &[NodeId],
) -> Result<NodeId, InferError> {
    let parts = gathered(b, operands)?;
    let numbers = dequantized(b, op.format.facts(), &parts)?;
    let mut shape = b.ty(parts[0]).shape.clone();
    let groups = shape[shape.len() - 2];
    shape.truncate(shape.len() - 2);
    shape.push(groups * GROUP);
    let numbers = b.op(Reshape { shape }, &[numbers])?;
    without_filling(b, op, numbers)
}

/// Multiplies the integers of the selected weight rows by their scales.
pub(crate) fn rows(b: &mut Builder<'_>, op: &GroupedRows, operands: &[NodeId]) -> Result<NodeId, InferError> {
    let parts = gathered(b, operands)?;
    let own = op.format.facts();
    let scales = Scales::of(b, own, &parts[1..])?;
    let parts = unpacked(b, own, parts[0])?;
    let numbers = numbers(b, parts, scales, own.group)?;
    without_filling(b, op, numbers)
}

/// Selects rows of all tensors that store a weight.
fn gathered(b: &mut Builder<'_>, operands: &[NodeId]) -> Result<Vec<NodeId>, InferError> {
    let [parts @ .., indices] = operands else { unreachable!("inferred") };
    parts.iter().map(|part| b.op(Gather {}, &[*part, *indices])).collect()
}

/// Removes the zeros that fill the last group, and converts the numbers to the element type of the operation.
fn without_filling(b: &mut Builder<'_>, op: &GroupedRows, mut numbers: NodeId) -> Result<NodeId, InferError> {
    let axis = b.ty(numbers).rank() - 1;
    if b.ty(numbers).shape[axis] != op.inputs {
        numbers = b.op(Narrow { axis, start: 0, length: op.inputs }, &[numbers])?;
    }
    b.convert(numbers, op.element)
}

fn filled_up(b: &mut Builder<'_>, x: NodeId, columns: usize) -> Result<NodeId, InferError> {
    let ty = b.ty(x).clone();
    if ty.shape[1] == columns {
        return Ok(x);
    }
    let rest = TensorType::new(ty.element, [ty.shape[0], columns - ty.shape[1]]);
    let zeros = b.op(Constant { value: Literal::splat(rest, 0.0) }, &[])?;
    b.op(Concatenate { axis: 1 }, &[x, zeros])
}

/// Rounds the numbers of each group to integers, relative to the scale of the group. Returns the integers as
/// f32, and also the scale of each group. If the activations can have more than 8 bits, the function also
/// returns the integers and scales of the residuals. See [`ops::format::in_integers`] for the rounding.
fn in_integers(b: &mut Builder<'_>, x: NodeId, bits: ActivationBits) -> Result<Vec<[NodeId; 2]>, InferError> {
    let magnitudes = b.unary(UnaryKind::Abs, x)?;
    let largest = b.op(Reduce { kind: ReduceKind::Maximum, axes: vec![2] }, &[magnitudes])?;
    let (zero, full) = (b.splat(largest, 0.0)?, b.splat(largest, f64::from(LARGEST_ACTIVATION))?);
    let inverse = b.binary(BinaryKind::Divide, full, largest)?;
    let positive = b.op(Compare { direction: Direction::Lt }, &[zero, largest])?;
    let inverse = b.op(Select {}, &[positive, inverse, zero])?;
    let units = scaled(b, x, inverse, vec![0, 1])?;
    let bytes = b.unary(UnaryKind::Round, units)?;
    let scales = b.binary(BinaryKind::Divide, largest, full)?;
    if bits == ActivationBits::Eight {
        return Ok(vec![[bytes, scales]]);
    }
    let residuals = b.binary(BinaryKind::Subtract, units, bytes)?;
    let steps = f64::from(RESIDUAL_STEPS);
    let residuals = match bits {
        ActivationBits::Mixed => {
            let limit = outlier_limits(b, largest, positive)?;
            let limit = spread(b, limit, largest, vec![0])?;
            let is_outlier = b.op(Compare { direction: Direction::Lt }, &[limit, largest])?;
            let steps = b.splat(largest, steps)?;
            let steps = b.op(Select {}, &[is_outlier, steps, zero])?;
            scaled(b, residuals, steps, vec![0, 1])?
        }
        _ => b.with_scalar(BinaryKind::Multiply, residuals, steps)?,
    };
    let residuals = b.unary(UnaryKind::Round, residuals)?;
    let finer = b.with_scalar(BinaryKind::Divide, scales, steps)?;
    Ok(vec![[bytes, scales], [residuals, finer]])
}

/// Computes [`ops::format::outlier_limit`] for each row, from the largest magnitudes of the row's
/// groups. The operand `positive` tells which of the magnitudes are not 0.
fn outlier_limits(b: &mut Builder<'_>, largest: NodeId, positive: NodeId) -> Result<NodeId, InferError> {
    // The bits of the float 2ᵉ · (1 + m) are 2²³ · (e + 127 + m). Without the ignored bits, 2¹¹ remains of 2²³.
    let (units, bias) = (f64::from(1 << (23 - IGNORED_BITS)), 127.0);
    let ln_2 = std::f64::consts::LN_2;
    let (zero, one) = (b.splat(largest, 0.0)?, b.splat(largest, 1.0)?);
    let largest = b.op(Select {}, &[positive, largest, one])?;
    let logarithm = b.unary(UnaryKind::Log, largest)?;
    let exponent = b.with_scalar(BinaryKind::Multiply, logarithm, 1.0 / ln_2)?;
    let exponent = b.unary(UnaryKind::Floor, exponent)?;
    let power = b.with_scalar(BinaryKind::Multiply, exponent, ln_2)?;
    let power = b.unary(UnaryKind::Exponential, power)?;
    let mantissa = b.binary(BinaryKind::Divide, largest, power)?;
    let bits = b.binary(BinaryKind::Add, exponent, mantissa)?;
    let bits = b.with_scalar(BinaryKind::Add, bits, bias - 1.0)?;
    let bits = b.with_scalar(BinaryKind::Multiply, bits, units)?;
    let bits = b.unary(UnaryKind::Floor, bits)?;
    let mut sum = |numbers: NodeId| {
        let numbers = b.op(Select {}, &[positive, numbers, zero])?;
        let integers = b.convert(numbers, ElementType::I32)?;
        let sum = b.op(Reduce { kind: ReduceKind::Add, axes: vec![1] }, &[integers])?;
        b.convert(sum, ElementType::F32)
    };
    let (sum, count) = (sum(bits)?, sum(one)?);
    let least = b.splat(count, 1.0)?;
    let count = b.binary(BinaryKind::Maximum, count, least)?;
    let mean = b.binary(BinaryKind::Divide, sum, count)?;
    let mean = b.unary(UnaryKind::Floor, mean)?;
    let mean = b.with_scalar(BinaryKind::Divide, mean, units)?;
    let exponent = b.unary(UnaryKind::Floor, mean)?;
    let mantissa = b.binary(BinaryKind::Subtract, mean, exponent)?;
    let mantissa = b.with_scalar(BinaryKind::Add, mantissa, 1.0)?;
    let power = b.with_scalar(BinaryKind::Subtract, exponent, bias)?;
    let power = b.with_scalar(BinaryKind::Multiply, power, ln_2)?;
    let power = b.unary(UnaryKind::Exponential, power)?;
    let limit = b.binary(BinaryKind::Multiply, power, mantissa)?;
    b.with_scalar(BinaryKind::Multiply, limit, f64::from(OUTLIER))
}

/// Adds one or two tensors.
fn total(b: &mut Builder<'_>, parts: &[NodeId]) -> Result<NodeId, InferError> {
    let [first, rest @ ..] = parts else { unreachable!("activations have a plane") };
    rest.iter().try_fold(*first, |sum, &part| b.binary(BinaryKind::Add, sum, part))
}

/// Returns the bytes of each plane of a weight, with the width of the plane.
fn planes_of(
    b: &mut Builder<'_>,
    groups: &Groups,
    bytes: NodeId,
) -> Result<Vec<(usize, NodeId)>, InferError> {
    let axis = b.ty(bytes).rank() - 1;
    if let [width] = groups.planes[..] {
        return Ok(vec![(width, bytes)]);
    }
    let planes = groups.planes().map(|(shift, width)| {
        let columns = Narrow { axis, start: 4 * shift, length: 4 * width };
        Ok((width, b.op(columns, &[bytes])?))
    });
    planes.collect()
}

/// Extracts the signed integers at each position within the bytes, for example the integers in the
/// lower four bits and the integers in the upper four bits. A position within the bytes contains one
/// weight column for each byte of the group. For XLA, the integers are floats, and nothing is divided.
fn fields(
    b: &mut Builder<'_>,
    width: usize,
    bytes: NodeId,
    for_xla: bool,
) -> Result<Vec<NodeId>, InferError> {
    let (mut left, mut fields) = (bytes, Vec::new());
    if width == 8 {
        return Ok(vec![if for_xla { b.convert(bytes, ElementType::F32)? } else { bytes }]);
    }
    // Of one bit, −128 is 0 or −1 after the division, as i8 has no 128.
    let most = if width > 1 || for_xla { f64::from(1 << (8 - width)) } else { 127.0 };
    for start in (0..8).step_by(width) {
        let is_last = start + width == 8;
        // A multiplication moves the field to the upper end, and the bits above it overflow.
        let moved = if is_last {
            left
        } else {
            b.with_scalar(BinaryKind::Multiply, left, f64::from((1u8 << (8 - width - start)) as i8))?
        };
        let field = if for_xla {
            let moved = b.convert(moved, ElementType::F32)?;
            b.with_scalar(BinaryKind::Multiply, moved, 1.0 / most)?
        } else {
            b.with_scalar(BinaryKind::Divide, moved, most)?
        };
        fields.push(field);
        if !is_last {
            let mut lower = if for_xla { b.convert(field, ElementType::I8)? } else { field };
            if start > 0 {
                lower = b.with_scalar(BinaryKind::Multiply, lower, f64::from(1 << start))?;
            }
            left = b.binary(BinaryKind::Subtract, left, lower)?;
        }
    }
    Ok(fields)
}

/// Extracts the integers of a weight as i8. With one plane, the result has a tensor for each
/// position within the bytes. With several planes, it is one tensor with all columns of a group.
fn unpacked(b: &mut Builder<'_>, groups: &Groups, bytes: NodeId) -> Result<Vec<NodeId>, InferError> {
    let planes = planes_of(b, groups, bytes)?;
    if let ([(width, bytes)], 1) = (&planes[..], groups.parts()) {
        let (width, bytes) = (*width, *bytes);
        let fields = fields(b, width, bytes, false)?;
        return fields.into_iter().map(|stored| integers(b, groups, stored)).collect();
    }
    let axis = b.ty(bytes).rank() - 1;
    let mut all = b.ty(bytes).shape.clone();
    (all[axis - 1], all[axis]) = (all[axis - 1] * GROUP / groups.group, groups.group);
    let mut joined = Vec::new();
    for (width, bytes) in planes {
        let fields = fields(b, width, bytes, false)?;
        let plane = b.op(Concatenate { axis }, &fields)?;
        joined.push(b.op(Reshape { shape: all.clone() }, &[plane])?);
    }
    Ok(vec![combined(b, groups, joined)?])
}

/// Returns the integers of a weight from all planes of their codes.
fn combined(b: &mut Builder<'_>, groups: &Groups, planes: Vec<NodeId>) -> Result<NodeId, InferError> {
    let mut parts = groups.planes().zip(planes);
    let Some((_, mut sum)) = parts.next() else { unreachable!("a format has a plane") };
    for ((shift, _), plane) in parts {
        let plane = b.with_scalar(BinaryKind::Multiply, plane, f64::from(1 << shift))?;
        sum = b.binary(BinaryKind::Add, sum, plane)?;
    }
    integers(b, groups, sum)
}

/// Returns the weight's integers from the signed integers that the archive stores.
fn integers(b: &mut Builder<'_>, groups: &Groups, stored: NodeId) -> Result<NodeId, InferError> {
    match (groups.integers, groups.added_to_signed()) {
        (Integers::Minus(_), 0) => Ok(stored),
        (Integers::Minus(_), added) => b.with_scalar(BinaryKind::Add, stored, f64::from(added)),
        // Twice the values of four-bit floats: see [`ops::format::DOUBLED_FLOATS`]. A float without its sign
        // is a number n from 0 to 7, and its doubled value is the largest of n, 2 n − 4 and 4 n − 16.
        (Integers::Table(&DOUBLED_FLOATS), _) => {
            let zero = b.splat(stored, 0.0)?;
            let negative = b.op(Compare { direction: Direction::Lt }, &[stored, zero])?;
            let places = b.with_scalar(BinaryKind::Add, stored, 8.0)?;
            let places = b.op(Select {}, &[negative, places, stored])?;
            let mut line = |factor, less| {
                let multiple = b.with_scalar(BinaryKind::Multiply, places, factor)?;
                b.with_scalar(BinaryKind::Subtract, multiple, less)
            };
            let (second, third) = (line(2.0, 4.0)?, line(4.0, 16.0)?);
            let larger = b.binary(BinaryKind::Maximum, second, third)?;
            let magnitude = b.binary(BinaryKind::Maximum, places, larger)?;
            let less = b.binary(BinaryKind::Subtract, zero, magnitude)?;
            b.op(Select {}, &[negative, less, magnitude])
        }
        // Stored codes from 8 on are negative.
        (Integers::Table(table), _) => {
            let last = b.splat(stored, f64::from(table[15]))?;
            (0..15u8).zip(table).try_fold(last, |other, (code, &integer)| {
                let code = b.splat(stored, f64::from((code << 4) as i8 >> 4))?;
                let is_code = b.op(Compare { direction: Direction::Eq }, &[stored, code])?;
                let integer = b.splat(stored, f64::from(integer))?;
                b.op(Select {}, &[is_code, integer, other])
            })
        }
    }
}

/// Computes x · weightᵀ from integers, as a tensor `[rows, outputs]`. The function multiplies the
/// integers of each group, and then multiplies the integer product by the scales of x and the
/// weight. For weight formats with minima, the function then subtracts the minimum of each weight
/// group times the sum of the corresponding group of x.
fn of_integers(
    b: &mut Builder<'_>,
    groups: &Groups,
    [mut x, mut x_scales]: [NodeId; 2],
    (weight, Scales { scales, minima }): (NodeId, Scales),
) -> Result<NodeId, InferError> {
    if groups.group < GROUP {
        let [rows, count, _] = b.ty(x).shape[..] else { unreachable!("in groups") };
        let more = GROUP / groups.group;
        x = b.op(Reshape { shape: vec![rows, count * more, groups.group] }, &[x])?;
        let each = BroadcastInDim { shape: vec![rows, count, more], axes: vec![0, 1] };
        x_scales = b.op(each, &[x_scales])?;
        x_scales = b.op(Reshape { shape: vec![rows, count * more] }, &[x_scales])?;
    }
    let of_x = x;
    let products = DotGeneral {
        left_batch: vec![1],
        right_batch: vec![1],
        left_contract: vec![2],
        right_contract: vec![2],
        element: ElementType::I32,
    };
    let x = b.convert(x, ElementType::I8)?;
    let parts = unpacked(b, groups, weight)?;
    let length = groups.group / parts.len();
    let mut sums: Option<NodeId> = None; // groups × rows × outputs
    for (part, weight) in parts.into_iter().enumerate() {
        let columns = Narrow { axis: 2, start: part * length, length };
        let x = if length == groups.group { x } else { b.op(columns, &[x])? };
        let product = b.op(products.clone(), &[x, weight])?;
        sums = Some(match sums {
            Some(others) => b.binary(BinaryKind::Add, others, product)?,
            None => product,
        });
    }
    let Some(sums) = sums else { unreachable!("a byte holds something") };
    let sums = b.convert(sums, ElementType::F32)?;
    let sums = scaled(b, sums, scales, vec![2, 0])?;
    let sums = scaled(b, sums, x_scales, vec![1, 0])?;
    let sums = b.op(Reduce { kind: ReduceKind::Add, axes: vec![0] }, &[sums])?;
    let Some(minima) = minima else { return Ok(sums) };
    let of_groups = b.op(Reduce { kind: ReduceKind::Add, axes: vec![2] }, &[of_x])?;
    let of_groups = b.binary(BinaryKind::Multiply, of_groups, x_scales)?;
    let less = product(b, of_groups, minima)?;
    b.binary(BinaryKind::Subtract, sums, less)
}

/// Dequantizes the integers at each position within the bytes, and joins the numbers of all groups.
fn numbers(
    b: &mut Builder<'_>,
    parts: Vec<NodeId>,
    Scales { scales, minima }: Scales,
    group: usize,
) -> Result<NodeId, InferError> {
    let mut shape = b.ty(scales).shape.clone();
    let axis = shape.len();
    let integers = if parts.len() == 1 { parts[0] } else { b.op(Concatenate { axis }, &parts)? };
    let numbers = b.convert(integers, ElementType::F32)?;
    let mut numbers = scaled(b, numbers, scales, (0..axis).collect())?;
    if let Some(minima) = minima {
        let minima = spread(b, minima, numbers, (0..axis).collect())?;
        numbers = b.binary(BinaryKind::Subtract, numbers, minima)?;
    }
    let groups = shape.pop().unwrap_or_default();
    shape.push(groups * group);
    let numbers = b.op(Reshape { shape }, &[numbers])?;
    // Without this barrier, iree-compile 3.13 computes the numbers again inside their consumer, and runs out
    // of stack.
    b.op(OptimizationBarrier {}, &[numbers])
}

/// The function multiplies each number by the scale of its group. The scales have only the axes
/// `axes` of `numbers`.
fn scaled(
    b: &mut Builder<'_>,
    numbers: NodeId,
    scales: NodeId,
    axes: Vec<usize>,
) -> Result<NodeId, InferError> {
    let scales = spread(b, scales, numbers, axes)?;
    b.binary(BinaryKind::Multiply, numbers, scales)
}

/// Broadcasts a tensor to the shape of `numbers`. The tensor has only the axes `axes` of `numbers`.
fn spread(b: &mut Builder<'_>, of: NodeId, numbers: NodeId, axes: Vec<usize>) -> Result<NodeId, InferError> {
    let shape = b.ty(numbers).shape.clone();
    b.op(BroadcastInDim { shape, axes }, &[of])
}
