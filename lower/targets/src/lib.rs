//! A [`Target`] describes the machine and the compiler for which Tracewright generates a program.
//! Every compilation stage reads the target.

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
pub use mesh::{Mesh, MeshAxis, MeshError, MeshRules, ShardRule};
pub use parse::TargetError;
pub use tuning::{CompilerFlag, Tiling, Tuning};

/// The platform, the processor and the compiler of a program.
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
    /// The name of the platform in LLVM's notation, such as `aarch64-linux-gnu`. The value `None`
    /// selects the platform of this machine.
    pub triple: Option<String>,
    /// The name of the processor in LLVM's notation; `host` selects the processor of this machine. For
    /// devices other than the CPU, the name is the compiler's name for the processor, such as `sm_80`.
    pub processor: String,
    /// The processor features that the target adds or removes, in LLVM's notation, such as
    /// `+sve,-sve2`. For devices other than the CPU, the list of features contains all features
    /// that the compiler's baseline does not have.
    pub changes: Option<String>,
    /// The sorted list of processor features that the compiled code may use, by LLVM's name. For devices
    /// other than the CPU, the list contains the element types for computations and the bit widths for
    /// storage, such as `fp16` and `b8`. The value `None` means that only the compiler knows the features.
    pub features: Option<Vec<String>>,
    /// The kind of device that runs the program.
    pub device: DeviceKind,
    pub machine: Machine,
    /// The settings that were faster than the defaults in measurements on this machine. The
    /// measured settings are empty unless you set the settings from a tuning file.
    pub tuning: Tuning,
    /// Whether kernels may use tile instructions, which add the products of a matmul with many rows
    /// in another order than vector instructions.
    pub numerics: Numerics,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Iree3_13,
    /// The reference interpreter of StableHLO, which follows StableHLO's specification.
    Interpreter,
    /// XLA with a PJRT plugin, for one device or for several devices.
    Xla,
}

/// How a module contains weights and large constants, and which arguments are integers on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Weights are parameters in the IREE scope `model`, large constants are globals, and each
    /// `i32[]` argument is an integer on the host.
    IreeGlobals,
    /// Weights are additional arguments after the arguments of the entry point, constants are
    /// inline, and every argument is a tensor.
    Arguments,
}

impl Backend {
    /// Returns the dialect of the modules that the compiler reads.
    pub fn dialect(self) -> Dialect {
        match self {
            Self::Iree3_13 => Dialect::IreeGlobals,
            Self::Interpreter | Self::Xla => Dialect::Arguments,
        }
    }

    /// Whether a program reads its weights from an archive, which Tracewright bakes for the
    /// program. With XLA, the program reads its weights from the checkpoint.
    pub fn has_archive(self) -> bool {
        self != Self::Xla
    }
}

impl Target {
    /// Returns the target for this machine, with the features of its processor.
    pub fn host() -> Self {
        let features = host_features().into_iter().filter(|(_, has)| *has).map(|(name, _)| name.to_owned());
        Self { features: Some(features.collect()), ..Self::processor("host") }
    }

    /// Returns the target for a processor that LLVM supports, on this platform.
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
            numerics: Numerics::default(),
        }
    }

    pub fn interpreter() -> Self {
        Self { backend: Backend::Interpreter, ..Self::host() }
    }

    /// Returns the target for XLA, with all devices that XLA finds.
    pub fn xla() -> Self {
        Self { backend: Backend::Xla, machine: Machine::GPU, ..Self::processor("generic") }
    }

    /// Whether the compiled code depends on the processor of the machine that runs the compiler.
    pub fn is_host(&self) -> bool {
        self.device == DeviceKind::Cpu && self.processor == "host"
    }

    /// Returns Rust's name for the processor architecture of the target. Rust and LLVM use
    /// different names for only one architecture.
    pub fn architecture(&self) -> &str {
        match self.triple.as_deref().and_then(|triple| triple.split('-').next()) {
            Some("arm64") => "aarch64",
            Some(name) => name,
            None => std::env::consts::ARCH,
        }
    }

    /// Whether programs for this target can use the system calls of Linux.
    pub fn is_linux(&self) -> bool {
        match &self.triple {
            Some(triple) => triple.contains("linux"),
            None => std::env::consts::OS == "linux",
        }
    }

    /// Whether the program packs weights of an element type at load time, for matmuls without a kernel. A
    /// program that packs weights at load time needs additional memory for the packed copy of the weights.
    ///
    /// IREE 3.13 has no efficient code for matmuls with packed bf16 weights on processors without bf16
    /// instructions. Without bf16 instructions, a matmul of 128 rows takes 60 times as long with packed
    /// weights as with unpacked weights (the weight is 2048 × 8192, on AVX-512 without `avx512bf16`).
    pub fn repacks(&self, bf16: bool) -> bool {
        let is_cpu = self.device == DeviceKind::Cpu && self.numerics != Numerics::Portable;
        is_cpu && (!bf16 || self.has_bf16() == Some(true))
    }

    /// Whether the processor has instructions that multiply bf16; `None` if its features are unknown.
    pub fn has_bf16(&self) -> Option<bool> {
        const BF16: [&str; 4] = ["avx512bf16", "amx-bf16", "avx10.2", "bf16"];
        let features = self.features.as_ref()?;
        Some(features.iter().any(|feature| BF16.contains(&feature.as_str())))
    }
}

/// Whether the bits of logits may depend on the number of tokens per call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Numerics {
    /// On processors with AMX, the bits may depend on whether a call computes more than 16 tokens,
    /// because AMX's tile instructions add products in another order.
    #[default]
    Fast,
    /// The bits of logits depend only on the tokens of the sequence, because kernels do not use AMX.
    Invariant,
    /// As `Invariant`, and the bits are the same on every processor with kernels: these multiply and add bf16 weights
    /// as f32, and fuse products with sums themselves.
    Portable,
}

impl Numerics {
    pub const ALL: [Self; 3] = [Self::Fast, Self::Invariant, Self::Portable];

    pub fn word(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Invariant => "invariant",
            Self::Portable => "portable",
        }
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
