//! Judges every family in a narrow type by transformers' own run in that type. Our logits are not farther from
//! those of f32. Tokens are equal wherever the margin between the two best logits decides.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::Write as _;

use safetensors::SafeTensors;
use tracewright::lower::Weights;
use tracewright::ops::ElementType::{self, Bf16, F16, I32};
use tracewright::ops::TensorType;
use tracewright::runtime::{Buffer, VmValue};
use tracewright::trace::{Argument, Role};
use tracewright_tests::golden::{BuildOptions, Golden, build, evaluated};
use tracewright_tests::long;
use tracewright_tests::precision::measure;

/// Compiled without kernels too, and judged many tokens at once too: products and attention as they are in most families, and
/// the roundings of a Gemma. In the long form all are.
const BOTH_WAYS: [&str; 2] = ["bf16", "gemma3-roundings"];

/// Token by token, or also many tokens at once; with kernels, or also without.
fn judge(fixture: &str, element: ElementType) {
    let golden = Golden::fixture(fixture).unwrap();
    assert_eq!(golden.storage, element);
    let both = BOTH_WAYS.contains(&fixture) || long::is_wanted();
    let entries = if both { &["decode", "score"][..] } else { &["decode"] };
    for (kernels, how) in [(true, "with kernels"), (false, "without")] {
        if !kernels && !both {
            continue;
        }
        let weights = Weights { kernels, ..Weights::default() };
        let sizes = BuildOptions { element, weights, ..BuildOptions::of(&golden) };
        let found = if long::is_left_out(fixture) {
            evaluated(&golden.model, &sizes, entries, Ok, |network| measure(&golden, network))
        } else {
            measure(&golden, &build(&golden.model, &sizes, entries, Ok).unwrap().network)
        };
        let found = found.unwrap();
        let _ = writeln!(std::io::stderr(), "{fixture} in {element} {how}: {found}");
        assert!(found.judged > 0, "{fixture}: no token is judged");
        assert!(found.passes(), "{fixture} in {element} {how}: {found}");
    }
}

/// A network whose family has another fixture, from which it differs in its configuration or its type, is judged in the long
/// form, unless it is compiled both ways. In f32, `families` judges each.
fn judge_configuration(fixture: &str, element: ElementType) {
    if BOTH_WAYS.contains(&fixture) || long::is_wanted() {
        judge(fixture, element);
    }
}

/// A test in each line, of the fixture that it names, in the type of its checkpoint.
macro_rules! judged {
    ($($test:ident: $judge:ident $fixture:literal in $element:ident,)+) => {
        $(
            #[test]
            fn $test() {
                $judge($fixture, $element);
            }
        )+
    };
}

// Of the fixtures that are there (`build.rs`).
include!(concat!(env!("OUT_DIR"), "/precision.rs"));

/// A number of a checkpoint in bf16, or what is rounded to one.
fn bf16(x: f64) -> f64 {
    Bf16.round(x)
}

/// Values of the first layer are embeddings, normalized, times a weight, times a matrix. transformers rounds after each of
/// the three, each time by 1.7e-3. We round there and nowhere else; a compiler may drop the rounding between the first two.
#[test]
fn values_of_the_first_layer_are_rounded_no_more_often_than_by_transformers() {
    let golden = Golden::fixture("bf16").unwrap();
    let file = std::fs::read(golden.model.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let read = |key: &str| -> Vec<f64> {
        let data = tensors.tensor(&format!("model.{key}.weight")).unwrap().data().to_vec();
        (0..data.len() / 2).map(|i| Bf16.decode(Bf16.load(&data, i))).collect()
    };
    let (embedding, weight, matrix) =
        (read("embed_tokens"), read("layers.0.input_layernorm"), read("layers.0.self_attn.v_proj"));
    let hidden = weight.len();
    let tokens = &golden.prompts[0].prompt_tokens[..golden.chunk];
    // `[positions, heads · features]`
    let values = |round: [fn(f64) -> f64; 3]| -> Vec<f64> {
        let row = |&token: &u32| {
            let x = &embedding[token as usize * hidden..][..hidden];
            let mean = x.iter().map(|x| x * x).sum::<f64>() / hidden as f64;
            let scaled = x.iter().zip(&weight).map(|(x, w)| round[1](round[0](x / (mean + 1e-5).sqrt()) * w));
            let scaled: Vec<f64> = scaled.collect();
            let dot = |row: &[f64]| round[2](row.iter().zip(&scaled).map(|(w, x)| w * x).sum());
            matrix.chunks(hidden).map(dot).collect::<Vec<_>>()
        };
        tokens.iter().flat_map(row).collect()
    };
    let (exact, thrice, twice) = (values([|x| x; 3]), values([bf16; 3]), values([|x| x, bf16, bf16]));
    let (heads, features) = (2, matrix.len() / hidden / 2);
    // From `[heads, positions, features]`
    let by_position = |values: &[f32], positions: usize| -> Vec<f64> {
        let at = |p: usize, h: usize, e: usize| f64::from(values[(h * positions + p) * features + e]);
        let of = |p| (0..heads).flat_map(move |h| (0..features).map(move |e| (p, h, e)));
        (0..tokens.len()).flat_map(of).map(|(p, h, e)| at(p, h, e)).collect()
    };
    let error = |values: &[f64]| {
        let squares: f64 = values.iter().zip(&exact).map(|(a, b)| (a - b) * (a - b)).sum();
        (squares / exact.iter().map(|x| x * x).sum::<f64>()).sqrt()
    };

    let theirs = by_position(&golden.own(0, "values").unwrap(), golden.prompts[0].fed().len());
    // A sum in another order puts few of them on the other side of a rounding.
    let equal = |values: &[f64], to: &[f64]| {
        values.iter().zip(to).filter(|(a, b)| a == b).count() * 100 >= 99 * to.len()
    };
    assert!(equal(&theirs, &thrice) && !equal(&twice, &thrice));
    for kernels in [true, false] {
        let weights = Weights { kernels, ..Weights::default() };
        let sizes = BuildOptions { element: Bf16, weights, ..BuildOptions::of(&golden) };
        let subject = build(&golden.model, &sizes, &["decode", "score"], Ok).unwrap();
        let signature = subject.module.signatures.iter().find(|s| s.name == "score").unwrap();
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let given = TensorType::new(I32, [1, tokens.len()]);
        let given = Buffer::from_bytes(&subject.runtime, &given, &bytes).unwrap();
        let mut arguments: Vec<VmValue> = vec![given.into(), 0.into(), (tokens.len() as i32).into()];
        let zeros = |a: &Argument| Buffer::zeros(&subject.runtime, &a.ty).unwrap();
        arguments.extend(signature.arguments[3..].iter().map(|a| VmValue::Buffer(zeros(a))));
        let results = subject.program.function("score").unwrap().call(arguments).unwrap();
        let of_values =
            |role| matches!(role, Role::State { layer: 0, part } if part.to_string() == "kv.values");
        let place = signature.results.iter().position(|result| of_values(result.role)).unwrap();
        let buffer = results.into_iter().nth(place).and_then(VmValue::buffer).unwrap();
        let mut found = vec![0.0; golden.context * heads * features];
        Bf16.decode_all(&buffer.read().unwrap(), 0, &mut found);
        let ours = by_position(&found, golden.context);
        let figures =
            format!("error of values {:.2e}, of transformers' own {:.2e}", error(&ours), error(&theirs));
        let _ = writeln!(std::io::stderr(), "kernels {kernels}: {figures}");
        assert!(equal(&ours, &twice) || equal(&ours, &thrice), "{figures}");
    }
}
