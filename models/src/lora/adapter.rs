//! The changes of an adapter, whatever the format of its file.

use std::path::PathBuf;

use irpa::Checkpoint;

/// The changes of an adapter, under the names of its own file.
pub(super) struct Adapter {
    pub path: PathBuf,
    pub tensors: Checkpoint,
    pub updates: Vec<ModuleUpdate>,
    /// Weights that take the place of the model's: the tensor, and the name of the weight.
    pub replaced: Vec<(String, String)>,
}

/// The update of one module, without the user's factor. See [`LowRank`](irpa::LowRank) for the shapes.
pub(super) struct ModuleUpdate {
    /// Such as `model.layers.0.self_attn.q_proj`.
    pub module: String,
    pub a: String,
    pub b: String,
    pub a_transposed: bool,
    pub scale: f64,
    pub inputs_first: bool,
    pub magnitude: Option<String>,
}
