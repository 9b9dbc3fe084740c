//! Compares rotary frequencies, tables and rotations with the results of transformers.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use crate::support;

use std::collections::BTreeMap;

use dsl::nn::RopeFrequencies;
use ops::ops::{Rope, RopeLayout};
use ops::{ElementType, Literal, Operation, Real, RopePart, RopeTable, Value};
use serde_json::Value as Json;
use support::{fixture, tensors};
use tracewright_models::config::Keys;
use tracewright_models::{RopeDefaults, RopeParameters};

fn cases(kind: &str) -> (Vec<Json>, BTreeMap<String, Value>) {
    let text = std::fs::read(fixture("rope/cases.json")).unwrap();
    let json: Json = serde_json::from_slice(&text).unwrap();
    let cases = json["cases"].as_array().unwrap().iter().filter(|case| case.get(kind).is_some());
    (cases.cloned().collect(), tensors(&fixture("rope/cases.safetensors")))
}

/// Reads the parameters of a rotary embedding from a `config.json`, in the same way as a network.
fn read(case: &Json) -> RopeParameters {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, case["config"].to_string()).unwrap();
    let keys = Keys::read(&path).unwrap();
    let max = keys.count("max_position_embeddings");
    let rope = match case["layer_type"].as_str() {
        None => {
            let partial_rotary_factor = Some(1.0);
            RopeParameters::read(&keys, &RopeDefaults { partial_rotary_factor, ..RopeDefaults::new(max) })
        }
        Some(layer_type) => {
            let [sliding, full] = RopeParameters::by_layer_type(&keys, [1e4, 1e6], max);
            if layer_type == "sliding_attention" { sliding } else { full }
        }
    };
    rope.check(&keys, case["features"].as_u64().unwrap() as usize);
    keys.finish(&["head_dim"], &[]).unwrap_or_else(|error| panic!("{}: {error}", case["name"]));
    rope
}

fn frequencies(case: &Json) -> RopeFrequencies {
    let number = |key: &str| case[key].as_u64().unwrap() as usize;
    let found = read(case).frequencies(number("features"), number("context"));
    // transformers computed the table for a sequence as long as the context.
    found.beyond.map_or(RopeFrequencies { beyond: None, ..found }, |(_, longer)| *longer)
}

#[test]
fn frequencies_of_every_kind_are_those_of_transformers() {
    let (cases, expected) = cases("config");
    let (mut worst_of_all, mut unequal) = (0.0f64, 0);
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let found = frequencies(case);
        let wanted = &expected[&format!("{name}.inv_freq")];
        assert_eq!(found.inv_freq.len(), wanted.data.len(), "{name}");
        let ulps = |(&found, &wanted): (&f64, &f64)| (found - wanted).abs() / ElementType::F32.ulp(wanted);
        let worst = found.inv_freq.iter().zip(&wanted.data).map(ulps).fold(0.0, f64::max);
        assert!(worst <= 1.0, "{name}: a frequency is {worst} ulp off");
        worst_of_all = worst_of_all.max(worst);
        unequal += found.inv_freq.iter().zip(&wanted.data).filter(|(found, wanted)| found != wanted).count();
        let scaling = case["scaling"].as_f64().unwrap();
        assert!(
            (found.scaling - scaling).abs() <= 1e-15 * scaling,
            "{name}: {} for {scaling}",
            found.scaling
        );
    }
    println!("{} embeddings, {unequal} frequencies are off, by at most {worst_of_all} ulp", cases.len());
    assert_eq!(cases.len(), 32);
}

