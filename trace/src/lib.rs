//! A program is a DAG of ops.
