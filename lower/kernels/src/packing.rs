//! [`Packing`] is a kernel that prepares an operand for another kernel.

use ops::TensorType;

use crate::kernel::Kernel;

/// Converts operands of a fused operation to its kernel's layout. The result replaces the first of them.
pub(crate) struct Packing<'a> {
    pub(crate) name: String,
    pub(crate) ty: TensorType,
    /// The indices of the operands that the kernel reads.
    pub(crate) operands: Vec<usize>,
    pub(crate) kernel: Box<dyn FnOnce() -> Kernel + 'a>,
}
