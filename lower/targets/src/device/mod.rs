//! The kinds of devices: their names, compiler flags, and limitations. Each kind of device has a
//! separate source file.

mod cpu;
mod cuda;
mod hip;
mod metal;
mod vulkan;

use std::fmt;
use std::str::FromStr;

use crate::{Machine, Target};

/// A kind of device that can run compiled programs. Each kind corresponds to a programming
/// interface for devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceKind {
    Cpu,
    /// Any GPU with a Vulkan 1.3 driver, or a processor that a Vulkan driver presents as a GPU.
    Vulkan,
    Cuda,
    Hip,
    Metal,
}

/// The properties that each kind of device declares.
struct Description {
    /// The name of the kind of device on the command line and in a manifest.
    name: &'static str,
    /// The name that the compiler uses for the default processor of the device.
    processor: &'static str,
    machine: Machine,
    /// Returns the flags with which the compiler compiles programs for a target.
    flags: fn(&Target) -> Vec<String>,
    /// Returns the reason why a program for the device cannot have tensors of an element type. The
    /// argument of this function is the name of the element type.
    lacks: fn(&Target, &str) -> Option<Unsupported>,
    /// Returns the reason why a program for the device cannot compute with an element type. The
    /// argument of this function is the name of the element type.
    miscounts: fn(&str) -> Option<Unsupported>,
}

/// The reason why programs for a device cannot use an element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// The target does not declare that the device can store numbers of the element type.
    Device,
    /// The compiler does not support numbers of the element type for the kind of device.
    Compiler,
    /// Compiled operations with the element type compute wrong numbers on the kind of device.
    Arithmetic,
}

/// Returns the compiler flags for a kind of device; the flag for the target and the flag for the
/// features begin with the same prefix.
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

    /// Returns the name of the kind of device on the command line and in a manifest: `cpu`,
    /// `vulkan`, `cuda`, `hip`, `metal`.
    pub fn name(self) -> &'static str {
        self.description().name
    }

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

/// One device of a machine, by its name on the command line. The name is `cuda` for the first CUDA
/// device, or `cuda:1` for the second CUDA device.
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
    /// Devices of the same kind are numbered from 0.
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

/// The error for a text that is not the name of a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a device; expected cpu, or vulkan, cuda, hip or metal with or without a number, such as \
    `vulkan:1`"
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
    /// Returns the baseline target for a device of this kind, which is the oldest supported processor.
    pub fn of_device(kind: DeviceKind) -> Self {
        match kind {
            DeviceKind::Cpu => Self::host(),
            _ => Self { device: kind, machine: kind.machine(), ..Self::processor(kind.processor()) },
        }
    }

    /// Returns the flags with which the compiler compiles a program for this target.
    pub fn compiler_flags(&self) -> Vec<String> {
        (self.device.description().flags)(self)
    }

    /// Returns the reason why programs for the target cannot have tensors of an element type, such
    /// as `bf16`. Returns `None` if the programs can have tensors of the element type.
    pub fn lacks(&self, element: &str) -> Option<Unsupported> {
        (self.device.description().lacks)(self, element)
    }

    /// Returns the reason why programs for the target cannot compute with an element type. Returns
    /// `None` if the programs can compute with the element type.
    pub fn miscounts(&self, element: &str) -> Option<Unsupported> {
        (self.device.description().miscounts)(element)
    }
}
