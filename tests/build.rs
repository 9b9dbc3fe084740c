//! Lists the fixtures for the tests that judge each of them: a test in each line of `judged!`.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

use serde_json::Value;

/// Tokens that follow a prompt where these leave several windows behind.
const STEPS: usize = 20;

fn main() -> Result<(), Box<dyn Error>> {
    let fixtures = Path::new("fixtures");
    println!("cargo::rerun-if-changed={}", fixtures.display());
    let mut folders: Vec<PathBuf> = fs::read_dir(fixtures)?.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    let (mut families, mut narrow) = (String::new(), String::new());
    let (mut compiled, mut compiled_narrow) = (BTreeSet::new(), BTreeSet::new());
    for folder in folders.iter().filter(|folder| !folder.join("modules.json").exists()) {
        let json =
            |name| -> Option<Value> { serde_json::from_slice(&fs::read(folder.join(name)).ok()?).ok() };
        let (Some(config), Some(golden)) = (json("config.json"), json("golden.json")) else { continue };
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let test = name.replace('-', "_");
        let steps = golden["prompts"].as_array().into_iter().flatten();
        let steps = steps.filter_map(|prompt| Some(prompt["tokens"].as_array()?.len())).max();
        // `Gemma3` of `Gemma3ForCausalLM`: with or without images, the network for text has the same operations.
        let architecture = config["architectures"][0].as_str().unwrap_or_default();
        let family = architecture.split_once("For").map_or(architecture, |(family, _)| family);
        if steps >= Some(STEPS) {
            // One network of each family runs in IREE.
            let is_first = compiled.insert(family.to_owned());
            let judge = if is_first { "judge" } else { "judge_configuration" };
            families += &format!("    {test}: {judge}(\"{name}\"),\n");
        }
        if folder.join("own.safetensors").exists() {
            let element = if golden["storage"] == "bf16" { "Bf16" } else { "F16" };
            let is_first = compiled_narrow.insert(family.to_owned());
            let judge = if is_first { "judge" } else { "judge_configuration" };
            narrow +=
                &format!("    {test}_in_{}: {judge} \"{name}\" in {element},\n", element.to_lowercase());
        }
    }
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("families.rs"), format!("judged! {{\n{families}}}\n"))?;
    fs::write(out.join("precision.rs"), format!("judged! {{\n{narrow}}}\n"))?;
    Ok(())
}
