//! Measures the speed at which a model serves several texts in parallel. Run
//! `serving MODEL QUANT ROUNDS`, for example `serving DIR q4 7`.
//!
//! The program alternates between the measured variants, and reports the median of all rounds.
use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use tracewright::Plan;
use tracewright::build::{BuiltProgram, ProgramOptions, build_program};
use tracewright::dsl::EntryPoint;
use tracewright::generate::{
    Batch, Budgeted, Certainty, Drafter, GenerateError, Network, Prompt, Session, TokenOptions,
};
use tracewright::lower::Weights;
use tracewright::runtime::Compiler;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SLOTS: usize = 8;
const PROMPT: usize = 512;
/// The number of generation steps in each run of the benchmark. A prompt has fewer chunks than a
/// run has steps, so the model reads the whole prompt during a run.
const STEPS: usize = 40;
const ANSWER: usize = 97;
/// The length of the common prefix of two prompts, in tokens.
const COMMON: usize = 1000;

/// Proposes the tokens that an earlier run without speculative decoding generated, so every
/// proposed token is correct.
struct Oracle(Vec<u32>);

impl Drafter for Oracle {
    fn draft(
        &mut self,
        seen: &[u32],
        most: usize,
        _: Certainty,
    ) -> std::result::Result<Vec<u32>, GenerateError> {
        Ok(self.0.iter().skip(seen.len()).take(most).copied().collect())
    }
}

fn options(max_tokens: usize) -> TokenOptions {
    TokenOptions { max_tokens, ..TokenOptions::default() }
}

fn prompt(network: &Network, length: usize, seed: usize) -> Vec<u32> {
    (0..length).map(|i| ((i * 7919 + seed * 131) % network.vocabulary()) as u32).collect()
}

fn go(_: usize, _: u32) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Runs `steps` generation steps of a batch. Returns the total time and the time of the longest
/// step, in seconds.
fn timed(batch: &mut Batch<'_>, steps: usize) -> Result<(f64, f64)> {
    let (start, mut longest) = (Instant::now(), 0.0f64);
    for _ in 0..steps {
        let step = Instant::now();
        batch.step(go)?;
        longest = longest.max(step.elapsed().as_secs_f64());
    }
    Ok((start.elapsed().as_secs_f64(), longest))
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn load(model: &Path, quantize: &str, batch: usize) -> Result<BuiltProgram> {
    let compiler = Compiler::new("iree-compile");
    let network = tracewright::models::read(model, &[])?;
    let context = network.max_context().min(1152);
    let element = network.element();
    let plan = Plan::new(network, element, Some(context), None)?;
    let weights = Weights { quantize: quantize.parse()?, ..Weights::default() };
    let plan = Plan { batch, weights: weights.clone(), target: compiler.resolve(&plan.target)?, ..plan };
    let entries = [plan.steps(), plan.verifier()].concat().into_iter().flat_map(EntryPoint::in_parts);
    let checkpoint = plan.model.weights(&model.into())?;
    let traced = plan.record(&entries.collect::<Vec<_>>())?;
    let (target, ignorable) = (plan.target.clone(), plan.model.ignorable.clone());
    let options = ProgramOptions::new(&compiler, Path::new("cache"));
    Ok(build_program(&traced, &checkpoint, ProgramOptions { weights, target, ignorable, ..options })?)
}

/// Measures the time per step in which a program for up to eight texts generates a single text. The
/// function divides this time by the time that a program for one text needs per step.
fn one_of_eight(one: &Network, eight: &Network, rounds: usize) -> Result<()> {
    let mut batches = [one, eight].map(Batch::new);
    for batch in &mut batches {
        batch.join([5], &options(usize::MAX))?;
        batch.step(go)?;
    }
    let mut ratios = Vec::new();
    for _ in 0..rounds {
        let [alone, among] = &mut batches;
        let alone = timed(alone, 8)?.0;
        ratios.push(timed(among, 8)?.0 / alone);
    }
    println!("one text in {SLOTS} slots: {:.3} of the time in one slot", median(ratios));
    Ok(())
}

/// Measures how much a new prompt slows down the generation of seven other texts.
fn beside_a_prompt(eight: &Network, rounds: usize) -> Result<()> {
    let prompt = prompt(eight, PROMPT, 3);
    let (mut wholes, mut gaps) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let chunks = PROMPT.div_ceil(eight.chunk());
        let mut batch = Batch::new(eight).schedule(Budgeted::default());
        batch.join(&prompt, &options(1))?;
        let (alone, chunk) = timed(&mut batch, chunks)?;
        for text in 1..SLOTS {
            batch.join([text as u32], &options(usize::MAX))?;
        }
        batch.step(go)?;
        let (texts, step) = timed(&mut batch, STEPS)?;
        batch.join(&prompt, &options(1))?;
        let (both, gap) = timed(&mut batch, STEPS)?;
        wholes.push(both / (alone + texts));
        gaps.push(gap / (chunk + 2.0 * step));
    }
    println!(
        "{} texts beside a prompt of {PROMPT} tokens: {:.3} of both apart, the longest gap {:.3} of a chunk and two steps",
        SLOTS - 1,
        median(wholes),
        median(gaps)
    );
    Ok(())
}

