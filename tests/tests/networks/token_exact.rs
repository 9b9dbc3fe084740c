//! Whole networks, judged by what Hugging Face transformers answered: tokens equal, logits of every position near.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeSet;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::Path;

use tracewright::bake::BakeError;
use tracewright::build::LoadError;
use tracewright::generate::{Finish, GenerateError, Network, Sampling, Session, TokenOptions, Tokenizer};
use tracewright::lower::Weights;
use tracewright::models::ModelConfig;
use tracewright::ops::ElementType::{Bf16, F16, F32};
use tracewright::ops::WeightFormat;
use tracewright::runtime::Device;
use tracewright::simplify::Rules;
use tracewright::targets::Target;
use tracewright::trace::{KvFormat, Parameter};
use tracewright_tests::golden::{
    ALL, BOUND, BuildOptions, Golden, Subject, build, check, check_evaluated, greedy, is_best_within,
    max_error, mean,
};
use tracewright_tests::long;

/// Random networks: untied, tied (f16), llama3 rope (bf16); with biases (sharded), no grouping, one key-value head, which are
/// compiled in the long form and evaluated in the short one.
const FIXTURES: [&str; 6] =
    ["llama-untied", "llama-tied", "llama-rope3", "llama-bias", "llama-mha", "llama-mqa"];

fn open(fixture: &str) -> (Golden, Subject) {
    let golden = Golden::fixture(fixture).unwrap();
    let subject = build(&golden.model, &BuildOptions::of(&golden), ALL, Ok).unwrap();
    (golden, subject)
}

/// A sequence that fills the context of `llama-tied`, its golden's number, and the network.
fn full() -> (Golden, usize, Vec<u32>, Subject) {
    let (golden, subject) = open("llama-tied");
    let number = golden.prompts.iter().position(|p| p.prompt_tokens.len() == golden.context).unwrap();
    let tokens = golden.prompts[number].prompt_tokens.clone();
    (golden, number, tokens, subject)
}

fn options(max_tokens: usize) -> TokenOptions {
    TokenOptions { max_tokens, ..TokenOptions::default() }
}

/// Prints a figure also when the test passes, which hides what `println!` prints.
fn show(figures: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{figures}");
}

fn go_on(_: u32) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Tokens, logits and text of a shipped model are those of transformers, for all of its golden's prompts.
fn shipped(name: &str) -> Golden {
    let golden = Golden::shipped(name).unwrap();
    let (steps, prompts) = (48, &golden.prompts);
    assert_eq!(prompts.len(), 64);
    assert!(prompts.iter().all(|p| p.tokens.len() == steps));
    assert!(prompts.iter().filter(|p| p.outside).count() >= 16, "prompts from outside the generator");
    let distinct = |tokens: &[u32]| tokens.iter().collect::<BTreeSet<_>>().len();
    assert!(prompts.iter().filter(|p| distinct(&p.tokens) >= 16).count() >= 56, "loops judge nothing");

    let longest = prompts.iter().map(|p| p.prompt_tokens.len() + steps).max().unwrap();
    // On all threads of this machine, as for any user.
    let device = Device::LocalTask { workers: 0 };
    let sizes = BuildOptions { context: longest.next_power_of_two(), device, ..BuildOptions::of(&golden) };
    let subject = build(&golden.model, &sizes, ALL, Ok).unwrap();
    let report = check(&golden, &subject).unwrap();
    show(format_args!("{name}: {report}"));
    assert!(report.passes(), "{name}: {report}");

    let tokenizer = Tokenizer::load(&golden.model).unwrap().unwrap();
    for prompt in prompts {
        if let Some(text) = &prompt.prompt {
            assert_eq!(tokenizer.encode(text).unwrap(), prompt.prompt_tokens, "{text}");
        }
        assert_eq!(&tokenizer.decode(&prompt.tokens).unwrap(), prompt.text.as_ref().unwrap());
    }
    golden
}

#[test]
fn m3_the_shipped_model_is_token_exact() {
    shipped("demo");
}

#[test]
fn m3_the_shipped_gemma_3_is_token_exact() {
    let golden = shipped("demo-gemma3");
    let ModelConfig::Gemma3(config) = ModelConfig::read(&golden.model, &[]).unwrap() else {
        panic!("`demo-gemma3` is a Gemma 3");
    };
    let window = config.window(0).expect("the first layer looks through a window");
    let far = golden.prompts.iter().filter(|p| p.prompt_tokens.len() >= 3 * window);
    assert!(far.count() >= 16, "a short prompt does not leave the window");
}

