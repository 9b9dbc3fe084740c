//! Mixed formats: which matrices of published networks are stored in eight bits although four are asked for.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;

use tracewright::lower::{LowerError, PatternError, Weights};
use tracewright::models::presets::Preset;
use tracewright::ops::WeightFormat;
use tracewright::trace::Quantization;
use tracewright::{Footprint, Plan, PlanError};
use tracewright_tests::golden::{BuildOptions, Golden, STEPS, build, check_within};

type Patterns = BTreeMap<WeightFormat, BTreeSet<String>>;

fn plan(preset: &str, quantize: Quantization) -> Plan {
    let model = Preset::named(preset).unwrap().read().unwrap();
    let plan = Plan::new(model, None, Some(64), Some(8)).unwrap();
    Plan { weights: Weights { quantize, kernels: true, ..Weights::default() }, ..plan }
}

/// The patterns of keys in each quantized format, and the bytes of all weights.
fn stored(preset: &str, quantize: Quantization) -> Result<(Patterns, usize), PlanError> {
    let plan = plan(preset, quantize);
    let footprint = Footprint::of(&plan.expand(&plan.trace()?.trace)?).unwrap();
    let mut patterns = Patterns::new();
    for (stored_as, stored) in &footprint.weights {
        if let Some(format) = stored_as.quantized() {
            patterns.entry(format).or_default().extend(stored.patterns.iter().cloned());
        }
    }
    Ok((patterns, footprint.weight_bytes()))
}

const VALUES: &str = "model.layers.*.self_attn.v_proj.weight";
const TIED: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// Networks with as many key heads as query heads keep `v_proj` in four bits, and so do those that fuse it with queries and keys.
/// An embedding that is not also the head stays in four bits.
#[test]
fn the_head_and_small_matrices_of_values_are_in_eight_bits() {
    for (preset, expected) in [
        ("llama-3.1-8b", &[HEAD, VALUES][..]),
        ("llama-3.2-1b", &[TIED, VALUES]),
        ("gemma-3-1b", &[TIED, VALUES]),
        ("gpt2", &["wte.weight"]),
        ("lfm2-1.2b", &[TIED, VALUES]),
        ("mixtral-8x7b-v0.1", &[HEAD, VALUES]),
        ("olmo-2-1124-7b", &[HEAD]),
        ("phi-3-mini-4k", &[HEAD]),
    ] {
        for format in [WeightFormat::Q4, WeightFormat::Q4K] {
            let (patterns, bytes) = stored(preset, Quantization::Mixed(format)).unwrap();
            let in_eight: Vec<&str> = patterns[&WeightFormat::Q8].iter().map(String::as_str).collect();
            assert_eq!(in_eight, expected, "{preset}");
            assert!(patterns[&format].len() > 2, "{preset}: {patterns:?}");
            let (pure, fewer) = stored(preset, Quantization::All(format)).unwrap();
            assert_eq!(pure.keys().collect::<Vec<_>>(), [&format], "{preset}");
            assert!(fewer < bytes, "{preset}: {fewer} {bytes}");
        }
    }
}

#[test]
fn a_map_chooses_by_pattern() {
    let down = "model.layers.*.mlp.down_proj.weight";
    let mapped = |base, changes: &[(&str, Option<WeightFormat>)]| {
        let formats = changes.iter().map(|(pattern, format)| ((*pattern).to_owned(), *format)).collect();
        Quantization::mapped(base, formats)
    };
    let base = Quantization::Mixed(WeightFormat::Q4);
    let changes = [(down, Some(WeightFormat::Q4K)), (VALUES, Some(WeightFormat::Q4)), (TIED, None)];
    let asked = mapped(base.clone(), &changes);
    let (patterns, _) = stored("llama-3.2-1b", asked.clone()).unwrap();
    assert_eq!(patterns[&WeightFormat::Q4K], BTreeSet::from([down.to_owned()]));
    assert!(patterns[&WeightFormat::Q4].contains(VALUES) && !patterns.contains_key(&WeightFormat::Q8));
    assert_eq!(
        asked.to_string(),
        format!("q4,{TIED}=none,{down}=q4_k,{VALUES}=q4"),
        "what a manifest has of it"
    );
    let refused = |pattern: &str| match stored("llama-3.2-1b", mapped(base.clone(), &[(pattern, None)])) {
        Err(PlanError::Lower(LowerError::Pattern(error))) => error,
        other => panic!("{pattern}: {other:?}"),
    };
    let nearest = Some(down.to_owned());
    let pattern = "model.layers.*.mlp.down.weight".to_owned();
    assert_eq!(refused(&pattern), PatternError::Unknown { pattern, nearest });
    let pattern = "model.norm.weight".to_owned();
    assert_eq!(refused(&pattern), PatternError::NoMatrix { pattern });
}

