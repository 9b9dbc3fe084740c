//! How long what a device executes takes.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::device::Runtime;
use crate::error::RuntimeError;

/// A function of compiled code that was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executed {
    /// Its name in the module: that of a kernel, or what the compiler called the operations that it fused.
    pub name: String,
    pub calls: u64,
    /// How long, all calls together, each from its first workgroup to its last.
    pub time: Duration,
}

impl Runtime {
    /// What a [watched](crate::Device::Watched) device has executed since it was opened, by name: IREE's own statistics.
    ///
    /// # Errors
    /// If the device is not watched.
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
