//! Compares a checkpoint of the user with transformers, for `cargo xtask parity --model`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use instruments::bisect::{Activations, CompiledForm, Finding, TokenCall};
use serde::Serialize;
use tracewright::Plan;
use tracewright::generate::Tokenizer;
use tracewright::irpa::Checkpoint;
use tracewright::models;
use tracewright::ops::ElementType::{self, F32};
use tracewright::runtime::{Device, Runtime};

use crate::built::{Result, compiler, repository};
use crate::golden::{self, ALL, BuildOptions, Comparison, Golden};
use crate::level;
use crate::precision::{self, FACTOR, Far, Precision};

/// The largest difference of an f32 logit from transformers', relative to the row's largest magnitude. It
/// equals the bound for outputs of modules, which locate a diverging layer. Sums over thousands of features
/// have different orders.
pub const BOUND: f64 = 3e-5;

/// How many of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Tally {
    pub equal: usize,
    pub of: usize,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.equal, self.of)
    }
}

/// A position of a prompt and what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PromptPosition {
    pub prompt: usize,
    /// Which position, from 0.
    pub position: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LogitDifference {
    /// The rows compared: prompts by one pass and by chunks, what follows token by token.
    pub rows: usize,
    /// The largest difference, in units of its row's largest logit.
    pub largest: f64,
    pub bound: f64,
    pub at: PromptPosition,
}

/// The type of the checkpoint beside transformers' own run in it, both judged by f32.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NarrowParity {
    #[serde(rename = "type")]
    pub element: String,
    pub positions: usize,
    /// Our error in units of transformers' own, without rows that are far off: many tokens at once, token by token.
    pub error_ratio: [f64; 2],
    /// The bound on the largest difference.
    pub bound: f64,
    pub far_rows: Far,
    /// The divergence from f32, in nats: many tokens at once, token by token.
    pub kl: [f64; 2],
    /// That of transformers' own run.
    pub kl_of_transformers: f64,
    /// The tokens that f32 decides.
    pub judged: usize,
    /// The positions of wrong tokens.
    pub wrong: Vec<PromptPosition>,
    pub passes: bool,
}

impl NarrowParity {
    fn new(element: ElementType, found: &Precision) -> Self {
        let wrong = found.wrong.iter().map(|&(prompt, position)| PromptPosition { prompt, position });
        Self {
            element: element.to_string(),
            positions: found.positions(),
            error_ratio: [found.ratio(|case| &case.scored), found.ratio(|case| &case.decoded)],
            bound: FACTOR,
            far_rows: found.far(),
            kl: [found.scored.divergence(), found.decoded.divergence()],
            kl_of_transformers: found.theirs.divergence(),
            judged: found.judged,
            wrong: wrong.collect(),
            passes: found.passes(),
        }
    }
}

/// The place at which Tracewright and transformers diverge.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parting {
    /// The tokens that were read.
    pub tokens: Vec<u32>,
    #[serde(rename = "type")]
    pub element: String,
    /// The layer, or the part that is no layer: `model.layers.3`, `lm_head`. Nothing if all modules agree as long as all
    /// tokens are read in one pass.
    pub layer: Option<String>,
    pub finding: Option<Finding>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckpointParity {
    pub passes: bool,
    /// The directory of the checkpoint.
    pub model: PathBuf,
    /// Versions and settings of what it is compared with.
    pub reference: String,
    /// The type of the checkpoint.
    pub storage: String,
    /// Texts and sequences of random tokens.
    pub prompts: usize,
    /// The texts of which our tokenizer makes the same tokens; nothing if there is no tokenizer.
    pub tokenized: Option<Tally>,
    /// The tokens that follow greedily, in f32.
    pub tokens: Tally,
    /// Positions with another token than transformers', where transformers' margin is below the bound on
    /// logits.
    pub undecided: Vec<PromptPosition>,
    /// How logits differ, in f32.
    pub logits: LogitDifference,
    /// The smallest distance between the two best logits where a token was chosen.
    pub gap: f32,
    /// For a checkpoint in bf16 or f16: how that type compares.
    pub narrow: Option<NarrowParity>,
    /// The place at which the two diverge, if they do.
    pub parting: Option<Parting>,
}

/// Writes what transformers' modules got and gave, of these tokens and in this type, and says where.
pub type DumpActivations<'a> = &'a dyn Fn(&[u32], ElementType) -> Result<PathBuf>;

