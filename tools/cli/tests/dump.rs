//! `trace-dump`: a configuration is enough, nothing is written, nothing else is needed.

use std::fs;
use std::io::Read as _;

use crate::support::*;

/// S4, M18: weight-free, from config.json alone, in a folder that cannot be written, with an empty environment.
#[test]
fn m18_traces_and_lowers_from_config_json_alone() {
    let folder = folder();
    fs::copy(fixture("llama-untied").join("config.json"), folder.path().join("config.json")).unwrap();
    #[cfg(unix)]
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o555)).unwrap();
    let dump = |more: &[&str]| {
        let mut command = trace_dump(&[text(folder.path())]);
        succeed(command.args(SMALL).args(more).current_dir(folder.path())).out
    };
    let traced = dump(&[]);
    for word in ["prefill", "decode", "score", "sdpa", "rms_norm", "model.layers.*"] {
        assert!(traced.contains(word), "`{word}` is not in\n{traced}");
    }
    let expanded = dump(&["--stage", "expanded"]);
    assert!(!expanded.contains("sdpa(") && expanded.contains("dot_general"), "{expanded}");
    let module = dump(&["--emit", "mlir"]);
    for word in
        ["stablehlo.dot_general", "#flow.parameter.named<\"model\"::\"lm_head.weight\">", "loc(", "@prefill"]
    {
        assert!(module.contains(word), "`{word}` is not in\n{module}");
    }
    let one = dump(&["--emit", "mlir", "--entry", "decode", "--no-locs"]);
    assert!(one.contains("@decode") && !one.contains("@prefill") && !one.contains("loc("), "{one}");
    let two = dump(&["--emit", "mlir", "--entry", "decode,score"]);
    assert!(two.contains("@decode") && two.contains("@score") && !two.contains("@prefill"), "{two}");
    assert_eq!(listing(folder.path()).len(), 1);
    #[cfg(unix)]
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
}

/// Before and after, the rules that fired, and why a node is what it is.
#[test]
fn simplification_is_reported_and_explained() {
    let model = fixture("gemma3-a");
    let dump = |more: &[&str]| trace_dump(&[&[text(&model)], SMALL, more].concat());
    let counts = succeed(&mut dump(&["--stage", "simplified", "--emit", "counts"])).out;
    for word in
        ["stablehlo.dot_general", "composites: estimates for one call", "MFLOP", "linears of one input"]
    {
        assert!(counts.contains(word), "`{word}` is not in\n{counts}");
    }
    let before = succeed(&mut dump(&["--stage", "simplified", "--emit", "counts", "--simplify", "off"])).out;
    assert!(!before.contains("linears of one input"), "{before}");
    let layer = succeed(&mut dump(&["--stage", "simplified"])).out;
    let narrow = layer.lines().find(|line| line.contains("= narrow")).unwrap();
    let node = narrow.trim().split_once(' ').unwrap().0;
    let why = succeed(&mut dump(&["--explain", &format!("layer:{node}")])).out;
    for word in [
        "recorded  %",
        "= linear",
        "linears of one input: linear(x, w₁)",
        "evaluated on random inputs: equal",
    ] {
        assert!(why.contains(word), "`{word}` is not in\n{why}");
    }
    refused(&mut dump(&["--explain", "layer:999"]), 1, &["the simplified function `layer` has no node %999"]);
    refused(
        &mut dump(&["--explain", "nobody:1"]),
        1,
        &["the trace has no function `nobody`; its functions are"],
    );
    refused(&mut dump(&["--explain", "layer:1", "--emit", "mlir"]), 2, &["--explain", "--emit"]);
    refused(&mut dump(&["--explain", "7"]), 2, &["expected FUNCTION:NODE, as `decode:12`"]);
    refused(
        &mut dump(&["--simplify", "boldly"]),
        2,
        &["`boldly` is not a set of rewrite rules; expected off, exact or approximate"],
    );
}

/// M6: the histogram is printed, for every model that the repository has.
#[test]
fn m6_the_histogram_is_printed_and_no_module_has_custom_calls_or_f64() {
    let fixtures = ["llama-bias", "llama-mha", "llama-mqa", "llama-rope3", "llama-tied", "llama-untied"];
    for model in fixtures.map(fixture).into_iter().chain([demo()]) {
        for dtype in ["f32", "bf16"] {
            let dump = |emit| {
                let mut command = trace_dump(&[text(&model), "--emit", emit, "--dtype", dtype]);
                succeed(command.args(SMALL)).out
            };
            let counts = dump("counts");
            for line in ["functions", "nodes", "parameters", "parameter elements", "stablehlo.dot_general"] {
                assert!(counts.contains(line), "`{line}` is not in\n{counts}");
            }
            let module = dump("mlir");
            for never in ["custom_call", "f64>", "stablehlo.cosine", "stablehlo.sine"] {
                assert!(!module.contains(never), "`{never}` in the module of {}", model.display());
            }
            println!("{} {dtype}\n{counts}", model.display());
        }
    }
}

