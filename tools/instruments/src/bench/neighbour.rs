//! Simulates another program that uses a core of this machine.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use super::{BenchError, Case};

/// Keeps one core busy until dropped; it runs only there.
struct Neighbour {
    leaves: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Neighbour {
    fn moves_in() -> Self {
        let leaves = Arc::new(AtomicBool::new(false));
        let asked = leaves.clone();
        let thread = thread::spawn(move || {
            // If the operating system does not support pinning, the thread keeps any core busy.
            if let Some(core) = core_affinity::get_core_ids().and_then(|cores| cores.first().copied()) {
                core_affinity::set_for_current(core);
            }
            let mut count = 0u64;
            while !asked.load(Ordering::Relaxed) {
                count = black_box(count.wrapping_add(1));
            }
        });
        Self { leaves, thread: Some(thread) }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.leaves.store(true, Ordering::Relaxed);
        // The thread never panics, so the result contains no error.
        self.thread.take().map(JoinHandle::join);
    }
}

impl<'a> Case<'a> {
    /// While a thread keeps one core busy; without a device that counts calls.
    pub fn beside_a_neighbour(self) -> Case<'a> {
        let Self { mut label, work, mut run, .. } = self;
        label.variant.insert("neighbour", "busy".to_owned());
        let run = move || -> Result<f64, BenchError> {
            let _neighbour = Neighbour::moves_in();
            run()
        };
        Self { label, work, run: Box::new(run), watched: None }
    }
}
