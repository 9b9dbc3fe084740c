//! Runs the chores of `cargo xtask`. A chore is a task for developers, such as running all tests. A
//! chore runs several commands one after another.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use errors::{WithCauses, WithPath as _};
use files::Scratch;

use crate::error::Error;
use crate::python::Python;
use crate::real::RealModel;
use crate::step::{human, start_error, starts, step};
use crate::{Fuzz, Parity, clients, python, vulkan};

const HOW_CC: &str =
    "`apt install build-essential`, `dnf install gcc gcc-c++`, `xcode-select --install` or the like";

/// A failed allocation is an error, because one test deliberately requests too much memory.
pub const ASAN_OPTIONS: (&str, &str) = ("ASAN_OPTIONS", "allocator_may_return_null=1");

pub struct Tools {
    iree_compile: PathBuf,
    pub path: OsString,
}

/// Checks that a C and a C++ compiler exist, and installs the pinned tools.
pub fn setup(root: &Path) -> Result<Tools, Error> {
    let start = Instant::now();
    compilers()?;
    let requirements = root.join("tools/xtask/requirements.txt");
    let venv = python::install(&root.join(".tracewright/venv"), &requirements, "about 150 MB, a minute")?;
    cuda_headers(root)?;
    let iree = venv.packages().join("iree/compiler/_mlir_libs");
    let path = added("PATH", [iree.clone(), cmake_of(&venv)].into_iter().chain(venv.bin()));
    eprintln!("set-up is ready in {}: {}", human(start.elapsed()), root.join(".tracewright/venv").display());
    Ok(Tools { iree_compile: iree.join("iree-compile"), path })
}

fn compilers() -> Result<(), Error> {
    compiler("a C compiler", "CC", "cc")?;
    compiler("a C++ compiler", "CXX", "c++")
}

fn cmake_of(python: &Python) -> PathBuf {
    python.packages().join("cmake/data/bin")
}

/// The folder into which the demo installs cmake and ninja alone, and the file that pins them.
fn cmake_alone(root: &Path) -> (PathBuf, PathBuf) {
    (root.join(".tracewright/cmake"), root.join("tools/xtask/cmake.txt"))
}

/// Installs cmake and ninja alone, with which cargo builds the IREE runtime.
fn setup_cmake(root: &Path) -> Result<(), Error> {
    let (folder, pins) = cmake_alone(root);
    python::install(&folder, &pins, "29 MB").map(drop)
}

/// In the order of need.
pub fn setup_for_demo(root: &Path, model: RealModel) -> Result<(), Error> {
    setup_cmake(root)?;
    setup_model(root, model)
}

/// Installs tools and a model in another process while cargo builds; call [`setup`] afterwards for problems.
///
/// `tracewright-runtime`'s build waits for cmake, so this returns when its installation has begun.
fn setup_ahead(root: &Path, model: RealModel) -> Option<Child> {
    let (folder, pins) = cmake_alone(root);
    let has_cmake = || python::is_installed(&folder, &pins);
    // The tools contain cmake too.
    if python::is_installed(&root.join(".tracewright/venv"), &root.join("tools/xtask/requirements.txt")) {
        return None;
    }
    let (name, size) = (model.name(), model.size());
    eprintln!(
        "while cargo builds, another process installs cmake, IREE's compiler (190 MB) and {name} ({size})"
    );
    let mut setup = Command::new(env::current_exe().ok()?);
    setup.arg("--root").arg(root).args(["setup", "--ahead", "--model", &model.word()]);
    let mut setup = setup.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    while matches!(setup.try_wait(), Ok(None)) && !has_cmake() && !python::is_locked(&folder) {
        thread::sleep(Duration::from_millis(5));
    }
    Some(setup)
}

pub fn setup_vulkan(root: &Path) -> Result<(), Error> {
    setup(root)?;
    let variables = vulkan::install(root)?;
    if variables.is_empty() {
        eprintln!("the system has a loader for Vulkan")
    } else {
        eprintln!("a driver for Vulkan is ready; programs find it by");
        variables.iter().for_each(|(name, value)| eprintln!("    export {name}={}", value.display()));
    }
    Ok(())
}

pub fn setup_model(root: &Path, model: RealModel) -> Result<(), Error> {
    setup(root)?;
    let file = model.install(root)?;
    eprintln!("{} is ready: {}", model.name(), file.display());
    Ok(())
}

