//! Rules that move a computation from the program to `bake`, which runs the computation once when
//! it writes the archive.

use ops::ops::{Concatenate, Linear, Narrow};

use super::{Rule, Site, Tree, attribute};

pub(super) const RULES: &[Rule] = &[attribute(
    "linears of one input",
    "linear(x, w₁), linear(x, w₂) = narrow(linear(x, concatenate(w₁, w₂)))",
    "linear",
    merge_linears,
)];

/// Merges all linear layers that have the same input into one linear layer. The archive stores the
/// weights of the merged layers one after the other.
fn merge_linears(site: &Site<'_>) -> Vec<Tree> {
    let weights = |operands: &[egg::Id]| operands[1..].iter().all(|&id| site.parameter(id).is_some());
    let same = |operands: &[egg::Id]| {
        let stored = |operands: &[egg::Id]| -> Vec<_> {
            operands[1..].iter().map(|&id| (site.ty(id).element, site.format(id))).collect()
        };
        operands[0] == site.operands[0] && stored(operands) == stored(site.operands) && weights(operands)
    };
    if !weights(site.operands) {
        return vec![];
    }
    let group: Vec<_> = site.uses("linear").into_iter().filter(|(.., operands)| same(operands)).collect();
    let Some(place) = group.iter().position(|(.., operands)| *operands == site.operands) else {
        return vec![];
    };
    if group.len() < 2 {
        return vec![];
    }
    let joined = |at: usize| {
        let pieces: Vec<Tree> = group.iter().map(|(.., operands)| operands[at].into()).collect();
        Tree::op(Concatenate { axis: 0 }, pieces)
    };
    let mut operands = vec![site.operands[0].into()];
    operands.extend((1..site.operands.len()).map(joined));
    let rows = |at: usize| site.ty(group[at].2[1]).shape[0];
    let narrow =
        Narrow { axis: site.result().rank() - 1, start: (0..place).map(rows).sum(), length: rows(place) };
    vec![Tree::op(narrow, [Tree::op(Linear {}, operands)])]
}
