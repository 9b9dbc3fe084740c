//! Simplified networks compute what they computed before: bit for bit under the reference evaluator, token for token
//! through IREE.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use ops::{ElementType, Op, TensorType, Value};
use support::stored;
use trace::{NodeKind, Trace};
use tracewright::lower::Weights;
use tracewright::models::{ModelConfig, ModelKind};
use tracewright::simplify::{Check, Options, Rules, explain, simplify};
use tracewright::{Plan, primitives};
use tracewright_tests::built::repository;
use tracewright_tests::calls::{evaluate, random};
use tracewright_tests::golden::{BuildOptions, Golden, STEPS, build, check};
use tracewright_tests::long;

/// Every configuration of a family that the repository has at toy size.
fn toys() -> Vec<(String, PathBuf)> {
    let of_a_family = |path: &Path| {
        path.join("config.json").exists()
            && ModelConfig::read(path, &[]).is_ok_and(|config| config.kind() == ModelKind::Text)
    };
    let mut toys: Vec<(String, PathBuf)> = fs::read_dir(repository().join("tests/fixtures"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| of_a_family(&entry.path()))
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.path()))
        .collect();
    toys.sort();
    assert!(toys.len() >= 20, "{toys:?}");
    toys
}

/// Whether the checkpoint has in one tensor what simplification would merge.
fn merged_already(name: &str) -> bool {
    ["gpt2", "phi3"].iter().any(|family| name.starts_with(family))
}

/// A toy with a context and a chunk that the evaluator bears.
fn plan(model: &Path, element: ElementType) -> Plan {
    let config = ModelConfig::read(model, &[]).unwrap();
    Plan::new(config, Some(element), Some(12), Some(5)).unwrap()
}

/// A toy as it is recorded, and as it is lowered.
struct Toy {
    name: String,
    element: ElementType,
    vocabulary: usize,
    trace: Trace,
    lowered: Trace,
}

/// All toys, which the tests share: in both types in the long form, and in one in turn in the short form.
fn all() -> &'static [Toy] {
    static ALL: OnceLock<Vec<Toy>> = OnceLock::new();
    let toy = |name: &str, model: &Path, element| {
        let plan = plan(model, element);
        let trace = plan.trace().unwrap().trace;
        let (lowered, _) = primitives(&trace, &Options::default()).unwrap();
        Toy { name: name.to_owned(), element, vocabulary: plan.model.vocabulary(), trace, lowered }
    };
    ALL.get_or_init(|| {
        let mut all = Vec::new();
        for (place, (name, model)) in toys().into_iter().enumerate() {
            let mut elements = [ElementType::F32, ElementType::Bf16];
            elements.rotate_left(place % 2);
            all.extend(long::first(elements, 1).map(|element| toy(&name, &model, element)));
        }
        all
    })
}

/// The tensors that a trace wants of a checkpoint.
fn checkpoint(trace: &Trace) -> BTreeMap<String, TensorType> {
    let parameters = trace.parameters().unwrap();
    let sources = parameters.iter().flat_map(trace::Parameter::sources);
    sources.map(|(key, ty)| (key.to_owned(), ty.clone())).collect()
}

/// Arguments of an entry point: tokens and positions that are possible, any other state.
fn arguments(trace: &Trace, entry: &str, vocabulary: usize) -> Vec<Value> {
    let inputs = trace.entry(entry).unwrap().inputs();
    let value = |(seed, (name, ty)): (usize, (&str, &TensorType))| match name {
        "tokens" => Value::from_fn(ty.clone(), |index| ((index[1] * 37 + 11) % vocabulary) as f64),
        "start" => Value::new(ty.clone(), [4.0]),
        "count" => Value::new(ty.clone(), [if entry == "decode" { 1.0 } else { 3.0 }]),
        _ => random(ty.clone(), seed as u64),
    };
    inputs.into_iter().enumerate().map(value).collect()
}

fn bits(values: &[Value]) -> Vec<Vec<u8>> {
    values.iter().map(Value::to_bytes).collect()
}

