//! Detects the features of this machine's processor with Rust's standard library and IREE's runtime.

use std::collections::BTreeMap;

use crate::ffi;

/// The features of this machine's processor that a compiler may use, sorted by LLVM's names.
pub fn host_cpu_features() -> Vec<String> {
    known().into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
}

/// The required features that this machine's processor lacks. Code that uses these features would crash on
/// this machine. Features that cannot be detected are not in the list.
pub fn missing_cpu_features(required: &[String]) -> Vec<String> {
    let known = known();
    required.iter().filter(|name| known.get(*name) == Some(&false)).cloned().collect()
}

fn known() -> BTreeMap<String, bool> {
    let mut features: BTreeMap<_, _> = ffi::cpu_features().into_iter().collect();
    features.extend(targets::host_features().into_iter().map(|(name, has)| (name.to_owned(), has)));
    features
}
