//! Code that a module calls by its name.

use std::ops::Range;

use crate::code::{Code, Value};

/// Code that a module calls by its name.
pub(crate) struct Kernel {
    pub(crate) bindings: usize,
    /// Into how many parts the work is cut. There may be fewer workers.
    pub(crate) workgroups: usize,
    pub(crate) body: String,
}

/// A kernel from what it does.
pub(crate) fn new(bindings: usize, workgroups: usize, write: impl FnOnce(&Code)) -> Kernel {
    let code = Code::new();
    write(&code);
    Kernel { bindings, workgroups, body: code.into_text() }
}

/// The part of 0 … `count` that is this workgroup's.
pub(crate) fn share(code: &Code, count: usize, workgroups: usize) -> Range<Value<'_>> {
    let start = code.workgroup() * count.div_ceil(workgroups);
    let end = start + count.div_ceil(workgroups);
    start..end.min(code.index(count))
}
