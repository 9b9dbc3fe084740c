//! Finds and runs `iree-compile`. This Rust module also creates the flags for the compiler, and
//! parses the compiler's messages.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use errors::{FileError, Place, WithPath as _};
use files::Scratch;
use ops::ElementType;
use targets::{Backend, DeviceKind, Numerics, Target};

use crate::child::{self, Stopped};
use crate::error::Status;

/// Has `iree-compile`, in the version of IREE's runtime.
pub const WHEEL: &str = "iree-base-compiler==3.13.0";

/// The folder with the compiler.
const IN_WHEEL: &str = "iree/compiler/_mlir_libs";

/// The compiler `iree-compile`. The compiler runs as a child process, because an invalid target
/// aborts the process of the compiler.
///
/// ```no_run
/// use tracewright_runtime::{CompileError, Compiler};
///
/// let compiler = Compiler::find(None, &["venv/bin".into()])?;
/// println!("{}", compiler.version()?);
/// # Ok::<(), CompileError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Compiler {
    pub path: PathBuf,
    /// For one compilation.
    pub timeout: Duration,
    /// A flag that another thread sets to end a running compilation.
    pub interrupt: Option<Arc<AtomicBool>>,
    /// A second flag, with which a caller ends the compilations that the caller started.
    stop: Option<Arc<AtomicBool>>,
    /// Kept, because starting the compiler takes time.
    version: OnceLock<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    #[error(
        "Tracewright found no compiler `iree-compile` {}; install the compiler with `pip install {WHEEL}`, or name its path",
        searched(places)
    )]
    NotFound { places: Vec<PathBuf> },
    #[error("cannot run `{}`", path.display())]
    Spawn { path: PathBuf, source: io::Error },
    /// It prints no version of `iree-compile`.
    #[error("`{}` is not `iree-compile`: the program answers `--version` with `{answer}`", path.display())]
    NotACompiler { path: PathBuf, answer: String },
    #[error(
        "`iree-compile` did not end within {} s and was stopped (its log is `{}`); raise the time limit",
        limit.as_secs_f64(), log.display()
    )]
    TimedOut { limit: Duration, log: PathBuf },
    #[error("the compilation was interrupted")]
    Interrupted,
    /// For example by the system, because it crashed or memory is full.
    #[error("`iree-compile` was killed by signal {signal}; its log is `{}`: {diagnostics}", log.display())]
    Killed { signal: i32, log: PathBuf, diagnostics: String },
    /// With the source line, if reported.
    #[error("`iree-compile` failed; its log is `{}`, and the module is in the same folder: {diagnostics}", log.display())]
    Failed { log: PathBuf, diagnostics: String, place: Option<Box<Place>> },
    /// The compiler reported success, but did not write a valid module.
    #[error("`{}` did not write a valid module (its log is `{}`, with the module's text in the same folder): \
        {status}", path.display(), log.display())]
    NoModule { path: PathBuf, log: PathBuf, status: Status },
    #[error("unknown target ({target}): {reason}; name a processor and features that LLVM knows, or `host`")]
    UnknownTarget { target: String, reason: String },
    /// A file of the cache for compiled modules cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

impl CompileError {
    /// Returns false if the error has no log.
    pub(crate) fn keeps_log(&mut self, path: &Path) -> bool {
        match self {
            Self::TimedOut { log, .. }
            | Self::Killed { log, .. }
            | Self::Failed { log, .. }
            | Self::NoModule { log, .. } => {
                path.clone_into(log);
                true
            }
            _ => false,
        }
    }
}

fn searched(places: &[PathBuf]) -> String {
    let places: Vec<_> = places.iter().map(|place| format!("`{}`", place.display())).collect();
    if places.is_empty() { "was looked for anywhere".into() } else { format!("in {}", places.join(", ")) }
}

fn unknown(target: &Target, reason: impl Into<String>) -> CompileError {
    CompileError::UnknownTarget { target: target.to_string(), reason: reason.into() }
}

