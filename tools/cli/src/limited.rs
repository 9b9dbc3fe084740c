//! Limits of the operating system for a process that runs what a stranger wrote. The operating system
//! ends the process if it exceeds a limit.

/// In bytes; the process writes no core file.
pub fn limit_memory(bytes: u64) {
    #[cfg(unix)]
    {
        use rustix::process::Resource;
        limit(Resource::As, bytes);
        limit(Resource::Core, 0);
        // If the memory of the machine is full, Linux ends this process before any other. Other systems
        // have no such file.
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    }
    #[cfg(not(unix))]
    let _ = bytes;
}

/// Processor time, in seconds.
pub fn limit_time(seconds: u64) {
    #[cfg(unix)]
    limit(rustix::process::Resource::Cpu, seconds);
    #[cfg(not(unix))]
    let _ = seconds;
}

#[cfg(unix)]
fn limit(resource: rustix::process::Resource, most: u64) {
    // A lower limit that holds already is as good.
    let limit = rustix::process::Rlimit { current: Some(most), maximum: Some(most) };
    let _ = rustix::process::setrlimit(resource, limit);
}