#[test]
fn m16_prompts_of_any_length_up_to_the_context() {
    for (place, fixture) in FIXTURES.into_iter().enumerate() {
        let golden = Golden::fixture(fixture).unwrap();
        let (c, n) = (golden.chunk, golden.context);
        let lengths: Vec<usize> = golden.prompts.iter().map(|p| p.prompt_tokens.len()).collect();
        assert_eq!(lengths, [c - 1, c, c + 1, 2 * c, n - 1, n], "{fixture}");
        let report = if place < 3 || long::is_wanted() {
            check(&golden, &open(fixture).1)
        } else {
            check_evaluated(&golden, &BuildOptions::of(&golden), ALL, BOUND, Ok)
        };
        let report = report.unwrap();
        show(format_args!("{fixture}: {report}"));
        assert!(report.passes(), "{fixture}: {report}");
    }
}

/// A chunk that would not fit at the end of the context is moved back over what was seen.
#[test]
fn m16_a_session_goes_on_anywhere_near_the_end() {
    let (golden, number, tokens, subject) = full();
    let reference = golden.reference(number).unwrap();
    let last = golden.context - 1;
    for cut in [1, 27, 31, 32, 33, 35, 37, 38, 39] {
        let mut session = Session::new(&subject.network);
        session.feed(&tokens[..cut]).unwrap();
        let error = reference.error(last, &session.feed(&tokens[cut..]).unwrap());
        assert!(error <= BOUND, "cut at {cut}: {error:e}");
        assert!(matches!(session.feed(&[1]), Err(GenerateError::TooLong { length: 41, context: 40 })));

        let mut session = Session::new(&subject.network);
        let rows = [&tokens[..cut], &tokens[cut..]].map(|part| session.score(part).unwrap()).concat();
        for (position, row) in rows.iter().enumerate() {
            let error = reference.error(position, row);
            assert!(error <= BOUND, "scored, cut at {cut}, position {position}: {error:e}");
        }
    }
}

#[test]
fn s27_token_exact_at_all_positions() {
    let (golden, number, tokens, subject) = full();
    let reference = golden.reference(number).unwrap();
    let best = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
    let scored = Session::new(&subject.network).score(&tokens).unwrap();
    let mut session = Session::new(&subject.network);
    for (position, &token) in tokens.iter().enumerate() {
        let decoded = session.feed(&[token]).unwrap();
        let prefilled = Session::new(&subject.network).feed(&tokens[..=position]).unwrap();
        let expected = best(reference.row(position).unwrap());
        for (name, row) in [("score", &scored[position]), ("decode", &decoded), ("prefill", &prefilled)] {
            assert!(reference.error(position, row) <= BOUND, "{name} at {position}");
            assert_eq!(best(row), expected, "{name} at {position}");
        }
    }
    assert_eq!(session.tokens(), tokens);
}

#[test]
fn m4_batched_prefill_equals_streamed_decode() {
    let (golden, subject) = open("llama-untied");
    for (number, prompt) in golden.prompts.iter().enumerate() {
        let reference = golden.reference(number).unwrap();
        let tokens = &prompt.prompt_tokens;
        for piece in [1, 2, 3, golden.chunk - 1, golden.chunk, golden.chunk + 3] {
            let mut session = Session::new(&subject.network);
            let pieces = tokens.chunks(piece).map(|piece| session.feed(piece).unwrap());
            let error = reference.error(tokens.len() - 1, &pieces.last().unwrap());
            assert!(error <= BOUND, "prompt {number} in pieces of {piece}: {error:e}");
        }
    }
}

/// Whatever lies in slots behind the last token, padding and forgotten tokens, has no influence: not one bit.
#[test]
fn m5_slots_behind_the_last_token_are_not_seen() {
    let (golden, _, tokens, subject) = full();
    let prompt = &golden.prompts[1].prompt_tokens;
    let fresh = greedy(&subject.network, prompt, 8, true).unwrap();
    let mut used = Session::new(&subject.network);
    used.feed(&tokens).unwrap();
    used.truncate(0);
    let options = TokenOptions { keep_logits: true, ..options(8) };
    let again = used.generate(prompt, &options, go_on).unwrap();
    assert_eq!((again.tokens, again.logits), (fresh.tokens, fresh.logits));
}

