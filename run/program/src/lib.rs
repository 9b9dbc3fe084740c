//! Plans, builds, loads and calls programs. A program is a compiled module together with the archive
//! of the module's weights.
//!
//! A [`Plan`] contains a model, and the sizes and formats of the program. [`Lowered`] is the module
//! text and the list of weights, and depends only on the recorded trace. [`footprint`] and
//! [`partition`] compute the memory that the program needs.
//!
//! With the feature `iree`, `build` turns a recorded trace and a checkpoint into a `Program` in one call.
//! Entry points of a `Program` take tensors in host memory. `embed` calls the entry point of an embedding
//! model. `commands` formats command lines with which IREE's own tools compile and call a program.
#[cfg(feature = "iree")]
pub mod build;
#[cfg(feature = "iree")]
pub mod commands;
#[cfg(feature = "iree")]
pub mod embed;
pub mod footprint;
#[cfg(feature = "iree")]
mod later;
mod low_rank;
mod lowered;
pub mod numeric;
pub mod partition;
mod plan;
#[cfg(feature = "iree")]
mod program;
pub mod quant_map;

pub use footprint::{Footprint, Memory};
pub use low_rank::{AdapterError, AdapterRoom};
pub use lowered::{Expanded, Lowered, StagedTrace, primitives};
pub use numeric::NumericOptions;
pub use partition::DevicePartition;
pub use plan::{Plan, PlanError};
#[cfg(feature = "iree")]
pub use program::{CallError, LoadedNetwork, Program};