/// M8, M9: every matrix with weights is the one op `linear`, and one converter decides what becomes of it.
#[test]
fn m8_m9_every_linear_layer_is_one_op() {
    let traced = succeed(trace_dump(&[text(&fixture("llama-untied")), "--entry", "decode"]).args(SMALL)).out;
    let lines = |word: &str| traced.lines().filter(|line| line.contains(word)).count();
    assert_eq!(lines(" = linear "), 8, "seven in the layer, and the head\n{traced}");
    assert_eq!(lines("dot_general"), 0, "{traced}");
    let files = std::fs::read_dir(root().join("lower/src/convert")).unwrap().flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    let converters = names.filter(|name| name.contains("linear") && !name.contains("attention"));
    assert_eq!(converters.count(), 1);
}

/// S30: the list of operations comes from the code.
#[test]
fn s29_s30_the_operations_are_listed() {
    let plain = succeed(&mut trace_dump(&["ops"])).out;
    let names: Vec<&str> = plain.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(names, tracewright::ops::Op::NAMES);
    let json = succeed(&mut trace_dump(&["ops", "--json"])).out;
    let list: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
    let listed: Vec<&str> = list.iter().map(|op| op["name"].as_str().unwrap()).collect();
    assert_eq!(names, listed);
    for name in ["dot_general", "sdpa", "linear", "rms_norm", "rope", "gather", "dynamic_update_slice"] {
        assert!(names.contains(&name), "`{name}` is not listed");
    }
    for op in &list {
        let examples = op["examples"].as_array().unwrap();
        assert!(!examples.is_empty(), "{op} has no example");
        assert!(examples.iter().all(|e| e["op"].is_string() && e["result"].is_string()), "{op}");
        // Whatever is said of one is there.
        let said = |key: &str| op[key].as_str().unwrap();
        assert!(said("summary").ends_with('.') && said("doc").starts_with(&said("summary")[..20]), "{op}");
        let source = fs::read_to_string(root().join(said("file"))).unwrap();
        let name = said("rust").rsplit("::").next().unwrap();
        assert!(source.contains(&format!("{name} = \"{}\"", said("name"))), "{op}");
        let fields = op["attributes"].as_array().unwrap();
        assert!(fields.iter().all(|field| !field["doc"].as_str().unwrap().is_empty()), "{op}");
        assert!(!op["elements"].as_array().unwrap().is_empty(), "{op}");
        let words = |key: &str| {
            op[key].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect::<Vec<_>>()
        };
        match said("kind") {
            "primitive" => {
                assert!(words("stablehlo").iter().all(|word| word.starts_with("stablehlo.")), "{op}")
            }
            "composite" => assert!(words("becomes").iter().all(|word| is_primitive(&list, word)), "{op}"),
            "kernel" | "archive" => {}
            kind => panic!("{kind}"),
        }
    }
    let of = |name: &str, key: &str| {
        let op = list.iter().find(|op| op["name"] == name).unwrap();
        op[key].clone()
    };
    assert_eq!(of("permute", "stablehlo"), serde_json::json!(["stablehlo.transpose"]));
    assert!(of("linear", "becomes").as_array().unwrap().contains(&"dot_general".into()));
    assert_eq!(
        [of("packed_linear", "kind"), of("pack", "kind"), of("rope", "kind")],
        ["kernel", "archive", "composite"]
    );
    assert_eq!(of("select", "operands"), serde_json::json!([3]));
}

fn is_primitive(list: &[serde_json::Value], name: &str) -> bool {
    list.iter().any(|op| op["name"] == name && op["kind"] == "primitive")
}

/// A reader that has seen enough, as `head`, is no failure.
#[test]
fn a_closed_pipe_is_no_failure() {
    let mut child = spawn(&mut trace_dump(&[text(&fixture("llama-untied")), "--emit", "mlir"]));
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
}

#[test]
fn kernels_are_shown_to_who_asks_for_them() {
    let model = fixture("llama-untied");
    let plain = succeed(&mut trace_dump(&[text(&model), "--emit", "mlir"])).out;
    assert!(!plain.contains("flow.dispatch") && !plain.contains("@kernels"));
    let dump = |more: &[&str]| {
        let command = [&[text(&model), "--emit", "mlir", "--kernels", "off"], more].concat();
        succeed(&mut trace_dump(&command)).out
    };
    let q4 = dump(&["--quant", "q4"]);
    assert!(!q4.contains("flow.dispatch") && q4.contains(".scales\""), "{q4}");
    assert!(!dump(&[]).contains(".scales\""));
}
