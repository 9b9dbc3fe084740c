//! The PJRT plugins that run in this process.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use pjrt::{Client, Plugin};
use targets::Mesh;

use crate::Plan;
use crate::export::xla::for_cuda;
use crate::model::ModelError;

/// Runs in this process; clones are the same devices.
#[derive(Clone)]
pub struct XlaPlugin {
    pub(super) plugin: Plugin,
    pub(super) client: Client,
    pub(super) flags: String,
}

impl XlaPlugin {
    /// Starts at least `devices` devices. The plugin's code runs in this process. `flags` is `XLA_FLAGS`, a
    /// part of cache keys.
    ///
    /// # Errors
    /// Returns an error if the file is not a plugin, or the platform does not start.
    pub fn start(path: &Path, devices: usize, flags: &str) -> Result<Self, ModelError> {
        let plugin = Plugin::load(path)?;
        let client = plugin.client_with(devices)?;
        Ok(Self { plugin, client, flags: flags.to_owned() })
    }

    /// Returns the PJRT client, which owns the devices.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// [For XLA](crate::export::xla::planned) on this platform. A mesh has no kernels, which only single
    /// devices can call.
    pub fn plan(&self, plan: Plan, mesh: Option<&Mesh>) -> Plan {
        let is_cuda = self.client.platform() == "cuda" && mesh.is_none();
        if is_cuda { for_cuda(plan) } else { plan }
    }
}

/// Shared by all networks of a thread, because the first client of a GPU occupies its memory.
#[derive(Default)]
pub(crate) struct StartedPlugins(RefCell<Vec<(PathBuf, XlaPlugin)>>);

impl StartedPlugins {
    /// Starts it if it does not run.
    pub fn get(&self, path: &Path, devices: usize, flags: &str) -> Result<XlaPlugin, ModelError> {
        let has = |plugin: &XlaPlugin| plugin.client.devices().count() >= devices;
        let known = self.0.borrow().iter().find(|(known, plugin)| known == path && has(plugin)).cloned();
        if let Some((_, plugin)) = known {
            return Ok(plugin);
        }
        let plugin = XlaPlugin::start(path, devices, flags)?;
        self.0.borrow_mut().push((path.to_owned(), plugin.clone()));
        Ok(plugin)
    }
}
