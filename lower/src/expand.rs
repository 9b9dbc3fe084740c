//! Every composite becomes what its implementation needs.

use trace::Trace;

use crate::LowerError;
use crate::convert::convert;
use crate::implementation::{Implementation, Implementations};
use crate::rewrite::{rewrite, rewrite_nodes};

/// The same program in primitives. Nodes that no result needs are left out.
///
/// # Errors
/// If a node's operands do not fit its operation: the trace was not verified.
pub fn expand(trace: &Trace) -> Result<Trace, LowerError> {
    rewrite(trace, convert)
}

impl Implementations<'_> {
    /// The same program in primitives, idioms and what kernels compute, its weights stored for that.
    ///
    /// # Errors
    /// If a node's operands do not fit its operation: the trace was not verified.
    pub fn expand(&self) -> Result<Trace, LowerError> {
        let expanded = rewrite_nodes(self.trace, |b, at, op, operands| match self.at(at) {
            Implementation::Kernel(None) => b.op(op.clone(), operands),
            Implementation::Kernel(Some(stored)) | Implementation::Grouped(stored) => {
                stored.compute(b, operands, self.activations)
            }
            Implementation::Idiom(idiom) => b.op(idiom.clone(), operands),
            Implementation::StableHlo => convert(b, op, operands),
        })?;
        // Without the weights as they were.
        if self.stores() {
            rewrite(&expanded, |b, op, operands| b.op(op.clone(), operands))
        } else {
            Ok(expanded)
        }
    }
}
