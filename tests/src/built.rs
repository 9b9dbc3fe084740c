//! A lowered network made ready to be called, with what tests want to know about it.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use tracewright::Lowered;
use tracewright::bake::Baked;
use tracewright::build::{Build, BuildTools};
use tracewright::irpa::{Archive, Checkpoint};
use tracewright::lower::Module;
use tracewright::runtime::{CompileOptions, Compiler, Device, Runtime, VmModule};
use tracewright::trace::Trace;

/// The error that prevents a comparison.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A module that is compiled, baked and loaded.
pub struct Built {
    pub program: VmModule,
    pub runtime: Runtime,
    /// The module it was compiled from.
    pub module: Module,
    pub archive: Archive,
    pub baked: Baked,
    /// How the module was compiled.
    pub options: CompileOptions,
    _folder: tempfile::TempDir,
}

impl Built {
    /// Compiles, bakes and loads; `recorded` is the trace that was lowered. The module is kept in the cache, the archive
    /// is not.
    pub fn new(lowered: Lowered, recorded: &Trace, checkpoint: &Checkpoint, device: Device) -> Result<Self> {
        let (compiler, cache) = (compiler()?, repository().join(".tracewright/cache"));
        // One at a time: several tests want the same module, and the second finds it in the cache.
        static COMPILING: Mutex<()> = Mutex::new(());
        let compiling = COMPILING.lock();
        let mut build = Build::new(lowered, recorded, checkpoint, BuildTools::new(&compiler, &cache))?;
        drop(compiling);

        let folder = tempfile::tempdir()?;
        let (archive, baked) = build.bake(&folder.path().join("model.irpa"))?;
        let runtime = Runtime::new(device)?;
        let program = build.instantiate(&runtime, &archive)?;
        let Build { lowered, options, .. } = build;
        Ok(Self { program, runtime, module: lowered.module, archive, baked, options, _folder: folder })
    }
}

/// The compiler that `cargo xtask setup` installs, or else the one on PATH. It is asked for its version once.
pub fn compiler() -> Result<Compiler> {
    static FOUND: OnceLock<Compiler> = OnceLock::new();
    if let Some(compiler) = FOUND.get() {
        return Ok(compiler.clone());
    }
    let environment = repository().join(".tracewright/venv");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = ["bin", "Scripts"].map(|folder| environment.join(folder)).into_iter();
    let compiler = Compiler::find(None, &folders.chain(std::env::split_paths(&path)).collect::<Vec<_>>())?;
    compiler.version()?;
    Ok(FOUND.get_or_init(|| compiler).clone())
}

pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// A file or folder of the Python packages that `cargo xtask` has installed into the folder `name` of `.tracewright`.
pub fn installed(name: &str, path: &str) -> Option<PathBuf> {
    let pythons = std::fs::read_dir(repository().join(".tracewright").join(name).join("lib"));
    let pythons = pythons.into_iter().flatten().flatten();
    pythons.map(|python| python.path().join("site-packages").join(path)).find(|path| path.exists())
}

/// XLA's plugin for the CPU that `cargo xtask setup --xla` installs. The suite installs it and sets the variable, so a
/// test without it fails there. By hand it passes unseen.
pub fn plugin() -> Option<PathBuf> {
    let pythons = std::fs::read_dir(repository().join(".tracewright/xla-cpu/lib")).into_iter().flatten();
    let folders = pythons.flatten().map(|python| python.path().join("site-packages"));
    let found = tracewright::pjrt::find_plugin("cpu", &folders.collect::<Vec<_>>());
    assert!(
        found.is_ok() || std::env::var_os("TRACEWRIGHT_TEST_XLA").is_none(),
        "XLA's plugin is not installed; `cargo xtask setup --xla` installs it"
    );
    found.ok()
}

/// The processes that this one has started and that still run.
pub fn children() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    children.filter(|list| !list.trim().is_empty()).collect()
}
