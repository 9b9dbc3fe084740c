//! [`Parameters`]: named weights that a program reads in place.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that stay in place as long as a reference exists: a mapped file, or a vector.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The alignment in memory that a parameter needs to be used in place, in bytes.
pub const PARAMETER_ALIGNMENT: usize = 64;

/// One scope of named parameters in shared bytes.
///
/// IREE uses an entry in place if it is aligned to [`PARAMETER_ALIGNMENT`] bytes in memory, and copies it
/// otherwise. The bytes are released together with the last program and buffer that use them.
#[derive(Clone)]
pub struct Parameters {
    /// The scope's name, as in `#flow.parameter.named<"scope"::"name">`.
    pub scope: String,
    /// The bytes that contain all ranges.
    pub bytes: SharedBytes,
    pub entries: BTreeMap<String, ParameterData>,
}

/// The content of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParameterData {
    Range(Range<usize>),
    /// A repeated pattern, which stands in for missing weights.
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
