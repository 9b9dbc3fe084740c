//! [`Target`]: the machine and the compiler of a program. Every stage reads this one description.

mod device;
mod host;
mod machine;
mod mesh;
mod parse;
mod tuning;

use std::fmt;

pub use device::{DeviceKind, DeviceName, DeviceNameError, Unsupported};
pub use host::host_features;
pub use machine::{Machine, MachineError, NamedMachine};
pub use mesh::{Mesh, MeshAxis, MeshError, ShardRule};
pub use parse::TargetError;
pub use tuning::{CompilerFlag, Tiling, Tuning};

/// The platform, processor and compiler of a program.
///
/// ```
/// use tracewright_targets::Target;
///
/// assert!(Target::host().is_host());
/// let phone: Target = "aarch64-linux-gnu:generic:+neon".parse()?;
/// assert_eq!(phone.architecture(), "aarch64");
/// let graphics: Target = "vulkan:rdna3".parse()?;
/// assert_eq!((graphics.device.name(), graphics.processor.as_str()), ("vulkan", "rdna3"));
/// # Ok::<(), tracewright_targets::TargetError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    pub backend: Backend,
    /// LLVM's name of the platform, such as `aarch64-linux-gnu`. `None` stands for this machine's.
    pub triple: Option<String>,
    /// LLVM's name of the processor; `host` stands for this machine's. For other devices, the compiler's
    /// name, such as `sm_80`.
    pub processor: String,
    /// Changes to the processor's features in LLVM's names, such as `+sve,-sve2`. For other devices, all
    /// features beyond the compiler's baseline.
    pub changes: Option<String>,
    /// The features that code may use, in LLVM's names, sorted. For other devices, the types of computations
    /// and the widths of storage, such as `fp16` and `b8`. `None` if only the compiler knows them.
    pub features: Option<Vec<String>>,
    /// The kind of device that runs the program.
    pub device: DeviceKind,
    pub machine: Machine,
    /// Settings that measured faster on this machine than the defaults. Empty unless you set it.
    pub tuning: Tuning,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Iree3_13,
    /// The reference interpreter of StableHLO, which follows the specification.
    Interpreter,
    /// XLA through PJRT, for one device or many.
    Xla,
}

/// How a module expresses things for which StableHLO has no operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Weights are parameters of the scope `model`, large constants are globals, and an `i32[]` argument is a
    /// host integer.
    IreeGlobals,
    /// Weights are arguments after those of the function, constants are inline, and every argument is a
    /// tensor.
    Arguments,
}

impl Backend {
    /// The dialect of modules for this compiler.
    pub fn dialect(self) -> Dialect {
        match self {
            Self::Iree3_13 => Dialect::IreeGlobals,
            Self::Interpreter | Self::Xla => Dialect::Arguments,
        }
    }

    /// Whether weights are read from an archive that is baked for the program. Otherwise they are read from
    /// the checkpoint.
    pub fn has_archive(self) -> bool {
        self != Self::Xla
    }
}

impl Target {
    /// This machine, with the features of its processor.
    pub fn host() -> Self {
        let features = host_features().into_iter().filter(|(_, has)| *has).map(|(name, _)| name.to_owned());
        Self { features: Some(features.collect()), ..Self::processor("host") }
    }

    /// A processor that LLVM supports, on this platform.
    pub fn processor(name: impl Into<String>) -> Self {
        Self {
            backend: Backend::Iree3_13,
            triple: None,
            processor: name.into(),
            changes: None,
            features: None,
            device: DeviceKind::Cpu,
            machine: Machine::CPU,
            tuning: Tuning::default(),
        }
    }

    pub fn interpreter() -> Self {
        Self { backend: Backend::Interpreter, ..Self::host() }
    }

    /// XLA, on any devices that it finds.
    pub fn xla() -> Self {
        Self { backend: Backend::Xla, machine: Machine::GPU, ..Self::processor("generic") }
    }

    /// Whether the code depends on the processor of the compiling machine.
    pub fn is_host(&self) -> bool {
        self.device == DeviceKind::Cpu && self.processor == "host"
    }

    /// Rust's name of the architecture, which differs from LLVM's in one case.
    pub fn architecture(&self) -> &str {
        match self.triple.as_deref().and_then(|triple| triple.split('-').next()) {
            Some("arm64") => "aarch64",
            Some(name) => name,
            None => std::env::consts::ARCH,
        }
    }

    /// Whether programs use system calls of Linux.
    pub fn is_linux(&self) -> bool {
        match &self.triple {
            Some(triple) => triple.contains("linux"),
            None => std::env::consts::OS == "linux",
        }
    }

    /// Whether the compiler packs weights of an element type at load time, for matmuls without a kernel. A
    /// packed copy is then in memory.
    ///
    /// IREE 3.13 has no efficient code for packed bf16 on processors without bf16 instructions. There, a
    /// matmul of 128 rows was 60 times slower than unpacked (a row of 2048 × 8192 on AVX-512 without
    /// `avx512bf16`).
    pub fn repacks(&self, bf16: bool) -> bool {
        self.device == DeviceKind::Cpu && (!bf16 || self.has_bf16() == Some(true))
    }

    /// Whether the processor multiplies bf16; `None` if its features are unknown.
    pub fn has_bf16(&self) -> Option<bool> {
        const BF16: [&str; 4] = ["avx512bf16", "amx-bf16", "avx10.2", "bf16"];
        let features = self.features.as_ref()?;
        Some(features.iter().any(|feature| BF16.contains(&feature.as_str())))
    }
}

impl Default for Target {
    fn default() -> Self {
        Self::host()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let platform = self.triple.as_deref().unwrap_or(match self.device {
            DeviceKind::Cpu => "this platform",
            other => other.name(),
        });
        write!(f, "`{}` on {platform}", self.processor)?;
        match &self.changes {
            Some(changes) => write!(f, " with `{changes}`"),
            None => Ok(()),
        }
    }
}
