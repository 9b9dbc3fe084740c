//! Helpers for all tests of this crate: the real compiler, a cache folder, modules from text.
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};

use ops::{ElementType, TensorType};
use tempfile::TempDir;
use tracewright_runtime::*;

/// The compiler that `cargo xtask setup` installs; a test without it fails and says so.
pub fn compiler() -> Compiler {
    let environment = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tracewright/venv");
    let folders = [environment.join("bin"), environment.join("Scripts")];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = folders.into_iter().chain(std::env::split_paths(&path)).collect();
    Compiler::find(None, &folders).unwrap_or_else(|error| panic!("{error}"))
}

pub fn cache() -> (TempDir, ModuleCache) {
    let folder = tempfile::tempdir().unwrap();
    let cache = ModuleCache::new(folder.path().join("cache"));
    (folder, cache)
}

pub fn module(text: &str) -> ModuleText<'_> {
    ModuleText { text, text_without_locs: text }
}

/// Compiles for this machine with the default flags.
pub fn vmfb(text: &str) -> Vec<u8> {
    let (_folder, cache) = cache();
    let compiled = compile(&compiler(), &module(text), &CompileOptions::default(), &cache);
    let compiled = compiled.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(compiled.log, "", "the compiler warns about our flags");
    compiled.vmfb
}

pub fn local() -> Runtime {
    Runtime::new(Device::LocalTask { workers: 2 }).unwrap()
}

pub fn f32s(shape: &[usize]) -> TensorType {
    TensorType::new(ElementType::F32, shape)
}

pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|chunk| f32::from_le_bytes(chunk.try_into().unwrap())).collect()
}

pub fn tensor(runtime: &Runtime, shape: &[usize], values: &[f32]) -> VmValue {
    Buffer::from_bytes(runtime, &f32s(shape), &bytes(values)).unwrap().into()
}

/// Calls a function with one result, a tensor of f32.
pub fn call(program: &VmModule, name: &str, arguments: Vec<VmValue>) -> Vec<f32> {
    let mut values = program.function(name).unwrap().call(arguments).unwrap();
    assert_eq!(values.len(), 1);
    floats(&values.pop().unwrap().buffer().unwrap().read().unwrap())
}
