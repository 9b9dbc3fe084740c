//! The README's chapter "Your own architecture": what it says is the example, and the example computes what NumPy
//! does.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use parallel::{Config, Parallel};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use tracewright::bake::{BakeError, Problem};
use tracewright::dsl::Traced;
use tracewright::generate::{GenerateOptions, Session};
use tracewright::irpa::Checkpoint;
use tracewright::load::{LoadError, LoadOptions, Loaded, load};
use tracewright::random::write_random;
use tracewright::runtime::{Compiler, Device};
use tracewright::{CausalLm, EntryPoint, F32};
use tracewright_tests::golden::{BOUND, max_error, repository};

#[path = "../../examples/parallel/src/main.rs"]
#[allow(dead_code, reason = "it is no program here")]
mod parallel;

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("`{path}`: {error}"))
}

/// The chapter's blocks: what stands behind the fence, and the text.
fn blocks() -> Vec<(String, String)> {
    let readme = read("README.md");
    let chapter =
        readme.split("\n## ").find(|chapter| chapter.starts_with("Your own architecture\n")).unwrap();
    let fenced = chapter.split("```").skip(1).step_by(2);
    fenced
        .map(|block| block.split_once('\n').unwrap())
        .map(|(kind, text)| (kind.into(), text.into()))
        .collect()
}

fn block(kind: &str) -> String {
    blocks().into_iter().find(|(found, _)| found == kind).unwrap().1
}

/// The chapter's network with the weights that its program makes, in a folder of its own.
fn made() -> (tempfile::TempDir, PathBuf, Config, Traced) {
    let out = tempfile::tempdir().unwrap();
    let given = repository().join("examples/parallel/model/config.json");
    let config = Config::read(&given).unwrap();
    let traced = Parallel::<F32>::trace(&config, &EntryPoint::all(1, 16, config.context)).unwrap();
    let model = out.path().join("model");
    write_random(&given, &traced.trace.parameters().unwrap(), 1, &model, &|_| ControlFlow::Continue(()))
        .unwrap();
    (out, model, config, traced)
}

fn loaded(traced: &Traced, model: &Path, cache: &Path) -> Result<Loaded, LoadError> {
    let environment = repository().join(".tracewright/venv");
    let compiler = Compiler::find(None, &["bin", "Scripts"].map(|folder| environment.join(folder))).unwrap();
    let options = LoadOptions { device: Device::LocalSync, ..LoadOptions::new(&compiler, cache) };
    load(traced, &Checkpoint::open(model)?, options)
}

#[test]
fn the_chapter_is_the_example() {
    let main = read("examples/parallel/src/main.rs");
    assert_eq!(block("rust,ignore"), main);
    assert_eq!(block("json"), read("examples/parallel/model/config.json"));
    let command_line = blocks().into_iter().filter(|(kind, _)| kind == "rust,ignore").nth(1).unwrap().1;
    assert!(read("examples/parallel-cli/src/main.rs").ends_with(&command_line));

    let manifest = read("examples/parallel/Cargo.toml");
    let needs: Vec<&str> = manifest.split("dependencies]\n").nth(1).unwrap().lines().collect();
    assert!(matches!(needs[..], [one] if one.starts_with("tracewright = ")), "a stranger's needs: {needs:?}");

    let declaration = main.split("model! {").nth(1).unwrap().split("\n}\n").next().unwrap();
    assert!(declaration.lines().count() < 60, "{} lines declare it", declaration.lines().count());
    assert!(main.lines().count() <= 200);
    assert!(read("examples/parallel/reference.py").lines().count() <= 60);
}

#[test]
fn its_logits_are_those_of_numpy_and_it_generates_what_the_chapter_shows() {
    let (out, model, config, traced) = made();
    let loaded = loaded(&traced, &model, &out.path().join("cache")).unwrap();
    assert!(loaded.baked.is_some());

    let bytes = fs::read(repository().join("examples/parallel/reference.safetensors")).unwrap();
    let reference = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name| reference.tensor(name).unwrap().data().as_chunks::<4>().0.to_vec();
    let tokens: Vec<u32> = words("tokens").into_iter().map(u32::from_le_bytes).collect();
    let expected: Vec<f32> = words("logits").into_iter().map(f32::from_le_bytes).collect();
    let found = Session::new(&loaded.program.network().unwrap()).score(&tokens).unwrap();
    assert_eq!(found.len(), 40, "several chunks of 16");
    for (position, (expected, found)) in expected.chunks(config.vocabulary).zip(&found).enumerate() {
        let largest = expected.iter().fold(0f32, |max, x| max.max(x.abs()));
        let error = max_error(expected, found) / f64::from(largest);
        assert!(
            error <= BOUND,
            "position {position}: {error:.1e}; if `write_random` makes other weights now, make the reference again \
             with examples/parallel/reference.py"
        );
    }

    // Token by token, with what is kept of the earlier ones, as all at once.
    let options = GenerateOptions { max_tokens: 20, keep_logits: true, ..GenerateOptions::default() };
    let go_on = |_| ControlFlow::Continue(());
    let generated =
        Session::new(&loaded.program.network().unwrap()).generate(&[5, 17, 3], &options, go_on).unwrap();
    let shown: Vec<u32> = block("text").split_whitespace().map(|token| token.parse().unwrap()).collect();
    assert_eq!(generated.tokens, shown);
    let text = [&[5, 17, 3], &generated.tokens[..19]].concat();
    let rows = Session::new(&loaded.program.network().unwrap()).score(&text).unwrap();
    for (at_once, step) in rows[2..].iter().zip(&generated.logits) {
        let largest = step.iter().fold(0f32, |max, x| max.max(x.abs()));
        assert!(max_error(at_once, step) <= BOUND * f64::from(largest));
    }
}

#[test]
fn a_checkpoint_that_does_not_fit_is_refused_with_all_that_is_wrong() {
    let (out, model, _, traced) = made();
    let path = model.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let given = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: BTreeMap<String, TensorView<'_>> = given.tensors().into_iter().collect();
    // One under another name, one in another shape, one of integers.
    let renamed = tensors.remove("blocks.0.attention.query.weight").unwrap();
    tensors.insert("blocks.0.attention.queries.weight".into(), renamed);
    for (key, dtype, shape) in [("norm.bias", Dtype::F32, vec![4, 6]), ("head.bias", Dtype::I32, vec![61])] {
        let data = given.tensor(key).unwrap().data();
        tensors.insert(key.into(), TensorView::new(dtype, shape, data).unwrap());
    }
    let edited = safetensors::serialize(tensors, None).unwrap();
    fs::write(&path, edited).unwrap();

    let cache = out.path().join("cache");
    let refused = loaded(&traced, &model, &cache).map(|_| ()).unwrap_err();
    let LoadError::Bake(BakeError::Mismatch { problems, .. }) = &refused else { panic!("{refused}") };
    assert!(
        matches!(
            &problems[..],
            [
                Problem::Missing { nearest: Some(nearest), .. },
                Problem::Element { .. },
                Problem::Shape { .. },
                Problem::Extra { .. },
            ] if nearest == "blocks.0.attention.queries.weight"
        ),
        "{refused}"
    );
    assert!(!cache.exists(), "nothing was begun");
}
