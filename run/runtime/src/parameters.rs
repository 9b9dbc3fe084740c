//! Declares [`Parameters`], which are named weights that a program reads without a copy.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that stay at the same address as long as a reference to the bytes exists. For example, the
/// bytes of a memory-mapped file and of a vector stay at the same address.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The alignment in bytes that a parameter needs in memory. If a parameter is aligned, IREE reads
/// the parameter without a copy.
pub const PARAMETER_ALIGNMENT: usize = 64;

/// A scope with named parameters, whose data are in shared bytes.
///
/// If the address of a parameter is a multiple of [`PARAMETER_ALIGNMENT`], IREE reads the parameter directly
/// from the shared bytes. IREE copies a parameter whose address is not a multiple of [`PARAMETER_ALIGNMENT`].
/// The shared bytes are released when no program and no buffer uses the bytes any more.
#[derive(Clone)]
pub struct Parameters {
    /// The name of the scope, as in `#flow.parameter.named<"scope"::"name">`.
    pub scope: String,
    /// The bytes that contain the data of all parameters.
    pub bytes: SharedBytes,
    pub entries: BTreeMap<String, ParameterData>,
}

/// The content of a parameter in a scope.
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
    /// Returns the names of the parameters that IREE copies. IREE copies a parameter if its data
    /// are not aligned to [`PARAMETER_ALIGNMENT`] bytes.
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