/// Compares the tables at the positions 0, 2k, 32k and 128k. The tables use the frequencies of
/// transformers, because one ulp of a frequency changes the tables at large positions.
#[test]
fn tables_of_every_kind_are_those_of_transformers() {
    let (cases, expected) = cases("config");
    let mut worst = 0.0f64;
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let inv_freq: Vec<Real> =
            expected[&format!("{name}.inv_freq")].data.iter().map(|&f| Real(f)).collect();
        let positions = case["positions"].as_array().unwrap().iter().map(|p| p.as_u64().unwrap() as usize);
        let positions: Vec<usize> = positions.collect();
        for (part, key) in [(RopePart::Cos, "cos"), (RopePart::Sin, "sin")] {
            let wanted = &expected[&format!("{name}.{key}")];
            let scaling = Real(frequencies(case).scaling);
            let table = RopeTable { part, positions: 131_072, scaling, inv_freq: inv_freq.clone() };
            for (row, &position) in positions.iter().enumerate() {
                for column in 0..inv_freq.len() {
                    let off = (table.at(position, column) - wanted.at(&[row, column])).abs();
                    assert!(off <= 1e-6, "{name}: {key} of position {position}, pair {column} is {off} off");
                    worst = worst.max(off);
                }
            }
        }
    }
    println!("{} embeddings, the worst cosine or sine is {worst:.1e} off", cases.len());
}

#[test]
fn rotations_of_every_layout_are_those_of_transformers() {
    let (cases, tensors) = cases("layout");
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let layout = match case["layout"].as_str() {
            Some("half_split") => RopeLayout::HalfSplit,
            Some("interleaved") => RopeLayout::Interleaved,
            other => panic!("{other:?}"),
        };
        let [x, cos, sin, out] = ["x", "cos", "sin", "out"].map(|key| &tensors[&format!("{name}.{key}")]);
        let op = Rope { axis: 1, layout };
        let ty = op.infer(&[&x.ty, &cos.ty, &sin.ty]).unwrap();
        let found = op.eval(&[x, cos, sin], &ty);
        let off = found.data.iter().zip(&out.data).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(off <= 1e-6, "{name}: {off} off");
    }
    assert_eq!(cases.len(), 4);
}

/// Short sequences have the same frequencies in all programs. A program with more positions than the original
/// context has a second table for long sequences. With a dynamic embedding, it depends on the context.
#[test]
fn the_length_of_the_sequence_decides() {
    let (cases, _) = cases("config");
    let case = |name: &str| cases.iter().find(|case| case["name"] == name).unwrap();
    let longrope = read(case("longrope_long"));
    let short = longrope.frequencies(96, 1);
    assert_eq!((longrope.original(), &short.beyond), (Some(4096), &None));
    assert_eq!(short, longrope.frequencies(96, 4096));
    let both = longrope.frequencies(96, 4097);
    assert_eq!(both, longrope.frequencies(96, 131_072));
    let (original, long) = both.beyond.clone().unwrap();
    assert_eq!((original, &short), (4096, &RopeFrequencies { beyond: None, ..both }));
    assert_ne!((&long.inv_freq, &long.beyond), (&short.inv_freq, &None));
    let dynamic = read(case("dynamic_long"));
    let plain = RopeParameters::plain(1e4).frequencies(64, 1);
    assert_eq!(dynamic.frequencies(64, 2048), plain);
    let [one, two] = [2049, 4096].map(|context| dynamic.frequencies(64, context));
    for found in [&one, &two] {
        assert_eq!((&found.inv_freq, found.beyond.as_ref().unwrap().0), (&plain.inv_freq, 2048));
    }
    assert_ne!(one.beyond, two.beyond);
}

#[test]
fn a_literal_is_its_table() {
    let inv_freq: Vec<Real> = [0.5, 0.25, 1.0, 2.0].map(Real).to_vec();
    let table = RopeTable { part: RopePart::Sin, positions: 5, scaling: Real(1.5), inv_freq };
    let value = Literal::rope_table(ElementType::F32, table.clone()).to_value();
    assert_eq!(value.at(&[3, 2]), table.at(3, 2));
    assert_eq!(value.at(&[4, 0]), f64::from((2.0f64.sin() as f32) * 1.5));
}
