//! What this machine's processor can do: what Rust's standard library and IREE's runtime can ask about.

use std::collections::BTreeMap;

use crate::ffi;

/// The features of this machine's processor that a compiler may put to use, in LLVM's names, sorted.
pub fn host_cpu_features() -> Vec<String> {
    known().into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
}

/// Those of the features that this machine's processor is known to lack: code compiled for them would
/// crash here. Names that cannot be asked about are not listed.
pub fn missing_cpu_features(required: &[String]) -> Vec<String> {
    let known = known();
    required.iter().filter(|name| known.get(*name) == Some(&false)).cloned().collect()
}

fn known() -> BTreeMap<String, bool> {
    let mut features: BTreeMap<_, _> = ffi::cpu_features().into_iter().collect();
    features.extend(targets::host_features().into_iter().map(|(name, has)| (name.to_owned(), has)));
    features
}
