//! Kinds of devices: what each is called, what its compiler is told, what it cannot do. One file each.

mod cpu;
mod cuda;
mod hip;
mod metal;
mod vulkan;

use std::fmt;
use std::str::FromStr;

use crate::{Machine, Target};

/// A kind of device, by the interface that programs reach it through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceKind {
    Cpu,
    /// Any graphics processor with a driver for Vulkan 1.3; or a processor that a driver lets pass for one.
    Vulkan,
    Cuda,
    Hip,
    Metal,
}

/// What is known of a kind of device.
struct Description {
    /// Its name on the command line and in a manifest.
    name: &'static str,
    /// What the compiler calls the processor unless somebody names another.
    processor: &'static str,
    machine: Machine,
    /// What the compiler is told.
    flags: fn(&Target) -> Vec<String>,
    /// What stands against a tensor of a type of numbers in a program for it, by the type's name.
    lacks: fn(&Target, &str) -> Option<Unsupported>,
    /// What stands against operations on numbers of a type, as sums and products, by the type's name.
    miscounts: fn(&str) -> Option<Unsupported>,
}

/// Why programs for a device have no tensors of some type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// The target does not say that the device stores such numbers.
    Device,
    /// The compiler does not compile them for this kind of device.
    Compiler,
    /// What the compiler makes of operations on them gives other numbers on this kind of device.
    Arithmetic,
}

/// What the compiler is told of a device whose target and features it takes by flags that begin with a name.
fn flags_of(device: &str, name: &str, target: &Target) -> Vec<String> {
    let mut flags = vec![
        format!("--iree-hal-target-device={device}"),
        format!("--iree-{name}-target={}", target.processor),
    ];
    flags.extend(target.changes.iter().map(|changes| format!("--iree-{name}-target-features={changes}")));
    flags
}

impl DeviceKind {
    pub const ALL: [Self; 5] = [Self::Cpu, Self::Vulkan, Self::Cuda, Self::Hip, Self::Metal];

    fn description(self) -> &'static Description {
        match self {
            Self::Cpu => &cpu::CPU,
            Self::Vulkan => &vulkan::VULKAN,
            Self::Cuda => &cuda::CUDA,
            Self::Hip => &hip::HIP,
            Self::Metal => &metal::METAL,
        }
    }

    /// Its name on the command line and in a manifest: `cpu`, `vulkan`, `cuda`, `hip`, `metal`.
    pub fn name(self) -> &'static str {
        self.description().name
    }

    /// The kind of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub(crate) fn processor(self) -> &'static str {
        self.description().processor
    }

    pub(crate) fn machine(self) -> Machine {
        self.description().machine
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One device of a machine, as the command line names it: `cuda`, or `cuda:1` for the second one.
///
/// ```
/// use tracewright_targets::{DeviceKind, DeviceName};
///
/// let second: DeviceName = "cuda:1".parse()?;
/// assert_eq!((second.kind, second.ordinal), (DeviceKind::Cuda, 1));
/// # Ok::<(), tracewright_targets::DeviceNameError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceName {
    pub kind: DeviceKind,
    /// Its number among those of its kind, from 0.
    pub ordinal: usize,
}

impl DeviceName {
    pub const CPU: Self = Self { kind: DeviceKind::Cpu, ordinal: 0 };
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ordinal {
            0 => write!(f, "{}", self.kind),
            ordinal => write!(f, "{}:{ordinal}", self.kind),
        }
    }
}

/// A text that names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` names no device; expected cpu, or vulkan, cuda, hip or metal with or without a number, as `vulkan:1`"
)]
pub struct DeviceNameError(pub String);

impl FromStr for DeviceName {
    type Err = DeviceNameError;

    fn from_str(text: &str) -> Result<Self, DeviceNameError> {
        let (name, ordinal) = match text.split_once(':') {
            Some((name, number)) => (name, number.parse().ok()),
            None => (text, Some(0)),
        };
        match (DeviceKind::of_name(name), ordinal) {
            (Some(DeviceKind::Cpu), Some(ordinal)) if ordinal > 0 => Err(DeviceNameError(text.into())),
            (Some(kind), Some(ordinal)) => Ok(Self { kind, ordinal }),
            _ => Err(DeviceNameError(text.into())),
        }
    }
}

impl Target {
    /// A device of this kind, of the oldest sort that programs are made for.
    pub fn of_device(kind: DeviceKind) -> Self {
        match kind {
            DeviceKind::Cpu => Self::host(),
            _ => Self { device: kind, machine: kind.machine(), ..Self::processor(kind.processor()) },
        }
    }

    /// What the compiler is told of it.
    pub fn compiler_flags(&self) -> Vec<String> {
        (self.device.description().flags)(self)
    }

    /// Why programs for it have no tensors of a type of numbers, which is named as in a trace: `bf16`; nothing if they may.
    pub fn lacks(&self, element: &str) -> Option<Unsupported> {
        (self.device.description().lacks)(self, element)
    }

    /// Why programs for it have no sums and products of numbers of a type; nothing if they may.
    pub fn miscounts(&self, element: &str) -> Option<Unsupported> {
        (self.device.description().miscounts)(element)
    }
}
