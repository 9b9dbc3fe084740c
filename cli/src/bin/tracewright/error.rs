//! Everything that ends a command.

use std::path::PathBuf;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(
    not(feature = "iree"),
    allow(dead_code, reason = "some errors are those of `generate` and `export`")
)]
pub enum Error {
    /// This binary has no runtime.
    #[cfg(not(feature = "iree"))]
    #[error(
        "`{command}` needs the IREE runtime, and this binary was built without it; \
         build with `cargo build --release --features iree` after `cargo xtask setup`, \
         or run `cargo xtask demo`, which does both"
    )]
    WithoutIree {
        /// The command.
        command: &'static str,
    },
    /// Arguments that do not go together.
    #[error("{what}")]
    Usage {
        /// What is wrong, and what to do.
        what: String,
    },
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// A file cannot be read or written.
    #[error("cannot {action} `{}`", .path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// stdout is closed.
    #[error("cannot write to stdout")]
    Output(#[source] std::io::Error),
    #[error(transparent)]
    Config(#[from] tracewright::models::config::ConfigError),
    #[error(transparent)]
    Plan(#[from] tracewright::PlanError),
    #[error(transparent)]
    Archive(#[from] tracewright::irpa::Error),
    #[error(transparent)]
    Bake(#[from] tracewright::bake::BakeError),
    #[error(transparent)]
    Random(#[from] tracewright::random::RandomError),
    #[cfg(feature = "iree")]
    #[error(transparent)]
    Export(#[from] tracewright::export::ExportError),
    #[cfg(feature = "iree")]
    #[error(transparent)]
    Load(#[from] tracewright::load::LoadError),
    #[cfg(feature = "iree")]
    #[error(transparent)]
    Generate(#[from] tracewright::generate::Error),
    #[cfg(feature = "iree")]
    #[error("cannot write `{}`", .path.display())]
    Logits {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: safetensors::SafeTensorError,
    },
}

#[cfg(feature = "iree")]
impl From<tracewright::runtime::Error> for Error {
    fn from(error: tracewright::runtime::Error) -> Self {
        Self::Load(error.into())
    }
}

#[cfg(feature = "iree")]
impl From<tracewright::runtime::CompileError> for Error {
    fn from(error: tracewright::runtime::CompileError) -> Self {
        Self::Load(error.into())
    }
}
