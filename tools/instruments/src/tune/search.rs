//! Decides the order of the tuner's trials, and stops the trials when the time budget is spent.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use kernels::Tilings;
use lower::{FusedAttention, FusedExperts, FusedMatmul, Tunable, tunable};
use ops::{CostOperand, Op, Operation as _, TensorType};
use serde::Serialize;
use targets::{Target, Tiling, Tuning};

use super::TuneError;
use super::network::{TunedNetwork, Weighted};
use super::trial::{Trials, Workbench};
use tracewright::Plan;
use tracewright::tuning::{BuildSettings, Record, TrialRecord, TuningCache, TuningDb, Verdict};

/// The fraction of the time budget for kernels, if the tuner also tunes the settings of the network.
const KERNELS: f64 = 0.75;

/// Contains a fused operation that a kernel computes in a network, and the measurements of this kernel.
pub struct Tuned {
    pub work: Tunable,
    pub tilings: Tilings,
    /// A part of the time of an entry point's fused operations, the mean over those for generation.
    pub share: f64,
    pub record: Record,
}

pub struct Trial<'a> {
    /// A fused operation, or the network.
    pub name: &'a str,
    /// A part of the time of all fused operations; 1 for a network.
    pub share: f64,
    /// Contains the tried settings and the result of the trial. The field is `None` before the first trial.
    pub tried: Option<(&'a dyn fmt::Display, &'a Verdict)>,
}

/// Can stop the search. Before the first trial of an operation, it gets a [`Trial`] without a result.
pub type WatchTrials<'a> = &'a mut dyn FnMut(Trial<'_>) -> ControlFlow<()>;

impl Tuned {
    /// On the plan's target, with known measurements, the most expensive first.
    pub fn all(plan: &Plan, known: &TuningDb) -> Result<Vec<Self>, TuneError> {
        let target = &plan.target;
        let expanded = plan.expand(&plan.record(&plan.steps())?.trace)?;
        let entries = tunable(&expanded.trace, target)?;
        let mut shares: BTreeMap<Tunable, f64> = BTreeMap::new();
        for counts in entries.values() {
            let seconds = |(work, count): (&Tunable, &usize)| *count as f64 * seconds(work, target);
            let all: f64 = counts.iter().map(seconds).sum();
            for one in counts {
                *shares.entry(one.0.clone()).or_default() += seconds(one) / all / entries.len() as f64;
            }
        }
        let mut tuned: Vec<Self> = Vec::new();
        for (work, share) in shares {
            let Some(tilings) = work.tilings(target) else { continue };
            // Fused operations that are equal for the kernel share one record.
            match tuned.iter_mut().find(|other| other.tilings.work == tilings.work) {
                Some(other) => other.share += share,
                None => {
                    let record = Record::known(&known.kernels, &tilings.work, tilings.usual);
                    tuned.push(Self { work, tilings, share, record });
                }
            }
        }
        tuned.sort_by(|a, b| b.share.total_cmp(&a.share));
        Ok(tuned)
    }

    /// Not tried yet, and different from the fastest in one parameter.
    pub fn left(&self) -> Vec<Tiling> {
        let Self { tilings, record, .. } = self;
        let best = record.fastest();
        // The numbers of rows and panels together determine whether the sums fit into registers.
        let sums = |tiling: &Tiling| (tiling.rows, tiling.panels);
        let new = |other: &Tiling| match other {
            _ if sums(other) != sums(best) => record.seen().all(|known| sums(known) != sums(other)),
            _ if other.ahead != best.ahead => record.seen().all(|known| known.ahead != other.ahead),
            _ => record.seen().all(|known| known.parts != other.parts),
        };
        tilings.beside(*best).filter(new).collect()
    }
}

/// A trait for fused operations and networks; the tuner searches for their fastest settings.
trait Tunes {
    /// The type of the settings, such as the type of a kernel's tiling.
    type Way: Clone + PartialEq + fmt::Display + Serialize;

    fn share(&self) -> f64;

    fn left(&self) -> Vec<Self::Way>;

    fn record(&mut self) -> &mut Record<Self::Way>;
}

impl Tunes for Tuned {
    type Way = Tiling;

    fn share(&self) -> f64 {
        self.share
    }

    fn left(&self) -> Vec<Tiling> {
        self.left()
    }

    fn record(&mut self) -> &mut Record {
        &mut self.record
    }
}

impl Tunes for TunedNetwork<'_> {
    type Way = BuildSettings;

    fn share(&self) -> f64 {
        1.0
    }

    fn left(&self) -> Vec<BuildSettings> {
        self.left()
    }

    fn record(&mut self) -> &mut Record<BuildSettings> {
        &mut self.record
    }
}

