//! Compile a module and call it through IREE.
