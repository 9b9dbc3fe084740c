//! Tests targets in the form of the command line, and the properties of these targets.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use tracewright_targets::{Backend, Dialect, Machine, Mesh, ShardRule, Target, TargetError};

fn parse(text: &str) -> Result<Target, TargetError> {
    text.parse()
}

#[test]
fn a_name_is_the_host_a_processor_or_a_platform_with_one() {
    assert_eq!(parse("host").unwrap(), Target::host());
    assert_eq!(parse("cortex-a76").unwrap(), Target::processor("cortex-a76"));
    let triple = Some("aarch64-linux-gnu".to_owned());
    let here = parse("aarch64-linux-gnu:generic").unwrap();
    assert_eq!(here, Target { triple: triple.clone(), ..Target::processor("generic") });
    let changes = Some("+sve,-sve2".to_owned());
    let with = parse("aarch64-linux-gnu:generic:+sve,-sve2").unwrap();
    assert_eq!(with, Target { triple, changes, ..Target::processor("generic") });
    assert_eq!(with.to_string(), "`generic` on aarch64-linux-gnu with `+sve,-sve2`");
    assert_eq!(Target::host().to_string(), "`host` on this platform");
}

#[test]
fn what_is_no_target_is_refused_with_the_forms() {
    for (text, words) in [
        ("", "the target is empty"),
        (":", "the target `:` has no platform"),
        (":generic", "the target `:generic` has no platform"),
        ("aarch64-linux-gnu:", "the target `aarch64-linux-gnu:` has no processor"),
        ("aarch64-linux-gnu::+neon", "has no processor"),
        ("aarch64-linux-gnu:generic:", "has no features"),
        ("aarch64-linux-gnu:generic:neon", "has the feature `neon`; expected `+NAME`"),
        ("aarch64-linux-gnu:generic:+neon,", "has the feature ``"),
        ("aarch64-linux-gnu:generic:+neon,-", "has the feature `-`"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("expected"), "`{text}`: {error}");
    }
}

#[test]
fn a_target_answers_by_its_features() {
    let with = |features: &[&str]| Target {
        features: Some(features.iter().map(|name| name.to_string()).collect()),
        ..Target::processor("some")
    };
    assert_eq!(with(&["avx2", "avx512bf16"]).has_bf16(), Some(true));
    assert_eq!(with(&["bf16", "neon"]).has_bf16(), Some(true));
    assert_eq!(with(&["avx2", "avx512f"]).has_bf16(), Some(false));
    assert_eq!(Target::processor("some").has_bf16(), None, "only the compiler knows");
    let host = Target::host().features.unwrap();
    assert!(host.is_sorted() && (host.contains(&"sse2".into()) || !cfg!(target_arch = "x86_64")));
}

#[test]
fn the_architecture_is_in_the_name_of_rust() {
    assert_eq!(parse("arm64-apple-darwin:apple-m1").unwrap().architecture(), "aarch64");
    assert_eq!(parse("riscv64-linux-gnu:generic").unwrap().architecture(), "riscv64");
    assert_eq!(parse("generic").unwrap().architecture(), std::env::consts::ARCH);
}

#[test]
fn a_module_for_the_interpreter_has_no_globals() {
    assert_eq!(Target::host().backend.dialect(), Dialect::IreeGlobals);
    assert_eq!(Target::interpreter().backend, Backend::Interpreter);
    assert_eq!(Backend::Interpreter.dialect(), Dialect::Arguments);
    assert_eq!(Target::host().machine, Machine::CPU);
}

#[test]
fn a_mesh_has_named_axes() {
    let mesh: Mesh = "model=4, data=2".parse().unwrap();
    assert_eq!((mesh.devices(), mesh.to_string().as_str()), (8, "model=4,data=2"));
    let rule: ShardRule = "K, F,V=model".parse().unwrap();
    assert_eq!((rule.axes.len(), rule.to_string().as_str()), (3, "K,F,V=model"));
}

#[test]
fn what_is_no_mesh_is_refused() {
    for (text, words) in [
        ("", "`` is not an axis of a mesh; expected NAME=DEVICES"),
        ("model", "`model` is not an axis of a mesh"),
        ("model=0", "`model=0` is not an axis of a mesh"),
        ("model=-2", "is not an axis of a mesh"),
        ("model=2,", "`` is not an axis of a mesh"),
        ("mo\"del=2", "is not an axis of a mesh"),
        ("model=2,model=3", "the mesh has two axes with the name `model`"),
        ("a=1048576,b=2", "more than 1048576 devices"),
        ("a=18446744073709551615,b=2", "more than 1048576 devices"),
    ] {
        let error = text.parse::<Mesh>().unwrap_err().to_string();
        assert!(error.contains(words), "`{text}`: {error}");
    }
    for text in ["", "K", "K=", "=model", "K,=model", "K=model=data"] {
        let error = text.parse::<ShardRule>().unwrap_err().to_string();
        assert!(error.contains("expected AXES=MESH_AXIS"), "`{text}`: {error}");
    }
}
