//! Embeddings of texts through IREE, compared with those of sentence-transformers.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::Write as _;

use tracewright::embed::{EmbedError, Embedder, length_for};
use tracewright::generate::Tokenizer;
use tracewright::models;
use tracewright::ops::ElementType::{Bf16, F16, F32, I8};
use tracewright::trace::Role;
use tracewright::{Plan, PlanError};
use tracewright_tests::embedding::{Golden, build, check, program};
use tracewright_tests::long;

/// As published, in f32; as saved today, in bf16.
const FIXTURES: [&str; 2] = ["embeddinggemma", "embeddinggemma-saved"];

fn golden(fixture: &str) -> Golden {
    Golden::fixture(fixture).unwrap()
}

/// Whatever stands beside a text, or pads it, has no influence.
#[test]
fn vectors_are_those_of_sentence_transformers_alone_and_side_by_side() {
    for fixture in FIXTURES {
        let golden = golden(fixture);
        assert!(golden.texts.len() > 10);
        for batch in long::first([1, 5, 2], 2) {
            let report = check(&golden, &build(&golden, F32, batch, Ok).unwrap()).unwrap();
            let _ = writeln!(std::io::stderr(), "{fixture}, {batch} at once: {report}");
            assert!(report.passes() && report.texts == golden.texts.len(), "{fixture}, {batch}: {report}");
        }
    }
}

#[test]
fn narrow_elements_stay_near() {
    for (fixture, element) in [(FIXTURES[0], F16), (FIXTURES[1], Bf16)] {
        let golden = golden(fixture);
        let report = check(&golden, &build(&golden, element, 1, Ok).unwrap()).unwrap();
        let _ = writeln!(std::io::stderr(), "{fixture} in {element}: {report}");
        let bound = if element == F16 { 1e-2 } else { 1e-1 };
        assert!(report.worst.0 <= bound && !report.passes(), "{fixture} in {element}: {report}");
    }
}

/// Prompts, special tokens and the longest text are read from the folder as sentence-transformers does.
#[test]
fn texts_become_the_tokens_of_sentence_transformers() {
    for fixture in FIXTURES {
        let golden = golden(fixture);
        let network = models::read(&golden.model, &[]).unwrap();
        let sentence = network.sentence().unwrap();
        let tokenizer = Tokenizer::load(&golden.model).unwrap().unwrap();
        let limit = sentence.max_tokens;
        assert_eq!(limit, golden.max_length);
        let mut cut = 0;
        for text in &golden.texts {
            let prompt = sentence.prompt(text.prompt.as_deref()).unwrap();
            let (tokens, whole) = tokenizer.encode_within(&format!("{prompt}{}", text.text), limit).unwrap();
            assert_eq!(tokens, text.tokens, "{}", text.text);
            cut += usize::from(whole > tokens.len());
        }
        assert_eq!(cut, 1, "the last text is too long");
    }
}

#[test]
fn texts_that_a_program_does_not_take() {
    let golden = golden(FIXTURES[0]);
    let built = build(&golden, F32, 2, Ok).unwrap();
    let program = program(&built).unwrap();
    let embedder = Embedder::new(&program, golden.vocab_size).unwrap();
    assert_eq!((embedder.batch(), embedder.length(), embedder.features()), (2, 40, 30));
    assert!(embedder.embed(&[]).unwrap().is_empty());
    let refused = |texts: &[Vec<u32>]| embedder.embed(texts).unwrap_err();
    let long = refused(&[vec![2, 1], vec![2; 41]]);
    assert!(matches!(long, EmbedError::TooLong { text: 1, found: 41, length: 40 }), "{long}");
    let empty = refused(&[vec![2, 1], vec![2, 1], vec![]]);
    assert!(matches!(empty, EmbedError::Empty { text: 2 }), "{empty}");
    let unknown = refused(&[vec![2, 1024, 1]]);
    let expected = "token 1 of text 0 has the id 1024, expected an id below 1024";
    assert_eq!(unknown.to_string(), expected);
}

/// Arguments and results are known by their roles, wherever they stand.
#[test]
fn a_program_is_bound_by_role() {
    let golden = golden(FIXTURES[0]);
    let built = build(&golden, F32, 1, Ok).unwrap();
    let signature = &built.module.signatures[0];
    let roles: Vec<Role> = signature.arguments.iter().chain(&signature.results).map(|one| one.role).collect();
    assert_eq!(roles, [Role::Tokens, Role::Count, Role::Embedding]);
    for place in 0..2 {
        let mut signatures = built.module.signatures.clone();
        signatures[0].arguments[place].role = Role::Plain;
        let program = tracewright::Program::new(&built.runtime, &built.program, signatures).unwrap();
        let refused = Embedder::new(&program, golden.vocab_size).err().unwrap();
        assert!(refused.to_string().ends_with("its entry points are [\"embed\"]"), "{refused}");
    }
}

#[test]
fn sizes_that_the_model_does_not_allow() {
    let refused = |element, length| {
        let network = models::read(&golden(FIXTURES[0]).model, &[]).unwrap();
        Plan::new(network, element, Some(length), None).err().unwrap()
    };
    for found in [0, 41] {
        let error = refused(None, found);
        assert!(matches!(error, PlanError::Length { longest: 40, .. }), "{error}");
    }
    assert!(matches!(refused(Some(I8), 40), PlanError::Element(I8)));
    let lengths = [1, 24, 25, 32, 33, 48, 49, 65, 97, 900].map(|tokens| length_for(tokens, 100));
    assert_eq!(lengths, [24, 24, 32, 32, 48, 48, 64, 96, 100, 100]);
}
