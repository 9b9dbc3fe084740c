//! From module text to a compiled module.

use std::fs;
use std::time::{Duration, Instant};

use errors::WithPath as _;
use files::Scratch;

use crate::cache::ModuleCache;
use crate::compiler::{CompileError, CompileOptions, Compiler};
use crate::{cpu, program};

/// Changes when the meaning of a key or the form of an entry does.
const KEY_VERSION: &str = "tracewright module 1";

/// The text of a module.
#[derive(Clone, Copy, Debug)]
pub struct ModuleText<'a> {
    pub text: &'a str,
    /// The same without source locations, which do not change what a module computes.
    pub text_without_locs: &'a str,
}

#[derive(Clone, Debug)]
pub struct Compiled {
    /// The bytes of the `.vmfb` file.
    pub vmfb: Vec<u8>,
    /// Whether it was compiled before.
    pub from_cache: bool,
    /// How long it took to get.
    pub wall: Duration,
    /// What the compiler said this time.
    pub log: String,
}

/// Compiles the module, or takes it from the cache.
///
/// Where the compiler fails, its log and the module stay in the cache's folder, and the error names them.
pub fn compile(
    compiler: &Compiler,
    module: &ModuleText,
    options: &CompileOptions,
    cache: &ModuleCache,
) -> Result<Compiled, CompileError> {
    let start = Instant::now();
    let key = key(module, options, &compiler.version()?);
    let check = |vmfb: &[u8]| if options.makes_module() { program::check(vmfb) } else { Ok(()) };
    if let Some(vmfb) = cache.load(&key)?.filter(|vmfb| check(vmfb).is_ok()) {
        return Ok(Compiled { vmfb, from_cache: true, wall: start.elapsed(), log: String::new() });
    }
    cache.create()?;
    let folder = Scratch::new_in(&cache.dir)?;
    let output = folder.path().join("module.vmfb");
    let log = folder.path().join("module.log");
    let mut tried = options.clone();
    let said = loop {
        match compiler.run(module.text, &tried, &output, &log) {
            Err(error) => match tried.instead_after(&error) {
                Some(other) => tried = other,
                None => break Err(error),
            },
            said => break said,
        }
    };
    let compiled = said.and_then(|said| {
        let vmfb = fs::read(&output).with_path("read", &output)?;
        // Before it is kept: a compiler that is broken today may not be so tomorrow.
        let (path, log) = (compiler.path.clone(), log.clone());
        check(&vmfb).map_err(|status| CompileError::NoModule { path, log, status })?;
        Ok((vmfb, said))
    });
    let (vmfb, log) = compiled.map_err(|mut error| {
        // Kept for whoever looks into it; if even that fails, the compiler's error matters more.
        let kept = cache.path(&key, "log");
        if error.keeps_log(&kept) {
            for extension in ["mlir", "log"] {
                let _ = fs::rename(log.with_extension(extension), kept.with_extension(extension));
            }
        }
        error
    })?;
    cache.store(&key, &vmfb)?;
    Ok(Compiled { vmfb, from_cache: false, wall: start.elapsed(), log })
}

/// The hash of everything that the compiled module depends on.
fn key(module: &ModuleText, options: &CompileOptions, version: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    // With its length in front, no part can pass for two.
    let mut part = |text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    part(KEY_VERSION);
    part(version);
    options.all_flags().iter().for_each(|flag| part(flag));
    part("");
    // `host` is another processor on another machine that shares the folder.
    if options.target.is_host() {
        cpu::host_cpu_features().iter().for_each(|feature| part(feature));
    }
    part("");
    part(module.text_without_locs);
    hasher.finalize().to_hex().to_string()
}