/// The weights of a checkpoint are stored once, in its own type, and IREE reads them where they are mapped.
#[test]
fn m11_m12_bf16_f16_f32_checkpoints() {
    for (fixture, element, bound) in
        [("llama-untied", F32, BOUND), ("llama-tied", F16, 1e-2), ("llama-rope3", Bf16, 1e-1)]
    {
        let golden = Golden::fixture(fixture).unwrap();
        assert_eq!(golden.storage, element);
        // In f32 it is a module that other tests want.
        let entries = if element == F32 { ALL } else { &["decode", "score"] };
        let sizes = BuildOptions { element, ..BuildOptions::of(&golden) };
        let subject = build(&golden.model, &sizes, entries, Ok).unwrap();
        assert_eq!(subject.baked.converted, [], "{fixture}: nothing is widened");
        let elements: usize = subject.module.parameters.iter().map(|p| p.ty.count()).sum();
        assert_eq!(subject.baked.bytes as usize, elements * element.bits() / 8);
        let keys: BTreeSet<_> = subject.archive.entries().iter().map(|entry| &entry.name).collect();
        assert_eq!(keys.len(), subject.module.parameters.len(), "one entry for all entry points");
        let parameters = tracewright::build::map_parameters(&subject.archive, [].into_iter()).unwrap();
        assert_eq!(parameters.misaligned().count(), 0, "IREE would copy them");

        let mut worst = 0f64;
        for (number, prompt) in golden.prompts.iter().enumerate() {
            let reference = golden.reference(number).unwrap();
            let rows = Session::new(&subject.network).score(&prompt.prompt_tokens).unwrap();
            worst = rows.iter().enumerate().map(|(i, row)| reference.error(i, row)).fold(worst, f64::max);
        }
        show(format_args!("{fixture} in {element}: worst error {worst:.1e}"));
        assert!(worst <= bound && (element == F32 || worst > BOUND), "{fixture} in {element}: {worst:e}");
    }
}

#[test]
fn s2_a_checkpoint_of_another_type_is_converted_and_reported() {
    for (fixture, stored) in [("llama-rope3", Bf16), ("llama-tied", F16)] {
        let (_, subject) = open(fixture);
        let read = subject.module.parameters.iter().flat_map(Parameter::sources);
        let keys: BTreeSet<&str> = read.map(|(key, _)| key).collect();
        let converted = keys.into_iter().map(|key| (key.to_owned(), stored, F32));
        assert_eq!(subject.baked.converted, converted.collect::<Vec<_>>(), "{fixture}");
    }
    // No float is made of an integer.
    let from = Golden::fixture("llama-mqa").unwrap().model;
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(from.join("config.json"), folder.path().join("config.json")).unwrap();
    let mut bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let at = bytes.windows(5).position(|w| w == b"\"F32\"").unwrap();
    bytes[at..at + 5].copy_from_slice(b"\"I32\"");
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    let refused = build(
        folder.path(),
        &BuildOptions {
            element: F32,
            chunk: 8,
            context: 40,
            batch: 1,
            in_parts: false,
            rules: Rules::default(),
            weights: Weights::default(),
            kv: KvFormat::default(),
            target: Target::host(),
            device: Device::LocalSync,
            allowed_keys: Vec::new(),
            adapters: Vec::new(),
            room: None,
        },
        ALL,
        Ok,
    )
    .err()
    .unwrap();
    assert!(matches!(refused.downcast_ref(), Some(LoadError::Bake(BakeError::Mismatch { .. }))), "{refused}");
    assert!(refused.to_string().contains("has elements `I32`, which do not convert to `f32`"), "{refused}");
}

#[test]
fn m13_m15_kv_stays_on_the_device_and_argmax_costs_eight_bytes() {
    let (golden, _, tokens, subject) = full();
    let per_step = |keep_logits| subject.moved_per_step(&tokens[..8], keep_logits).unwrap();
    assert_eq!(per_step(false), (4.0, 8.0), "a token goes up, a token and its logit come down");
    let (up, down) = per_step(true);
    assert_eq!(down, 4.0 * golden.vocab_size as f64);
    assert!(up + down <= (4 * golden.vocab_size + 1024) as f64);
    subject.assert_state_stays(&tokens).unwrap();
}

