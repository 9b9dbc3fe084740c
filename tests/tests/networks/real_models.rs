//! Real models in GGUF files, judged by the answers of transformers for the same files. `tests/oracle/real_models.py`
//! writes the goldens, and `tests/oracle/smollm2_llama.py` writes the values that llama.cpp computes for SmolLM2.
//! `cargo xtask test` installs SmolLM2 135M Instruct and Gemma 3 270M, and `cargo xtask test --long` also
//! Qwen2.5-Coder 0.5B Instruct. Without a file, its tests report that they are left out.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::io::Write as _;

use safetensors::SafeTensors;
use tracewright::Plan;
use tracewright::generate::{Chat, Session, Tokenizer, chat_template};
use tracewright::models;
use tracewright::ops::{ElementType, WeightFormat};
use tracewright::runtime::Device;
use tracewright::trace::{KvFormat, Quantization};
use tracewright::{GenerateOptions, Model, NumericOptions, OpenOptions, user};
use tracewright_tests::built::{compiler, repository};
use tracewright_tests::golden::{ALL, BOUND, BuildOptions, Golden, best, build, greedy};
use tracewright_tests::long;

/// How far logits may be from transformers', in units of the largest: ten times as far as those of toys of a few layers.
const MAGNIFIED: f64 = 10.0 * BOUND;

/// How many of the reference's tokens the default settings choose, given the reference's text so far.
const KEPT: f64 = 0.96;

/// The mean error of the largest logits with default settings, at most this many times llama.cpp's for the same file.
const ROUNDED: f64 = 1.5;

/// Short questions, which the model answers in a few words.
const QUESTIONS: &str = include_str!("../../oracle/smollm2_questions.txt");

/// The golden of the installed file, if it is installed.
fn golden() -> Option<Golden> {
    let golden = Golden::real("smollm2")?;
    assert_eq!(golden.prompts.len(), 16);
    assert!(golden.prompts.iter().all(|prompt| prompt.tokens.len() == 48));
    Some(golden)
}

/// The logits of llama.cpp at the ids of the golden's largest ones, for each prompt and position. `name` is `top_logits`, for the
/// weights in F32, or `rounded`, for the file itself.
fn of_llama_cpp(golden: &Golden, name: &str) -> Vec<Vec<Vec<f32>>> {
    const TOP: usize = 8;
    let bytes = fs::read(repository().join("tests/fixtures/smollm2-135m-llama.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let prompts = (0..golden.prompts.len()).map(|number| {
        let tensor = tensors.tensor(&format!("prompts.{number}.{name}")).unwrap();
        let rows = tensor.data().as_chunks::<{ 4 * TOP }>().0.iter();
        rows.map(|row| row.as_chunks().0.iter().map(|&word| f32::from_le_bytes(word)).collect()).collect()
    });
    prompts.collect()
}

/// Prints a figure also when the test passes, which hides what `println!` prints.
fn show(figures: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{figures}");
}

/// On all threads of this machine, as for any user.
fn options(golden: &Golden) -> BuildOptions {
    BuildOptions { device: Device::LocalTask { workers: 0 }, ..BuildOptions::of(golden) }
}

/// The tokens of the first prompts are those of transformers. `each` gets the logits of a prompt.
fn assert_greedy_tokens(golden: &Golden, prompts: usize, mut each: impl FnMut(usize, &[Vec<f32>])) {
    let subject = build(&golden.model, &options(golden), ALL, Ok).unwrap();
    let mut worst = 0f64;
    for (number, prompt) in golden.prompts.iter().enumerate().take(prompts) {
        let found = greedy(&subject.network, &prompt.prompt_tokens, prompt.tokens.len(), false).unwrap();
        assert_eq!(found.tokens, prompt.tokens, "prompt {number}, smallest gap {:.1e}", prompt.min_gap);
        let reference = golden.reference(number).unwrap();
        let rows = Session::new(&subject.network).score(&prompt.fed()).unwrap();
        worst = rows.iter().enumerate().map(|(i, row)| reference.error(i, row)).fold(worst, f64::max);
        each(number, &rows);
    }
    show(format_args!("{} in f32: tokens exact, worst error of a logit {worst:.1e}", golden.name));
    assert!(worst > 0.0 && worst <= MAGNIFIED, "{worst:e}");
}

