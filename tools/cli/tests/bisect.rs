//! `tracewright bisect`: what it says, and how it ends.

use serde_json::Value;

use crate::support::*;

fn bisect(more: &[&str]) -> std::process::Command {
    let model = fixture("llama-untied");
    let mut command = tracewright(&["bisect", text(&model), "--context", "24"]);
    if !more.contains(&"--tokens") {
        command.args(["--tokens", "5,17,3,60"]);
    }
    command.args(more);
    command
}

fn json_of(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.out))
}

#[test]
fn forms_of_a_sound_model_are_equal() {
    // The documents have the first two typed, of which one compiles twice.
    let forms = ["evaluator", "no-kernels", "unsimplified"];
    for against in forms.into_iter().take(if is_long() { 3 } else { 1 }) {
        let temporary = littered();
        let mut command = bisect(&["--against", against, "--json"]);
        let said = json_of(&succeed(command.env("TMPDIR", temporary.path())));
        assert_swept(&temporary);
        assert_eq!((&said["differs"], &said["reference"]), (&false.into(), &against.into()), "{said}");
        let calls = said["calls"].as_array().unwrap();
        assert_eq!(
            (calls.len(), &calls[0]["call"]["entry"], &calls[1]["call"]["start"]),
            (2, &"prefill".into(), &3.into())
        );
        assert!(calls[1]["results"]["logits"]["relative"].as_f64().unwrap() < 1e-5, "{said}");
        assert!(said["nodes"].as_u64().unwrap() > 40, "{said}");
    }
    // Each call compiles modules of its own, and `tests/tests/graphs/bisect.rs` compares the other forms.
    if is_long() {
        let ran = succeed(&mut bisect(&["--quant", "q8", "--against", "dense", "--tokens", "5,17,3,60"]));
        assert!(
            ran.out.contains("nodes are equal within their bounds") && ran.out.contains("decode of 1 token"),
            "{}",
            ran.out
        );
        succeed(&mut bisect(&["--kv", "q8"]));
        succeed(&mut bisect(&["--quant", "q8"]));
    }
}

#[test]
fn what_cannot_be_compared() {
    refused(&mut bisect(&["--against", "dense"]), 2, &["`--against dense`", "`--quant`"]);
    refused(bisect(&[]).args(["--chunk", "99"]), 1, &["`chunk` is 99"]);
    let model = fixture("llama-untied");
    refused(
        &mut tracewright(&["bisect", text(&model), "--tokens", "515"]),
        1,
        &["token 0", "expected an id below 515"],
    );
}

/// Beside what transformers computed, and beside the same with a number changed.
#[test]
fn activations_of_transformers() {
    let known = root().join("tests/fixtures/activations/llama-untied.safetensors");
    let tokens = ["--tokens", "5,17,3,60,2,9"];
    let compare = |known: &std::path::Path, tokens: [&str; 2]| {
        let mut command = tracewright(&["bisect", text(&fixture("llama-untied")), "--against", text(known)]);
        command.args(tokens).args(["--context", "24"]);
        command
    };
    let sound = json_of(&succeed(compare(&known, tokens).arg("--json")));
    assert_eq!((&sound["differs"], &sound["reference"]), (&false.into(), &"transformers".into()), "{sound}");
    refused(
        &mut compare(&known, ["--tokens", "5,17"]),
        2,
        &["has the tokens [5, 17, 3, 60, 2, 9]", "`--tokens`"],
    );

    let out = folder();
    let other = out.path().join("model.safetensors");
    std::fs::copy(&known, &other).unwrap();
    // Those of another network: nothing to compare is not nothing that differs.
    edit_tensors(out.path(), |tensors| {
        let all = std::mem::take(tensors).into_iter();
        let foreign = |name: String| if name == "tokens" { name } else { format!("net.{name}") };
        tensors.extend(all.map(|(name, tensor)| (foreign(name), tensor)));
    });
    refused(&mut compare(&other, tokens), 2, &["nothing was compared", "has no activation of this network"]);
    refused(compare(&known, tokens).args(["--chunk", "2"]), 2, &["`--chunk`", "in one pass"]);
    std::fs::copy(&known, &other).unwrap();
    edit_tensors(out.path(), |tensors| {
        let (dtype, _, _) = tensors.get_mut("tokens").unwrap();
        *dtype = safetensors::Dtype::F32;
    });
    refused(&mut compare(&other, tokens), 2, &["has no tokens (a list of i32)"]);
    std::fs::copy(&known, &other).unwrap();
    edit_tensors(out.path(), |tensors| {
        let (_, _, bytes) = tensors.get_mut("model.layers.1.mlp.up_proj").unwrap();
        bytes[..4].copy_from_slice(&9f32.to_le_bytes());
        let (_, _, bytes) = tensors.get_mut("model.layers.1").unwrap();
        bytes[..4].copy_from_slice(&9f32.to_le_bytes());
    });
    let found = run(compare(&other, tokens).arg("--json"));
    assert_eq!(found.code, Some(1), "{}", found.err);
    assert!(
        found.err.contains("error[TW1001]: the two variants of the network compute different values; the first difference is at `model.layers.1.mlp.up_proj`"),
        "{}",
        found.err
    );
    let finding = json_of(&found)["calls"][0]["finding"].clone();
    assert_eq!(finding["node"]["difference"]["reference"], 9.0, "{finding}");
    assert_eq!(finding["node"]["place"]["file"], "models/src/llama.rs");
    // Whoever reads it.
    #[cfg(unix)]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let unread = compare(&other, tokens).stdout(std::process::Stdio::from(writer)).output().unwrap();
        let said = String::from_utf8_lossy(&unread.stderr);
        assert!(unread.status.code() == Some(1) && said.contains("error[TW1001]: "), "{said}");
    }
    let report = run(&mut compare(&other, tokens)).out;
    assert!(report.contains("`model.layers.1.mlp.up_proj` differs, at models/src/llama.rs:"), "{report}");
    assert!(report.contains("transformers 9e0"), "{report}");
}
