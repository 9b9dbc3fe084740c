//! The processor's cores. Tracewright uses LLVM to compile programs for CPUs.

use super::Description;
use crate::{Machine, Numerics, Target};

pub(super) const CPU: Description = Description {
    name: "cpu",
    processor: "host",
    machine: Machine::CPU,
    flags,
    lacks: |_, _| None,
    miscounts: |_| None,
};

/// By default, the compiler adds the numbers of a sum in an order that depends on the length of vectors.
const IN_ORDER: [&str; 2] =
    ["--iree-llvmcpu-reassociate-fp-reductions=false", "--iree-llvmcpu-skip-intermediate-roundings=false"];

fn flags(target: &Target) -> Vec<String> {
    let mut flags = vec![
        "--iree-hal-target-device=local".into(),
        "--iree-hal-local-target-device-backends=llvm-cpu".into(),
        format!("--iree-llvmcpu-target-cpu={}", target.processor),
    ];
    flags.extend(target.triple.iter().map(|t| format!("--iree-llvmcpu-target-triple={t}")));
    flags.extend(target.changes.iter().map(|f| format!("--iree-llvmcpu-target-cpu-features={f}")));
    if target.numerics == Numerics::Portable {
        flags.extend(IN_ORDER.map(String::from));
    }
    flags
}
