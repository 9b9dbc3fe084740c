//! Finds PJRT plugins: in the arguments, or in the Python packages of this machine.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use console::usage;
use tracewright::pjrt::find_plugin;
use tracewright::targets::DeviceKind;

use crate::arguments::{Engine, RunArguments};
use crate::error::Error;

/// The folders of Python packages that belong to the Python programs on PATH and to an active environment.
pub fn package_folders() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let environment = env::var_os("VIRTUAL_ENV").map(PathBuf::from);
    let prefixes = env::split_paths(&path).filter_map(|folder| folder.parent().map(Path::to_owned));
    let mut seen = BTreeSet::new();
    let mut folders = Vec::new();
    for prefix in environment.into_iter().chain(prefixes).filter(|prefix| seen.insert(prefix.clone())) {
        let pythons = fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten();
        let is_python = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("python3");
        let mut pythons: Vec<PathBuf> = pythons.filter(is_python).map(|entry| entry.path()).collect();
        pythons.sort();
        let of = |python: &PathBuf| ["site-packages", "dist-packages"].map(|name| python.join(name));
        folders.extend(pythons.iter().rev().flat_map(of).filter(|folder| folder.is_dir()));
    }
    folders
}

/// The plugin that the arguments select; `None` for IREE. The function returns an error for options that XLA
/// does not support.
pub fn selected(arguments: &RunArguments) -> Result<Option<PathBuf>, Error> {
    let network = &arguments.build.model_arguments.network;
    let mesh = arguments.mesh.rules()?;
    if arguments.engine.engine == Engine::Iree {
        return match mesh {
            Some(_) => Err(usage("`--mesh` is for XLA; leave it out, or add `--engine xla`").into()),
            None => Ok(None),
        };
    }
    if mesh.is_some() && arguments.device.name().ordinal > 0 {
        let what = format!(
            "`--device` is {}, but a mesh begins at the first device; leave out the number, or leave out `--mesh`",
            arguments.device.name()
        );
        return Err(usage(what).into());
    }
    let unused = [
        ("--target", arguments.device.target.is_some()),
        ("--threads", arguments.threads != 0),
        ("--kernels", network.kernels.is_some()),
        ("--layout", network.layout.is_some()),
        ("--tuning", arguments.build.tuning.source.is_some()),
        ("--verify", arguments.verify),
    ];
    if let Some((option, _)) = unused.into_iter().find(|(_, given)| *given) {
        return Err(
            usage(format!("`{option}` is for IREE; leave it out, or leave out `--engine xla`")).into()
        );
    }
    if let Some(plugin) = &arguments.engine.plugin {
        return Ok(Some(plugin.clone()));
    }
    let platform = match arguments.device.name().kind {
        DeviceKind::Cpu => "cpu",
        DeviceKind::Cuda => "cuda",
        DeviceKind::Hip => "rocm",
        kind @ (DeviceKind::Vulkan | DeviceKind::Metal) => {
            let what = format!("`--device` is {kind}, expected cpu, cuda or hip with `--engine xla`");
            return Err(usage(what).into());
        }
    };
    Ok(Some(find_plugin(platform, &package_folders())?))
}