#[test]
fn greedy_tokens_in_f32_are_those_of_transformers() {
    let Some(golden) = golden() else { return };
    let llama_cpp = of_llama_cpp(&golden, "top_logits");
    let mut apart = 0f64;
    assert_greedy_tokens(&golden, golden.prompts.len(), |number, rows| {
        let reference = golden.reference(number).unwrap();
        assert_eq!(rows.len(), llama_cpp[number].len());
        for (i, (row, theirs)) in rows.iter().zip(&llama_cpp[number]).enumerate() {
            let ours = reference.at_top(i, row);
            let scale = f64::from(ours.iter().fold(0f32, |most, logit| most.max(logit.abs())));
            let differences = ours.iter().zip(theirs).map(|(a, b)| f64::from((a - b).abs()) / scale);
            apart = differences.fold(apart, f64::max);
        }
    });
    show(format_args!("{} in f32: {apart:.1e} from llama.cpp", golden.name));
    assert!(apart > 0.0 && apart <= MAGNIFIED, "{apart:e} from llama.cpp");
}

/// A mixture of Q8_0, Q5_0, Q4_K and Q6_K, different types for the same matrix in different layers.
#[test]
fn gemma_3_has_the_tokens_of_transformers() {
    let Some(golden) = Golden::real("gemma3") else { return };
    assert_eq!(golden.prompts.len(), 8);
    assert_greedy_tokens(&golden, if long::is_wanted() { 8 } else { 2 }, |_, _| {});
}

#[test]
fn qwen_2_5_coder_has_the_tokens_of_transformers() {
    let Some(golden) = long::is_wanted().then(|| Golden::real("qwen2.5-coder")).flatten() else { return };
    assert_eq!(golden.prompts.len(), 8);
    assert_greedy_tokens(&golden, 8, |_, _| {});
}

#[test]
fn default_settings_keep_the_tokens_of_transformers() {
    let Some(golden) = golden() else { return };
    let network = models::read(&golden.model, &[]).unwrap();
    let plan = Plan::new(network, None, Some(golden.context), Some(golden.chunk)).unwrap();
    assert!(plan.weights.quantize.rounds());
    let sizes = BuildOptions { element: plan.element, weights: plan.weights, ..options(&golden) };
    let subject = build(&golden.model, &sizes, &["decode", "score"], Ok).unwrap();
    let (mut kept, mut all) = (0, 0);
    let (mut ours, mut theirs, mut positions) = (0.0, 0.0, 0);
    let llama_cpp = of_llama_cpp(&golden, "rounded");
    for (number, prompt) in golden.prompts.iter().enumerate() {
        let rows = Session::new(&subject.network).score(&prompt.fed()).unwrap();
        let chosen = rows[prompt.prompt_tokens.len() - 1..].iter().map(|row| best(row) as u32);
        kept += chosen.zip(&prompt.tokens).filter(|(found, expected)| found == *expected).count();
        all += prompt.tokens.len();
        let reference = golden.reference(number).unwrap();
        for (i, (row, rounded)) in rows.iter().zip(&llama_cpp[number]).enumerate() {
            ours += reference.top_error(i, &reference.at_top(i, row));
            theirs += reference.top_error(i, rounded);
            positions += 1;
        }
    }
    let [ours, theirs] = [ours, theirs].map(|sum: f64| sum / f64::from(positions));
    show(format_args!("{}, default settings: mean error {ours:.4}, llama.cpp's {theirs:.4}", golden.name));
    assert!(theirs > 0.0 && ours > 0.0 && ours <= ROUNDED * theirs, "{ours:.4} beside {theirs:.4}");
    let share = kept as f64 / all as f64;
    show(format_args!("{}, default settings: {kept} of {all} tokens kept, {share:.4}", golden.name));
    assert!(share >= KEPT, "{kept} of {all} tokens kept, {share:.4}, expected {KEPT}");
}

