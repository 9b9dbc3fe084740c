//! The command line with IREE: from a model directory to text, to vectors, to an export, and what can go wrong on the way.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod advice_run;
mod bench;
mod bisect;
mod blocks;
mod chat;
mod compilers;
mod devices;
mod doctor;
#[cfg(unix)]
mod documents;
mod embed;
mod exports;
mod faults;
mod generate;
mod gguf;
mod hostile;
mod manual;
mod odd_files;
#[cfg(target_os = "linux")]
mod opens;
mod outputs;
#[cfg(unix)]
mod plugins;
mod profile;
mod prompts;
mod quality;
mod quantize;
mod sampling;
mod schemas;
mod sequences;
mod support;
mod templates;
mod tokenize;
mod transcribe;
mod tune;
mod verify;
mod windows;
mod writing;
mod xla_engine;