#[test]
fn a_session_of_turns_equals_one_run() {
    let (golden, number, tokens, subject) = full();
    let reference = golden.reference(number).unwrap();
    let mut session = Session::new(&subject.network);
    let first = session.generate(&tokens[..9], &options(3), go_on).unwrap();
    assert_eq!((first.finish, first.tokens.len()), (Finish::Length, 3));
    // The last token was chosen, and not shown yet.
    assert_eq!(session.tokens().len(), 9 + 2);
    session.truncate(9);
    assert_eq!(session.tokens(), &tokens[..9]);
    // Another way on than the one that was generated and forgotten.
    let before = subject.runtime.transfers().host_to_device;
    let row = session.feed(&tokens[9..30]).unwrap();
    assert!(reference.error(29, &row) <= BOUND);
    assert_eq!(subject.runtime.transfers().host_to_device - before, 4 * 24, "only what is new is computed");
    let rows = session.score(&tokens[30..]).unwrap();
    rows.iter().enumerate().for_each(|(i, row)| assert!(reference.error(30 + i, row) <= BOUND));
    assert_eq!(session.tokens(), tokens);
}

#[test]
fn a_full_context_ends_the_text() {
    let (golden, _, tokens, subject) = full();
    let generated = greedy(&subject.network, &tokens[..golden.context - 2], 9, false).unwrap();
    assert_eq!((generated.finish, generated.tokens.len()), (Finish::Context, 3));
    let mut session = Session::new(&subject.network);
    let empty = session.generate(&[], &options(1), go_on);
    assert!(matches!(empty, Err(GenerateError::EmptyPrompt)), "{empty:?}");
    let long = session.generate(&[1; 41], &options(1), go_on);
    assert!(matches!(long, Err(GenerateError::TooLong { length: 41, context: 40 })), "{long:?}");
    let unknown = session.generate(&[1, 259], &options(1), go_on);
    assert!(
        matches!(unknown, Err(GenerateError::Token { index: 1, token: 259, vocabulary: 259 })),
        "{unknown:?}"
    );
    assert!(session.tokens().is_empty());
}

