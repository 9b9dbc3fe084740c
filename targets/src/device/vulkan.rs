//! Graphics processors of any manufacturer, whose programs are SPIR-V.

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

/// Names of drivers, each with the processor that it represents in the compiler's notation.
const DRIVERS: [(&str, &str); 1] = [("llvmpipe", "llvmpipe")];

/// Features of a device in `VkPhysicalDevice…Features`, and the corresponding SPIR-V capabilities.
const CAPABILITIES: [(&str, &str); 2] =
    [("storageBuffer16BitAccess", "cap:StorageBuffer16BitAccess"), ("shaderFloat16", "cap:Float16")];

/// Rejects element types that iree-compile 3.13 cannot compile. The compiler packs four bf16 into two words,
/// for which it has no SPIR-V on any device ("failed to legalize operation 'vector.bitcast'"). The same error
/// occurs for f16 if the target does not support 16-bit storage. If a target does not support storage of a
/// type's width, programs read wrong numbers without an error: i8 in the baseline, and i4 on all devices.
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

/// Rejects element types with wrong arithmetic in iree-compile 3.13. The result of an operation on i8 is not
/// reduced to 8 bits before a matmul of several rows reads it (docs/upstream/bytes_wrap.mlir). Weights in 4
/// bits would be unpacked wrongly.
pub(super) fn miscounts(element: &str) -> Option<Unsupported> {
    (element == "i8").then_some(Unsupported::Arithmetic)
}

impl Target {
    /// The target for a Vulkan device, from its driver's name and its features in
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
