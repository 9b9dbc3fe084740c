//! Models that XLA's plugin for the CPU runs.

use std::path::Path;

use tracewright::ops::ElementType;
use tracewright::targets::DeviceName;
use tracewright::trace::Quantization;
use tracewright::{Model, NumericOptions, OpenOptions};

use crate::built::repository;

/// Options that open a model with unquantized weights in f32 with this plugin.
pub fn options(plugin: &Path) -> OpenOptions {
    OpenOptions {
        plugin: Some(plugin.to_owned()),
        device: Some(DeviceName::CPU),
        numeric: NumericOptions {
            dtype: Some(ElementType::F32),
            quantize: Some(Quantization::Computed),
            ..NumericOptions::default()
        },
        cache: Some(repository().join(".tracewright/cache")),
        ..OpenOptions::default()
    }
}

/// The size of the state of one sequence, in bytes.
pub fn state_bytes(model: &Model) -> u64 {
    let signatures = model.info().build.iter().flat_map(|build| &build.signatures);
    let decode = signatures.filter(|signature| signature.name.starts_with("decode")).take(1);
    let arguments = decode.flat_map(|signature| &signature.arguments);
    let state = arguments.filter(|argument| argument.role.to_string().starts_with("state"));
    state.map(|argument| (argument.ty.bytes() / argument.ty.shape[0]) as u64).sum()
}