#[test]
fn texts_and_chats_are_the_tokens_of_transformers() {
    let Some(golden) = golden() else { return };
    let tokenizer = Tokenizer::load(&golden.model).unwrap().unwrap();
    let template = chat_template(&golden.model).unwrap();
    let mut counts = [0, 0];
    for prompt in &golden.prompts {
        let found = match (&prompt.prompt, &prompt.messages) {
            (Some(text), None) => tokenizer.encode(text),
            (None, Some(messages)) => {
                let chat =
                    Chat { messages: messages.clone(), add_generation_prompt: true, ..Chat::default() };
                tokenizer.encode_plain(&template.render(&chat).unwrap())
            }
            other => panic!("{other:?}: expected a text or messages"),
        };
        counts[usize::from(prompt.messages.is_some())] += 1;
        assert_eq!(found.unwrap(), prompt.prompt_tokens);
        assert_eq!(&tokenizer.decode(&prompt.tokens).unwrap(), prompt.text.as_ref().unwrap());
    }
    assert_eq!(counts, [10, 6]);
}

/// The answers to the first questions, at temperature 0, with a format of the weights and of the KV cache.
fn answers(golden: &Golden, (quantize, kv): (Quantization, KvFormat), count: usize) -> Vec<String> {
    let cache = tempfile::tempdir().unwrap();
    let options = OpenOptions {
        numeric: NumericOptions {
            dtype: Some(ElementType::F32),
            quantize: Some(quantize),
            kv: Some(kv),
            ..NumericOptions::default()
        },
        context: Some(128),
        cache: Some(cache.path().into()),
        compiler: Some(compiler().unwrap()),
        ..OpenOptions::default()
    };
    let model = Model::open_with(&golden.model, options).unwrap();
    let greedy = GenerateOptions { max_tokens: 24, ..GenerateOptions::default() };
    let answer =
        |question: &str| model.chat([user(question)]).unwrap().options(greedy.clone()).text().unwrap();
    QUESTIONS.lines().take(count).map(answer).collect()
}

/// With q8 weights, the answers to short questions are the answers in f32.
#[test]
fn short_questions_are_answered_as_in_f32() {
    let Some(golden) = golden() else { return };
    let count = if long::is_wanted() { 20 } else { 5 };
    let exact = answers(&golden, (Quantization::Computed, KvFormat::Computed), count);
    assert_eq!(exact.len(), count);
    assert_eq!(exact[0], "The capital of France is Paris.");
    let found = answers(&golden, (Quantization::All(WeightFormat::Q8), KvFormat::Computed), count);
    assert_eq!(found, exact);
}

/// The short form answers the same question in f32 and in q8, in the test before.
#[test]
fn the_capital_of_france_is_paris_in_every_format() {
    let Some(golden) = long::is_wanted().then(golden).flatten() else { return };
    let (q8, q4k) = (Quantization::All(WeightFormat::Q8), Quantization::Mixed(WeightFormat::Q4K));
    let formats = [
        (q4k.clone(), KvFormat::Q8),
        (q4k, KvFormat::Computed),
        (q8.clone(), KvFormat::Q8),
        (q8, KvFormat::Computed),
        (Quantization::Computed, KvFormat::Q8),
        (Quantization::Computed, KvFormat::Computed),
    ];
    for (format, kv) in formats {
        let answer = &answers(&golden, (format.clone(), kv), 1)[0];
        assert!(answer.contains("Paris"), "{format}, {kv:?}: {answer}");
    }
}
