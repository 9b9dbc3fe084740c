//! `trace-dump` as a page, a picture and data: of presets, layers, into files.

use std::fs;

use expect_test::expect_file;

use crate::support::*;

/// Without a folder of that name, a published size is enough.
#[test]
fn s4_presets_are_shown_by_name() {
    let listed = succeed(&mut trace_dump(&["presets"])).out;
    let json = succeed(&mut trace_dump(&["presets", "--json"])).out;
    let json: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
    assert_eq!(listed.lines().count(), json.len());
    assert!(
        listed.lines().any(|line| line.split_whitespace().eq(["llama-3.2-1b", "meta-llama/Llama-3.2-1B"]))
    );
    let counts = succeed(&mut trace_dump(&["llama-3.2-1b", "--emit", "counts"])).out;
    let elements = counts.lines().find(|line| line.starts_with("parameter elements")).unwrap();
    assert!(elements.ends_with(" 1235814400"), "{elements}");
    refused(&mut trace_dump(&["llama-3.2-1c"]), 1, &["llama-3.2-1c", "help: `trace-dump presets` lists"]);
    // What is there comes before a name.
    let folder = folder();
    fs::create_dir(folder.path().join("gpt2")).unwrap();
    fs::copy(fixture("llama-untied").join("config.json"), folder.path().join("gpt2/config.json")).unwrap();
    let text = succeed(trace_dump(&["gpt2"]).args(CHUNKED).current_dir(folder.path())).out;
    assert!(text.contains("rms_norm"), "{text}");
}

#[test]
fn a_page_appears_whole_and_with_the_same_bytes() {
    let folder = folder();
    let page = |name: &str| {
        let path = folder.path().join(name);
        let model = fixture("gemma3-a");
        let words = [text(&model), "--emit", "html", "-o", text(&path)];
        let said = succeed(trace_dump(&words).args(CHUNKED).current_dir(root()));
        assert_eq!((said.out, said.err), (String::new(), String::new()));
        fs::read(path).unwrap()
    };
    let first = page("a.html");
    assert_eq!(first, page("b.html"));
    let first = String::from_utf8(first).unwrap();
    assert!(first.starts_with("<!doctype html>") && first.contains("<title>gemma3-a</title>"));
    // The lines of Rust are read below the folder it is started in.
    assert!(first.contains("self.o_proj(attend(q, k, v, at))"));
    assert_eq!(listing(folder.path()).len(), 2, "something unfinished is left");
}

#[test]
fn no_page_replaces_a_file_of_the_model() {
    let model = copied("llama-untied");
    let config = model.path().join("config.json");
    let before = fs::read(&config).unwrap();
    for named in [model.path(), &config] {
        let words = [text(named), "--emit", "html", "-o", text(&config)];
        refused(trace_dump(&words).args(CHUNKED), 1, &["is a file of the model itself"]);
    }
    assert_eq!(fs::read(&config).unwrap(), before);
}

/// One layer alone, in each form that has it.
#[test]
fn a_layer_is_one_function() {
    let model = fixture("gemma3-a");
    let dump = |more: &[&str]| trace_dump(&[&[text(&model)], CHUNKED, more].concat());
    let layer = succeed(&mut dump(&["--layer", "0"])).out;
    assert!(layer.starts_with("function @layer") && layer.matches("\n}\n").count() == 1, "{layer}");
    assert!(layer.contains("i32[1]") || layer.contains("[1,1,"), "decode's, of one token\n{layer}");
    let simplified = succeed(&mut dump(&["--layer", "0", "--stage", "simplified"])).out;
    assert!(simplified.contains("gate_proj.weight+"), "{simplified}");
    let dot = succeed(&mut dump(&["--layer", "0", "--emit", "dot"])).out;
    assert!(dot.starts_with("digraph \"layer") && dot.contains("headlabel=\"1\""), "{dot}");
    let svg = succeed(&mut dump(&["--layer", "0", "--emit", "svg", "--stage", "simplified"])).out;
    assert!(svg.starts_with("<svg ") && svg.contains("q_proj + k_proj + v_proj · linear"), "{svg}");
    let json = succeed(&mut dump(&["--layer", "0", "--emit", "json"])).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let stages = json["graphs"].as_array().unwrap().iter().map(|graph| graph["stage"].as_str().unwrap());
    assert_eq!(stages.collect::<Vec<_>>(), ["traced", "simplified", "expanded"]);
    let page = succeed(&mut dump(&["--layer", "0", "--emit", "html"])).out;
    let name = json["graphs"][0]["function"].as_str().unwrap();
    assert!(page.contains(&format!("\"first\":\"{name}\"")));
    refused(&mut dump(&["--layer", "99"]), 2, &["there is no layer 99; there are 0 to"]);
    refused(&mut dump(&["--layer", "0", "--emit", "mlir"]), 2, &["leave out `--layer`"]);
    refused(&mut dump(&["--layer", "0", "--inline"]), 2, &["no layer is a function of its own here"]);
    refused(&mut dump(&["--stage", "lowered"]), 2, &["expected traced, simplified or expanded"]);
}

