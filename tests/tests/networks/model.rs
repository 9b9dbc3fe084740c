//! The front door, `tracewright::Model`: its answers are those of transformers, from several threads as from one.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::thread;

use tracewright::generate::{Finish, GenerateError};
use tracewright::hub::Hub;
use tracewright::model::{TuningSource, WatchOpen};
use tracewright::ops::ElementType::F32;
use tracewright::targets::Tuning;
use tracewright::{GenerateOptions, Model, ModelError, NumericOptions, OpenOptions, PlanError, system, user};
use tracewright_tests::built::{compiler, repository};
use tracewright_tests::golden::{Golden, GoldenPrompt, max_error};
use tracewright_tests::{embedding, level};

fn options() -> OpenOptions {
    OpenOptions {
        compiler: Some(compiler().unwrap()),
        cache: Some(repository().join(".tracewright/cache")),
        target: Some(level::target()),
        numeric: NumericOptions { dtype: Some(F32), ..NumericOptions::default() },
        // Modules of shorter chunks take two thirds of the time to compile.
        chunk: Some(16),
        tuning: Some(TuningSource::Given(Tuning::default())),
        ..OpenOptions::default()
    }
}

fn demo() -> PathBuf {
    repository().join("demo")
}

static GOLDEN: LazyLock<Golden> = LazyLock::new(|| Golden::shipped("demo").unwrap());

/// Prompts of the golden that are texts.
fn prompts() -> Vec<(&'static str, &'static GoldenPrompt)> {
    GOLDEN.prompts.iter().filter_map(|golden| Some((golden.prompt.as_deref()?, golden))).take(8).collect()
}

/// The shipped model with one slot, open once for all tests.
static ONE: LazyLock<Model> = LazyLock::new(|| Model::open_with(demo(), options()).unwrap());

static FOUR: LazyLock<Model> =
    LazyLock::new(|| Model::open_with(demo(), OpenOptions { slots: 4, ..options() }).unwrap());

/// As the golden was made: 48 greedy tokens, whatever they are.
fn golden_options() -> GenerateOptions {
    GenerateOptions { max_tokens: 48, ignore_eos: true, ..GenerateOptions::default() }
}

#[test]
fn texts_are_those_of_transformers_on_one_thread_and_on_four() {
    let check = |model: &Model, (text, golden): (&str, &GoldenPrompt)| {
        let completion = model.generate(text).unwrap().options(golden_options()).complete().unwrap();
        assert_eq!(completion.generated.tokens, golden.tokens, "{text}");
        assert_eq!(Some(&completion.text), golden.text.as_ref(), "{text}");
        assert_eq!(completion.prompt_tokens, golden.prompt_tokens.len());
        assert!(completion.first_token.is_some());
    };
    assert!(prompts().len() == 8);
    prompts().into_iter().for_each(|prompt| check(&ONE, prompt));
    for model in [&*ONE, &*FOUR] {
        thread::scope(|scope| {
            for pair in prompts().chunks(2).map(<[_]>::to_vec) {
                scope.spawn(move || pair.into_iter().for_each(|prompt| check(model, prompt)));
            }
        });
    }
}

#[test]
fn pieces_arrive_one_by_one_and_are_the_text() {
    let (text, golden) = prompts()[0];
    let mut pieces = ONE.generate(text).unwrap().options(golden_options()).stream().unwrap();
    assert!(pieces.completion().is_none());
    let parts: Vec<String> = pieces.by_ref().map(Result::unwrap).collect();
    assert!(parts.len() > 20 && parts.iter().all(|part| !part.is_empty()), "{parts:?}");
    assert_eq!(Some(parts.concat()), golden.text);
    assert_eq!(pieces.into_completion().unwrap().generated.finish, Finish::Length);
}

/// A name on the hub is found in its cache, and a name that is not there is an error.
#[test]
fn a_model_opens_by_its_name() {
    let cache = tempfile::tempdir().unwrap();
    let snapshot = cache.path().join("models--org--story/snapshots").join("0".repeat(40));
    fs::create_dir_all(&snapshot).unwrap();
    for file in fs::read_dir(demo()).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), snapshot.join(file.file_name())).unwrap();
    }
    let hub = Hub { cache: cache.path().to_owned(), endpoint: String::new(), token: None, offline: true };
    let open = |name: &str| Model::open_with(name, OpenOptions { hub: Some(hub.clone()), ..options() });
    let (text, golden) = prompts()[0];
    let model = open("org/story").unwrap();
    let completion = model.generate(text).unwrap().options(golden_options()).complete().unwrap();
    assert_eq!(completion.generated.tokens, golden.tokens);
    let error = open("org/other").err().unwrap().to_string();
    assert!(error.starts_with("`org/other` is not in the cache"), "{error}");
}

