//! Rotary frequencies and tables against those of transformers.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use ops::{ElementType, Literal, Real, RopePart, RopeTable};
use serde_json::Value as Json;
use support::{fixture, tensors};
use tracewright_models::{RopeParameters, RopeScaling};

#[test]
fn frequencies_and_tables_are_those_of_transformers() {
    let cases: Json = serde_json::from_slice(&std::fs::read(fixture("ops/cases.json")).unwrap()).unwrap();
    let expected = tensors(&fixture("ops/cases.safetensors"));
    let cases = cases["cases"].as_array().unwrap().iter().filter(|case| case["op"] == "rope_table");
    let mut count = 0;
    for case in cases {
        let (name, attributes) = (case["name"].as_str().unwrap(), &case["attributes"]);
        let features = attributes["head_dim"].as_u64().unwrap() as usize;
        let number = |key: &str| attributes["scaling"][key].as_f64().unwrap();
        let scaling = match attributes["scaling"]["rope_type"].as_str() {
            None => RopeScaling::Default,
            Some("linear") => RopeScaling::Linear { factor: number("factor") },
            Some("llama3") => RopeScaling::Llama3 {
                factor: number("factor"),
                low_freq_factor: number("low_freq_factor"),
                high_freq_factor: number("high_freq_factor"),
                original_max_position_embeddings: number("original_max_position_embeddings"),
            },
            Some(other) => panic!("{other}"),
        };
        let rope = RopeParameters { theta: attributes["theta"].as_f64().unwrap(), scaling };
        let found = rope.frequencies(features);

        let wanted = &expected[&format!("{name}.inv_freq")];
        assert_eq!(found.inv_freq.len(), wanted.data.len(), "{name}");
        let ulps = |(&found, &wanted): (&f64, &f64)| (found - wanted).abs() / ElementType::F32.ulp(wanted);
        let worst = found.inv_freq.iter().zip(&wanted.data).map(ulps).fold(0.0, f64::max);
        assert!(worst <= 1.0, "{name}: a frequency is {worst} ulp off");

        // transformers writes each table twice, side by side; positions up to 131,071 are judged. The tables are of
        // its own frequencies: an ulp of those is visible at the far end.
        for (part, key) in [(RopePart::Cos, "cos"), (RopePart::Sin, "sin")] {
            let wanted = &expected[&format!("{name}.{key}")];
            for (row, position) in attributes["positions"].as_array().unwrap().iter().enumerate() {
                let position = position.as_u64().unwrap() as usize;
                let inv_freq = expected[&format!("{name}.inv_freq")].data.iter().map(|&f| Real(f)).collect();
                let table = RopeTable { part, positions: position + 1, scaling: Real(1.0), inv_freq };
                for column in 0..features {
                    let found = table.at(position, column % (features / 2));
                    let off = (found - wanted.at(&[row, column])).abs();
                    assert!(
                        off <= 1e-6,
                        "{name}: {key} of position {position}, feature {column} is {off} off"
                    );
                }
            }
        }
        count += 1;
    }
    assert_eq!(count, 6);
}

#[test]
fn a_literal_is_its_table() {
    let rope = RopeParameters { theta: 10_000.0, scaling: RopeScaling::Linear { factor: 2.0 } };
    let inv_freq = rope.frequencies(8).inv_freq.into_iter().map(Real).collect();
    let table = RopeTable { part: RopePart::Sin, positions: 5, scaling: Real(1.5), inv_freq };
    let value = Literal::rope_table(ElementType::F32, table.clone()).to_value();
    assert_eq!(value.at(&[3, 2]), table.at(3, 2));
    assert_eq!(value.at(&[4, 0]), f64::from((2.0f64.sin() as f32) * 1.5));
}