/// A step of one token, computed by hand: each matrix is read once and multiplied once.
#[test]
fn stats_are_those_of_the_matrices() {
    let dump = |more: &[&str]| {
        succeed(&mut trace_dump(&[&["stats", "llama-3.2-1b", "--context", "256"], more].concat())).out
    };
    let json: serde_json::Value = serde_json::from_str(&dump(&["--json"])).unwrap();
    let calls = json["calls"].as_array().unwrap();
    let decode = calls.iter().find(|call| call["entry"] == "decode").unwrap();
    let number = |key: &str| decode[key].as_f64().unwrap();
    // 16 layers of q, k, v, o, gate, up, down, and the head: 2 for each number of theirs.
    let matrices =
        16.0 * (2.0 * 2048.0 * 2048.0 + 2.0 * 2048.0 * 512.0 + 3.0 * 2048.0 * 8192.0) + 2048.0 * 128_256.0;
    assert!((2.0 * matrices..2.2 * matrices).contains(&number("flops")), "{decode}");
    assert!((2.0 * matrices..2.2 * matrices).contains(&number("bytes")), "{decode}");
    assert!(
        number("seconds") > 2.0 * matrices / 15e9 && number("seconds") < 2.4 * matrices / 15e9,
        "{decode}"
    );
    let prefill = calls.iter().find(|call| call["entry"] == "prefill").unwrap();
    assert_eq!(prefill["tokens"], 128);
    let table = dump(&["--machine", "gpu"]);
    for word in ["1235814400 parameters", "MFLOP/token", "prefill_short", "product 7"] {
        assert!(table.contains(word), "`{word}` is not in\n{table}");
    }
    let faster: serde_json::Value =
        serde_json::from_str(&dump(&["--json", "--machine", "15e12:100e12"])).unwrap();
    let faster = faster["calls"].as_array().unwrap().iter().find(|call| call["entry"] == "decode").unwrap();
    assert!(faster["seconds"].as_f64().unwrap() < number("seconds") / 10.0);
    refused(
        &mut trace_dump(&["stats", "gpt2", "--machine", "abacus"]),
        2,
        &["expected cpu, gpu, h100, mi300x, tpu-v5e, or BYTES:OPERATIONS"],
    );
}

#[test]
fn networks_are_compared_line_by_line() {
    let [a, b] = ["llama-untied", "llama-bias"].map(fixture);
    let dump = |a: &std::path::Path, b: &std::path::Path| {
        succeed(trace_dump(&["diff", text(a), text(b)]).args(CHUNKED)).out
    };
    let same = dump(&a, &a);
    assert!(!same.contains("@@") && !same.contains('*'), "{same}");
    let differs = dump(&a, &b);
    let added = |line: &&str| line.starts_with("+parameter") && line.contains("self_attn.q_proj.bias");
    // `score` calls the functions of `prefill`.
    assert_eq!(differs.lines().filter(added).count(), 2, "{differs}");
    assert!(differs.contains("--- decode, model.layers.0–1") && differs.contains("  *"), "{differs}");
    refused(&mut trace_dump(&["diff", text(&a)]), 2, &["required"]);
}

fn golden(name: &str) -> std::path::PathBuf {
    root().join("tools/cli/tests/goldens").join(name)
}

#[test]
fn the_help_says_what_there_is() {
    let help = succeed(&mut trace_dump(&["--help"])).out;
    expect_file![golden("trace-dump-help.txt")].assert_eq(&help);
    let of = |command: &str| succeed(&mut trace_dump(&[command, "--help"])).out;
    let all = ["diff", "lint", "ops", "presets", "stats"].map(of).join("\n");
    expect_file![golden("trace-dump-commands-help.txt")].assert_eq(&all);
}

/// The forms that are for people and for other programs, of one layer; the JSON and DOT of a report have goldens of their own.
#[test]
fn forms_of_a_layer() {
    let model = fixture("gemma3-a");
    let dump = |more: &[&str]| succeed(&mut trace_dump(&[&[text(&model)], CHUNKED, more].concat())).out;
    expect_file![golden("layer.txt")].assert_eq(&dump(&["--layer", "0"]));
    expect_file![golden("layer-simplified.txt")].assert_eq(&dump(&["--layer", "0", "--stage", "simplified"]));
    expect_file![golden("counts.txt")].assert_eq(&dump(&["--emit", "counts", "--stage", "expanded"]));
    let linted = succeed(
        trace_dump(&["lint", text(&model), "--target", "x86_64-linux-gnu:generic:+sse2"]).args(CHUNKED),
    )
    .out;
    expect_file![golden("lint.txt")].assert_eq(&linted);
    expect_file![golden("ops.txt")].assert_eq(&succeed(&mut trace_dump(&["ops"])).out);
}
