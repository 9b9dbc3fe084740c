//! Reports the times of the functions that a device executed.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::device::Runtime;
use crate::error::RuntimeError;

/// A compiled function that a device executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executed {
    /// The name of the function in the module. The field contains the name of a kernel, or a name
    /// that the compiler generated for fused operations.
    pub name: String,
    pub calls: u64,
    /// The total time of all executions of the function. An execution begins with its first
    /// workgroup and ends with its last workgroup.
    pub time: Duration,
}

impl Runtime {
    /// Returns all functions that the device has executed since its creation, sorted by name. The device must
    /// be a [`Device::Watched`](crate::Device::Watched). IREE measures the times of the executed functions.
    pub fn executed(&self) -> Result<Vec<Executed>, RuntimeError> {
        let mut executed: BTreeMap<String, (u64, Duration)> = BTreeMap::new();
        // One row for each executable that has a function of this name.
        for (name, calls, nanoseconds) in self.raw().executed().map_err(RuntimeError::Watch)? {
            let (all, time) = executed.entry(name).or_default();
            *all += calls;
            *time += Duration::from_nanos(nanoseconds);
        }
        Ok(executed.into_iter().map(|(name, (calls, time))| Executed { name, calls, time }).collect())
    }
}
