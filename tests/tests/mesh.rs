//! Networks that XLA partitions over the devices of one plugin, in this process: the tokens are those of transformers.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use tracewright::ops::ElementType::F32;
use tracewright::targets::DeviceName;
use tracewright::{GenerateOptions, Model, OpenOptions};
use tracewright_tests::built::{plugin, repository};
use tracewright_tests::golden::Golden;

fn options(plugin: &Path, mesh: Option<&str>) -> OpenOptions {
    OpenOptions {
        plugin: Some(plugin.to_owned()),
        mesh: mesh.map(|mesh| mesh.parse().unwrap()),
        device: Some(DeviceName::CPU),
        dtype: Some(F32),
        cache: Some(repository().join(".tracewright/cache")),
        ..OpenOptions::default()
    }
}

fn judge(fixture: &str) {
    let Some(plugin) = plugin() else { return };
    let golden = Golden::fixture(fixture).unwrap();
    for mesh in [None, Some("model=2"), Some("model=4")] {
        let start = Instant::now();
        let sizes = OpenOptions {
            context: Some(golden.context),
            chunk: Some(golden.chunk),
            ..options(&plugin, mesh)
        };
        let model = match Model::open_with(&golden.model, sizes) {
            Ok(model) => model,
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "{fixture} {mesh:?}: {error}");
                continue;
            }
        };
        let opened = start.elapsed();
        for (number, prompt) in golden.prompts.iter().enumerate() {
            let options = GenerateOptions {
                max_tokens: prompt.tokens.len(),
                ignore_eos: true,
                ..GenerateOptions::default()
            };
            let request = model.continue_tokens(prompt.prompt_tokens.clone()).options(options);
            let completion = request.complete().unwrap();
            assert_eq!(completion.generated.tokens, prompt.tokens, "{fixture} {mesh:?}: prompt {number}");
        }
        let _ = writeln!(std::io::stderr(), "{fixture} {mesh:?}: {opened:?} {:?}", start.elapsed());
    }
}

fn judge_configuration(fixture: &str) {
    judge(fixture);
}

/// A test in each line, of the fixture that it names.
macro_rules! judged {
    ($($test:ident: $judge:ident($fixture:literal),)+) => {
        $(
            #[test]
            fn $test() {
                $judge($fixture);
            }
        )+
    };
}

// Of the fixtures that are there (`build.rs`).
include!(concat!(env!("OUT_DIR"), "/families.rs"));
