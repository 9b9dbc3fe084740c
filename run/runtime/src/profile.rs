//! Reports the times of the functions that a device executed.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::device::Runtime;
use crate::error::RuntimeError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executed {
    /// A kernel, or the compiler's name for fused operations.
    pub name: String,
    pub calls: u64,
    /// All executions, each from its first workgroup to the end of its last.
    pub time: Duration,
}

impl Runtime {
    /// Since the device was created, sorted by name. It must be a
    /// [`Device::Watched`](crate::Device::Watched).
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
