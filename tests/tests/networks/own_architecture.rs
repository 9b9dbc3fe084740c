//! The book's pages about networks of one's own: their code is the examples, and their networks compute what NumPy and
//! transformers do. That its commands print what they show: `newcomer.rs`.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use parallel::{Config, Parallel};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use tracewright::bake::{BakeError, Problem};
use tracewright::build::{BuiltProgram, LoadError, ProgramOptions, build_program};
use tracewright::dsl::Traced;
use tracewright::generate::{Session, TokenOptions};
use tracewright::irpa::Checkpoint;
use tracewright::random::write_random;
use tracewright::runtime::{Compiler, Device};
use tracewright::{CausalLm, EntryPoint, F32};
use tracewright_tests::built::repository;
use tracewright_tests::golden::{BOUND, Golden, is_best_within, relative_error};
use tracewright_tests::tensors::{floats, tokens};

use blocks::{CodeBlock, own_network};

#[path = "../../../tools/cli/tests/blocks.rs"]
mod blocks;
#[path = "../../../examples/parallel/src/main.rs"]
#[allow(dead_code, reason = "it is no program here")]
mod parallel;

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("`{path}`: {error}"))
}

/// The output of the chapter's programs, in order.
fn shown() -> Vec<String> {
    own_network(&repository())
        .into_iter()
        .filter(|block| block.kind == "text")
        .map(|block| block.text)
        .collect()
}

fn tokens_of(shown: &str) -> Vec<u32> {
    shown.split_whitespace().map(|token| token.parse().unwrap()).collect()
}

/// The chapter's first network with the weights that its program makes, in a folder of its own.
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

fn loaded(traced: &Traced, model: &Path, cache: &Path) -> Result<BuiltProgram, LoadError> {
    let environment = repository().join(".tracewright/venv");
    let compiler = Compiler::find(None, &["bin", "Scripts"].map(|folder| environment.join(folder))).unwrap();
    let options = ProgramOptions { device: Device::LocalSync, ..ProgramOptions::new(&compiler, cache) };
    build_program(traced, &Checkpoint::open(model)?, options)
}

#[test]
fn the_chapter_is_the_examples() {
    let main = read("examples/parallel/src/main.rs");
    let files: Vec<(String, String)> =
        own_network(&repository()).into_iter().filter_map(|block| Some((block.path?, block.text))).collect();
    let example = |package: &str, path: &str| (path.into(), read(&format!("examples/{package}/{path}")));
    let examples = [
        example("parallel", "model/config.json"),
        example("parallel", "src/main.rs"),
        example("parallel", "src/bin/gpt2.rs"),
        example("programs", "src/bin/regression.rs"),
    ];
    assert_eq!(files, examples);
    let rust = |block: &CodeBlock| block.kind.starts_with("rust") && block.path.is_none();
    let command_line: Vec<CodeBlock> = own_network(&repository()).into_iter().filter(rust).collect();
    assert_eq!(command_line.len(), 1, "a block of code that is no file");
    assert!(read("examples/parallel-cli/src/main.rs").ends_with(&command_line[0].text));

    let manifest = read("examples/parallel/Cargo.toml");
    let needs: Vec<&str> = manifest.split("dependencies]\n").nth(1).unwrap().lines().collect();
    assert!(matches!(needs[..], [one] if one.starts_with("tracewright = ")), "a stranger's needs: {needs:?}");

    let declaration = main.split("model! {").nth(1).unwrap().split("\n}\n").next().unwrap();
    assert!(declaration.lines().count() < 60, "{} lines declare it", declaration.lines().count());
    assert!(main.lines().count() <= 200);
    assert!(read("examples/parallel/reference.py").lines().count() <= 60);
}

#[test]
fn its_gpt2_says_what_that_of_transformers_says() {
    let prompt = &Golden::fixture("gpt2").unwrap().prompts[0];
    assert!(read("examples/parallel/src/bin/gpt2.rs").contains(&format!("{:?}", prompt.prompt_tokens)));
    assert_eq!(tokens_of(&shown()[1]), prompt.tokens);
}

#[test]
fn the_logits_of_its_decoder_are_those_of_numpy_and_it_generates_what_is_shown() {
    let (out, model, config, traced) = made();
    let loaded = loaded(&traced, &model, &out.path().join("cache")).unwrap();
    assert!(loaded.baked.is_some());

    let bytes = fs::read(repository().join("examples/parallel/reference.safetensors")).unwrap();
    let (tokens, expected) = (tokens(&bytes, "tokens"), floats(&bytes, "logits"));
    let found = Session::new(&loaded.program.network().unwrap()).score(&tokens).unwrap();
    assert_eq!(found.len(), 40, "several chunks of 16");
    for (position, (expected, found)) in expected.chunks(config.vocabulary).zip(&found).enumerate() {
        let error = relative_error(expected, found);
        assert!(
            error <= BOUND,
            "position {position}: {error:.1e}; if `write_random` makes other weights now, make the reference again \
             with examples/parallel/reference.py"
        );
    }

    // Each shown token is the best after the ones before, as far as any machine's logits tell.
    let best = |shown: &[u32]| {
        let text = [&[5, 17, 3], &shown[..shown.len() - 1]].concat();
        let rows = Session::new(&loaded.program.network().unwrap()).score(&text).unwrap();
        for (row, &token) in rows[2..].iter().zip(shown) {
            assert!(is_best_within(BOUND, row, token), "{token} of {shown:?}");
        }
        rows
    };
    let shown = tokens_of(&shown()[0]);
    assert_eq!(shown.len(), 20);
    best(&shown);

    // Token by token, with what is kept of the earlier ones, as all at once.
    let options = TokenOptions { max_tokens: 20, keep_logits: true, ..TokenOptions::default() };
    let go_on = |_| ControlFlow::Continue(());
    let generated =
        Session::new(&loaded.program.network().unwrap()).generate(&[5, 17, 3], &options, go_on).unwrap();
    let rows = best(&generated.tokens);
    for (at_once, step) in rows[2..].iter().zip(&generated.logits) {
        assert!(relative_error(step, at_once) <= BOUND);
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