#[test]
fn a_stop_token_and_a_callback_end_the_text_and_the_session_goes_on() {
    let (golden, _, _, subject) = full();
    let (prompt, expected) = (&golden.prompts[0].prompt_tokens, &golden.prompts[0].tokens);
    let stop = expected[5];
    let before = expected.iter().position(|&token| token == stop).unwrap();
    let mut session = Session::new(&subject.network);
    let stopping = TokenOptions { stop_tokens: vec![stop], ..options(8) };
    let generated = session.generate(prompt, &stopping, go_on).unwrap();
    assert_eq!((generated.finish, &generated.tokens[..]), (Finish::Stop, &expected[..before]));

    let mut session = Session::new(&subject.network);
    let mut seen = Vec::new();
    let generated = session.generate(prompt, &options(8), |token| {
        seen.push(token);
        if seen.len() == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let generated = generated.unwrap();
    assert_eq!((generated.finish, &generated.tokens), (Finish::Cancelled, &seen));
    assert_eq!(seen, expected[..3]);
    let rest = session.generate(&seen[2..], &options(5), go_on).unwrap();
    assert_eq!(rest.tokens, expected[3..]);
}

#[test]
fn m21_the_same_seed_draws_the_same_tokens() {
    let (golden, _, _, subject) = full();
    let draw = |seed| {
        let sampling =
            Sampling { temperature: 1.5, top_k: 50, top_p: 0.95, min_p: 0.01, seed, ..Sampling::default() };
        let options = TokenOptions { sampling, ..options(24) };
        let mut session = Session::new(&subject.network);
        session.generate(&golden.prompts[0].prompt_tokens, &options, go_on).unwrap().tokens
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
    assert_ne!(draw(7)[..8], golden.prompts[0].tokens);
}

/// A failed call consumed the keys and values; the session computes them again from the tokens it has seen.
#[test]
fn a_session_recovers_from_a_failed_call() {
    let (golden, number, tokens, subject) = full();
    let reference = golden.reference(number).unwrap();
    // This network believes that `prefill` takes 5 tokens: the call is refused when it is made.
    let mut signatures = subject.module.signatures.clone();
    signatures.iter_mut().find(|s| s.name == "prefill").unwrap().arguments[0].ty.shape[1] = 5;
    let network = Network::new(&subject.runtime, &subject.program, &signatures).unwrap();
    let mut session = Session::new(&network);
    session.feed(&tokens[..1]).unwrap();
    for _ in 0..2 {
        assert!(matches!(session.feed(&tokens[1..3]), Err(GenerateError::Runtime(_))));
        assert_eq!(session.tokens(), &tokens[..1]);
    }
    let row = session.feed(&tokens[1..2]).unwrap();
    assert!(reference.error(1, &row) <= BOUND);
    assert_eq!(session.tokens(), &tokens[..2]);
    // Where it cannot, it still knows what it has seen.
    for _ in 0..3 {
        assert!(session.feed(&tokens[2..4]).is_err());
        assert_eq!(session.tokens(), &tokens[..2]);
    }
}

/// The checks themselves: a wrong token, a wrong logit and a missing number are differences.
#[test]
fn a_report_is_red_for_each_difference() {
    let (mut golden, subject) = open("llama-untied");
    assert!(check(&golden, &subject).unwrap().passes());
    let reference = golden.reference(0).unwrap();
    let row = reference.row(3).unwrap().to_vec();
    assert_eq!((reference.error(3, &row), max_error(&row, &row)), (0.0, 0.0));
    assert!(reference.error(4, &row) > BOUND, "another position");
    assert!(is_best_within(1e-3, &[1.0, 0.999], 1) && !is_best_within(1e-4, &[1.0, 0.999], 1));
    for wrong in [f32::NAN, f32::INFINITY, row[5] + 1e-3] {
        let mut row = row.clone();
        row[5] = wrong;
        assert!(reference.error(3, &row) > BOUND, "{wrong}");
    }
    golden.prompts.truncate(1);
    golden.prompts[0].tokens[7] ^= 1;
    let report = check(&golden, &subject).unwrap();
    assert!(!report.passes() && report.worst.0 <= BOUND, "{report}");
    let nowhere = Golden::of(Path::new("nowhere")).unwrap_err().to_string();
    assert_eq!(nowhere, "cannot read `nowhere/golden.json`");
}

/// With quantized weights, kernels and StableHLO agree up to their own error. Their sums differ by a
/// rounding, which moves one activation in thirty thousand across a rounding to bytes. From there on, all
/// activations differ, but by no more than their error. The long form adds groups of four bits, which compile
/// slowly without kernels; `quantized` covers their matmuls.
#[test]
fn quantized_weights_mean_the_same_with_kernels_and_without() {
    const STEPS: usize = 32;
    let golden = Golden::shipped("demo").unwrap();
    let network = |quantize: Option<WeightFormat>, kernels| {
        let sizes = BuildOptions {
            weights: Weights { quantize: quantize.into(), kernels, ..Weights::default() },
            ..BuildOptions::of(&golden)
        };
        build(&golden.model, &sizes, &["prefill", "decode"], Ok).unwrap().network
    };
    let dense = network(None, true);
    let step = if long::is_wanted() { 1 } else { 4 };
    let formats = [WeightFormat::Q8, WeightFormat::Q4K, WeightFormat::Q4];
    for format in long::first(formats, 1) {
        let [kernels, plain] = [true, false].map(|kernels| network(Some(format), kernels));
        // Single tokens, few of which meet such an activation.
        let singles = (0..100u32).filter(|&token| {
            let of = |network: &Network| greedy(network, &[token], 1, true).unwrap().logits.remove(0);
            max_error(&of(&kernels), &of(&plain)) < 1e-4
        });
        let singles = singles.count();
        let (mut equal, mut widest) = (0, 0f32);
        let (mut apart, mut cost) = (Vec::new(), Vec::new());
        for prompt in golden.prompts.iter().step_by(step) {
            let of = |network: &Network, steps| greedy(network, &prompt.prompt_tokens, steps, true).unwrap();
            let (a, b, dense) = (of(&kernels, STEPS), of(&plain, STEPS), of(&dense, 1));
            apart.push(max_error(&a.logits[0], &b.logits[0]));
            cost.push(max_error(&a.logits[0], &dense.logits[0]));
            let same = a.tokens.iter().zip(&b.tokens).take_while(|(x, y)| x == y).count();
            equal += same;
            if let Some((&x, &y)) = a.tokens.get(same).zip(b.tokens.get(same)) {
                widest = widest.max(a.logits[same][x as usize] - a.logits[same][y as usize]);
            }
        }
        let (prompts, apart, cost) = (cost.len(), mean(&apart), mean(&cost));
        show(format_args!(
            "{format:?}: {singles} of 100 tokens give the same logits; {equal} of {} greedy ones are equal, the first \
             others at gaps up to {widest:.3}; logits are {apart:.1e} apart, and {cost:.1e} from those of f32",
            STEPS * prompts
        ));
        assert!(singles >= 80 && apart < cost && f64::from(widest) < 2.0 * cost, "{format:?}");
    }
}
