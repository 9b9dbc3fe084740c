//! Expands composites, as the implementation of each node requires.

use trace::Trace;

use crate::LowerError;
use crate::convert::convert;
use crate::implementation::{Implementation, Implementations};
use crate::rewrite::{rewrite, rewrite_nodes};

/// The same program in primitives. Nodes that no result needs are removed.
///
/// # Errors
/// If an operation rejects its operands, which means that the trace was not verified.
pub fn expand(trace: &Trace) -> Result<Trace, LowerError> {
    rewrite(trace, convert)
}

impl Implementations<'_> {
    /// The same program in primitives, idioms and operations of kernels, with weights in the corresponding
    /// layouts.
    ///
    /// # Errors
    /// If an operation rejects its operands, which means that the trace was not verified.
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
