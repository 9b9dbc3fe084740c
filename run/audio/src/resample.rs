//! Changes the sampling rate piece by piece, so that only the result is in memory.

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Fft, FixedSync, Indexing, Resampler as _, WindowFunction};

/// The least length of a Fourier transform, in samples of the source.
const TRANSFORM: usize = 512;

/// The transforms of a call.
const TRANSFORMS: usize = 8;

/// Changes the rate of a whole clip, without delay.
pub fn resample(samples: &[f32], from: u32, to: u32) -> Vec<f32> {
    let mut rate = Rate::new(from, to);
    rate.push(samples);
    rate.finish()
}

/// A clip of n samples becomes ⌈n · to / from⌉ samples. The first one is at the time of the source's first.
pub(crate) struct Rate {
    /// `None` if the rates are equal.
    fft: Option<Fft<f64>>,
    ratio: f64,
    /// The samples that a call takes.
    chunk: usize,
    /// Not processed yet; shorter than a chunk between calls.
    pending: Vec<f64>,
    taken: usize,
    result: Vec<f32>,
    /// Samples of the filter's delay, which are still to be removed.
    delay: usize,
}

impl Rate {
    pub fn new(from: u32, to: u32) -> Self {
        let (source, target) = (from.max(1) as usize, to.max(1) as usize);
        // A transform is a multiple of this block. An odd one would delay the samples by half a sample.
        let block = 2 * source / divisor(source, target);
        let chunk = TRANSFORM.next_multiple_of(block) * TRANSFORMS;
        let fft = || {
            let (window, side) = (WindowFunction::BlackmanHarris2, FixedSync::Input);
            // Both rates and the chunk are positive, and nothing else can be wrong.
            Fft::new_custom(source, target, chunk, TRANSFORMS, 1, window, side).ok()
        };
        let fft = (source != target).then(fft).flatten();
        let delay = fft.as_ref().map_or(0, |fft| fft.output_delay());
        let ratio = target as f64 / source as f64;
        Self { fft, ratio, chunk, pending: Vec::new(), taken: 0, result: Vec::new(), delay }
    }

    pub fn push(&mut self, samples: &[f32]) {
        self.taken += samples.len();
        if self.fft.is_none() {
            return self.result.extend(samples);
        }
        self.pending.extend(samples.iter().map(|&x| f64::from(x)));
        let mut done = 0;
        while self.pending.len() - done >= self.chunk {
            self.process(done, self.chunk);
            done += self.chunk;
        }
        self.pending.drain(..done);
    }

    /// Appends zeros until the delayed end of the clip has left the filter.
    pub fn finish(mut self) -> Vec<f32> {
        let length = (self.taken as f64 * self.ratio).ceil() as usize;
        if self.fft.is_some() {
            let rest = self.pending.len();
            self.pending.resize(self.chunk, 0.0);
            if rest > 0 {
                self.process(0, rest);
            }
            while self.result.len() < length {
                self.process(0, 0);
            }
        }
        self.result.truncate(length);
        self.result
    }

    /// Processes `count` pending samples from `start` on, followed by zeros up to a chunk.
    fn process(&mut self, start: usize, count: usize) {
        let Some(fft) = &mut self.fft else { return };
        let mut output = vec![0.0; fft.output_frames_max()];
        let frames = output.len();
        let input = InterleavedSlice::new(&self.pending[start..start + self.chunk], 1, self.chunk);
        let written = InterleavedSlice::new_mut(&mut output, 1, frames);
        let (Ok(input), Ok(mut written)) = (input, written) else {
            unreachable!("the slices have these sizes")
        };
        let indexing = Indexing::new().partial_len(count);
        match fft.process_into_buffer(&input, &mut written, Some(&indexing)) {
            Ok((_, made)) => output.truncate(made),
            Err(_) => unreachable!("the buffers have the sizes that the filter asks for"),
        }
        let skipped = self.delay.min(output.len());
        self.delay -= skipped;
        self.result.extend(output[skipped..].iter().map(|&x| x as f32));
    }
}

/// The greatest number that divides both.
fn divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { divisor(b, a % b) }
}
