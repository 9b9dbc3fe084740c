//! Finds PJRT plugins in the arguments, or in the Python packages of this machine.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use console::{NetworkArguments, usage};
use tracewright::pjrt::find_plugin;
use tracewright::targets::{DeviceKind, MeshRules};

use super::arguments::{DeviceArguments, Engine, EngineArguments, MeshArguments, RunArguments};
use super::error::Error;

/// Returns the package folders of the active virtual environment, of the Python programs on PATH, and of
/// `cargo xtask setup --xla`.
pub fn package_folders() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let environment = env::var_os("VIRTUAL_ENV").map(PathBuf::from);
    let prefixes = env::split_paths(&path).filter_map(|folder| folder.parent().map(Path::to_owned));
    let mut seen = BTreeSet::new();
    let mut folders = Vec::new();
    let prefixes = environment.into_iter().chain(prefixes).chain(in_checkout());
    for prefix in prefixes.filter(|prefix| seen.insert(prefix.clone())) {
        let pythons = fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten();
        let is_python = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("python3");
        let mut pythons: Vec<PathBuf> = pythons.filter(is_python).map(|entry| entry.path()).collect();
        pythons.sort();
        let of = |python: &PathBuf| ["site-packages", "dist-packages"].map(|name| python.join(name));
        folders.extend(pythons.iter().rev().flat_map(of).filter(|folder| folder.is_dir()));
    }
    folders
}

/// Returns the folder into which `cargo xtask setup --xla` installs the plugin for the CPU, if this program
/// is in the `target` folder of the checkout.
fn in_checkout() -> Option<PathBuf> {
    let program = env::current_exe().ok()?.canonicalize().ok()?;
    let target = program.ancestors().find(|folder| folder.ends_with("target"))?;
    Some(target.with_file_name(".tracewright").join("xla-cpu")).filter(|folder| folder.is_dir())
}

/// Returns the value of the environment variable `XLA_FLAGS`.
pub fn flags() -> String {
    env::var_os("XLA_FLAGS").unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the PJRT plugin that `arguments` selects, or `None` for IREE. The function returns an
/// error for options that the selected engine does not support.
pub fn selected(arguments: &RunArguments) -> Result<Option<PathBuf>, Error> {
    check_mesh(&arguments.mesh, &arguments.engine, &arguments.device)?;
    let unused = [
        ("--threads", arguments.threads != 0),
        ("--tuning", arguments.build.tuning.source.is_some()),
        ("--verify", arguments.verify),
    ];
    let network = of_network(&arguments.build.model_arguments.network);
    plugin(&arguments.engine, &arguments.device, unused.into_iter().chain(network))
}

/// Returns the mesh and the sharding rules of the options, or `None` if `--mesh` is not set. The
/// function returns an error if the selected engine or device does not support a mesh.
pub fn check_mesh(
    mesh: &MeshArguments,
    engine: &EngineArguments,
    device: &DeviceArguments,
) -> Result<Option<MeshRules>, Error> {
    let mesh = mesh.rules()?;
    if engine.engine == Engine::Iree && mesh.is_some() {
        return Err(usage("`--mesh` is for XLA; leave it out, or add `--engine xla`").into());
    }
    if mesh.is_some() && device.name().ordinal > 0 {
        let what = format!(
            "`--device` is {}, but a mesh begins at the first device; leave out the number, or leave out `--mesh`",
            device.name()
        );
        return Err(usage(what).into());
    }
    Ok(mesh)
}

/// Lists the network options that only IREE supports, and whether each option is set.
pub fn of_network(network: &NetworkArguments) -> [(&'static str, bool); 1] {
    [("--activations", network.numeric.activations.is_some())]
}

/// Returns the PJRT plugin that the options select, or `None` for IREE. `for_iree` lists the
/// options that only IREE supports, and whether each option is set.
pub fn plugin(
    engine: &EngineArguments,
    device: &DeviceArguments,
    for_iree: impl IntoIterator<Item = (&'static str, bool)>,
) -> Result<Option<PathBuf>, Error> {
    if engine.engine == Engine::Iree {
        return Ok(None);
    }
    let mut for_iree = for_iree
        .into_iter()
        .chain([("--target", device.target.is_some()), ("--numerics", device.numerics.numerics.is_some())]);
    if let Some((option, _)) = for_iree.find(|(_, is_set)| *is_set) {
        return Err(
            usage(format!("`{option}` is for IREE; leave it out, or leave out `--engine xla`")).into()
        );
    }
    if let Some(plugin) = &engine.plugin {
        return Ok(Some(plugin.clone()));
    }
    let platform = match device.name().kind {
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
