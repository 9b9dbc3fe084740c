//! Shows what earlier systems can do: each ability has a test that bears its number, such as `s7_split_in_2…` or
//! `s23_s24_baking…`. None is ignored.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Every row that holds today, and what it says.
const ROWS: &[(&str, &str)] = &[
    ("s1", "a placeholder carries its declared element type through the whole trace"),
    ("s2", "float to float is converted when the archive is written and reported; anything else is an error"),
    ("s3", "a default element type for the whole model; a field may fix its own"),
    ("s4", "a whole model traces with no weight file present; nodes, parameters and lowered ops are counted"),
    ("s5", "permute becomes `stablehlo.transpose`"),
    ("s6", "narrow becomes `stablehlo.slice`"),
    ("s7", "split in 2, relu on chunk 1 uses chunk 1"),
    ("s8", "operand order survives any order of edge insertion"),
    ("s9", "sdpa: scale, stable softmax, leading axes are batch, grouped heads"),
    ("s10", "sdpa equals NumPy to 5 decimals, masked and unmasked"),
    ("s11", "causal mask: query 0 sees key 0 only; a query offset for decode"),
    ("s12", "explicit additive mask of rank 2, 3, 4, broadcast from the trailing side"),
    ("s13", "a sliding window of our own making, tested past its length"),
    ("s14", "gather with index ranks 0 to 3"),
    ("s15", "gather in generic form is accepted"),
    ("s16", "slice in bracket form is accepted"),
    ("s17", "concatenate with its full type is accepted"),
    ("s18", "batched product with shared leading axes is accepted"),
    ("s19", "no unsupported op and no arity gap in any model; an unsupported op is an error"),
    ("s20", "the module compiles for the host"),
    ("s21", "the module compiles for aarch64 with NEON"),
    ("s22", "every weight is a named parameter; arguments are tokens, position and state"),
    ("s23", "the archive is written by mapping and large writes"),
    ("s24", "memory stays flat while the archive is written"),
    ("s25", "the archive is byte for byte what IREE's own tool writes"),
    ("s26", "the archive is one that IREE itself reads"),
    ("s27", "token-exact at all positions"),
    ("s28", "FunctionGemma 270M in its real size bakes and runs, and says what transformers says"),
    ("s29", "one test per converter and form"),
    ("s30", "the operations are listed from the code"),
    ("m1", "cargo and iree-compile are enough: no melior, no LLVM build"),
    ("m2", "one dot_general through compiler and runtime, exact"),
    ("m3", "greedy decoding is token-exact with transformers"),
    ("m4", "batched prefill equals streamed decode"),
    ("m5", "a key is seen if its position is not above the query's"),
    ("m6", "the op histogram is printed; no custom_call, no f64"),
    ("m7", "an oracle per architecture"),
    ("m8", "one place where every linear layer goes through"),
    ("m9", "that place is open to quantized weights and other lowerings"),
    ("m10", "Rust drives the IREE runtime with no IREE source checkout"),
    ("m11", "weights are resident once"),
    ("m12", "bf16, f16 and f32 checkpoints"),
    ("m13", "keys and values stay on the device"),
    ("m14", "logits, or the argmax on the device"),
    ("m15", "ties go to the lowest index, as in torch"),
    ("m16", "prompts of any length up to the context"),
    ("m17", "compiled modules are cached by content"),
    ("m18", "builds and traces without IREE; running then says what is missing and how to get it"),
    ("m19", "config.json is checked; a mismatch names the key and both values"),
    ("m20", "`generate` with a model directory and a raw prompt"),
    ("m21", "sampling beyond greedy"),
    ("m24", "`generate` with a chat template"),
    ("m25", "a graphics processor: programs for each kind compile, and run where a driver is"),
    ("k3", "a tuner over ways to cut kernels, chunks and flags of the compiler, which keeps what it found"),
    ("k4", "bytes of weights, state and activations are known before anything runs"),
    ("k5", "measured time of each dispatch of a step"),
    ("k7", "a module is written from a declaration, for a block or a whole model"),
    ("k8", "a product of any size is measured alone"),
    ("k9", "a suite writes one report: case, variant, times, rates, flags"),
    ("k10", "an end-to-end decoder that runs with no download"),
    ("k11", "shipped or random weights; safetensors for real ones"),
    ("k13", "continuous integration with format, lints and tests"),
    ("k14", "an architecture page"),
    ("k15", "real fusion and simplification, proven equal"),
    ("k16", "Linux first, nothing that ties it to one system"),
    ("k17", "batches of several prompts"),
    ("k18", "a GGUF file is a model: configuration, tokenizer, weights"),
];

#[test]
fn every_row_has_a_test_that_bears_its_name() {
    let mut shown: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in sources() {
        for name in tests(&text) {
            for row in rows_of(&name) {
                shown.entry(row).or_default().push(format!("{name} ({})", path.display()));
            }
        }
    }
    for (row, what) in ROWS {
        println!("{row:>4} {what}");
        shown.get(*row).into_iter().flatten().for_each(|test| println!("       {test}"));
    }
    let missing: Vec<_> = ROWS.iter().filter(|(row, _)| !shown.contains_key(*row)).collect();
    assert!(missing.is_empty(), "rows without a test: {missing:#?}");
    let unknown: Vec<_> = shown.iter().filter(|(name, _)| !ROWS.iter().any(|(row, _)| row == name)).collect();
    assert!(unknown.is_empty(), "tests of rows that there are not: {unknown:#?}");
}

