//! `tracewright devices` lists the devices that can run networks.

use clap::Args;

#[derive(Args)]
pub struct Arguments {
    /// Print one JSON object on stdout instead of a line for each device
    #[arg(long)]
    json: bool,
}

#[cfg(feature = "iree")]
mod run {
    use std::env::consts::ARCH;

    use console::print;
    use serde_json::{Value, json};
    use tracewright::errors::WithCauses;
    use tracewright::runtime::{DeviceInfo, devices};
    use tracewright::targets::DeviceKind;

    use super::Arguments;
    use crate::Invocation;
    use crate::error::Error;

    impl Arguments {
        pub fn run(&self, _: &Invocation) -> Result<(), Error> {
            let kinds = DeviceKind::ALL.into_iter().filter(|&kind| kind != DeviceKind::Cpu);
            let found: Vec<Found> = kinds
                .map(|kind| (kind, devices(kind).map_err(|error| WithCauses(&error).to_string())))
                .collect();
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let text = if self.json { list(&found, cores).to_string() } else { table(&found, cores) };
            Ok(print(&format!("{text}\n"))?)
        }
    }

    /// The devices of a kind, or the reason why there are none.
    type Found = (DeviceKind, Result<Vec<DeviceInfo>, String>);

    fn list(found: &[Found], cores: usize) -> Value {
        let mut all = vec![json!({ "device": "cpu", "name": ARCH, "cores": cores })];
        let mut missing = Vec::new();
        for (kind, found) in found {
            match found {
                Ok(devices) => all.extend(devices.iter().map(described)),
                Err(why) => missing.push(json!({ "kind": kind.name(), "why": why })),
            }
        }
        json!({ "devices": all, "missing": missing })
    }

    fn table(found: &[Found], cores: usize) -> String {
        let mut lines = vec![format!("{:10} {ARCH} processor, {cores} cores", "cpu")];
        for (kind, found) in found {
            let kind = kind.name();
            match found {
                Ok(devices) if devices.is_empty() => {
                    lines.push(format!("{kind:10} none: the driver finds no device"));
                }
                Ok(devices) => lines.extend(
                    devices.iter().map(|info| format!("{:10} {}", info.device.to_string(), summary(info))),
                ),
                Err(why) => lines.push(format!("{kind:10} missing: {why}")),
            }
        }
        lines.join("\n")
    }

    /// The name of a device, and the element types that its programs support.
    fn summary(info: &DeviceInfo) -> String {
        let target = info.target();
        let types = ["f32", "f16", "bf16"].into_iter().filter(|element| target.lacks(element).is_none());
        format!("{} ({})", info.name, types.collect::<Vec<_>>().join(", "))
    }

    fn described(info: &DeviceInfo) -> Value {
        json!({
            "device": info.device.to_string(),
            "name": info.name,
            "path": info.path,
            "features": info.features,
            "about": info.about,
        })
    }
}
