//! `tracewright serve`, as clients use it.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod chat;
mod client;
mod ends;
#[path = "../support.rs"]
mod support;
