//! Recipes give the same bytes in `bake` and in the reference evaluator.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;

use errors::WithCauses;
use irpa::{Archive, Checkpoint};
use ops::{ElementType, Op, Reader, TensorType, Value};
use safetensors::tensor::{Dtype, TensorView};
use trace::{Parameter, Recipe};
use tracewright_bake::{BakeOptions, bake};

/// Tensors of a checkpoint: their type there, and the type that the model declares.
const TENSORS: &[(&str, Dtype, ElementType, &[usize])] = &[
    ("a", Dtype::BF16, ElementType::Bf16, &[70, 333]),
    ("b", Dtype::BF16, ElementType::Bf16, &[5, 333]),
    ("c", Dtype::BF16, ElementType::Bf16, &[70, 11]),
    ("d", Dtype::F32, ElementType::Bf16, &[70, 333]),
    ("e", Dtype::F16, ElementType::F32, &[333]),
    ("w", Dtype::BF16, ElementType::Bf16, &[333]),
    ("t", Dtype::F32, ElementType::F32, &[7, 5, 3, 11]),
    ("none", Dtype::F32, ElementType::F32, &[0, 5]),
];

const RECIPES: &[&str] = &[
    r#"concatenate axis=0 ("a" : bf16[70,333], "b" : bf16[5,333], "d" : bf16[70,333])"#,
    r#"concatenate axis=1 ("a" : bf16[70,333], "c" : bf16[70,11], "a" : bf16[70,333])"#,
    r#"permute order=[1,0] ("a" : bf16[70,333])"#,
    r#"permute order=[2,0,3,1] ("t" : f32[7,5,3,11])"#,
    r#"permute order=[0,2,1,3] ("t" : f32[7,5,3,11])"#,
    r#"convert to=f32 ("w" : bf16[333])"#,
    r#"convert to=bf16 ("e" : f32[333])"#,
    r#"binary kind=add (convert to=f32 ("w" : bf16[333]), constant value=f32[333] splat 1.0 ())"#,
    r#"binary kind=multiply ("a" : bf16[70,333], broadcast_in_dim shape=[70,333] axes=[1] ("w" : bf16[333]))"#,
    r#"binary kind=multiply (concatenate axis=0 ("a" : bf16[70,333], "d" : bf16[70,333]), broadcast_in_dim shape=[140,333] axes=[1] ("w" : bf16[333]))"#,
    r#"permute order=[1,0] (concatenate axis=1 ("a" : bf16[70,333], reshape shape=[70,333] ("d" : bf16[70,333])))"#,
    r#"concatenate axis=0 ("none" : f32[0,5], reshape shape=[231,5] ("t" : f32[7,5,3,11]))"#,
];

#[test]
fn recipes_are_evaluated_in_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    let mut state = 3u32;
    let mut data = Vec::new();
    let mut values = BTreeMap::new();
    for (key, dtype, declared, shape) in TENSORS {
        let stored = match dtype {
            Dtype::BF16 => ElementType::Bf16,
            Dtype::F16 => ElementType::F16,
            _ => ElementType::F32,
        };
        let value = Value::from_fn(TensorType::new(stored, *shape), |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(state >> 8) / f64::from(1 << 22) - 2.0
        });
        data.push((*key, *dtype, shape.to_vec(), value.to_bytes()));
        values.insert(*key, Value::new(TensorType::new(*declared, *shape), value.data));
    }
    let views: Vec<_> =
        data.iter().map(|(k, d, s, b)| (*k, TensorView::new(*d, s.clone(), b).unwrap())).collect();
    safetensors::serialize_to_file(views, None, &file).unwrap();

    let checkpoint = Checkpoint::open(&file).unwrap();
    let mut parameters: Vec<Parameter> = TENSORS
        .iter()
        .map(|(key, _, declared, shape)| Parameter::new(*key, TensorType::new(*declared, *shape)))
        .collect();
    for (i, text) in RECIPES.iter().enumerate() {
        let recipe = Recipe::parse(&mut Reader::new(text)).unwrap();
        parameters.push(Parameter::derived(format!("recipe{i}"), recipe).unwrap());
    }
    let out = folder.path().join("out.irpa");
    bake(&checkpoint, &parameters, &[], &out, BakeOptions::default()).unwrap();

    let archive = Archive::open(&out).unwrap();
    for parameter in &parameters {
        let expected = parameter.value(&|key| values.get(key).cloned()).unwrap();
        let found = Value::from_bytes(parameter.ty.clone(), archive.data(&parameter.key).unwrap());
        let wrong = (0..found.data.len()).find(|&i| found.data[i].to_bits() != expected.data[i].to_bits());
        assert!(
            wrong.is_none(),
            "{parameter:?}: {wrong:?} {:?} {:?}",
            found.data[wrong.unwrap_or(0)],
            expected.data[wrong.unwrap_or(0)]
        );
        assert_eq!(archive.get(&parameter.key).unwrap().ty.as_ref(), Some(&parameter.ty));
    }
    let text = String::from_utf8_lossy(&std::fs::read(&out).unwrap()).into_owned();
    assert!(text.contains("concatenate axis=0 (") && text.contains("recipe"), "the metadata says how");
}

#[test]
fn a_recipe_of_another_type_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    let view = TensorView::new(Dtype::F32, vec![8], &[0; 32]).unwrap();
    safetensors::serialize_to_file([("w", view)], None, &file).unwrap();
    let checkpoint = Checkpoint::open(&file).unwrap();
    let source = || Recipe::Source("w".into(), TensorType::new(ElementType::F32, [8]));
    let bake = |ty: TensorType, recipe: Recipe| {
        let parameter = Parameter { key: "made".into(), ty, recipe: Some(recipe.into()) };
        let out = folder.path().join("out.irpa");
        let error = bake(&checkpoint, &[parameter], &[], &out, BakeOptions::default()).unwrap_err();
        assert!(!out.exists());
        WithCauses(&error).to_string()
    };
    let convert = Recipe::parse(&mut Reader::new(r#"convert to=bf16 ("w" : f32[8])"#)).unwrap();
    let error = bake(TensorType::new(ElementType::F32, [8]), convert);
    let expected = "the recipe that computes the tensor `made` is wrong\n  because: `recipe`: the parameter and the result of the recipe must have one type, found \
                    `f32[8]` and `bf16[8]`";
    assert_eq!(error, expected);
    let narrow = Op::parse(&mut Reader::new("narrow axis=0 start=0 length=2")).unwrap();
    let error = bake(TensorType::new(ElementType::F32, [2]), Recipe::Op(narrow, vec![source()]));
    assert!(
        error
            .contains("the recipe that computes the tensor `made` is wrong\n  because: `recipe`: an operation is narrow, expected"),
        "{error}"
    );
}
