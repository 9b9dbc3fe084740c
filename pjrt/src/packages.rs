//! The Python packages that ship a plugin. Their files are used without Python.

use std::path::{Path, PathBuf};

/// The platform of each plugin, and its path in a folder of Python packages. The first of a platform is preferred.
pub const PACKAGES: [(&str, &str); 7] = [
    ("cpu", "fastatomstruct_xla_cpu/libpjrt_cpu.so"),
    ("cuda", "jax_plugins/xla_cuda13/xla_cuda_plugin.so"),
    ("cuda", "jax_plugins/xla_cuda12/xla_cuda_plugin.so"),
    ("rocm", "jax_plugins/xla_rocm10/xla_rocm_plugin.so"),
    ("rocm", "jax_plugins/xla_rocm7/xla_rocm_plugin.so"),
    ("oneapi", "jax_plugins/xla_oneapi/xla_oneapi_plugin.so"),
    ("tpu", "libtpu/libtpu.so"),
];

/// The plugins in a folder of Python packages (`site-packages`), with their platforms.
pub fn packaged(folder: &Path) -> Vec<(&'static str, PathBuf)> {
    let found = PACKAGES.iter().map(|&(platform, file)| (platform, folder.join(file)));
    found.filter(|(_, path)| path.is_file()).collect()
}
