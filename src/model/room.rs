//! Threads with room for deeply nested input.

use std::thread;

use super::error::ModelError;

/// Stack bytes of threads for nested untrusted input. The system allocates only the part that is used.
pub const STACK: usize = 256 << 20;

/// Runs `work` on a thread with a large stack, because the input of `work` may be deeply nested.
pub fn with_room<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, ModelError> {
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("text".into()).stack_size(STACK).spawn_scoped(scope, work);
        match worker.map_err(ModelError::Thread)?.join() {
            Ok(done) => Ok(done),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
