//! What this machine's processor can do.

/// The features that Rust's standard library can ask about, in LLVM's names, and whether this machine's processor
/// has them.
pub fn host_features() -> Vec<(&'static str, bool)> {
    let mut features = detected();
    features.sort_unstable();
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
fn detected() -> Vec<(&'static str, bool)> {
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
fn detected() -> Vec<(&'static str, bool)> {
    detect![is_aarch64_feature_detected:
        "aes", "bf16", "complxnum" = "fcma", "crc", "dotprod", "f32mm", "f64mm", "fp16fml" = "fhm",
        "fptoint" = "frintts", "fullfp16" = "fp16", "i8mm", "jsconv", "lse", "neon" = "asimd", "rcpc",
        "rdm", "sha2", "sha3", "sm4", "sve", "sve2", "sve2-aes", "sve2-bitperm", "sve2-sha3", "sve2-sm4",
    ]
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn detected() -> Vec<(&'static str, bool)> {
    Vec::new()
}
