//! Tests of traces. They are one program, because linking takes longer than compiling most of them.

mod inline;
mod random;
mod sound;
mod text;
mod variants;
