//! Compiles the text of a module, and stores the compiled module in a cache.

use std::fs;
use std::time::{Duration, Instant};

use errors::WithPath as _;
use files::{ModuleCache, Scratch};

use crate::compiler::{CompileError, CompileOptions, Compiler};
use crate::error::Status;
use crate::{cpu, program};

/// Change it when the keys or the files of the cache change.
const KEY_VERSION: &str = "tracewright module 1";

#[derive(Clone, Copy, Debug)]
pub struct ModuleText<'a> {
    pub text: &'a str,
    /// For the key: source locations do not affect the computation.
    pub text_without_locs: &'a str,
}

#[derive(Clone, Debug)]
pub struct Compiled {
    pub vmfb: Vec<u8>,
    pub from_cache: bool,
    /// Or for reading the module from the cache.
    pub wall: Duration,
    /// The messages that the compiler printed while compiling the module.
    pub log: String,
}

/// Or reads it from the cache. After a failure, the cache has the log, which the error names, and the
/// module's text.
pub fn compile(
    compiler: &Compiler,
    module: &ModuleText,
    options: &CompileOptions,
    cache: &ModuleCache,
) -> Result<Compiled, CompileError> {
    let start = Instant::now();
    let key = key(module, options, &compiler.version()?);
    if let Some(compiled) = cached(&key, options, cache)? {
        return Ok(compiled);
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
        check(&vmfb, options).map_err(|status| CompileError::NoModule { path, log, status })?;
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

/// Reads a compiled module from the cache; `None` if the cache lacks it.
pub fn compiled_before(
    compiler: &Compiler,
    module: &ModuleText,
    options: &CompileOptions,
    cache: &ModuleCache,
) -> Result<Option<Compiled>, CompileError> {
    cached(&key(module, options, &compiler.version()?), options, cache)
}

fn cached(
    key: &str,
    options: &CompileOptions,
    cache: &ModuleCache,
) -> Result<Option<Compiled>, CompileError> {
    let start = Instant::now();
    let vmfb = cache.load(key)?;
    let is_valid = |vmfb: &Vec<u8>| check(vmfb, options).is_ok();
    let compiled = |vmfb| Compiled { vmfb, from_cache: true, wall: start.elapsed(), log: String::new() };
    Ok(vmfb.filter(is_valid).map(compiled))
}

fn check(vmfb: &[u8], options: &CompileOptions) -> Result<(), Status> {
    if options.makes_module() { program::check(vmfb) } else { Ok(()) }
}

/// All inputs that affect the compiled module.
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
