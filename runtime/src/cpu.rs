//! What this machine's processor can do.

use std::collections::BTreeMap;

use crate::ffi;

/// The features of this machine's processor, in LLVM's names, sorted.
///
/// Those that a compiler may put to use: what Rust's standard library and IREE's runtime can ask about.
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
    features.extend(standard().into_iter().map(|(name, has)| (name.to_owned(), has)));
    features
}

/// Asks the standard library about each feature: LLVM's name, or LLVM's and Rust's where they differ.
macro_rules! detect {
    ($detected:ident: $($llvm:tt $(= $rust:tt)?,)*) => {
        vec![$(($llvm, detect!(@one $detected $llvm $($rust)?)),)*]
    };
    (@one $detected:ident $llvm:tt) => { std::arch::$detected!($llvm) };
    (@one $detected:ident $llvm:tt $rust:tt) => { std::arch::$detected!($rust) };
}

#[cfg(target_arch = "x86_64")]
fn standard() -> Vec<(&'static str, bool)> {
    detect![is_x86_feature_detected:
        "adx", "aes", "avx", "avx2", "avx512bf16", "avx512bitalg", "avx512bw", "avx512cd", "avx512dq",
        "avx512f", "avx512fp16", "avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512vl", "avx512vnni",
        "avx512vp2intersect", "avx512vpopcntdq", "avxifma", "avxneconvert", "avxvnni", "avxvnniint16",
        "avxvnniint8", "bmi" = "bmi1", "bmi2", "cx16" = "cmpxchg16b", "f16c", "fma", "fxsr", "gfni",
        "lzcnt", "movbe", "pclmul" = "pclmulqdq", "popcnt", "rdrnd" = "rdrand", "rdseed", "sha", "sha512",
        "sm3", "sm4", "sse", "sse2", "sse3", "sse4.1", "sse4.2", "sse4a", "ssse3", "tbm", "vaes",
        "vpclmulqdq", "xsave", "xsavec", "xsaveopt", "xsaves",
    ]
}

#[cfg(target_arch = "aarch64")]
fn standard() -> Vec<(&'static str, bool)> {
    detect![is_aarch64_feature_detected:
        "aes", "bf16", "complxnum" = "fcma", "crc", "dotprod", "f32mm", "f64mm", "fp16fml" = "fhm",
        "fptoint" = "frintts", "fullfp16" = "fp16", "i8mm", "jsconv", "lse", "neon" = "asimd", "rcpc",
        "rdm", "sha2", "sha3", "sm4", "sve", "sve2", "sve2-aes", "sve2-bitperm", "sve2-sha3", "sve2-sm4",
    ]
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn standard() -> Vec<(&'static str, bool)> {
    Vec::new()
}
