//! Checks tables that have a row for each position, such as learned position embeddings.

use std::panic::Location;

use crate::{Dim, TraceErrorKind, tracer};

/// An unchecked lookup beyond the table would silently return its last row.
#[track_caller]
pub fn positions_within(rows: Dim, context: usize) {
    let place = Location::caller();
    if rows.extent < context {
        tracer::with(|t| t.fail(TraceErrorKind::Positions { rows, context }, place));
    }
}
