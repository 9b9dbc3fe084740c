//! Tunes a whole network: the tokens per prefill call, and flags of the compiler.

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

/// Candidates for the tokens per prefill call.
const CHUNKS: [usize; 5] = [32, 64, 128, 256, 512];

/// Tokens of the prompt. As in practice, it is not a multiple of any chunk.
const PROMPT: usize = 500;

const STEPS: usize = 16;

/// Steps after the prompt whose logits are compared.
const COMPARED: usize = 3;

/// The weights of a network that is tuned, and the options for loading it.
#[derive(Clone, Copy)]
pub struct Weighted<'a> {
    pub checkpoint: &'a Checkpoint,
    /// The compiler, the cache and the memory. The plan sets everything else.
    pub options: &'a dyn Fn() -> ProgramOptions<'a>,
}

/// A network and its measurements so far.
pub struct TunedNetwork<'a> {
    plan: &'a Plan,
    context: usize,
    pub record: Record<BuildSettings>,
}

impl<'a> TunedNetwork<'a> {
    /// The network of a plan, with known measurements.
    ///
    /// # Errors
    /// If a value in the configuration is invalid.
    pub fn new(plan: &'a Plan, known: &TuningDb) -> Result<Self, PlanError> {
        let chunk = NonZeroUsize::new(plan.chunk).unwrap_or(NonZeroUsize::MIN);
        let usual = BuildSettings { chunk, flags: Vec::new() };
        let record = Record::known(&known.networks, &network_name(plan)?, usual);
        Ok(Self { plan, context: plan.context.min(2 * PROMPT), record })
    }

    /// Settings worth trying: those that differ from the best so far in the chunk or in one flag, and were
    /// not tried.
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
    /// The failure of the first stage that fails.
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

/// A network with default settings, and its logits.
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
    /// The network, built with these settings.
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

    /// The allowed difference of logits if sums have another order: in f32, 3e-5 of the largest, as in the
    /// comparison with transformers. Narrow types and activations in bytes add some roundings.
    fn bound(&self) -> Bound {
        let share = match (self.plan.weights.quantize.rounds(), self.plan.element) {
            (false, ElementType::F32) => 3e-5,
            (false, ElementType::F16) => 2e-2,
            _ => 8e-2,
        };
        Bound::UlpsOfLargest(share / ElementType::F32.ulp(1.0))
    }

    /// Tokens that are spread over the vocabulary.
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

    /// The geometric mean of the time to the first token and the time of each further one, so that neither
    /// dominates.
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
    /// Tries settings: checks the logits against the default's, and then measures the time.
    ///
    /// # Errors
    /// If the machine fails, or `watch` asks to stop.
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

    /// Tries a network that is loaded.
    ///
    /// # Errors
    /// If the machine fails, or `watch` asks to stop.
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
