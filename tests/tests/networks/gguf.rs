//! GGUF files, judged by the package `gguf` (what blocks mean) and by llama.cpp (logits, tokens): `tests/oracle/gguf_goldens.py`
//! writes both.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use irpa::{Archive, Checkpoint};
use ops::format::BlockFormat;
use ops::ops::Pack;
use ops::{ElementType, Op, WeightFormat};
use safetensors::SafeTensors;
use serde_json::Value as Json;
use trace::{Parameter, Recipe};
use tracewright::bake::{BakeOptions, FromBlocks};
use tracewright::generate::{Chat, Tokenizer, chat_template, stop_tokens};
use tracewright::lower::Weights;
use tracewright::models;
use tracewright::targets::Target;
use tracewright::{Plan, bake};
use tracewright_tests::built::repository;
use tracewright_tests::golden::{BuildOptions, Golden, STEPS, build, check_evaluated, check_within};
use tracewright_tests::long;

fn fixture(name: &str) -> PathBuf {
    repository().join("tests/fixtures/gguf").join(name)
}

fn model(name: &str) -> PathBuf {
    fixture(&format!("{name}.gguf"))
}

#[test]
fn blocks_are_the_numbers_that_the_package_gguf_says() {
    let checkpoint = Checkpoint::open(model("blocks")).unwrap();
    let bytes = fs::read(fixture("blocks.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(checkpoint.tensors().len(), 2 * 8 + 3);
    for tensor in checkpoint.tensors() {
        let expected = expected.tensor(&tensor.name).unwrap();
        assert_eq!(tensor.shape, expected.shape(), "{}", tensor.name);
        let words = expected.data().as_chunks::<4>().0;
        let expected: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let numbers = checkpoint.numbers(&tensor.name).unwrap();
        let mut found = vec![f32::NAN; expected.len()];
        numbers.read(0, &mut found);
        let found: Vec<u32> = found.iter().map(|x| x.to_bits()).collect();
        assert_eq!(found, expected, "{}", tensor.name);
        // And any piece of them.
        for (start, count) in [(1, 3), (expected.len() - 5, 5), (expected.len() / 2 - 1, 2)] {
            let mut piece = vec![f32::NAN; count];
            numbers.read(start, &mut piece);
            let piece: Vec<u32> = piece.iter().map(|x| x.to_bits()).collect();
            assert_eq!(piece, expected[start..start + count], "{} from {start}", tensor.name);
        }
    }
}

fn golden(name: &str) -> Golden {
    Golden::open(&model(name), &fixture(&format!("{name}.json"))).unwrap()
}

/// Compares logits with llama.cpp's at all positions within `bound`, and compares the tokens. Both programs
/// compute with the decoded weights. The evaluator runs all files. IREE runs the files in `in_iree` below,
/// and in the long form all files.
fn judge(name: &str, bound: f64) {
    if long::is_wanted() {
        return judge_in_iree(name, bound);
    }
    let golden = golden(name);
    let report = check_evaluated(&golden, &BuildOptions::of(&golden), STEPS, bound, Ok).unwrap();
    let _ = writeln!(std::io::stderr(), "{name}, evaluated: {report}");
    assert!(report.passes(), "{name}, evaluated: {report}");
}

fn judge_in_iree(name: &str, bound: f64) {
    let golden = golden(name);
    let subject = build(&golden.model, &BuildOptions::of(&golden), STEPS, Ok).unwrap();
    let report = check_within(&golden, &subject, bound).unwrap();
    let _ = writeln!(std::io::stderr(), "{name}: {report}");
    assert!(report.passes(), "{name}: {report}");
}

/// Compares networks with weights in the best format for their blocks and activations in bytes. Their error
/// may be at most twice the error of llama.cpp, which also rounds activations.
fn judge_stored(name: &str) {
    let golden = golden(name);
    let weights =
        Weights { quantize: models::read(&golden.model, &[]).unwrap().stored, ..Weights::default() };
    assert!(weights.quantize.rounds(), "{name}");
    let sizes = BuildOptions { weights, ..BuildOptions::of(&golden) };
    let subject = build(&golden.model, &sizes, STEPS, Ok).unwrap();
    let bytes = fs::read(fixture(&format!("{name}.safetensors"))).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let rounded = tensors.tensor("prompts.0.rounded").unwrap();
    let words = rounded.data().as_chunks::<4>().0;
    let rounded: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
    let reference = golden.reference(0).unwrap();
    let rows = rounded.chunks(golden.vocab_size).enumerate();
    let theirs = rows.map(|(position, row)| reference.error(position, row)).fold(0.0, f64::max);
    let report = check_within(&golden, &subject, 2.0 * theirs).unwrap();
    let _ = writeln!(std::io::stderr(), "{name}, rounded: {report}; llama.cpp {theirs:.1e}");
    assert!(report.passes() && theirs > SUMS, "{name}: {report}; llama.cpp {theirs:.1e}");
}

/// A test in each line, of the file that it names.
macro_rules! judged {
    ($($test:ident: $judge:ident($name:literal $(, $bound:expr)?),)+) => {
        $(
            #[test]
            fn $test() {
                $judge($name $(, $bound)?);
            }
        )+
    };
}

/// The package `gguf` writes the network of `tests/fixtures/granite` (`tests/oracle/granite_gguf.py`), whose logits transformers
/// computed.
#[test]
fn granite_is_the_network_of_its_safetensors() {
    let folder = repository().join("tests/fixtures/granite");
    let golden = Golden::open(&model("granite"), &folder.join("golden.json")).unwrap();
    let report = check_evaluated(&golden, &BuildOptions::of(&golden), STEPS, SUMS, Ok).unwrap();
    assert!(report.passes(), "{report}");
}

/// The difference that other orders of sums, and other roundings of exponentials, cause.
const SUMS: f64 = 2e-5;

/// llama.cpp takes GELU from a table of f16.
const TABLE: f64 = 4e-3;

judged! {
    llama: judge_in_iree("llama", SUMS),
    llama_with_a_tied_head: judge("llama-tied", SUMS),
    llama_in_f16: judge("llama-f16", SUMS),
    llama_in_bf16: judge("llama-bf16", SUMS),
    llama_with_factors_of_frequencies: judge("llama-rope3", SUMS),
    llama_with_linear_scaling: judge("llama-linear", SUMS),
    llama_with_yarn: judge("llama-yarn", SUMS),
    llama_with_biases: judge("llama-bias", SUMS),
    mixtral: judge("mixtral", SUMS),
    smollm3: judge("smollm3", SUMS),
    qwen2: judge("qwen2", SUMS),
    qwen3: judge("qwen3", SUMS),
    olmo2: judge("olmo2", SUMS),
    phi3: judge_in_iree("phi3", SUMS),
    phi3_with_longrope: judge("phi3-longrope", SUMS),
    gemma2: judge("gemma2", TABLE),
    gemma3: judge_in_iree("gemma3", TABLE),
    gpt2: judge("gpt2", TABLE),
    lfm2: judge("lfm2", SUMS),
    qwen3_with_experts: judge_in_iree("qwen3moe", SUMS),
    deepseek: judge("deepseek2", SUMS),
    glm_with_latent_attention: judge("deepseek2-glm", SUMS),
    glm_with_experts: judge("glm4moe", SUMS),
    ernie: judge("ernie4_5", SUMS),
    ernie_with_experts: judge("ernie4_5-moe", SUMS),
    lfm2_with_experts: judge("lfm2moe", SUMS),
    granite_hybrid: judge("granitehybrid", SUMS),
    granite_hybrid_with_experts: judge("granitehybrid-experts", SUMS),
    gemma4: judge("gemma4", SUMS),
    gemma4_with_experts: judge("gemma4-experts", SUMS),
    gpt_oss: judge_in_iree("gpt-oss", SUMS),
    nemotron: judge("nemotron_h_moe", SUMS),
    qwen3_next: judge("qwen3next", SUMS),
    qwen35: judge("qwen35", SUMS),
    qwen35_with_experts: judge("qwen35moe", SUMS),
    minimax: judge("minimax-m2", SUMS),
    numbers_of_q8_0: judge("q8_0", SUMS),
    numbers_of_q4_0: judge("q4_0", SUMS),
    numbers_of_q4_k_and_others: judge_in_iree("q4_k", SUMS),
    numbers_of_q5_k_and_others: judge("q5_k", SUMS),
    blocks_of_q8_0: judge_stored("q8_0"),
    blocks_of_q4_0: judge_stored("q4_0"),
    blocks_of_q4_k_and_others: judge_stored("q4_k"),
    blocks_of_q5_k_and_others: judge_stored("q5_k"),
    blocks_of_mxfp4: judge_stored("gpt-oss"),
}

/// The archive's data of each packed weight, the weight itself, the report on its blocks, and the archive's size.
pub(crate) struct Stored {
    pub(crate) weights: BTreeMap<String, (WeightFormat, Vec<f32>, Vec<f32>)>,
    pub(crate) blocks: BTreeMap<FromBlocks, usize>,
    pub(crate) bytes: u64,
}

fn stored(name: &str) -> Stored {
    stored_of(&model(name), None)
}

pub(crate) fn stored_of(model: &Path, element: Option<ElementType>) -> Stored {
    let plan = Plan::new(models::read(model, &[]).unwrap(), element, Some(32), Some(8)).unwrap();
    let features = ["avx2", "f16c", "fma"].map(str::to_owned).to_vec();
    let plan = Plan { target: Target { features: Some(features), ..Target::processor("x86-64-v3") }, ..plan };
    let lowered = plan.lower(&plan.trace().unwrap().trace).unwrap();
    let checkpoint = plan.named(Checkpoint::open(model).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.irpa");
    let baked = lowered.bake(&checkpoint, &path, BakeOptions::default()).unwrap();
    let archive = Archive::open(&path).unwrap();
    let mut weights = BTreeMap::new();
    for parameter in &lowered.module.parameters {
        let Some(Recipe::Op(Op::Pack(Pack { format }), operands)) = parameter.recipe.as_deref() else {
            continue;
        };
        let types: BTreeMap<_, _> = parameter.sources().into_iter().collect();
        let value = |key: &str| bake::value(&checkpoint, key, types[key]);
        let matrix = Parameter::derived("made", operands[0].clone()).unwrap().value(&value).unwrap();
        let [outputs, inputs] = matrix.ty.shape[..] else { panic!("a matrix") };
        let expected: Vec<f32> = matrix.data.iter().map(|x| *x as f32).collect();
        let mut found = vec![f32::NAN; outputs * inputs];
        let panel = format.packed(16, inputs).bytes();
        let panels = archive.data(&parameter.key).unwrap().chunks_exact(panel);
        for (rows, packed) in found.chunks_mut(16 * inputs).zip(panels) {
            format.unpack_panel(packed, inputs, rows);
        }
        weights.insert(parameter.key.clone(), (*format, expected, found));
    }
    Stored { weights, blocks: baked.blocks, bytes: baked.bytes }
}

/// Blocks whose largest integer is none that rounding would make the largest: rounded again they would be other numbers.
#[test]
fn blocks_of_a_format_that_we_have_are_stored_as_they_are() {
    for (name, formats) in
        [("q8_0", &[WeightFormat::Q8][..]), ("q4_0", &[WeightFormat::Q4, WeightFormat::Q8])]
    {
        let Stored { weights, blocks, .. } = stored(name);
        let used: Vec<WeightFormat> = weights.values().map(|(format, ..)| *format).collect();
        assert!(formats.iter().all(|format| used.contains(format)), "{name}: {used:?}");
        for (key, (format, expected, found)) in weights {
            if formats.contains(&format) {
                assert_eq!(found, expected, "{name}: {key}");
            }
        }
        assert!(blocks.keys().all(FromBlocks::is_exact), "{name}: {blocks:?}");
        assert!(blocks.values().sum::<usize>() > 10, "{name}: {blocks:?}");
    }
}

#[test]
fn each_tensor_keeps_its_own_format_and_that_is_said() {
    for (name, expected) in [
        // Beside matmuls of other formats over one input, too.
        (
            "q4_k",
            &[
                "1 of Q5_0 as q5_0, exactly",
                "1 of Q8_0 as q8, exactly",
                "3 of Q4_K as q4_k, exactly",
                "1 of Q5_K as q5_k, exactly",
                "3 of Q6_K as q6_k, exactly",
            ][..],
        ),
        (
            "q5_k",
            &[
                "1 of Q4_0 as q4, exactly",
                "1 of Q4_1 as q4_1, exactly",
                "1 of Q5_0 as q5_0, exactly",
                "1 of Q5_1 as q5_1, exactly",
                "3 of Q5_K as q5_k, exactly",
                "1 of Q6_K as q6_k, exactly",
            ],
        ),
    ] {
        let Stored { weights, blocks, .. } = stored(name);
        for (key, (_, expected, found)) in &weights {
            assert_eq!(found, expected, "{key}");
        }
        let said: Vec<String> = blocks.iter().map(|(what, count)| format!("{count} of {what}")).collect();
        assert_eq!(said, expected, "{name}");
    }
}

/// The next number of SplitMix64, which `gguf_blocks.py` computes too.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// FNV-1a of 32-bit words, of which all NaN are one.
pub(crate) fn hash(numbers: &[f32]) -> String {
    let bits = |x: &f32| if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() };
    let step = |hash: u64, x: &f32| (hash ^ u64::from(bits(x))).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", numbers.iter().fold(0xcbf2_9ce4_8422_2325, step))
}

/// Random blocks of every type, whose scales are any f16, NaN and infinities too. The package `gguf` decoded the
/// same bytes: `gguf_blocks.py` wrote the hashes of its numbers. A packed panel has the same numbers.
#[test]
fn thousands_of_random_blocks_are_the_numbers_that_the_package_gguf_says() {
    let golden: Json = serde_json::from_slice(&fs::read(fixture("random_blocks.json")).unwrap()).unwrap();
    for &block in BlockFormat::ALL {
        let golden = &golden[block.word()];
        let count = golden["blocks"].as_u64().unwrap() as usize;
        assert!(count >= 4096, "{block}");
        let mut state = golden["seed"].as_u64().unwrap();
        let mut bytes: Vec<u8> = Vec::new();
        while bytes.len() < count * block.bytes() {
            bytes.extend(splitmix(&mut state).to_le_bytes());
        }
        bytes.truncate(count * block.bytes());
        for change in golden["edges"].as_array().unwrap() {
            let [at, word] = [0, 1].map(|i| change[i].as_u64().unwrap());
            bytes[at as usize] = word as u8;
        }
        let mut numbers = vec![0.0; count * block.numbers()];
        block.decode(&bytes, 0, &mut numbers);
        assert_eq!(hash(&numbers), golden["hash"].as_str().unwrap(), "{block}");
        let (format, inputs) = (block.ours().unwrap(), numbers.len() / 16);
        let mut packed = vec![0; format.packed(16, inputs).bytes()];
        let known = |row: usize, column: usize| block.quantized(&bytes, row * inputs + column);
        format.pack_groups(&numbers, inputs, &mut packed, known);
        let mut unpacked = vec![0.0; numbers.len()];
        format.unpack_panel(&packed, inputs, &mut unpacked);
        assert_eq!(hash(&unpacked), golden["hash"].as_str().unwrap(), "{block} in panels");
        // The panel has the size of the blocks, or at most 8.5 bits per number.
        if format.facts().block == block {
            assert_eq!(packed.len(), bytes.len(), "{block}");
        }
        assert!(packed.len() * 16 <= numbers.len() * 17, "{block}");
        // A fault in one bit of each block gives other numbers.
        bytes.iter_mut().skip(block.bytes() - 1).step_by(block.bytes()).for_each(|byte| *byte ^= 1);
        block.decode(&bytes, 0, &mut numbers);
        assert_ne!(hash(&numbers), golden["hash"].as_str().unwrap(), "{block}");
    }
}

#[test]
fn tokens_are_those_of_llama_cpp() {
    let golden: Json = serde_json::from_slice(&fs::read(fixture("tokens.json")).unwrap()).unwrap();
    let texts: Vec<&str> =
        golden["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
    let mut wrong = Vec::new();
    for (name, tokens) in golden["tokens"].as_object().unwrap() {
        let tokenizer = Tokenizer::load(model(name)).unwrap().unwrap();
        for (text, tokens) in texts.iter().zip(tokens.as_array().unwrap()) {
            let expected: Vec<u32> =
                tokens.as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
            let found = tokenizer.encode(text).unwrap();
            if found != expected {
                wrong.push(format!("{name}: {text:?}\n  found    {found:?}\n  expected {expected:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A score that is no number has no place among the others.
#[test]
fn scores_that_are_no_numbers() {
    let mut bytes = fs::read(model("tokens-spm")).unwrap();
    let key = b"tokenizer.ggml.scores";
    let scores = bytes.windows(key.len()).position(|window| window == key).unwrap() + key.len() + 16;
    bytes[scores + 4 * 7..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let file = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    fs::write(&file, bytes).unwrap();
    let said = Tokenizer::load(file.path()).unwrap_err().to_string();
    assert!(said.contains("`NaN for token 7`, expected a number for each token"), "{said}");
}

#[test]
fn what_a_file_says_of_chats_and_ends_is_heeded() {
    let path = model("tokens-spm");
    let messages = vec![serde_json::json!({"role": "user", "content": "Hi"})];
    let chat = Chat { messages, ..Chat::default() };
    assert_eq!(chat_template(&path).unwrap().render(&chat).unwrap(), "<s>[user] Hi</s>");
    let tokenizer = Tokenizer::load(&path).unwrap().unwrap();
    let last = tokenizer.encode("a").unwrap().last().copied();
    assert_eq!(last, Some(2), "the end is added where the file says so");
    // The end of a text, and the token that ends a turn, of whichever kind.
    let ends = stop_tokens(&path).unwrap();
    let turn = tokenizer.encode_plain("<|im_start|>").unwrap();
    assert_eq!((ends.len(), ends[0], turn.len()), (2, 2, 1));
    assert_eq!(stop_tokens(model("tokens-qwen2")).unwrap().len(), 2);
    let text = "Hello, world! naïve 你好 👍";
    assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap()).unwrap(), text);
}