/// Targets that the compiler does not support, or that abort it.
fn check(target: &Target) -> Result<(), CompileError> {
    let (here, there) = (std::env::consts::ARCH, target.architecture());
    if target.is_host() && there != here {
        let reason = format!("`host` is this machine's {here} processor; name one of {there}, or `generic`");
        return Err(unknown(target, reason));
    }
    match target.backend {
        Backend::Iree3_13 => Ok(()),
        Backend::Xla => Err(unknown(target, "an export for XLA is compiled where it runs")),
        Backend::Interpreter => Err(unknown(target, "the reference interpreter compiles nothing")),
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct CompileOptions {
    pub target: Target,
    /// Whether the program packs its weights for the processor when it starts, which takes a copy of them.
    /// Otherwise it reads them from the mapped file.
    pub tiled: bool,
    /// Verifies the module after each pass. Without it, the input is still validated, valid modules become
    /// the same program, and compiling takes two thirds of the time. A failed compilation is repeated with it
    /// for a better message. Tests of operations, kernels and legalizations verify, because some bugs show
    /// only then.
    pub verified: bool,
    /// For `iree-compile`.
    pub flags: Vec<String>,
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self::new(Target::host(), true)
    }
}

impl CompileOptions {
    /// The fastest flags in measurements, then the tuning's. `--iree-opt-level=O1` avoids stack overflows in
    /// workers; another keeps the program from transposing and copying weights at its start.
    pub fn new(target: Target, tiled: bool) -> Self {
        let flags = ["--iree-opt-level=O1", "--iree-opt-aggressively-propagate-transposes"];
        // The flags of a tuning can change which products and sums are rounded together.
        let tuned = target.tuning.flags.iter().filter(|_| target.numerics != Numerics::Portable);
        let tuned = tuned.map(|flag| flag.flag());
        let flags = flags.into_iter().chain(tuned).map(String::from).collect();
        Self { target, tiled, verified: false, flags }
    }

    /// Options for a second attempt: without tiling if that failed, otherwise with verification for a better
    /// message. `None` if the system killed the compiler, or verification was on. iree-compile 3.13 packs a
    /// small operand of a tiled matmul as one vector, and then rejects its type. On AVX2, an example is
    /// `vector<8x2x4x64xf32>`: the heads of 8 tokens in a Llama with 8 heads of 64 features
    /// (docs/upstream/heads_side_by_side.mlir).
    pub(crate) fn instead_after(&self, error: &CompileError) -> Option<Self> {
        const KILLED: i32 = 9;
        match error {
            CompileError::Failed { diagnostics, .. }
                if self.tiled && diagnostics.contains("large vector sizes") =>
            {
                Some(Self { tiled: false, ..self.clone() })
            }
            CompileError::Killed { signal: KILLED, .. } => None,
            CompileError::Failed { .. } | CompileError::Killed { .. } if !self.verified => {
                Some(Self { verified: true, ..self.clone() })
            }
            _ => None,
        }
    }

    /// With `--compile-to`, the compiler writes an intermediate representation instead.
    pub(crate) fn makes_module(&self) -> bool {
        !self.flags.iter().any(|flag| flag.starts_with("--compile-to="))
    }

    /// In the order of the command line.
    pub fn all_flags(&self) -> Vec<String> {
        let mut flags = self.target.compiler_flags();
        flags.push(format!("--iree-opt-data-tiling={}", self.tiled));
        flags.push(format!("--verify={}", self.verified));
        flags.extend(self.flags.iter().cloned());
        flags
    }
}

impl Compiler {
    /// Uses the program at `path` as the compiler, with a time limit of ten minutes per compilation.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            timeout: Duration::from_secs(600),
            interrupt: None,
            stop: None,
            version: OnceLock::new(),
        }
    }

    /// Returns the same compiler, whose compilations also end when another thread sets `stop`.
    pub fn stopped_by(&self, stop: Arc<AtomicBool>) -> Self {
        Self { stop: Some(stop), ..self.clone() }
    }

    fn is_interrupted(&self) -> bool {
        let flags = [&self.interrupt, &self.stop].into_iter().flatten();
        flags.into_iter().any(|flag| flag.load(Ordering::Relaxed))
    }

    /// At `hint`, or the first in `folders` (such as `PATH`), including the packages of their Python
    /// environments.
    pub fn find(hint: Option<&Path>, folders: &[PathBuf]) -> Result<Self, CompileError> {
        if let Some(hint) = hint {
            let places = vec![hint.to_owned()];
            return if hint.is_file() { Ok(Self::new(hint)) } else { Err(CompileError::NotFound { places }) };
        }
        let found = folders.iter().find_map(|folder| in_environment(folder).or_else(|| executable(folder)));
        found.map(Self::new).ok_or_else(|| CompileError::NotFound { places: folders.to_vec() })
    }

    /// Number and commit, as the compiler prints them.
    pub fn version(&self) -> Result<String, CompileError> {
        if let Some(version) = self.version.get() {
            return Ok(version.clone());
        }
        let version = self.ask_version()?;
        Ok(self.version.get_or_init(|| version).clone())
    }

    fn ask_version(&self) -> Result<String, CompileError> {
        let folder = std::env::temp_dir();
        let (mut file, sink) = tempfile::tempfile()
            .and_then(|file| Ok((file.try_clone()?, file)))
            .with_path("create a file in", &folder)?;
        let mut command = Command::new(&self.path);
        command.arg("--version").stdin(Stdio::null()).stdout(sink).stderr(Stdio::null());
        let mut answer = Vec::new();
        match child::run(&mut command, self.timeout, || self.is_interrupted()) {
            Ok(_) => file
                .rewind()
                .and_then(|()| file.read_to_end(&mut answer))
                .with_path("read a file in", &folder)?,
            Err(Stopped::Io(source)) => return Err(self.spawn_error(source)),
            Err(Stopped::Interrupted) => return Err(CompileError::Interrupted),
            Err(Stopped::TimedOut) => 0,
        };
        let answer = String::from_utf8_lossy(&answer);
        let version = answer.lines().find_map(|line| line.trim().strip_prefix("IREE compiler version "));
        version.map(str::to_owned).ok_or_else(|| CompileError::NotACompiler {
            path: self.path.clone(),
            answer: answer.lines().next().unwrap_or_default().to_owned(),
        })
    }

    /// The fastest for a module whose largest matmuls have the type `element`, with the target's features.
    /// `packed` if kernels compute them.
    pub fn options(
        &self,
        target: &Target,
        element: ElementType,
        packed: bool,
    ) -> Result<CompileOptions, CompileError> {
        let target = self.resolve(target)?;
        let tiled = !packed && target.repacks(element == ElementType::Bf16);
        Ok(CompileOptions::new(target, tiled))
    }

    /// Completes the list of features that the compiled code may use, and returns the changed target.
    pub fn resolve(&self, target: &Target) -> Result<Target, CompileError> {
        let features = match &target.features {
            Some(features) => features.clone(),
            None => self.features(target)?,
        };
        Ok(Target { features: Some(features), ..target.clone() })
    }

    /// Features that code for the target may use, by the compiler: LLVM's names, or a GPU's formats of
    /// computation (`fp16`) and widths of storage (`b8`).
    pub fn features(&self, target: &Target) -> Result<Vec<String>, CompileError> {
        let folder = Scratch::new_in(&std::env::temp_dir())?;
        let flags = vec!["--compile-to=preprocessing".into()];
        let options = CompileOptions { target: target.clone(), tiled: false, verified: false, flags };
        let module = "func.func @f() { return }";
        let output = folder.path().join("resolved.mlir");
        let log = folder.path().join("module.log");
        self.run(module, &options, &output, &log)?;
        let text = fs::read_to_string(&output).with_path("read", &output)?;
        if target.device != DeviceKind::Cpu {
            return Ok(device_features(&text));
        }
        let list = text.split_once("cpu_features = \"").and_then(|(_, rest)| rest.split('"').next());
        // What the processor's model has comes first, then what the system or the caller takes from it.
        let mut features = BTreeSet::new();
        for word in list.unwrap_or_default().split(',') {
            match word.split_at_checked(1) {
                Some(("+", name)) => features.insert(name),
                Some(("-", name)) => features.remove(name),
                _ => continue,
            };
        }
        Ok(features.into_iter().map(str::to_owned).collect())
    }

    /// Returns the log, also in the file `log`; its folder gets the text.
    pub(crate) fn run(
        &self,
        text: &str,
        options: &CompileOptions,
        output: &Path,
        log: &Path,
    ) -> Result<String, CompileError> {
        check(&options.target)?;
        let module = log.with_extension("mlir");
        fs::write(&module, text).with_path("write", &module)?;
        let sink = fs::File::create(log).with_path("create", log)?;
        let also = sink.try_clone().with_path("open", log)?;
        // From standard input: the path of a file would become part of the compiled module.
        let input = fs::File::open(&module).with_path("open", &module)?;
        let mut command = Command::new(&self.path);
        command.args(["-", "-o"]).arg(output).args(options.all_flags());
        command.stdin(input).stdout(sink).stderr(also);
        let status = child::run(&mut command, self.timeout, || self.is_interrupted());
        let said = fs::read(log).with_path("read", log)?;
        let said = String::from_utf8_lossy(&said).into_owned();
        let status = status.map_err(|stopped| match stopped {
            Stopped::Io(source) => self.spawn_error(source),
            Stopped::TimedOut => CompileError::TimedOut { limit: self.timeout, log: log.into() },
            Stopped::Interrupted => CompileError::Interrupted,
        })?;
        // Before the exit status: the compiler ignores an unknown feature and goes on.
        if let Some(reason) = unknown_target(&said) {
            return Err(unknown(&options.target, reason));
        }
        let (log, diagnostics) = (log.to_owned(), diagnostics(&said));
        #[cfg(unix)]
        if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
            return Err(CompileError::Killed { signal, log, diagnostics });
        }
        if status.success() {
            return Ok(said);
        }
        let place = place(&diagnostics, text).map(Box::new);
        Err(CompileError::Failed { log, diagnostics, place })
    }

    fn spawn_error(&self, source: io::Error) -> CompileError {
        match source.kind() {
            io::ErrorKind::NotFound => CompileError::NotFound { places: vec![self.path.clone()] },
            _ => CompileError::Spawn { path: self.path.clone(), source },
        }
    }
}

