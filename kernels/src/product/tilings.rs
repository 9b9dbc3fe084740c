//! Which ways to cut a product are worth measuring.

use std::num::NonZeroUsize;

use targets::Tiling;

use super::Product;

/// The ways to cut a product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tilings {
    /// The name by which a tuning knows the product.
    pub product: String,
    /// How it is cut unless something else was measured to be faster.
    pub usual: Tiling,
    parts: Vec<NonZeroUsize>,
    rows: Vec<NonZeroUsize>,
    panels: Vec<NonZeroUsize>,
    ahead: Vec<usize>,
}

impl Tilings {
    /// Those that differ from one in a single thing.
    pub fn beside(&self, one: Tiling) -> impl Iterator<Item = Tiling> {
        let parts = self.parts.iter().map(move |&parts| Tiling { parts, ..one });
        let rows = self.rows.iter().map(move |&rows| Tiling { rows, ..one });
        let panels = self.panels.iter().map(move |&panels| Tiling { panels, ..one });
        let ahead = self.ahead.iter().map(move |&ahead| Tiling { ahead, ..one });
        rows.chain(panels).chain(ahead).chain(parts).filter(move |other| *other != one)
    }
}

impl Product<'_> {
    /// The ways to cut it.
    pub(crate) fn tilings(&self) -> Tilings {
        let usual = self.usual();
        // What does not fit the product is another way to say what does.
        let fits = |tiling: Tiling| self.fitted(tiling) == tiling;
        let counts = |all: &[usize], with: fn(Tiling, NonZeroUsize) -> Tiling| -> Vec<NonZeroUsize> {
            let counts = all.iter().filter_map(|&n| NonZeroUsize::new(n));
            counts.filter(|&n| fits(with(usual, n))).collect()
        };
        Tilings {
            product: self.key(),
            usual,
            parts: counts(&[2, 4, 8, 16, 32, 64], |tiling, parts| Tiling { parts, ..tiling }),
            rows: counts(&[3, 4, 6, 8, 12], |tiling, rows| Tiling { rows, ..tiling }),
            panels: counts(&[1, 2, 4], |tiling, panels| Tiling { panels, ..tiling }),
            ahead: [0, 4096, 16384].into_iter().filter(|&ahead| fits(Tiling { ahead, ..usual })).collect(),
        }
    }
}
