//! Compares the primitive operations that each converter, each function and each data movement
//! produces with golden texts. All extents differ, so that a swapped axis is visible. `ops_iree` compares
//! the other element types.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "goldens/shards.rs"]
mod shards;
mod support;

use expect_test::{ExpectFile, expect_file};
use ops::ops::{BinaryKind, ReduceKind};
use ops::{Attribute as _, InferError};
use shards::attention;
use support::*;
use targets::Target;
use trace::{
    Builder, Function, FunctionId, NodeId, NodeKind, Output, Parameter, Provenance, Quantization, Trace,
    functions,
};
use tracewright_lower::{Implementations, Shards, Weights, expand, xla};

fn check_op(op: &str, operands: &[&str], expected: ExpectFile) {
    expected.assert_eq(&body(&of_op(op, operands)));
}

type OfOne = fn(&mut Builder<'_>, NodeId) -> Result<NodeId, InferError>;

fn check_function(x: &str, function: OfOne, expected: ExpectFile) {
    expected.assert_eq(&body(&entry(&[x], |b, x| Ok(vec![function(b, x[0])?]))));
}

#[test]
fn s5_permute() {
    let trace = of_op("permute order=[0,2,1]", &["f32[2,3,4]"]);
    assert!(body(&trace).contains("stablehlo.transpose %arg0, dims = [0, 2, 1]"));
    check_op("permute order=[0,2,1]", &["f32[2,3,4]"], expect_file!["goldens/s5_permute-1.txt"]);
}

#[test]
fn s6_narrow() {
    check_op("narrow axis=1 start=2 length=4", &["f32[2,8]"], expect_file!["goldens/s6_narrow-1.txt"]);
    check_op(
        "dynamic_slice axis=1 length=2",
        &["f32[3,5,4]", "i32[]"],
        expect_file!["goldens/s6_narrow-2.txt"],
    );
    check_op(
        "dynamic_update_slice axis=1",
        &["f32[3,5,4]", "f32[3,2,4]", "i32[]"],
        expect_file!["goldens/s6_narrow-3.txt"],
    );
}

#[test]
fn s7_split_in_2_with_relu_on_chunk_1() {
    let trace = entry(&["f32[3,8]"], |b, x| {
        let chunks = functions::split(b, x[0], 1, &[3, 5])?;
        let relu = b.with_scalar(BinaryKind::Maximum, chunks[1], 0.0)?;
        Ok(vec![chunks[0], relu])
    });
    expect_file!["goldens/s7_split_in_2_with_relu_on_chunk_1-1.txt"].assert_eq(&body(&trace));
}

#[test]
fn s14_gather_by_indices_of_rank_0_to_3() {
    check_op(
        "gather",
        &["f32[7,4]", "i32[1]"],
        expect_file!["goldens/s14_gather_by_indices_of_rank_0_to_3-1.txt"],
    );
    let trace = entry(&["f32[7,4]", "i32[2,3]", "i32[2,3,5]"], |b, x| {
        let scalar = b.op(op("constant value=i32[] splat 3.0"), &[])?;
        [scalar, x[1], x[2]].iter().map(|index| b.op(op("gather"), &[x[0], *index])).collect()
    });
    expect_file!["goldens/s14_gather_by_indices_of_rank_0_to_3-2.txt"].assert_eq(&body(&trace));
}

#[test]
fn s17_concatenate_has_the_full_type() {
    check_op(
        "concatenate axis=1",
        &["f32[2,3]", "f32[2,5]", "f32[2,1]"],
        expect_file!["goldens/s17_concatenate_has_the_full_type-1.txt"],
    );
}

#[test]
fn s18_batched_product_with_shared_leading_axes() {
    check_op(
        "dot_general left_batch=[0,1] right_batch=[0,1] left_contract=[3] right_contract=[2] element=f32",
        &["f32[2,3,4,5]", "f32[2,3,5,6]"],
        expect_file!["goldens/s18_batched_product_with_shared_leading_axes-1.txt"],
    );
}

#[test]
fn reductions_and_comparisons() {
    check_op(
        "reduce kind=maximum axes=[0,2]",
        &["f32[2,3,4]"],
        expect_file!["goldens/reductions_and_comparisons-1.txt"],
    );
    check_op(
        "reduce kind=minimum axes=[1]",
        &["i32[2,3]"],
        expect_file!["goldens/reductions_and_comparisons-2.txt"],
    );
    check_op(
        "compare direction=LE",
        &["i8[2]", "i8[2]"],
        expect_file!["goldens/reductions_and_comparisons-3.txt"],
    );
    check_op(
        "reduce_precision to=bf16",
        &["f32[2]"],
        expect_file!["goldens/reductions_and_comparisons-4.txt"],
    );
    let reduced: OfOne = |b, x| b.reduced_along(ReduceKind::Add, x, 1);
    check_function("f32[2,3,4]", reduced, expect_file!["goldens/reductions_and_comparisons-5.txt"]);
}

#[test]
fn constants() {
    let trace = entry(&[], |b, _| {
        [
            "constant value=f32[2,3] splat 1.5",
            "constant value=f32[2] splat bits 0x7fc01234",
            "constant value=bf16[2] dense 0x803f0040",
            "constant value=i1[2,1] dense 0x0100",
            "constant value=i4[3] dense 0xf107",
            "constant value=i8[2] dense 0x01ff",
            "constant value=f32[1,2] rope_table cos scaling=1.0 inv_freq=[1.0,0.5]",
            "constant value=f32[0,2] dense 0x",
        ]
        .iter()
        .map(|text| b.op(op(text), &[]))
        .collect()
    });
    expect_file!["goldens/constants-1.txt"].assert_eq(&body(&trace));
}

#[test]
fn linear() {
    check_op("linear", &["f32[2,3,4]", "f32[5,4]"], expect_file!["goldens/linear-1.txt"]);
    check_op("linear", &["bf16[3,4]", "bf16[5,4]", "bf16[5]"], expect_file!["goldens/linear-2.txt"]);
}

#[test]
fn rms_norm() {
    check_op(
        "rms_norm epsilon=1e-5 style=scale",
        &["bf16[3,4]", "bf16[4]"],
        expect_file!["goldens/rms_norm-1.txt"],
    );
    check_op(
        "rms_norm epsilon=1e-6 style=one_plus",
        &["bf16[3,4]", "bf16[4]"],
        expect_file!["goldens/rms_norm-2.txt"],
    );
}

#[test]
fn rope() {
    check_op(
        "rope axis=1 layout=half_split",
        &["f32[2,3,5,8]", "f32[3,4]", "f32[3,4]"],
        expect_file!["goldens/rope-1.txt"],
    );
    check_op(
        "rope axis=1 layout=interleaved",
        &["f32[2,3,5,8]", "f32[3,4]", "f32[3,4]"],
        expect_file!["goldens/rope-2.txt"],
    );
    check_op(
        "rope axis=0 layout=half_split",
        &["bf16[3,7]", "bf16[3,2]", "bf16[3,2]"],
        expect_file!["goldens/rope-3.txt"],
    );
    check_op(
        "rope axis=0 layout=interleaved",
        &["f32[3,7]", "f32[3,2]", "f32[3,2]"],
        expect_file!["goldens/rope-4.txt"],
    );
}

#[test]
fn s9_sdpa() {
    check_op(
        "sdpa mask=[] scale=none softcap=none offset=false",
        &["f32[2,3,4]", "f32[2,5,4]", "f32[2,5,6]"],
        expect_file!["goldens/s9_sdpa-1.txt"],
    );
}

#[test]
fn s11_sdpa_causal_with_an_offset_and_grouped_heads() {
    check_op(
        "sdpa mask=[causal] scale=0.5 softcap=none offset=true",
        &["bf16[2,3,5,4]", "bf16[2,7,4]", "bf16[2,7,4]", "i32[]"],
        expect_file!["goldens/s11_sdpa_causal_with_an_offset_and_grouped_heads-1.txt"],
    );
}

#[test]
fn s12_sdpa_with_an_explicit_mask() {
    check_op(
        "sdpa mask=[additive] scale=none softcap=none offset=false",
        &["f32[2,3,4]", "f32[2,5,4]", "f32[2,5,4]", "f32[3,1]"],
        expect_file!["goldens/s12_sdpa_with_an_explicit_mask-1.txt"],
    );
}

#[test]
fn s13_sdpa_with_a_sliding_window_and_softcap() {
    check_op(
        "sdpa mask=[causal,window(3)] scale=1.0 softcap=2.0 offset=false",
        &["f32[5,4]", "f32[7,4]", "f32[7,4]"],
        expect_file!["goldens/s13_sdpa_with_a_sliding_window_and_softcap-1.txt"],
    );
}

#[test]
fn softmax() {
    check_function("f32[2,3,4]", |b, x| functions::softmax(b, x, 1), expect_file!["goldens/softmax-1.txt"]);
}

#[test]
fn silu() {
    check_function("bf16[2,3]", functions::silu, expect_file!["goldens/silu-1.txt"]);
}

#[test]
fn gelu_tanh() {
    check_function("bf16[2,3]", functions::gelu_tanh, expect_file!["goldens/gelu_tanh-1.txt"]);
}

#[test]
fn softplus() {
    check_op("softplus", &["f16[2,3]"], expect_file!["goldens/softplus-1.txt"]);
}

#[test]
fn erf() {
    check_op("erf", &["bf16[2,3]"], expect_file!["goldens/erf-1.txt"]);
}

#[test]
fn s29_dequantize() {
    check_op(
        "dequantize element=bf16",
        &["i8[3,2,5]", "f32[3,2]"],
        expect_file!["goldens/s29_dequantize-1.txt"],
    );
}

#[test]
fn s29_append() {
    check_op(
        "append axis=2 ring=true",
        &["f32[3,2,7,4]", "f32[3,2,5,4]", "i32[3]", "i32[3]"],
        expect_file!["goldens/s29_append-1.txt"],
    );
    check_op(
        "append axis=1 ring=false",
        &["f32[3,7,4]", "f32[3,1,4]", "i32[]", "i32[]"],
        expect_file!["goldens/s29_append-2.txt"],
    );
}

/// Checks the statements of the idiom for IREE, which updates the cache in place.
#[test]
fn s29_sliced_append() {
    let trace = of_op("sliced_append axis=1", &["f32[3,7,4]", "f32[3,2,4]", "i32[]", "i32[]"]);
    let text = tracewright_lower::lower(&trace, &Target::host()).unwrap().text_without_locs;
    expect_file!["goldens/s29_sliced_append-1.txt"].assert_eq(&text);
}

/// Checks the statements of the idiom for IREE. For other compilers, the operation is `sdpa`.
#[test]
fn s29_bounded_sdpa() {
    let trace = of_op(
        "bounded_sdpa mask=[causal,window(9)] scale=none softcap=2.0",
        &["bf16[2,3,1,16]", "bf16[2,700,16]", "bf16[2,700,20]", "i32[]"],
    );
    let text = tracewright_lower::lower(&trace, &Target::host()).unwrap().text_without_locs;
    expect_file!["goldens/s29_bounded_sdpa-1.txt"].assert_eq(&text);
}

#[test]
fn s29_grouped_linear_of_few_rows() {
    check_op(
        "grouped_linear format=q4 element=bf16 activations=8",
        &["bf16[2,37]", "i8[5,2,16]", "f16[5,2]"],
        expect_file!["goldens/s29_grouped_linear_of_few_rows-1.txt"],
    );
}

#[test]
fn s29_grouped_linear_of_many_rows() {
    check_op(
        "grouped_linear format=q8 element=f32 activations=8",
        &["f32[33,64]", "i8[5,2,32]", "f16[5,2]"],
        expect_file!["goldens/s29_grouped_linear_of_many_rows-1.txt"],
    );
}

#[test]
fn s29_grouped_rows() {
    check_op(
        "grouped_rows format=q4 inputs=37 element=bf16",
        &["i8[5,2,16]", "f16[5,2]", "i32[3]"],
        expect_file!["goldens/s29_grouped_rows-1.txt"],
    );
}

/// Checks matmuls with a stack of matrices. Each row is multiplied by all matrices, by its own
/// matrix, or by a selected matrix.
#[test]
fn s29_experts() {
    let trace = entry(&["bf16[2,5]", "bf16[2,3,6]", "i32[2,2]"], |b, x| {
        let stack = |b: &mut Builder<'_>, key: &str, ty: &str| {
            let ty = ops::TensorType::parse(&mut ops::Reader::new(ty)).unwrap();
            b.push(NodeKind::Parameter(Parameter::new(key, ty.clone())), vec![ty], &[])
        };
        let [up, down] = [stack(b, "up", "bf16[3,16,5]"), stack(b, "down", "bf16[3,16,6]")];
        let dot = |b: &mut Builder<'_>, text: &str, x, weights| {
            b.op(op(&format!("dot_general {text} element=f32")), &[x, weights])
        };
        let all = dot(b, "left_batch=[] right_batch=[] left_contract=[1] right_contract=[2]", x[0], up)?;
        let own = dot(b, "left_batch=[1] right_batch=[0] left_contract=[2] right_contract=[2]", x[1], down)?;
        let taken = b.op(op("gather"), &[up, x[2]])?;
        let chosen =
            dot(b, "left_batch=[0] right_batch=[0] left_contract=[1] right_contract=[3]", x[0], taken)?;
        Ok(vec![all, own, chosen])
    });
    let features = ["avx2", "f16c", "fma"].map(str::to_owned).to_vec();
    let target = Target { features: Some(features), ..Target::processor("x86-64-v3") };
    expect_file!["goldens/s29_experts-1.txt"].assert_eq(&stored(&trace, &Weights::default(), &target));
}

