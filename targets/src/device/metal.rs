//! Apple's graphics processors. Apple's GPUs. The module contains source code in Metal's language,
//! which the operating system compiles.

use super::{Description, vulkan};
use crate::{Machine, Target};

pub(super) const METAL: Description = Description {
    name: "metal",
    processor: "macos",
    machine: Machine::GPU,
    flags,
    // Metal's language is written from the SPIR-V that Vulkan takes.
    lacks: vulkan::lacks,
    miscounts: vulkan::miscounts,
};

fn flags(target: &Target) -> Vec<String> {
    vec![
        "--iree-hal-target-device=metal".into(),
        format!("--iree-metal-target-platform={}", target.processor),
        // Apple's own tools would make machine code of it.
        "--iree-metal-compile-to-metallib=false".into(),
    ]
}
