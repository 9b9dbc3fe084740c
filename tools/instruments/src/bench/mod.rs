//! Measures the speed of compiled programs. A benchmark runs all variants of a program in alternation, and
//! measures the machine's memory bandwidth in each round. A [`Case`] is one measured variant of a program.
//! [`measure`] runs all cases in every round. Each round begins with a different case. The speed of a shared
//! machine changes within seconds, so a benchmark compares two times only if the times were measured in the
//! same round. A reported ratio between two variants is the median of the ratios in all rounds.

mod bandwidth;
mod language;
mod neighbour;
mod paths;
mod plot;
mod profiled;
mod single;
mod spread;
mod stages;
mod table;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use errors::FileError;
use ops::{CostOperand, Op, TensorType};
use runtime::{Executed, Runtime};
use serde::Serialize;
use targets::Target;
use trace::{NodeKind, Trace};

use tracewright::PlanError;
use tracewright::build::LoadError;
use tracewright::random::RandomError;

use paths::Paths;

pub use bandwidth::{Bandwidth, Rates};
pub(crate) use single::entry;

pub use language::{Language, fits, watched, whole_chunks};
pub use single::{AttentionSizes, Matmul, Single};
pub use spread::Distribution;
pub use stages::Stages;

/// `tracewright bench --json` writes it, and docs/reference/json.md describes it.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    pub schema: u32,
    pub tracewright: &'static str,
    pub machine: BenchMachine,
    pub rounds: usize,
    /// Bytes per second, one thread per core, one measurement per round.
    pub memory: Rates<Distribution>,
    /// For the process, which holds all variants, if the system reports it.
    pub peak_rss_bytes: Option<u64>,
    /// In the order of the caller.
    pub cases: Vec<Measured>,
}

impl BenchReport {
    /// Formats the measurements as a text table, and lists the slowest functions of each variant.
    pub fn table(&self) -> String {
        table::table(self)
    }

    /// Draws an SVG picture with a panel for each case, and a bar for each variant.
    pub fn plot(&self) -> String {
        plot::svg(self)
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct BenchMachine {
    pub architecture: &'static str,
    /// The LLVM names of the processor features that the compiled code may use.
    pub features: Vec<String>,
    /// That can run in parallel.
    pub threads: usize,
}

pub struct Case<'a> {
    pub label: Label,
    /// The number of bytes and of arithmetic operations in one unit of work, such as a decode step.
    pub work: Workload,
    pub run: Run<'a>,
    /// On a device that counts calls, if there is one.
    pub watched: Option<Watched<'a>>,
}

/// The computation of a [`Case`] on a device that counts calls of each compiled function.
pub struct Watched<'a> {
    pub runtime: &'a Runtime,
    pub run: Run<'a>,
    /// Only the preparation of `run`, such as reading prompts, if it has any.
    pub before: Option<Run<'a>>,
    /// In one call of `run`.
    pub units: usize,
    /// Contains the field paths of the operations that each dispatch of the program computes.
    paths: &'a Paths,
}

/// Runs a computation a few times, and returns the mean seconds.
pub type Run<'a> = Box<dyn FnMut() -> Result<f64, BenchError> + 'a>;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Label {
    /// The name of the measured operation, such as `decode` or `matmul`.
    pub case: String,
    /// The settings in which variants can differ, such as the element type, the weight format or the context.
    pub variant: BTreeMap<&'static str, String>,
    pub flags: Vec<String>,
}

/// For one unit of work: a decode step, a prompt or a matmul.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Workload {
    pub tokens: Option<f64>,
    pub flops: Option<f64>,
    /// Mostly weights.
    pub bytes: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    #[serde(flatten)]
    pub label: Label,
    pub work: Workload,
    pub seconds: Distribution,
    pub tokens_per_s: Option<f64>,
    pub gflop_per_s: Option<f64>,
    pub gb_per_s: Option<f64>,
    /// The median of the rounds' rate divided by the read bandwidth.
    pub of_read_bandwidth: Option<f64>,
    /// The median of the rounds' time divided by the first variant's.
    pub ratio_to_first: f64,
    /// In one unit of work, the slowest first.
    pub dispatches: Vec<Dispatch>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Dispatch {
    pub name: String,
    /// The average number of executions of the function per unit of work, such as a decode step.
    pub calls: f64,
    /// The total time of all executions of the function per unit of work, such as a decode step, in seconds.
    pub seconds: f64,
    /// Empty if the module contains none.
    pub paths: Vec<String>,
}

