//! Builds static libraries from the C shim and from the parts of IREE that the shim calls.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

const MINIMUM_CMAKE: (u32, u32) = (3, 26);

/// The version of `eerie-sys` in Cargo.toml. The constant is necessary because a build script
/// cannot read the versions in Cargo.toml.
const CARRIER: &str = "=0.5.0";

/// The name of an environment variable that contains the path of a folder. If the variable contains the path
/// of a folder, the build script links the libraries in the folder instead of building the libraries again.
/// An earlier build has stored its libraries in the folder `target/…/build/tracewright-runtime-…/out/native`.
const BUILT: &str = "TRACEWRIGHT_NATIVE";

/// The name of an environment variable for builds with Clippy's compiler whose programs also run.
const LINKED: &str = "TRACEWRIGHT_LINT_AND_LINK";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=native");
    println!("cargo:rerun-if-env-changed=DOCS_RS");
    println!("cargo:rerun-if-env-changed={BUILT}");
    println!("cargo:rerun-if-env-changed={LINKED}");
    println!("cargo:rustc-check-cfg=cfg(has_cuda)");
    // Documentation is made where nothing can be compiled but Rust; neither it nor a lint links anything.
    let wrapper = env::var("RUSTC_WORKSPACE_WRAPPER").unwrap_or_default();
    let lints = Path::new(&wrapper).file_stem().is_some_and(|name| name == "clippy-driver");
    let links = env::var_os(LINKED).is_some();
    if (lints && !links) || env::var_os("DOCS_RS").is_some() {
        return;
    }
    if let Err(message) = build() {
        eprintln!("error: {message}");
        exit(1);
    }
}

fn build() -> Result<(), String> {
    let package = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let has = |feature: &str| env::var_os(format!("CARGO_FEATURE_{feature}")).is_some();
    // NVIDIA has no driver for other systems.
    let system = variable("CARGO_CFG_TARGET_OS")?;
    let cuda = has("CUDA") && ["linux", "windows"].contains(&system.as_str());
    if cuda {
        println!("cargo:rustc-cfg=has_cuda");
    }
    let drivers = [("vulkan", has("VULKAN")), ("cuda", cuda)];
    let drivers: Vec<&str> = drivers.into_iter().filter_map(|(name, has)| has.then_some(name)).collect();
    let sources = sources(&package.join("native"))?;
    let folder = match env::var_os(BUILT).map(PathBuf::from) {
        Some(folder) => {
            reusable(&folder, &sources, &drivers)?;
            folder
        }
        None => {
            let folder = PathBuf::from(variable("OUT_DIR")?).join("native");
            compile(&package, &folder, &drivers)?;
            write(&folder.join(SOURCES), &sources)?;
            write(&folder.join(DRIVERS), &drivers.join(" "))?;
            folder
        }
    };
    for (inner, library) in
        [("", "tracewright_native"), ("iree/build_tools/third_party/flatcc", "flatcc_parsing")]
    {
        // Generators with several configurations build into a folder per configuration.
        println!("cargo:rustc-link-search=native={}", folder.join(inner).display());
        println!("cargo:rustc-link-search=native={}", folder.join(inner).join("Release").display());
        println!("cargo:rustc-link-lib=static={library}");
    }
    Ok(())
}

/// The name of a file that records the sources of a build. The file contains the text of the shim's
/// files, and the version of the package that contains IREE.
const SOURCES: &str = "tracewright-sources.txt";

/// The name of a file that lists the IREE drivers in a build.
const DRIVERS: &str = "tracewright-drivers.txt";

fn sources(native: &Path) -> Result<String, String> {
    let read = |name: &str| {
        let path = native.join(name);
        fs::read_to_string(&path).map_err(|e| format!("cannot read `{}`: {e}", path.display()))
    };
    ["CMakeLists.txt", "shim.h", "shim.c"]
        .iter()
        .try_fold(CARRIER.to_owned(), |all, name| Ok(all + &read(name)?))
}

