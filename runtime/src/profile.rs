//! How long what a device executes takes.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::device::Runtime;
use crate::error::Error;
use crate::ffi;

/// A function of compiled code that was executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executed {
    /// Its name in the module: that of a kernel, or what the compiler called the operations that it fused.
    pub name: String,
    /// How often.
    pub calls: u64,
    /// How long, all calls together, each from its first workgroup to its last.
    pub time: Duration,
}

impl Runtime {
    /// Does `work`, and says what the device executed meanwhile, what took longest first. IREE's own statistics: watching
    /// costs a little time, so that nothing else is to be measured in the same run.
    ///
    /// # Errors
    /// If the device is watched already, or does not tell.
    pub fn profile<T>(&self, work: impl FnOnce() -> T) -> Result<(T, Vec<Executed>), Error> {
        let profile = ffi::Profile::begin(self.raw()).map_err(Error::Profile)?;
        let done = work();
        let mut executed: BTreeMap<String, (u64, Duration)> = BTreeMap::new();
        // One row for each executable that has a function of this name.
        for (name, calls, nanoseconds) in profile.end().map_err(Error::Profile)? {
            let (all, time) = executed.entry(name).or_default();
            *all += calls;
            *time += Duration::from_nanos(nanoseconds);
        }
        let executed = executed.into_iter().map(|(name, (calls, time))| Executed { name, calls, time });
        let mut executed: Vec<Executed> = executed.collect();
        executed.sort_by_key(|one| std::cmp::Reverse(one.time));
        Ok((done, executed))
    }
}
