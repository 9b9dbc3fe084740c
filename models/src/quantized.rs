//! Checkpoints with matrices in quantized blocks: GGUF files and the output folders of `tracewright
//! quantize`.

use std::collections::BTreeMap;

use irpa::{BlockFormat, Checkpoint};
use ops::WeightFormat;
use trace::{Quantization, key_pattern};

/// Returns the storage formats of matmul weights that the checkpoint stores in quantized blocks. The result
/// has the most frequent format for each pattern of checkpoint keys, and the formats of the tensors that have
/// another one. Tracewright keeps blocks for which it has a format ([`BlockFormat::ours`]), and converts all
/// others to q8, the format with the least loss.
pub(crate) fn stored_in(checkpoint: &Checkpoint) -> Quantization {
    let mut tensors: BTreeMap<String, Vec<(&str, Option<BlockFormat>)>> = BTreeMap::new();
    for tensor in checkpoint.tensors().filter(|tensor| tensor.shape.len() > 1) {
        tensors.entry(key_pattern(&tensor.name)).or_default().push((&tensor.name, tensor.blocks()));
    }
    let mut formats = BTreeMap::new();
    for (pattern, tensors) in tensors {
        let own =
            tensors.into_iter().map(|(key, blocks)| Some((key, blocks?.ours().unwrap_or(WeightFormat::Q8))));
        // Layers without blocks share a function with the other layers, so no layer has a format.
        let Some(own) = own.collect::<Option<Vec<_>>>() else { continue };
        let count = |format| own.iter().filter(|(_, other)| *other == format).count();
        let Some(most) = own.iter().map(|(_, format)| *format).max_by_key(|format| (count(*format), *format))
        else {
            continue;
        };
        formats.extend(
            own.iter()
                .filter(|(_, format)| *format != most)
                .map(|(key, format)| ((*key).to_owned(), *format)),
        );
        formats.insert(pattern, most);
    }
    Quantization::by_key(formats)
}
