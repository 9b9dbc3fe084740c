//! Embeddings and scores of the encoder families, compared with those of sentence-transformers.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::Write as _;

use tracewright::generate::Tokenizer;
use tracewright::models;
use tracewright::ops::ElementType::F32;
use tracewright_tests::embedding::{Golden, build, check, check_evaluated};

/// Each has another network, pooling or head (`tests/oracle/encoders.py`).
const FIXTURES: [&str; 9] = [
    "bert-mean",
    "bert-joined",
    "bert-score",
    "modernbert",
    "modernbert-score",
    "nomic_bert",
    "qwen3-embedding",
    "xlm_roberta",
    "xlm_roberta-score",
];

#[test]
fn the_oracle_of_text_encoders() {
    for fixture in FIXTURES {
        let golden = Golden::fixture(fixture).unwrap();
        let report = check_evaluated(&golden, 2, Ok).unwrap_or_else(|error| panic!("{fixture}: {error}"));
        let _ = writeln!(std::io::stderr(), "{fixture}: {report}");
        assert!(report.passes() && report.texts == golden.texts.len(), "{fixture}: {report}");
    }
}

/// With layers of all kinds; the evaluator judges the other families.
#[test]
fn compiled_encoders_compute_the_same() {
    for fixture in ["bert-joined", "bert-score", "modernbert"] {
        let golden = Golden::fixture(fixture).unwrap();
        let report = check(&golden, &build(&golden, F32, 3, Ok).unwrap()).unwrap();
        let _ = writeln!(std::io::stderr(), "{fixture}: {report}");
        assert!(report.passes(), "{fixture}: {report}");
    }
}

/// Special tokens, and the place where texts and pairs are cut.
#[test]
fn texts_and_pairs_become_the_tokens_of_sentence_transformers() {
    for fixture in FIXTURES {
        let golden = Golden::fixture(fixture).unwrap();
        let network = models::read(&golden.model, &[]).unwrap();
        let sentence = network.sentence().unwrap();
        let tokenizer = Tokenizer::load(&golden.model).unwrap().unwrap();
        let limit = sentence.max_tokens;
        assert_eq!(limit, golden.max_length, "{fixture}");
        for text in &golden.texts {
            let prompt = sentence.prompt(text.prompt.as_deref()).unwrap();
            if let Some(second) = &text.second {
                let pair = tokenizer.encode_pair_within(&text.text, second, limit).unwrap();
                assert_eq!((pair.tokens, Some(pair.first)), (text.tokens.clone(), text.first), "{fixture}");
            } else {
                let prompted = format!("{prompt}{}", text.text);
                let (tokens, _) = tokenizer.encode_within(&prompted, limit).unwrap();
                assert_eq!(tokens, text.tokens, "{fixture}");
            }
        }
    }
}
