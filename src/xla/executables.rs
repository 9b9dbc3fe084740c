//! Caches the executables that XLA compiles.

use std::fs;
use std::ops::Range;
use std::time::{Duration, UNIX_EPOCH};

use errors::WithPath as _;
use files::ModuleCache;
use lower::Module;
use pjrt::{Client, Executable, PjrtError, XlaOptions};
use targets::host_features;

use super::plugin::XlaPlugin;
use crate::build::LoadError;
use crate::model::ModelError;

/// Change it when the format of keys or files changes.
const KEY_VERSION: &str = "tracewright executable 1";

/// Compiles modules for the devices of a program, or loads the executables from the cache.
pub(super) struct Executables<'a> {
    client: &'a Client,
    devices: Range<usize>,
    options: &'a XlaOptions,
    cache: ModuleCache,
    /// The values in a cache key that are the same for all modules of a program.
    shared: Vec<String>,
}

impl<'a> Executables<'a> {
    pub fn new(
        plugin: &'a XlaPlugin,
        devices: Range<usize>,
        options: &'a XlaOptions,
        cache: ModuleCache,
    ) -> Result<Self, ModelError> {
        let shared = shared_parts(plugin, &devices, options).map_err(LoadError::from)?;
        Ok(Self { client: &plugin.client, devices, options, cache, shared })
    }

    /// Compiles it and replaces the file if the cached one cannot be loaded. Writes nothing if the plugin
    /// cannot store executables.
    pub fn get(&self, module: &Module) -> Result<Executable, ModelError> {
        let key = self.key(module);
        let stored = self.cache.load(&key).ok().flatten();
        if let Some(executable) =
            stored.and_then(|bytes| self.client.deserialize(&bytes, self.devices.clone()).ok())
        {
            return Ok(executable);
        }
        let executable = self.client.compile(&module.text, self.devices.clone(), self.options)?;
        match executable.serialize() {
            Ok(bytes) => {
                let stored = self.cache.create().and_then(|()| self.cache.store(&key, &bytes));
                stored.map_err(LoadError::from)?;
            }
            Err(PjrtError::NotStored { .. } | PjrtError::Failed { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(executable)
    }

    fn key(&self, module: &Module) -> String {
        let mut hasher = blake3::Hasher::new();
        // The function hashes the length of each part of the key before the part itself. So
        // different lists of parts have different hashes.
        for part in self.shared.iter().chain([&module.text_without_locs]) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }
}

/// The same for all modules of a program: among others, size and time of the plugin's file, because builds
/// can share a version. Hashing hundreds of megabytes would take too long.
fn shared_parts(
    XlaPlugin { plugin, client, flags }: &XlaPlugin,
    devices: &Range<usize>,
    options: &XlaOptions,
) -> Result<Vec<String>, errors::FileError> {
    let path = plugin.path();
    let metadata = fs::metadata(path).with_path("read", path)?;
    let changed = metadata.modified().with_path("read", path)?;
    let changed = changed.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let kinds = client.devices().skip(devices.start).take(devices.len()).map(|device| device.kind.as_str());
    let mut parts = vec![
        KEY_VERSION.to_owned(),
        format!("{:?}", plugin.version()),
        format!("{} bytes of {}", metadata.len(), changed.as_nanos()),
        client.platform().to_owned(),
        client.platform_version().to_owned(),
        format!("{devices:?} {:?}", kinds.collect::<Vec<_>>()),
        format!("{options:?}"),
        flags.clone(),
    ];
    // XLA compiles for the processor of this machine, but machines with other processors can share
    // the cache folder. So the cache key contains the processor.
    if client.platform() == "cpu" {
        parts.push(format!("{:?}", host_features()));
    }
    Ok(parts)
}
