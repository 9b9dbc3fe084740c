//! [`Packing`] is a kernel that prepares an operand for another kernel.

use ops::TensorType;

use crate::kernel::Kernel;

/// A kernel that converts some operands of a fused operation to the layout that the kernel of the
/// operation reads. The result replaces the first of these operands.
pub(crate) struct Packing<'a> {
    pub(crate) name: String,
    /// The tensor type of the result.
    pub(crate) ty: TensorType,
    /// The indices of the operands that the kernel reads.
    pub(crate) operands: Vec<usize>,
    pub(crate) kernel: Box<dyn FnOnce() -> Kernel + 'a>,
}
