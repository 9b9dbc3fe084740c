//! `tracewright tune`, and what follows what it found.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::*;

/// A command on a small model, with a cache of its own for tunings.
fn command(words: &[&str], model: &Path, cache: &Path) -> Command {
    let mut command = tracewright(&[words, &[text(model)], SMALL].concat());
    command.env("TRACEWRIGHT_CACHE", cache);
    command
}

fn report(ran: &Ran) -> Vec<Value> {
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    report["kernels"].as_array().unwrap().clone()
}

fn tried(products: &[Value]) -> usize {
    products.iter().map(|product| product["tried"].as_array().unwrap().len()).sum()
}

fn tokens(command: &mut Command) -> Value {
    let ran = succeed(command.args(["--tokens", "5,17,3", "-n", "8", "--ignore-eos", "--json"]));
    let answer: Value = serde_json::from_str(&ran.out).unwrap();
    answer["tokens"].clone()
}

/// Ways to cut products that nobody measured: of each product another one than is usual.
fn other_tiling(products: &[Value]) -> Value {
    let other = |product: &Value| {
        let mut tiling = product["usual"].clone();
        tiling["parts"] = (tiling["parts"].as_u64().unwrap() + 1).into();
        tiling["panels"] = (3 - tiling["panels"].as_u64().unwrap().min(2)).into();
        (product["name"].as_str().unwrap().to_owned(), tiling)
    };
    json!({ "kernels": products.iter().map(other).collect::<serde_json::Map<_, _>>() })
}

/// One run goes on where another was stopped or killed; what was measured is used, and gives the same tokens.
#[test]
fn tuning_goes_on_and_is_used() {
    let (model, cache) = (fixture("llama-untied"), folder());
    let tune = |more: &[&str]| {
        let mut command = command(&["tune"], &model, cache.path());
        command.args(["--json"]).args(more);
        command
    };
    let nothing = report(&succeed(&mut tune(&["--show"])));
    if nothing.is_empty() {
        return; // A processor without kernels.
    }
    assert_eq!(tried(&nothing), 0);
    assert!(nothing.iter().all(|product| product["left"].as_u64() > Some(0)));
    let shares: Vec<f64> = nothing.iter().map(|product| product["share"].as_f64().unwrap()).collect();
    assert!(shares.iter().rev().is_sorted(), "{shares:?}");
    assert_eq!(report(&succeed(&mut tune(&["--budget", "0s"]))), nothing);

    let mut killed = spawn(&mut tune(&["--budget", "10m"]));
    let records = || listing(&cache.path().join("tuning"));
    let kept =
        || records().iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "tuning")).count();
    wait_while_runs(&mut killed, "a record", || kept() > 0);
    killed.kill().unwrap();
    killed.wait().unwrap();
    let first = succeed(&mut tune(&["--show"]));
    assert!(!first.err.contains("damaged"), "{}", first.err);
    let first = report(&first);
    assert!(tried(&first) > 0);
    let second = succeed(&mut tune(&["--budget", "6s"]));
    assert!(second.err.contains("of the default time"), "{}", second.err);
    let second = report(&second);
    assert!(tried(&second) > tried(&first));
    for (before, after) in first.iter().zip(&second) {
        let [before, after] = [before, after].map(|product| product["tried"].as_array().unwrap());
        assert_eq!(before[..], after[..before.len()]);
    }
    assert_eq!(report(&succeed(&mut tune(&["--show"]))), second);
    let table = succeed(&mut command(&["tune", "--show"], &model, cache.path())).out;
    assert!(second.iter().all(|product| table.contains(product["name"].as_str().unwrap())), "{table}");

    let [on, off] = ["on", "off"]
        .map(|tuning| tokens(command(&["generate"], &model, cache.path()).args(["--tuning", tuning])));
    assert_eq!(on, off);

    // A damaged record is told, and not used.
    let records = records();
    // That of the network is no kernel's.
    let is_kernels = |path: &Path| !path.file_name().unwrap().to_string_lossy().starts_with("network_");
    let (record, bytes) = records.iter().find(|(path, _)| is_kernels(path)).unwrap();
    fs::File::options().write(true).open(record).unwrap().set_len(bytes / 2).unwrap();
    let damaged = succeed(&mut tune(&["--show"]));
    assert!(damaged.err.contains(text(record)) && damaged.err.contains("not used"), "{}", damaged.err);
    assert!(tried(&report(&damaged)) < tried(&second));
    let ran = succeed(command(&["generate", "--tokens", "5"], &model, cache.path()).args(["-n", "1"]));
    assert!(ran.err.contains(text(record)), "{}", ran.err);
}

