//! Detects the features of the processor in the machine that runs Tracewright.

/// Contains the processor features that Rust's standard library can detect, by LLVM's name, and
/// whether this machine's processor has each feature.
pub fn host_features() -> Vec<(&'static str, bool)> {
    let mut features = detected();
    features.sort_unstable();
    features
}

/// Detects processor features with Rust's standard library. Each item contains LLVM's name of the
/// feature, and Rust's name if Rust uses a different name.
macro_rules! detect {
    ($detected:ident: $($llvm:tt $(= $rust:tt)?,)*) => {
        vec![$(($llvm, detect!(@one $detected $llvm $($rust)?)),)*]
    };
    (@one $detected:ident $llvm:tt) => { std::arch::$detected!($llvm) };
    (@one $detected:ident $llvm:tt $rust:tt) => { std::arch::$detected!($rust) };
}

#[cfg(target_arch = "x86_64")]
fn detected() -> Vec<(&'static str, bool)> {
    let mut features = detect![is_x86_feature_detected:
        "adx", "aes", "avx", "avx2", "avx512bf16", "avx512bitalg", "avx512bw", "avx512cd", "avx512dq",
        "avx512f", "avx512fp16", "avx512ifma", "avx512vbmi", "avx512vbmi2", "avx512vl", "avx512vnni",
        "avx512vp2intersect", "avx512vpopcntdq", "avxifma", "avxneconvert", "avxvnni", "avxvnniint16",
        "avxvnniint8", "bmi" = "bmi1", "bmi2", "cx16" = "cmpxchg16b", "f16c", "fma", "fxsr", "gfni",
        "lzcnt", "movbe", "pclmul" = "pclmulqdq", "popcnt", "rdrnd" = "rdrand", "rdseed", "sha", "sha512",
        "sm3", "sm4", "sse", "sse2", "sse3", "sse4.1", "sse4.2", "sse4a", "ssse3", "tbm", "vaes",
        "vpclmulqdq", "xsave", "xsavec", "xsaveopt", "xsaves",
    ];
    features.extend(tiles());
    features
}

/// Detects tile registers (AMX), which stable Rust cannot detect. The processor must have tile registers
/// (CPUID leaf 7), and the operating system must save the content of the tile registers. The operating system
/// saves tile registers if the size of the saved state (leaf 13, `EBX`) includes the end of the tile data
/// (subleaf 18). Source: Intel, "64 and IA-32 Architectures Software Developer's Manual", volume 2, `CPUID`.
#[cfg(target_arch = "x86_64")]
fn tiles() -> [(&'static str, bool); 3] {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const FEATURES: u32 = 7;
    const SAVED: u32 = 13;
    const TILE_DATA: u32 = 18;
    let is_saved = __cpuid(0).eax >= SAVED && {
        let (all, data) = (__cpuid_count(SAVED, 0).ebx, __cpuid_count(SAVED, TILE_DATA));
        data.eax > 0 && all >= data.ebx + data.eax
    };
    let features = if is_saved { __cpuid_count(FEATURES, 0).edx } else { 0 };
    [("amx-bf16", 22), ("amx-int8", 25), ("amx-tile", 24)].map(|(name, bit)| (name, features >> bit & 1 == 1))
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

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// Tests that the detected features agree with the features that Linux lists for this machine.
    #[test]
    fn tiles_are_what_linux_lists() {
        let Ok(listed) = std::fs::read_to_string("/proc/cpuinfo") else { return };
        let flags = listed.lines().find(|line| line.starts_with("flags")).unwrap();
        let of_linux = |name: &str| flags.split_whitespace().any(|flag| flag == name.replace('-', "_"));
        for (name, has) in tiles() {
            assert_eq!(has, of_linux(name), "{name}");
        }
    }
}
