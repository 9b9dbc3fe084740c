//! Runs every target on its corpus and on some hundred variations of it.
//!
//! This is a single test, because it counts the memory of the whole process.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use tracewright_fuzz::TARGETS;

/// Variations that each target reads, and those that it reads in the long form (`cargo xtask test --long`).
const VARIATIONS: [usize; 2] = [150, 400];

#[test]
fn no_bytes_do_more_than_give_an_error() {
    let mut failures = Vec::new();
    let count = VARIATIONS[usize::from(std::env::var_os("TRACEWRIGHT_TEST_LONG").is_some())];
    for target in TARGETS {
        let corpus = corpus(target.name);
        assert!(corpus.len() >= 3, "`{}` has {} files", target.name, corpus.len());
        let run = target.start();
        let mut dice = Dice(ChaCha8Rng::seed_from_u64(0));
        let large = if target.name == "config" { large_json() } else { Vec::new() };
        let variations = (0..count).map(|_| dice.variation(&corpus));
        for (number, bytes) in corpus.iter().cloned().chain(variations).chain(large).enumerate() {
            if let Err(failure) = run.check(&bytes) {
                let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}", target.name));
                fs::write(&path, &bytes).unwrap();
                failures.push(format!("`{}`: {failure}", path.display()));
            }
        }
    }
    drop(std::panic::take_hook());
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

/// JSON whose values need much more memory than text: within the limits, and beyond them.
fn large_json() -> Vec<Vec<u8>> {
    const VALUES: [&str; 5] = ["0", "{}", r#"{"":0}"#, "[[]]", r#""""#];
    let list = |value: &str, bytes: usize| {
        let mut list = format!(r#"{{"x":[{value}"#);
        (0..bytes / (value.len() + 1)).for_each(|_| list.extend([",", value]));
        list + "]}"
    };
    let object = |bytes: usize| {
        let pairs = (0..bytes / 11).map(|number| format!(r#""{number:x}":0"#));
        format!("{{{}}}", pairs.collect::<Vec<_>>().join(","))
    };
    let sizes = [1 << 18, 1 << 19, 1 << 20, 15 << 20];
    let lists = VALUES.iter().flat_map(|value| sizes.map(|bytes| list(value, bytes)));
    lists.chain(sizes.map(object)).map(String::into_bytes).collect()
}

/// The files that a target reads first, by name.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

struct Dice(ChaCha8Rng);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        (self.0.next_u64() % n.max(1) as u64) as usize
    }

    /// A piece of some file, with at most `most` bytes.
    fn piece<'a>(&mut self, corpus: &'a [Vec<u8>], most: usize) -> &'a [u8] {
        let bytes = &corpus[self.below(corpus.len())];
        let start = self.below(bytes.len());
        let length = self.below(most.min(bytes.len() - start) + 1);
        &bytes[start..start + length]
    }

    /// A file of the corpus with one to four changes.
    fn variation(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        const NUMBERS: [&[u8]; 6] = [b"0", b"-1", b"1e999", b"4294967296", b"18446744073709551615", b"null"];
        let mut bytes = corpus[self.below(corpus.len())].clone();
        for _ in 0..1 + self.below(4) {
            let at = self.below(bytes.len() + 1);
            let end = (at + self.below(16)).min(bytes.len());
            match self.below(7) {
                0 => bytes.truncate(at),
                1 => drop(bytes.drain(at..end)),
                2 => bytes[at..end].iter_mut().for_each(|byte| *byte ^= 1 << self.below(8)),
                3 => bytes[at..end].fill([0, 0x7f, 0xff][self.below(3)]),
                4 => drop(bytes.splice(at..end, NUMBERS[self.below(6)].iter().copied())),
                5 => drop(bytes.splice(at..end, self.piece(corpus, 64).to_vec())),
                _ => {
                    let again = bytes[at..].repeat(1 + self.below(3));
                    bytes.splice(at..at, again.into_iter().take(1 << 16));
                }
            }
        }
        bytes
    }
}
