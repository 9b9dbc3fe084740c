//! Functions of layers whose weights have other formats.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use ops::WeightFormat;
use tracewright_trace::{Quantization, Trace};

const LAYERS: &str = r#"function @layer prefix="layers.*" {
  %0 = input 0 "x" () : f32[2] {D} from "layers.*" at "f.rs":1
  %1 = parameter "layers.*.w" () : f32[2] {D} from "layers.*.w" at "f.rs":2
  %2 = binary kind=multiply (%0, %1) : f32[2] {D} from "layers.*" at "f.rs":3
  return %2 "y"
}

entry @main {
  %0 = input 0 "x" () : f32[2] {D} from "" at "f.rs":4
  %1 = call @layer prefix="layers.0" (%0) : [f32[2]] from "layers.0" at "f.rs":5
  %2 = result 0 (%1) : f32[2] {D} from "layers.0" at "f.rs":5
  %3 = call @layer prefix="layers.1" (%2) : [f32[2]] from "layers.1" at "f.rs":5
  %4 = result 0 (%3) : f32[2] {D} from "layers.1" at "f.rs":5
  %5 = call @layer prefix="layers.2" (%4) : [f32[2]] from "layers.2" at "f.rs":5
  %6 = result 0 (%5) : f32[2] {D} from "layers.2" at "f.rs":5
  return %6 "y"
}
"#;

fn split(formats: &[(&str, WeightFormat)]) -> String {
    let trace: Trace = LAYERS.parse().unwrap();
    let formats = formats.iter().map(|&(key, format)| (key.to_owned(), format)).collect();
    let split = trace.clone().with_formats(&Quantization::by_key(formats));
    split.verify().unwrap();
    assert_eq!(split.parameters().unwrap(), trace.parameters().unwrap());
    split.to_string()
}

#[test]
fn layers_with_other_formats_call_other_functions() {
    let (q4, q8) = (WeightFormat::Q4K, WeightFormat::Q8);
    assert_eq!(split(&[("layers.*.w", q4)]), LAYERS);
    assert_eq!(split(&[("layers.*.w", q4), ("layers.1.w", q4)]), LAYERS);
    let text = split(&[("layers.*.w", q4), ("layers.1.w", q8), ("layers.2.w", q8)]);
    assert!(text.contains("function @layer_1 prefix=\"layers.1\""), "{text}");
    for call in [
        "call @layer prefix=\"layers.0\"",
        "call @layer_1 prefix=\"layers.1\"",
        "call @layer_1 prefix=\"layers.2\"",
    ] {
        assert!(text.contains(call), "{text}");
    }
    assert_eq!(text.matches("parameter").count(), 2, "{text}");
}
