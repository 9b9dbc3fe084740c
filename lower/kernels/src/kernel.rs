//! [`Kernel`] is code that a module can call by name.

use std::ops::Range;

use crate::code::{Code, Functions, Value};

/// Code that a module can call by name.
pub(crate) struct Kernel {
    pub(crate) bindings: usize,
    /// The parts of the kernel's work. A machine can have fewer worker threads.
    pub(crate) workgroups: usize,
    pub(crate) body: String,
    pub(crate) functions: Functions,
}

pub(crate) fn new(bindings: usize, workgroups: usize, write: impl FnOnce(&Code)) -> Kernel {
    let code = Code::new();
    write(&code);
    let (body, functions) = code.into_text();
    Kernel { bindings, workgroups, body, functions }
}

/// The part of 0 … `count` that the current workgroup computes.
pub(crate) fn share(code: &Code, count: usize, workgroups: usize) -> Range<Value<'_>> {
    let start = code.workgroup() * count.div_ceil(workgroups);
    let end = start + count.div_ceil(workgroups);
    start..end.min(code.index(count))
}
