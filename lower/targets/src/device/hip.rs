//! AMD's GPUs, whose compiled programs run with ROCm.

use super::{Description, flags_of};
use crate::Machine;

pub(super) const HIP: Description = Description {
    name: "hip",
    processor: "gfx942",
    machine: Machine::GPU,
    flags: |target| flags_of("hip", "rocm", target),
    lacks: |_, _| None,
    miscounts: |_| None,
};
