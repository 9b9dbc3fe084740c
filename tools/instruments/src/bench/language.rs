//! Measures the speed of prefill and decoding in language models.

use std::ops::ControlFlow;

use generate::{Batch, Executor, Generated, Network, Session, TokenOptions};
use irpa::Checkpoint;
use runtime::{Device, Runtime};
use targets::MeshRules;
use trace::Trace;

use super::paths::{Paths, paths};
use super::{BenchError, Case, Label, Measured, Run, Watched, Workload, flops, unread_experts};
use crate::profile::{Profile, variant};
use tracewright::PlanError;
use tracewright::build::{LoadError, ProgramOptions, build_program};
use tracewright::export::xla::{RecordedPlan, record};
use tracewright::footprint::Footprint;
use tracewright::xla::{XlaBuild, XlaTools};
use tracewright::{Expanded, LoadedNetwork, Plan};

pub struct Language {
    network: LoadedNetwork,
    /// A copy of the network on a second device that counts calls of each compiled function. The
    /// field is `None` if the network's device cannot count calls of compiled functions.
    watched: Option<(Network, Runtime)>,
    pub(super) paths: Paths,
    footprint: Footprint,
    pub(super) recorded: Trace,
    pub(super) expanded: Expanded,
    pub(super) plan: Plan,
    /// The device; with XLA also the engine and the mesh. The plan has everything else.
    placed: Vec<(&'static str, String)>,
    flags: Vec<String>,
}

impl Language {
    pub fn load(
        plan: Plan,
        checkpoint: &Checkpoint,
        options: ProgramOptions<'_>,
    ) -> Result<Self, BenchError> {
        let target = options.tools.compiler.resolve(&plan.target).map_err(LoadError::from)?;
        let plan = Plan { target, ..plan };
        let traced = plan.record(&plan.steps())?;
        let expanded = plan.expand(&traced.trace)?;
        let footprint = Footprint::of(&expanded).map_err(PlanError::from)?;
        let compiler = options.tools.compiler;
        let (target, ignorable) = (plan.target.clone(), plan.model.ignorable.clone());
        let options =
            ProgramOptions { target, rules: plan.rules, weights: plan.weights.clone(), ignorable, ..options };
        let again = watched(options.device).map(|device| ProgramOptions {
            target: options.target.clone(),
            ignorable: options.ignorable.clone(),
            device,
            memory: options.memory,
            rules: plan.rules,
            weights: plan.weights.clone(),
            ..ProgramOptions::new(compiler, options.tools.cache)
        });
        let loaded = build_program(&traced, checkpoint, options)?;
        let watched = again.map(|again| -> Result<_, BenchError> {
            let again = build_program(&traced, checkpoint, again)?;
            Ok((again.program.network()?, again.runtime))
        });
        let watched = watched.transpose()?;
        let paths = match &watched {
            Some(_) => paths(&loaded.module, compiler, &loaded.options)?,
            None => Paths::default(),
        };
        Ok(Self {
            network: loaded.program.into_network()?,
            watched,
            paths,
            footprint,
            recorded: traced.trace,
            expanded,
            placed: vec![("device", plan.target.device.to_string())],
            plan,
            flags: loaded.options.all_flags(),
        })
    }

    /// The plan must be made [for XLA](tracewright::export::xla::planned). The mesh's rules partition the
    /// network.
    pub fn load_in_xla(
        plan: Plan,
        checkpoint: &Checkpoint,
        mesh: Option<&MeshRules>,
        tools: XlaTools<'_>,
    ) -> Result<Self, BenchError> {
        let recorded = record(&plan, &plan.steps(), mesh).map_err(tracewright::ModelError::from)?;
        let RecordedPlan { traced, shards, .. } = recorded;
        let expanded = plan.expand(&traced.trace)?;
        let footprint = Footprint::of(&expanded).map_err(PlanError::from)?;
        let platform = tools.plugin.client().platform().to_owned();
        let ignorable = plan.model.ignorable.clone();
        let build = XlaBuild::new(&expanded, &traced.trace, shards, checkpoint, ignorable)?;
        let mut placed = vec![("device", platform), ("engine", "xla".to_owned())];
        placed.extend(mesh.map(|mesh| ("mesh", mesh.mesh.to_string())));
        let loaded = build.build(tools)?;
        Ok(Self {
            network: loaded.program.into_network()?,
            watched: None,
            paths: Paths::default(),
            footprint,
            recorded: traced.trace,
            expanded,
            placed,
            plan,
            flags: Vec::new(),
        })
    }