/// The reason why a case cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Load(#[from] LoadError),
    /// XLA cannot build or load the network.
    #[error(transparent)]
    Model(#[from] tracewright::ModelError),
    /// Random weights for the measured network cannot be written.
    #[error(transparent)]
    Random(#[from] RandomError),
    #[error(transparent)]
    Generate(#[from] generate::GenerateError),
    #[error(transparent)]
    Archive(#[from] irpa::ArchiveError),
    /// A file or folder cannot be read, written or created.
    #[error(transparent)]
    File(#[from] FileError),
    /// The prompt and the measured tokens exceed the context.
    #[error(
        "a `depth` of {depth} tokens and {tokens} measured tokens do not fit into a `context` of {context} tokens"
    )]
    Depth {
        /// The number of tokens that the network reads before the first measured token.
        depth: usize,
        tokens: usize,
        context: usize,
    },
    /// You requested a profile for a prompt whose length is not a multiple of the chunk size.
    #[error(
        "a profile covers one entry point, but a prompt of {tokens} `tokens` with a `chunk` of {chunk} uses \
        two entry points; set `tokens` to a multiple of `chunk`"
    )]
    Chunks {
        tokens: usize,
        /// The number of prompt tokens that one call of the network reads.
        chunk: usize,
    },
    /// You requested a profile on a device that does not count calls of each compiled function.
    #[error(
        "profiles are available only for the CPU, because other devices do not report the time of each dispatch"
    )]
    NotWatched,
    #[error("the benchmark was stopped on request")]
    Stopped,
}

impl From<runtime::RuntimeError> for BenchError {
    fn from(error: runtime::RuntimeError) -> Self {
        Self::Load(error.into())
    }
}

/// Receives each round's number, and can stop. Round 0 is a warm-up.
pub type WatchRounds<'a> = &'a mut dyn FnMut(usize) -> ControlFlow<()>;

/// In alternation, without the first round (page faults, cache misses). Each case runs once more at the end
/// on a device that counts calls, if it has one.
pub fn measure(
    mut cases: Vec<Case<'_>>,
    rounds: usize,
    bandwidth: &mut Bandwidth,
    watch: WatchRounds<'_>,
) -> Result<BenchReport, BenchError> {
    let mut seconds: Vec<Vec<f64>> = vec![Vec::new(); cases.len()];
    let (mut read, mut copy) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        if watch(round).is_break() {
            return Err(BenchError::Stopped);
        }
        let rates = bandwidth.measure();
        for turn in 0..cases.len() {
            let index = (turn + round) % cases.len();
            let sample = (cases[index].run)()?;
            if round > 0 {
                seconds[index].push(sample);
            }
        }
        if round > 0 {
            read.push(rates.read);
            copy.push(rates.copy);
        }
    }
    let mut measured = Vec::with_capacity(cases.len());
    for (index, Case { label, work, watched, .. }) in cases.into_iter().enumerate() {
        let own = Distribution::of(&seconds[index]);
        let first =
            measured.iter().position(|other: &Measured| other.label.case == label.case).unwrap_or(index);
        let of_read =
            work.bytes.map(|bytes| spread::ratio(&seconds[index], &read, |s, rate| bytes / s / rate));
        measured.push(Measured {
            work,
            tokens_per_s: work.tokens.map(|tokens| tokens / own.median),
            gflop_per_s: work.flops.map(|flops| flops / own.median / 1e9),
            gb_per_s: work.bytes.map(|bytes| bytes / own.median / 1e9),
            of_read_bandwidth: of_read,
            ratio_to_first: spread::ratio(&seconds[index], &seconds[first], |own, first| own / first),
            dispatches: watched.map_or(Ok(Vec::new()), dispatches)?,
            seconds: own,
            label,
        });
    }
    Ok(BenchReport {
        schema: 1,
        tracewright: env!("CARGO_PKG_VERSION"),
        machine: BenchMachine {
            architecture: std::env::consts::ARCH,
            features: targets::Target::host().features.unwrap_or_default(),
            threads: bandwidth.threads(),
        },
        rounds,
        memory: Rates { read: Distribution::of(&read), copy: Distribution::of(&copy) },
        peak_rss_bytes: tracewright::footprint::peak_rss(),
        cases: measured,
    })
}