/// Formats by key keep matmuls of one input apart; without a difference they are one, as before.
#[test]
fn words_name_what_they_named() {
    for word in ["none", "q8", "q4", "q4_k", "mxfp4", "q4:pure", "q4_k:pure", "mxfp4:pure"] {
        assert_eq!(word.parse::<Quantization>().unwrap().to_string(), word);
    }
    assert!("q5".parse::<Quantization>().is_err());
    let text = |quantize| {
        let plan = plan("smollm2-1.7b", quantize);
        plan.lower(&plan.trace().unwrap().trace).unwrap().module.text
    };
    let all: BTreeMap<String, WeightFormat> = {
        let (patterns, _) = stored("smollm2-1.7b", Quantization::All(WeightFormat::Q4)).unwrap();
        patterns[&WeightFormat::Q4].iter().map(|pattern| (pattern.clone(), WeightFormat::Q4)).collect()
    };
    assert_eq!(text(Quantization::by_key(all)), text(Quantization::All(WeightFormat::Q4)));
}

/// Layers of one structure, some of which store a matrix in another format.
#[test]
fn layers_keep_their_own_formats() {
    let down = "model.layers.*.mlp.down_proj.weight";
    let key = |layer: usize| down.replace('*', &layer.to_string());
    let uniform = BTreeMap::from([(down.to_owned(), WeightFormat::Q4K)]);
    let mut formats = uniform.clone();
    formats.extend([2, 3, 11].map(|layer| (key(layer), WeightFormat::Q6K)));
    let lowered = |formats| {
        let plan = plan("llama-3.2-1b", Quantization::by_key(formats));
        let traced = plan.trace().unwrap().trace;
        let layers = traced.functions.iter().filter(|function| !function.prefix.is_empty()).count();
        (layers, plan.lower(&traced).unwrap().module)
    };
    let ((few, _), (more, module)) = (lowered(uniform), lowered(formats.clone()));
    assert!(few < more && more <= 2 * few, "{few} {more}");
    let types: BTreeMap<_, _> = module.parameters.iter().map(|own| (own.key.as_str(), &own.ty)).collect();
    for layer in 0..16 {
        let format = formats.get(&key(layer)).copied().unwrap_or(WeightFormat::Q4K);
        assert_eq!(types[key(layer).as_str()], &format.packed(2048, 8192), "{layer}");
    }
    // The other layers of a file may store the matrix as plain numbers.
    let (_, module) = lowered(BTreeMap::from([(key(2), WeightFormat::Q6K)]));
    let types: BTreeMap<_, _> = module.parameters.iter().map(|own| (own.key.as_str(), &own.ty)).collect();
    for layer in 0..16 {
        let is_packed = types[key(layer).as_str()] == &WeightFormat::Q6K.packed(2048, 8192);
        assert_eq!(is_packed, layer == 2, "{layer}");
    }
}

/// The logits of kernels, where one of two layers stores a matrix in six bits, and both store the others in eight.
#[test]
fn logits_of_layers_with_different_formats() {
    let golden = Golden::fixture("llama-untied").unwrap();
    let formats = [
        ("model.layers.*.mlp.down_proj.weight", WeightFormat::Q8),
        ("model.layers.*.self_attn.v_proj.weight", WeightFormat::Q8),
        ("model.layers.1.mlp.down_proj.weight", WeightFormat::Q6K),
        ("model.layers.1.self_attn.v_proj.weight", WeightFormat::Q6K),
    ];
    let formats = formats.map(|(key, format)| (key.to_owned(), format)).into();
    let weights = Weights { quantize: Quantization::by_key(formats), ..Weights::default() };
    let sizes = BuildOptions { weights, ..BuildOptions::of(&golden) };
    let subject = build(&golden.model, &sizes, STEPS, Ok).unwrap();
    let report = check_within(&golden, &subject, 8e-2).unwrap();
    let _ = writeln!(std::io::stderr(), "{report}");
    assert!(report.passes(), "{report}");
}
