//! What an operation costs on a machine: a roofline.

use ops::ops::Linear;
use ops::{Op, TensorType};
use targets::Machine;

/// What something costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Bytes read and written.
    pub bytes: f64,
    /// Multiplications, additions and elementary functions.
    pub flops: f64,
    /// Seconds.
    pub seconds: f64,
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.flops += other.flops;
        self.seconds += other.seconds;
    }
}

/// What an operation reads.
#[derive(Clone, Copy, Debug)]
pub struct CostOperand<'a> {
    /// Its type.
    pub ty: &'a TensorType,
    /// Whether all its elements are one constant: it is not in memory.
    pub splat: bool,
}

/// What one more statement of the module costs if it costs nothing else, so that fewer are better.
const STATEMENT: f64 = 1e-9;

/// What an operation costs that reads these operands.
pub fn cost(machine: &Machine, op: &Op, operands: &[CostOperand<'_>], ty: &TensorType) -> Cost {
    let count = ty.count() as f64;
    let size = |ty: &TensorType| ty.bytes() as f64;
    let read: f64 = operands.iter().filter(|operand| !operand.splat).map(|operand| size(operand.ty)).sum();
    let elements = |at: usize| operands[at].ty.count() as f64;
    // Bytes, operations, dispatches.
    let (bytes, flops, dispatches) = match op {
        Op::Constant(constant) => match constant.value.as_splat() {
            Some(_) => (0.0, 0.0, 0.0),
            None => (size(ty), 0.0, 0.0),
        },
        // Views, and what a compiler computes where it is used.
        Op::Reshape(_) | Op::Iota(_) | Op::Narrow(_) | Op::BroadcastInDim(_) => (0.0, 0.0, 0.0),
        Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select(_) => (0.0, count, 0.0),
        Op::Convert(_) | Op::ReducePrecision(_) | Op::Dequantize(_) => (0.0, count, 0.0),
        Op::Erf(_) => (0.0, 40.0 * count, 0.0),
        // What is before it is not fused with what is after it.
        Op::OptimizationBarrier(_) => (2.0 * size(ty), 0.0, 0.2),
        Op::Permute(_) | Op::Concatenate(_) | Op::Gather(_) | Op::DynamicSlice(_) => {
            (2.0 * size(ty), 0.0, 0.2)
        }
        Op::DynamicUpdateSlice(_) | Op::Append(_) | Op::SlicedAppend(_) => {
            (2.0 * size(operands[1].ty), 0.0, 0.2)
        }
        Op::DotGeneral(dot) => {
            let contracted: usize =
                dot.left_contract.iter().map(|&axis| operands[0].ty.shape[axis]).product();
            (read + size(ty), 2.0 * count * contracted as f64, 1.0)
        }
        Op::Linear(Linear {}) => {
            let contracted = operands[1].ty.shape[1];
            (read + size(ty), 2.0 * count * contracted as f64, 1.0)
        }
        Op::PackedLinear(_) | Op::GroupedLinear(_) => {
            let contracted = operands[0].ty.shape.last().copied().unwrap_or(0);
            (read + size(ty), 2.0 * count * contracted as f64, 1.0)
        }
        // Of those that are chosen, one for each row is read.
        Op::PackedExperts(experts) => {
            let contracted = operands[0].ty.shape.last().copied().unwrap_or(0);
            let rows = ty.count() / experts.outputs.max(1);
            let matrices = size(operands[1].ty) * rows.min(experts.experts) as f64 / experts.experts as f64;
            (matrices + size(operands[0].ty) + size(ty), 2.0 * count * contracted as f64, 1.0)
        }
        // Only its rows are read; an archive's recipe costs nothing when the program runs.
        Op::PackedRows(_) | Op::GroupedRows(_) => (2.0 * size(ty), 0.0, 0.2),
        Op::Pack(_) | Op::Quantize(_) => (0.0, 0.0, 0.0),
        Op::Reduce(_) => (read + size(ty), elements(0), 1.0),
        Op::RmsNorm(_) => (read + size(ty), 4.0 * count, 1.0),
        Op::Rope(_) => (read + size(ty), 3.0 * count, 0.2),
        // Queries times keys, and what they weigh times values: both over all keys.
        Op::Sdpa(_) | Op::BoundedSdpa(_) => {
            let keys = operands[1].ty.shape.iter().rev().nth(1).copied().unwrap_or(0);
            (read + size(ty), 2.0 * keys as f64 * (elements(0) + count), 2.0)
        }
    };
    let seconds =
        (bytes / machine.bandwidth).max(flops / machine.flops) + dispatches * machine.dispatch + STATEMENT;
    Cost { bytes, flops, seconds }
}
