//! Declares [`PjrtError`], and [`PjrtStatus`], which is an error that a plugin reports.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use ops::{ElementType, TensorType};

/// A status code of Abseil's `status.h`, and the plugin's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PjrtStatus {
    pub code: i32,
    pub message: String,
}

impl PjrtStatus {
    /// The status code that a plugin returns if a device has no memory left.
    const EXHAUSTED: i32 = 8;

    /// From code 1 on.
    const NAMES: [&str; 16] = [
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];

    pub fn is_out_of_memory(&self) -> bool {
        self.code == Self::EXHAUSTED
    }
}

impl fmt::Display for PjrtStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let index = usize::try_from(self.code).ok().and_then(|code| code.checked_sub(1));
        let name = index.and_then(|index| Self::NAMES.get(index)).unwrap_or(&"an unknown code");
        write!(f, "the plugin reports {name}")?;
        if self.message.is_empty() { Ok(()) } else { write!(f, ": {}", self.message) }
    }
}

/// The reason why a plugin cannot be loaded, or why a function of a plugin fails.
#[derive(Debug, thiserror::Error)]
pub enum PjrtError {
    #[error("Tracewright found no PJRT plugin for `{platform}` in {folders} folders of Python packages{}", install(*.package))]
    NoPlugin { platform: String, package: Option<&'static str>, folders: usize },
    /// Missing, damaged, for another platform, or a system library is missing.
    #[error("the plugin `{}` cannot be loaded", .path.display())]
    Library { path: PathBuf, source: libloading::Error },
    #[error("the plugin `{}` is damaged: the file has {found} bytes, expected {expected}; install the plugin again", .path.display())]
    Cut {
        path: PathBuf,
        /// The size of the whole plugin file according to its headers, in bytes.
        expected: u64,
        /// The actual size of the truncated plugin file, in bytes.
        found: u64,
    },
    #[error(
        "`{}` is not a PJRT plugin: the library exports no `GetPjrtApi`, or this function returns no table of \
        functions; install another plugin", .path.display()
    )]
    NoApi { path: PathBuf },
    /// The plugin implements an unsupported version of the PJRT C API.
    #[error(
        "the plugin `{}` has version {}.{} of the PJRT API, expected 0.{} or a later 0.N; install a newer plugin",
        .path.display(), .found.0, .found.1, crate::OLDEST_MINOR
    )]
    Version {
        path: PathBuf,
        /// The major and the minor version of the API that the plugin implements.
        found: (i32, i32),
    },
    /// The plugin's table of functions does not contain a required function.
    #[error("the plugin `{}` lacks the function `{function}` of the PJRT API; install another plugin", .path.display())]
    Missing { path: PathBuf, function: &'static str },
    /// The plugin does not start, for example because a driver or a library is missing.
    #[error("the plugin `{}` does not start: {status}", .path.display())]
    Start { path: PathBuf, status: PjrtStatus },
    #[error("there is no device {ordinal}: the platform `{platform}` has {count} device(s)")]
    NoDevice { platform: String, ordinal: usize, count: usize },
    #[error("the platform `{platform}` has {found} device(s), expected at least {expected}")]
    FewDevices {
        platform: String,
        expected: usize,
        /// The most that the platform can have in this process.
        found: usize,
    },
    #[error("the module does not compile: {0}")]
    Compile(PjrtStatus),
    #[error("result {index} of the module has an element type that is not supported")]
    ResultType { index: usize },
    /// XLA and the host use different byte formats for numbers of this element type.
    #[error("a tensor of {0} cannot be uploaded, expected f32, f16, bf16, i32, i8 or i1")]
    Element(ElementType),
    #[error("a tensor of the type `{ty}` takes {expected} bytes, found {found}")]
    ByteCount { ty: TensorType, expected: usize, found: usize },
    #[error("bytes {start} to {end} are outside a tensor of type `{ty}`")]
    Range { ty: TensorType, start: usize, end: usize },
    #[error("the device has no memory left to {action}: {status}")]
    OutOfMemory {
        /// The failed operation, such as `call the module`.
        action: String,
        status: PjrtStatus,
    },
    /// Different devices store different rows of a tensor, so a single device cannot copy a range of rows.
    #[error("the tensor of type `{ty}` is divided along its first axis, expected all rows on each device")]
    DividedRows { ty: TensorType },
    #[error("the plugin for `{platform}` cannot store executables")]
    NotStored { platform: String },
    /// An argument of a call belongs to another client than the program.
    #[error("the argument {index} belongs to another PJRT client than the program")]
    OtherClient { index: usize },
    #[error("the tensor {index} is on the devices {found:?}, expected {expected:?}")]
    OtherDevices { index: usize, expected: Range<usize>, found: Range<usize> },
    /// The placement cannot divide a tensor of the type `ty` into equal parts.
    #[error("a tensor of type `{ty}` cannot be divided into {parts:?} parts")]
    Placement {
        ty: TensorType,
        /// Along each axis of `ty`.
        parts: Vec<usize>,
    },
    #[error("the module has {found} results, expected {expected}")]
    ResultCount { expected: usize, found: usize },
    #[error("cannot {action}: {status}")]
    Failed {
        /// Such as `call the module`.
        action: String,
        status: PjrtStatus,
    },
}

/// The end of the message about a missing plugin: which package to install.
fn install(package: Option<&str>) -> String {
    package.map_or_else(String::new, |package| format!("; install the package `{package}`"))
}

impl PjrtError {
    pub(crate) fn failed(action: impl Into<String>, status: PjrtStatus) -> Self {
        let action = action.into();
        if status.is_out_of_memory() {
            Self::OutOfMemory { action, status }
        } else {
            Self::Failed { action, status }
        }
    }
}
