//! Detects the features of this machine's processor with Rust's standard library and IREE's runtime.

use std::collections::BTreeMap;

use crate::ffi;

/// Returns LLVM's names of the features that this machine's processor has, in alphabetical order.
pub fn host_cpu_features() -> Vec<String> {
    known().into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
}

/// Code that uses one would crash. Without features that cannot be detected.
pub fn missing_cpu_features(required: &[String]) -> Vec<String> {
    let known = known();
    required.iter().filter(|name| known.get(*name) == Some(&false)).cloned().collect()
}

fn known() -> BTreeMap<String, bool> {
    let mut features: BTreeMap<_, _> = ffi::cpu_features().into_iter().collect();
    features.extend(targets::host_features().into_iter().map(|(name, has)| (name.to_owned(), has)));
    features
}
