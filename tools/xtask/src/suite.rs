//! Runs the test suite, in the order format, lint, tests, documentation. Cargo builds each crate once for as many
//! steps as possible.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Instant;

use clap::ValueEnum as _;
use errors::{WithCauses, WithPath as _};

use crate::chores::{ASAN_OPTIONS, Tools, added, cargo, jax, printed_by_rustc, setup, test_wheel, xla_cpu};
use crate::error::Error;
use crate::programs::{self, TestProgram};
use crate::real::RealModel;
use crate::step::{human, starts, step};
use crate::{clients, python, rustdoc, vulkan};

/// Run a second time for the processor in `TRACEWRIGHT_TEST_TARGET`: module text. `ops_iree`, `batch`, `embedding` and
/// `precision` would take too long.
const COMPILING: &[&str] = &["lowered_iree"];

/// Test files that run a second time only with `--long`: every composite operation, and whole networks.
const COMPILING_LONG: &[&str] = &["composites", "token_exact"];

/// Skipped for processors without kernels, where the compiler needs a minute per model. Smaller models cover
/// the same operations.
const SLOW_WITHOUT_KERNELS: &[&str] =
    &["the_shipped", "quantized_weights", "prompts_of_any_length", "converted_and_reported"];

/// The shim and IREE's runtime; not tests that kill the compiler.
const CALLING_C: &[&str] = &["call", "load", "parameters"];

/// Packages with IREE as a feature, without it. The others keep the features of the whole workspace, so that
/// nothing else is built again.
const WITHOUT_IREE: [&str; 9] = [
    "--package=tracewright",
    "--package=tracewright-cli",
    "--package=tracewright-hub",
    "--package=tracewright-irpa",
    "--package=tracewright-targets",
    "--package=xtask",
    "--features=tracewright/schema",
    "--features=tracewright-targets/schema",
    "--features=xtask/whole",
];

const LINTS: [&str; 2] = ["-D", "warnings"];

/// Set by `.ci/run`, so that cargo compiles each crate with Clippy's compiler, which also lints.
const WRAPPER: &str = "RUSTC_WORKSPACE_WRAPPER";

fn builds_lint() -> bool {
    env::var_os(WRAPPER).is_some_and(|path| Path::new(&path).file_stem() == Some("clippy-driver".as_ref()))
}

/// Test programs whose modules run as programs of their own. The modules share a program to be linked once.
const SHARED: [&str; 4] = ["generation", "graphs", "networks", "plugins"];

