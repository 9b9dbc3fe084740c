//! Networks that XLA partitions over the devices of one plugin, in this process: the tokens are those of transformers.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::Path;

use tracewright::export::xla::{self, RecordedPlan, XlaError};
use tracewright::generate::GenerateError;
use tracewright::irpa::Checkpoint;
use tracewright::lower::{EntryShards, ShardError, Sharding, Shards, Weights};
use tracewright::models;
use tracewright::ops::ElementType::{Bf16, F32};
use tracewright::pjrt::PjrtError;
use tracewright::targets::{DeviceName, Mesh, MeshRules, ShardRule};
use tracewright::trace::Quantization;
use tracewright::xla::{XlaBuild, XlaPlugin, XlaTools};
use tracewright::{GenerateOptions, Model, ModelError, OpenOptions, Plan};
use tracewright_tests::built::{children, plugin, repository};
use tracewright_tests::golden::{BOUND, Golden, GoldenPrompt};
use tracewright_tests::{in_xla, long};

/// One device, and the meshes of tensor parallelism.
const MESHES: [Option<&str>; 3] = [None, Some("model=2"), Some("model=4")];

fn options(plugin: &Path, mesh: Option<&str>) -> OpenOptions {
    OpenOptions { mesh: mesh.map(|mesh| mesh.parse().unwrap()), ..in_xla::options(plugin) }
}

fn check(model: &Model, prompt: &GoldenPrompt, what: &str) {
    let options =
        GenerateOptions { max_tokens: prompt.tokens.len(), ignore_eos: true, ..GenerateOptions::default() };
    let completion = model.continue_prompt(prompt.prompt_tokens.clone()).options(options).complete().unwrap();
    assert_eq!(completion.generated.tokens, prompt.tokens, "{what}");
    // A token and a logit for each step, each from one device. State and weights stay on the devices.
    assert_eq!(completion.transfers.device_to_host, prompt.tokens.len() as u64 * 8, "{what}");
}

fn shards(model: &Model) -> &Shards {
    model.info().build.as_ref().unwrap().shards.as_ref().unwrap()
}

