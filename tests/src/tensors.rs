//! Tensors of a safetensors file that a reference wrote.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use safetensors::SafeTensors;

fn words(file: &[u8], name: &str) -> Vec<[u8; 4]> {
    SafeTensors::deserialize(file).unwrap().tensor(name).unwrap().data().as_chunks().0.to_vec()
}

/// Token ids, of four bytes each.
///
/// # Panics
/// If there is no such tensor.
pub fn tokens(file: &[u8], name: &str) -> Vec<u32> {
    words(file, name).into_iter().map(u32::from_le_bytes).collect()
}

/// Numbers in f32.
///
/// # Panics
/// If there is no such tensor.
pub fn floats(file: &[u8], name: &str) -> Vec<f32> {
    words(file, name).into_iter().map(f32::from_le_bytes).collect()
}