/// Fewer features than this machine, for other code, and the tests to skip. Without bf16 instructions,
/// weights are not packed; without AVX2, multiplications and additions are not fused.
fn lower_level() -> Option<(&'static str, &'static [&'static str])> {
    #[cfg(target_arch = "x86_64")]
    return match () {
        () if is_x86_feature_detected!("avx512f") => Some(("x86-64-v3", &[])),
        () if is_x86_feature_detected!("avx2") => Some(("x86-64-v2", SLOW_WITHOUT_KERNELS)),
        () => None,
    };
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("bf16").then_some(("generic", &[]));
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    None
}

/// Drivers, a model and clients, which only the tests use.
struct Peers {
    driver: vulkan::Variables,
    has_plugin: bool,
    has_jax: bool,
    /// With the reason.
    left_out: Vec<String>,
}

impl Peers {
    fn install(root: &Path, long: bool) -> Result<Self, Error> {
        let mut left_out = vec![];
        let mut found = |what: &str, result: Result<(), Error>| {
            result.inspect_err(|error| left_out.push(format!("{what}: {}", WithCauses(error)))).is_ok()
        };
        let unpacked = long && found("AArch64", unpack_emulator(root));
        emulated(root, unpacked)?;
        let driver = vulkan::install(root);
        let (driver, result) =
            driver.map_or_else(|error| (Vec::new(), Err(error)), |driver| (driver, Ok(())));
        found("Vulkan", result);
        for model in RealModel::value_variants() {
            if long || *model != RealModel::Qwen25Coder {
                found(model.name(), model.install(root).map(drop));
            }
        }
        found("clients of `serve`", clients::install(root));
        if long {
            found("lm-eval", clients::install_lm_eval(root));
        }
        let has_plugin = found("XLA from Rust", xla_cpu(root).map(drop));
        let has_jax = found("XLA", jax(root).map(drop));
        Ok(Self { driver, has_plugin, has_jax, left_out })
    }
}

/// The packages and features of most steps.
const ALL: [&str; 2] = ["--workspace", "--all-features"];

/// Runs the whole test suite. If `long` is set, some tests cover more configurations and longer sequences.
pub fn test(root: &Path, long: bool) -> Result<(), Error> {
    let start = Instant::now();
    // Later, the system calls this path deleted: cargo builds this program again, with other features.
    let xtask = env::current_exe().with_path("find", Path::new("xtask"))?;
    let tools = setup(root)?;
    // What only the tests use is downloaded while cargo builds.
    let (built, peers) = thread::scope(|scope| {
        let peers = scope.spawn(|| Peers::install(root, long));
        let built = check_and_build(root, &tools);
        (built, peers.join().unwrap_or_else(|panic| resume_unwind(panic)))
    });
    let (mut programs, mut peers) = (built?, peers?);
    programs.extend(on_older_processor(&programs, long));
    match address_sanitizer() {
        Some(library) => programs.extend(watched(root, &programs, &library)),
        None => {
            peers.left_out.push("memory of the runtime: the C compiler has no `libasan` of its own".into());
        }
    }
    let (variable, libraries) = libraries_of_rustc(&peers.driver)?;
    programs::run("tests", programs::AT_ONCE, programs, &|program: &Path| {
        let mut command = Command::new(program);
        // A test of messages of the compiler wants no lints.
        command.env_remove(WRAPPER);
        command.envs(peers.driver.iter().cloned()).env("PATH", &tools.path).env(variable, &libraries);
        command.envs(peers.has_plugin.then_some(("TRACEWRIGHT_TEST_XLA", "needed")));
        command.envs(long.then_some(("TRACEWRIGHT_TEST_LONG", "1"))).env(ASAN_OPTIONS.0, ASAN_OPTIONS.1);
        command
    })?;
    let cargo = |words: &[&str]| {
        let mut command = cargo(root, words);
        command.env("PATH", &tools.path).envs(peers.driver.iter().cloned());
        command
    };
    step("documentation and its examples", rustdoc::stand_in(cargo(&["test", "--doc"]).args(ALL), &xtask)?)?;
    let mut without_iree = cargo(&["test", "--lib", "--test", "plain"]);
    let mut programs = programs::build("programs without IREE", without_iree.args(WITHOUT_IREE))?;
    // The packages in which IREE is a feature; one program of them has nearly all tests.
    programs.retain(|program| [root, &root.join("tools/cli")].contains(&&*program.folder));
    programs::run("tests without IREE", 1, programs, &|program: &Path| Command::new(program))?;
    step("examples in documentation without IREE", cargo(&["test", "--doc"]).args(WITHOUT_IREE))?;
    if let Err(error) = test_wheel(root) {
        match error {
            Error::Failed { .. } | Error::Interrupted => return Err(error),
            error => peers.left_out.push(format!("the Python wheel: {}", WithCauses(&error))),
        }
    }
    peers.left_out.push("Vulkan beyond a prompt of a shipped model: `cargo xtask test --vulkan`".into());
    if peers.has_jax {
        let what = "XLA beyond a prompt of each shipped model on two devices: `cargo xtask xla`";
        peers.left_out.push(what.into());
    }
    peers.left_out.iter().for_each(|what| eprintln!("left out: {what}"));
    eprintln!("everything passed in {}", human(start.elapsed()));
    Ok(())
}

fn check_and_build(root: &Path, tools: &Tools) -> Result<Vec<TestProgram>, Error> {
    let cargo = |words: &[&str]| {
        let mut command = cargo(root, words);
        command.env("PATH", &tools.path);
        command
    };
    check_format(root)?;
    if !builds_lint() {
        step("lint", cargo(&["clippy"]).args(ALL).args(["--all-targets", "--"]).args(LINTS))?;
    }
    let programs = programs::build("tests' programs", cargo(&["test"]).args(ALL))?;
    let programs = programs.into_iter().flat_map(|program| {
        if SHARED.contains(&&*program.name) {
            program.by_module(&|path| Command::new(path))
        } else {
            vec![program]
        }
    });
    // What needs no IREE of the command line is tested without.
    Ok(programs.filter(|program| program.name != "plain").collect())
}

/// The variable for libraries, with rustc's: tests of code that rustc runs link them.
fn libraries_of_rustc(driver: &[(&'static str, PathBuf)]) -> Result<(&'static str, OsString), Error> {
    let variable = if env::consts::OS == "macos" { "DYLD_FALLBACK_LIBRARY_PATH" } else { "LD_LIBRARY_PATH" };
    let given = driver.iter().find(|(name, _)| *name == variable).map(|(_, folders)| folders.clone());
    let libraries = [Some(printed_by_rustc("target-libdir")?.into()), given];
    Ok((variable, added(variable, libraries.into_iter().flatten())))
}

/// Those that run a second time.
fn on_older_processor(programs: &[TestProgram], long: bool) -> Vec<TestProgram> {
    let Some((level, skipped)) = lower_level() else {
        eprintln!("tests for an older processor: this machine has the oldest that the tests know");
        return vec![];
    };
    let wanted = [COMPILING, if long { COMPILING_LONG } else { &[] }].concat();
    let compiling = programs.iter().filter(|program| wanted.contains(&&*program.name));
    compiling.map(|program| program.with(("TRACEWRIGHT_TEST_TARGET", level), skipped)).collect()
}

/// Returns the programs that run a second time, with AddressSanitizer.
fn watched(root: &Path, programs: &[TestProgram], library: &str) -> Vec<TestProgram> {
    let folder = root.join("run/runtime");
    let is_calling = |program: &&TestProgram| program.folder == folder && CALLING_C.contains(&&*program.name);
    let calling = programs.iter().filter(is_calling);
    calling.map(|program| program.with(("LD_PRELOAD", library), &[])).collect()
}

/// IREE's runtime and kernels for AArch64 in QEMU; without it, tests on x86-64 only compile the kernels.
fn emulated(root: &Path, unpacked: bool) -> Result<(), Error> {
    let emulator =
        unpacked || ["qemu-aarch64", "qemu-aarch64-static"].into_iter().any(|name| starts(name).is_ok());
    if emulator {
        let requirements = root.join("tests/oracle/aarch64.txt");
        let dir = root.join(".tracewright/aarch64");
        python::install_for(Some("manylinux_2_28_aarch64"), &dir, &requirements, "16 MB")?;
    }
    Ok(())
}

/// QEMU and libraries for AArch64 from Debian's packages (64 MB), in the project's own folder.
fn unpack_emulator(root: &Path) -> Result<(), Error> {
    const PACKAGES: [&str; 4] =
        ["qemu-user-static", "libc6-arm64-cross", "libgcc-s1-arm64-cross", "libstdc++6-arm64-cross"];
    const WANTED: [&str; 2] = ["usr/bin/qemu-aarch64-static", "usr/aarch64-linux-gnu"];
    let dir = root.join(".tracewright/qemu");
    if WANTED.iter().all(|wanted| dir.join(wanted).exists()) {
        return Ok(());
    }
    let packages = dir.join("packages");
    let all = packages.join("all");
    for folder in [&all, &dir.join("usr/bin")] {
        fs::create_dir_all(folder).with_path("create", folder)?;
    }
    step("QEMU's packages", Command::new("apt-get").arg("download").args(PACKAGES).current_dir(&packages))?;
    for file in fs::read_dir(&packages).with_path("read", &packages)?.flatten().map(|file| file.path()) {
        if file.is_file() {
            step("QEMU", Command::new("dpkg").arg("-x").arg(&file).arg(&all))?;
        }
    }
    for wanted in WANTED {
        fs::rename(all.join(wanted), dir.join(wanted)).with_path("move", &all.join(wanted))?;
    }
    Ok(fs::remove_dir_all(&packages).with_path("remove", &packages)?)
}

/// Checks the formatting of the code. The function also checks the modules that `families!` and
/// `steps!` declare, because `cargo fmt` does not find these modules.
fn check_format(root: &Path) -> Result<(), Error> {
    step("format", &mut cargo(root, &["fmt", "--all", "--check"]))?;
    let mut files = Vec::new();
    for folder in ["models/src", "run/generate/src/sample"].map(|folder| root.join(folder)) {
        let entries = fs::read_dir(&folder).with_path("read", &folder)?.flatten().map(|file| file.path());
        files.extend(entries.filter(|path| path.extension().is_some_and(|extension| extension == "rs")));
    }
    step("format of lists", Command::new("rustfmt").args(["--check", "--edition", "2024"]).args(files))
}

/// Runs the tests of all packages that need no tools except cargo.
pub fn test_fast(root: &Path) -> Result<(), Error> {
    let start = Instant::now();
    check_format(root)?;
    let programs = programs::build("tests' programs", &mut cargo(root, &["test"]))?;
    let (variable, libraries) = libraries_of_rustc(&[])?;
    programs::run("tests", programs::AT_ONCE, programs, &|program: &Path| {
        let mut command = Command::new(program);
        command.env(variable, &libraries);
        command
    })?;
    step("examples in documentation", &mut cargo(root, &["test", "--doc"]))?;
    eprintln!("the fast part passed in {}", human(start.elapsed()));
    Ok(())
}

/// gcc's, for double frees and leaks. On some systems, `libasan.so` is a linker script.
fn address_sanitizer() -> Option<String> {
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let output = Command::new(compiler).arg("-print-file-name=libasan.so").output().ok()?;
    let library = String::from_utf8(output.stdout).ok()?.trim_end().to_owned();
    fs::read(&library).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF")).then_some(library)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns all dependencies with their features, as `cargo test` with these arguments builds them.
    fn dependencies(folder: &Path, arguments: &[&str]) -> BTreeSet<String> {
        let mut tree = cargo(folder, &["tree", "--locked", "--prefix=none", "--format={p} {f}"]);
        let output = tree.args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lines = String::from_utf8(output.stdout).unwrap();
        let lines = lines.lines().map(|line| line.trim_end_matches(" (*)").trim_end());
        // The packages of the workspace have their paths in the list.
        lines.filter(|line| !line.is_empty() && !line.contains("(/")).map(str::to_owned).collect()
    }

    /// With other features, cargo would build a package and all that depends on it once more, for minutes.
    #[test]
    fn dependencies_are_built_once_for_all_steps() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let edges = "--edges=normal,build,dev";
        let all = dependencies(&root, &[&ALL[..], &[edges]].concat());
        for (folder, arguments) in [
            (root.clone(), [&WITHOUT_IREE[..], &[edges]].concat()),
            (root.join("tools/python"), vec!["--features=tested", "--edges=normal,build"]),
        ] {
            let dependencies = dependencies(&folder, &arguments);
            let others: Vec<_> = dependencies.difference(&all).collect();
            assert!(
                dependencies.len() > 100 && others.is_empty(),
                "{arguments:?}: add the missing features to `tools/xtask/Cargo.toml` or `tools/python/Cargo.toml`: {others:?}"
            );
        }
    }
}