#[test]
fn names_of_tests_are_read_as_rows() {
    assert_eq!(rows_of("s23_s24_baking_takes_m5"), ["s23", "s24"]);
    assert_eq!(rows_of("softmax_s5"), Vec::<String>::new());
    assert_eq!(rows_of("m13"), ["m13"]);
    assert_eq!(tests("#[test]\nfn a() {}\nfn b() {}\n#[test]\n#[ignore = \"slow\"]\n  fn c() {}"), ["a"]);
}

/// The rows at the beginning of a test's name.
fn rows_of(test: &str) -> Vec<String> {
    let is_row = |part: &&str| {
        part.strip_prefix(['s', 'm', 'k'])
            .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    test.split('_').take_while(is_row).map(str::to_owned).collect()
}

/// The functions in a source text that are tests, and that every run of the suite runs.
fn tests(text: &str) -> Vec<String> {
    let (mut names, mut is_test, mut is_ignored) = (Vec::new(), false, false);
    for line in text.lines().map(str::trim) {
        is_test |= line == "#[test]";
        is_ignored |= line.starts_with("#[ignore");
        if let Some(rest) = line.strip_prefix("fn ") {
            if is_test && !is_ignored {
                names.push(rest.split(['(', '<']).next().unwrap_or_default().to_owned());
            }
            (is_test, is_ignored) = (false, false);
        }
    }
    names
}

/// The Rust sources of the workspace.
fn sources() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut open = vec![root().to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if path.is_dir() && !name.starts_with('.') && name != "target" {
                open.push(path);
            } else if name.ends_with(".rs") {
                found.push((path.strip_prefix(root()).unwrap().into(), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The names of all packages that a build may use.
fn packages() -> BTreeSet<String> {
    let lock = read("Cargo.lock");
    let names = lock.lines().filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    names.map(str::to_owned).collect()
}

#[test]
fn m1_cargo_and_iree_compile_are_enough() {
    let packages = packages();
    for never in ["melior", "mlir-sys", "llvm-sys", "inkwell", "tblgen", "bindgen", "clang-sys"] {
        assert!(!packages.contains(never), "`{never}` is in Cargo.lock");
    }
    let pinned = read("tools/xtask/requirements.txt");
    assert!(pinned.contains("iree-base-compiler==3.13.0"), "{pinned}");
}

/// The runtime's source comes with a crate; there is no submodule and no download.
#[test]
fn m10_no_checkout_of_iree() {
    assert!(packages().contains("eerie-sys"));
    assert!(!root().join(".gitmodules").exists());
}

#[test]
fn k13_continuous_integration_runs_format_lints_and_tests() {
    assert!(read(".ci/run").contains("cargo xtask test"));
    let suite = read("tools/xtask/src/suite.rs");
    for step in ["\"fmt\", \"--all\", \"--check\"", "\"clippy\"", "\"-D\", \"warnings\"", "\"test\""] {
        assert!(suite.contains(step), "`{step}` is no step of `cargo xtask test`");
    }
}

#[test]
fn k14_an_architecture_page_names_every_member() {
    let page = read("ARCHITECTURE.md");
    let manifest = read("Cargo.toml");
    let members = manifest.split("members = [").nth(1).and_then(|rest| rest.split(']').next()).unwrap();
    for member in members.split('"').skip(1).step_by(2) {
        let name = if member.starts_with("examples/") { member } else { member.rsplit('/').next().unwrap() };
        assert!(
            page.contains(&format!("**`{name}`**")),
            "ARCHITECTURE.md does not name `{name}` of `{member}`"
        );
    }
}

/// Code for a system distinguishes only Unix from others. No library names a particular system.
#[test]
fn k16_nothing_is_tied_to_one_system() {
    for (path, text) in sources() {
        let is_test =
            path.components().any(|part| ["tests", "tests.rs"].iter().any(|name| part.as_os_str() == *name));
        if is_test || path.ends_with("build.rs") {
            continue;
        }
        let code = text.split("#[cfg(test)]").next().unwrap();
        for name in ["target_os", "os::linux", "os::macos", "os::windows"] {
            assert!(!code.contains(name), "`{name}` in {}", path.display());
        }
    }
}

/// S29: each converter, a file of `lower`, has a golden of what it expands to, form by form.
#[test]
fn s29_every_converter_has_its_golden() {
    let goldens = tests(&read("lower/tests/goldens.rs"));
    let files = |folder: &str| fs::read_dir(root().join(folder)).unwrap().map(Result::unwrap);
    for file in files("lower/src/convert").chain(files("lower/src/idiom")) {
        let name = file.path().file_stem().unwrap().to_string_lossy().into_owned();
        let forms = goldens.iter().filter(|test| test.contains(&name)).count();
        println!("{name}: {forms}");
        assert!(
            name == "mod" || forms > 0,
            "no golden in `lower/tests/goldens.rs` is named after the converter `{name}`"
        );
    }
}