/// `compute = fp32|fp16, storage = b32|b16, subgroup = …`.
fn device_features(text: &str) -> Vec<String> {
    let list = |name: &str| {
        let list = text.split_once(name).and_then(|(_, rest)| rest.split(',').next());
        list.unwrap_or_default().split('|').map(|word| word.trim().to_owned())
    };
    let words: BTreeSet<String> = list("compute = ").chain(list("storage = ")).collect();
    words.into_iter().filter(|word| !word.is_empty()).collect()
}

/// `folder` has the environment's executables. Its `iree-compile` is a Python script, which would start the
/// compiler more slowly.
fn in_environment(folder: &Path) -> Option<PathBuf> {
    let root = folder.parent()?;
    let versions = fs::read_dir(root.join("lib")).into_iter().flatten().flatten().map(|entry| entry.path());
    let libraries = versions.chain([root.join("Lib")]);
    libraries.map(|library| library.join("site-packages").join(IN_WHEEL)).find_map(|place| executable(&place))
}

fn executable(folder: &Path) -> Option<PathBuf> {
    let path = folder.join("iree-compile").with_extension(std::env::consts::EXE_EXTENSION);
    path.is_file().then_some(path)
}

fn unknown_target(log: &str) -> Option<&str> {
    let signs = [
        "Unknown CPU for target architecture",
        "is not a recognized processor",
        "is not a recognized feature",
        "createTargetMachine(",
        "unable to find target",
    ];
    log.lines().find(|line| signs.iter().any(|sign| line.contains(sign))).map(str::trim)
}