    pub fn footprint(&self) -> &Footprint {
        &self.footprint
    }

    pub fn chunk(&self) -> usize {
        self.plan.chunk
    }

    /// Seconds per decode step, which is one token per sequence, after a prompt of `depth` tokens.
    pub fn decode(&self, depth: usize, tokens: usize) -> Result<Case<'_>, BenchError> {
        fits(self.plan.context, depth, tokens)?;
        let batch = self.plan.batch;
        let work = Workload {
            tokens: Some(batch as f64),
            flops: Some(flops(&self.expanded.trace, "decode", &self.plan.target)),
            bytes: Some(self.read_weights("decode")),
        };
        let prompt = self.prompt(depth + 1);
        let task = Task { prompt, tokens, kind: if batch == 1 { Kind::Steps } else { Kind::BatchedSteps } };
        let before = Task { tokens: 0, ..task.clone() };
        let mut case = self.case("decode", [("depth", depth.to_string())], work, task, tokens);
        // A batch reads its prompts in the same run.
        if let (Some(watched), Some((network, _)), 2..) = (&mut case.watched, &self.watched, batch) {
            watched.before = Some(before.run(network));
        }
        Ok(case)
    }

    /// Bytes of weights in one call.
    fn read_weights(&self, entry: &str) -> f64 {
        self.footprint.streamed as f64 - unread_experts(&self.expanded.trace, entry)
    }

    /// Includes the computation of the first new token.
    pub fn prefill(&self, tokens: usize) -> Result<Case<'_>, BenchError> {
        fits(self.plan.context, 0, tokens)?;
        let calls = tokens.div_ceil(self.plan.chunk) as f64;
        let work = Workload {
            tokens: Some(tokens as f64),
            flops: Some(calls * flops(&self.expanded.trace, "prefill", &self.plan.target)),
            bytes: Some(calls * self.read_weights("prefill")),
        };
        let sizes = [("tokens", tokens.to_string())];
        let task = Task { prompt: self.prompt(tokens), tokens: 1, kind: Kind::Reading };
        Ok(self.case("prefill", sizes, work, task, 1))
    }

    /// Fails if the device does not count calls, or several entry points read the prompt: a profile cannot
    /// separate their times.
    pub fn can_profile(&self, case: &Case<'_>) -> Result<(), BenchError> {
        match case.watched {
            Some(_) => self.profiled_calls(&case.label).map(drop),
            None => Err(BenchError::NotWatched),
        }
    }

    /// For one call of the entry point.
    pub fn profile(&self, model: &str, measured: &Measured) -> Result<Profile, BenchError> {
        let (entry, calls) = self.profiled_calls(&measured.label)?;
        self.profiled(model, entry, calls as f64, measured).ok_or(BenchError::NotWatched)
    }

    /// The entry point, and its calls per decode step or per prompt.
    fn profiled_calls(&self, label: &Label) -> Result<(&'static str, usize), BenchError> {
        let tokens = label.variant.get("tokens").and_then(|tokens| tokens.parse::<usize>().ok());
        let chunk = self.plan.chunk;
        match tokens {
            None => Ok(("decode", 1)),
            Some(tokens) => Ok(("prefill", whole_chunks(tokens, chunk)?)),
        }
    }

    fn case<'a>(
        &'a self,
        case: &str,
        sizes: impl IntoIterator<Item = (&'static str, String)>,
        work: Workload,
        task: Task,
        units: usize,
    ) -> Case<'a> {
        let mut variant = variant(&self.plan);
        variant.extend(self.placed.iter().cloned());
        variant.extend(sizes);
        let watched = self.watched.as_ref().map(|(network, runtime)| Watched {
            runtime,
            run: task.clone().run(network),
            before: None,
            units,
            paths: &self.paths,
        });
        Case {
            label: Label { case: case.into(), variant, flags: self.flags.clone() },
            work,
            run: match &self.network {
                LoadedNetwork::Iree(network) => task.run(network),
                LoadedNetwork::Xla(network) => task.run(network),
            },
            watched,
        }
    }

    /// Distributed over the whole vocabulary.
    fn prompt(&self, tokens: usize) -> Vec<u32> {
        (0..tokens).map(|i| (i * 7919 % self.plan.model.vocabulary()) as u32).collect()
    }
}

