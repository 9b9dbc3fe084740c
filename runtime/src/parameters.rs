//! [`Parameters`] are named weights that a program reads in place.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that stay at their address as long as a reference exists: a mapped file, or a vector.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The alignment in memory, in bytes, that lets IREE use a parameter in place.
pub const PARAMETER_ALIGNMENT: usize = 64;

/// One scope of named parameters in shared bytes.
///
/// IREE uses an entry in place if its address is a multiple of [`PARAMETER_ALIGNMENT`] bytes, and copies the
/// entry otherwise. The bytes are released together with the last program and buffer that use them.
#[derive(Clone)]
pub struct Parameters {
    /// The name of the scope, as in `#flow.parameter.named<"scope"::"name">`.
    pub scope: String,
    /// The bytes that contain the ranges of all parameters.
    pub bytes: SharedBytes,
    pub entries: BTreeMap<String, ParameterData>,
}

/// The content of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParameterData {
    Range(Range<usize>),
    /// A repeated pattern, which replaces missing weights.
    Splat {
        length: u64,
        /// The pattern, of 1, 2, 4, 8 or 16 bytes.
        pattern: Vec<u8>,
    },
}

impl Parameters {
    /// The entries that IREE copies because they are not aligned to [`PARAMETER_ALIGNMENT`] bytes.
    pub fn misaligned(&self) -> impl Iterator<Item = &str> {
        let base = (*self.bytes).as_ref().as_ptr() as usize;
        self.entries.iter().filter_map(move |(name, entry)| match entry {
            ParameterData::Range(range) if base.wrapping_add(range.start) % PARAMETER_ALIGNMENT != 0 => {
                Some(name.as_str())
            }
            _ => None,
        })
    }
}
