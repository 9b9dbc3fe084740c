//! [`ExpertsMode`] selects the experts that an entry point computes for a token.

/// Selects the experts that an entry point computes for a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ExpertsMode {
    /// Chosen experts if a call's tokens cannot choose all; otherwise all for every token.
    #[default]
    Auto,
    /// For kernels that read chosen matrices from the stack. Other programs copy them for each token.
    Chosen,
    /// For a mesh that divides the experts, so that each device computes its own.
    All,
}
