//! Declares the errors of IREE and of IREE's drivers.

use std::fmt;
use std::ops::Range;

use ops::TensorType;
use targets::{DeviceKind, DeviceName};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatusCode {
    Cancelled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
    Deferred,
    Incompatible,
}

impl StatusCode {
    /// From number 1 on.
    const ALL: [Self; 18] = [
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
        Self::Deferred,
        Self::Incompatible,
    ];
}

/// An error of IREE, without source locations and stack traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub code: StatusCode,
    pub message: String,
}

impl Status {
    /// `FILE:LINE: CODE; message; message…`, perhaps with stack frames on separate lines.
    pub(crate) fn new(code: u32, text: &str) -> Self {
        let index = (code as usize).wrapping_sub(1);
        let code = StatusCode::ALL.get(index).copied().unwrap_or(StatusCode::Unknown);
        let frame = |line: &str| line.trim_start().starts_with('[');
        let text: Vec<_> = text.lines().filter(|line| !frame(line)).map(str::trim).collect();
        let text = text.join(" ");
        let message = text.split_once("; ").map_or("", |(_, message)| message);
        Self { code, message: message.trim_end_matches([';', ' ']).to_owned() }
    }

    /// Success without an object.
    pub(crate) fn no_object() -> Self {
        Self { code: StatusCode::Internal, message: "no object was made".into() }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "iree says {:?}", self.code)?;
        if self.message.is_empty() { Ok(()) } else { write!(f, ": {}", self.message) }
    }
}

/// An error of loading or calling a program, after which you can still use the runtime and other programs.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    #[error("IREE cannot create the device: {0}")]
    Device(Status),
    /// This binary was built without the driver for the requested kind of device.
    #[error(
        "this binary was built without the driver for {0} devices; build Tracewright with the cargo feature \
        `{0}`"
    )]
    DriverNotBuilt(DeviceKind),
    /// This binary can still compile and export programs for the device.
    #[error(
        "this binary compiles and exports programs for {0} devices, but cannot run such programs; run the programs \
        with IREE's `iree-run-module`"
    )]
    NotRun(DeviceKind),
    /// It fails, or lacks a system library.
    #[error("the {kind} driver does not start ({needs}): {status}", needs = needs(*kind))]
    Driver { kind: DeviceKind, status: Status },
    #[error("there is no device `{wanted}`: the {kind} driver finds {}", list(found), kind = wanted.kind)]
    NoDevice {
        wanted: DeviceName,
        /// In the order of their numbers.
        found: Vec<String>,
    },
    #[error("cannot profile the device: {0}")]
    Watch(Status),
    /// IREE cannot allocate, fill, read, write or copy a buffer.
    #[error("cannot {action} a buffer of type `{ty}`: {status}")]
    Buffer {
        /// The failed operation, which is `allocate`, `fill`, `read`, `write` or `copy`.
        action: &'static str,
        ty: TensorType,
        status: Status,
    },
    #[error("a buffer of type `{0}` does not fit into the address space")]
    TooLarge(TensorType),
    /// The number of given bytes differs from the number of bytes that the tensor's type requires.
    #[error("a tensor of the type `{ty}` takes {expected} bytes, found {found}")]
    Length { ty: TensorType, expected: usize, found: usize },
    /// A scope is a collection of named parameters.
    #[error("IREE cannot provide the parameters of the scope `{scope}`: {status}")]
    Parameters { scope: String, status: Status },
    #[error(
        "the parameter `{name}` of the scope `{scope}` is at bytes {} to {} of an archive of {size} bytes; \
        the archive may be cut off", range.start, range.end
    )]
    ParameterRange { scope: String, name: String, range: Range<usize>, size: usize },
    #[error("the module needs a parameter that no archive provides: {0}")]
    MissingParameter(Status),
    /// The archive contains fewer bytes for a parameter than the module reads.
    #[error("a parameter is shorter than the module expects: {0}")]
    ShortParameter(Status),
    /// Or truncated.
    #[error("the file is not a compiled module, or the file is cut off; compile the model again: {0}")]
    NotAModule(Status),
    /// The module was compiled for another version of IREE, or for another machine.
    #[error(
        "the module was compiled for another version of IREE or another processor; compile the model again \
        with {wheel}: {0}", wheel = crate::WHEEL
    )]
    OtherVersion(Status),
    #[error("cannot load the module: {0}")]
    Load(Status),
    #[error("the module has no function `{name}`; the module has {}", list(exports))]
    NoFunction { name: String, exports: Vec<String> },
    #[error("function `{function}` takes {expected} arguments, found {found}: `{declaration}`")]
    Arity {
        function: String,
        expected: usize,
        found: usize,
        /// MLIR, as the compiler writes it.
        declaration: String,
    },
    /// An argument of a call belongs to another runtime than the program.
    #[error("argument {index} of function `{function}` belongs to another runtime")]
    OtherRuntime { function: String, index: usize },
    /// A wrong argument, or an error inside the function.
    #[error("call of `{function}` failed: {status}: `{declaration}`")]
    Call {
        function: String,
        /// Counts arguments from 0, so `input2` is the third.
        status: Status,
        /// MLIR, as the compiler writes it.
        declaration: String,
    },
    #[error("result {index} of function `{function}` has an element type that is not supported")]
    ResultType { function: String, index: usize },
}

fn needs(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Vulkan => {
            "it needs the Vulkan loader and a driver for Vulkan 1.3, such as Debian's packages libvulkan1 \
             and mesa-vulkan-drivers"
        }
        DeviceKind::Cuda => "it needs NVIDIA's driver, which brings libcuda",
        DeviceKind::Cpu | DeviceKind::Hip | DeviceKind::Metal => "it needs the maker's driver",
    }
}

fn list(names: &[String]) -> String {
    let quoted: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    if quoted.is_empty() { "none".into() } else { quoted.join(", ") }
}
