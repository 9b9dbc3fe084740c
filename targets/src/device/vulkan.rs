//! Graphics processors of any maker, through SPIR-V.

use super::{Description, Unsupported, flags_of};
use crate::{DeviceKind, Machine, Target};

pub(super) const VULKAN: Description = Description {
    name: "vulkan",
    // The profile that iree-compile takes by itself: what any device of the last years can do.
    processor: "vp_android_baseline_2022",
    machine: Machine::GPU,
    flags: |target| flags_of("vulkan", "vulkan", target),
    lacks,
    miscounts,
};

/// The processors that a driver's own name stands for, in the compiler's words.
const DRIVERS: [(&str, &str); 1] = [("llvmpipe", "llvmpipe")];

/// Features of a device, in the words of `VkPhysicalDevice…Features`, and what SPIR-V calls a program's use of them.
const CAPABILITIES: [(&str, &str); 2] =
    [("storageBuffer16BitAccess", "cap:StorageBuffer16BitAccess"), ("shaderFloat16", "cap:Float16")];

/// iree-compile 3.13 packs four bf16 into two words and has no SPIR-V for that ("failed to legalize operation
/// 'vector.bitcast'"), whatever the device can do; the same with f16 where the target does not store 16 bits. What is
/// narrower than the target stores is read wrong and without a word: i8 in the baseline, i4 everywhere.
pub(super) fn lacks(target: &Target, element: &str) -> Option<Unsupported> {
    let lacks = |words: [&str; 2]| {
        let has = |word: &str| target.features.as_ref().is_none_or(|all| all.iter().any(|f| f == word));
        (!words.into_iter().all(has)).then_some(Unsupported::Device)
    };
    match element {
        "bf16" | "i4" => Some(Unsupported::Compiler),
        "f16" => lacks(["fp16", "b16"]),
        "i8" => lacks(["int8", "b8"]),
        _ => None,
    }
}

/// What an operation on i8 gives is not cut to 8 bits before a product of several rows reads it, in iree-compile 3.13
/// (docs/upstream/bytes_wrap.mlir): weights in 4 bits would be taken apart wrong.
pub(super) fn miscounts(element: &str) -> Option<Unsupported> {
    (element == "i8").then_some(Unsupported::Arithmetic)
}

impl Target {
    /// A device that is reached through Vulkan, by what its driver is called and the features that it has, in the words of
    /// `VkPhysicalDevice…Features`.
    pub fn of_vulkan(driver: &str, features: &[String]) -> Self {
        let target = Self::of_device(DeviceKind::Vulkan);
        let known = DRIVERS.iter().find(|(name, _)| *name == driver);
        if let Some((_, processor)) = known {
            return Self { processor: (*processor).into(), ..target };
        }
        let has = |name: &str| features.iter().any(|feature| feature == name);
        match CAPABILITIES.iter().all(|(feature, _)| has(feature)) {
            true => {
                let capabilities = CAPABILITIES.map(|(_, capability)| capability).join(",");
                Self { changes: Some(format!("spirv:v1.3,cap:Shader,{capabilities}")), ..target }
            }
            false => target,
        }
    }
}
