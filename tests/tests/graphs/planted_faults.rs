//! Faults that a transformer may have and still speak, planted into the trace of a network that passes: each must
//! turn the comparison with transformers red.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::ops::ControlFlow;

use tracewright::generate::{Batch, TokenOptions};
use tracewright::ops::ops::{
    Binary, BinaryKind, BroadcastInDim, Constant, MaskTerm, Narrow, Reshape, RmsNorm, Sdpa, Unary, UnaryKind,
    WeightStyle,
};
use tracewright::ops::{ElementType, Literal, Op, Real, RopeTable};
use tracewright::trace::{Builder, NodeId, NodeKind, Trace};
use tracewright_tests::embedding;
use tracewright_tests::faults::{self, Replaced};
use tracewright_tests::golden::{
    BOUND, BuildOptions, Comparison, Golden, build, check, check_evaluated, evaluated,
};
use tracewright_tests::rewrite::rewrite;
use tracewright_tests::{long, precision};

/// A Llama of two layers, two key-value heads with three query heads each.
const LLAMA: &str = "llama-untied";
/// A Gemma 3 with a window of 7, two rope bases, scores divided by √17 for heads of 10, and bounded logits.
const GEMMA: &str = "gemma3-b";
/// 40 learned positions of 42 features.
const GPT2: &str = "gpt2";
/// Two of five experts for each token.
const MIXTRAL: &str = "mixtral";
/// Convolutions of three taps over 42 features, and attention in one layer of four.
const LFM2: &str = "lfm2";

