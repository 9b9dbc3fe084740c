//! Declares [`Parameters`], which are named weights that a program reads without a copy.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that stay at one address, such as a mapped file or a vector.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Bytes. Aligned parameters are read without a copy.
pub const PARAMETER_ALIGNMENT: usize = 64;

/// A scope of named parameters in shared bytes, which live as long as a program or a buffer uses them. IREE
/// reads those in place whose address is a multiple of [`PARAMETER_ALIGNMENT`], and copies the others.
#[derive(Clone)]
pub struct Parameters {
    /// As in `#flow.parameter.named<"scope"::"name">`.
    pub scope: String,
    pub bytes: SharedBytes,
    pub entries: BTreeMap<String, ParameterData>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParameterData {
    Range(Range<usize>),
    /// The content repeats a pattern instead of using data from the shared bytes.
    Splat {
        length: u64,
        /// The repeated pattern, which has 1, 2, 4, 8 or 16 bytes.
        pattern: Vec<u8>,
    },
}

impl Parameters {
    /// Those that IREE copies: not aligned to [`PARAMETER_ALIGNMENT`].
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
