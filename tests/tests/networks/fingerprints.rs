//! Fingerprints are those of every machine: hashes of 256 tokens' logits.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::Path;

use tracewright::OpenOptions;
use tracewright::model::{Fingerprint, FingerprintText, Opening};
use tracewright_tests::built::{compiler, repository};
use tracewright_tests::level;

fn options() -> OpenOptions {
    OpenOptions {
        compiler: Some(compiler().unwrap()),
        cache: Some(repository().join(".tracewright/cache")),
        ..OpenOptions::default()
    }
}

fn fingerprint(model: &Path) -> String {
    let mut opening = Opening::read(model, options()).unwrap();
    let text = FingerprintText::new(&mut opening, None).unwrap();
    let found = text.of(&opening.build().unwrap()).unwrap();
    assert_eq!(found.tokens, Fingerprint::TOKENS);
    found.to_string()
}

/// Whether tests run for a processor with kernels: the suite's second run is for one without.
fn has_kernels() -> bool {
    std::env::var_os(level::VARIABLE).is_none()
}

#[test]
fn shipped_models_have_the_stored_fingerprints() {
    if !has_kernels() {
        return;
    }
    for (model, expected) in Fingerprint::SHIPPED {
        assert_eq!(fingerprint(&repository().join(model)), expected);
    }
}