/// A text that nobody listens to any more gives its slot to the next, and so does one that is cancelled.
#[test]
fn dropping_the_iterator_stops_the_text() {
    let (text, golden) = prompts()[0];
    let endless = GenerateOptions { max_tokens: usize::MAX, ignore_eos: true, ..Default::default() };
    let begin = || ONE.generate(text).unwrap().options(endless.clone()).stream().unwrap();
    let mut dropped = begin();
    dropped.next().unwrap().unwrap();
    drop(dropped);
    // On a busy machine a text may be at its end before anybody cancels it.
    let cancelled = || {
        let mut pieces = begin();
        pieces.next().unwrap().unwrap();
        pieces.cancel();
        pieces.by_ref().for_each(|piece| drop(piece.unwrap()));
        pieces.into_completion().unwrap().generated.finish == Finish::Cancelled
    };
    assert!((0..20).any(|_| cancelled()));
    let tokens = ONE.continue_prompt(golden.prompt_tokens.clone()).options(golden_options());
    assert_eq!(tokens.complete().unwrap().generated.tokens, golden.tokens);
}

#[test]
fn stop_strings_and_schemas_end_a_text() {
    let (text, golden) = prompts()[0];
    let whole = golden.text.as_ref().unwrap();
    let word = whole.split_whitespace().nth(6).unwrap();
    let stopped = ONE.generate(text).unwrap().options(golden_options()).stop(word).complete().unwrap();
    assert_eq!(stopped.text, whole[..whole.find(word).unwrap()]);
    assert!(stopped.is_cut && stopped.generated.finish == Finish::Stop);
    let schema = r#"{"enum": ["yes", "no"]}"#;
    let answer = ONE.generate(text).unwrap().json_schema(schema).text().unwrap();
    assert!(["\"yes\"", "\"no\""].contains(&&*answer), "{answer}");
}

/// A second turn computes only its new text, and gives the same answer as the whole conversation.
#[test]
fn a_conversation_computes_what_is_new() {
    // With a slot that no other test takes.
    let model = Model::open_with(demo(), options()).unwrap();
    let mut conversation = model.conversation();
    conversation.options.max_tokens = 24;
    conversation.messages.push(system("You tell stories."));
    let first = conversation.say("Tell me a story about a fox").unwrap();
    assert!(!first.is_empty());
    let mut turn = conversation.turn("And about a bird?").unwrap();
    let text: String = turn.by_ref().map(Result::unwrap).collect();
    let completion = turn.finish().unwrap();
    assert_eq!(text, completion.text);
    assert!(completion.generated.prefill_tokens < completion.prompt_tokens / 2);
    assert_eq!(conversation.messages.len(), 5);
    let messages = conversation.messages[..4].to_vec();
    let once = model.chat(messages).unwrap().max_tokens(24).complete().unwrap();
    assert_eq!(once.text, completion.text);
    // A turn that is not taken to its end adds nothing.
    let turn = conversation.turn("And a fish?").unwrap();
    assert!(turn.finish().is_none());
    assert_eq!(conversation.messages.len(), 5);
}

/// The entry point that scores is there from the start, or is built when it is asked for.
#[test]
fn scores_are_those_of_transformers() {
    let (_, golden) = prompts()[1];
    let tokens = golden.fed();
    let early = Model::open_with(demo(), OpenOptions { score: true, ..options() }).unwrap();
    for model in [&early, &*ONE] {
        let logits = model.score(&tokens).unwrap();
        assert_eq!(logits.len(), tokens.len());
        let best = |row: &Vec<f32>| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32;
        let chosen: Vec<u32> = logits[golden.prompt_tokens.len() - 1..].iter().map(best).collect();
        assert_eq!(chosen, golden.tokens);
    }
}