/// The expanded trace, with the layouts in which the archive stores the weights.
fn stored(trace: &Trace, weights: &Weights, target: &Target) -> String {
    Implementations::of(trace, weights, target).unwrap().expand().unwrap().to_string()
}

/// The archive packs a weight that only matmuls read. A tied weight is packed once for its two
/// uses, and a weight with other readers is not packed.
#[test]
fn m9_s29_stored_weights() {
    let parameter = |b: &mut Builder<'_>, key: &str, ty: &str| {
        let ty = ops::TensorType::parse(&mut ops::Reader::new(ty)).unwrap();
        b.push(NodeKind::Parameter(Parameter::new(key, ty.clone())), vec![ty], &[])
    };
    let trace = entry(&["bf16[2,5]", "i32[3]"], |b, x| {
        let [weight, table, other] = ["weight", "table", "other"].map(|key| parameter(b, key, "bf16[17,5]"));
        let bias = parameter(b, "bias", "bf16[17]");
        // This weight has too few outputs, so its numbers stay unquantized.
        let router = parameter(b, "router", "bf16[7,5]");
        let chosen = b.op(op("linear"), &[x[0], router])?;
        let biased = b.op(op("linear"), &[x[0], weight, bias])?;
        let tied = b.op(op("linear"), &[x[0], table])?;
        let rows = b.op(op("gather"), &[table, x[1]])?;
        let kept = b.op(op("linear"), &[x[0], other])?;
        let sum = b.binary(BinaryKind::Add, other, other)?;
        Ok(vec![chosen, biased, tied, rows, kept, sum])
    });
    let features = ["avx2", "f16c", "fma"].map(str::to_owned).to_vec();
    let target = Target { features: Some(features), ..Target::processor("x86-64-v3") };
    let packed =
        |quantize, kernels| stored(&trace, &Weights { quantize, kernels, ..Weights::default() }, &target);
    expect_file!["goldens/m9_s29_stored_weights-1.txt"]
        .assert_eq(&packed(Quantization::All(ops::WeightFormat::Q4), true));
    let dense = packed(Quantization::Computed, true);
    assert_eq!(dense.matches("pack format=bf16").count(), 4);
    assert_eq!(packed(Quantization::Computed, false).matches("pack").count(), 0);
    // Without kernels, the archive stores the same weights, each as two tensors.
    let [off, none] = [(false, target), (true, Target::processor("x86-64-v2"))].map(|(kernels, target)| {
        let weights =
            Weights { quantize: Quantization::All(ops::WeightFormat::Q4), kernels, ..Weights::default() };
        stored(&trace, &weights, &target)
    });
    assert_eq!(off, none);
    for (text, count) in [
        ("\"weight\" = quantize format=q4 part=integers (\"weight\" : bf16[17,5]) () : i8[17,1,16]", 1),
        ("\"table.scales\" = quantize format=q4 part=scales (\"table\" : bf16[17,5]) () : f16[17,1]", 2),
        ("pack", 0),
    ] {
        assert_eq!(off.matches(text).count(), count, "{text} in\n{off}");
    }
}