/// K15: simplified traces, before and after composites are expanded, evaluate to identical bits; every family, every
/// entry point.
#[test]
fn k15_every_family_evaluates_to_the_same_bits() {
    for Toy { name, element, vocabulary, trace, lowered } in all() {
        let weights: BTreeMap<String, Value> =
            checkpoint(trace).into_iter().zip(100..).map(|((key, ty), i)| (key, random(ty, i))).collect();
        let (composites, report) = simplify(trace, &Options::default());
        let expanded = tracewright::lower::expand(trace).unwrap();
        for simplified in [&composites, lowered] {
            simplified.verify().unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        assert!(report.fired.contains_key("linears of one input") || merged_already(name), "{name}");
        for entry in trace.entries.iter().map(|&id| &*trace.function(id).name) {
            let arguments = arguments(trace, entry, *vocabulary);
            let of = |trace: &Trace| bits(&evaluate(trace, entry, &arguments, &weights));
            assert!(of(trace) == of(&composites), "{name} {entry} {element}: composites");
            assert!(of(&expanded) == of(lowered), "{name} {entry} {element}: primitives");
        }
    }
}

/// The sizes of a network, in order: those in its configuration, derived sizes, and divisors or factors.
fn sizes(config: &serde_json::Value) -> Vec<String> {
    let size = |key: &str| config[key].as_u64();
    let [width, inner, heads, ids] =
        ["hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"]
            // Gemma's files leave out what is the default.
            .map(|key| size(key).unwrap_or(262_208));
    let keys = size("num_key_value_heads").unwrap();
    let features = size("head_dim").unwrap_or(width / heads);
    let counts = [
        ("width", width),
        ("inner", inner),
        ("gate and up", 2 * inner),
        ("ids", ids),
        ("heads", heads),
        ("key heads", keys),
        ("heads of a key", heads / keys),
        ("features", features),
        ("pairs", features / 2),
        ("queries", heads * features),
        ("keys", keys * features),
        ("queries and keys", (heads + keys) * features),
        ("queries, keys and values", (heads + 2 * keys) * features),
    ];
    let factors = [
        ("mean", width as f32),
        ("last id", (ids - 1) as f32),
        ("scores", (1.0 / (features as f64).sqrt()) as f32),
        ("embedding", half::bf16::from_f64((width as f64).sqrt()).to_f32()),
    ];
    let counts = counts.map(|(_, count)| count.to_string());
    counts.into_iter().chain(factors.map(|(_, factor)| format!("{:?}", f64::from(factor)))).collect()
}

/// The words of a network's text and the numbers between them, but for the frequencies of rotary embeddings, of which there
/// are more where a head has more features.
fn words(text: &str) -> Vec<&str> {
    let lists = text.split("inv_freq=[").enumerate();
    let without = lists.map(|(at, part)| if at == 0 { part } else { part.split_once(']').unwrap().1 });
    let is_number = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    without
        .flat_map(|part| {
            part.as_bytes()
                .chunk_by(move |&a, &b| is_number(a) == is_number(b))
                .map(|word| str::from_utf8(word).unwrap())
        })
        .collect()
}

/// Simplified networks of full size consist of the same operations as the toys, in the same order, on the
/// same operands, with equal attributes and types. They differ only in sizes from their configurations.
#[test]
fn full_size_networks_simplify_as_toys_do() {
    let small = [
        // Wide enough that a norm is worth the same statements.
        ("hidden_size", 1024),
        ("intermediate_size", 96),
        ("num_attention_heads", 4),
        ("num_key_value_heads", 2),
        ("head_dim", 128),
        // More than a constant that is folded ahead of time.
        ("vocab_size", 5000),
    ];
    for name in ["llama-3.2-1b", "llama-3.1-405b", "gemma-3-27b", "qwen3-8b"] {
        let file = repository().join(format!("models/presets/{name}.json"));
        let mut config: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        let of_text = |config: &serde_json::Value| config.get("text_config").unwrap_or(config).clone();
        let full = sizes(&of_text(&config));
        let text = match config.get_mut("text_config") {
            Some(text) => text,
            None => &mut config,
        };
        for (key, value) in small {
            if key != "head_dim" || text.get(key).is_some() {
                text[key] = value.into();
            }
        }
        let toy = sizes(&of_text(&config));
        let sizes: BTreeSet<(&str, &str)> =
            full.iter().zip(&toy).map(|(full, toy)| (full.as_str(), toy.as_str())).collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        fs::write(&path, config.to_string()).unwrap();
        let text = |path: &Path| {
            let config = ModelConfig::read(path, &[]).unwrap();
            let plan = Plan::new(config, Some(ElementType::Bf16), Some(512), Some(128)).unwrap();
            primitives(&plan.trace().unwrap().trace, &Options::default()).unwrap().0.to_string()
        };
        let [full, toy] = [&file, &path].map(|path| text(path));
        assert_eq!(full.lines().count(), toy.lines().count(), "{name}");
        assert!(full.lines().count() > 500, "{name}");
        let mut seen = BTreeSet::new();
        for (full, toy) in full.lines().zip(toy.lines()) {
            let both = [full, toy].map(words);
            assert_eq!(both[0].len(), both[1].len(), "{name}\n{full}\n{toy}");
            let mut before = "";
            for (&full_word, &toy_word) in both[0].iter().zip(&both[1]) {
                let is_size = !before.ends_with('%') && sizes.contains(&(full_word, toy_word));
                assert!(full_word == toy_word || is_size, "{name}: {full_word}, {toy_word}\n{full}\n{toy}");
                if full_word != toy_word {
                    seen.insert(full_word.to_owned());
                }
                before = full_word;
            }
        }
        assert!(seen.len() > 8, "{name}: {seen:?}");
    }
}

/// The archive holds every weight once, whatever is merged, and grows by at most one per cent.
#[test]
fn a_recipe_stores_no_weight_twice() {
    for Toy { name, trace, lowered, .. } in all() {
        let before: BTreeMap<String, usize> =
            checkpoint(trace).into_iter().map(|(key, ty)| (key, ty.bytes())).collect();
        let (stored, bytes) = stored(lowered);
        assert!(stored.keys().eq(before.keys()), "{name}: every weight is read");
        assert!(stored.values().all(|&times| times == 1), "{name}: {stored:?}");
        assert!(bytes as f64 <= 1.01 * before.values().sum::<usize>() as f64, "{name}: {bytes}");
    }
}

/// The text of a simplified trace, with its recipes, reads back.
#[test]
fn a_simplified_trace_reads_back() {
    for Toy { name, lowered, .. } in all() {
        let text = lowered.to_string();
        assert!(text.contains("\" = concatenate axis=0 (\"") || merged_already(name), "{name}");
        assert_eq!(&text.parse::<Trace>().unwrap(), lowered, "{name}");
    }
}

/// A second pass finds next to nothing that the first left: the search is local, and starts from elsewhere.
#[test]
fn simplifying_twice_changes_next_to_nothing() {
    for Toy { name, lowered, .. } in all() {
        let (twice, _) = simplify(lowered, &Options::default());
        let count = |trace: &Trace| trace.functions.iter().map(|f| f.len()).sum::<usize>();
        let (once, twice) = (count(lowered), count(&twice));
        assert!(twice <= once && twice as f64 >= 0.99 * once as f64, "{name}: {once}, then {twice}");
    }
}

/// Off is off, and gives the tokens that transformers gives, too.
#[test]
fn unsimplified_networks_are_token_exact() {
    let fixtures = ["llama-untied", "gemma3-a"];
    for fixture in long::first(fixtures, 1) {
        let golden = Golden::fixture(fixture).unwrap();
        let weights = Weights { kernels: false, ..Weights::default() };
        let sizes = BuildOptions { rules: Rules::Off, weights, ..BuildOptions::of(&golden) };
        // Without kernels, chunks compile slowly.
        let entries = if long::is_wanted() { STEPS } else { &["decode"] };
        let subject = build(&golden.model, &sizes, entries, Ok).unwrap();
        assert!(subject.module.parameters.iter().all(|p| p.recipe.is_none()));
        let report = check(&golden, &subject).unwrap();
        assert!(report.passes(), "{fixture}: {report}");
    }
}

/// Approximate rules change how results are rounded and nothing else: tokens stay, logits move a little.
#[test]
fn approximate_rules_keep_the_tokens() {
    let golden = Golden::fixture("llama-untied").unwrap();
    let sizes = BuildOptions { rules: Rules::Approximate, ..BuildOptions::of(&golden) };
    let subject = build(&golden.model, &sizes, STEPS, Ok).unwrap();
    let report = check(&golden, &subject).unwrap();
    let _ = writeln!(std::io::stderr(), "approximate: {report}");
    let recipe = |p: &trace::Parameter| p.recipe.as_ref().map(|_| p.key.clone());
    let keys: Vec<String> = subject.module.parameters.iter().filter_map(recipe).collect();
    assert!(keys.iter().any(|key| key.contains("~multiply")), "{keys:?}");
    assert!(report.passes(), "{report}");
}

/// The decode mask stays, a mask that hides nothing goes.
#[test]
fn a_mask_that_is_all_true_disappears() {
    let text = |mask: &str, offset: &str, operands: &str| {
        format!(
            "entry @f {{\n  %0 = input 0 \"q\" () : f32[1,2,4,8] from \"a\" at \"a.rs\":1\n  \
             %1 = input 1 \"k\" () : f32[1,2,3,8] from \"a\" at \"a.rs\":1\n  \
             %2 = input 2 \"i\" () : i32[] from \"a\" at \"a.rs\":1\n  \
             %3 = sdpa mask=[{mask}] scale=none softcap=none offset={offset} (%0, %1, %1{operands}) : \
             f32[1,2,4,8] from \"a\" at \"a.rs\":1\n  return %3 \"r\"\n}}\n"
        )
    };
    let selects = |mask: &str, offset: &str, operands: &str| {
        let trace: Trace = text(mask, offset, operands).parse().unwrap();
        trace.verify().unwrap();
        let (simplified, _) = primitives(&trace, &Options::default()).unwrap();
        let entry = simplified.entry("f").unwrap();
        entry.ids().filter(|&id| matches!(entry.node(id).kind, NodeKind::Op(Op::Select(_)))).count()
    };
    assert_eq!(selects("window(9)", "false", ""), 0, "every key is in the window");
    assert_eq!(selects("chunk(4)", "false", ""), 0, "all is one chunk");
    assert_eq!(selects("causal", "false", ""), 1);
    assert_eq!(selects("window(2)", "false", ""), 1);
    assert_eq!(selects("causal", "true", ", %2"), 1, "what a position may see is not known");
}

/// The chain of rules behind a node names them, and each step is evaluated.
#[test]
fn explanations_evaluate_every_step() {
    let model = repository().join("tests/fixtures/gemma3-a");
    let trace = plan(&model, ElementType::F32).trace().unwrap().trace;
    let options = Options::default();
    let (simplified, _) = simplify(&trace, &options);
    let mut rules = std::collections::BTreeSet::new();
    for function in &simplified.functions {
        for node in 0..function.len() {
            let explanation = explain(&trace, &options, &function.name, node).unwrap();
            for step in &explanation.steps {
                assert_eq!(step.check, Check::Equal, "{} %{node}: {explanation}", function.name);
                rules.insert(step.rule);
            }
        }
    }
    assert!(rules.contains("linears of one input") && rules.contains("reshape reshape"), "{rules:?}");
    let error = explain(&trace, &options, "nothing", 0).unwrap_err().to_string();
    assert!(error.contains("the trace has no function `nothing`; its functions are [\"layer\""), "{error}");
    let error = explain(&trace, &options, "decode", 9999).unwrap_err().to_string();
    assert!(error.contains("`decode` has no node %9999"), "{error}");
}

/// The same bytes from processes that differ in all that must not matter: six in the short form, twenty in the long one.
#[test]
fn processes_write_the_same_bytes() {
    let binary = env!("CARGO_BIN_EXE_dump");
    let model = repository().join("tests/fixtures/gemma3-a");
    let mut found = std::collections::BTreeSet::new();
    for process in 0..if long::is_wanted() { 20 } else { 6 } {
        let folder = tempfile::tempdir().unwrap();
        // Another path to the same checkpoint.
        let copy = folder.path().join(format!("model{process}"));
        fs::create_dir(&copy).unwrap();
        for entry in fs::read_dir(&model).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
        let run = Command::new(binary)
            .args([&copy, &folder.path().join("out.irpa")])
            .current_dir(folder.path())
            .env("HOME", folder.path())
            .env("RAYON_NUM_THREADS", (process % 5 + 1).to_string())
            .output()
            .unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        found.insert(String::from_utf8(run.stdout).unwrap());
    }
    assert_eq!(found.len(), 1, "{found:?}");
    let hashes = found.first().unwrap();
    assert_eq!(hashes.lines().count(), 4, "{hashes}");
}
