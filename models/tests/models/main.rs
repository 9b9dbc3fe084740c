//! Tests of the families. They are one program, because linking takes longer than compiling most of them.

mod base;
mod config;
mod declared;
mod documents;
mod embedding_gemma;
mod families;
mod gemma3;
mod gguf;
mod gguf_split;
mod goldens;
mod keys;
mod llama;
mod lora;
mod mtp;
mod rope;
#[path = "../support/mod.rs"]
mod support;