/// The bytes of an export follow from the tuning that it records: with that one they come again.
#[test]
fn an_export_follows_the_tuning_that_it_records() {
    let (model, folder) = (fixture("llama-untied"), folder());
    let shown = command(&["tune", "--show", "--json"], &model, folder.path()).output().unwrap();
    let products = serde_json::from_slice::<Value>(&shown.stdout).unwrap()["kernels"].take();
    let products = products.as_array().unwrap();
    if products.is_empty() {
        return; // A processor without kernels.
    }
    let mut tuning = other_tiling(products);
    let [all, recorded] = ["all.json", "recorded.json"].map(|name| folder.path().join(name));
    tuning["kernels"]["product_of_another_network"] = products[0]["usual"].clone();
    tuning["flags"] = json!(["loop-unrolling", "slp-vectorization"]);
    fs::write(&all, tuning.to_string()).unwrap();
    let export = |name: &str, tuning: &str| {
        let out = folder.path().join(name);
        let arguments = ["-o", text(&out), "--tuning", tuning];
        succeed(command(&["export"], &model, folder.path()).args(arguments));
        out
    };
    let manifest = |out: &Path| -> Value {
        serde_json::from_slice(&fs::read(out.join("manifest.json")).unwrap()).unwrap()
    };
    let (usual, tuned) = (export("usual", "off"), export("tuned", text(&all)));
    assert_eq!(manifest(&usual)["tuning"], json!({ "kernels": {} }));
    // What the network has none of is not recorded.
    tuning["kernels"].as_object_mut().unwrap().remove("product_of_another_network");
    assert_eq!(manifest(&tuned)["tuning"], tuning);
    fs::write(&recorded, manifest(&tuned)["tuning"].to_string()).unwrap();
    let again = export("again", text(&recorded));
    for name in ["model.mlir", "model.vmfb", "model.irpa", "manifest.json"] {
        let [usual, tuned, again] = [&usual, &tuned, &again].map(|out| fs::read(out.join(name)).unwrap());
        assert!(tuned == again, "{name}");
        // Weights lie as they lie, however products are cut.
        assert_eq!(usual == tuned, name == "model.irpa", "{name}");
    }
    let [usual, tuned] = [&usual, &tuned].map(|out| tokens(&mut bare(&["generate", text(out)])));
    assert_eq!(usual, tuned);
}

#[test]
fn what_is_no_tuning_is_refused() {
    let (model, folder) = (fixture("llama-untied"), folder());
    let file = folder.path().join("tuning.json");
    let generate = || command(&["generate", "--tokens", "5"], &model, folder.path());
    refused(generate().args(["--tuning", text(&file)]), 1, &["tuning.json", "read"]);
    let tiling = json!({ "parts": 0, "rows": 1, "panels": 1, "ahead": 0 });
    for (wrong, word) in [
        (json!({ "kernels": { "product": tiling } }), "nonzero"),
        (json!({ "kernels": {}, "flags": ["-o/tmp/x"] }), "loop-vectorization"),
        (json!([]), "Tuning"),
    ] {
        fs::write(&file, wrong.to_string()).unwrap();
        refused(generate().args(["--tuning", text(&file)]), 1, &["does not contain tuning results", word]);
    }
    refused(&mut command(&["tune", "--budget", "soon"], &model, folder.path()), 2, &["--budget", "5m"]);
}
