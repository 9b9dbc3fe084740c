//! NVIDIA's GPUs, whose compiled programs consist of PTX code. The GPU driver compiles the PTX code
//! for the installed GPU.

use super::{Description, flags_of};
use crate::Machine;

pub(super) const CUDA: Description = Description {
    name: "cuda",
    // This is the Ampere architecture, whose code also runs on later GPUs. iree-compile 3.13
    // rejects sm_90.
    processor: "sm_80",
    machine: Machine::GPU,
    flags: |target| flags_of("cuda", "cuda", target),
    lacks: |_, _| None,
    miscounts: |_| None,
};
