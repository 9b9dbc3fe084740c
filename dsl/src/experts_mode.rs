//! [`ExpertsMode`] selects the experts that an entry point computes for a token.

/// Selects the experts that an entry point computes for a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ExpertsMode {
    /// The entry point computes only the experts that a token chose, if the tokens of a call cannot
    /// choose all experts. Otherwise, it computes all experts for every token.
    #[default]
    Auto,
    /// The entry point computes only the experts that a token chose. Use this mode if a kernel reads
    /// the matrices of the chosen experts from the stack of all matrices. Other programs copy the
    /// matrices for each token.
    Chosen,
    /// The entry point computes all experts for every token. Use this mode if a device mesh divides
    /// the experts, so that each device stores and computes only its own experts.
    All,
}
