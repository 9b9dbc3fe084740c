//! A roofline model of an operation's cost on a machine.

use ops::{CostOperand, Op, OpWork, TensorType};
use targets::Machine;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    pub bytes: f64,
    /// Multiplications, additions and elementary functions.
    pub flops: f64,
    pub seconds: f64,
}

impl std::ops::AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.flops += other.flops;
        self.seconds += other.seconds;
    }
}

/// Seconds added to each operation, so that of two equally fast programs the smaller one wins.
const STATEMENT: f64 = 1e-9;

pub fn cost(machine: &Machine, op: &Op, operands: &[CostOperand<'_>], ty: &TensorType) -> Cost {
    let OpWork { bytes, flops, dispatches } = op.work(operands, ty);
    let seconds =
        (bytes / machine.bandwidth).max(flops / machine.flops) + dispatches * machine.dispatch + STATEMENT;
    Cost { bytes, flops, seconds }
}
