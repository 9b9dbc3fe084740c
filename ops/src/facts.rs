//! Facts about an operation that other stages need: its class, its cost, and its loops.

use crate::TensorType;

/// The class of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpClass {
    /// A value that is known when the network is recorded.
    Constant,
    /// The operation computes each element, or each row without a sum.
    Elementwise,
    /// The operation moves numbers and computes none.
    Movement,
    /// The operation is a sum, a maximum or a norm over axes.
    Reduction,
    Matmul,
    Attention,
    /// The operation writes a part of a state.
    State,
}

/// How an operation reads a weight that can be stored in another layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightUse {
    /// The operation multiplies with the matrix in operand 1.
    Matmul,
    /// The operation selects rows of operand 0.
    Rows,
    /// The operation multiplies with the stacked matrices in operand 1.
    Stack,
}

/// An operand, as the cost model needs it.
#[derive(Clone, Copy, Debug)]
pub struct CostOperand<'a> {
    pub ty: &'a TensorType,
    /// Whether all elements have one constant value, which needs no memory.
    pub splat: bool,
}

/// The number of bytes and arithmetic operations of an operation, for a cost model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpWork {
    pub bytes: f64,
    /// The number of multiplications, additions and elementary functions.
    pub flops: f64,
    /// The number of kernel launches. The number is a fraction if the compiler often fuses the operation with
    /// a neighbour.
    pub dispatches: f64,
}

impl OpWork {
    /// The cost of an operation that needs no work: a view, or a value that the compiler recomputes where it
    /// is used.
    pub const FREE: Self = Self { bytes: 0.0, flops: 0.0, dispatches: 0.0 };

    /// The cost of an operation that the compiler fuses with the operation that reads its result.
    pub fn fused(flops: f64) -> Self {
        Self { flops, ..Self::FREE }
    }

    /// The cost of reading and writing a value.
    pub fn copy(ty: &TensorType) -> Self {
        Self { bytes: 2.0 * ty.bytes() as f64, flops: 0.0, dispatches: 0.2 }
    }

    /// The cost of a kernel that reads all operands and writes the result.
    pub fn kernel(operands: &[CostOperand<'_>], ty: &TensorType, flops: f64) -> Self {
        let in_memory = operands.iter().filter(|operand| !operand.splat);
        let read: usize = in_memory.map(|operand| operand.ty.bytes()).sum();
        Self { bytes: (read + ty.bytes()) as f64, flops, dispatches: 1.0 }
    }

    /// The cost of a matmul that sums over this many terms.
    pub fn matmul(operands: &[CostOperand<'_>], ty: &TensorType, contracted: usize) -> Self {
        Self::kernel(operands, ty, 2.0 * ty.count() as f64 * contracted as f64)
    }

    /// The default cost of an operation of this class.
    pub(crate) fn usual(class: OpClass, operands: &[CostOperand<'_>], ty: &TensorType) -> Self {
        let count = ty.count() as f64;
        let elements = |at: usize| operands[at].ty.count() as f64;
        match class {
            OpClass::Constant => Self::FREE,
            OpClass::Elementwise => Self::fused(count),
            OpClass::Movement => Self::copy(ty),
            OpClass::Reduction => Self::kernel(operands, ty, elements(0)),
            OpClass::Matmul => Self::matmul(operands, ty, operands[0].ty.shape.last().copied().unwrap_or(0)),
            // Queries times keys, and their weights times values: both over all keys.
            OpClass::Attention => {
                let keys = operands[1].ty.shape.iter().rev().nth(1).copied().unwrap_or(0);
                let flops = 2.0 * keys as f64 * (elements(0) + count);
                Self { dispatches: 2.0, ..Self::kernel(operands, ty, flops) }
            }
            OpClass::State => Self::copy(operands[1].ty),
        }
    }
}

/// The iteration space of an operation: numbered loops, and the loop of each axis of the operands and the
/// result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IterationSpace {
    /// For each operand, the loop of each axis; `None` if the operation reads along an axis in another way.
    pub operands: Vec<Vec<Option<usize>>>,
    /// For each axis of the result, the loop of this axis.
    pub result: Vec<Option<usize>>,
    /// The number of loops. The operation sums over loops that have no axis in the result.
    pub count: usize,
}

impl IterationSpace {
    /// Creates a loop for each axis of the result, and assigns the given loops to the operands.
    pub fn of_result(operands: Vec<Vec<Option<usize>>>, ty: &TensorType) -> Self {
        Self { operands, result: same(ty.rank()), count: ty.rank() }
    }

    /// An iteration space in which every operand is read at the index at which the result is written.
    pub fn aligned(operands: &[&TensorType], ty: &TensorType) -> Self {
        Self::of_result(operands.iter().map(|operand| same(operand.rank())).collect(), ty)
    }

    /// Like [`aligned`](Self::aligned), except for one axis, along which the operation reads other elements.
    pub fn aligned_but(axis: usize, operands: &[&TensorType], ty: &TensorType) -> Self {
        let mut space = Self::aligned(operands, ty);
        // An index, as a slice has it, has no axes.
        space.operands.iter_mut().filter_map(|axes| axes.get_mut(axis)).for_each(|at| *at = None);
        space
    }

    /// An iteration space for operations whose operands' axes have no known loops.
    pub fn opaque(operands: &[&TensorType], ty: &TensorType) -> Self {
        Self::of_result(operands.iter().map(|operand| vec![None; operand.rank()]).collect(), ty)
    }
}

/// For each axis, the loop with the same index.
pub(crate) fn same(rank: usize) -> Vec<Option<usize>> {
    (0..rank).map(Some).collect()
}