pub fn fits(context: usize, depth: usize, tokens: usize) -> Result<(), BenchError> {
    if depth.saturating_add(tokens) < context && tokens > 0 {
        Ok(())
    } else {
        Err(BenchError::Depth { depth, tokens, context })
    }
}

/// Fails if the last chunk is shorter, because another entry point reads it, and a profile describes only
/// one.
pub fn whole_chunks(tokens: usize, chunk: usize) -> Result<usize, BenchError> {
    match tokens % chunk {
        0 => Ok(tokens / chunk),
        _ => Err(BenchError::Chunks { tokens, chunk }),
    }
}

/// Generates `tokens` tokens after a prompt, and measures one part of this work.
#[derive(Clone)]
struct Task {
    prompt: Vec<u32>,
    tokens: usize,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// The seconds of a decode step. The network first reads all tokens of the prompt except the last,
    /// which the first decode step reads.
    Steps,
    /// The seconds of a decode step of a whole batch, whose sequences all have the same prompt.
    BatchedSteps,
    /// The seconds for reading the prompt and computing the first new token.
    Reading,
}

impl Task {
    fn run<E: Executor>(self, network: &Network<E>) -> Run<'_> {
        let Self { prompt, tokens, kind } = self;
        let mut options = TokenOptions { max_tokens: tokens, ..TokenOptions::default() };
        match kind {
            Kind::Steps => {
                let mut session = Session::new(network);
                Box::new(move || {
                    let depth = prompt.len() - 1;
                    session.truncate(depth);
                    let seen = session.tokens().len();
                    if seen < depth {
                        session.feed(&prompt[seen..depth])?;
                    }
                    let go_on = |_| ControlFlow::Continue(());
                    let generated = session.generate(&prompt[depth..], &options, go_on)?;
                    let seconds = (generated.prefill + generated.decode).as_secs_f64();
                    Ok(seconds / (1 + generated.decode_steps) as f64)
                })
            }
            Kind::BatchedSteps => {
                // Reading the prompts chooses the first token, so the number of tokens is one larger
                // than the number of steps.
                options.max_tokens += 1;
                // All rounds use the same KV caches, because the first access to new memory is slow.
                let mut batch = Batch::new(network);
                Box::new(move || {
                    let prompts = vec![&prompt; network.batch()];
                    let generated = batch.generate(&prompts, &options, |_, _| ControlFlow::Continue(()))?;
                    let seconds = |one: &Generated| one.decode.as_secs_f64() / one.decode_steps.max(1) as f64;
                    Ok(generated.iter().map(seconds).fold(0.0, f64::max))
                })
            }
            Kind::Reading => Box::new(move || {
                let go_on = |_| ControlFlow::Continue(());
                let generated = Session::new(network).generate(&prompt, &options, go_on)?;
                Ok(generated.prefill.as_secs_f64())
            }),
        }
    }
}

/// With counters for executed functions, if the device supports them.
pub fn watched(device: Device) -> Option<Device> {
    match device {
        Device::LocalTask { workers } | Device::Watched { workers } => Some(Device::Watched { workers }),
        Device::LocalSync => Some(Device::Watched { workers: 1 }),
        Device::Driver(_) => None,
    }
}