/// In one unit of work, the slowest first.
fn dispatches(watched: Watched<'_>) -> Result<Vec<Dispatch>, BenchError> {
    let Watched { runtime, mut run, before, units, paths } = watched;
    // The first run causes page faults, so the function does not count it. The run also processes the tokens
    // before the first unit.
    run()?;
    let before = match before {
        Some(mut before) => {
            before()?;
            executed(runtime, &mut before)?
        }
        None => BTreeMap::new(),
    };
    let mut dispatches = Vec::new();
    for (name, (calls, time)) in executed(runtime, &mut run)? {
        let (calls_before, time_before) = before.get(&name).copied().unwrap_or_default();
        if calls > calls_before {
            dispatches.push(Dispatch {
                calls: (calls - calls_before) as f64 / units as f64,
                seconds: time.saturating_sub(time_before).as_secs_f64() / units as f64,
                paths: paths.of(&name),
                name,
            });
        }
    }
    dispatches.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    Ok(dispatches)
}

/// Executions and total time by name.
fn executed(runtime: &Runtime, run: &mut Run<'_>) -> Result<BTreeMap<String, (u64, Duration)>, BenchError> {
    let before = runtime.executed()?;
    run()?;
    let more = |after: Executed| {
        let before = before.iter().find(|before| before.name == after.name);
        let (calls, time) = before.map_or((0, Duration::ZERO), |before| (before.calls, before.time));
        (after.name, (after.calls - calls, after.time - time))
    };
    Ok(runtime.executed()?.into_iter().map(more).collect())
}

/// With the cost model, estimates the number of multiplications and additions in one call of an entry point.
fn flops(trace: &Trace, entry: &str, target: &Target) -> f64 {
    total(trace, entry, |op, operands, ty| {
        let operands: Vec<_> = operands.iter().map(|&ty| CostOperand { ty, splat: false }).collect();
        simplify::cost(&target.machine, op, &operands, ty).flops
    })
}

/// Bytes of experts that the tokens of one call cannot choose.
fn unread_experts(trace: &Trace, entry: &str) -> f64 {
    total(trace, entry, |op, operands, ty| match op {
        Op::PackedExperts(op) => operands[1].bytes() as f64 * (1.0 - op.share(ty)),
        _ => 0.0,
    })
}

/// Over the operations of one call; `of` gets operation, operand types and result type.
fn total(trace: &Trace, entry: &str, of: impl Fn(&Op, &[&TensorType], &TensorType) -> f64) -> f64 {
    let mut found: Vec<f64> = Vec::with_capacity(trace.functions.len());
    for function in &trace.functions {
        let of_node = |id| {
            let node = function.node(id);
            match &node.kind {
                NodeKind::Call { function, .. } => found[function.0 as usize],
                NodeKind::Op(op) => {
                    let operands = function.operands(id);
                    let operands: Vec<_> =
                        operands.iter().map(|&operand| function.node(operand).ty()).collect();
                    of(op, &operands, node.ty())
                }
                _ => 0.0,
            }
        };
        let sum = function.ids().map(of_node).sum();
        found.push(sum);
    }
    let index = trace.entries.iter().find(|&&id| trace.function(id).name == entry);
    index.map_or(0.0, |id| found[id.0 as usize])
}
