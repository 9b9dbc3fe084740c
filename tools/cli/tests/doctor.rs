//! `tracewright doctor`: what is there, and what is missing.

use std::fs;

use serde_json::Value;

use crate::support::*;

#[test]
fn a_machine_that_has_everything_is_well() {
    let ran = succeed(&mut tracewright(&["doctor"]));
    let lines: Vec<&str> = ran.out.lines().collect();
    for (what, words) in [
        ("compiler", "iree-compile 3.13.0"),
        ("processor", "Tracewright's kernels"),
        ("runtime", "cores"),
        ("cache", "free"),
        ("memory", "GB"),
    ] {
        let good = |line: &&str| line.starts_with(&format!("ok  {what}")) && line.contains(words);
        assert!(lines.iter().any(good), "{what}: {}", ran.out);
    }
    let object: Value = serde_json::from_str(&succeed(&mut tracewright(&["doctor", "--json"])).out).unwrap();
    assert_eq!((&object["good"], object["findings"].as_array().unwrap().len()), (&true.into(), 5));
    let value = |place: usize| &object["findings"][place]["value"];
    assert_eq!(value(0)["path"], text(&iree_compile()));
    assert!(value(1)["features"].as_array().unwrap().len() > 3);
    assert!(
        value(3)["free_bytes"].as_u64() > Some(1 << 20) && value(4)["total_bytes"].as_u64() > Some(1 << 30)
    );
}

/// A copy of the demo model whose norms add another number has other bits.
#[test]
fn bits_of_the_demo_model_are_compared() {
    let demo = demo();
    let ran = succeed(&mut tracewright(&["doctor", "--model", text(&demo)]));
    let line = ran.out.lines().find(|line| line.starts_with("ok  bits")).unwrap();
    let printed = succeed(&mut tracewright(&["fingerprint", text(&demo)])).out;
    assert!(line.ends_with(printed.trim_end()), "{line}: {printed}");
    let folder = folder();
    let other = folder.path().join("demo");
    fs::create_dir(&other).unwrap();
    for file in fs::read_dir(&demo).unwrap().map(|file| file.unwrap().path()) {
        fs::copy(&file, other.join(file.file_name().unwrap())).unwrap();
    }
    let config = fs::read_to_string(demo.join("config.json")).unwrap();
    fs::write(other.join("config.json"), config.replace("1e-05", "1e-03")).unwrap();
    let ran = run(&mut tracewright(&["doctor", "--model", text(&other)]));
    assert!(ran.code == Some(1) && ran.out.contains("BAD bits"), "{}", ran.out);
    let ran = run(&mut tracewright(&["doctor", "--model", text(&fixture("llama-tied"))]));
    assert!(ran.err.contains("expected the folder of a model that comes with Tracewright"), "{}", ran.err);
}

#[test]
fn what_is_missing_comes_with_what_mends_it() {
    let folder = folder();
    // Nothing on PATH, and a file where the cache should be.
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let ran = run(&mut bare(&["doctor", "--cache", text(&file)]));
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(ran.err.contains("2 of 5 checks failed"), "{}", ran.err);
    for words in [
        "BAD compiler",
        "cargo xtask setup",
        "iree-base-compiler==3.13.0",
        "BAD cache",
        "--cache DIR",
        "ok  memory",
    ] {
        assert!(ran.out.contains(words), "`{words}` is not in\n{}", ran.out);
    }
    let ran = run(&mut bare(&["doctor", "--json", "--cache", text(&file)]));
    let object: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (ran.code, &object["good"], &object["findings"][0]["good"]),
        (Some(1), &false.into(), &false.into())
    );
}

#[test]
#[cfg(unix)]
fn another_compiler_is_told() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = folder();
    let old = folder.path().join("iree-compile");
    fs::write(&old, "#!/bin/sh\necho 'IREE compiler version 2.9.0'\n").unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o755)).unwrap();
    let cache = folder.path().join("cache");
    let ran = run(&mut bare(&["doctor", "--iree-compile", text(&old), "--cache", text(&cache)]));
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(
        ran.out.contains("BAD compiler") && ran.out.contains("2.9.0") && ran.out.contains("expected 3.13.0"),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("ok  processor"), "it is asked itself\n{}", ran.out);
}
