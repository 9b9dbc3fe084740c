//! Decides how a program computes matmuls with quantized weights.

use ops::format::ActivationBits;
use targets::{Backend, DeviceKind, Target};

/// For at most this number of activation rows, XLA's CUDA compiler fuses the sums of all rows into
/// one kernel. A larger number of sums would need too many registers.
const FUSED_ROWS_ON_CUDA: usize = 8;

/// How a program computes a matmul with a quantized weight.
#[derive(Clone, Copy)]
pub(crate) enum QuantizedMatmul {
    /// The program rounds the activations to integers.
    Rounded(ActivationBits),
    /// XLA multiplies the dequantized weight by the activations, without rounding the activations. In a call
    /// with at most `fused_rows` activation rows, XLA never writes the dequantized weight to memory.
    InXla { fused_rows: usize },
}

impl QuantizedMatmul {
    pub(crate) fn of(activations: ActivationBits, target: &Target) -> Self {
        match (target.backend, target.device) {
            (Backend::Xla, DeviceKind::Cuda) => Self::InXla { fused_rows: FUSED_ROWS_ON_CUDA },
            // On a processor, XLA does not fuse the sums of several rows.
            (Backend::Xla, _) => Self::InXla { fused_rows: 1 },
            _ => Self::Rounded(activations),
        }
    }

    /// The integers to which a kernel rounds the activations. XLA calls no kernel that reads a
    /// quantized weight.
    pub(crate) fn activations(self) -> ActivationBits {
        match self {
            Self::Rounded(activations) => activations,
            Self::InXla { .. } => ActivationBits::default(),
        }
    }
}
