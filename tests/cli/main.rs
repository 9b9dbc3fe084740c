//! The command line with IREE: from a model directory to text, to an export, and what can go wrong on the way.

mod compilers;
mod exports;
mod generate;
mod prompts;
mod support;
