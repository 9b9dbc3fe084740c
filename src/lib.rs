//! Tracewright.