/// Rules with which a mesh divides tensors of a fixture. Small networks have odd extents: an axis that the mesh does not
/// divide stays whole. If nothing is divided then, another axis is: features, features of a head, or positions. If no
/// axis can be divided, each device computes the whole network.
fn rules(golden: &Golden, mesh: &Mesh) -> Vec<ShardRule> {
    let (plan, _) = planned(golden);
    let whole = xla::partition(&plan, None).unwrap();
    let rule = |text: String| -> ShardRule { text.parse().unwrap() };
    let (mut kept, mut copies): (Vec<String>, _) = (Vec::new(), None);
    for divided in [None, Some("D"), Some("E"), Some("N"), Some("ring")] {
        for _ in 0..8 {
            let others = kept.iter().filter(|axis| Some(axis.as_str()) != divided);
            let others = others.map(|axis| rule(format!("{axis}=none")));
            let rules: Vec<_> = others.chain(divided.map(|axis| rule(format!("{axis}=model")))).collect();
            match xla::partition(&plan, Some(&MeshRules { mesh: mesh.clone(), rules: rules.clone() })) {
                Ok(partition) if partition.bytes() < whole.bytes() => return rules,
                Err(XlaError::Shard(ShardError::Uneven { axis, .. })) if !kept.contains(&axis) => {
                    kept.push(axis)
                }
                Ok(_) => {
                    copies.get_or_insert(rules);
                    break;
                }
                // A weight of Gemma 4 is declared for keys and for values, whose heads have different axes.
                Err(XlaError::Shard(_)) if !kept.iter().any(|axis| axis == "K") => kept.push("K".into()),
                Err(XlaError::Shard(_)) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    copies.unwrap_or_else(|| panic!("{}: no rule fits {mesh}", golden.name))
}

/// All prompts of a fixture, on each of these meshes.
fn judge_on(fixture: &str, meshes: &[Option<&str>]) {
    let Some(plugin) = plugin() else { return };
    let golden = Golden::fixture(fixture).unwrap();
    for &mesh in meshes {
        let options = options(&plugin, mesh);
        let shard = options.mesh.as_ref().map_or(Vec::new(), |mesh| rules(&golden, mesh));
        let sizes =
            OpenOptions { context: Some(golden.context), chunk: Some(golden.chunk), shard, ..options };
        let model = Model::open_with(&golden.model, sizes).unwrap();
        for (number, prompt) in golden.prompts.iter().enumerate() {
            check(&model, prompt, &format!("{fixture} on {mesh:?}: prompt {number}"));
        }
    }
    assert_eq!(children(), Vec::<String>::new(), "a process was started");
}

/// The families that the short form divides: attention and a feed-forward network in parallel, shared keys and values, latent
/// attention, sinks with experts, Mamba-2, and matrices as state.
const SHORT: [&str; 6] =
    ["cohere2", "gemma4_unified", "glm4_moe_lite", "gpt_oss", "granitemoehybrid", "qwen3-next"];

/// A network of each family. The long form runs it on all meshes.
fn judge(fixture: &str) {
    if long::is_wanted() || SHORT.contains(&fixture) {
        judge_on(fixture, if long::is_wanted() { &MESHES } else { &MESHES[1..2] });
    }
}

/// A network that differs from another one only in its configuration runs in the long form.
fn judge_configuration(fixture: &str) {
    if long::is_wanted() {
        judge_on(fixture, &MESHES);
    }
}

/// A test in each line, of the fixture that it names.
macro_rules! judged {
    ($($test:ident: $judge:ident($fixture:literal),)+) => {
        $(
            #[test]
            fn $test() {
                $judge($fixture);
            }
        )+
    };
}

// Of the fixtures that are there (`build.rs`).
include!(concat!(env!("OUT_DIR"), "/families.rs"));

/// The plan for XLA of a fixture with unquantized weights in f32, and the fixture's checkpoint.
fn planned(golden: &Golden) -> (Plan, Checkpoint) {
    let network = models::read(&golden.model, &golden.allowed_keys).unwrap();
    let checkpoint = network.named(Checkpoint::open(&golden.model).unwrap());
    let plan = Plan::new(network, Some(F32), Some(golden.context), Some(golden.chunk)).unwrap();
    let weights = Weights { quantize: Quantization::Computed, ..plan.weights.clone() };
    (xla::planned(Plan { weights, ..plan }), checkpoint)
}

/// Checks the tokens and logits of a network on a mesh, and into how many parts the mesh divides the experts. Also checks the
/// bytes of weights that XLA's client copies to all devices. The client counts the bytes that it copies.
fn check_experts(fixture: &str, mesh: &str, shard: &[&str], parts: usize) {
    let Some(plugin) = plugin() else { return };
    let what = format!("{fixture} on {mesh} with {shard:?}");
    let golden = Golden::fixture(fixture).unwrap();
    let asked: Vec<ShardRule> = shard.iter().map(|rule| rule.parse().unwrap()).collect();
    let sizes = OpenOptions {
        context: Some(golden.context),
        chunk: Some(golden.chunk),
        shard: asked.clone(),
        score: true,
        ..options(&plugin, Some(mesh))
    };
    let model = Model::open_with(&golden.model, sizes).unwrap();
    assert_eq!(shards(&model).divides_experts, parts > 1, "{what}");
    let build = model.info().build.as_ref().unwrap();
    let stacks = build.parameters.iter().filter(|parameter| parameter.ty.rank() == 3);
    let mut number = 0;
    for stack in stacks {
        let Sharding(axes) = &shards(&model).weights[&stack.key];
        assert_eq!(axes[0].iter().map(|axis| axis.size).product::<usize>(), parts, "{what}: {}", stack.key);
        number += 1;
    }
    assert!(number > 1, "{what}: {number} stacks");
    for (number, prompt) in golden.prompts.iter().enumerate() {
        check(&model, prompt, &format!("{what}: prompt {number}"));
    }
    let reference = golden.reference(0).unwrap();
    for (position, row) in model.score(&golden.prompts[0].fed()).unwrap().iter().enumerate() {
        let error = reference.error(position, row);
        assert!(error <= BOUND, "{what}: position {position}: {error:e}");
    }

    let (plan, checkpoint) = planned(&golden);
    let mesh = MeshRules { mesh: mesh.parse().unwrap(), rules: asked };
    let planned = xla::partition(&plan, Some(&mesh)).unwrap();
    let RecordedPlan { traced, shards, .. } = xla::record(&plan, &plan.steps(), Some(&mesh)).unwrap();
    let expanded = plan.expand(&traced.trace).unwrap();
    let ignorable = plan.model.ignorable.clone();
    let build = XlaBuild::new(&expanded, &traced.trace, shards, &checkpoint, ignorable).unwrap();
    let plugin = XlaPlugin::start(&plugin, mesh.mesh.devices(), "").unwrap();
    let cache = repository().join(".tracewright/cache");
    let (before, _) = plugin.client().transferred();
    build.build(XlaTools { plugin: &plugin, device: None, cache: &cache, watch: None }).unwrap();
    let (after, _) = plugin.client().transferred();
    assert_eq!(after - before, (mesh.mesh.devices() * planned.weights) as u64, "{what}");
}

/// A fixture, a mesh, sharding rules, and into how many parts the mesh divides the experts.
type Division = (&'static str, &'static str, &'static [&'static str], usize);

/// The short form checks the first few.
fn check_divisions<const ALL: usize>(all: [Division; ALL], few: usize) {
    for (fixture, mesh, shard, parts) in long::first(all, few) {
        check_experts(fixture, mesh, shard, parts);
    }
}

/// Mixtral has five experts. An axis of experts divides them alone, or beside an axis for heads; and the axis `model` divides
/// them if asked to. Two devices cannot divide five experts.
#[test]
fn experts_of_mixtral_are_divided() {
    let beside = ("mixtral", "expert=5,model=2", &["F,V=none"][..], 5);
    let asked = ("mixtral", "model=5", &["experts=model", "K,F,V=none"][..], 5);
    let alone = ("mixtral", "expert=5", &[][..], 5);
    let whole = ("mixtral", "model=2", &["experts=model", "F,V=none"][..], 1);
    check_divisions([beside, asked, alone, whole], 2);
}

/// Qwen3 MoE has six experts, and a layer without experts.
#[test]
fn experts_of_qwen3_moe_are_divided() {
    let beside = ("qwen3_moe", "model=2,expert=3", &["F,V=none"][..], 3);
    let alone = ("qwen3_moe", "expert=2", &[][..], 2);
    let asked = ("qwen3_moe", "model=2", &["experts=model", "F,V=none"][..], 2);
    check_divisions([beside, alone, asked], 1);
}

/// The experts of gpt-oss have biases. Tensor parallelism would leave half of the matrices whole, so the axis `model` divides
/// whole experts where it can. The first network has five experts, and the second network has four experts.
#[test]
fn experts_of_gpt_oss_are_divided() {
    let whole = ("gpt_oss", "model=2", &["V=none"][..], 1);
    let divided = ("gpt_oss-mxfp4", "model=4", &["V=none"][..], 4);
    let alone = ("gpt_oss", "expert=5", &[][..], 5);
    let fewer = ("gpt_oss-mxfp4", "model=2", &["V=none"][..], 2);
    check_divisions([whole, divided, alone, fewer], 2);
}

/// GLM-4.5 chooses experts in groups, and has shared experts that each device computes.
#[test]
fn experts_of_glm4_moe_are_divided() {
    let alone = ("glm4_moe", "expert=4", &[][..], 4);
    let asked = ("glm4_moe", "model=2", &["experts=model", "F,V=none"][..], 2);
    let more = ("glm4_moe", "expert=8", &[][..], 8);
    check_divisions([alone, asked, more], 1);
}

/// DeepSeek-V3's declaration divides no axis inside an expert, so the axis `model` divides the experts.
#[test]
fn experts_of_deepseek_v3_are_divided() {
    check_experts("deepseek_v3", "model=2", &["H,V=none"], 2);
}

/// Prompts of a shipped model on these meshes, and the logits after the tokens of one.
fn shipped(name: &str, meshes: impl Iterator<Item = &'static str>) {
    let Some(plugin) = plugin() else { return };
    let golden = Golden::shipped(name).unwrap();
    let longest = golden.prompts.iter().map(|prompt| prompt.fed().len() + 1).max().unwrap();
    for mesh in meshes {
        let sizes = OpenOptions {
            context: Some(longest.next_power_of_two()),
            score: true,
            ..options(&plugin, Some(mesh))
        };
        let model = Model::open_with(&golden.model, sizes).unwrap();
        let divided = shards(&model).weights.values().filter(|sharding| sharding.parts() > 1).count();
        assert!(divided > 10, "{name}: {divided} weights are divided");
        let prompts = golden.prompts.iter().enumerate();
        for (number, prompt) in prompts.step_by(if long::is_wanted() { 1 } else { 8 }) {
            check(&model, prompt, &format!("{name} on {mesh}: prompt {number}"));
        }
        let reference = golden.reference(0).unwrap();
        for (position, row) in model.score(&golden.prompts[0].fed()).unwrap().iter().enumerate() {
            let error = reference.error(position, row);
            assert!(error <= BOUND, "{name} on {mesh}: position {position}: {error:e}");
        }
    }
    assert_eq!(children(), Vec::<String>::new(), "a process was started");
}

#[test]
fn the_shipped_model_is_token_exact() {
    shipped("demo", ["model=2", "model=4"].into_iter());
}

#[test]
fn the_shipped_gemma_3_is_token_exact() {
    shipped("demo-gemma3", long::first(["model=2", "model=4"], 1));
}

/// A real model, whose 9 heads and 3 key heads no mesh here divides: the other axes are divided.
#[test]
fn smollm2_is_token_exact() {
    let (Some(plugin), Some(golden)) = (plugin(), Golden::real("smollm2")) else { return };
    for mesh in long::first(["model=2", "model=4"], 1) {
        let shard = ["H=none", "K=none"].map(|rule| rule.parse().unwrap()).to_vec();
        let sizes = OpenOptions { context: Some(golden.context), shard, ..options(&plugin, Some(mesh)) };
        let model = Model::open_with(&golden.model, sizes).unwrap();
        let divided = shards(&model).weights.values().filter(|sharding| sharding.parts() > 1).count();
        assert!(divided > 10, "{divided} weights are divided");
        let prompts = golden.prompts.iter().take(if long::is_wanted() { golden.prompts.len() } else { 1 });
        for (number, prompt) in prompts.enumerate() {
            check(&model, prompt, &format!("SmolLM2 on {mesh}: prompt {number}"));
        }
    }
    assert_eq!(children(), Vec::<String>::new(), "a process was started");
}

/// The sequences of a batch are on different devices, and join while others run.
#[test]
fn sequences_are_divided_over_devices() {
    let Some(plugin) = plugin() else { return };
    let golden = Golden::shipped("demo").unwrap();
    let sizes = OpenOptions { context: Some(256), slots: 4, ..options(&plugin, Some("data=2,model=2")) };
    let model = Model::open_with(&golden.model, sizes).unwrap();
    let EntryShards { arguments, .. } = &shards(&model).entries["decode"];
    let Sharding(tokens) = &arguments[0];
    assert_eq!(tokens[0][0].name, "data", "{tokens:?}");
    let prompts: Vec<_> =
        golden.prompts.iter().filter(|prompt| prompt.prompt_tokens.len() < 200).take(9).collect();
    std::thread::scope(|scope| {
        for prompt in &prompts {
            scope.spawn(|| {
                let options =
                    GenerateOptions { max_tokens: 48, ignore_eos: true, ..GenerateOptions::default() };
                let request = model.continue_prompt(prompt.prompt_tokens.clone()).options(options);
                assert_eq!(request.complete().unwrap().generated.tokens, prompt.tokens);
            });
        }
    });
}

/// Whichever device computes them.
#[test]
fn logits_that_are_no_numbers_are_an_error() {
    let Some(plugin) = plugin() else { return };
    let demo = repository().join("demo");
    let checkpoint = Checkpoint::open(&demo).unwrap();
    let embeddings = checkpoint.get("model.embed_tokens.weight").unwrap();
    assert_eq!(embeddings.element(), Some(Bf16));
    let [rows, width] = embeddings.shape[..] else { panic!("{:?}", embeddings.shape) };
    let file = fs::read(demo.join("model.safetensors")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::copy(demo.join("config.json"), folder.path().join("config.json")).unwrap();
    for (token, bits) in [(7, 0x7fc0u16), (rows - 1, 0x7f80)] {
        // The embeddings are the head, too, so a row of them makes one logit.
        let mut file = file.clone();
        let start = embeddings.range.start + token * width * 2;
        file[start..][..width * 2].copy_from_slice(&bits.to_le_bytes().repeat(width));
        fs::write(folder.path().join("model.safetensors"), file).unwrap();
        for mesh in &MESHES[..2] {
            // In their own type, weights are copied without a look at them.
            let mut options = OpenOptions { context: Some(64), ..options(&plugin, *mesh) };
            options.numeric.dtype = Some(Bf16);
            let model = Model::open_with(folder.path(), options).unwrap();
            let request = model.continue_prompt([5, 17]).options(GenerateOptions::default());
            let what = format!("logit {token} is {bits:x} on {mesh:?}");
            let error = request.complete().map(|completion| completion.generated.tokens).expect_err(&what);
            let ModelError::Generate(GenerateError::Logit { .. }) = error else { panic!("{what}: {error}") };
            assert!(error.to_string().contains(&format!("token {token}")), "{what}: {error}");
        }
    }
}

#[test]
fn mistakes_are_told_before_anything_slow() {
    let Some(plugin) = plugin() else { return };
    let demo = repository().join("demo");
    let refused = |options: OpenOptions| Model::open_with(&demo, options).err().unwrap();
    let told = |options: OpenOptions, expected: &str| assert_eq!(refused(options).to_string(), expected);

    let error = refused(options(&plugin, Some("model=5")));
    assert!(matches!(error, ModelError::Xla(_)), "{error}");
    let idle = OpenOptions { shard: vec!["B=none".parse().unwrap()], ..options(&plugin, Some("data=2")) };
    let error = refused(idle);
    assert!(matches!(error, ModelError::Xla(_)), "{error}");
    let error = refused(options(&plugin, Some("data=4096")));
    assert!(
        matches!(error, ModelError::Plugin(PjrtError::FewDevices { expected: 4096, found: 2048, .. })),
        "{error}"
    );
    told(
        options(&plugin, Some("model=2,idle=2")),
        "no rule divides a tensor along the axis `idle` of the mesh `model=2,idle=2`, so all devices of this axis would \
         compute the same values",
    );
    told(
        OpenOptions { plugin: None, ..options(&plugin, Some("model=2")) },
        "the mesh is `model=2`, but IREE runs a network on one device; name a PJRT plugin, or leave out the mesh",
    );
    let second = Some(DeviceName { ordinal: 1, ..DeviceName::CPU });
    told(
        OpenOptions { device: second, ..options(&plugin, Some("model=2")) },
        "the device is `cpu:1`, but the mesh `model=2` begins at the first device; leave out the device's number",
    );
    told(
        OpenOptions { shard: vec!["V=none".parse().unwrap()], ..options(&plugin, None) },
        "the sharding rule `V=none` divides axes over a mesh, but no mesh is set; set a mesh, or leave out the rule",
    );
}
