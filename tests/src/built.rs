//! A lowered network made ready to be called, with what tests want to know about it.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use tracewright::bake::{BakeOptions, Baked};
use tracewright::irpa::{Archive, Checkpoint};
use tracewright::lower::Module;
use tracewright::runtime::{CompileOptions, Compiler, Device, Runtime, VmModule};
use tracewright::targets::Target;
use tracewright::{Lowered, load};

/// What keeps a comparison from being made.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A module that is compiled, baked and loaded.
pub struct Built {
    /// What can be called.
    pub program: VmModule,
    /// The device.
    pub runtime: Runtime,
    /// The module it was compiled from.
    pub module: Module,
    /// Its weights.
    pub archive: Archive,
    /// What the bake did.
    pub baked: Baked,
    /// How the module was compiled.
    pub options: CompileOptions,
    _folder: tempfile::TempDir,
}

impl Built {
    /// Bakes, compiles and loads. The module is kept in the cache, the archive is not.
    pub fn new(lowered: Lowered, checkpoint: &Checkpoint, target: &Target) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("model.irpa");
        let baked = lowered.bake(checkpoint, &path, BakeOptions::default())?;
        let archive = Archive::open(&path)?;
        let module = lowered.module;

        let compiler = compiler()?;
        let options = load::compile_options(&module, &compiler, target)?;
        // One at a time: several tests want the same module, and the second finds it in the cache.
        static COMPILING: Mutex<()> = Mutex::new(());
        let compiling = COMPILING.lock();
        let compiled = load::compile(&module, &compiler, &options, &repository().join(".tracewright/cache"))?;
        drop(compiling);

        // The calling thread alone: these models are too small to share.
        let runtime = Runtime::new(Device::LocalSync)?;
        let program = load::program(&runtime, &compiled.vmfb, &archive, &module.parameters)?;
        Ok(Self { program, runtime, module, archive, baked, options, _folder: folder })
    }
}

/// The compiler that `cargo xtask setup` installs, or else the one on PATH.
pub fn compiler() -> Result<Compiler> {
    let environment = repository().join(".tracewright/venv");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = ["bin", "Scripts"].map(|folder| environment.join(folder)).into_iter();
    Ok(Compiler::find(None, &folders.chain(std::env::split_paths(&path)).collect::<Vec<_>>())?)
}

/// The checkout.
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}
