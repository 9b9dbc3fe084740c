//! What an operation costs on a machine: a roofline.

use ops::{CostOperand, Op, OpWork, TensorType};
use targets::Machine;

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

/// What one more statement of the module costs if it costs nothing else, so that fewer are better.
const STATEMENT: f64 = 1e-9;

/// What an operation costs that reads these operands.
pub fn cost(machine: &Machine, op: &Op, operands: &[CostOperand<'_>], ty: &TensorType) -> Cost {
    let OpWork { bytes, flops, dispatches } = op.work(operands, ty);
    let seconds =
        (bytes / machine.bandwidth).max(flops / machine.flops) + dispatches * machine.dispatch + STATEMENT;
    Cost { bytes, flops, seconds }
}
