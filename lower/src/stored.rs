//! Builds operations that read weights in a special memory layout.

use ops::format::{ActivationBits, GroupPart};
use ops::ops::{
    BinaryKind, BroadcastInDim, GroupedLinear, GroupedRows, Pack, PackedLinear, PackedRows, Quantize,
};
use ops::{ElementType, InferError, WeightFormat};
use trace::{Builder, NodeId, Parameter};

use crate::convert::{convert, grouped};
use crate::derive::{from_recipe, step};
use crate::implementation::{StoredWeight, WeightReader};
use crate::layout::WeightLayout;
use crate::quantized::QuantizedMatmul;

impl StoredWeight {
    /// Builds the operation that reads a weight from its special memory layout.
    pub(crate) fn compute(
        &self,
        b: &mut Builder<'_>,
        operands: &[NodeId],
        matmul: QuantizedMatmul,
    ) -> Result<NodeId, InferError> {
        match &self.reader {
            WeightReader::Matmul(parameter) => linear(b, (self.layout, matmul), parameter, operands),
            WeightReader::Rows(parameter) => rows(b, (self.layout, matmul), parameter, operands[1]),
            WeightReader::Experts(experts) => {
                let format = self.layout.format();
                experts.product(b, (format, activations_for(format, matmul)), operands)
            }
        }
    }
}

/// Only weights of integers are multiplied with quantized activations.
fn activations_for(format: WeightFormat, matmul: QuantizedMatmul) -> ActivationBits {
    if format.groups().is_some() { matmul.activations() } else { ActivationBits::default() }
}

fn packed(b: &mut Builder<'_>, format: WeightFormat, parameter: &Parameter) -> Result<NodeId, InferError> {
    from_recipe(b, parameter.key.clone(), parameter, |matrix| step(Pack { format }, matrix))
}

/// Returns the tensors that contain a parameter in a format with groups. The tensor that contains
/// the integers of the weight has the same key as the parameter.
fn parts(
    b: &mut Builder<'_>,
    format: WeightFormat,
    parameter: &Parameter,
) -> Result<Vec<NodeId>, InferError> {
    let key = &parameter.key;
    let mut part = |&part: &GroupPart| {
        let key = if part == GroupPart::Integers { key.clone() } else { format!("{key}.{}", part.word()) };
        from_recipe(b, key, parameter, |matrix| step(Quantize { format, part }, matrix))
    };
    format.parts().iter().map(&mut part).collect()
}

/// Builds a matmul and the addition of its bias; the program rounds the result only once, after the addition.
fn linear(
    b: &mut Builder<'_>,
    (layout, matmul): (WeightLayout, QuantizedMatmul),
    parameter: &Parameter,
    operands: &[NodeId],
) -> Result<NodeId, InferError> {
    let (x, outputs) = (operands[0], parameter.ty.shape[0]);
    let narrow = b.ty(x).element;
    let product = |b: &mut Builder<'_>, element| match layout {
        WeightLayout::Packed(format) => {
            let packed = packed(b, format, parameter)?;
            let activations = activations_for(format, matmul);
            b.op(PackedLinear { format, outputs, element, activations }, &[x, packed])
        }
        WeightLayout::Grouped(format) => {
            let operands = [vec![x], parts(b, format, parameter)?].concat();
            match matmul {
                QuantizedMatmul::Rounded(activations) => {
                    convert(b, &GroupedLinear { format, element, activations }.into(), &operands)
                }
                QuantizedMatmul::InXla { fused_rows } => {
                    grouped::linear_in_xla(b, (format, element, fused_rows), &operands)
                }
            }
        }
    };
    let Some(&bias) = operands.get(2) else { return product(b, narrow) };
    let sum = product(b, ElementType::F32)?;
    let bias = b.convert(bias, ElementType::F32)?;
    let shape = b.ty(sum).shape.clone();
    let last = shape.len() - 1;
    let bias = b.op(BroadcastInDim { shape, axes: vec![last] }, &[bias])?;
    let sum = b.binary(BinaryKind::Add, sum, bias)?;
    b.convert(sum, narrow)
}

fn rows(
    b: &mut Builder<'_>,
    (layout, matmul): (WeightLayout, QuantizedMatmul),
    parameter: &Parameter,
    indices: NodeId,
) -> Result<NodeId, InferError> {
    let [outputs, inputs] = parameter.ty.shape[..] else { unreachable!("a matrix is stored") };
    let element = parameter.ty.element;
    match layout {
        WeightLayout::Packed(format) => {
            let packed = packed(b, format, parameter)?;
            b.op(PackedRows { format, outputs, inputs, element }, &[packed, indices])
        }
        WeightLayout::Grouped(format) => {
            let operands = [parts(b, format, parameter)?, vec![indices]].concat();
            let op = GroupedRows { format, inputs, element };
            match matmul {
                QuantizedMatmul::Rounded(_) => convert(b, &op.into(), &operands),
                QuantizedMatmul::InXla { .. } => grouped::rows_in_xla(b, &op, &operands),
            }
        }
    }
}