/// How the network compares after `replace` went over its trace: the Llama in chunks through IREE, all else by the evaluator, unless
/// the long form is wanted. Token by token, most faults show as well as in longer chunks, and compile sooner.
fn report(
    fixture: &str,
    chunk: usize,
    replace: impl Fn(&mut Builder<'_>, &Op, &[NodeId]) -> Replaced,
) -> Comparison {
    let golden = Golden::fixture(fixture).unwrap();
    let edit = |trace| {
        let faulty = rewrite(&trace, replace)?;
        faulty.verify()?;
        Ok(faulty)
    };
    let (sizes, entries) = (BuildOptions { chunk, ..BuildOptions::of(&golden) }, ["prefill", "decode"]);
    if (fixture != LLAMA || chunk == 1) && !long::is_wanted() {
        return check_evaluated(&golden, &sizes, &entries, BOUND, edit).unwrap();
    }
    check(&golden, &build(&golden.model, &sizes, &entries, edit).unwrap()).unwrap()
}

/// Asserts that a fault is found in a fixture.
fn red_in(
    fixture: &str,
    name: &str,
    chunk: usize,
    replace: impl Fn(&mut Builder<'_>, &Op, &[NodeId]) -> Replaced,
) {
    let report = report(fixture, chunk, replace);
    println!("{name}: {report}");
    assert!(!report.passes(), "{name} went unnoticed: {report}");
}

/// Asserts that a fault is found in the Llama.
fn red(name: &str, chunk: usize, replace: impl Fn(&mut Builder<'_>, &Op, &[NodeId]) -> Replaced) {
    red_in(LLAMA, name, chunk, replace);
}

#[test]
fn without_a_fault_the_rewritten_trace_passes() {
    for fixture in [LLAMA, GEMMA, GPT2, MIXTRAL, LFM2] {
        let report = report(fixture, 1, |_, _, _| Ok(None));
        assert!(report.passes(), "{fixture}: {report}");
    }
}

#[test]
fn the_causal_mask_off_by_one() {
    red("mask off by one", 8, faults::causal_mask_off_by_one);
}

#[test]
fn another_rope_base() {
    red("rope base", 1, faults::another_rope_base);
}

/// 1e-5 becomes 1e-6.
#[test]
fn another_norm_epsilon() {
    red("norm epsilon", 1, |b, op, operands| {
        let Op::RmsNorm(norm) = op else { return Ok(None) };
        assert_eq!(norm.epsilon, Real(1e-5));
        b.op(RmsNorm { epsilon: Real(1e-6), ..norm.clone() }, operands).map(Some)
    });
}

#[test]
fn the_order_of_heads() {
    red("head order", 1, faults::order_of_heads);
}

#[test]
fn k_and_v_swapped() {
    red("k and v swapped", 1, |b, op, operands| {
        let (Op::Sdpa(sdpa), &[q, k, v, offset]) = (op, operands) else { return Ok(None) };
        b.op(Sdpa::clone(sdpa), &[q, v, k, offset]).map(Some)
    });
}

/// A key that should be forgotten is seen. A ring would have no slot for it, which is an error by itself; a chunk this
/// long leaves no room for rings.
#[test]
fn a_window_one_too_wide() {
    let sound = report(GEMMA, 39, |_, _, _| Ok(None));
    assert!(sound.passes(), "in chunks of 39: {sound}");
    red_in(GEMMA, "window too wide", 39, |b, op, operands| {
        let Op::Sdpa(sdpa) = op else { return Ok(None) };
        let widen = |term: &MaskTerm| match term {
            MaskTerm::Window(width) => MaskTerm::Window(width + 1),
            term => *term,
        };
        let mask = sdpa.mask.iter().map(widen).collect();
        b.op(Sdpa { mask, ..sdpa.clone() }, operands).map(Some)
    });
    let golden = Golden::fixture(GEMMA).unwrap();
    let refused = build(&golden.model, &BuildOptions::of(&golden), &["prefill"], |trace| {
        Ok(rewrite(&trace, |b, op, operands| {
            let Op::Sdpa(sdpa) = op else { return Ok(None) };
            let mask = sdpa.mask.iter().copied().chain([MaskTerm::Window(9)]);
            let mask = mask.filter(|term| *term != MaskTerm::Window(7)).collect();
            b.op(Sdpa { mask, ..sdpa.clone() }, operands).map(Some)
        })?)
    });
    assert!(refused.err().unwrap().to_string().contains("slots of the ring"));
}

#[test]
fn local_and_global_rope_swapped() {
    red_in(GEMMA, "rope bases swapped", 1, |b, op, _| {
        let Op::Constant(constant) = op else { return Ok(None) };
        let Some(table) = constant.value.as_rope_table() else { return Ok(None) };
        // 200 and, stretched by 8, 20,000 for 10 features.
        let frequencies = |theta: f64, factor: f64| -> Vec<Real> {
            (0..5)
                .map(|i| Real(f64::from((theta.powf(-2.0 * f64::from(i) / 10.0) / factor) as f32)))
                .collect()
        };
        let is_local = table.inv_freq[0] == Real(1.0);
        let inv_freq = if is_local { frequencies(20_000.0, 8.0) } else { frequencies(200.0, 1.0) };
        let table = RopeTable { inv_freq, ..table.clone() };
        let value = Literal::rope_table(constant.value.ty().element, table);
        b.op(Constant { value }, &[]).map(Some)
    });
}

/// The scores are divided by √10, the root of the features, instead.
#[test]
fn query_pre_attn_scalar_ignored() {
    red_in(GEMMA, "query_pre_attn_scalar ignored", 1, |b, op, operands| {
        let Op::Sdpa(sdpa) = op else { return Ok(None) };
        assert!(sdpa.scale.is_some());
        b.op(Sdpa { scale: None, ..sdpa.clone() }, operands).map(Some)
    });
}

#[test]
fn the_bound_on_the_logits_dropped() {
    let vocabulary = Golden::fixture(GEMMA).unwrap().vocab_size;
    red_in(GEMMA, "logit softcap dropped", 1, |b, op, operands| match op {
        Op::Unary(Unary { kind: UnaryKind::Tanh }) if b.ty(operands[0]).shape.last() == Some(&vocabulary) => {
            Ok(Some(operands[0]))
        }
        _ => Ok(None),
    });
}

#[test]
fn the_bound_on_the_scores_dropped() {
    red_in("gemma2", "score softcap dropped", 1, |b, op, operands| {
        let Op::Sdpa(sdpa) = op else { return Ok(None) };
        assert!(sdpa.softcap.is_some());
        b.op(Sdpa { softcap: None, ..sdpa.clone() }, operands).map(Some)
    });
}

/// The first token stands at position 1.
#[test]
fn learned_positions_one_too_late() {
    red_in(GPT2, "learned positions one too late", 1, |b, op, operands| {
        let (Op::Gather(gather), &[table, index]) = (op, operands) else { return Ok(None) };
        if b.ty(table).shape != [40, 42] {
            return Ok(None);
        }
        let one = b.op(Constant { value: Literal::splat(b.ty(index).clone(), 1.0) }, &[])?;
        let later = b.op(Binary { kind: BinaryKind::Add }, &[index, one])?;
        b.op(gather.clone(), &[table, later]).map(Some)
    });
}

/// The experts' shares are those among all experts, and do not add up to one.
#[test]
fn shares_of_experts_that_do_not_add_up() {
    red_in(MIXTRAL, "shares not normalized", 1, |b, op, operands| match op {
        Op::Binary(Binary { kind: BinaryKind::Divide }) if b.ty(operands[0]).shape == [1, 1, 5] => {
            Ok(Some(operands[0]))
        }
        _ => Ok(None),
    });
}

/// The last tap is that of the oldest position, not of the newest.
#[test]
fn taps_of_a_convolution_reversed() {
    red_in(LFM2, "taps reversed", 1, |b, op, operands| {
        let Op::Narrow(narrow) = op else { return Ok(None) };
        if b.ty(operands[0]).shape != [42, 1, 3] {
            return Ok(None);
        }
        b.op(Narrow { start: 2 - narrow.start, ..narrow.clone() }, operands).map(Some)
    });
}

/// Each convolution sees zeros before its chunk, whatever was there.
#[test]
fn a_convolution_that_forgets() {
    red_in(LFM2, "state forgotten", 1, |b, op, operands| match (op, operands) {
        // Of a row that begins, zeros; of any other, the state.
        (Op::Select(_), &[_, zeros, state]) if b.ty(state).shape == [1, 2, 42] => Ok(Some(zeros)),
        _ => Ok(None),
    });
}

/// All rows of a batch stand where the first one does.
#[test]
fn one_position_for_all_rows() {
    let golden = Golden::fixture(GEMMA).unwrap();
    let prompts: Vec<&[u32]> = golden.prompts[..2].iter().map(|p| &p.prompt_tokens[..]).collect();
    assert!(prompts[0].len() < prompts[1].len());
    let answer = |planted: bool| {
        let edit = |trace: Trace| {
            let edited = rewrite(&trace, |b, op, operands| {
                let Op::Sdpa(sdpa) = op else { return Ok(None) };
                let mut operands = operands.to_vec();
                if planted {
                    let first = b.op(Narrow { axis: 0, start: 0, length: 1 }, &[operands[3]])?;
                    let first = b.op(Reshape { shape: vec![] }, &[first])?;
                    operands[3] = b.op(BroadcastInDim { shape: vec![2], axes: vec![] }, &[first])?;
                }
                b.op(sdpa.clone(), &operands).map(Some)
            })?;
            Ok(edited)
        };
        let sizes = BuildOptions { batch: 2, ..BuildOptions::of(&golden) };
        let options = TokenOptions { max_tokens: 3, keep_logits: true, ..TokenOptions::default() };
        let answers = evaluated(&golden.model, &sizes, &["prefill", "decode"], edit, |network| {
            Ok(Batch::new(network).generate(&prompts, &options, |_, _| ControlFlow::Continue(()))?)
        });
        let row = answers.unwrap()[1].logits[2].clone();
        golden.reference(1).unwrap().error(prompts[1].len() + 1, &row)
    };
    let (right, wrong) = (answer(false), answer(true));
    println!("one position for all: error {wrong:.1e}, otherwise {right:.1e}");
    assert!(right <= BOUND && wrong > BOUND);
}

/// A Gemma 3 in bf16 whose roundings can be told apart: norms multiply by 1 + 0.0034 to 1 + 0.0038, which bf16 has no
/// numbers for, and √28 is rounded by 0.2 %.
const ROUNDINGS: &str = "gemma3-roundings";

/// Our logits in units of transformers' own, both in bf16, after `replace` went over the trace: how far the nearest factor
/// is from 1, and whether all the rest passes.
fn factor_in_bf16(name: &str, replace: impl Fn(&mut Builder<'_>, &Op, &[NodeId]) -> Replaced) -> f64 {
    let golden = Golden::fixture(ROUNDINGS).unwrap();
    let edit = |trace| {
        let faulty = rewrite(&trace, replace)?;
        faulty.verify()?;
        Ok(faulty)
    };
    let sizes = BuildOptions { element: ElementType::Bf16, ..BuildOptions::of(&golden) };
    let entries = ["decode", "score"];
    let found = if long::is_wanted() {
        precision::measure(&golden, &build(&golden.model, &sizes, &entries, edit).unwrap().network)
    } else {
        evaluated(&golden.model, &sizes, &entries, edit, |network| precision::measure(&golden, network))
    };
    let found = found.unwrap();
    println!("{name}: {found}");
    found.factor()
}

/// A factor that all logits have in common. Roundings of single numbers are the same in sum with and without faults.
const COMMON: f64 = 5e-4;

#[test]
fn without_a_fault_logits_in_bf16_have_no_factor() {
    let factor = factor_in_bf16("no fault", |_, _, _| Ok(None));
    assert!((factor - 1.0).abs() < COMMON, "{factor}");
}

/// The norms of a Gemma multiply by 1 + w rounded to bf16, which is 1; transformers adds in f32.
#[test]
fn one_plus_a_norms_weight_rounded_too_early() {
    let factor = factor_in_bf16("1 + w in bf16", |b, op, operands| {
        let (Op::RmsNorm(norm), &[x, weight]) = (op, operands) else { return Ok(None) };
        assert_eq!(norm.style, WeightStyle::OnePlus);
        let one = b.op(Constant { value: Literal::splat(b.ty(weight).clone(), 1.0) }, &[])?;
        let weight = b.op(Binary { kind: BinaryKind::Add }, &[weight, one])?;
        b.op(RmsNorm { style: WeightStyle::Wide, ..norm.clone() }, &[x, weight]).map(Some)
    });
    assert!((factor - 1.0).abs() > COMMON, "{factor}");
}

/// Embeddings are multiplied by √28 itself; transformers rounds it to bf16 before.
#[test]
fn the_factor_of_embeddings_not_rounded() {
    let factor = factor_in_bf16("√28 in f32", |b, op, operands| {
        let (Op::Binary(Binary { kind: BinaryKind::Multiply }), &[x, factor]) = (op, operands) else {
            return Ok(None);
        };
        // A number for all elements.
        let [scalar] = b.function.operands(factor)[..] else { return Ok(None) };
        let NodeKind::Op(Op::Constant(Constant { value })) = &b.function.node(scalar).kind else {
            return Ok(None);
        };
        if value.as_splat().map(|bits| value.ty().element.decode(bits)) != Some(5.28125) {
            return Ok(None);
        }
        let wide = b.convert(x, ElementType::F32)?;
        let root = b.op(Constant { value: Literal::splat(b.ty(wide).clone(), 28f64.sqrt()) }, &[])?;
        let product = b.op(Binary { kind: BinaryKind::Multiply }, &[wide, root])?;
        b.convert(product, ElementType::Bf16).map(Some)
    });
    assert!((factor - 1.0).abs() > COMMON, "{factor}");
}

/// How an embedding compares with sentence-transformers after `replace` went over its trace; texts stand two by two. The
/// evaluator computes it, unless the long form is wanted; `embedding` computes it in IREE.
fn embedded(replace: impl Fn(&mut Builder<'_>, &Op, &[NodeId]) -> Replaced) -> embedding::Comparison {
    let golden = embedding::Golden::fixture("embeddinggemma").unwrap();
    let edit = |trace| {
        let faulty = rewrite(&trace, replace)?;
        faulty.verify()?;
        Ok(faulty)
    };
    (if long::is_wanted() {
        embedding::check(&golden, &embedding::build(&golden, ElementType::F32, 2, edit).unwrap())
    } else {
        embedding::check_evaluated(&golden, 2, edit)
    })
    .unwrap()
}

/// Asserts that a fault is found in an embedding.
fn red_in_vectors(name: &str, replace: impl Fn(&mut Builder<'_>, &Op, &[NodeId]) -> Replaced) {
    let report = embedded(replace);
    println!("{name}: {report}");
    assert!(!report.passes(), "{name} went unnoticed: {report}");
}

#[test]
fn without_a_fault_the_rewritten_embedding_passes() {
    let report = embedded(|_, _, _| Ok(None));
    assert!(report.passes(), "{report}");
}

#[test]
fn an_embedding_that_looks_back_only() {
    red_in_vectors("causal mask", |b, op, operands| {
        let Op::Sdpa(sdpa) = op else { return Ok(None) };
        let mask = sdpa.mask.iter().copied().chain([MaskTerm::Causal]).collect();
        b.op(Sdpa { mask, ..sdpa.clone() }, operands).map(Some)
    });
}

/// Tokens of a text see those that pad it.
#[test]
fn an_embedding_that_sees_its_padding() {
    red_in_vectors("padding seen", |b, op, operands| {
        // A token sees what is real, or itself.
        let Op::Binary(Binary { kind: BinaryKind::Or }) = op else { return Ok(None) };
        let value = Literal::splat(b.ty(operands[0]).clone(), 1.0);
        b.op(Constant { value }, &[]).map(Some)
    });
}

/// Tokens see a whole text in all layers.
#[test]
fn an_embedding_without_windows() {
    red_in_vectors("no windows", |_, op, operands| match op {
        Op::Binary(Binary { kind: BinaryKind::And }) => Ok(Some(operands[0])),
        _ => Ok(None),
    });
}

/// The mean is that of all rows of the hidden states, whatever is real of them.
#[test]
fn a_mean_over_padding() {
    red_in_vectors("mean over padding", |b, op, operands| match (op, operands) {
        (Op::Select(_), &[_, hidden, _])
            if b.ty(hidden).element == ElementType::F32 && b.ty(hidden).shape == [2, 40, 42] =>
        {
            Ok(Some(hidden))
        }
        _ => Ok(None),
    });
}
