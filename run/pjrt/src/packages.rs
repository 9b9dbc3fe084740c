//! Finds Python packages that contain a plugin. Tracewright can load a plugin from a Python package
//! without running Python.

use std::path::{Path, PathBuf};

use crate::error::PjrtError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PluginPackage {
    /// As the plugin reports it, such as `cuda`.
    pub platform: &'static str,
    /// For `pip install`.
    pub name: &'static str,
    /// Relative to the folder of Python packages.
    file: &'static str,
}

/// For the same platform, the first package comes first.
pub const PACKAGES: [PluginPackage; 6] = [
    of("cpu", "fastatomstruct-xla-cpu", "fastatomstruct_xla_cpu/libpjrt_cpu.so"),
    of("cuda", "jax-cuda13-pjrt", "jax_plugins/xla_cuda13/xla_cuda_plugin.so"),
    of("cuda", "jax-cuda12-pjrt", "jax_plugins/xla_cuda12/xla_cuda_plugin.so"),
    of("rocm", "jax-rocm10-pjrt", "jax_plugins/xla_rocm10/xla_rocm_plugin.so"),
    of("rocm", "jax-rocm7-pjrt", "jax_plugins/xla_rocm7/xla_rocm_plugin.so"),
    of("tpu", "libtpu", "libtpu/libtpu.so"),
];

const fn of(platform: &'static str, name: &'static str, file: &'static str) -> PluginPackage {
    PluginPackage { platform, name, file }
}

/// Searches folders of Python packages (`site-packages`).
pub fn packaged(folders: &[PathBuf]) -> Vec<(PluginPackage, PathBuf)> {
    let found = |package: PluginPackage| {
        let in_folder = |folder: &PathBuf| Path::new(folder).join(package.file);
        Some((package, folders.iter().map(in_folder).find(|path| path.is_file())?))
    };
    PACKAGES.into_iter().filter_map(found).collect()
}

pub fn find_plugin(platform: &str, folders: &[PathBuf]) -> Result<PathBuf, PjrtError> {
    let found = packaged(folders).into_iter().find(|(package, _)| package.platform == platform);
    found.map(|(_, path)| path).ok_or_else(|| PjrtError::NoPlugin {
        platform: platform.to_owned(),
        package: PACKAGES.into_iter().find(|package| package.platform == platform).map(|found| found.name),
        folders: folders.len(),
    })
}
