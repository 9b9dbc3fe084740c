//! `parity DIR`: whether we answer as transformers and sentence-transformers did, for each case that
//! `tests/oracle/parity.py` put into DIR.
//!
//! `parity read MODEL_DIR [KEY …]`: whether a checkpoint is one that we can read, whose configuration may have these keys.
//! `parity model MODEL_DIR DIR [--json] [KEY …] -- COMMAND …`: how it compares with what `tests/oracle/checkpoint.py` put into
//! DIR; the command, with tokens, a type and a file behind it, writes what modules got and gave.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde::Deserialize;
use tracewright::Plan;
use tracewright::errors::{WithCauses, WithPath as _};
use tracewright::irpa::Checkpoint;
use tracewright::lower::Weights;
use tracewright::models;
use tracewright::ops::ElementType;
use tracewright_tests::built::Result;
use tracewright_tests::embedding;
use tracewright_tests::golden::{self, ALL, BuildOptions, Golden};
use tracewright_tests::parity;
use tracewright_tests::pieces;
use tracewright_tests::precision::{self, Average};

#[derive(Deserialize)]
struct Index {
    cases: Vec<String>,
}

/// The results of the cases so far.
#[derive(Default)]
struct Summary {
    failed: Vec<String>,
    worst: f64,
    at: String,
    gap: Option<f32>,
    rows: usize,
    vectors: usize,
    worst_vector: f64,
    worst_text: String,
    /// Those in a narrow type, by family and by who computes.
    narrow: BTreeMap<(String, &'static str), Average>,
}

/// The number of sequences of the program that a case builds. The program also serves one sequence alone.
const BATCH: usize = 2;

const USAGE: &str = "usage: parity DIR, where `tests/oracle/parity.py --out DIR` wrote its cases
       parity read MODEL_DIR [KEY …]
       parity model MODEL_DIR DIR [--json] [KEY …] -- COMMAND …, where `tests/oracle/checkpoint.py --out DIR` wrote its answers";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match &words[..] {
        [folder] => run(Path::new(folder)),
        ["read", folder, keys @ ..] => read(Path::new(folder), keys),
        ["model", model, folder, "--json", rest @ ..] if rest.contains(&"--") => {
            model_beside(model, folder, true, rest)
        }
        ["model", model, folder, rest @ ..] if rest.contains(&"--") => {
            model_beside(model, folder, false, rest)
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {}", WithCauses(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Before anything large is installed or run.
fn read(model: &Path, keys: &[&str]) -> Result<bool> {
    let config = models::read(model, &owned(keys))?;
    let checkpoint = config.named(Checkpoint::open(model)?);
    let plan = Plan::new(config, None, None, None)?;
    let trace = plan.trace()?.trace;
    plan.lower(&trace)?.check(&checkpoint, &trace)?;
    Ok(true)
}

/// How a checkpoint compares with the answers in a folder; keys of its configuration are in front of `--`, the command behind.
fn model_beside(model: &str, folder: &str, json: bool, rest: &[&str]) -> Result<bool> {
    let keys = rest.iter().position(|word| *word == "--").unwrap_or(rest.len());
    let (keys, command) = (&rest[..keys], rest.get(keys + 1..).unwrap_or_default());
    let mut golden = Golden::within(Path::new(folder), Path::new(model))?;
    golden.allowed_keys = owned(keys);
    let dump = |tokens: &[u32], element: ElementType| -> Result<PathBuf> {
        let out = Path::new(folder).join("activations.safetensors");
        let tokens: Vec<String> = tokens.iter().map(u32::to_string).collect();
        let [program, rest @ ..] = command else { return Err("no command writes activations".into()) };
        let mut dumps = Command::new(program);
        dumps.args(rest).args(["--tokens", &tokens.join(","), "--dtype", torch_name(element), "--out"]);
        let status = dumps.arg(&out).status().with_path("write", &out)?;
        status.success().then_some(out).ok_or_else(|| format!("`{program}` failed ({status})").into())
    };
    let report = parity::compare(&golden, &dump, &|what| eprintln!("comparing {what}"))?;
    if json {
        println!("{}", serde_json::to_string(&report)?)
    } else {
        println!("{report}")
    }
    Ok(report.passes)
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The name of a type in torch.
fn torch_name(element: ElementType) -> &'static str {
    match element {
        ElementType::Bf16 => "bfloat16",
        ElementType::F16 => "float16",
        _ => "float32",
    }
}

fn run(folder: &Path) -> Result<bool> {
    let index = folder.join("index.json");
    let text = std::fs::read(&index).with_path("read", &index)?;
    let Index { cases } = serde_json::from_slice(&text)?;
    let mut summary = Summary::default();
    for name in &cases {
        match case(&folder.join(name), &mut summary) {
            Ok((line, passes)) => {
                println!("{} {name} {line}", if passes { "pass" } else { "FAIL" });
                if !passes {
                    summary.failed.push(name.clone());
                }
            }
            Err(error) => {
                println!("FAIL {name} {}", WithCauses(&*error));
                summary.failed.push(name.clone());
            }
        }
    }
    let Summary { mut failed, worst, at, gap, rows, vectors, worst_vector, worst_text, narrow } = summary;
    let count = cases.len();
    if rows > 0 {
        println!(
            "{count} cases, {rows} rows of f32 logits: worst error {worst:.1e} of the largest logit ({at}),"
        );
        println!("smallest gap between first and second logit {:.1e}", gap.unwrap_or_default());
    }
    if vectors > 0 {
        println!(
            "{vectors} vectors of texts: worst error {worst_vector:.1e} of the largest number ({worst_text})"
        );
    }
    if !narrow.is_empty() {
        println!("| family | | {} |", precision::COLUMNS);
    }
    for ((family, how), average) in &narrow {
        println!("| {family} | {how} | {average} |");
        if !average.passes() {
            failed.push(format!("{family} {how}"));
        }
    }
    let passes = failed.is_empty() && count > 0;
    println!(
        "{}",
        if passes { "parity: passed".into() } else { format!("parity: FAILED {}", failed.join(" ")) }
    );
    Ok(passes)
}

/// Compares one case and reports the result. Embedding models compare embeddings. Narrow types are compared
/// with transformers' run in the same type, if it is stored. All other cases compare logits in f32.
fn case(folder: &Path, summary: &mut Summary) -> Result<(String, bool)> {
    if let Ok(golden) = embedding::Golden::of(folder) {
        let report = embedding::check(&golden, &embedding::build(&golden, ElementType::F32, 2, Ok)?)?;
        summary.vectors += report.texts;
        let (error, text) = report.worst;
        if error > summary.worst_vector {
            summary.worst_vector = error;
            summary.worst_text = format!("{} text {text}", golden.name);
        }
        return Ok((format!("{}: {report}", golden.storage), report.passes()));
    }
    let golden = Golden::of(folder)?;
    let sizes = BuildOptions::of(&golden);
    let head = format!("c {} N {} {}:", golden.chunk, golden.context, golden.storage);
    if golden.has_own() {
        let family = golden.name.split('-').next().unwrap_or_default();
        let mut lines = vec![head];
        let mut passes = true;
        for (kernels, how) in [(true, "with kernels"), (false, "without")] {
            let weights = Weights { kernels, ..sizes.weights.clone() };
            let sizes = BuildOptions { element: golden.storage, weights, ..BuildOptions::of(&golden) };
            let found = precision::measure(
                &golden,
                &golden::build(folder, &sizes, &["decode", "score"], Ok)?.network,
            )?;
            lines.push(format!("{how} {found}"));
            passes &= found.wrong.is_empty();
            summary.narrow.entry((family.to_owned(), how)).or_default().add(found);
        }
        return Ok((lines.join("\n     "), passes));
    }
    let sizes = BuildOptions { batch: BATCH, in_parts: true, ..sizes };
    let subject = golden::build(folder, &sizes, ALL, Ok)?;
    let reports = [
        ("in chunks", golden::check(&golden, &subject)?),
        ("token by token", pieces::token_by_token(&golden, &subject.network)?),
        ("in a batch", pieces::in_batches(&golden, &subject.network)?),
    ];
    let mut lines = vec![head];
    for (how, report) in &reports {
        summary.rows += report.rows;
        let (error, prompt, position) = report.worst;
        if error > summary.worst {
            summary.worst = error;
            summary.at = format!("{} prompt {prompt} position {position}", golden.name);
        }
        summary.gap = Some(summary.gap.map_or(report.gap, |gap| gap.min(report.gap)));
        lines.push(format!("{how} {report}"));
    }
    Ok((lines.join("\n     "), reports.iter().all(|(_, report)| report.passes())))
}