/// Checks that a folder contains libraries that were built from the current sources with the
/// required drivers.
fn reusable(folder: &Path, sources: &str, drivers: &[&str]) -> Result<(), String> {
    let read = |name: &str| {
        let path = folder.join(name);
        let advice =
            format!("{BUILT} names a folder that this package's build script filled: `…/out/native`");
        fs::read_to_string(&path).map_err(|e| format!("cannot read `{}`: {e}; {advice}", path.display()))
    };
    if read(SOURCES)? != *sources {
        return Err(format!("what {BUILT} names, `{}`, was built from other sources", folder.display()));
    }
    let there = read(DRIVERS)?;
    match drivers.iter().find(|driver| !there.split(' ').any(|name| name == **driver)) {
        Some(driver) => {
            Err(format!("what {BUILT} names, `{}`, has no driver for {driver}", folder.display()))
        }
        None => Ok(()),
    }
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("cannot write `{}`: {e}", path.display()))
}

fn compile(package: &Path, out: &Path, drivers: &[&str]) -> Result<(), String> {
    let source = iree_source(&PathBuf::from(variable("OUT_DIR")?))?;
    // `cargo xtask demo` installs cmake alone first, and installs into `venv` while this script runs.
    wait_for_installation(&package.join("../../.tracewright/cmake.lock"))?;
    let scripts = if cfg!(windows) { "Scripts" } else { "bin" };
    let folders = ["cmake", "venv"].map(|name| package.join("../../.tracewright").join(name).join(scripts));
    let tools = folders.iter().find(|folder| find(folder, "cmake").is_some()).unwrap_or(&folders[1]);
    let cmake = find(tools, "cmake").unwrap_or_else(|| "cmake".into());
    check_version(&cmake)?;

    let mut configure = Command::new(&cmake);
    configure.arg("-S").arg(package.join("native")).arg("-B").arg(out);
    configure.arg(format!("-DIREE_SOURCE={}", source.display()));
    configure.args(["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_POSITION_INDEPENDENT_CODE=ON"]);
    // If cargo doesn't optimize this crate, the C compiler doesn't optimize IREE either, because most time of a
    // call passes in the compiled model.
    let hurried = variable("OPT_LEVEL")? == "0";
    if hurried && variable("CARGO_CFG_TARGET_ENV")? != "msvc" {
        configure.arg("-DCMAKE_C_FLAGS_RELEASE=-O0 -DNDEBUG").arg("-DCMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG");
    }
    let has = |driver: &str| drivers.contains(&driver);
    configure.arg(format!("-DTW_VULKAN={}", if has("vulkan") { "ON" } else { "OFF" }));
    configure.arg(format!("-DTW_CUDA={}", if has("cuda") { "ON" } else { "OFF" }));
    if has("cuda") {
        let headers = cuda_headers(package)?;
        // What IREE calls a toolkit: a folder with `include`. The library for device code, which only its compiler reads,
        // must be a file that exists.
        configure.env("IREE_CUDA_DEPS_DIR", &headers);
        configure.arg(format!("-DCUDAToolkit_ROOT={}", headers.display()));
        configure.arg(format!("-DIREE_CUDA_LIBDEVICE_PATH={}", headers.join("include/cuda.h").display()));
    }
    if let Some(ninja) = find(tools, "ninja").filter(|_| !cfg!(windows)) {
        configure.args(["-G", "Ninja"]).arg(format!("-DCMAKE_MAKE_PROGRAM={}", ninja.display()));
    }
    // What an earlier build left may be of another folder or another generator.
    run(&mut configure).or_else(|_| run(configure.arg("--fresh")))?;
    let jobs = variable("NUM_JOBS")?;
    let target = ["--config", "Release", "--target", "tracewright_native", "--parallel", &jobs];
    run(Command::new(&cmake).arg("--build").arg(out).args(target)).map(drop)
}