/// Measures the throughput for eight texts. The program reads a prompt of 128 tokens for each text,
/// and then generates 64 tokens.
fn eight_texts(eight: &Network, rounds: usize) -> Result<()> {
    let mut rates = Vec::new();
    for _ in 0..rounds {
        let prompts: Vec<Vec<u32>> = (0..SLOTS).map(|text| prompt(eight, 128, text)).collect();
        let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        let start = Instant::now();
        Batch::new(eight).schedule(Budgeted::default()).generate(&prompts, &options(64), go)?;
        rates.push((SLOTS * (128 + 64)) as f64 / start.elapsed().as_secs_f64());
    }
    println!("{SLOTS} texts of 128 + 64 tokens: {:.1} tokens/s", median(rates));
    Ok(())
}

/// Measures the speedup of speculative decoding if all drafts are correct.
fn right_drafts(one: &Network, rounds: usize) -> Result<()> {
    let prompt = prompt(one, 16, 1);
    let go = |_| ControlFlow::Continue(());
    let answer = Session::new(one).generate(&prompt, &options(ANSWER + 8), go)?.tokens;
    let all = [&prompt[..], &answer].concat();
    let mut ratios = Vec::new();
    for _ in 0..rounds {
        let plain = Session::new(one).generate(&prompt, &options(ANSWER), go)?;
        let mut drafted = Session::new(one).speculate(Oracle(all.clone()));
        let drafted = drafted.generate(&prompt, &options(ANSWER), go)?;
        if plain.tokens != drafted.tokens {
            return Err("drafts changed the answer".into());
        }
        ratios.push(plain.decode.as_secs_f64() / drafted.decode.as_secs_f64());
    }
    println!("drafts that are always right: {:.2} times as fast", median(ratios));
    Ok(())
}

/// Measures the time until the first token for two prompts with a common beginning. The second
/// prompt reuses the KV cache of the first prompt.
fn common_beginning(eight: &Network, rounds: usize) -> Result<()> {
    let mut ratios = Vec::new();
    for round in 0..rounds {
        let beginning = prompt(eight, COMMON, round + 7);
        let [first, second] = [11, 12].map(|seed| [&beginning[..], &prompt(eight, 16, seed)].concat());
        let mut batch = Batch::new(eight).schedule(Budgeted::default()).keep_prefixes();
        let mut first_token = |tokens: &[u32]| -> Result<(f64, Vec<u32>)> {
            let start = Instant::now();
            let row = batch.join(Prompt::from(tokens).reusing(), &options(1))?;
            loop {
                let ended = batch.step(go)?;
                if let Some((_, generated)) = ended.into_iter().find(|(ended, _)| *ended == row) {
                    return Ok((start.elapsed().as_secs_f64(), generated.tokens));
                }
            }
        };
        let (whole, _) = first_token(&first)?;
        let (rest, tokens) = first_token(&second)?;
        if tokens != Session::new(eight).generate(&second, &options(1), |_| ControlFlow::Continue(()))?.tokens
        {
            return Err("reused state changed the answer".into());
        }
        ratios.push(rest / whole);
    }
    println!("a second prompt with {COMMON} common tokens: {:.3} of the first's time", median(ratios));
    Ok(())
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [model, quantize, rounds] = &words[..] else {
        return Err("name a model, a format and rounds".into());
    };
    let rounds = rounds.parse::<usize>()?.max(1);
    let programs = [load(Path::new(model), quantize, 1)?, load(Path::new(model), quantize, SLOTS)?];
    let (one, eight) = (programs[0].program.network()?, programs[1].program.network()?);
    one_of_eight(&one, &eight, rounds)?;
    beside_a_prompt(&eight, rounds)?;
    eight_texts(&eight, rounds)?;
    common_beginning(&eight, rounds)?;
    right_drafts(&one, rounds)
}
