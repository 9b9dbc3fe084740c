//! `trace-dump lint`: what targets refuse, do slowly, or get wrong if nobody looked.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::*;

/// A processor with kernels, by the features that its name says, and one without.
const WITH: &str = "x86_64-linux-gnu:generic:+avx2,+fma,+f16c";
const WITHOUT: &str = "x86_64-linux-gnu:generic:+sse2";

#[track_caller]
fn lint(model: &str, code: i32, more: &[&str]) -> Vec<Value> {
    let ran = run(trace_dump(&["lint", model, "--json"]).args(SMALL).args(more));
    assert_eq!(ran.code, Some(code), "{}\n{}", ran.out, ran.err);
    assert_eq!(ran.err.contains("error[TW1009]: "), code == 1, "{}", ran.err);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    json["targets"].as_array().unwrap().clone()
}

/// The findings of a severity, with all their places.
fn found<'a>(target: &'a Value, severity: &str) -> Vec<(&'a str, BTreeSet<&'a str>)> {
    let of = target["findings"].as_array().unwrap().iter().filter(|one| one["severity"] == severity);
    let places = |one: &'a Value| one["places"].as_object().unwrap().keys().map(String::as_str).collect();
    of.map(|one| (one["what"].as_str().unwrap(), places(one))).collect()
}

#[test]
fn what_no_kernel_serves_is_slow_and_no_error() {
    let model = fixture("llama-untied");
    let targets = lint(text(&model), 0, &["--target", WITH, "--target", WITHOUT]);
    let [with, without] = &targets[..] else { panic!("{targets:?}") };
    assert_eq!(found(with, "slow"), []);
    let slow = found(without, "slow");
    let named: Vec<&str> = slow.iter().filter_map(|(what, _)| what.split('`').nth(1)).collect();
    assert_eq!(named, ["linear", "rms_norm", "rope", "sdpa"]);
    assert!(
        slow[..4].iter().all(|(what, _)| what.contains("lacks the instructions that kernels need")),
        "{slow:?}"
    );
    assert!(slow[0].1.contains("model.layers.*.mlp.up_proj") && slow[0].1.contains("lm_head"), "{slow:?}");
    // The same is slow where somebody wants it so, and the module says it too: it dispatches no kernel.
    let off = lint(text(&model), 0, &["--target", WITH, "--kernels", "off"]);
    assert_eq!(
        found(&off[0], "slow").iter().filter(|(what, _)| what.ends_with("kernels are off")).count(),
        4,
        "{off:?}"
    );
}

/// A network that `trace-dump lint` calls rejected is in fact rejected.
#[test]
fn what_has_no_program_is_refused() {
    let model = fixture("llama-untied");
    let targets = lint(text(&model), 0, &["--target", "xla", "--target", WITH, "--quant", "q8"]);
    assert_eq!([&targets[0]["refused"], &targets[1]["refused"]], [false, false]);

    let integers = lint(text(&model), 1, &["--target", WITHOUT, "--kv", "q8"]);
    assert_eq!(integers[0]["findings"][0]["code"], "TW0508");
    let said = run(trace_dump(&["lint", text(&model), "--target", WITHOUT, "--kv", "q8"]).args(SMALL));
    assert!(
        said.out.contains("  refused  only kernels can read a KV cache in 8 bits")
            && said.out.contains("[TW0508]")
    );
    assert_eq!((said.code, lint(text(&model), 0, &["--target", WITH, "--kv", "q8"]).len()), (Some(1), 1));
}

/// Rows of 60 numbers have two groups of 32; the weights of norms are never rounded.
#[test]
fn rows_that_are_no_multiple_of_a_group_are_noted() {
    let model = fixture("llama-untied");
    let targets = lint(text(&model), 0, &["--target", WITH, "--quant", "q4"]);
    let notes = found(&targets[0], "note");
    let padded = notes.iter().find(|(what, _)| what.contains("not a multiple of 32")).unwrap();
    assert!(padded.1.contains("lm_head.weight (rows of 60)"), "{padded:?}");
    let even = lint("llama-3.2-1b", 0, &["--target", WITH, "--quant", "q4"]);
    assert!(found(&even[0], "note").iter().all(|(what, _)| !what.contains("multiple")), "{even:?}");
}

/// Faults that are worked around are those of IREE; XLA has none of them. A processor that only the compiler knows is judged as
/// one without features, and that is said.
#[test]
fn faults_and_unknown_processors_are_noted() {
    let model = fixture("mixtral");
    let targets = lint(text(&model), 0, &["--target", WITHOUT, "--target", "xla", "--target", "znver4"]);
    let worked = |target: &Value| {
        let notes = found(target, "note");
        notes.iter().filter(|(what, _)| what.ends_with("a compiler bug that is worked around")).count()
    };
    assert!(worked(&targets[0]) > 0 && worked(&targets[1]) == 0, "{targets:#?}");
    assert!(
        found(&targets[2], "note")
            .iter()
            .any(|(what, _)| what.contains("only iree-compile knows the features of `znver4`"))
    );
    refused(
        &mut trace_dump(&["lint", text(&model), "--target", "x86_64-linux-gnu:generic:avx2"]),
        2,
        &["`+NAME` or `-NAME`"],
    );
}

/// XLA reads no GGUF file, whatever is in it; and a name that would colour a terminal is shown as text.
#[test]
fn a_gguf_file_under_any_name() {
    let out = folder();
    let model = out.path().join("red\u{1b}[31m.gguf");
    std::fs::copy(fixture("gguf").join("llama.gguf"), &model).unwrap();
    let targets = lint(text(&model), 1, &["--target", "xla", "--target", WITH]);
    let [xla, iree] = [0, 1].map(|i| found(&targets[i], "refused"));
    assert_eq!(targets[0]["findings"][0]["code"], "TW0907");
    assert!(xla.len() == 1 && xla[0].0.contains("XLA reads only safetensors"), "{xla:?}");
    assert!(iree.is_empty(), "{iree:?}");
    for command in ["lint", "stats"] {
        let said = succeed(trace_dump(&[command, text(&model)]).args(SMALL)).out;
        assert!(!said.contains('\u{1b}') && said.contains("red\\u{1b}[31m"), "{said}");
    }
    let said = succeed(trace_dump(&["diff", text(&model), text(&model)]).args(SMALL)).out;
    assert!(!said.contains('\u{1b}') && said.contains("red\\u{1b}[31m"), "{said}");
}
