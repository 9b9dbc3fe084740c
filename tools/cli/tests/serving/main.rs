//! `tracewright serve`, as clients use it.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod access;
mod adapters;
mod audio;
mod chat;
mod client;
mod clients;
mod config;
mod constraints;
mod continuing;
mod ends;
mod fields;
mod habits;
mod images;
mod infill;
mod interfaces;
mod load;
mod malformed;
mod nested;
mod ollama;
mod samplers;
mod stored;
#[path = "../support.rs"]
mod support;
mod tools;
mod xla;
