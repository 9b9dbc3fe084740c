//! Tunes a whole network: the number of tokens per prefill call, and flags of the compiler.

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

/// The candidates for the number of tokens per prefill call.
const CHUNKS: [usize; 5] = [32, 64, 128, 256, 512];

/// The number of tokens in the prompt. As in practice, this number is not a multiple of any chunk.
const PROMPT: usize = 500;

const STEPS: usize = 16;

/// The number of decode steps after the prompt whose logits are compared.
const COMPARED: usize = 3;

/// The weights of a network that the tuner measures, and the options for loading the network.
#[derive(Clone, Copy)]
pub struct Weighted<'a> {
    pub checkpoint: &'a Checkpoint,
    /// The compiler, the cache and the memory. The plan sets all other options.
    pub options: &'a dyn Fn() -> ProgramOptions<'a>,
}

/// A network and its measurements so far.
pub struct TunedNetwork<'a> {
    plan: &'a Plan,
    context: usize,
    pub record: Record<BuildSettings>,
}

impl<'a> TunedNetwork<'a> {
    /// Creates a tuner for the network of a plan, with known measurements.
    ///
    /// # Errors
    /// Returns an error if a value in the configuration is invalid.
    pub fn new(plan: &'a Plan, known: &TuningDb) -> Result<Self, PlanError> {
        let chunk = NonZeroUsize::new(plan.chunk).unwrap_or(NonZeroUsize::MIN);
        let usual = BuildSettings { chunk, flags: Vec::new() };
        let record = Record::known(&known.networks, &network_name(plan)?, usual);
        Ok(Self { plan, context: plan.context.min(2 * PROMPT), record })
    }

    /// Returns the settings that the tuner should try next. Such settings differ from the best settings so
    /// far in the chunk or in one flag, and are not tried yet.
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

    /// Loads the network with default settings, and computes its logits.
    ///
    /// # Errors
    /// Returns the error of the first stage that fails.
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

/// A network with default settings, and the logits that it computes.
pub struct NetworkTrials<'a> {
    maker: Maker<'a>,
    usual: Network,
    expected: Vec<Value>,
}

/// Builds networks and calls them.
struct Maker<'a> {
    plan: &'a Plan,
    context: usize,
    checkpoint: &'a Checkpoint,
    kernels: Tuning,
    options: &'a dyn Fn() -> ProgramOptions<'a>,
}

impl Maker<'_> {
    /// Builds and loads the network with the given settings.
    fn load(&self, making: &BuildSettings) -> Result<Network, TuneError> {
        let Self { plan, context, .. } = self;
        let traced = plan.record(&plan.steps_of(making.chunk.get(), *context))?;
        let flags = making.flags.clone();
        let tuning = Tuning { kernels: self.kernels.kernels.clone(), chunk: None, flags };
        let options = ProgramOptions {
            target: Target { tuning, ..plan.target.clone() },
            rules: plan.rules,
            weights: plan.weights.clone(),
            ignorable: plan.model.ignorable(),
            device: Device::LocalTask { workers: 0 },
            ..(self.options)()
        };
        let loaded = build_program(&traced, self.checkpoint, options).map_err(BenchError::from)?;
        Ok(loaded.program.network().map_err(BenchError::from)?)
    }

    /// Returns the allowed difference of logits between programs that add numbers in another order. In f32,
    /// the allowed difference is 3e-5 of the largest logit, as in the comparison with transformers. Element
    /// types with few digits, and activations in bytes, allow some additional roundings.
    fn bound(&self) -> Bound {
        let share = match (self.plan.weights.quantize.rounds(), self.plan.element) {
            (false, ElementType::F32) => 3e-5,
            (false, ElementType::F16) => 2e-2,
            _ => 8e-2,
        };
        Bound::UlpsOfLargest(share / ElementType::F32.ulp(1.0))
    }

    /// Tokens that are distributed over the vocabulary.
    fn prompt(&self) -> Vec<u32> {
        let length = PROMPT.min(self.context.saturating_sub(STEPS + 1)).max(1);
        (0..length).map(|i| (i * 7919 % self.plan.model.vocabulary()) as u32).collect()
    }

    /// The logits after the prompt, and after some more tokens.
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

    /// Returns the geometric mean of two times: the time to the first token, and the time of each further
    /// token. With this mean, neither time dominates.
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
    /// Tries settings: compares the logits with the default settings' logits, and then measures the time.
    ///
    /// # Errors
    /// Returns an error if the machine fails, or if `watch` stops the tuning.
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

    /// Tries a network that is already loaded.
    ///
    /// # Errors
    /// Returns an error if the machine fails, or if `watch` stops the tuning.
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