#[test]
fn embeddings_are_those_of_sentence_transformers() {
    let golden = embedding::Golden::fixture("embeddinggemma").unwrap();
    let model = Model::open_with(&golden.model, OpenOptions { chunk: None, ..options() }).unwrap();
    let (last, texts) = golden.texts.split_last().unwrap();
    for (number, text) in texts.iter().enumerate() {
        let found = model.embed(&[&text.text], text.prompt.as_deref()).unwrap();
        let error = max_error(&found[0], &golden.vector(number).unwrap());
        assert!(error < 1e-4, "{}: {error}", text.text);
    }
    // The last one is longer than the model takes: nothing is cut in silence.
    let error = model.embed(&[&last.text], last.prompt.as_deref()).unwrap_err();
    assert!(error.to_string().contains("expected at most"), "{error}");
    let error = model.generate("Once").unwrap().text().unwrap_err().to_string();
    assert!(error.ends_with("makes embeddings of texts, and cannot continue text"), "{error}");
    let error = ONE.embed(&["Once"], None).unwrap_err().to_string();
    assert!(error.ends_with("continues text, and cannot embed it"), "{error}");
}

/// A folder of the Hugging Face cache is the model of its snapshot; what its user should know is there for who asks.
#[test]
fn a_snapshot_is_opened_and_warnings_are_kept() {
    let hub = tempfile::tempdir().unwrap();
    let folder = hub.path().join("models--test--tied");
    let snapshot = folder.join("snapshots").join("0123456789abcdef");
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(folder.join("blobs")).unwrap();
    let fixture = repository().join("tests/fixtures/llama-untied");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture.join(name), snapshot.join(name)).unwrap();
    }
    let config = std::fs::read_to_string(snapshot.join("config.json")).unwrap();
    let tied = config.replace("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    assert!(tied != config, "{config}");
    std::fs::write(snapshot.join("config.json"), tied).unwrap();
    let model = Model::open_with(&folder, options()).unwrap();
    let warnings: Vec<String> = model.info().warnings.iter().map(ToString::to_string).collect();
    assert!(warnings.len() == 1 && warnings[0].contains("`lm_head.weight` differs"), "{warnings:?}");
    let golden = Golden::fixture("llama-untied").unwrap();
    let prompt = &golden.prompts[0];
    let untied = model.continue_prompt(prompt.prompt_tokens.clone()).options(golden_options()).complete();
    let expected = &prompt.tokens[..];
    assert_eq!(
        untied.unwrap().generated.tokens[..expected.len().min(48)],
        expected[..expected.len().min(48)]
    );
}

/// Each mistake has its own kind of error, and the model answers the next question.
#[test]
fn mistakes_are_errors_of_their_own_kind() {
    let error = Model::open_with(Path::new("nowhere"), options()).err().unwrap();
    assert!(matches!(error, ModelError::File(_)), "{error}");
    let error = Model::open_with(demo(), OpenOptions { context: Some(1 << 20), ..options() }).err().unwrap();
    let ModelError::Plan(plan) = &error else { panic!("{error}") };
    assert!(matches!(**plan, PlanError::Context { .. }), "{error}");
    let stopped = WatchOpen::new(|_| std::ops::ControlFlow::Break(()));
    let error = Model::open_with(demo(), OpenOptions { watch: Some(stopped), ..options() }).err().unwrap();
    assert_eq!(error.to_string(), "the build was stopped on request");

    let long = ONE.continue_prompt(vec![5; 5000]).text().unwrap_err();
    assert!(matches!(long, ModelError::Generate(GenerateError::TooLong { .. })), "{long}");
    let unknown = ONE.continue_prompt([1 << 20]).text().unwrap_err();
    assert!(matches!(unknown, ModelError::Generate(GenerateError::Token { .. })), "{unknown}");
    let empty = ONE.continue_prompt([]).text().unwrap_err();
    assert!(matches!(empty, ModelError::Generate(GenerateError::EmptyPrompt)), "{empty}");
    let cold = ONE.generate("Once").unwrap().temperature(-1.0).into_iter().next().unwrap().unwrap_err();
    assert!(matches!(cold, ModelError::Generate(GenerateError::Setting { .. })), "{cold}");
    let schema = ONE.generate("Once").unwrap().json_schema("{").text().unwrap_err();
    assert!(matches!(schema, ModelError::Generate(GenerateError::SchemaSyntax { .. })), "{schema}");

    let bare = repository().join("tests/fixtures/llama-tied");
    let bare = Model::open_with(bare, options()).unwrap();
    let error = bare.chat([user("Hello")]).err().unwrap().to_string();
    assert!(error.contains("llama-tied` has no chat template"), "{error}");
    let error = bare.generate("Once").err().unwrap();
    assert!(matches!(error, ModelError::NoTokenizer { .. }), "{error}");
    let text = bare.continue_prompt([5, 17]).max_tokens(2).text().unwrap();
    assert_eq!(text.split_whitespace().count(), 2, "{text}");
}
