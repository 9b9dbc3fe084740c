//! What can go wrong between Rust and IREE.

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
    /// In the order of the numbers, which begin at one.
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

/// A failure that IREE reported: its code, and its message without source locations and stacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub code: StatusCode,
    /// What IREE says about it.
    pub message: String,
}

impl Status {
    /// From IREE's text, `FILE:LINE: CODE; message; message…` with stack frames on lines of their own.
    pub(crate) fn new(code: u32, text: &str) -> Self {
        let index = (code as usize).wrapping_sub(1);
        let code = StatusCode::ALL.get(index).copied().unwrap_or(StatusCode::Unknown);
        let frame = |line: &str| line.trim_start().starts_with('[');
        let text: Vec<_> = text.lines().filter(|line| !frame(line)).map(str::trim).collect();
        let text = text.join(" ");
        let message = text.split_once("; ").map_or("", |(_, message)| message);
        Self { code, message: message.trim_end_matches([';', ' ']).to_owned() }
    }

    /// A C function that reported success and left nothing.
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

/// A failure at run time. The runtime and every other program stay usable.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The device could not be made.
    #[error("cannot make the device: {0}")]
    Device(Status),
    /// The driver was not built in.
    #[error(
        "this program was built without the driver for {0} devices; build it with the cargo feature `{0}`"
    )]
    DriverNotBuilt(DeviceKind),
    /// Programs for such devices are made here, and run elsewhere.
    #[error(
        "programs for {0} devices are compiled and exported, not run by this program; IREE's `iree-run-module` runs them"
    )]
    NotRun(DeviceKind),
    /// The system has no library for such devices, or the driver fails.
    #[error("the {kind} driver does not start ({needs}): {status}", needs = needs(*kind))]
    Driver { kind: DeviceKind, status: Status },
    /// There is no such device.
    #[error("there is no device `{wanted}`: the {kind} driver finds {}", list(found), kind = wanted.kind)]
    NoDevice {
        wanted: DeviceName,
        /// The names of those that there are, in order.
        found: Vec<String>,
    },
    /// The device does not tell what it executed.
    #[error("there is no account of what the device executed: {0}")]
    Watch(Status),
    /// A buffer could not be allocated, filled or read.
    #[error("cannot {action} a buffer of type `{ty}`: {status}")]
    Buffer {
        /// `allocate`, `fill`, `read`, `write` or `copy`.
        action: &'static str,
        ty: TensorType,
        status: Status,
    },
    /// The type of a buffer does not fit into memory.
    #[error("a buffer of type `{0}` does not fit into the address space")]
    TooLarge(TensorType),
    /// The bytes given for a buffer, or to read one into, are not as many as its type says.
    #[error("type `{ty}` takes {expected} bytes, found {found}")]
    Length {
        ty: TensorType,
        /// How many bytes it takes.
        expected: usize,
        found: usize,
    },
    /// IREE refused a scope of parameters.
    #[error("cannot provide the parameters of scope `{scope}`: {status}")]
    Parameters { scope: String, status: Status },
    /// An entry lies outside the bytes that should hold it.
    #[error(
        "parameter `{name}` of scope `{scope}` lies at bytes {} to {} of an archive that has {size}; \
         is the file truncated?", range.start, range.end
    )]
    ParameterRange {
        scope: String,
        name: String,
        range: Range<usize>,
        /// How many bytes there are.
        size: usize,
    },
    /// The module asks for a parameter that no scope has.
    #[error("the module needs a parameter that was not given: {0}")]
    MissingParameter(Status),
    /// A parameter has fewer bytes than the module reads from it.
    #[error("a parameter is shorter than the module expects: {0}")]
    ShortParameter(Status),
    /// The bytes are no module, or not the whole of one.
    #[error("this is not a compiled module, or it is truncated; compile it again: {0}")]
    NotAModule(Status),
    /// The module was compiled for another version of IREE or for another machine.
    #[error(
        "the module was compiled for another version of iree or another processor; compile it again \
         with {wheel}: {0}", wheel = crate::WHEEL
    )]
    OtherVersion(Status),
    /// The module could not be loaded for another reason.
    #[error("cannot load the module: {0}")]
    Load(Status),
    /// The module exports no function of this name.
    #[error("the module has no function `{name}`; it has {}", list(exports))]
    NoFunction {
        /// The name that was asked for.
        name: String,
        /// The names that there are.
        exports: Vec<String>,
    },
    /// A call gave more or fewer arguments than the function takes.
    #[error("function `{function}` takes {expected} arguments, found {found}: `{declaration}`")]
    Arity {
        function: String,
        expected: usize,
        found: usize,
        /// The function's type as the compiler spells it.
        declaration: String,
    },
    /// A buffer of one runtime was given to a program of another.
    #[error("argument {index} of function `{function}` belongs to another runtime")]
    OtherRuntime { function: String, index: usize },
    /// The call failed: a wrong type or shape, or a failure inside the function.
    #[error("call of `{function}` failed: {status}: `{declaration}`")]
    Call {
        function: String,
        /// What IREE says; `input2` is the third argument.
        status: Status,
        /// The function's type as the compiler spells it.
        declaration: String,
    },
    /// A result has an element type that cannot cross the boundary.
    #[error("result {index} of function `{function}` has an element type that is not supported")]
    ResultType { function: String, index: usize },
}

/// What a driver needs of the system.
fn needs(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Vulkan => {
            "it needs the Vulkan loader and a driver for Vulkan 1.3, as Debian's packages libvulkan1 and \
             mesa-vulkan-drivers have them"
        }
        DeviceKind::Cuda => "it needs NVIDIA's driver, which brings libcuda",
        DeviceKind::Cpu | DeviceKind::Hip | DeviceKind::Metal => "it needs the maker's driver",
    }
}

fn list(names: &[String]) -> String {
    let quoted: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    if quoted.is_empty() { "none".into() } else { quoted.join(", ") }
}
