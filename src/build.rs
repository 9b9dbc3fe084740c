//! From a lowered network and its checkpoint to a compiled module and an archive: what loading, exporting and tests
//! have in common.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use bake::{BakeError, BakeOptions, Baked};
use errors::{FileError, WithPath as _};
use irpa::{Archive, Checkpoint, Storage};
use lower::{LowerError, Module};
use ops::{ElementType, TensorType};
use runtime::{
    CompileError, CompileOptions, Compiled, Compiler, ModuleCache, ParameterData, Parameters, Runtime,
    VmModule,
};
use trace::{Parameter, Trace};

use crate::Lowered;
use crate::footprint::TooLarge;

/// What builds, and who watches.
pub struct BuildTools<'a> {
    /// `iree-compile`.
    pub compiler: &'a Compiler,
    /// The folder for what can be made again, by content: compiled modules and archives.
    pub cache: &'a Path,
    /// Watches, and stops on request.
    pub watch: Option<WatchSteps<'a>>,
}

/// Is told what is being done, and may ask to stop.
pub type WatchSteps<'a> = &'a mut dyn FnMut(BuildStep) -> ControlFlow<()>;

/// What takes long.
#[derive(Clone, Copy, Debug)]
pub enum BuildStep {
    /// The module is compiled.
    Compile,
    /// The archive is written.
    Bake(irpa::Progress),
    /// The network is loaded, which takes no time worth telling.
    Load,
    /// The weights are compared with their hashes.
    Verify(irpa::Progress),
}

