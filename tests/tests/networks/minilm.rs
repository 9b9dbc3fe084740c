//! all-MiniLM-L6-v2, judged by the embeddings of sentence-transformers (`tests/oracle/minilm.py`). `cargo xtask test` installs the
//! model; without it, the tests report that they are left out.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::Write as _;

use tracewright::ops::WeightFormat;
use tracewright::trace::Quantization;
use tracewright::{Model, NumericOptions, OpenOptions};
use tracewright_tests::built::compiler;
use tracewright_tests::embedding::Golden;
use tracewright_tests::long;

/// The most by which a number may differ from that of sentence-transformers. An embedding has length 1.
const DIFFERENCE: f32 = 1e-5;

fn open(golden: &Golden, quantize: Quantization, cache: &tempfile::TempDir) -> Model {
    let options = OpenOptions {
        numeric: NumericOptions { quantize: Some(quantize), ..NumericOptions::default() },
        cache: Some(cache.path().into()),
        compiler: Some(compiler().unwrap()),
        ..OpenOptions::default()
    };
    Model::open_with(&golden.model, options).unwrap()
}

/// Of two vectors.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// The cosines of embeddings and those of sentence-transformers, and the largest difference of two numbers.
fn beside(golden: &Golden, chosen: &[usize], found: &[Vec<f32>]) -> (Vec<f64>, f32) {
    assert_eq!(found.len(), chosen.len());
    let (mut cosines, mut apart) = (Vec::new(), 0f32);
    for (&text, found) in chosen.iter().zip(found) {
        let expected = golden.vector(text).unwrap();
        assert_eq!(found.len(), expected.len());
        cosines.push(cosine(found, &expected));
        apart = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(apart, f32::max);
    }
    (cosines, apart)
}

/// Prints a figure also when the test passes, which hides what `println!` prints.
fn show(figures: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{figures}");
}

/// Texts of all scripts and spellings. Few programs are compiled for the short ones.
fn chosen(golden: &Golden) -> Vec<usize> {
    let longest = if long::is_wanted() { golden.max_length } else { 32 };
    (0..golden.texts.len()).filter(|&text| golden.texts[text].tokens.len() <= longest).collect()
}

#[test]
fn embeddings_are_those_of_sentence_transformers() {
    let Some(golden) = Golden::minilm() else { return };
    assert_eq!(golden.texts.len(), 200);
    let (cache, chosen) = (tempfile::tempdir().unwrap(), chosen(&golden));
    let model = open(&golden, Quantization::Computed, &cache);
    // The last text is too long, so its end is missing in its tokens.
    let whole = golden.texts.split_last().unwrap().1;
    let texts: Vec<&str> = whole.iter().map(|text| text.text.as_str()).collect();
    let tokens = model.embedding_prompts(&texts, None).unwrap();
    let wrong = tokens.iter().zip(whole).position(|(found, text)| *found != text.tokens);
    assert_eq!(wrong.map(|text| texts[text]), None);

    let tokens = |text: usize| golden.texts[text].tokens.clone();
    let all = model.embed_tokens(chosen.iter().map(|&text| tokens(text)).collect()).unwrap().embeddings;
    let (cosines, apart) = beside(&golden, &chosen, &all);
    let least = cosines.iter().copied().fold(1.0, f64::min);
    show(format_args!(
        "{} texts in f32: least cosine 1 - {:.1e}, largest difference {apart:.1e}",
        all.len(),
        1.0 - least
    ));
    assert!(apart > 0.0 && apart <= DIFFERENCE && least >= 0.999_999, "{least} {apart:e}");
    // The order tells which text is which.
    let shifted = [&all[1..], &all[..1]].concat();
    assert!(beside(&golden, &chosen, &shifted).1 > 0.1);

    // Beside other texts, in another order, and alone.
    let backwards = model.embed_tokens(chosen.iter().rev().map(|&text| tokens(text)).collect()).unwrap();
    assert!(backwards.embeddings.iter().rev().eq(&all));
    for at in [0, all.len() / 2, all.len() - 1] {
        assert_eq!(model.embed_tokens(vec![tokens(chosen[at])]).unwrap().embeddings, [all[at].clone()]);
    }
}

/// Weights that are rounded to Q8_0 cost sentence-transformers as much: median 0.99982, least 0.99932.
#[test]
fn embeddings_with_q8_weights_stay_near() {
    let Some(golden) = Golden::minilm() else { return };
    let (cache, mut chosen) = (tempfile::tempdir().unwrap(), chosen(&golden));
    if !long::is_wanted() {
        chosen.retain(|&text| golden.texts[text].tokens.len() <= 24);
    }
    let model = open(&golden, Quantization::All(WeightFormat::Q8), &cache);
    let found = model.embed_tokens(chosen.iter().map(|&text| golden.texts[text].tokens.clone()).collect());
    let (mut cosines, _) = beside(&golden, &chosen, &found.unwrap().embeddings);
    cosines.sort_by(f64::total_cmp);
    let (least, median) = (cosines[0], cosines[cosines.len() / 2]);
    let few = cosines.iter().filter(|&&cosine| cosine < 0.9995).count();
    show(format_args!(
        "{} texts in q8: least cosine {least:.5}, median {median:.5}, {few} below 0.9995",
        cosines.len()
    ));
    assert!(least >= 0.9985 && (0.9997..1.0).contains(&median), "{least} {median}");
    assert!(few * 10 <= cosines.len(), "{few} of {}", cosines.len());
}
