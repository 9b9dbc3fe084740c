//! With [`Numerics::Portable`], logits have the same bits on every processor that has kernels: for any chunk, batch and number of
//! threads. A golden holds one hash for each case.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::fs;

use tracewright::build::{Build, BuildTools};
use tracewright::ops::ElementType::{Bf16, F16, F32};
use tracewright::ops::format::ActivationBits;
use tracewright::ops::{ElementType, TensorType, Value, WeightFormat};
use tracewright::runtime::Device;
use tracewright::targets::{Numerics, Target, host_features};
use tracewright::trace::{KvFormat, Role};
use tracewright_tests::built::{Result, compiler, repository};
use tracewright_tests::chunked::{Chunked, StepSize, StepTokens, Variant, name};
use tracewright_tests::emulator::Emulator;
use tracewright_tests::{long, vectors};

/// A fixture of each family of decoders.
const MODELS: [&str; 37] = [
    "gpt_oss",
    "llama-untied",
    "gemma3-b",
    "lfm2",
    "mixtral",
    "qwen3_5",
    "glm4_moe",
    "apertus",
    "cohere2",
    "deepseek_v3",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone4",
    "gemma2",
    "gemma4_unified",
    "glm4_moe_lite",
    "gpt2",
    "granite",
    "granitemoehybrid",
    "lfm2_moe",
    "minimax_m2",
    "ministral3",
    "mistral",
    "mistral4",
    "nemotron_h",
    "olmo2",
    "olmo3",
    "olmoe",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3-next",
    "qwen3_5-moe",
    "qwen3_moe",
    "seed-oss",
    "smollm3",
    "starcoder2",
];

const FORMATS: [(ElementType, Option<WeightFormat>); 7] = [
    (Bf16, None),
    (F32, None),
    (F16, None),
    (Bf16, Some(WeightFormat::Q8)),
    (F32, Some(WeightFormat::Q4)),
    (F16, Some(WeightFormat::Q4K)),
    (Bf16, Some(WeightFormat::Mxfp4)),
];

/// The cases of the short form, which have a golden: with bf16 alone, with products of bytes, and in f32.
const SHORT: [&str; 3] =
    ["gpt_oss bf16 dense computed", "llama-untied bf16 q8 computed", "llama-untied f32 dense computed"];

const CONTEXT: usize = 64;
const SEQUENCES: usize = 3;

/// The first has the hash of the golden, the others its bits.
const SIZES: [StepSize; 6] =
    [(1, 7), (SEQUENCES, CONTEXT), (1, 1), (1, CONTEXT), (SEQUENCES, 1), (SEQUENCES, 7)];

/// A processor, and the one that runs its kernels: itself, or one with AVX2 whose module has no instruction of AVX-512.
struct Machine {
    kernels: &'static str,
    emulated_on: Option<&'static str>,
}

const AVX2: &str = "x86-64-v3";
const AVX512: &str = "x86_64-linux-gnu:x86-64-v4";
const AVX512_VNNI: &str = "x86_64-linux-gnu:x86-64-v4:+avx512vnni,+avx512bf16";
const ARM: [&str; 2] =
    ["aarch64-linux-gnu:generic:+neon", "aarch64-linux-gnu:generic:+neon,+dotprod,+i8mm,+bf16"];

fn machines() -> Vec<Machine> {
    let has = |feature: &str| host_features().iter().any(|&(name, has)| has && name == feature);
    if !has("avx2") {
        return Vec::new();
    }
    let on = |kernels, feature| Machine { kernels, emulated_on: (!has(feature)).then_some(AVX2) };
    vec![on(AVX2, "avx2"), on(AVX512_VNNI, "avx512vnni"), on(AVX512, "avx512bw")]
}

#[derive(Clone, Copy, Debug)]
struct Case {
    model: &'static str,
    element: ElementType,
    format: Option<WeightFormat>,
    kv: KvFormat,
}

impl Case {
    fn all() -> impl Iterator<Item = Self> {
        MODELS.into_iter().enumerate().flat_map(|(m, model)| {
            FORMATS.into_iter().enumerate().map(move |(f, (element, format))| {
                let kv = if (m + f).is_multiple_of(2) { KvFormat::Computed } else { KvFormat::Q8 };
                Self { model, element, format, kv }
            })
        })
    }

    fn name(self) -> String {
        let format = self.format.map_or("dense", WeightFormat::word);
        format!("{} {} {format} {}", self.model, self.element.name(), self.kv.word())
    }

    fn variant(self) -> Variant {
        let Self { model, element, format, kv } = self;
        let (activations, numerics) = (ActivationBits::default(), Numerics::Portable);
        Variant { model, element, format, kv, activations, target: None, numerics }
    }

