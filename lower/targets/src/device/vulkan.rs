//! GPUs of any manufacturer with a Vulkan driver, whose programs consist of SPIR-V.

use super::{Description, Unsupported, flags_of};
use crate::{DeviceKind, Machine, Target};

pub(super) const VULKAN: Description = Description {
    name: "vulkan",
    // This is the default profile of iree-compile, which all devices of the last years support.
    processor: "vp_android_baseline_2022",
    machine: Machine::GPU,
    flags: |target| flags_of("vulkan", "vulkan", target),
    lacks,
    miscounts,
};

/// The names of Vulkan drivers, each with the compiler's name for the processor that the driver represents.
const DRIVERS: [(&str, &str); 1] = [("llvmpipe", "llvmpipe")];

/// Each device feature in `VkPhysicalDevice…Features` has a corresponding SPIR-V capability.
const CAPABILITIES: [(&str, &str); 2] =
    [("storageBuffer16BitAccess", "cap:StorageBuffer16BitAccess"), ("shaderFloat16", "cap:Float16")];

/// Rejects element types that iree-compile 3.13 cannot compile for Vulkan devices. The compiler packs four
/// bf16 into two 32-bit words, but cannot translate the packing operation to SPIR-V for any device ("failed
/// to legalize operation 'vector.bitcast'"). If a target does not support storage with a width of 16 bits,
/// the translation to SPIR-V also fails for f16. If a target does not support storage with the width of an
/// element type, programs read wrong numbers and report no error. Programs for the baseline target read wrong
/// i8 numbers, and programs for all Vulkan devices read wrong i4 numbers.
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

/// Rejects element types for which iree-compile 3.13 generates wrong arithmetic. If a matmul of several rows
/// reads the result of an i8 operation, the program does not reduce the result to 8 bits before the matmul
/// (docs/upstream/bytes_wrap.mlir). Therefore programs would unpack 4-bit weights wrongly.
pub(super) fn miscounts(element: &str) -> Option<Unsupported> {
    (element == "i8").then_some(Unsupported::Arithmetic)
}

impl Target {
    /// Returns the target for a Vulkan device with the given driver name and the given features
    /// from `VkPhysicalDevice…Features`.
    pub fn of_vulkan(driver: &str, features: &[String]) -> Self {
        let target = Self::of_device(DeviceKind::Vulkan);
        let known = DRIVERS.iter().find(|(name, _)| *name == driver);
        if let Some((_, processor)) = known {
            return Self { processor: (*processor).into(), ..target };
        }
        let has = |name: &str| features.iter().any(|feature| feature == name);
        if CAPABILITIES.iter().all(|(feature, _)| has(feature)) {
            let capabilities = CAPABILITIES.map(|(_, capability)| capability).join(",");
            Self { changes: Some(format!("spirv:v1.3,cap:Shader,{capabilities}")), ..target }
        } else {
            target
        }
    }
}
