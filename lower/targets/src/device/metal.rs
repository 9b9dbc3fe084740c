//! Apple's GPUs. A module for Apple's GPUs contains source code in Metal's language, which the
//! operating system compiles.

use super::{Description, vulkan};
use crate::{Machine, Target};

pub(super) const METAL: Description = Description {
    name: "metal",
    processor: "macos",
    machine: Machine::GPU,
    flags,
    // The compiler translates SPIR-V, as for Vulkan, to Metal's language.
    lacks: vulkan::lacks,
    miscounts: vulkan::miscounts,
};

fn flags(target: &Target) -> Vec<String> {
    vec![
        "--iree-hal-target-device=metal".into(),
        format!("--iree-metal-target-platform={}", target.processor),
        // With `true`, Apple's tools would compile the module to machine code.
        "--iree-metal-compile-to-metallib=false".into(),
    ]
}
