//! Named weights that a program reads where they lie.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that stay in place as long as anyone holds them: a mapped file, or a vector.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Where a parameter must begin in memory to be used in place.
pub const PARAMETER_ALIGNMENT: usize = 64;

/// One scope of named parameters inside shared bytes.
///
/// IREE uses an entry where it lies if that is aligned to [`PARAMETER_ALIGNMENT`] bytes in memory,
/// and copies it otherwise. The bytes are released when the last program and buffer that use them are.
#[derive(Clone)]
pub struct Parameters {
    /// The scope, as in `#flow.parameter.named<"scope"::"name">`.
    pub scope: String,
    /// What the ranges lie in.
    pub bytes: SharedBytes,
    /// The parameters by name.
    pub entries: BTreeMap<String, ParameterData>,
}

/// What a parameter is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParameterData {
    /// A range of the bytes.
    Range(Range<usize>),
    /// A pattern over and over: a stand-in for weights that are not there.
    Splat {
        /// How many bytes in all.
        length: u64,
        /// What is repeated: 1, 2, 4, 8 or 16 bytes.
        pattern: Vec<u8>,
    },
}

impl Parameters {
    /// The entries that IREE will copy because they do not lie at a multiple of
    /// [`PARAMETER_ALIGNMENT`] bytes.
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