/// Records each result. `begin` loads default settings, with which each trial compares.
fn search<T: Tunes, Try: Fn(&T::Way) -> Result<Verdict, TuneError>>(
    tuned: &mut T,
    begin: impl FnOnce(&T) -> Result<Try, TuneError>,
    cache: &TuningCache,
    is_over: &dyn Fn() -> bool,
    watch: WatchTrials<'_>,
) -> Result<(), TuneError> {
    if tuned.left().is_empty() || is_over() {
        return Ok(());
    }
    let (name, share) = (&tuned.record().name.clone(), tuned.share());
    go_on(watch(Trial { name, share, tried: None }))?;
    let verdict_of = begin(tuned)?;
    while !is_over()
        && let Some(way) = tuned.left().into_iter().next()
    {
        let verdict = verdict_of(&way)?;
        let record = tuned.record();
        record.tried.push(TrialRecord { way: way.clone(), verdict: verdict.clone() });
        cache.write(record)?;
        go_on(watch(Trial { name, share, tried: Some((&way, &verdict)) }))?;
    }
    Ok(())
}

/// Operations, then the network, within the budget; with `network`, kernels get three quarters. After an
/// error, the results of earlier trials remain available.
pub fn tune<'a: 'w, 'w>(
    works: &mut [Tuned],
    network: Option<(&mut TunedNetwork<'a>, &Weighted<'w>)>,
    cache: &TuningCache,
    bench: &Workbench<'_>,
    budget: Duration,
    watch: WatchTrials<'_>,
) -> Result<(), TuneError> {
    let start = Instant::now();
    let kernels = if network.is_some() { budget.mul_f64(KERNELS) } else { budget };
    for work in works.iter_mut() {
        let begin = |work: &Tuned| {
            let trials = Trials::new(&work.work, &work.tilings.work, work.tilings.usual, bench)?;
            Ok(move |way: &Tiling| trials.of(&trials.module(*way)?))
        };
        search(work, begin, cache, &|| start.elapsed() >= kernels, watch)?;
    }
    let Some((network, weights)) = network else { return Ok(()) };
    let best = |work: &Tuned| Some((work.record.name.clone(), *work.record.best()?.0));
    let tuning = Tuning { kernels: works.iter().filter_map(best).collect(), ..Tuning::default() };
    let begin = |network: &TunedNetwork<'a>| {
        let trials = network.trials(weights, &tuning)?;
        Ok(move |way: &BuildSettings| trials.of(way))
    };
    search(network, begin, cache, &|| start.elapsed() >= budget, watch)
}

fn go_on(answer: ControlFlow<()>) -> Result<(), TuneError> {
    if answer.is_break() { Err(TuneError::Stopped) } else { Ok(()) }
}

/// Estimates the time of a fused operation with the cost model, in seconds.
fn seconds(work: &Tunable, target: &Target) -> f64 {
    let cost = |op: Op, operands: &[&TensorType], result: &TensorType| {
        let operands: Vec<_> = operands.iter().map(|ty| CostOperand { ty, splat: false }).collect();
        simplify::cost(&target.machine, &op, &operands, result).seconds
    };
    match work {
        Tunable::Matmul(FusedMatmul { op, x, .. }) => {
            let weight = op.format.packed(op.outputs, x.shape[1]);
            let result = TensorType::new(op.element, [x.shape[0], op.outputs]);
            cost(op.clone().into(), &[x, &weight], &result)
        }
        Tunable::Experts(FusedExperts { op, x, indices }) => {
            let weight = op.format.packed(op.experts * op.outputs, x.shape[x.rank() - 1]);
            let operands: Vec<&TensorType> = [x, &weight].into_iter().chain(indices).collect();
            op.infer(&operands).map_or(0.0, |result| cost(op.clone().into(), &operands, &result))
        }
        Tunable::Attention(FusedAttention { op, types, .. }) => {
            let operands: Vec<&TensorType> = types.iter().collect();
            cost(op.clone().into(), &operands, &types[0])
        }
    }
}
