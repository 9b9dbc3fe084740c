//! Tests of generation. They are one program, because linking takes longer than compiling most of them.

mod constraint;
mod declared_tokens;
mod demo_text;
mod extended;
mod generation_config;
mod gguf_ends;
mod prefixes;
mod saved;
mod schedule;
mod schemas;
mod speculation;
#[path = "../support/mod.rs"]
mod support;
