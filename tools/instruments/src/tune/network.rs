//! Tunes two settings of a whole network: the number of tokens per prefill call, and the flags of
//! the compiler.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use generate::{Network, Session, TokenOptions};
use irpa::Checkpoint;
use ops::{Bound, ElementType, TensorType, Value};
use runtime::Device;
use targets::{CompilerFlag, Target, Tuning};

use super::TuneError;
use super::trial::{in_turn, is_refusal, said};
use crate::bench::BenchError;
use tracewright::build::{LoadError, ProgramOptions, build_program};
use tracewright::tuning::{BuildSettings, Record, TuningDb, Verdict, network_name};
use tracewright::{Plan, PlanError};

/// The numbers of tokens per prefill call that the tuner tries.
const CHUNKS: [usize; 5] = [32, 64, 128, 256, 512];

/// Ends with an incomplete chunk, as most prompts do.
const PROMPT: usize = 500;

const STEPS: usize = 16;

/// Decode steps whose logits are compared: the last tokens of the prompt.
const COMPARED: usize = 3;

#[derive(Clone, Copy)]
pub struct Weighted<'a> {
    pub checkpoint: &'a Checkpoint,
    /// Compiler, cache and memory; the plan sets the rest.
    pub options: &'a dyn Fn() -> ProgramOptions<'a>,
}

/// With the measurements of all tried settings.
pub struct TunedNetwork<'a> {
    plan: &'a Plan,
    context: usize,
    pub record: Record<BuildSettings>,
}

impl<'a> TunedNetwork<'a> {
    /// Creates a tuner for the network of a plan. The argument `known` contains measurements of earlier runs.
    pub fn new(plan: &'a Plan, known: &TuningDb) -> Result<Self, PlanError> {
        let chunk = NonZeroUsize::new(plan.chunk).unwrap_or(NonZeroUsize::MIN);
        let usual = BuildSettings { chunk, flags: Vec::new() };
        let record = Record::known(&known.networks, &network_name(plan)?, usual);
        Ok(Self { plan, context: plan.context.min(2 * PROMPT), record })
    }

    /// Not tried yet, and different from the fastest ones only in the chunk or one flag.
    pub fn left(&self) -> Vec<BuildSettings> {
        let best = self.record.fastest();
        let chunks = CHUNKS.into_iter().filter(|&chunk| chunk <= self.context).filter_map(NonZeroUsize::new);
        let chunks = chunks.filter(|chunk| self.record.seen().all(|seen| seen.chunk != *chunk));
        let chunks = chunks.map(|chunk| BuildSettings { chunk, ..best.clone() });
        let flags = CompilerFlag::ALL.into_iter();
        let flags = flags.filter(|flag| self.record.seen().all(|seen| !seen.flags.contains(flag)));
        let flags =
            flags.map(|flag| BuildSettings { flags: [&best.flags[..], &[flag]].concat(), ..best.clone() });
        chunks.chain(flags).collect()
    }

    /// Loads the network with default settings, and computes reference logits.
    pub fn trials<'t>(&self, weights: &Weighted<'t>, kernels: &Tuning) -> Result<NetworkTrials<'t>, TuneError>
    where
        'a: 't,
    {
        let Self { plan, context, .. } = *self;
        let &Weighted { checkpoint, options } = weights;
        let kernels = kernels.clone();
        let maker = Maker { plan, context, checkpoint, kernels, options };
        let usual = maker.load(&self.record.usual)?;
        let expected = maker.answers(&usual)?;
        Ok(NetworkTrials { maker, usual, expected })
    }
}

/// The network with default settings, and its logits.
pub struct NetworkTrials<'a> {
    maker: Maker<'a>,
    usual: Network,
    expected: Vec<Value>,
}

/// Builds a network with different settings, and calls the built networks.
struct Maker<'a> {
    plan: &'a Plan,
    context: usize,
    checkpoint: &'a Checkpoint,
    kernels: Tuning,
    options: &'a dyn Fn() -> ProgramOptions<'a>,
}