/// Compares a checkpoint with what transformers answered: in f32, and in the checkpoint's own type. `say` is told what is
/// done.
pub fn compare(
    golden: &Golden,
    activations: DumpActivations<'_>,
    say: &dyn Fn(&str),
) -> Result<CheckpointParity> {
    say("tokens and logits in f32");
    let subject = golden::build(&golden.model, &BuildOptions::of(golden), ALL, Ok)?;
    let found = golden::check_within(golden, &subject, BOUND)?;
    drop(subject);
    let (decided, undecided) = first_wrong(golden, &found)?;
    let narrow = if golden.has_own() {
        let element = golden.storage;
        say(&format!("error and divergence in {element}"));
        let sizes = BuildOptions { element, ..BuildOptions::of(golden) };
        let subject = golden::build(&golden.model, &sizes, &["decode", "score"], Ok)?;
        Some(NarrowParity::new(element, &precision::measure(golden, &subject.network)?))
    } else {
        None
    };
    let tokenized = tokenized(golden)?;
    let (largest, prompt, position) = found.worst;
    let logits =
        LogitDifference { rows: found.rows, largest, bound: BOUND, at: PromptPosition { prompt, position } };
    // What is beyond its bound first is looked at in as few tokens as show it.
    let beyond = found.first.map(|(position, prompt)| PromptPosition { prompt, position });
    let exact = beyond.into_iter().chain(decided).min_by_key(|at| at.position);
    let parted = match (exact, &narrow) {
        (Some(at), _) => Some((at, F32)),
        (None, Some(narrow)) if !narrow.passes => {
            let whole = PromptPosition { prompt: 0, position: usize::MAX };
            Some((narrow.wrong.first().copied().unwrap_or(whole), golden.storage))
        }
        _ => None,
    };
    let parting = match parted {
        Some((at, element)) => {
            let fed = golden.prompts[at.prompt].fed();
            // One token alone attends to nothing else.
            let tokens = &fed[..at.position.saturating_add(1).max(2).min(fed.len())];
            say(&format!("where {} tokens part in {element}", tokens.len()));
            Some(part(golden, tokens, element, &activations(tokens, element)?)?)
        }
        None => None,
    };
    let texts_agree = tokenized.is_none_or(|texts| texts.equal == texts.of);
    Ok(CheckpointParity {
        passes: parting.is_none() && texts_agree && found.rows > 0,
        model: golden.model.clone(),
        reference: golden.reference.clone(),
        storage: golden.storage.to_string(),
        prompts: golden.prompts.len(),
        tokenized,
        tokens: equal_tokens(golden, &found),
        undecided,
        logits,
        gap: found.gap,
        narrow,
        parting,
    })
}

/// The texts of which our tokenizer makes the tokens that transformers' made.
fn tokenized(golden: &Golden) -> Result<Option<Tally>> {
    let Some(tokenizer) = Tokenizer::load(&golden.model)? else { return Ok(None) };
    let mut share = Tally { equal: 0, of: 0 };
    for prompt in &golden.prompts {
        if let Some(text) = &prompt.prompt {
            share.of += 1;
            share.equal += usize::from(tokenizer.encode(text)? == prompt.prompt_tokens);
        }
    }
    Ok((share.of > 0).then_some(share))
}

/// The tokens before the first one that is another.
fn equal_tokens(golden: &Golden, found: &Comparison) -> Tally {
    let wrong = first_steps(found);
    let equal =
        |(i, prompt): (usize, &golden::GoldenPrompt)| wrong.get(&i).copied().unwrap_or(prompt.tokens.len());
    Tally {
        equal: golden.prompts.iter().enumerate().map(equal).sum(),
        of: golden.prompts.iter().map(|prompt| prompt.tokens.len()).sum(),
    }
}

/// For each prompt with a wrong token, the step of the first one.
fn first_steps(found: &Comparison) -> BTreeMap<usize, usize> {
    let mut first = BTreeMap::new();
    for &(prompt, step, ..) in &found.wrong {
        let earliest = first.entry(prompt).or_insert(step);
        *earliest = step.min(*earliest);
    }
    first
}

/// The positions of the first different token of each prompt: those that transformers' margin proves wrong,
/// and the others.
fn first_wrong(golden: &Golden, found: &Comparison) -> Result<(Vec<PromptPosition>, Vec<PromptPosition>)> {
    let (mut decided, mut undecided) = (Vec::new(), Vec::new());
    for (prompt, step) in first_steps(found) {
        let position = golden.prompts[prompt].prompt_tokens.len() - 1 + step;
        if golden.reference(prompt)?.decides(position, BOUND) {
            decided.push(PromptPosition { prompt, position })
        } else {
            undecided.push(PromptPosition { prompt, position })
        }
    }
    Ok((decided, undecided))
}

