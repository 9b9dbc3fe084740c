//! Tests of baking. They are one program, because linking takes longer than compiling most of them.

mod finite;
mod mismatches;
mod quantize;
mod recipes;