pub fn setup_clients(root: &Path) -> Result<(), Error> {
    setup(root)?;
    clients::install(root)
}

pub fn setup_xla(root: &Path) -> Result<(), Error> {
    setup(root)?;
    let plugin = xla_cpu(root)?;
    eprintln!("XLA's plugin for the CPU is ready: {}", plugin.display());
    Ok(())
}

/// Installs XLA's plugin for the CPU, from a Python package.
pub fn xla_cpu(root: &Path) -> Result<PathBuf, Error> {
    let (os, arch) = (env::consts::OS, env::consts::ARCH);
    if (os, arch) != ("linux", "x86_64") {
        return Err(Error::Missing {
            what: "XLA's plugin for the CPU",
            tried: format!("the package is for Linux on x86-64, and this is {os} on {arch}"),
            how: "a build of OpenXLA, target `//xla/pjrt/c:pjrt_c_api_cpu_plugin.so`",
        });
    }
    let (folder, pins) = (root.join(".tracewright/xla-cpu"), root.join("tools/xtask/xla.txt"));
    let python = python::install_for(Some("manylinux_2_27_x86_64"), &folder, &pins, "63 MB")?;
    Ok(python.packages().join("fastatomstruct_xla_cpu/libpjrt_cpu.so"))
}

/// Installs the headers for building the CUDA driver, on platforms for which NVIDIA publishes these headers.
fn cuda_headers(root: &Path) -> Result<(), Error> {
    let platform = match (env::consts::OS, env::consts::ARCH) {
        ("linux", "x86_64") => "manylinux2014_x86_64",
        ("linux", "aarch64") => "manylinux2014_aarch64",
        ("windows", "x86_64") => "win_amd64",
        _ => return Ok(()),
    };
    let (folder, pins) = (root.join(".tracewright/cuda"), root.join("tools/xtask/cuda.txt"));
    python::install_for(Some(platform), &folder, &pins, "2.7 MB").map(drop)
}

/// Lets a model continue a text or answer a question. Without `asked`, the model is SmolLM2. If SmolLM2 cannot
/// be installed, the shipped model tells a story.
pub fn demo(root: &Path, asked: Option<RealModel>, args: &[String]) -> Result<(), Error> {
    compilers()?;
    let real = asked.unwrap_or(RealModel::Smollm2);
    let ahead = setup_ahead(root, real);
    let what = ["--package", "tracewright-cli", "--features", "iree", "--bin", "tracewright"];
    let mut build = cargo(root, &["build"]);
    for name in UNOPTIMIZED {
        build.args(["--config", &format!("profile.dev.package.{name}.opt-level=0")]);
    }
    build.args(what).envs(WITHOUT_DEBUG);
    let mut build = || step("build (a few minutes the first time: it builds the IREE runtime)", &mut build);
    let is_built = build();
    // If the process failed, the functions below try again, and report the reason.
    let failed = ahead.is_some_and(|mut setup| !setup.wait().is_ok_and(|status| status.success()));
    let (cmake, pins) = cmake_alone(root);
    match is_built {
        Err(_) if failed && !python::is_installed(&cmake, &pins) => {
            setup_cmake(root)?;
            build()?;
        }
        is_built => is_built?,
    }
    let tools = setup(root)?;
    let (model, command, usual) = match real.install(root) {
        Ok(model) => (model, real.command(), real.usual()),
        Err(error) if asked.is_some() || matches!(error, Error::Interrupted) => return Err(error),
        Err(error) => {
            eprintln!("{} is left out: {}", real.name(), WithCauses(&error));
            eprintln!("the demo uses the shipped model in `demo/`");
            (PathBuf::from("demo"), "generate", &["-p", "Once upon a time", "-n", "200"][..])
        }
    };
    let usual: Vec<String> = usual.iter().map(|&word| word.to_owned()).collect();
    let args = if args.is_empty() { &usual[..] } else { args };
    let mut demo = Command::new(built(root).join("tracewright"));
    demo.arg(command).arg(model).args(args).arg("--iree-compile").arg(&tools.iree_compile);
    demo.arg("--cache").arg(root.join(".tracewright/cache")).current_dir(root);
    step("demo", &mut demo)
}

