//! Exports for XLA, tested without XLA: their text and their partitions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use tracewright::Plan;
use tracewright::export::xla::{XlaProgram, partition, planned, shard_rules};
use tracewright::lower::{CollectiveKind, ShardNote, Sharding, Shards};
use tracewright::models::ModelConfig;
use tracewright::models::presets::Preset;
use tracewright::ops::ElementType;
use tracewright::partition::{CallCost, DevicePartition};
use tracewright::targets::{Mesh, MeshRules, NamedMachine, ShardRule};

use crate::support::root;

fn plan(model: ModelConfig, context: usize, batch: usize) -> Plan {
    let plan = Plan::new(model, Some(ElementType::Bf16), Some(context), Some(16)).unwrap();
    planned(Plan { batch, ..plan })
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

fn on(mesh: &str, asked: &[&str]) -> MeshRules {
    MeshRules { mesh: mesh.parse().unwrap(), rules: rules(asked) }
}

/// Every family has a module for each entry point that consists of StableHLO and arguments. A module for many
/// devices differs only in the attributes of arguments and results.
#[test]
fn every_family_is_stablehlo_with_arguments() {
    for family in Preset::all() {
        let plan = plan(family.read().unwrap(), 64, 1);
        let traced = plan.trace().unwrap();
        let along = mesh("model=2");
        let declared = shard_rules(&traced, &along, &[]);
        assert!(!declared.is_empty(), "{} declares nothing", family.name);
        let recorded = traced.trace;
        let expanded = plan.expand(&recorded).unwrap();
        let whole = XlaProgram::new(&expanded, None).unwrap();
        let shards = Shards::new(&recorded, &along, &declared).unwrap();
        let divided = XlaProgram::new(&expanded, Some(shards)).unwrap();
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

/// The processor's time that this thread has had, where Linux says it: a machine that does other things too does not count.
fn processor_time() -> Option<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    Some(Duration::from_nanos(text.split_whitespace().next()?.parse().ok()?))
}

/// 405B from its configuration alone: every weight is divided or listed, and each device holds its share. How long that took is
/// printed: docs/dev/testing.md has the time of an optimised build, of which a build for tests may take ten times as much.
#[test]
fn the_largest_llama_divides_among_8_and_16_devices() {
    let plan = preset("llama-3.1-405b");
    for (devices, shared) in [(8, false), (16, true)] {
        let (start, before) = (Instant::now(), processor_time());
        let recorded = plan.trace().unwrap().trace;
        let along = mesh(&format!("model={devices}"));
        let expanded = plan.expand(&recorded).unwrap();
        let shards = Shards::new(&recorded, &along, &rules(&["K,F,V=model"])).unwrap();
        let program = XlaProgram::new(&expanded, Some(shards)).unwrap();
        let took = before.zip(processor_time()).map_or(start.elapsed(), |(before, after)| after - before);
        println!("model={devices}: {:.1} ms", took.as_secs_f64() * 1e3);
        assert!(took < Duration::from_secs(1), "{took:?}");
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
        if shared {
            assert_eq!(
                notes,
                [
                    "K has 8 for the 16 devices along `model`: each part is held by 2 of them",
                    "G of 16 is divided by 2 instead, along the rest of `model`",
                ]
            )
        } else {
            assert!(notes.is_empty(), "{notes:?}")
        }
    }
}

/// The collectives of a call equal those in XLA's compiled program; `tools/python/tests/test_shipped.py` compares
/// each of them.
#[test]
fn what_devices_exchange_follows_from_how_tensors_are_divided() {
    let exchanged = |model: &str, along: &str, asked: &[&str], batch: usize, entry: &str| {
        let plan = plan(ModelConfig::read(root().join(model), &[]).unwrap(), 64, batch);
        let share = partition(&plan, Some(&on(along, asked))).unwrap();
        let call = share.calls.into_iter().find(|call| call.entry == entry).unwrap();
        let mut counts: BTreeMap<(String, usize), usize> = BTreeMap::new();
        for one in call.collectives {
            *counts.entry((one.kind.to_string(), one.devices)).or_default() += 1;
        }
        counts
            .into_iter()
            .map(|((op, devices), n)| format!("{n} {op}/{devices}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let layers = [("demo", 3), ("demo-gemma3", 6)];
    for (model, layers) in layers {
        for entry in ["prefill", "decode"] {
            // Two for each layer, the embedding, and two for the token that the parts of the logits favour.
            let all = format!("{} all-reduce/2", 2 * layers + 3);
            assert_eq!(exchanged(model, "model=2", &[], 1, entry), all, "{model} {entry}");
            // Each of two key-value heads is held twice: attention sums over two devices, all else over four.
            let all = format!("{layers} all-reduce/2, {} all-reduce/4", layers + 3);
            assert_eq!(exchanged(model, "model=4", &[], 1, entry), all, "{model} {entry}");
        }
        // Rows alone: the features of the last token of each are picked of those of all.
        assert_eq!(exchanged(model, "data=2", &["K,F,V=none"], 2, "decode"), "1 all-gather/2");
    }
    // The softmax's maximum and sum, and the values: over slots.
    assert_eq!(exchanged("demo", "seq=2", &["N=seq", "K,F,V=none"], 1, "decode"), "9 all-reduce/2");
    assert_eq!(exchanged("demo", "seq=2", &["N=seq", "K,F,V=none"], 1, "prefill"), "9 all-reduce/2");
    // Of features that are divided, norms sum too: they are exchanged again and again.
    assert!(exchanged("demo", "model=2", &["D=model", "K,F,V=none"], 1, "decode").contains("all-reduce"));
}

/// The axis `model` divides each expert, or whole experts if asked to, or if tensor parallelism would leave experts whole. The
/// devices hold as much either way. A number of experts that the devices cannot divide is named.
#[test]
fn experts_are_divided_where_their_number_allows() {
    let share =
        |name: &str, along: &str, asked: &[&str]| partition(&preset(name), Some(&on(along, asked))).unwrap();
    let notes = |share: &DevicePartition| share.notes.iter().map(ShardNote::to_string).collect::<Vec<_>>();
    let prefill = |share: &DevicePartition| {
        share.calls.iter().find(|call| call.entry == "prefill").map(CallCost::sent).unwrap()
    };
    // Of 128 experts, each of 8 devices has 16. Tensor parallelism sums the outputs of all experts over the devices.
    let tensor = share("qwen3-30b-a3b", "model=8", &[]);
    let expert = share("qwen3-30b-a3b", "model=8", &["experts=model"]);
    assert_eq!(tensor.weights, expert.weights);
    assert!(prefill(&expert) < prefill(&tensor) / 8.0, "{} {}", prefill(&expert), prefill(&tensor));
    // An axis of its own divides nothing but experts.
    let whole = partition(&preset("qwen3-30b-a3b"), None).unwrap();
    let apart = share("qwen3-30b-a3b", "expert=8", &[]);
    assert!(apart.weights > expert.weights && apart.weights < whole.weights);
    let layers = 48;
    for call in &apart.calls {
        assert_eq!(call.collectives.len(), layers, "{}", call.entry);
        assert!(call.collectives.iter().all(|one| one.kind == CollectiveKind::AllReduce && one.devices == 8));
    }
    // No other axis of these experts is divided, so whole experts are.
    for name in ["deepseek-v3", "gpt-oss-20b"] {
        let (usual, asked) = (share(name, "model=8", &[]), share(name, "model=8", &["experts=model"]));
        assert_eq!(usual, asked, "{name}");
        let whole = share(name, "model=8", &["X=none"]);
        assert!(whole.weights > 3 * usual.weights, "{name}: {} {}", whole.weights, usual.weights);
        assert!(
            usual.replicated.keys().all(|key| !key.contains(".experts.") || key.ends_with("_bias")),
            "{name}"
        );
    }
    let (usual, asked) = (
        share("mixtral-8x7b-v0.1", "model=16", &[]),
        share("mixtral-8x7b-v0.1", "model=16", &["experts=model"]),
    );
    assert_eq!(usual.weights, asked.weights);
    assert_eq!(
        notes(&asked)[notes(&usual).len()..],
        [
            "X of 8 experts is not divisible by the 16 devices along `model`: F of each expert is divided instead"
        ]
    );
    let asked = share("mixtral-8x7b-v0.1", "model=16", &["experts=model", "F=none"]);
    assert!(notes(&asked).contains(&"X of 8 experts is not divisible by the 16 devices along `model`: each device holds all of `model.layers.*.block_sparse_moe.experts.*.w1.weight`".to_owned()), "{:?}", notes(&asked));
    let demo = plan(ModelConfig::read(root().join("demo"), &[]).unwrap(), 64, 1);
    let error = partition(&demo, Some(&on("model=2", &["experts=model"])));
    assert!(
        error.unwrap_err().to_string().starts_with("no weight, argument or result has the axis `experts`")
    );
    let error = partition(&preset("mixtral-8x7b-v0.1"), Some(&on("expert=3", &[]))).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("the axis `X` of extent 8 is not divisible by the 3 devices along `expert`"),
        "{error}"
    );
}

/// Every published size says what its devices hold and exchange: that adds up to what there is, and is no more than two sums a
/// layer and few besides.
#[test]
fn every_published_size_has_a_share() {
    for family in Preset::all() {
        let plan = plan(family.read().unwrap(), 64, 1);
        let alone = partition(&plan, None).unwrap();
        let half = partition(&plan, Some(&on("model=2", &[]))).unwrap();
        // A device computes all of its own experts: for few tokens, these are more than the tokens choose.
        let declared = shard_rules(&plan.trace().unwrap(), &mesh("model=2"), &[]);
        let whole_experts = declared.iter().any(|rule| rule.if_even);
        let replicated: usize = half.replicated.values().sum();
        assert_eq!(2 * half.weights - replicated, alone.weights, "{}", family.name);
        for (alone, half) in alone.calls.iter().zip(&half.calls) {
            assert!(alone.collectives.is_empty() && !half.collectives.is_empty(), "{}", family.name);
            if !whole_experts {
                assert!(
                    half.read < alone.read && half.flops < alone.flops,
                    "{} {}",
                    family.name,
                    alone.entry
                );
                assert!(half.activations <= alone.activations, "{} {}", family.name, alone.entry);
            }
            let gathers = half.collectives.iter().filter(|one| one.kind == CollectiveKind::AllGather);
            assert_eq!(gathers.count(), 0, "{} {}", family.name, alone.entry);
        }
    }
}

/// The time of a token of 405B on eight devices is that of reading an eighth of the weights, and of 253 sums of a token's features.
#[test]
fn the_time_of_a_token_is_a_roofline() {
    let plan = preset("llama-3.1-405b");
    let share = partition(&plan, Some(&on("model=8", &[]))).unwrap();
    let machine: NamedMachine = "h100".parse().unwrap();
    let decode = share.calls.iter().find(|call| call.entry == "decode").unwrap();
    assert_eq!(decode.collectives.len(), 2 * 126 + 3);
    let ring = |bytes: f64| 2.0 * 7.0 / 8.0 * bytes;
    let features = 16384.0;
    let sent = 252.0 * ring(4.0 * features) + ring(2.0 * features) + 2.0 * ring(4.0);
    assert!((decode.sent() - sent).abs() < 1.0, "{} of {sent}", decode.sent());
    let seconds = decode.seconds(&machine);
    assert!((seconds.exchange - sent / 450e9).abs() < 1e-9);
    let embedding = 128_256 * 16384 * 2 / 8;
    let token = 16384 * 2;
    assert_eq!(decode.read, share.weights - embedding + token + share.state_bytes());
    assert!((seconds.total() - decode.read as f64 / 3.35e12 - seconds.exchange).abs() < 1e-9);
    // Twice the parameters that are multiplied with, and what attention and norms do.
    let products = 2.0 * (405_853_388_800.0 - 128_256.0 * 16384.0) / 8.0;
    assert!((1.0..1.1).contains(&(decode.flops / products)), "{}", decode.flops / products);
    let cannot = share.check(&machine).unwrap_err();
    assert!(cannot.to_string().starts_with("each device needs 101."), "{cannot}");
    let share = partition(&plan, Some(&on("model=16", &[]))).unwrap();
    assert_eq!(share.check(&machine), Ok(()));
}

/// The state of each layer lies where it is divided as keys are, and where the rows are.
#[test]
fn state_is_divided_with_heads_and_rows() {
    let model = ModelConfig::read(root().join("demo-gemma3"), &[]).unwrap();
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
