//! What is tried, in which order, and when that ends.

use std::collections::BTreeMap;
use std::iter::once;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use kernels::Tilings;
use lower::{FusedProduct, products};
use ops::Op;
use simplify::CostOperand;
use targets::{Target, Tiling};

use super::TuneError;
use super::cache::{Known, Record, Tried, TuningCache};
use super::trial::{Trials, Workbench};
use crate::Plan;

/// A product of a network, and what is known of it.
pub struct Tuned {
    /// The product.
    pub product: FusedProduct,
    /// The ways to cut it.
    pub tilings: Tilings,
    /// Its part of the time of all products of an entry point, estimated: the mean of those that choose tokens.
    pub share: f64,
    /// What was tried.
    pub record: Record,
}

/// Is told of every way that was tried, and may ask to stop; before the first it is told what is known.
pub type WatchTrials<'a> = &'a mut dyn FnMut(&Tuned, Option<&Tried>) -> ControlFlow<()>;

impl Tuned {
    /// The products that kernels of the plan's target compute, with what is known of them: those first on which most time
    /// is spent.
    ///
    /// # Errors
    /// If the plan cannot be carried out.
    pub fn all(plan: &Plan, known: &Known) -> Result<Vec<Self>, TuneError> {
        let target = &plan.target;
        let expanded = plan.expand(&plan.record(&plan.steps())?.trace)?;
        let entries = products(&expanded.trace, target)?;
        let mut shares: BTreeMap<FusedProduct, f64> = BTreeMap::new();
        for counts in entries.values() {
            let seconds =
                |(product, count): (&FusedProduct, &usize)| *count as f64 * seconds(product, target);
            let all: f64 = counts.iter().map(seconds).sum();
            for one in counts {
                *shares.entry(one.0.clone()).or_default() += seconds(one) / all / entries.len() as f64;
            }
        }
        let mut tuned = Vec::new();
        for (product, share) in shares {
            let Some(tilings) = product.tilings(target) else { continue };
            let found = known.records.get(&tilings.product).filter(|record| record.usual == tilings.usual);
            let record = found.cloned().unwrap_or_else(|| Record::new(&tilings.product, tilings.usual));
            tuned.push(Self { product, tilings, share, record });
        }
        tuned.sort_by(|a, b| b.share.total_cmp(&a.share));
        Ok(tuned)
    }

    /// What is worth trying: what differs from the best so far in one thing that was not tried yet, be it beside others.
    pub fn left(&self) -> Vec<Tiling> {
        let Self { tilings, record, .. } = self;
        let best = record.best().map_or(record.usual, |(best, _)| best);
        let seen: Vec<Tiling> = once(record.usual).chain(record.tried.iter().map(|t| t.tiling)).collect();
        // Which sums fit into registers, rows and panels say together.
        let sums = |tiling: &Tiling| (tiling.rows, tiling.panels);
        let new = |other: &Tiling| match other {
            _ if sums(other) != sums(&best) => seen.iter().all(|known| sums(known) != sums(other)),
            _ if other.ahead != best.ahead => seen.iter().all(|known| known.ahead != other.ahead),
            _ => seen.iter().all(|known| known.parts != other.parts),
        };
        tilings.beside(best).filter(new).collect()
    }

    /// Tries what is left, and keeps what comes of it.
    fn search(
        &mut self,
        cache: &TuningCache,
        bench: &Workbench<'_>,
        is_over: &dyn Fn() -> bool,
        watch: WatchTrials<'_>,
    ) -> Result<(), TuneError> {
        if self.left().is_empty() || is_over() {
            return Ok(());
        }
        go_on(watch(self, None))?;
        let trials = Trials::new(&self.product, &self.tilings.product, self.tilings.usual, bench)?;
        while !is_over()
            && let Some(&tiling) = self.left().first()
        {
            let verdict = trials.of(&trials.module(tiling)?)?;
            let tried = Tried { tiling, verdict };
            self.record.tried.push(tried.clone());
            cache.write(&self.record)?;
            go_on(watch(self, Some(&tried)))?;
        }
        Ok(())
    }
}

/// Tries what is left of all products, the first one first, until the budget is spent.
///
/// # Errors
/// The first failure, or on request. What was tried before is kept.
pub fn tune(
    products: &mut [Tuned],
    cache: &TuningCache,
    bench: &Workbench<'_>,
    budget: Duration,
    watch: WatchTrials<'_>,
) -> Result<(), TuneError> {
    let start = Instant::now();
    let is_over = || start.elapsed() >= budget;
    products.iter_mut().try_for_each(|product| product.search(cache, bench, &is_over, watch))
}

fn go_on(answer: ControlFlow<()>) -> Result<(), TuneError> {
    if answer.is_break() { Err(TuneError::Stopped) } else { Ok(()) }
}

/// What a product costs, as the cost model estimates.
fn seconds(product: &FusedProduct, target: &Target) -> f64 {
    let FusedProduct { op, x, .. } = product;
    let weight = op.format.packed(op.outputs, x.shape[1]);
    let result = ops::TensorType::new(op.element, [x.shape[0], op.outputs]);
    let operands = [x, &weight].map(|ty| CostOperand { ty, splat: false });
    simplify::cost(&target.machine, &Op::from(op.clone()), &operands, &result).seconds
}
