//! What is made for XLA, without XLA: which text, and who holds what.

use std::collections::BTreeSet;
use std::time::Instant;

use tracewright::Plan;
use tracewright::lower::{ShardNote, Sharding, Shards};
use tracewright::models::ModelConfig;
use tracewright::models::presets::{PRESETS, Preset};
use tracewright::ops::ElementType;
use tracewright::targets::{Mesh, ShardRule};
use tracewright::xla::{XlaProgram, planned, shard_rules};

use crate::support::root;

fn plan(model: ModelConfig, context: usize, batch: usize) -> Plan {
    let plan = Plan::new(Box::new(model), Some(ElementType::Bf16), Some(context), Some(16)).unwrap();
    planned(Plan { batch, ..plan }).unwrap()
}

fn preset(name: &str) -> Plan {
    plan(Preset::named(name).unwrap().read().unwrap(), 512, 1)
}

fn mesh(text: &str) -> Mesh {
    text.parse().unwrap()
}

fn rules(text: &[&str]) -> Vec<ShardRule> {
    text.iter().map(|rule| rule.parse().unwrap()).collect()
}

/// Every family has a module for each entry point that is StableHLO, arguments and nothing else; and one for many devices
/// differs by what is said of arguments and results alone.
#[test]
fn every_family_is_stablehlo_with_arguments() {
    for family in PRESETS {
        let plan = plan(family.read().unwrap(), 64, 1);
        let traced = plan.trace().unwrap();
        let along = mesh("model=2");
        let declared = shard_rules(&traced, &along, &[]);
        assert!(!declared.is_empty(), "{} declares nothing", family.name);
        let recorded = traced.trace;
        let whole = XlaProgram::new(&plan, &recorded, None, &[]).unwrap();
        let divided = XlaProgram::new(&plan, &recorded, Some(&along), &declared).unwrap();
        for module in &whole.modules {
            let text = &module.text_without_locs;
            for foreign in ["util.", "flow.", "arith.", "tensor.", "linalg.", "sdy.", "custom_call"] {
                assert!(!text.contains(foreign), "{}: `{foreign}`", family.name);
            }
            assert_eq!(text.matches("func.func @main(").count(), 1, "{}", family.name);
        }
        let recipes = whole.parameters.iter().filter(|p| p.recipe.is_some()).count();
        let recorded = recorded.parameters().unwrap().iter().filter(|p| p.recipe.is_some()).count();
        assert!(recipes <= recorded, "{}: simplification made recipes", family.name);
        for (whole, divided) in whole.modules.iter().zip(&divided.modules) {
            let plain: String = divided.text_without_locs.lines().filter_map(without_shardings).collect();
            let whole: String = whole.text_without_locs.lines().filter_map(without_shardings).collect();
            assert_eq!(plain, whole, "{}", family.name);
        }
    }
}

/// A line of a module without what is said of arguments, results and devices.
fn without_shardings(line: &str) -> Option<String> {
    let mut line = line.to_owned();
    if line.starts_with("  sdy.mesh") {
        return None;
    }
    while let Some(start) =
        line.find(" {sdy.").or_else(|| line.find(" {tf.")).or_else(|| line.find(" attributes {"))
    {
        let open = start + line[start..].find('{').unwrap();
        let mut depth = 0;
        let length = line[open..].find(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0
        });
        line.replace_range(start..=open + length.unwrap(), "");
    }
    Some(line + "\n")
}

/// 405B from its configuration alone: every weight is divided or listed, and each device holds its share. How long that took is
/// printed.
#[test]
fn the_largest_llama_divides_among_8_and_16_devices() {
    let plan = preset("llama-3.1-405b");
    for (devices, shared) in [(8, false), (16, true)] {
        let start = Instant::now();
        let recorded = plan.trace().unwrap().trace;
        let along = mesh(&format!("model={devices}"));
        let program = XlaProgram::new(&plan, &recorded, Some(&along), &rules(&["K,F,V=model"])).unwrap();
        println!("model={devices}: {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
        let shards = program.shards.as_ref().unwrap();
        let parameters = &program.parameters;
        let replicated: usize = shards.replicated(parameters).iter().map(|p| p.ty.bytes()).sum();
        assert!(shards.replicated(parameters).iter().all(|p| p.key.ends_with("norm.weight")));
        let total: usize = parameters.iter().map(|p| p.ty.bytes()).sum();
        assert_eq!(total, 2 * 405_853_388_800, "the parameters that are published");
        let expected = (total - replicated) as f64 / devices as f64 + replicated as f64;
        let found = shards.device_bytes(parameters) as f64;
        // Of 8 heads of keys and values on 16 devices each is held twice.
        let keys = parameters.iter().filter(|p| p.key.contains("k_proj") || p.key.contains("v_proj"));
        let twice = keys.map(|p| p.ty.bytes() / devices).sum::<usize>() * usize::from(shared);
        assert!((found - expected - twice as f64).abs() < 1.0, "{found} of {expected} and {twice}");
        let names: BTreeSet<&str> = shards.mesh.axes.iter().map(|axis| axis.name.as_str()).collect();
        let queries = &shards.weights["model.layers.7.self_attn.q_proj.weight"];
        let keys = &shards.weights["model.layers.7.self_attn.k_proj.weight"];
        assert_eq!(queries.parts(), devices);
        assert_eq!(keys.parts(), 8);
        assert_eq!(names.len(), if shared { 2 } else { 1 });
        let notes: Vec<String> = shards.notes.iter().map(ShardNote::to_string).collect();
        match shared {
            false => assert!(notes.is_empty(), "{notes:?}"),
            true => assert_eq!(
                notes,
                [
                    "K has 8 for the 16 devices along `model`: each part is held by 2 of them",
                    "G of 16 is divided by 2 instead, along the rest of `model`",
                ]
            ),
        }
    }
}

/// The state of each layer lies where it is divided as keys are, and where the rows are.
#[test]
fn state_is_divided_with_heads_and_rows() {
    let model = ModelConfig::read(&root().join("demo-gemma3"), &[]).unwrap();
    let plan = plan(model, 64, 2);
    let recorded = plan.trace().unwrap().trace;
    let shards = Shards::new(&recorded, &mesh("data=2,model=2"), &rules(&["K,F,V=model", "B=data"])).unwrap();
    let entry = recorded.entry("decode").unwrap().signature();
    let divided = &shards.entries["decode"];
    let spelled = |list: &[Sharding], at: usize| list[at].to_string();
    for (at, argument) in entry.arguments.iter().enumerate() {
        let expected = match argument.role.to_string().split('(').next().unwrap() {
            "tokens" => "[{\"data\"}, {}]",
            "start" | "count" => "[{\"data\"}]",
            "state" => "[{\"data\"}, {\"model\"}, {}, {}]",
            role => panic!("{role}"),
        };
        assert_eq!(spelled(&divided.arguments, at), expected, "{argument}");
    }
    for (at, result) in entry.results.iter().enumerate() {
        let expected = match result.role.to_string().split('(').next().unwrap() {
            "logits" => "[{\"data\"}, {\"model\"}]",
            "token" => "[{\"data\"}]",
            "state" => "[{\"data\"}, {\"model\"}, {}, {}]",
            role => panic!("{role}"),
        };
        assert_eq!(spelled(&divided.results, at), expected, "{result}");
    }
}
