//! Hashes of the module text of every preset for every kind of target, without the Rust lines in locations. Equal hashes
//! before and after a change prove that compiled programs do not change.

use std::error::Error;

use tracewright::Plan;
use tracewright::export::xla::{XlaError, XlaProgram, planned, shard_rules};
use tracewright::lower::Shards;
use tracewright::models::presets::Preset;
use tracewright::targets::Target;

const CONTEXT: usize = 64;
const CHUNK: usize = 8;

const AVX2: [&str; 3] = ["avx2", "fma", "f16c"];
const AVX512: [&str; 6] = ["avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512bf16", "avx512vnni"];

/// A kind of target, the column of a table whose rows are presets.
#[derive(Clone, Copy)]
enum Column {
    Processor(&'static str, &'static [&'static [&'static str]]),
    Cuda,
    Mesh,
}

const COLUMNS: [Column; 5] = [
    Column::Processor("none", &[]),
    Column::Processor("avx2", &[&AVX2]),
    Column::Processor("avx512", &[&AVX2, &AVX512]),
    Column::Cuda,
    Column::Mesh,
];

/// The text without what says where an operation is declared.
fn without_lines(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with("#loc"));
    lines
        .map(|line| line.split(" loc(").next().unwrap_or_default())
        .fold(String::new(), |all, line| all + line + "\n")
}

fn hash(text: &str) -> blake3::Hash {
    blake3::hash(without_lines(text).as_bytes())
}

/// The hashes of a preset for one target, a line for each module.
fn lines(preset: &Preset, column: Column) -> Result<Vec<String>, Box<dyn Error>> {
    let plan = Plan::new(preset.read()?, None, Some(CONTEXT), Some(CHUNK))?;
    let (name, target) = match column {
        Column::Processor(name, features) => {
            let features = features.concat().into_iter().map(str::to_owned).collect();
            (name, Target { features: Some(features), ..Target::processor("generic") })
        }
        Column::Cuda => ("cuda", "cuda:sm_86".parse()?),
        Column::Mesh => return partitioned(preset, planned(plan)),
    };
    let plan = Plan { target, ..plan };
    let lowered = plan.lower(&plan.trace()?.trace);
    let hash = match lowered {
        Ok(lowered) => hash(&lowered.module.text),
        Err(error) => blake3::hash(error.to_string().as_bytes()),
    };
    Ok(vec![format!("{} {name} {hash}", preset.name)])
}

/// The hashes of a preset that XLA partitions over two devices.
fn partitioned(preset: &Preset, plan: Plan) -> Result<Vec<String>, Box<dyn Error>> {
    let (recorded, mesh) = (plan.trace()?, "model=2".parse()?);
    let shards = Shards::new(&recorded.trace, &mesh, &shard_rules(&recorded, &mesh, &[]));
    let program = shards.map_err(XlaError::from);
    Ok(match program.and_then(|shards| XlaProgram::new(&plan.expand(&recorded.trace)?, Some(shards))) {
        Ok(program) => {
            let modules = program.modules.iter();
            let line = |module: &tracewright::lower::Module| {
                format!("{} xla {} {}", preset.name, module.signatures[0].name, hash(&module.text))
            };
            modules.map(line).collect()
        }
        Err(error) => vec![format!("{} xla {error}", preset.name)],
    })
}

/// The hashes of all presets. Without `all`, each preset has one kind of target, and each kind of target a fifth of the presets.
pub fn hashes(all: bool) -> Result<Vec<String>, Box<dyn Error>> {
    let mut found = Vec::new();
    for (row, preset) in Preset::all().enumerate() {
        for (place, column) in COLUMNS.into_iter().enumerate() {
            if all || (row + place).is_multiple_of(COLUMNS.len()) {
                found.extend(lines(preset, column)?);
            }
        }
    }
    Ok(found)
}
