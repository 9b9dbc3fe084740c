//! The processor's cores. Tracewright uses LLVM to compile programs for CPUs.

use super::Description;
use crate::{Machine, Target};

pub(super) const CPU: Description = Description {
    name: "cpu",
    processor: "host",
    machine: Machine::CPU,
    flags,
    lacks: |_, _| None,
    miscounts: |_| None,
};

fn flags(target: &Target) -> Vec<String> {
    let mut flags = vec![
        "--iree-hal-target-device=local".into(),
        "--iree-hal-local-target-device-backends=llvm-cpu".into(),
        format!("--iree-llvmcpu-target-cpu={}", target.processor),
    ];
    flags.extend(target.triple.iter().map(|t| format!("--iree-llvmcpu-target-triple={t}")));
    flags.extend(target.changes.iter().map(|f| format!("--iree-llvmcpu-target-cpu-features={f}")));
    flags
}
