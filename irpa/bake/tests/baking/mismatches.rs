//! The messages about checkpoints that differ from a network.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use irpa::Checkpoint;
use ops::{ElementType, TensorType};
use safetensors::tensor::{Dtype, TensorView};
use trace::{Function, FunctionId, Ignorable, NodeKind, Parameter, Provenance, Trace};
use tracewright_bake::check;

/// The messages of `check` for parameters and a checkpoint with these keys and shapes. One function reads all
/// parameters, and `d3` is the axis with extent 3.
fn said(declared: &[(String, &[usize])], stored: &[(String, &[usize])]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let data = vec![0; 1024];
    let views = stored.iter().map(|(key, shape)| {
        let bytes = 4 * shape.iter().product::<usize>();
        (key, TensorView::new(Dtype::F32, shape.to_vec(), &data[..bytes]).unwrap())
    });
    let file = folder.path().join("model.safetensors");
    safetensors::serialize_to_file(views, None, &file).unwrap();

    let mut function = Function::new("main", "");
    let mut parameters = Vec::new();
    for (key, shape) in declared {
        let ty = TensorType::new(ElementType::F32, *shape);
        let parameter = Parameter::new(key, ty.clone());
        let provenance = Provenance::new("", "net/src/main.rs", 7);
        let mut builder = trace::Builder { function: &mut function, provenance };
        let id = builder.push(NodeKind::Parameter(parameter.clone()), vec![ty], &[]);
        function.node_mut(id).axes = shape.iter().map(|extent| format!("d{extent}").into()).collect();
        parameters.push(parameter);
    }
    let trace = Trace { functions: vec![function], entries: vec![FunctionId(0)] };
    let refused = check(&Checkpoint::open(&file).unwrap(), &parameters, &[]).unwrap_err();
    let said = refused.declared_in(&trace).to_string();
    said.replace(&file.display().to_string(), "FILE").lines().skip(1).map(|l| l.trim().to_owned()).collect()
}

fn layers(from: &str, key: &str, shape: &'static [usize]) -> Vec<(String, &'static [usize])> {
    (0..12).map(|i| (format!("{from}h.{i}.{key}"), shape)).collect()
}

#[test]
fn what_is_wrong_in_every_layer_is_said_once() {
    let declared = [layers("", "attn.weight", &[6, 2]), layers("", "norm.weight", &[3])].concat();
    let mut stored = [layers("", "attn.weight", &[2, 6]), layers("", "norm.weigth", &[3])].concat();
    stored.push(("odd.3".into(), &[1]));
    let expected = [
        "`h.*.attn.weight` in `FILE` has shape [2, 6], expected [6, 2] = [d6, d2]; if the checkpoint stores the tensor \
         transposed, write `(transposed)` after the field; declared at net/src/main.rs:7 (12 times)",
        "missing `h.*.norm.weight`: `f32[3]`; the checkpoint has `h.*.norm.weigth` (12 times)",
        "extra `h.*.norm.weigth` in `FILE`: the model does not read this tensor (12 times)",
        "extra `odd.3` in `FILE`: the model does not read this tensor",
    ];
    assert_eq!(said(&declared, &stored), expected);
}

#[test]
fn layers_from_a_number_on_are_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let (file, data) = (folder.path().join("model.safetensors"), [0; 12]);
    let keys = ["layers.1.w", "layers.2.w", "layers.10.odd", "layers.x.w"];
    let views = keys.map(|key| (key, TensorView::new(Dtype::F32, vec![3], &data).unwrap()));
    safetensors::serialize_to_file(views, None, &file).unwrap();
    let checkpoint = Checkpoint::open(&file).unwrap();
    let declared = [Parameter::new("layers.1.w", TensorType::new(ElementType::F32, [3]))];
    let from = |from| check(&checkpoint, &declared, &[Ignorable::LayersFrom { prefix: "layers.", from }]);
    let refused = |number| from(number).unwrap_err().to_string();
    assert!(!refused(2).contains("layers.2.w") && !refused(2).contains("layers.10.odd"), "{}", refused(2));
    assert!(refused(2).contains("extra `layers.x.w`") && refused(3).contains("extra `layers.2.w`"));
}

#[test]
fn one_beginning_explains_all_keys() {
    let keys = |from| [layers(from, "a.weight", &[3]), layers(from, "b.weight", &[4])].concat();
    let expected = "24 parameters have the prefix `transformer.` in the checkpoint, but no prefix in the network: \
                    `transformer.h.0.a.weight` for `h.0.a.weight`";
    assert_eq!(said(&keys(""), &keys("transformer.")), [expected]);
    let expected = "24 parameters have no prefix in the checkpoint, but the prefix `transformer.` in the network: \
                    `h.0.a.weight` for `transformer.h.0.a.weight`";
    assert_eq!(said(&keys("transformer."), &keys("")), [expected]);
    // What else is wrong is said all the same.
    let mut stored = keys("language.model.");
    stored.push(("head".into(), &[7]));
    let mut declared = keys("model.");
    declared.push(("head".into(), &[8]));
    let expected = [
        "24 parameters have the prefix `language.` in the checkpoint, but no prefix in the network: \
         `language.model.h.0.a.weight` for `model.h.0.a.weight`",
        "`head` in `FILE` has shape [7], expected [8] = [d8]; declared at net/src/main.rs:7",
    ];
    assert_eq!(said(&declared, &stored), expected);
}