/// The first one. Names of source locations in the module are field paths.
fn place(diagnostics: &str, text: &str) -> Option<Place> {
    let located = diagnostics.lines().find_map(|said| {
        let (place, _) = said.split_once(": error: ")?;
        let (place, _column) = place.rsplit_once(':')?;
        let (file, line) = place.rsplit_once(':')?;
        Some((file, line.parse().ok()?))
    });
    let (file, line): (&str, u32) = located?;
    let (before, _) = text.split_once(&format!("\"(\"{file}\":{line}:"))?;
    let (_, name) = before.rsplit_once("loc(\"")?;
    Some(Place { path: name.replace('/', "."), file: file.into(), line })
}

/// The first lines with an error, or just the first ones.
fn diagnostics(log: &str) -> String {
    const LINES: usize = 5;
    const LENGTH: usize = 400;
    let is_error = |line: &&str| line.contains("error:") || line.contains("LLVM ERROR");
    let mut lines: Vec<_> = log.lines().filter(is_error).take(LINES).collect();
    if lines.is_empty() {
        lines = log.lines().filter(|line| !line.trim().is_empty()).take(LINES).collect();
    }
    let short = |line: &&str| line.chars().take(LENGTH).collect::<String>();
    let lines: Vec<_> = lines.iter().map(short).collect();
    if lines.is_empty() { "it said nothing".into() } else { lines.join("\n") }
}
