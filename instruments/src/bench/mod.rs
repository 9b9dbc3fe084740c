//! How fast programs are: variants of a case, measured in turn beside what this machine's memory gives.
//!
//! A [`Case`] is one variant of what is measured. [`measure`] runs all of them round by round, each round another one
//! first, since a shared machine changes its speed within seconds: what is compared was measured side by side, and ratios
//! are medians of pairs.

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
use ops::CostOperand;
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

/// What was measured: the JSON of `tracewright bench`, whose fields docs/reference/json.md explains.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// The version of these fields.
    pub schema: u32,
    /// The version of this program.
    pub tracewright: &'static str,
    pub machine: BenchMachine,
    pub rounds: usize,
    /// Bytes that one second reads and copies, with as many threads as there are cores; of each round.
    pub memory: Rates<Distribution>,
    /// The most memory that this process ever held, all variants together, where the system tells.
    pub peak_rss_bytes: Option<u64>,
    /// The variants, in the order in which they were given.
    pub cases: Vec<Measured>,
}

impl BenchReport {
    /// A table, with the functions that took longest.
    pub fn table(&self) -> String {
        table::table(self)
    }

    /// A picture as SVG: a bar for each variant, a panel for each case.
    pub fn plot(&self) -> String {
        plot::svg(self)
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct BenchMachine {
    /// Its architecture, in Rust's name.
    pub architecture: &'static str,
    /// The features of its processor that code may use, in LLVM's names.
    pub features: Vec<String>,
    /// The threads that may run at once.
    pub threads: usize,
}

/// One variant of what is measured.
pub struct Case<'a> {
    pub label: Label,
    /// What one unit of it takes.
    pub work: Workload,
    pub run: Run<'a>,
    /// The same where it is watched, if it can be.
    pub watched: Option<Watched<'a>>,
}

/// The same on a watched device.
pub struct Watched<'a> {
    pub runtime: &'a Runtime,
    /// Does what the case's `run` does.
    pub run: Run<'a>,
    /// Does what that does before its units, if that is anything.
    pub before: Option<Run<'a>>,
    /// How many units that are.
    pub units: usize,
    /// The field paths of what its program dispatches.
    paths: &'a Paths,
}

/// Does some units, and says how many seconds one took.
pub type Run<'a> = Box<dyn FnMut() -> Result<f64, BenchError> + 'a>;

/// Which variant of which case.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Label {
    /// The case: `decode`, `matmul`.
    pub case: String,
    /// What tells the variants apart: element, format of weights, context.
    pub variant: BTreeMap<&'static str, String>,
    /// The flags that the compiler got.
    pub flags: Vec<String>,
}

/// What one unit of a case takes: a step of decoding, a prompt, a product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Workload {
    /// Tokens that come of it or go into it.
    pub tokens: Option<f64>,
    pub flops: Option<f64>,
    /// Bytes of weights, or of what is read in their place.
    pub bytes: Option<f64>,
}

/// What was measured of a case.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    #[serde(flatten)]
    pub label: Label,
    /// What one unit takes.
    pub work: Workload,
    /// Seconds of a unit.
    pub seconds: Distribution,
    pub tokens_per_s: Option<f64>,
    pub gflop_per_s: Option<f64>,
    pub gb_per_s: Option<f64>,
    /// Its bytes a second as a share of what reading reached in the same round: the median of rounds.
    pub of_read_bandwidth: Option<f64>,
    /// Its time as a share of that of the first variant of the case, in the same round: the median of rounds.
    pub ratio_to_first: f64,
    /// What the device executed in a unit, what took longest first.
    pub dispatches: Vec<Dispatch>,
}

/// A function that the device executed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Dispatch {
    /// Its name in the module.
    pub name: String,
    /// How often, in one unit.
    pub calls: f64,
    /// Seconds of all calls in one unit.
    pub seconds: f64,
    /// Where the network says what it computes: field paths, as far as the module tells.
    pub paths: Vec<String>,
}

/// Why something was not measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The plan cannot be carried out.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// There is no network.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// There are no weights.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// The network does not answer.
    #[error(transparent)]
    Generate(#[from] generate::GenerateError),
    /// A checkpoint or an archive is damaged.
    #[error(transparent)]
    Archive(#[from] irpa::ArchiveError),
    /// A file or folder cannot be read or made.
    #[error(transparent)]
    File(#[from] FileError),
    /// The prompt and what follows do not fit.
    #[error("`depth` {depth} and {tokens} tokens after it do not fit into `context` {context}")]
    Depth {
        /// Tokens before the first one that is measured.
        depth: usize,
        tokens: usize,
        context: usize,
    },
    /// A profile of a prompt that ends in the middle of a chunk.
    #[error(
        "a profile covers one entry point, and a prompt of `tokens` {tokens} with a `chunk` of {chunk} \
         needs two; choose a multiple of the chunk"
    )]
    Chunks {
        tokens: usize,
        /// Tokens that one call takes.
        chunk: usize,
    },
    /// A profile of what was not watched.
    #[error("only the CPU can be profiled: other devices report no time for each dispatch")]
    NotWatched,
    /// The watcher asked to stop.
    #[error("stopped on request")]
    Stopped,
}

/// Anything that a loaded program refuses is an error of loading it.
impl From<runtime::RuntimeError> for BenchError {
    fn from(error: runtime::RuntimeError) -> Self {
        Self::Load(error.into())
    }
}

/// Is told which round begins, from 0, the one that is not counted; and may ask to stop.
pub type WatchRounds<'a> = &'a mut dyn FnMut(usize) -> ControlFlow<()>;

/// Measures cases in turn. A first round, which pays for page faults and caches, is not counted; after the last one each
/// case runs once more, watched.
///
/// # Errors
/// The first failure, or on request.
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

/// What a watched device executes in a unit, what takes longest first.
fn dispatches(watched: Watched<'_>) -> Result<Vec<Dispatch>, BenchError> {
    let Watched { runtime, mut run, before, units, paths } = watched;
    // Each once before: it pays for page faults, and shows the network what stands before the first unit.
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

/// What a run executes, by name: how often, and how long.
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

/// Multiplications and additions in a call of an entry point, as the cost model counts them.
fn flops(trace: &Trace, entry: &str, target: &Target) -> f64 {
    let mut found: Vec<f64> = Vec::with_capacity(trace.functions.len());
    for function in &trace.functions {
        let of = |id| {
            let node = function.node(id);
            match &node.kind {
                NodeKind::Call { function, .. } => found[function.0 as usize],
                NodeKind::Op(op) => {
                    let operands = function.operands(id);
                    let operands: Vec<_> =
                        operands.iter().map(|&operand| function.node(operand).ty()).collect();
                    let operands: Vec<_> =
                        operands.into_iter().map(|ty| CostOperand { ty, splat: false }).collect();
                    simplify::cost(&target.machine, op, &operands, node.ty()).flops
                }
                _ => 0.0,
            }
        };
        let sum = function.ids().map(of).sum();
        found.push(sum);
    }
    let index = trace.entries.iter().find(|&&id| trace.function(id).name == entry);
    index.map_or(0.0, |id| found[id.0 as usize])
}