/// The first module whose values are not those of transformers, which wrote its own to a file.
fn part(golden: &Golden, tokens: &[u32], element: ElementType, file: &Path) -> Result<Parting> {
    let known = Activations::open(file)?;
    if known.tokens().as_deref() != Some(tokens) {
        return Err(format!("`{}` is not about the tokens {tokens:?}", file.display()).into());
    }
    let config = models::read(&golden.model, &golden.allowed_keys)?;
    let checkpoint = config.named(Checkpoint::open(&golden.model)?);
    let plan = Plan::new(config, Some(element), Some(golden.context), Some(tokens.len()))?;
    let trace = plan.trace()?.trace;
    let (compiler, cache) = (compiler()?, repository().join(".tracewright/cache"));
    let target = compiler.resolve(&level::target())?;
    let subject = CompiledForm {
        name: "iree".into(),
        tools: (&compiler, &cache),
        runtime: Runtime::new(Device::LocalSync)?,
        checkpoint: &checkpoint,
        rules: plan.rules,
        weights: plan.weights,
        target,
    };
    let bisected = known.compare(&subject, &trace, &TokenCall::score(tokens), element)?;
    let layer = bisected.finding.as_ref().map(|finding| layer_of(&finding.node.place.path));
    Ok(Parting { tokens: tokens.into(), element: element.to_string(), layer, finding: bisected.finding })
}

/// `model.layers.3` of `model.layers.3.self_attn.q_proj`; a path without a number as it is.
fn layer_of(path: &str) -> String {
    let parts: Vec<&str> = path.split('.').collect();
    let number = parts.iter().position(|part| part.parse::<usize>().is_ok());
    number.map_or(path.to_owned(), |number| parts[..=number].join("."))
}

impl fmt::Display for CheckpointParity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, storage, reference, prompts, tokens, logits, gap, .. } = self;
        writeln!(f, "{} ({storage}), beside {reference}", model.display())?;
        if let Some(texts) = &self.tokenized {
            writeln!(f, "texts that become the same tokens  {texts}")?;
        }
        writeln!(f, "greedy tokens, f32                 {tokens} after {prompts} prompts")?;
        for PromptPosition { prompt, position } in &self.undecided {
            writeln!(
                f,
                "  prompt {prompt} goes on otherwise behind position {position}, where nothing decides"
            )?;
        }
        let LogitDifference { rows, largest, bound, at: PromptPosition { prompt, position } } = logits;
        writeln!(
            f,
            "largest difference of logits, f32  {largest:.1e} of the row's largest (prompt {prompt} position {position}, \
             {rows} rows; at most {bound:.0e})"
        )?;
        writeln!(f, "smallest gap between the best two  {gap:.1e}")?;
        if let Some(narrow) = &self.narrow {
            let NarrowParity { element, positions, error_ratio: [scored, decoded], bound, judged, .. } =
                narrow;
            writeln!(
                f,
                "error in {element}, in units of theirs  {scored:.3}, token by token {decoded:.3} ({positions} positions; at \
                 most {bound})"
            )?;
            let NarrowParity { kl: [scored, decoded], kl_of_transformers, wrong, far_rows, .. } = narrow;
            let Far { ours, theirs } = far_rows;
            writeln!(f, "rows that are far off, {element}       {ours}, theirs {theirs}")?;
            writeln!(
                f,
                "KL from f32 in {element}               {scored:.1e}, token by token {decoded:.1e}, theirs \
                 {kl_of_transformers:.1e}"
            )?;
            writeln!(f, "tokens that f32 decides, {element}     {judged} judged, {} wrong", wrong.len())?;
        }
        if let Some(Parting { tokens, element, layer, finding }) = &self.parting {
            let count = tokens.len();
            match (layer, finding) {
                (Some(layer), Some(Finding { node, .. })) => {
                    let place = &node.place;
                    writeln!(f, "first layer that differs            {layer} ({count} tokens, {element})")?;
                    writeln!(f, "  `{}`, {}:{}: {}", place.path, place.file, place.line, place.op)?;
                    if let Some(difference) = &node.difference {
                        let (subject, reference) = (difference.subject, difference.reference);
                        writeln!(
                            f,
                            "  {:.1e} of the largest: we have {subject:e}, they have {reference:e}",
                            difference.relative
                        )?;
                    }
                }
                _ => writeln!(
                    f,
                    "no layer differs where {count} tokens are read in one pass ({element}): it is in how they are read \
                     one after another; `tracewright bisect` compares that with the evaluator"
                )?,
            }
        }
        f.write_str(if self.passes { "parity: passed" } else { "parity: FAILED" })
    }
}