impl Maker<'_> {
    fn load(&self, making: &BuildSettings) -> Result<Network, TuneError> {
        let Self { plan, context, .. } = self;
        let traced = plan.record(&plan.steps_of(making.chunk.get(), *context))?;
        let flags = making.flags.clone();
        let tuning = Tuning { kernels: self.kernels.kernels.clone(), chunk: None, flags };
        let options = ProgramOptions {
            target: Target { tuning, ..plan.target.clone() },
            rules: plan.rules,
            weights: plan.weights.clone(),
            ignorable: plan.model.ignorable.clone(),
            device: Device::LocalTask { workers: 0 },
            ..(self.options)()
        };
        let loaded = build_program(&traced, self.checkpoint, options).map_err(BenchError::from)?;
        Ok(loaded.program.network().map_err(BenchError::from)?)
    }

    /// The order of additions can differ: 3e-5 of the largest logit in f32, as against Hugging Face
    /// transformers, and more for 16-bit types and 8-bit activations.
    fn bound(&self) -> Bound {
        let share = match (self.plan.weights.quantize.rounds(), self.plan.element) {
            (false, ElementType::F32) => 3e-5,
            (false, ElementType::F16) => 2e-2,
            _ => 8e-2,
        };
        Bound::UlpsOfLargest(share / ElementType::F32.ulp(1.0))
    }

    /// Returns tokens that are distributed over the whole vocabulary.
    fn prompt(&self) -> Vec<u32> {
        let length = PROMPT.min(self.context.saturating_sub(STEPS + 1)).max(1);
        (0..length).map(|i| (i * 7919 % self.plan.model.vocabulary()) as u32).collect()
    }

    /// After the beginning of the prompt, and after each of the last [`COMPARED`] tokens.
    fn answers(&self, network: &Network) -> Result<Vec<Value>, TuneError> {
        let mut session = Session::new(network);
        let prompt = self.prompt();
        let mut answers = Vec::new();
        let (first, rest) = prompt.split_at(prompt.len().saturating_sub(COMPARED).max(1));
        for tokens in [first].into_iter().chain(rest.chunks(1)) {
            let logits = session.feed(tokens).map_err(BenchError::from)?;
            let ty = TensorType::new(ElementType::F32, [logits.len()]);
            answers.push(Value::new(ty, logits.into_iter().map(f64::from)));
        }
        Ok(answers)
    }

    /// The geometric mean of first token and further tokens, so that both have the same influence.
    fn seconds(&self, network: &Network) -> Result<f64, TuneError> {
        let prompt = self.prompt();
        let room = self.context - prompt.len();
        let options = TokenOptions { max_tokens: STEPS.min(room), ..TokenOptions::default() };
        let generated = Session::new(network).generate(&prompt, &options, |_| ControlFlow::Continue(()));
        let generated = generated.map_err(BenchError::from)?;
        let step = generated.decode.as_secs_f64() / generated.decode_steps.max(1) as f64;
        let prefill = generated.prefill.as_secs_f64();
        Ok(if generated.decode_steps == 0 { prefill } else { (prefill * step).sqrt() })
    }
}

impl NetworkTrials<'_> {
    /// Compares the logits with the reference, and then measures.
    pub fn of(&self, making: &BuildSettings) -> Result<Verdict, TuneError> {
        match self.maker.load(making) {
            Err(TuneError::Bench(error)) => match *error {
                BenchError::Load(LoadError::Compile(error)) if is_refusal(&error) => {
                    Ok(Verdict::Refused(error.to_string()))
                }
                error => Err(error.into()),
            },
            network => self.of_network(&network?),
        }
    }

    /// Compares the logits of a loaded network with the reference logits, and then measures the time.
    pub fn of_network(&self, network: &Network) -> Result<Verdict, TuneError> {
        let Self { maker, usual, expected } = self;
        let bound = maker.bound();
        for (expected, found) in expected.iter().zip(maker.answers(network)?) {
            if let Some(violation) = bound.first_violation(expected, &found) {
                return Ok(Verdict::Wrong(said(violation)));
            }
        }
        in_turn(&mut || maker.seconds(usual), &mut || maker.seconds(network))
    }
}
