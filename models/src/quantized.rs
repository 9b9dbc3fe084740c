//! Checkpoints with matrices in quantized blocks: GGUF files and the output folders of `tracewright
//! quantize`.

use std::collections::BTreeMap;

use irpa::{BlockFormat, Checkpoint};
use trace::{Quantization, key_pattern};

/// Returns the storage formats of matmul weights that the checkpoint stores in quantized blocks. The result
/// has the most frequent format for each pattern of checkpoint keys, and the formats of the tensors that have
/// another one. If some tensors of a pattern are not in blocks, only the others have formats.
pub(crate) fn stored_in(checkpoint: &Checkpoint) -> Quantization {
    let mut tensors: BTreeMap<String, Vec<(&str, Option<BlockFormat>)>> = BTreeMap::new();
    for tensor in checkpoint.tensors().filter(|tensor| tensor.shape.len() > 1) {
        tensors.entry(key_pattern(&tensor.name)).or_default().push((&tensor.name, tensor.blocks()));
    }
    let mut formats = BTreeMap::new();
    for (pattern, tensors) in tensors {
        let all = tensors.len();
        let own: Vec<_> =
            tensors.into_iter().filter_map(|(key, blocks)| Some((key, blocks?.ours()?))).collect();
        let count = |format| own.iter().filter(|(_, other)| *other == format).count();
        let most = own.iter().map(|(_, format)| *format).max_by_key(|format| (count(*format), *format));
        let most = most.filter(|_| own.len() == all);
        let others = own.iter().filter(|(_, format)| Some(*format) != most);
        formats.extend(others.map(|(key, format)| ((*key).to_owned(), *format)));
        formats.extend(most.map(|format| (pattern, format)));
    }
    Quantization::by_key(formats)
}
