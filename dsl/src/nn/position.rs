//! [`Position`] contains the positions of a call's new tokens in their sequences.

use std::panic::Location;

use crate::argument::trace_arg;
use crate::element::{Bool, Element, I32};
use crate::tracer::{self, Raw};
use crate::{Axis, Tensor};

/// The positions that one call of an entry point computes. For each sequence, the call computes
/// `count` real tokens from position `start` on.
///
/// For a single sequence, `start` and `count` have the shape `[]`. For several sequences, `start` and `count`
/// have the shape `[B]`, because each sequence has its own position.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// The position of the call's first token in its sequence, from 0.
    pub start: Tensor<I32>,
    /// The number of real tokens. All later tokens of the call are padding.
    pub count: Tensor<I32>,
}

trace_arg!(Position { start, count });

impl Position {
    #[track_caller]
    pub(super) fn is_by_row(self) -> bool {
        !self.start.dims(Location::caller()).is_empty()
    }

    /// `[S]`, or `[B, S]` if sequences have different positions.
    #[track_caller]
    pub fn positions(self, tokens: Axis, length: usize) -> Tensor<I32> {
        Tensor::iota(tokens, length).outer(self.start, |token, start| token + start)
    }

    /// `[S]`, or `[B, S]` if positions differ. State that is written without `append` must skip padding.
    #[track_caller]
    pub fn real(self, tokens: Axis, length: usize) -> Tensor<Bool> {
        Tensor::iota(tokens, length).outer(self.count, |token, count| token.less(count))
    }

    /// Whether each sequence has more than `original` tokens in all: `[]`, or `[B]` if sequences have
    /// different positions. The entry point gets an argument with the role
    /// [`Role::Extended`](trace::Role::Extended), because a call cannot know the tokens of later
    /// calls. Call this function outside of block arrays.
    #[track_caller]
    pub fn extended(self, original: usize) -> Tensor<Bool> {
        let place = Location::caller();
        let rows = self.start.dims(place);
        let argument = tracer::with(|t| t.extended(original, &rows, place));
        Tensor::<I32>::new(argument.unwrap_or(Raw::POISON)).equals(1.0)
    }

    /// Selects the row of `table` for each position of `length` tokens. The first axis of the table
    /// is the position. The result is `[S, …]`, or `[B, S, …]` if sequences have different
    /// positions. In the result's shape, S is the axis `tokens`.
    #[track_caller]
    pub fn pick<T: Element>(self, table: Tensor<T>, tokens: Axis, length: usize) -> Tensor<T> {
        match (self.is_by_row(), length) {
            (false, 1) => table.dynamic_narrow(tokens, self.start, length),
            // Padding can lie after the last row of the table. Each index is clamped separately.
            _ => table.rows(self.positions(tokens, length)),
        }
    }
}
