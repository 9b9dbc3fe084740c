//! Facts of an operation that stages other than its own ask for: its class, its work, the loops it runs over.

use crate::TensorType;

/// What kind of operation it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpClass {
    /// A value that is known when the network is recorded.
    Constant,
    /// Element by element, or row by row without a sum.
    Elementwise,
    /// Moves numbers and computes none.
    Movement,
    /// A sum, a maximum or a norm over axes.
    Reduction,
    Matmul,
    Attention,
    /// Writes a part of a state.
    State,
}

/// How an operation reads a weight that may be stored in another layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightUse {
    /// It multiplies with the matrix that is operand 1.
    Matmul,
    /// It picks rows of operand 0.
    Rows,
    /// It multiplies with the matrices of a stack, operand 1.
    Stack,
}

/// An operand, as far as it costs something to read it.
#[derive(Clone, Copy, Debug)]
pub struct CostOperand<'a> {
    pub ty: &'a TensorType,
    /// Whether all its elements are one constant: it is not in memory.
    pub splat: bool,
}

/// What an operation asks of a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpWork {
    /// Bytes read and written.
    pub bytes: f64,
    /// Multiplications, additions and elementary functions.
    pub flops: f64,
    /// Kernel launches; a part of one where the compiler often fuses it with a neighbour.
    pub dispatches: f64,
}

impl OpWork {
    /// A view, or what a compiler computes where it is used.
    pub const FREE: Self = Self { bytes: 0.0, flops: 0.0, dispatches: 0.0 };

    /// Computed where it is used.
    pub fn fused(flops: f64) -> Self {
        Self { flops, ..Self::FREE }
    }

    /// Reads and writes this value.
    pub fn copy(ty: &TensorType) -> Self {
        Self { bytes: 2.0 * ty.bytes() as f64, flops: 0.0, dispatches: 0.2 }
    }

    /// A kernel of its own, which reads all operands and writes the result.
    pub fn kernel(operands: &[CostOperand<'_>], ty: &TensorType, flops: f64) -> Self {
        let in_memory = operands.iter().filter(|operand| !operand.splat);
        let read: usize = in_memory.map(|operand| operand.ty.bytes()).sum();
        Self { bytes: (read + ty.bytes()) as f64, flops, dispatches: 1.0 }
    }

    /// A matmul whose sums have this many terms.
    pub fn matmul(operands: &[CostOperand<'_>], ty: &TensorType, contracted: usize) -> Self {
        Self::kernel(operands, ty, 2.0 * ty.count() as f64 * contracted as f64)
    }

    /// That of an operation of this class, unless its file says more.
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

/// The loops around an operation, as indices: which axes of its operands and of its result each runs over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IterationSpace {
    /// Of each operand the loop of each axis; none where the operation reads along it in another way.
    pub operands: Vec<Vec<Option<usize>>>,
    /// Of each axis of the result the loop.
    pub result: Vec<Option<usize>>,
    /// How many loops there are. The operation sums over those that are none of the result's.
    pub count: usize,
}

impl IterationSpace {
    /// A loop for each axis of the result, and these of the operands.
    pub fn of_result(operands: Vec<Vec<Option<usize>>>, ty: &TensorType) -> Self {
        Self { operands, result: same(ty.rank()), count: ty.rank() }
    }

    /// Each operand is read as the result is written.
    pub fn aligned(operands: &[&TensorType], ty: &TensorType) -> Self {
        Self::of_result(operands.iter().map(|operand| same(operand.rank())).collect(), ty)
    }

    /// The same, but for one axis along which other elements are read.
    pub fn aligned_but(axis: usize, operands: &[&TensorType], ty: &TensorType) -> Self {
        let mut space = Self::aligned(operands, ty);
        // An index, as a slice has it, has no axes.
        space.operands.iter_mut().filter_map(|axes| axes.get_mut(axis)).for_each(|at| *at = None);
        space
    }

    /// Nothing is known of the operands' axes.
    pub fn opaque(operands: &[&TensorType], ty: &TensorType) -> Self {
        Self::of_result(operands.iter().map(|operand| vec![None; operand.rank()]).collect(), ty)
    }
}

/// Each axis is the loop of its own number.
pub(crate) fn same(rank: usize) -> Vec<Option<usize>> {
    (0..rank).map(Some).collect()
}
