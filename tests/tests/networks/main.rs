//! Tests of whole networks. They are one program, because each program links Tracewright and IREE.
//! `cargo xtask test` runs each module in its own process.

mod batch;
mod bounded;
mod crossing;
mod early;
mod embedding;
mod encoder_decoder;
mod encoders;
mod families;
mod fingerprints;
mod folders;
mod footprint;
mod gguf;
mod gguf_keys;
mod kv;
mod long;
mod lora;
mod lora_requests;
mod machines;
mod minilm;
mod mixed;
mod model;
mod mtp;
mod mxfp4;
mod own_architecture;
mod parity;
mod precision;
mod quantized;
mod real_models;
mod roles;
mod rows;
mod same_bits;
mod schedules;
mod skeleton;
mod state;
#[path = "../support/mod.rs"]
mod support;
mod text_encoders;
mod token_exact;
mod tuning;
mod whisper;
mod windows;
mod wrong_folders;
