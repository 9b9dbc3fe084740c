//! Tables with a row for each position.

use std::panic::Location;

use crate::{Dim, TraceErrorKind, tracer};

/// Fails unless a table with these rows has one for each of `context` positions. What looks up a position beyond the
/// last row would get the last one, without a word.
#[track_caller]
pub fn positions_within(rows: Dim, context: usize) {
    let place = Location::caller();
    if rows.extent < context {
        tracer::with(|t| t.fail(TraceErrorKind::Positions { rows, context }, place));
    }
}