    fn texts(vocabulary: usize, context: usize) -> Vec<Vec<u32>> {
        let token = |text: usize, i: usize| ((i * i * 7 + i * 37 + text * 41) % vocabulary) as u32;
        (0..SEQUENCES).map(|text| (0..context - 9 * text).map(|i| token(text, i)).collect()).collect()
    }

    /// The logits of all texts on a machine, in steps of each size; `edit` may change the text of the module.
    fn logits(
        self,
        machine: &Machine,
        (sizes, device): (&[StepSize], Device),
        edit: fn(&str) -> String,
    ) -> Result<Vec<Vec<Vec<Vec<f32>>>>> {
        let edit = |text: String| match machine.emulated_on {
            Some(_) => vectors::emulated(&edit(&text)),
            None => edit(&text),
        };
        let mut lowered = self.variant().lower(CONTEXT, sizes, &machine.kernels.parse()?, edit)?;
        if let Some(processor) = machine.emulated_on {
            let target = Target { numerics: Numerics::Portable, ..Target::processor(processor) };
            lowered.lowered.target = compiler()?.resolve(&target)?;
        }
        let chunked = lowered.load(device)?;
        let texts = Self::texts(chunked.vocabulary, chunked.context);
        sizes.iter().map(|&size| logits(&chunked, size, &texts)).collect()
    }

    /// The logits of all texts on AArch64, in one step.
    fn emulated(self, emulator: &Emulator, processor: &str) -> Result<Vec<Vec<Vec<f32>>>> {
        let size = (SEQUENCES, CONTEXT);
        let lowered = self.variant().lower(CONTEXT, &[size], &processor.parse()?, |text| text)?;
        let (vocabulary, context) = (lowered.vocabulary, lowered.context);
        let texts = Self::texts(vocabulary, context);
        let (compiler, cache) = (compiler()?, repository().join(".tracewright/cache"));
        let tools = BuildTools::new(&compiler, &cache);
        let mut build = Build::new(lowered.lowered, &lowered.trace, &lowered.checkpoint, tools)?;
        let folder = tempfile::tempdir()?;
        let (archive, _) = build.bake(&folder.path().join("model.irpa"))?;
        let signature = &build.lowered.module.signatures[0];
        let argument = |argument: &tracewright::trace::Argument| -> Result<Value> {
            let numbers: Vec<f64> = match argument.role {
                Role::Tokens => texts.iter().flat_map(|text| padded(text, context)).collect(),
                Role::Count => texts.iter().map(|text| text.len() as f64).collect(),
                Role::Start { .. } | Role::State { .. } => vec![0.0; argument.ty.count()],
                role => return Err(format!("an argument is {role:?}").into()),
            };
            Ok(Value::new(argument.ty.clone(), numbers))
        };
        let arguments = signature.arguments.iter().map(argument).collect::<Result<Vec<_>>>()?;
        let results: Vec<TensorType> = signature.results.iter().map(|result| result.ty.clone()).collect();
        let call = (&*name(size), &*build.compiled.vmfb);
        let found = emulator.call(call, Some(archive.path()), &arguments, &results)?.remove(0);
        let rows: Vec<Vec<f32>> =
            found.data.chunks(vocabulary).map(|row| row.iter().map(|&x| x as f32).collect()).collect();
        let of_text = |(text, rows): (&Vec<u32>, &[Vec<f32>])| rows[..text.len()].to_vec();
        Ok(texts.iter().zip(rows.chunks(context)).map(of_text).collect())
    }
}

fn padded(text: &[u32], context: usize) -> impl Iterator<Item = f64> + '_ {
    (0..context).map(|i| text.get(i).map_or(0.0, |&token| f64::from(token)))
}

/// The logits of each text in steps of a size.
fn logits(chunked: &Chunked, size: StepSize, texts: &[Vec<u32>]) -> Result<Vec<Vec<Vec<f32>>>> {
    let (batch, chunk) = size;
    let mut all = Vec::new();
    for texts in texts.chunks(batch) {
        let (mut state, mut found) = (chunked.empty(size)?, vec![Vec::new(); batch]);
        for start in (0..texts.iter().map(Vec::len).max().unwrap_or(0)).step_by(chunk) {
            let run = |text: &Vec<u32>| start.min(text.len())..(start + chunk).min(text.len());
            let runs: Vec<StepTokens<'_>> = texts
                .iter()
                .map(|text| StepTokens { start: run(text).start, tokens: &text[run(text)] })
                .collect();
            let rows = chunked.step(size, 0, &runs, &mut state)?;
            found.iter_mut().zip(rows).for_each(|(found, rows)| found.extend(rows));
        }
        all.extend(found);
    }
    Ok(all)
}

