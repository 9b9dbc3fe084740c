//! Cuts the tokens of a window at pairs of timestamps, as `_retrieve_segment` of transformers does
//! (`models/whisper/generation_whisper.py`), and decides whether a window is heard again.

use std::io::Write as _;
use std::ops::Range;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::speech::TranscribeOptions;

/// A part of a window. Times are in frames of the spectrogram.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CutSegment {
    pub start: usize,
    pub end: usize,
    /// Its tokens, among those of the window.
    pub tokens: Range<usize>,
}

/// Returns the begin of the next window, after a window of `frames` frames, and the segments. All times count from
/// the window's first frame. `zero` is the token of the timestamp 0; a timestamp has `step` frames.
pub(super) fn cut(tokens: &[u32], zero: u32, frames: usize, step: usize) -> (usize, Vec<CutSegment>) {
    let time = |token: u32| token.checked_sub(zero).map(|steps| steps as usize * step);
    let at = |index: usize| tokens.get(index).copied().and_then(time);
    let pairs = (1..tokens.len()).filter(|&i| at(i - 1).is_some() && at(i).is_some());
    let mut ends: Vec<usize> = pairs.collect();
    // A single timestamp at the end tells that nobody speaks after it.
    let is_single = tokens.len() >= 2 && at(tokens.len() - 2).is_none() && at(tokens.len() - 1).is_some();
    let Some(last) = ends.last_mut() else {
        let spoken = tokens.iter().filter_map(|&token| time(token)).next_back().filter(|&time| time > 0);
        let end = spoken.unwrap_or(frames / step * step);
        return (frames, vec![CutSegment { start: 0, end, tokens: 0..tokens.len() }]);
    };
    let seek = if is_single {
        ends.push(tokens.len());
        frames
    } else {
        // The last segment keeps both timestamps. What follows is heard again from there on.
        *last += 1;
        at(*last - 2).unwrap_or(frames)
    };
    let mut first = 0;
    let segment = |(index, &end): (usize, &usize)| {
        let tokens = first..end;
        first = end;
        let last = if index + 1 < ends.len() || is_single { end - 1 } else { end - 2 };
        let start = at(tokens.start).unwrap_or(0);
        CutSegment { start, end: at(last).unwrap_or(frames), tokens }
    };
    (seek, ends.iter().enumerate().map(segment).collect())
}

/// The fate of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    Good,
    /// The next temperature is tried.
    Failed,
    /// The window is skipped, because nobody speaks.
    Silent,
}

/// As `_need_fallback` of transformers. `ratio` is the compression ratio of the tokens' bytes.
pub(super) fn judge(
    options: &TranscribeOptions,
    ratio: f64,
    avg_logprob: f64,
    no_speech_prob: f64,
) -> Judgement {
    let is_unlikely = |usual| options.logprob_threshold.map_or(usual, |least| avg_logprob < least);
    if is_unlikely(true) && options.no_speech_threshold.is_some_and(|most| no_speech_prob > most) {
        Judgement::Silent
    } else if is_unlikely(false) || options.compression_ratio_threshold.is_some_and(|most| ratio > most) {
        Judgement::Failed
    } else {
        Judgement::Good
    }
}

/// The bytes of a text divided by those of the compressed text.
pub(super) fn compression_ratio(bytes: &[u8]) -> f64 {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    let compressed = encoder.write_all(bytes).and_then(|()| encoder.finish()).unwrap_or_default();
    bytes.len() as f64 / compressed.len().max(1) as f64
}

/// The bytes of tokens whose ratio transformers compares with its threshold.
pub(super) fn token_bytes(tokens: &[u32], vocabulary: usize) -> Vec<u8> {
    let width = vocabulary.max(1).ilog2() as usize / 8 + 1;
    tokens.iter().flat_map(|token| token.to_le_bytes().into_iter().take(width)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_cut_at_pairs_of_timestamps() {
        // `t` and a number is a timestamp, everything else a token of text.
        let check = |text: &str, frames: usize, seek: usize, expected: &[(usize, usize, usize)]| {
            let token = |word: &str| match word.strip_prefix('t') {
                Some(time) => 1000 + time.parse::<u32>().unwrap_or_default(),
                None => 7,
            };
            let tokens: Vec<u32> = text.split_whitespace().map(token).collect();
            let (found_seek, found) = cut(&tokens, 1000, frames, 2);
            let found: Vec<_> = found.iter().map(|one| (one.start, one.end, one.tokens.len())).collect();
            assert_eq!((found_seek, found.as_slice()), (seek, expected), "{text}");
        };
        check("t0 a b t50 t50 c t90 t90", 3000, 180, &[(0, 100, 4), (100, 180, 4)]);
        check("t0 a b t50 t50 c t90", 3000, 3000, &[(0, 100, 4), (100, 180, 3)]);
        check("t0 a t50 t60 c d", 3000, 100, &[(0, 100, 4)]);
        check("t0 a b t50", 3000, 3000, &[(0, 100, 4)]);
        check("t0 a b", 1001, 1001, &[(0, 1000, 3)]);
        check("t5 a b", 3000, 3000, &[(0, 10, 3)]);
        check("", 3000, 3000, &[(0, 3000, 0)]);
    }

    #[test]
    fn windows_are_judged_by_all_thresholds() {
        let options = TranscribeOptions::default();
        let check = |options: &TranscribeOptions, ratio, avg_logprob, no_speech_prob, expected| {
            assert_eq!(judge(options, ratio, avg_logprob, no_speech_prob), expected);
        };
        check(&options, 1.3, -0.9, 0.9, Judgement::Good);
        check(&options, 1.4, -0.9, 0.9, Judgement::Failed);
        check(&options, 1.3, -1.1, 0.5, Judgement::Failed);
        check(&options, 1.4, -1.1, 0.7, Judgement::Silent);
        let lenient = TranscribeOptions { logprob_threshold: None, ..options };
        check(&lenient, 1.3, -9.0, 0.5, Judgement::Good);
        check(&lenient, 1.3, -0.1, 0.7, Judgement::Silent);
    }

    #[test]
    fn repetitions_have_a_large_ratio() {
        assert_eq!(token_bytes(&[1, 258], 51_865), [1, 0, 2, 1]);
        assert_eq!(token_bytes(&[1, 200], 256), [1, 0, 200, 0]);
        // The ratios of Python's `zlib`. The sizes of other implementations differ a little.
        let check = |token: &dyn Fn(u32) -> u32, expected: f64, tolerance: f64| {
            let tokens: Vec<u32> = (0..200).map(token).collect();
            let ratio = compression_ratio(&token_bytes(&tokens, 51_865));
            assert!((ratio / expected - 1.0).abs() < tolerance, "{ratio}, expected {expected}");
        };
        check(&|i| i * i * 7919 % 50_000, 0.973, 0.01);
        check(&|i| i * i * 7919 % 300, 1.747, 0.05);
        check(&|_| 5, 26.7, 0.5);
    }
}
