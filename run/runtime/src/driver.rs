//! Lists the devices other than the CPU, and the properties that their drivers report.

use std::collections::BTreeMap;

use targets::{DeviceKind, DeviceName, Target};

use crate::error::{RuntimeError, Status};
use crate::ffi;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// On the command line.
    pub device: DeviceName,
    /// The manufacturer's name of the hardware.
    pub name: String,
    /// The driver's identification, which does not depend on other devices.
    pub path: String,
    /// The names of the device's features in a programming interface such as Vulkan.
    pub features: Vec<String>,
    /// The properties that the driver reports in addition to the name, the path and the features, by key.
    pub about: BTreeMap<String, String>,
}

impl DeviceInfo {
    /// Lines such as `key: value` and `features: name=yes other=no`.
    fn new(device: DeviceName, name: String, path: String, about: &str) -> Self {
        let pairs = about.lines().filter_map(|line| line.trim().split_once(": "));
        let about: BTreeMap<String, String> =
            pairs.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())).collect();
        let features = about.get("features").into_iter().flat_map(|features| features.split_whitespace());
        let features =
            features.filter_map(|feature| feature.strip_suffix("=yes").map(str::to_owned)).collect();
        Self { device, name, path, features, about }
    }

    pub fn target(&self) -> Target {
        match self.device.kind {
            DeviceKind::Vulkan => {
                let driver = self.about.get("driver").map_or("", String::as_str);
                Target::of_vulkan(driver, &self.features)
            }
            kind => Target::of_device(kind),
        }
    }
}

/// The C shim's number; an error if this binary has no such driver.
pub(crate) fn code(kind: DeviceKind) -> Result<u32, RuntimeError> {
    match kind {
        DeviceKind::Vulkan if cfg!(feature = "vulkan") => Ok(1),
        DeviceKind::Cuda if cfg!(has_cuda) => Ok(2),
        DeviceKind::Vulkan | DeviceKind::Cuda => Err(RuntimeError::DriverNotBuilt(kind)),
        DeviceKind::Cpu | DeviceKind::Hip | DeviceKind::Metal => Err(RuntimeError::NotRun(kind)),
    }
}

/// Shortens IREE's message, which lists all searched paths.
pub(crate) fn does_not_start(kind: DeviceKind, Status { code, message }: Status) -> RuntimeError {
    let said = message.split(" Tried: ").next().unwrap_or_default();
    let message = said.trim_end_matches(':').to_owned();
    RuntimeError::Driver { kind, status: Status { code, message } }
}

/// In the order of their numbers.
pub fn devices(kind: DeviceKind) -> Result<Vec<DeviceInfo>, RuntimeError> {
    let found = ffi::devices(code(kind)?).map_err(|status| does_not_start(kind, status))?;
    let named = found.into_iter().enumerate().map(|(ordinal, (name, path, about))| {
        DeviceInfo::new(DeviceName { kind, ordinal }, name, path, &about)
    });
    Ok(named.collect())
}

pub fn device(wanted: DeviceName) -> Result<DeviceInfo, RuntimeError> {
    let mut all = devices(wanted.kind)?;
    if wanted.ordinal < all.len() {
        Ok(all.swap_remove(wanted.ordinal))
    } else {
        let found = all.into_iter().map(|info| info.name).collect();
        Err(RuntimeError::NoDevice { wanted, found })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_driver_writes_is_read() {
        let device = DeviceName { kind: DeviceKind::Vulkan, ordinal: 0 };
        let about =
            "name: A device\napi: 1.3.230\nfeatures: shaderFloat16=yes shaderBFloat16Type=no\n  extensions\n";
        let info = DeviceInfo::new(device, "A device".into(), "GPU-1".into(), about);
        assert_eq!(info.features, ["shaderFloat16"]);
        assert_eq!(info.about["api"], "1.3.230");
        assert_eq!(info.target().changes, None, "one of two features that f16 needs");
        let both = "features: shaderFloat16=yes storageBuffer16BitAccess=yes";
        let info = DeviceInfo::new(device, String::new(), String::new(), both);
        let capabilities = "spirv:v1.3,cap:Shader,cap:StorageBuffer16BitAccess,cap:Float16";
        assert_eq!(info.target().changes.as_deref(), Some(capabilities));
        let info = DeviceInfo::new(device, String::new(), String::new(), "driver: llvmpipe");
        assert_eq!(info.target().processor, "llvmpipe");
    }
}
