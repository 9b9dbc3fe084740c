//! The families: traced from their configurations alone, with the names and shapes that transformers gives them.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::collections::BTreeMap;

use dsl::EntryPoint;
use expect_test::{Expect, expect};
use ops::ElementType;
use serde_json::{Value, json};
use support::*;
use tracewright_models::{ModelConfig, RopeScaling};

/// Pattern, shape and how often, as `parameters.txt` lists them.
type Listed = BTreeMap<(String, Vec<usize>), usize>;

/// What transformers makes of each published `config.json`: name, total, parameters (`tests/oracle/shapes.py`).
fn made_by_transformers() -> Vec<(String, usize, Listed)> {
    let text = std::fs::read_to_string(published("parameters").with_extension("txt")).unwrap();
    let mut all: Vec<(String, usize, Listed)> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            [name, total] => all.push((name.into(), total.parse().unwrap(), BTreeMap::new())),
            [pattern, shape, count] => {
                let shape = shape.split('x').map(|extent| extent.parse().unwrap()).collect();
                all.last_mut().unwrap().2.insert((pattern.into(), shape), count.parse().unwrap());
            }
            _ => panic!("{line}"),
        }
    }
    all
}

/// `model.layers.*.mlp` for `model.layers.3.mlp`.
fn pattern(key: &str) -> String {
    let segment = |segment: &str| match segment.parse::<usize>() {
        Ok(_) => "*".to_owned(),
        Err(_) => segment.to_owned(),
    };
    key.split('.').map(segment).collect::<Vec<_>>().join(".")
}

#[test]
fn s4_published_sizes_have_the_parameters_of_transformers() {
    for (name, total, listed) in made_by_transformers() {
        let trace = config(&published(&name)).trace(ElementType::Bf16, &EntryPoint::all(1, 128, 2048));
        let trace = trace.unwrap_or_else(|error| panic!("{name}: {error}")).trace;
        trace.verify().unwrap();
        let mut found = Listed::new();
        for (key, ty) in parameters(&trace) {
            *found.entry((pattern(&key), ty.shape)).or_default() += 1;
        }
        assert_eq!(found, listed, "{name}");
        assert_eq!(trace.counts().unwrap().parameter_elements, total, "{name}");
        println!("{name}: {total} parameters");
    }
}
