//! Tests of archives and checkpoints. They are one program, because linking takes longer than compiling most of them.

mod archive;
mod checkpoint;
mod convert;
mod gguf;
