//! The PJRT plugins that run in this process.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use pjrt::{Client, Plugin};
use targets::Mesh;

use crate::Plan;
use crate::export::xla::for_cuda;
use crate::model::ModelError;

/// A PJRT plugin that runs in this process, and the devices of the plugin. A clone of an
/// `XlaPlugin` refers to the same devices.
#[derive(Clone)]
pub struct XlaPlugin {
    pub(super) plugin: Plugin,
    pub(super) client: Client,
    pub(super) flags: String,
}

impl XlaPlugin {
    /// Loads the PJRT plugin at a path, and starts the plugin's platform with at least `devices`
    /// devices. The plugin's code runs in this process. `flags` is the value of the environment
    /// variable `XLA_FLAGS`. The cache key of an executable contains the XLA flags.
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

    /// Adapts a plan [for XLA](crate::export::xla::planned) to the platform of this plugin. If a mesh is
    /// given, the plan uses no kernels, because only modules for a single device can call kernels.
    pub fn plan(&self, plan: Plan, mesh: Option<&Mesh>) -> Plan {
        let is_cuda = self.client.platform() == "cuda" && mesh.is_none();
        if is_cuda { for_cuda(plan) } else { plan }
    }
}

/// The running plugins, which all networks of one thread share. Networks share a plugin's client,
/// because the first client of a GPU occupies the GPU's memory.
#[derive(Default)]
pub(crate) struct StartedPlugins(RefCell<Vec<(PathBuf, XlaPlugin)>>);

impl StartedPlugins {
    /// Returns the plugin at a path with at least `devices` devices. If the plugin is not running,
    /// the function starts the plugin.
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
