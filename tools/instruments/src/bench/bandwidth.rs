//! Measures this machine's memory bandwidth, which limits every operation that reads weights once.

use std::hint::black_box;
use std::thread;
use std::time::Instant;

use serde::Serialize;

/// The maximum size of all measurement buffers together, in bytes.
const TOTAL: usize = 2 << 30;
/// The maximum size of one measurement buffer, in bytes.
const EACH: usize = 128 << 20;

/// One for each core; all read and copy in parallel.
pub struct Bandwidth {
    buffers: Vec<Vec<u64>>,
}

/// The measured memory bandwidth in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rates<T = f64> {
    pub read: T,
    /// Bytes per second; each copied byte counts once, although it is read and written.
    pub copy: T,
}

impl Default for Bandwidth {
    fn default() -> Self {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let words = EACH.min(TOTAL / threads) / 8;
        // The value is not zero, so that the operating system allocates all pages.
        Self { buffers: vec![vec![1; words]; threads] }
    }
}

impl Bandwidth {
    pub fn threads(&self) -> usize {
        self.buffers.len()
    }

    /// Read, then copy: each core copies one half of its buffer over the other.
    pub fn measure(&mut self) -> Rates {
        let bytes: usize = self.buffers.iter().map(|buffer| 8 * buffer.len()).sum();
        let read = self.seconds(|buffer| {
            // Eight independent sums, so that an addition does not wait for the previous addition.
            // They are listed because `array::from_fn` is slow without optimizations, as in tests.
            let sum = |sums: [u64; 8], words: &[u64; 8]| {
                let at = |i: usize| sums[i].wrapping_add(words[i]);
                [at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)]
            };
            black_box(buffer.as_chunks().0.iter().fold([0; 8], sum));
        });
        let copy = self.seconds(|buffer| {
            let (from, to) = buffer.split_at_mut(buffer.len() / 2);
            to[..from.len()].copy_from_slice(from);
            black_box(to);
        });
        Rates { read: bytes as f64 / read, copy: bytes as f64 / 2.0 / copy }
    }

    fn seconds(&mut self, work: impl Fn(&mut [u64]) + Sync) -> f64 {
        let start = Instant::now();
        thread::scope(|scope| {
            for buffer in &mut self.buffers {
                scope.spawn(|| work(buffer));
            }
        });
        start.elapsed().as_secs_f64()
    }
}
