//! Expands each composite operation with the implementation that Tracewright selected for its node.

use trace::Trace;

use crate::LowerError;
use crate::convert::convert;
use crate::implementation::{Implementation, Implementations};
use crate::rewrite::{rewrite, rewrite_nodes};

/// Returns an equivalent program that contains only primitive operations. The function removes
/// nodes that no result of the program needs.
///
/// # Errors
/// Returns an error if an operation of the trace rejects its operands. A verified trace never
/// causes this error.
pub fn expand(trace: &Trace) -> Result<Trace, LowerError> {
    rewrite(trace, convert)
}

impl Implementations<'_> {
    /// Returns an equivalent program that contains primitive operations, idioms (operations in
    /// IREE's own dialects) and kernel operations. The weights of the returned program have the
    /// layouts that kernels and other operations read.
    ///
    /// # Errors
    /// Returns an error if an operation of the trace rejects its operands. A verified trace never
    /// causes this error.
    pub fn expand(&self) -> Result<Trace, LowerError> {
        let expanded = rewrite_nodes(self.trace, |b, at, op, operands| match self.at(at) {
            Implementation::Kernel(None) => b.op(op.clone(), operands),
            Implementation::Kernel(Some(stored)) | Implementation::Grouped(stored) => {
                stored.compute(b, operands, self.quantized)
            }
            Implementation::Idiom(idiom) => b.op(idiom.clone(), operands),
            Implementation::StableHlo => convert(b, op, operands),
        })?;
        // This rewrite removes the original weights, which no operation reads any more.
        if self.stores() {
            rewrite(&expanded, |b, op, operands| b.op(op.clone(), operands))
        } else {
            Ok(expanded)
        }
    }
}
