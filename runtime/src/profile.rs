//! The time of functions that a device executed.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::device::Runtime;
use crate::error::RuntimeError;

/// A function of compiled code that was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executed {
    /// The name of the function in the module: a kernel's name, or the compiler's name for fused operations.
    pub name: String,
    pub calls: u64,
    /// The total time of all calls; a call takes from its first workgroup to its last workgroup.
    pub time: Duration,
}

impl Runtime {
    /// The functions that a [watched](crate::Device::Watched) device has executed since it was opened, by
    /// name. These times are IREE's own statistics.
    ///
    /// # Errors
    /// Returns an error if the device is not watched.
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
