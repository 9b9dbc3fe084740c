//! Tests how a declaration reads weights from a checkpoint, including the numbers. The declaration
//! has keys that differ from field names, transposed matrices, a weight from several tensors, and
//! several weights in one tensor.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeMap;

use bake::{BakeError, BakeOptions, bake};
use dsl::{F32, Float, dot, model};
use irpa::{Archive, Checkpoint};
use ops::{ElementType, Op, TensorType, Value};
use safetensors::{Dtype, tensor::TensorView};
use simplify::{Options, simplify};
use trace::{Evaluation, NodeKind, Trace, evaluate};

#[derive(Clone)]
struct Config {
    /// Whether the checkpoint stores the square matrix with the input axis first.
    conv: bool,
}

model! {
    Net<T: Float>(Config) {
        // D and W are two axes with the same extent, so the matrix is square.
        dims { V = 5, D = 4, W = 4, H = 2, E = 2, P = H + H + H, Z = 3, X = 3, F = 2, L = 2 }

        body: Body at "transformer",
        head: Linear[D -> V] at "lm_head" = tied(body.embed),

        fn forward(tokens: i32[B, S]) -> f32[B, S, V] {
            self.head(self.body(tokens)).to()
        }
    }

    Body {
        embed: Embedding[V, D] at "wte",
        layers: [Layer; L] at "encoder.h",

        fn forward(tokens: i32[B, S]) -> T[B, S, D] {
            self.layers.iter().fold(self.embed(tokens), |x, layer| layer.forward(x))
        }
    }

    Layer {
        square: Linear[D -> W](bias, transposed if conv) at "mlp.c_fc",
        back: Linear[W -> D] at "mlp.back",
        qkv: Linear[D -> P, E](transposed) at "attn.c_attn",
        interleaved: Linear[D -> H, Z, E] at "attn.query_key_value",
        up: Weight[X, F, D] at "experts.*.w1.weight",
        down: Weight[X, D, F] at "experts.*.w2.weight",
        scale: Weight[X] at "experts.*.scale",

        fn forward(x: T[B, S, D]) -> T[B, S, D] {
            let [q, k, v] = self.qkv(x).split(P, [self.dim(H); 3]).map(|part| part.rename(P, H));
            let fused = q + k * 2 - v * 3; // [B, S, H, E]
            let [q, k, v] = self.interleaved(x).split(Z, [1; 3]).map(|part| part.merge(&[H, Z], H));
            let interleaved = q + k * 2 - v * 3;
            let heads = (fused + interleaved).merge(&[H, E], D);
            let expert = dot(dot(x, self.up(), D), self.down(), F);
            self.back(self.square(x)) + heads + dot(expert, self.scale(), X).permute(&[B, S, D])
        }
    }
}

const TOKENS: [usize; 3] = [3, 0, 4];

fn recorded(conv: bool) -> Trace {
    let recording = Net::<F32>::record(&Config { conv }).unwrap();
    let trace = recording.entry("main", Net::forward, [("B", 1), ("S", 3)]).unwrap().finish().trace;
    trace.verify().unwrap();
    trace
}

/// The tensors of a published checkpoint, with small integers.
fn tensors() -> BTreeMap<String, Value> {
    let mut shapes: Vec<(String, &[usize])> = vec![("transformer.wte.weight".into(), &[5, 4])];
    for layer in 0..2 {
        let mut add = |key: &str, shape| shapes.push((format!("transformer.encoder.h.{layer}.{key}"), shape));
        add("mlp.c_fc.weight", &[4, 4]);
        add("mlp.c_fc.bias", &[4]);
        add("mlp.back.weight", &[4, 4]);
        add("attn.c_attn.weight", &[4, 12]);
        add("attn.query_key_value.weight", &[12, 4]);
        for x in 0..3 {
            add(&format!("experts.{x}.w1.weight"), &[2, 4]);
            add(&format!("experts.{x}.w2.weight"), &[4, 2]);
            add(&format!("experts.{x}.scale"), &[]);
        }
    }
    let mut state = 1u32;
    let value = |_: &[usize]| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state >> 24 & 3) - 1.0
    };
    let mut value = value;
    shapes
        .into_iter()
        .map(|(key, shape)| (key, Value::from_fn(TensorType::new(ElementType::F32, shape), &mut value)))
        .collect()
}