fn hash(logits: &[Vec<Vec<f32>>]) -> String {
    let mut hasher = blake3::Hasher::new();
    for logit in logits.iter().flatten().flatten() {
        hasher.update(&logit.to_le_bytes());
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

/// The hash of a case with AVX2, and the processors and sizes with another one.
fn found(case: Case, arm: Option<&Emulator>) -> Result<(String, Vec<String>)> {
    let sizes = if long::is_wanted() { &SIZES[..] } else { &SIZES[..2] };
    let (mut expected, mut others) = (None, Vec::new());
    let mut compare = |found: String, place: String| {
        let expected: &String = expected.get_or_insert_with(|| found.clone());
        if *expected != found {
            others.push(format!("{}: {place} has {found}, expected {expected}", case.name()));
        }
    };
    for machine in machines() {
        let workers = long::is_wanted().then_some([1, 2]).into_iter().flatten();
        let tasks = workers.map(|workers| Device::LocalTask { workers });
        for device in [Device::LocalSync].into_iter().chain(tasks) {
            let place = format!("{} on {device:?}", machine.kernels);
            for (size, found) in sizes.iter().zip(case.logits(&machine, (sizes, device), str::to_owned)?) {
                compare(hash(&found), format!("{place} in steps of {size:?}"));
            }
        }
    }
    for processor in arm.map_or(&[][..], |_| &ARM) {
        if let Some(emulator) = arm {
            compare(hash(&case.emulated(emulator, processor)?), (*processor).to_owned());
        }
    }
    Ok((expected.unwrap_or_default(), others))
}

/// The long form compares all processors and sizes for each case, and the hash if the golden has it. `UPDATE_EXPECT=1`
/// renews the golden.
#[test]
fn logits_have_the_same_bits_on_every_processor() {
    let path = repository().join("tests/goldens/machines.txt");
    let golden = fs::read_to_string(&path).unwrap_or_default();
    let mut golden: BTreeMap<String, String> = golden
        .lines()
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(case, hash)| (case.to_owned(), hash.to_owned()))
        .collect();
    let renews = std::env::var_os("UPDATE_EXPECT").is_some();
    let arm = Emulator::find();
    let (mut failed, mut count) = (Vec::new(), 0);
    for case in Case::all().filter(|case| long::is_wanted() || SHORT.contains(&&*case.name())) {
        let (hash, others) = found(case, arm.as_ref()).unwrap_or_else(|error| panic!("{case:?}: {error}"));
        count += 1;
        if long::is_wanted() {
            eprintln!("{} {hash} {others:?}", case.name());
        }
        failed.extend(others);
        if renews {
            golden.insert(case.name(), hash);
            let lines: String = golden.iter().map(|(case, hash)| format!("{case} {hash}\n")).collect();
            fs::write(&path, lines).unwrap();
        } else if let Some(expected) = golden.get(&case.name()).filter(|expected| **expected != hash) {
            failed.push(format!("{}: {hash}, expected {expected}", case.name()));
        }
    }
    assert!(SHORT.iter().all(|case| golden.contains_key(*case)), "a hash is missing in {}", path.display());
    assert!(count >= SHORT.len() && failed.is_empty(), "{}", failed.join("\n"));
}

/// In a difference of two products, kernels fuse the second instead of the first.
fn other_product(text: &str) -> String {
    let (mut products, mut negated, mut edited) = (BTreeMap::new(), None, String::new());
    for line in text.lines() {
        let words: Vec<&str> = line.trim().split([' ', ',']).filter(|word| !word.is_empty()).collect();
        if line.trim_start().starts_with("func.func") {
            products.clear();
        }
        match words[..] {
            [name, "=", "arith.mulf", a, b, ":", _] => _ = products.insert(name, [a, b]),
            [name, "=", "arith.negf", a, ":", _] if products.contains_key(a) => negated = Some((name, a)),
            [name, "=", "math.fma", a, b, c, ":", ty] if negated.is_some_and(|(name, _)| name == c) => {
                let [x, y] = negated.map(|(_, product)| products[product]).unwrap();
                let first = products.iter().find(|(_, factors)| **factors == [a, b]).unwrap().0;
                edited += &format!(
                    "%other_{0} = arith.negf {x} : {ty}\n{name} = math.fma %other_{0}, {y}, {first} : {ty}\n",
                    &name[1..]
                );
                continue;
            }
            _ => {}
        }
        edited += line;
        edited.push('\n');
    }
    edited
}

#[test]
fn another_fused_product_or_order_at_one_level_is_found() {
    let case = Case { model: "llama-untied", element: F32, format: None, kv: KvFormat::Computed };
    let Some(machine) = machines().pop() else { return };
    let of = |edit| hash(&case.logits(&machine, (&SIZES[2..3], Device::LocalSync), edit).unwrap()[0]);
    let sound = of(str::to_owned);
    let golden = fs::read_to_string(repository().join("tests/goldens/machines.txt")).unwrap();
    assert!(golden.contains(&format!("{} {sound}", case.name())), "{sound}");
    for fault in [other_product, |text: &str| super::same_bits::reversed(text.to_owned())] {
        assert_ne!(of(fault), sound);
    }
}
