//! The properties of an operation that other stages of the compiler need: its class, its cost, and its loops.

use crate::TensorType;

/// The class of an operation, which the cost model and reports use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpClass {
    /// The operation is a constant, which is known when Tracewright records the network.
    Constant,
    /// The operation computes each element, or each row, independently and does not sum over an axis.
    Elementwise,
    /// The operation only moves numbers in memory, and computes no new numbers.
    Movement,
    /// The operation computes a sum, a maximum or a norm along axes.
    Reduction,
    Matmul,
    Attention,
    /// The operation replaces a slice of the state that a layer keeps between calls.
    State,
}

/// How an operation reads a weight that the archive can store in another layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightUse {
    /// The operation multiplies operand 0 by a weight matrix, which is operand 1.
    Matmul,
    /// The operation selects rows of a weight matrix, which is operand 0.
    Rows,
    /// The operation multiplies operand 0 by a stack of weight matrices, which is operand 1.
    Stack,
}

#[derive(Clone, Copy, Debug)]
pub struct CostOperand<'a> {
    pub ty: &'a TensorType,
    /// Whether all elements of the operand are the same constant. A constant operand needs no memory.
    pub splat: bool,
}

/// The number of bytes and arithmetic operations that an operation needs, for a cost model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpWork {
    pub bytes: f64,
    /// The number of multiplications, additions and elementary functions.
    pub flops: f64,
    /// Kernel launches; a fraction if the compiler often fuses the operation with a neighbour.
    pub dispatches: f64,
}

impl OpWork {
    /// The result is a view, or recomputed wherever another operation reads it.
    pub const FREE: Self = Self { bytes: 0.0, flops: 0.0, dispatches: 0.0 };

    /// Returns the cost of an operation, if the compiler fuses it with the operation that reads its result.
    pub fn fused(flops: f64) -> Self {
        Self { flops, ..Self::FREE }
    }

    pub fn copy(ty: &TensorType) -> Self {
        Self { bytes: 2.0 * ty.bytes() as f64, flops: 0.0, dispatches: 0.2 }
    }

    /// The cost of an operation whose kernel reads each operand once and stores the result once.
    pub fn kernel(operands: &[CostOperand<'_>], ty: &TensorType, flops: f64) -> Self {
        let in_memory = operands.iter().filter(|operand| !operand.splat);
        let read: usize = in_memory.map(|operand| operand.ty.bytes()).sum();
        Self { bytes: (read + ty.bytes()) as f64, flops, dispatches: 1.0 }
    }

    /// Each element of the result is a sum of `contracted` products.
    pub fn matmul(operands: &[CostOperand<'_>], ty: &TensorType, contracted: usize) -> Self {
        Self::kernel(operands, ty, 2.0 * ty.count() as f64 * contracted as f64)
    }

    pub(crate) fn usual(class: OpClass, operands: &[CostOperand<'_>], ty: &TensorType) -> Self {
        let count = ty.count() as f64;
        let elements = |at: usize| operands[at].ty.count() as f64;
        match class {
            OpClass::Constant => Self::FREE,
            OpClass::Elementwise => Self::fused(count),
            OpClass::Movement => Self::copy(ty),
            OpClass::Reduction => Self::kernel(operands, ty, elements(0)),
            OpClass::Matmul => Self::matmul(operands, ty, operands[0].ty.shape.last().copied().unwrap_or(0)),
            // Attention has two matmuls over all keys: queries times keys, and softmax weights
            // times values.
            OpClass::Attention => {
                let keys = operands[1].ty.shape.iter().rev().nth(1).copied().unwrap_or(0);
                let flops = 2.0 * keys as f64 * (elements(0) + count);
                Self { dispatches: 2.0, ..Self::kernel(operands, ty, flops) }
            }
            OpClass::State => Self::copy(operands[1].ty),
        }
    }
}

/// The loops that compute an operation, and the loop for each axis of the operands and of the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IterationSpace {
    /// For each axis of each operand, its loop; `None` if the index along it is no loop's.
    pub operands: Vec<Vec<Option<usize>>>,
    /// For each axis of the result, the loop over this axis.
    pub result: Vec<Option<usize>>,
    /// The loops; one that belongs to no axis of the result is a sum.
    pub count: usize,
}

impl IterationSpace {
    pub fn of_result(operands: Vec<Vec<Option<usize>>>, ty: &TensorType) -> Self {
        Self { operands, result: same(ty.rank()), count: ty.rank() }
    }

    /// Every operand is read at the index of the result.
    pub fn aligned(operands: &[&TensorType], ty: &TensorType) -> Self {
        Self::of_result(operands.iter().map(|operand| same(operand.rank())).collect(), ty)
    }

    /// Like [`aligned`](Self::aligned), except that operands are read at other indices along `axis`.
    pub fn aligned_but(axis: usize, operands: &[&TensorType], ty: &TensorType) -> Self {
        let mut space = Self::aligned(operands, ty);
        // A slice also has an index as an operand, which has no axes.
        space.operands.iter_mut().filter_map(|axes| axes.get_mut(axis)).for_each(|at| *at = None);
        space
    }

    pub fn opaque(operands: &[&TensorType], ty: &TensorType) -> Self {
        Self::of_result(operands.iter().map(|operand| vec![None; operand.rank()]).collect(), ty)
    }
}

pub(crate) fn same(rank: usize) -> Vec<Option<usize>> {
    (0..rank).map(Some).collect()
}