/// Returns the folder with IREE's source code, which is in the package `eerie-sys` of cargo's
/// registry. To find the package `eerie-sys`, the function runs `cargo metadata` on a temporary
/// package that depends only on `eerie-sys`. The manifest of this crate is not suitable for
/// `cargo metadata`, because other dependencies of the crate may be unavailable.
fn iree_source(out: &Path) -> Result<PathBuf, String> {
    let folder = out.join("carrier");
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::create_dir_all(&folder)
            .and_then(|()| fs::write(&path, text))
            .map_err(|e| format!("cannot write `{}`: {e}", path.display()))
    };
    write("lib.rs", "")?;
    write(
        "Cargo.toml",
        &format!(
            "[package]\nname = \"carrier\"\nedition = \"2024\"\n[lib]\npath = \"lib.rs\"\n[workspace]\n\
             [dependencies]\neerie-sys = {{ version = \"{CARRIER}\", default-features = false }}\n"
        ),
    )?;
    // It is on this machine: cargo fetched it to build this package.
    let mut command = Command::new(variable("CARGO")?);
    command.args(["metadata", "--format-version=1", "--offline"]).current_dir(&folder);
    let metadata = run(&mut command)?;
    // A JSON parser would be this script's only dependency, and with a dependency the place of the
    // build, and so the minutes it takes, would change with what else is built.
    let manifests = metadata.split("\"manifest_path\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    let mut folders = manifests.map(|path| PathBuf::from(path.replace("\\\\", "\\")).with_file_name(""));
    let is_carrier = |folder: &PathBuf| {
        folder.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("eerie-sys"))
    };
    let folder = folders.find(is_carrier).ok_or("`cargo metadata` does not list the package `eerie-sys`")?;
    Ok(folder.join("iree"))
}

/// Returns a folder whose subfolder `include` contains `cuda.h`. The folder is part of a CUDA
/// toolkit, or was installed by `cargo xtask setup`.
fn cuda_headers(package: &Path) -> Result<PathBuf, String> {
    println!("cargo:rerun-if-env-changed=CUDA_PATH");
    // `lib/python3.13` in a virtual environment, `lib/python3` in a plain folder.
    let versions = fs::read_dir(package.join("../../.tracewright/cuda/lib")).into_iter().flatten().flatten();
    let own = versions.map(|version| version.path().join("site-packages/nvidia/cu13"));
    let toolkit = env::var_os("CUDA_PATH").map(PathBuf::from);
    let mut folders = own.chain(toolkit).chain([PathBuf::from("/usr/local/cuda")]);
    folders.find(|folder| folder.join("include/cuda.h").is_file()).ok_or_else(|| {
        "the feature `cuda` needs `cuda.h`; run `cargo xtask setup`, which unpacks it into the project's own folder, or name \
         the folder of NVIDIA's toolkit in CUDA_PATH"
            .into()
    })
}

/// Waits while `cargo xtask demo` installs cmake. During the installation, the file `lock` is locked.
fn wait_for_installation(lock: &Path) -> Result<(), String> {
    match File::open(lock) {
        Ok(file) => file.lock_shared().map_err(|e| format!("cannot lock `{}`: {e}", lock.display())),
        Err(_) => Ok(()),
    }
}

fn check_version(cmake: &Path) -> Result<(), String> {
    let advice = "run `cargo xtask setup`, which installs it into the project's own folder";
    let (major, minor) = MINIMUM_CMAKE;
    let text = run(Command::new(cmake).arg("--version"))
        .map_err(|e| format!("cmake {major}.{minor} or newer is needed; {advice} ({e})"))?;
    let version = text.split_whitespace().nth(2).unwrap_or_default();
    let mut numbers = version.split('.').map(|n| n.parse().unwrap_or(0));
    if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < MINIMUM_CMAKE {
        let found = cmake.display();
        return Err(format!("`{found}` is version {version}, but {major}.{minor} is needed; {advice}"));
    }
    Ok(())
}

fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let path = folder.join(name).with_extension(env::consts::EXE_EXTENSION);
    path.is_file().then_some(path)
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|_| format!("cargo did not set `{name}`"))
}

/// Runs the command and returns its output. If the command fails, the error contains the whole
/// output of the command.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("cannot run {command:?}: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    Err(format!("{command:?} failed: {}\n{text}{}", output.status, String::from_utf8_lossy(&output.stderr)))
}