/// Why there is no network.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The trace is not one that lowers.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// It would not fit into memory.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// The checkpoint does not fit.
    #[error(transparent)]
    Bake(#[from] BakeError),
    /// A checkpoint or an archive is damaged.
    #[error(transparent)]
    Archive(#[from] irpa::ArchiveError),
    /// The archive is not what the module reads.
    #[error("`{}` does not fit the module: parameter `{key}` is {found}, expected `{expected}`", .path.display())]
    Parameter {
        /// The archive.
        path: PathBuf,
        /// The key.
        key: String,
        /// What the module declares.
        expected: String,
        /// What the archive has.
        found: String,
    },
    /// A file or folder cannot be read or made.
    #[error(transparent)]
    File(#[from] FileError),
    /// The watcher asked to stop.
    #[error("stopped on request")]
    Stopped,
    /// The compiler failed.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// IREE refuses the module.
    #[error(transparent)]
    Runtime(#[from] runtime::RuntimeError),
}

/// A network whose checkpoint fits and whose module is compiled.
pub struct Build<'a, 't> {
    /// What is compiled.
    pub lowered: Lowered,
    /// How it was compiled.
    pub options: CompileOptions,
    /// What became of it.
    pub compiled: Compiled,
    checkpoint: &'a Checkpoint,
    tools: BuildTools<'t>,
}

impl<'a, 't> Build<'a, 't> {
    /// Compares the checkpoint with what the network reads, and compiles the module or takes it from the cache.
    /// `recorded` is the trace that was lowered.
    ///
    /// # Errors
    /// Everything in which the checkpoint differs, before anything slow begins; or why the module does not compile.
    pub fn new(
        lowered: Lowered,
        recorded: &Trace,
        checkpoint: &'a Checkpoint,
        mut tools: BuildTools<'t>,
    ) -> Result<Self, LoadError> {
        lowered.check(checkpoint, recorded)?;
        tools.tell(BuildStep::Compile)?;
        let options = lowered.compile_options(tools.compiler)?;
        let compiled = compile(&lowered.module, tools.compiler, &options, tools.cache)?;
        Ok(Self { lowered, options, compiled, checkpoint, tools })
    }

    /// Writes the archive at `path`.
    ///
    /// # Errors
    /// If it cannot be made or written.
    pub fn bake(&mut self, path: &Path) -> Result<(Archive, Baked), LoadError> {
        let tools = &mut self.tools;
        let mut watch = |progress| tools.watch(BuildStep::Bake(progress));
        let options = BakeOptions { watch: Some(&mut watch), ..BakeOptions::default() };
        let baked = self.lowered.bake(self.checkpoint, path, options)?;
        Ok((Archive::open(path)?, baked))
    }

    /// The archive, baked once and kept in the cache; and what the bake did, if there was one.
    ///
    /// # Errors
    /// If it cannot be made or written.
    pub fn cached_archive(&mut self) -> Result<(Archive, Option<Baked>), LoadError> {
        let folder = self.tools.cache.join("archives");
        fs::create_dir_all(&folder).with_path("create", &folder)?;
        let key = archive_key(self.checkpoint, &self.lowered.module.parameters)?;
        let path = folder.join(format!("{key}.irpa"));
        if let Ok(archive) = Archive::open(&path) {
            return Ok((archive, None));
        }
        if path.is_file() {
            // Damaged, and so of no kind that would be replaced. What cannot be removed is said where it is written.
            let _ = fs::remove_file(&path);
        }
        self.bake(&path).map(|(archive, baked)| (archive, Some(baked)))
    }

    /// Loads the module with its archive.
    ///
    /// # Errors
    /// If they do not fit each other, or IREE refuses the module.
    pub fn load(&mut self, runtime: &Runtime, archive: &Archive) -> Result<VmModule, LoadError> {
        self.tools.tell(BuildStep::Load)?;
        self.lowered.load(runtime, &self.compiled.vmfb, archive)
    }
}

impl Lowered {
    /// How its module is best compiled.
    ///
    /// # Errors
    /// If the compiler does not know the target.
    pub fn compile_options(&self, compiler: &Compiler) -> Result<CompileOptions, CompileError> {
        // Most of the time goes into products with the largest weights.
        let largest = self.module.parameters.iter().max_by_key(|p| p.ty.bytes());
        let element = largest.map_or(ElementType::F32, |p| p.ty.element);
        compiler.options(&self.target, element, largest.is_some_and(Parameter::is_packed))
    }

    /// Loads what its module became, with its archive.
    ///
    /// # Errors
    /// If they do not fit each other, or IREE refuses the module.
    pub fn load(&self, runtime: &Runtime, vmfb: &[u8], archive: &Archive) -> Result<VmModule, LoadError> {
        let expected = self.module.parameters.iter().map(|p| (p.key.as_str(), p.ty.to_string()));
        Ok(VmModule::load(runtime, vmfb, &[map_parameters(archive, expected)?])?)
    }
}

/// Compiles a module, or takes it from the cache.
///
/// # Errors
/// If the compiler fails.
pub fn compile(
    module: &Module,
    compiler: &Compiler,
    options: &CompileOptions,
    cache: &Path,
) -> Result<Compiled, CompileError> {
    let text = runtime::ModuleText { text: &module.text, text_without_locs: &module.text_without_locs };
    runtime::compile(compiler, &text, options, &ModuleCache::new(cache.join("modules")))
}

impl<'a> BuildTools<'a> {
    /// A compiler and a cache, and nobody who watches.
    pub fn new(compiler: &'a Compiler, cache: &'a Path) -> Self {
        Self { compiler, cache, watch: None }
    }

    fn watch(&mut self, step: BuildStep) -> ControlFlow<()> {
        self.watch.as_mut().map_or(ControlFlow::Continue(()), |watch| watch(step))
    }

    fn tell(&mut self, step: BuildStep) -> Result<(), LoadError> {
        match self.watch(step) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(LoadError::Stopped),
        }
    }
}

/// Which archive belongs to a checkpoint: its files, and what is read from them. A file is known by its path, its size
/// and the time of its change, and on Unix by what no rewriting keeps: its number and the time at which the system saw it
/// change. Hashing gigabytes of weights at every start would take longer than loading them.
fn archive_key(checkpoint: &Checkpoint, parameters: &[Parameter]) -> Result<String, LoadError> {
    let mut hasher = blake3::Hasher::new();
    for file in checkpoint.files() {
        let path = file.canonicalize().with_path("read", file)?;
        let metadata = path.metadata().with_path("read", file)?;
        let changed = metadata.modified().with_path("read", file)?;
        let changed = changed.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        hasher.update(format!("{}\0{}\0{}\0", path.display(), metadata.len(), changed.as_nanos()).as_bytes());
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt as _;
            let seen =
                [metadata.dev(), metadata.ino(), metadata.ctime() as u64, metadata.ctime_nsec() as u64];
            for number in seen {
                hasher.update(&number.to_le_bytes());
            }
        }
    }
    for parameter in parameters {
        let mut recipe = String::new();
        parameter.recipe.iter().for_each(|made| made.print(&mut recipe));
        hasher.update(format!("{}\0{}\0{recipe}\0", parameter.key, parameter.ty).as_bytes());
    }
    Ok(hasher.finalize().to_hex()[..32].to_owned())
}

/// The parameters of an archive, mapped: nothing is copied.
///
/// # Errors
/// If the archive lacks a parameter, or has it with another type: IREE would not notice.
pub fn map_parameters<'a>(
    archive: &Archive,
    expected: impl Iterator<Item = (&'a str, String)>,
) -> Result<Parameters, LoadError> {
    for (key, expected) in expected {
        let found = archive.get(key).map(|entry| entry.ty.as_ref().map(TensorType::to_string));
        let found = match found {
            Some(Some(found)) if found == expected => continue,
            Some(Some(found)) => format!("`{found}`"),
            Some(None) => "of no known type".into(),
            None => "missing".into(),
        };
        return Err(LoadError::Parameter { path: archive.path().into(), key: key.into(), expected, found });
    }
    let entry = |entry: &irpa::Entry| {
        let storage = match &entry.storage {
            Storage::Data(range) => ParameterData::Range(range.clone()),
            Storage::Splat { pattern, length } => {
                ParameterData::Splat { pattern: pattern.clone(), length: *length }
            }
        };
        (entry.name.clone(), storage)
    };
    Ok(Parameters {
        scope: "model".into(),
        bytes: archive.bytes(),
        entries: archive.entries().iter().map(entry).collect(),
    })
}