fn checkpoint(folder: &std::path::Path, tensors: &BTreeMap<String, Value>) -> Checkpoint {
    let file = folder.join("model.safetensors");
    let bytes: Vec<_> = tensors.iter().map(|(key, value)| (key, &value.ty.shape, value.to_bytes())).collect();
    let views = bytes
        .iter()
        .map(|(key, shape, bytes)| (key, TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &file).unwrap();
    Checkpoint::open(&file).unwrap()
}

/// The expected logits, computed by loops over the tensors in the checkpoint.
fn expected(tensors: &BTreeMap<String, Value>, conv: bool) -> Vec<f64> {
    let wte = &tensors["transformer.wte.weight"];
    let mut logits = Vec::new();
    for token in TOKENS {
        let mut x: Vec<f64> = (0..4).map(|d| wte.at(&[token, d])).collect();
        for layer in 0..2 {
            let of = |key: &str| &tensors[&format!("transformer.encoder.h.{layer}.{key}")];
            let sum = |x: &[f64], w: &dyn Fn(usize) -> f64| -> f64 {
                x.iter().enumerate().map(|(i, x)| x * w(i)).sum()
            };
            let (c_fc, bias, back) = (of("mlp.c_fc.weight"), of("mlp.c_fc.bias"), of("mlp.back.weight"));
            let square: Vec<f64> = (0..4)
                .map(|w| bias.at(&[w]) + sum(&x, &|d| c_fc.at(&if conv { [d, w] } else { [w, d] })))
                .collect();
            let (c_attn, qkv) = (of("attn.c_attn.weight"), of("attn.query_key_value.weight"));
            let mut y = vec![0.0; 4];
            for (out, y) in y.iter_mut().enumerate() {
                let (h, e) = (out / 2, out % 2);
                *y = sum(&square, &|w| back.at(&[out, w]));
                for (part, factor) in [1.0, 2.0, -3.0].into_iter().enumerate() {
                    // `c_attn` contains all query heads, then all key heads, then all value heads.
                    // `qkv` contains the query, key and value of each head.
                    *y += factor * sum(&x, &|d| c_attn.at(&[d, part * 4 + h * 2 + e]));
                    *y += factor * sum(&x, &|d| qkv.at(&[h * 6 + part * 2 + e, d]));
                }
                for expert in 0..3 {
                    let of = |key: &str| of(&format!("experts.{expert}.{key}"));
                    let (up, down) = (of("w1.weight"), of("w2.weight"));
                    let hidden: Vec<f64> = (0..2).map(|f| sum(&x, &|d| up.at(&[f, d]))).collect();
                    *y += of("scale").at(&[]) * sum(&hidden, &|f| down.at(&[out, f]));
                }
            }
            x = y;
        }
        logits.extend((0..5).map(|v| (0..4).map(|d| x[d] * wte.at(&[v, d])).sum::<f64>()));
    }
    logits
}

fn evaluated(trace: &Trace, of: &dyn Fn(&str) -> Option<Value>) -> Vec<f64> {
    let tokens = TOKENS.map(|token| token as f64);
    let arguments = trace.entry("main").unwrap().inputs();
    let arguments = arguments.into_iter().map(|(_, ty)| Value::new(ty.clone(), tokens)).collect();
    evaluate(trace, "main", arguments, Evaluation { parameters: of, watch: None }).unwrap().remove(0).data
}

/// The recorded trace, the simplified trace, and the simplified trace after the expansion of
/// composites.
fn stages(recorded: Trace) -> [Trace; 3] {
    let (simplified, _) = simplify(&recorded, &Options::default());
    let (primitives, _) = simplify(&lower::expand(&simplified).unwrap(), &Options::default());
    [recorded, simplified, primitives]
}

#[test]
fn a_checkpoint_of_such_keys_is_baked_and_computes_what_loops_do() {
    let tensors = tensors();
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(folder.path(), &tensors);
    // A square matrix loads with and without `transposed`, so only the declaration decides the
    // result.
    assert_ne!(expected(&tensors, true), expected(&tensors, false));
    for conv in [true, false] {
        for (stage, trace) in stages(recorded(conv)).into_iter().enumerate() {
            assert_eq!(trace.to_string().parse::<Trace>().unwrap(), trace);
            let found = evaluated(&trace, &|key| tensors.get(key).cloned());
            assert_eq!(found, expected(&tensors, conv), "stage {stage}");

            // Each tensor of the checkpoint is in the archive once, with the values that the
            // evaluator used.
            let parameters = trace.parameters().unwrap();
            let mut keys: Vec<&str> =
                parameters.iter().flat_map(|p| p.sources()).map(|(key, _)| key).collect();
            keys.sort_unstable();
            assert_eq!(keys, tensors.keys().collect::<Vec<_>>(), "stage {stage}");
            let path = folder.path().join(format!("{conv}{stage}.irpa"));
            bake(&checkpoint, &parameters, &[], &path, BakeOptions::default()).unwrap();
            let archive = Archive::open(&path).unwrap();
            for parameter in parameters {
                let baked = Value::from_bytes(parameter.ty.clone(), archive.data(&parameter.key).unwrap());
                let value = parameter.value(&|key| tensors.get(key).cloned()).unwrap();
                assert_eq!(baked, value, "{}", parameter.key);
            }
        }
    }
}

/// Neither the recorded trace nor the simplified traces copy or reorder weights at run time.
#[test]
fn weights_are_not_moved_at_run_time() {
    for (stage, trace) in stages(recorded(true)).iter().enumerate() {
        for function in &trace.functions {
            for id in function.ids().filter(|&id| function.live()[id.index()]) {
                let NodeKind::Op(Op::Permute(_) | Op::Concatenate(_) | Op::Reshape(_)) =
                    function.node(id).kind
                else {
                    continue;
                };
                let moved = function.operands(id).into_iter().map(|operand| &function.node(operand).kind);
                for kind in moved {
                    assert!(!matches!(kind, NodeKind::Parameter(_)), "stage {stage}: {trace}");
                }
            }
        }
    }
}

#[test]
fn what_a_stack_lacks_is_named() {
    let mut tensors = tensors();
    tensors.remove("transformer.encoder.h.1.experts.2.w1.weight").unwrap();
    let wide = Value::from_fn(TensorType::new(ElementType::F32, [4, 13]), |_| 0.0);
    tensors.insert("transformer.encoder.h.0.attn.c_attn.weight".into(), wide);
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = checkpoint(folder.path(), &tensors);
    let parameters = recorded(true).parameters().unwrap();
    let out = folder.path().join("out.irpa");
    let error = bake(&checkpoint, &parameters, &[], &out, BakeOptions::default()).unwrap_err();
    let BakeError::Mismatch { problems, .. } = error else { panic!("{error}") };
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    let [shape, missing] = &problems[..] else { panic!("{problems:#?}") };
    assert!(
        shape.ends_with("has shape [4, 13], expected [4, 12]"),
        "the shape that the file should have: {shape}"
    );
    assert_eq!(missing, "missing `transformer.encoder.h.1.experts.2.w1.weight`: `f32[2,4]`");
}
