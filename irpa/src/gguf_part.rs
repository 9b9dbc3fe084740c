//! Describes GGUF files that contain no language model, such as adapters.

use std::fmt;

/// Belongs to a model, by `general.type` or `general.architecture` (`gguf-py/gguf/constants.py` in
/// llama.cpp).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GgufPart {
    /// The encoder of images or sounds (`mmproj`).
    Projector,
    /// A LoRA adapter.
    Adapter { base: Option<String> },
    /// An importance matrix of `llama-imatrix`.
    Imatrix,
    /// Directions that llama.cpp adds to the activations of a model.
    ControlVector,
    /// A file with a tokenizer, but without tensors.
    Vocabulary,
}

impl fmt::Display for GgufPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MODEL: &str = "expected a language model; name the GGUF file of the model";
        match self {
            Self::Projector => {
                write!(f, "a multimodal projector (mmproj), which encodes images or sounds, {MODEL}")
            }
            Self::Adapter { base } => {
                f.write_str("a LoRA adapter")?;
                base.iter().try_for_each(|base| write!(f, " of `{}`", errors::escaped(base)))?;
                f.write_str(", expected a whole model; open the model, and add the adapter to it")
            }
            Self::Imatrix => write!(f, "an importance matrix for quantization, {MODEL}"),
            Self::ControlVector => {
                write!(f, "a control vector, which steers the activations of a model, {MODEL}")
            }
            Self::Vocabulary => write!(f, "a vocabulary without weights, {MODEL}"),
        }
    }
}