/// Optimized for tests, but not for the demo: that takes longer than running them once.
const UNOPTIMIZED: [&str; 7] = [
    "libm",
    "rand",
    "rand_chacha",
    "safetensors",
    "tracewright-bake",
    "tracewright-irpa",
    "tracewright-simplify",
];

/// The demo is built once and not debugged.
const WITHOUT_DEBUG: [(&str, &str); 2] = [("CARGO_INCREMENTAL", "0"), ("CARGO_PROFILE_DEV_DEBUG", "none")];

/// Runs all tests that use a Vulkan device. The function fails if there is no Vulkan device.
pub fn test_vulkan(root: &Path) -> Result<(), Error> {
    let tools = setup(root)?;
    let driver = vulkan::install(root)?;
    let mut tests = cargo(root, &["test", "--workspace", "--all-features", "--test", "devices"]);
    tests.args(["--", "--include-ignored"]).env("PATH", &tools.path).envs(driver);
    step("tests on Vulkan", tests.env("TRACEWRIGHT_TEST_VULKAN", "needed"))
}

/// Follows the first steps of a new user in a fresh clone of the repository.
pub fn newcomer(root: &Path) -> Result<(), Error> {
    let tools = setup(root)?;
    let mut test = cargo(root, &["test", "--workspace", "--all-features", "--test", "newcomer"]);
    test.args(["--", "--ignored", "--nocapture"]).env("PATH", &tools.path);
    step("first steps of a new user", &mut test)
}

/// Random configurations, against Hugging Face transformers.
pub fn parity(root: &Path, what: &Parity) -> Result<(), Error> {
    let tools = setup(root)?;
    let torch = transformers(root)?;
    let out = empty(root.join(".tracewright/parity"))?;
    let mut reference = torch.command();
    reference.arg(root.join("tests/oracle/parity.py")).args(["--seed", &what.seed.to_string()]);
    reference.args(["--cases", &what.cases.to_string(), "--family", &what.family]).arg("--out").arg(&out);
    if let Some(element) = &what.narrow {
        reference.args(["--narrow", element]);
    }
    step("reference", &mut reference)?;
    step("compare", compares(root, &tools).arg(&out))
}

/// Compares Tracewright's results for a checkpoint with the results of Hugging Face transformers.
pub fn parity_of(root: &Path, model: &Path, what: &Parity) -> Result<(), Error> {
    let tools = setup(root)?;
    // What is compared runs in the checkout.
    let model = std::path::absolute(model).with_path("find", model)?;
    step("read", compares(root, &tools).arg("read").arg(&model).args(&what.allow_config_key))?;
    let torch = transformers(root)?;
    let out = empty(root.join(".tracewright/parity-model"))?;
    let mut reference = torch.command();
    reference.arg(root.join("tests/oracle/checkpoint.py")).arg(&model).arg("--out").arg(&out);
    reference.args(what.prompt.iter().map(|text| format!("--prompt={text}")));
    step("reference", &mut reference)?;
    let mut compare = compares(root, &tools);
    compare.arg("model").args([&model, &out]).args(what.json.then_some("--json"));
    compare.args(&what.allow_config_key).arg("--");
    // Where numbers part, it asks torch for those of all modules.
    let torch = torch.command();
    compare.arg(torch.get_program()).arg(root.join("tests/oracle/activations.py")).arg(&model);
    compare.envs(torch.get_envs().filter_map(|(key, value)| Some((key, value?))));
    step("compare", &mut compare)
}

/// Installs the pinned version of torch in a separate Python environment.
fn transformers(root: &Path) -> Result<python::Python, Error> {
    let requirements = root.join("tests/oracle/requirements.txt");
    let size = "torch and transformers: about 3 GB, some minutes";
    python::install(&root.join(".tracewright/oracle"), &requirements, size)
}

/// Returns a command that compares Tracewright's results with the results of Hugging Face transformers.
fn compares(root: &Path, tools: &Tools) -> Command {
    let mut command = cargo(root, &["run", "--package", "tracewright-tests", "--bin", "parity", "--"]);
    command.env("PATH", &tools.path);
    command
}