/// Checks the matmuls that kernels compute in each entry point. A matmul in a called function
/// counts once per call.
#[test]
fn products_are_counted_with_what_is_around_them() {
    let parameter = |b: &mut Builder<'_>, key: &str, ty: &str| {
        let ty = ops::TensorType::parse(&mut ops::Reader::new(ty)).unwrap();
        b.push(NodeKind::Parameter(Parameter::new(key, ty.clone())), vec![ty], &[])
    };
    // The layer computes gate and up from the normalized input.
    let layer = entry(&["bf16[1,64]", "bf16[64]"], |b, x| {
        let weight = parameter(b, "layer", "bf16[4,32,16,2]");
        let x = b.op(op("rms_norm epsilon=1e-5 style=scale"), x)?;
        let both =
            b.op(op("packed_linear format=bf16 outputs=64 element=bf16 activations=8"), &[x, weight])?;
        let gate = b.op(op("narrow axis=1 start=0 length=32"), &[both])?;
        let up = b.op(op("narrow axis=1 start=32 length=32"), &[both])?;
        Ok(vec![b.binary(BinaryKind::Multiply, gate, up)?])
    });
    let mut trace = layer;
    trace.functions[0].name = "layer".into();
    let mut main = Function::new("main", "");
    let mut b = Builder { function: &mut main, provenance: Provenance::new("model", "models/src/toy.rs", 7) };
    let types = trace.functions[0].inputs().into_iter().map(|(_, ty)| ty.clone());
    let inputs = types.enumerate().map(|(i, ty)| b.push(NodeKind::input(i, "x"), vec![ty], &[]));
    let inputs: Vec<NodeId> = inputs.collect();
    let called = [(); 2].map(|()| {
        let layer = NodeKind::Call { function: FunctionId(0), prefix: String::new() };
        let ty = ops::TensorType::new(ops::ElementType::Bf16, [1, 32]);
        let call = b.push(layer, vec![ty.clone()], &inputs);
        b.push(NodeKind::Result { index: 0 }, vec![ty], &[call])
    });
    let sum = b.binary(BinaryKind::Add, called[0], called[1]).unwrap();
    let head = parameter(&mut b, "head", "bf16[3,16,16,2]");
    let logits =
        b.op(op("packed_linear format=bf16 outputs=40 element=f32 activations=8"), &[sum, head]).unwrap();
    main.outputs = vec![Output::new("logits", logits)];
    trace.functions.push(main);
    trace.entries = vec![FunctionId(1)];
    trace.verify().unwrap();
    let features = ["avx2", "f16c", "fma"].map(str::to_owned).to_vec();
    let target = Target { features: Some(features), ..Target::processor("x86-64-v3") };
    let mut text = String::new();
    for (entry, works) in tracewright_lower::tunable(&trace, &target).unwrap() {
        for (work, count) in works {
            let tilings = work.tilings(&target).unwrap();
            text += &format!("{entry}: {count} × {}: {}\n", tilings.work, tilings.usual);
        }
    }
    expect_file!["goldens/products_are_counted_with_what_is_around_them-1.txt"].assert_eq(&text);
    assert_eq!(tracewright_lower::tunable(&trace, &Target::processor("x86-64-v2")).unwrap()["main"].len(), 0);
}

