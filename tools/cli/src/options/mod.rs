//! The options that several commands of `tracewright` share. The module converts options of the
//! command line to options of the library, opens models, and shows the progress of long operations.
//! If a library's error has a fix on the command line, [`error`] names the option.

pub mod arguments;
#[cfg(feature = "iree")]
pub mod build;
pub mod checkpoint;
pub mod error;
#[cfg(feature = "iree")]
pub mod extras;
pub mod interrupt;
pub mod limit;
#[cfg(feature = "iree")]
pub mod load;
#[cfg(feature = "iree")]
pub mod plugins;
pub mod progress;
#[cfg(feature = "iree")]
pub mod sampler_flags;
pub mod sampling;

/// The prefix of the environment variables that set options.
pub const VARIABLES: &str = "TRACEWRIGHT_";