/// Every operation and random graphs, on the evaluator, IREE, the StableHLO interpreter and XLA.
pub fn differential(root: &Path, graphs: u32) -> Result<(), Error> {
    let tools = setup(root)?;
    let oracle = root.join("tests/oracle");
    let jaxlib = python::install(
        &root.join(".tracewright/interpreter"),
        &oracle.join("interpreter.txt"),
        "jaxlib: about 140 MB, a minute",
    )?;
    let out = empty(root.join(".tracewright/differential"))?;
    let mut compare = cargo(root, &["run", "--package", "tracewright-tests", "--bin", "differential", "--"]);
    compare.arg(graphs.to_string()).arg(&out).env("PATH", &tools.path);
    let jaxlib = jaxlib.command();
    compare.arg(jaxlib.get_program()).arg(oracle.join("answers.py"));
    compare.envs(jaxlib.get_envs().filter_map(|(key, value)| Some((key, value?))));
    step("compare", &mut compare)
}

/// The Python package that runs exports; Hugging Face transformers computed the expected results.
pub fn xla(root: &Path, name: Option<&str>) -> Result<(), Error> {
    let python = jax(root)?;
    let what = ["--package", "tracewright-cli", "--bin", "tracewright"];
    step("build", cargo(root, &["build"]).args(what))?;
    let mut tests = python.command();
    tests.args(["-m", "unittest", "discover", "-s", "tests", "-t", ".", "--verbose"]);
    tests.args(name.iter().flat_map(|name| ["-k", name])).current_dir(root.join("tools/python"));
    step("tests", tests.env("TRACEWRIGHT", built(root).join("tracewright")))
}

/// Installs the pinned version of jax. With jax, the tests run a prompt of each shipped model on two devices.
pub fn jax(root: &Path) -> Result<python::Python, Error> {
    let requirements = root.join("tools/python/requirements.txt");
    python::install(&root.join(".tracewright/xla"), &requirements, "jax: about 200 MB, a minute")
}

fn built(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from).join("debug")
}

/// Into `out`, with a cargo profile and features of the Python package.
pub fn wheel(root: &Path, out: &Path, profile: &str, features: &[&str]) -> Result<PathBuf, Error> {
    let tools = setup(root)?;
    let pins = root.join("tools/xtask/wheel.txt");
    let maturin = python::install(&root.join(".tracewright/maturin"), &pins, "maturin: about 10 MB")?;
    let out = empty(std::path::absolute(out).with_path("find", out)?)?;
    let mut build = Command::new(maturin.bin()[0].join("maturin"));
    build.args(["build", "--locked", "--profile", profile, "--interpreter", "python3", "--out"]).arg(&out);
    build.args(features.iter().flat_map(|feature| ["--features", feature]));
    outside_cargo(&mut build);
    step("wheel", build.current_dir(root.join("tools/python")).env("PATH", &tools.path))?;
    let mut files = fs::read_dir(&out).with_path("read", &out)?.flatten().map(|file| file.path());
    let wheel = files.find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheel.ok_or(Error::NoWheel { folder: out })
}

/// Builds the Python wheel without optimization, installs it into a fresh environment, and runs its tests there.
pub fn test_wheel(root: &Path) -> Result<(), Error> {
    let wheel = wheel(root, &root.join("target/wheel-test"), "dev", &["tested"])?;
    let folder = Scratch::new_in(&env::temp_dir())?;
    // The compiler and NumPy are in the folder of the tools.
    let tools = python::find_packages(&root.join(".tracewright/venv"))?;
    let python = python::environment_with(&folder.path().join("venv"), &wheel, &tools)?;
    let mut tests = Command::new(python);
    tests
        .arg(root.join("tools/python/wheel_tests/test_wheel.py"))
        .arg("--verbose")
        .current_dir(folder.path());
    step("tests of the wheel", tests.env("TRACEWRIGHT_ROOT", root))
}

/// Runs tests of the shim and IREE's runtime with AddressSanitizer.
pub fn sanitize(root: &Path) -> Result<(), Error> {
    let tools = setup(root)?;
    let built = root.join("target/sanitize");
    let mut cargo = cargo_for(
        &printed_by_rustc("host-tuple")?,
        root,
        &["test", "--package", "tracewright-runtime", "--tests"],
        &built,
    );
    for language in ["CFLAGS", "CXXFLAGS"] {
        cargo.env(language, "-fsanitize=address -fno-omit-frame-pointer");
    }
    // It must come before the C library, whose allocator it replaces.
    cargo.env("RUSTFLAGS", "-ldylib=asan").env(ASAN_OPTIONS.0, ASAN_OPTIONS.1);
    cargo.env("PATH", &tools.path);
    step("tests of the runtime under AddressSanitizer", &mut cargo)
}

