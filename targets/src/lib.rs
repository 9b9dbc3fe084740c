//! The machine and the compiler that a program is made for: one description, which every stage asks.

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

/// What a program is made for.
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
    /// LLVM's name of the platform, as `aarch64-linux-gnu`; this one if there is none.
    pub triple: Option<String>,
    /// LLVM's name of the processor; `host` is this machine's. Of other devices the compiler's name, as `sm_80`.
    pub processor: String,
    /// What is changed in the processor's features, in LLVM's names, as `+sve,-sve2`; of other devices, all that they have
    /// beside what the compiler takes for granted, in its words.
    pub changes: Option<String>,
    /// The features that code may use, in LLVM's names, sorted; of other devices the types that they compute with and the
    /// widths that they store, as `fp16`, `b8`. `None` if only the compiler knows them.
    pub features: Option<Vec<String>>,
    /// What kind of device runs the program.
    pub device: DeviceKind,
    pub machine: Machine,
    /// What was measured to be faster on it than what is usual; nothing unless changed.
    pub tuning: Tuning,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// iree-compile 3.13.
    Iree3_13,
    /// The reference interpreter of StableHLO: what it takes is what the specification says.
    Interpreter,
    /// XLA, through PJRT: programs for one device or for many.
    Xla,
}

/// How a module speaks of what StableHLO has no words for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Weights are parameters of the scope `model`, large constants are globals, an `i32[]` argument is a number of
    /// the host.
    IreeGlobals,
    /// Weights are arguments after those of the function, constants stand where they are used, every argument is a
    /// tensor.
    Arguments,
}

impl Backend {
    /// How it reads a module.
    pub fn dialect(self) -> Dialect {
        match self {
            Self::Iree3_13 => Dialect::IreeGlobals,
            Self::Interpreter | Self::Xla => Dialect::Arguments,
        }
    }

    /// Whether weights are read from an archive that is written for the program, and not from the checkpoint.
    pub fn has_archive(self) -> bool {
        self != Self::Xla
    }
}

impl Target {
    /// This machine, by what its processor says.
    pub fn host() -> Self {
        let features = host_features().into_iter().filter(|(_, has)| *has).map(|(name, _)| name.to_owned());
        Self { features: Some(features.collect()), ..Self::processor("host") }
    }

    /// A processor that LLVM knows, on this platform.
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

    /// XLA, on whatever devices it finds.
    pub fn xla() -> Self {
        Self { backend: Backend::Xla, machine: Machine::GPU, ..Self::processor("generic") }
    }

    /// Whether the code depends on the processor of the machine that compiles.
    pub fn is_host(&self) -> bool {
        self.device == DeviceKind::Cpu && self.processor == "host"
    }

    /// The architecture in Rust's name, which differs from LLVM's for one.
    pub fn architecture(&self) -> &str {
        match self.triple.as_deref().and_then(|triple| triple.split('-').next()) {
            Some("arm64") => "aarch64",
            Some(name) => name,
            None => std::env::consts::ARCH,
        }
    }

    /// Whether programs ask Linux for what a system gives.
    pub fn is_linux(&self) -> bool {
        match &self.triple {
            Some(triple) => triple.contains("linux"),
            None => std::env::consts::OS == "linux",
        }
    }

    /// Whether the compiler packs weights of an element type when the program is loaded, for the processor's own
    /// instructions, where no kernel reads them. Memory holds the packed copy then.
    ///
    /// Where a processor has no instructions for bf16, IREE 3.13 has no kernel for the packed form either: a product of
    /// 128 rows was 60 times slower than unpacked (a row of 2048 × 8192 on AVX-512 without `avx512bf16`).
    pub fn repacks(&self, bf16: bool) -> bool {
        self.device == DeviceKind::Cpu && (!bf16 || self.has_bf16() == Some(true))
    }

    /// Whether the processor multiplies bf16; `None` if its features are not known yet.
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
