//! Tests of operations, of rewrites and of lowered text. They are one program, because each program links Tracewright and IREE.
//! `cargo xtask test` runs each module in its own process.

mod bisect;
mod composites;
mod differential;
mod functions;
mod irpa_tools;
mod kernels;
mod legalizations;
mod lowered_iree;
mod manifest;
mod module_text;
mod ops_iree;
mod planted_faults;
mod security;
mod simplify;
mod simplify_graphs;
mod simplify_recipes;
mod simplify_rules;
#[path = "../support/mod.rs"]
mod support;
