//! Checkpoints with matrices in quantized blocks: GGUF files and the output folders of `tracewright
//! quantize`.

use std::collections::BTreeMap;

use irpa::{BlockFormat, Checkpoint};
use ops::WeightFormat;
use trace::{Quantization, key_pattern};

/// Returns the storage formats of matmul weights that the checkpoint stores in quantized blocks.
/// The result contains a weight format for each pattern of checkpoint keys.
///
/// Tracewright keeps blocks for which it has a format ([`BlockFormat::ours`]), and converts all
/// others to q8, the format with the least loss. A weight has the same format in all layers.
pub(crate) fn stored_in(checkpoint: &Checkpoint) -> Quantization {
    let mut blocks: BTreeMap<String, Vec<Option<BlockFormat>>> = BTreeMap::new();
    for tensor in checkpoint.tensors().filter(|tensor| tensor.shape.len() > 1) {
        blocks.entry(key_pattern(&tensor.name)).or_default().push(tensor.blocks());
    }
    let format = |formats: &[Option<BlockFormat>]| match formats {
        _ if formats.contains(&None) => None,
        [Some(first), others @ ..] if others.iter().all(|other| *other == Some(*first)) => {
            Some(first.ours().unwrap_or(WeightFormat::Q8))
        }
        _ => Some(WeightFormat::Q8),
    };
    let formats = blocks.into_iter().filter_map(|(key, formats)| Some((key, format(&formats)?)));
    Quantization::by_key(formats.collect())
}
