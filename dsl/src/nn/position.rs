//! Where new tokens stand.

use crate::argument::trace_arg;
use crate::element::{Bool, Element, I32};
use crate::{Axis, Tensor};

/// Which positions an entry point computes: of each row, `count` real tokens from position `start` on.
///
/// For a single row both are `[]`; for several, each row stands where it stands, and both are `[B]`.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// The position of the first token.
    pub start: Tensor<I32>,
    /// How many of the tokens are real; the rest pads the chunk.
    pub count: Tensor<I32>,
}

trace_arg!(Position { start, count });

impl Position {
    /// Whether each row has a position of its own.
    #[track_caller]
    pub(super) fn is_by_row(self) -> bool {
        !self.start.dims(std::panic::Location::caller()).is_empty()
    }

    /// The positions of `length` tokens on the axis `tokens`: `[S]`, or `[B, S]` where rows stand apart.
    #[track_caller]
    pub fn positions(self, tokens: Axis, length: usize) -> Tensor<I32> {
        Tensor::iota(tokens, length).outer(self.start, |token, start| token + start)
    }

    /// Whether each of `length` tokens on the axis `tokens` is real: `[S]`, or `[B, S]` where rows stand apart. Whoever writes a
    /// state without `append` passes over the others.
    #[track_caller]
    pub fn real(self, tokens: Axis, length: usize) -> Tensor<Bool> {
        Tensor::iota(tokens, length).outer(self.count, |token, count| token.less(count))
    }

    /// The rows of `table` for the positions of `length` tokens; its first axis, of the name `tokens`, counts
    /// positions. `[S, …]`, or `[B, S, …]` where rows stand apart.
    #[track_caller]
    pub fn pick<T: Element>(self, table: Tensor<T>, tokens: Axis, length: usize) -> Tensor<T> {
        match (self.is_by_row(), length) {
            (false, 1) => table.dynamic_narrow(tokens, self.start, length),
            // Near the end of the context a chunk's padding stands past the table: each index is clamped by itself.
            _ => table.rows(self.positions(tokens, length)),
        }
    }
}
