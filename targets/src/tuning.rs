//! What was measured to be fastest on a machine.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

/// How kernels cut their work, where another way than usual was measured to be faster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuning {
    /// By the name of a product, which says all that its speed depends on.
    pub products: BTreeMap<String, Tiling>,
}

/// How a product's work is cut. What does not fit a product is cut to what does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tiling {
    /// Parts, which workers share.
    pub parts: NonZeroUsize,
    /// Rows whose sums stay in registers.
    pub rows: NonZeroUsize,
    /// Panels of the weight that lie side by side and are read at once.
    pub panels: NonZeroUsize,
    /// How far ahead memory is asked for the weight's lines, in bytes; 0 leaves that to the processor.
    pub ahead: usize,
}

impl fmt::Display for Tiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { parts, rows, panels, ahead } = self;
        write!(f, "parts {parts}, rows {rows}, panels {panels}, ahead {ahead}")
    }
}