/// LLVM counts covered code and traces comparisons; stable rustc passes the flags on.
const COUNTED: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

/// On a function that reads untrusted bytes, optimized, with overflow checks. Begins with the inputs of
/// earlier runs.
pub fn fuzz(root: &Path, what: &Fuzz) -> Result<(), Error> {
    let tools = setup(root)?;
    let found = root.join(".tracewright/fuzz").join(&what.target);
    let (corpus, built) = (found.join("corpus"), root.join("target/fuzz"));
    // Readers read files: where the system keeps some in memory, they lie there.
    let memory = Path::new("/dev/shm");
    let temporary = if memory.is_dir() { memory.to_owned() } else { env::temp_dir() };
    let temporary = Scratch::new_in(&temporary)?;
    fs::create_dir_all(&corpus).with_path("create", &corpus)?;
    let host = printed_by_rustc("host-tuple")?;
    // Each target is a program of its own, and all else is built once.
    let program = built.join(&what.target);
    let mut cargo =
        cargo_for(&host, root, &["build", "--package", "tracewright-fuzz", "--profile", "fuzz"], &program);
    cargo.env("CARGO_BUILD_BUILD_DIR", &built).env("TRACEWRIGHT_FUZZ_TARGET", &what.target);
    step("build", cargo.env("PATH", &tools.path).env("RUSTFLAGS", COUNTED))?;
    let mut fuzzer = Command::new(program.join(&host).join("fuzz/tracewright-fuzz"));
    fuzzer.env("TMPDIR", temporary.path()).current_dir(&found);
    fuzzer.arg(format!("-runs={}", what.runs)).arg(format!("-max_total_time={}", what.seconds));
    // By the clock, of which four thousand layers or a template that loops take seconds, and more beside other work.
    fuzzer.args(["-timeout=300", "-rss_limit_mb=4096", "-print_final_stats=1", "-artifact_prefix=./"]);
    step("fuzz", fuzzer.arg("corpus").arg(root.join("tests/fuzz/corpus").join(&what.target)))
}

fn cargo_for(machine: &str, root: &Path, words: &[&str], built: &Path) -> Command {
    let mut cargo = cargo(root, words);
    cargo.args(["--target", machine]).arg("--target-dir").arg(built);
    cargo
}

/// For example `host-tuple`.
pub fn printed_by_rustc(what: &str) -> Result<String, Error> {
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    let output = rustc.args(["--print", what]).output().map_err(|source| start_error(&rustc, source))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn empty(folder: PathBuf) -> Result<PathBuf, Error> {
    if folder.exists() {
        fs::remove_dir_all(&folder).with_path("remove", &folder)?;
    }
    Ok(folder)
}

/// Checks that the C or C++ compiler can be started. CMake uses the compiler that this function checks.
fn compiler(what: &'static str, variable: &str, default: &str) -> Result<(), Error> {
    let program = env::var_os(variable).unwrap_or_else(|| default.into());
    match starts(&program) {
        Ok(()) => Ok(()),
        Err(source) if source.kind() == io::ErrorKind::NotFound => {
            let tried = format!("`{}` is not on PATH", program.to_string_lossy());
            Err(Error::Missing { what, tried, how: HOW_CC })
        }
        Err(source) => Err(start_error(&Command::new(&program), source)),
    }
}

/// Inserts `first` at the beginning of an environment variable's list of folders, and returns the new list.
pub fn added(variable: &str, first: impl Iterator<Item = PathBuf>) -> OsString {
    let old = env::var_os(variable).unwrap_or_default();
    env::join_paths(first.chain(env::split_paths(&old))).unwrap_or(old)
}

/// Returns a command that runs cargo in the checkout. The command uses the same cargo that runs this program.
pub fn cargo(root: &Path, words: &[&str]) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(words).current_dir(root);
    outside_cargo(&mut cargo);
    cargo
}

/// With cargo's variables, build scripts of some dependencies would run again, and everything that needs
/// them.
fn outside_cargo(command: &mut Command) {
    for (name, _) in env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|set| name.to_string_lossy().starts_with(set)) {
            command.env_remove(name);
        }
    }
}
