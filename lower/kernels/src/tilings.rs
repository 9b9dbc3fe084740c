//! The tilings of a kernel that the tuner should measure.

use std::num::NonZeroUsize;

use targets::Tiling;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tilings {
    /// The name under which a tuning file stores the measurements of the fused operation.
    pub work: String,
    /// The tiling without a tuning file.
    pub usual: Tiling,
    parts: Vec<NonZeroUsize>,
    rows: Vec<NonZeroUsize>,
    panels: Vec<NonZeroUsize>,
    ahead: Vec<usize>,
}

impl Tilings {
    /// `fitted` reduces the sizes of a tiling until they fit the operation.
    pub(crate) fn new(work: String, usual: Tiling, fitted: impl Fn(Tiling) -> Tiling) -> Self {
        // A tiling that does not fit would be reduced to a tiling that is already in the list.
        let fits = |tiling: Tiling| fitted(tiling) == tiling;
        let counts = |all: &[usize], with: fn(Tiling, NonZeroUsize) -> Tiling| -> Vec<NonZeroUsize> {
            let counts = all.iter().filter_map(|&n| NonZeroUsize::new(n));
            counts.filter(|&n| fits(with(usual, n))).collect()
        };
        Self {
            work,
            usual,
            parts: counts(&[2, 4, 8, 16, 32, 64], |tiling, parts| Tiling { parts, ..tiling }),
            rows: counts(&[1, 2, 3, 4, 6, 8, 12], |tiling, rows| Tiling { rows, ..tiling }),
            panels: counts(&[1, 2, 4], |tiling, panels| Tiling { panels, ..tiling }),
            ahead: [0, 4096, 16384].into_iter().filter(|&ahead| fits(Tiling { ahead, ..usual })).collect(),
        }
    }

    /// The tilings that differ from `one` in one parameter.
    pub fn beside(&self, one: Tiling) -> impl Iterator<Item = Tiling> {
        let parts = self.parts.iter().map(move |&parts| Tiling { parts, ..one });
        let rows = self.rows.iter().map(move |&rows| Tiling { rows, ..one });
        let panels = self.panels.iter().map(move |&panels| Tiling { panels, ..one });
        let ahead = self.ahead.iter().map(move |&ahead| Tiling { ahead, ..one });
        rows.chain(panels).chain(ahead).chain(parts).filter(move |other| *other != one)
    }
}

pub(crate) fn count(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap_or(NonZeroUsize::MIN)
}
