//! `tracewright devices` lists the devices that can run networks.

use std::path::PathBuf;

use clap::Args;

#[derive(Args)]
pub struct Arguments {
    /// Path of a PJRT plugin of XLA, to list in addition to the plugins in installed Python packages
    #[arg(long, value_name = "PATH", env = "TRACEWRIGHT_PLUGIN")]
    plugin: Option<PathBuf>,
    /// Print one JSON object on stdout instead of a line for each device
    #[arg(long)]
    json: bool,
}

#[cfg(feature = "iree")]
mod run {
    use std::env::consts::ARCH;
    use std::path::PathBuf;

    use console::print;
    use serde_json::{Value, json};
    use tracewright::errors::WithCauses;
    use tracewright::pjrt::{Client, PjrtDevice, PjrtError, Plugin, packaged};
    use tracewright::runtime::{DeviceInfo, devices};
    use tracewright::targets::DeviceKind;

    use super::Arguments;
    use crate::Invocation;
    use crate::error::Error;
    use crate::plugins::package_folders;

    impl Arguments {
        pub fn run(&self, _: &Invocation) -> Result<(), Error> {
            let kinds = DeviceKind::ALL.into_iter().filter(|&kind| kind != DeviceKind::Cpu);
            let found: Vec<Found> = kinds
                .map(|kind| (kind, devices(kind).map_err(|error| WithCauses(&error).to_string())))
                .collect();
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let packaged = packaged(&package_folders()).into_iter().map(|(_, path)| path);
            let plugins: Vec<Started> = self.plugin.iter().cloned().chain(packaged).map(started).collect();
            let text = if self.json {
                let mut all = list(&found, cores);
                all["plugins"] = plugins.iter().map(plugin_object).collect();
                all.to_string()
            } else {
                [table(&found, cores)]
                    .into_iter()
                    .chain(plugins.iter().map(plugin_lines))
                    .collect::<Vec<_>>()
                    .join("\n")
            };
            Ok(print(&format!("{text}\n"))?)
        }
    }

    /// A plugin of XLA, with its client or the reason why the client does not start.
    struct Started {
        path: PathBuf,
        client: Result<((i32, i32), Client), PjrtError>,
    }

    fn started(path: PathBuf) -> Started {
        let client = Plugin::load(&path).and_then(|plugin| Ok((plugin.version(), plugin.client()?)));
        Started { path, client }
    }

    fn plugin_object(Started { path, client }: &Started) -> Value {
        match client {
            Ok((version, client)) => {
                let device = |device: &PjrtDevice| json!({ "ordinal": device.ordinal, "kind": device.kind });
                json!({
                    "path": path,
                    "platform": client.platform(),
                    "api": format!("{}.{}", version.0, version.1),
                    "devices": client.devices().map(device).collect::<Vec<_>>(),
                })
            }
            Err(error) => json!({ "path": path, "why": WithCauses(error).to_string() }),
        }
    }

    fn plugin_lines(Started { path, client }: &Started) -> String {
        match client {
            // The plugin for the CPU presents the one processor as several devices, for programs on a mesh.
            Ok((_, client)) if client.platform() == "cpu" => {
                format!("{:10} {ARCH} processor with `--engine xla`, from {}", "cpu", path.display())
            }
            Ok((_, client)) => {
                let line = |device: &PjrtDevice| {
                    let name = format!("{}:{}", client.platform(), device.ordinal);
                    format!("{name:10} {} with `--engine xla`, from {}", device.kind, path.display())
                };
                client.devices().map(line).collect::<Vec<_>>().join("\n")
            }
            Err(error) => format!("{:10} missing: {}", "xla", WithCauses(error)),
        }
    }

    /// Or the reason why there are none.
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