/// Compares the same program for one device and for four devices.
#[test]
fn xla_has_weights_behind_arguments_and_says_how_all_are_divided() {
    let trace = attention(4);
    let primitives = expand(&trace).unwrap();
    let text = |shards: Option<&Shards>| {
        let text = xla(&primitives, "decode", &Target::xla(), shards).unwrap().text_without_locs;
        let frame = |line: &&str| !line.starts_with("    ") || line.starts_with("    return");
        text.lines().filter(frame).map(|line| format!("{line}\n")).collect::<String>()
    };
    expect_file!["goldens/xla_has_weights_behind_arguments_and_says_how_all_are_divided-1.txt"]
        .assert_eq(&text(None));
    let shards = Shards::new(&trace, &"model=4".parse().unwrap(), &["K=model".parse().unwrap()]).unwrap();
    expect_file!["goldens/xla_has_weights_behind_arguments_and_says_how_all_are_divided-2.txt"]
        .assert_eq(&text(Some(&shards)));
    let error = xla(&primitives, "prefill", &Target::xla(), None).unwrap_err().to_string();
    assert_eq!(error, "the network has no entry point `prefill`");
}

/// Accelerators round the operands of f32 matmuls unless the module requests f32 precision.
#[test]
fn xla_multiplies_f32_in_f32() {
    let module = xla(&expand(&attention(4)).unwrap(), "decode", &Target::xla(), None).unwrap();
    let matmuls: Vec<&str> = module.text.lines().filter(|line| line.contains("dot_general")).collect();
    assert!(!matmuls.is_empty());
    for line in matmuls {
        assert!(line.contains("precision = [HIGHEST, HIGHEST] : (tensor<"), "{line}");
    }
}

/// Checks a single token. The tests in `tests/composites.rs` compare several tokens with
/// transformers.
#[test]
fn linear_attention_of_one_token() {
    check_op(
        "linear_attention delta=true",
        &[
            "f32[2,1,3,5]",
            "f32[2,1,3,5]",
            "f32[2,1,3,4,6]",
            "f32[2,1,3,4]",
            "f32[2,1,3,4]",
            "f32[2,3,4,5,6]",
            "i32[]",
            "i32[]",
        ],
        expect_file!["goldens/linear_attention_of_one_token-1.txt"],
    );
}
