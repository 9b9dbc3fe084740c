//! Finds the times of words, as `_extract_token_timestamps` of transformers does (`generation_whisper.py`), and joins
//! tokens to words, as its `_combine_tokens_into_words` (`tokenization_whisper.py`).

use std::ops::Range;

use generate::{Features, GenerateError, Tokenizer};
use ops::{Array, ArrayError};
use program::Program;
use serde::Serialize;

use super::ModelError;
use crate::embed::EmbedError;

/// A word of a transcript, with the punctuation next to it. Times are in seconds from the begin of the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SpeechWord {
    /// In most languages with a space at the begin.
    pub word: String,
    /// The begin of its first sound.
    pub start: f64,
    /// The end of its last sound.
    pub end: f64,
}

/// The attention of a text to the positions of the encoder, `[heads, tokens, positions]`.
pub(super) struct AttentionWeights {
    pub numbers: Vec<f32>,
    pub tokens: usize,
    pub positions: usize,
}

impl AttentionWeights {
    /// The position at which each of the tokens `rows` ends. Only the first `heard` positions have sound. `width` is
    /// that of the median filter, an odd number.
    pub fn ends(&self, rows: Range<usize>, heard: usize, width: usize) -> Vec<usize> {
        let heard = heard.min(self.positions);
        let mut mean = vec![0.0f32; rows.len() * heard];
        let heads = self.numbers.chunks_exact((self.tokens * self.positions).max(1));
        let share = heads.len() as f32;
        for head in heads {
            let row = |row: usize| &head[row * self.positions..][..heard];
            let mut normal: Vec<f32> = rows.clone().flat_map(row).copied().collect();
            normalize(&mut normal, heard);
            for (sums, row) in mean.chunks_exact_mut(heard.max(1)).zip(normal.chunks_exact(heard.max(1))) {
                for (sum, number) in sums.iter_mut().zip(filtered(row, width)) {
                    *sum += number / share;
                }
            }
        }
        warp(&mean, rows.len(), heard)
    }
}

/// Columns get the mean 0 and the deviation 1.
fn normalize(matrix: &mut [f32], columns: usize) {
    let rows = (matrix.len() / columns.max(1)) as f32;
    for column in 0..columns {
        let each = || matrix.iter().skip(column).step_by(columns);
        let mean = each().sum::<f32>() / rows;
        let deviation = (each().map(|x| (x - mean) * (x - mean)).sum::<f32>() / rows).sqrt();
        matrix.iter_mut().skip(column).step_by(columns).for_each(|x| *x = (*x - mean) / deviation);
    }
}

/// The median of `width` numbers around each, of a row that is reflected at both ends.
fn filtered(row: &[f32], width: usize) -> Vec<f32> {
    let half = width / 2;
    if row.len() <= half {
        return row.to_vec();
    }
    let last = row.len() - 1;
    let at = |index: isize| {
        let index = index.unsigned_abs();
        row[if index > last { 2 * last - index } else { index }]
    };
    // Numbers that are undefined come last, as in torch.
    let by_size = |a: &f32, b: &f32| match a.partial_cmp(b) {
        Some(order) => order,
        None => a.is_nan().cmp(&b.is_nan()),
    };
    let median = |center: usize| {
        let first = center as isize - half as isize;
        let mut window: Vec<f32> = (first..first + width as isize).map(at).collect();
        window.sort_unstable_by(by_size);
        window[half]
    };
    (0..row.len()).map(median).collect()
}

/// The direction from which the cheapest path through a matrix comes.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    Both,
    Row,
    Column,
}

/// Dynamic time warping: the first column of each row, on the path from corner to corner with the largest sum.
fn warp(matrix: &[f32], rows: usize, columns: usize) -> Vec<usize> {
    let mut steps = vec![Step::Column; rows * columns];
    // The costs of the row above, with that of the corner before the first column.
    let mut above = vec![f32::INFINITY; columns + 1];
    above[0] = 0.0;
    for row in 0..rows {
        let mut own = vec![f32::INFINITY; columns + 1];
        for column in 0..columns {
            let (both, up, left) = (above[column], above[column + 1], own[column]);
            let (cost, step) = if both < up && both < left {
                (both, Step::Both)
            } else if up < both && up < left {
                (up, Step::Row)
            } else {
                (left, Step::Column)
            };
            // As in transformers: sums in f64, rounded to f32.
            own[column + 1] = (f64::from(cost) - f64::from(matrix[row * columns + column])) as f32;
            steps[row * columns + column] = step;
        }
        above = own;
    }
    let mut first = vec![0; rows];
    let (mut row, mut column) = (rows, columns);
    while row > 0 && column > 0 {
        first[row - 1] = column - 1;
        let step = steps[(row - 1) * columns + column - 1];
        row -= usize::from(step != Step::Column);
        column -= usize::from(step != Step::Row);
    }
    // Rows that the path leaves at its first column begin there.
    first[..row].fill(0);
    first
}

/// Joins tokens of a text to words, each with the indices of its tokens. `has_spaces` is false for a language that
/// writes none between words.
pub(super) fn words(
    tokenizer: &Tokenizer,
    tokens: &[u32],
    has_spaces: bool,
) -> Result<Vec<(String, Range<usize>)>, GenerateError> {
    let mut words = characters(tokens, |tokens| tokenizer.decode(tokens))?;
    if has_spaces {
        words = joined(words);
    }
    Ok(punctuated(words))
}

/// Splits tokens wherever they are whole characters.
fn characters<E>(
    tokens: &[u32],
    decode: impl Fn(&[u32]) -> Result<String, E>,
) -> Result<Vec<(String, Range<usize>)>, E> {
    const BROKEN: char = char::REPLACEMENT_CHARACTER;
    let whole: Vec<char> = decode(tokens)?.chars().collect();
    let (mut parts, mut first, mut offset) = (Vec::new(), 0, 0);
    for end in 1..=tokens.len() {
        let part = decode(&tokens[first..end])?;
        let broken = part.chars().position(|c| c == BROKEN);
        // A replacement character of the whole text is no half of a character.
        if broken.is_none_or(|index| whole.get(offset + index).is_none_or(|&c| c == BROKEN)) {
            offset += part.chars().count();
            parts.push((part, first..end));
            first = end;
        }
    }
    Ok(parts)
}

/// Joins parts that neither begin with a space nor are punctuation to the word before.
fn joined(parts: Vec<(String, Range<usize>)>) -> Vec<(String, Range<usize>)> {
    const PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
    let mut words: Vec<(String, Range<usize>)> = Vec::new();
    for (part, tokens) in parts {
        match words.last_mut() {
            Some((word, all)) if !part.starts_with(' ') && !PUNCTUATION.contains(part.trim()) => {
                word.push_str(&part);
                all.end = tokens.end;
            }
            _ => words.push((part, tokens)),
        }
    }
    words
}

/// Joins opening punctuation to the word behind it, and closing punctuation to the word before it.
fn punctuated(mut words: Vec<(String, Range<usize>)>) -> Vec<(String, Range<usize>)> {
    const OPENING: &str = "\"'“¡¿([{-";
    const CLOSING: &str = "\"'.。,，!！?？:：”)]}、";
    let mut behind = words.len().saturating_sub(1);
    for i in (0..behind).rev() {
        if words[i].0.starts_with(' ') && OPENING.contains(words[i].0.trim()) {
            let (opening, tokens) = std::mem::take(&mut words[i]);
            words[behind].0.insert_str(0, &opening);
            words[behind].1.start = tokens.start;
        } else {
            behind = i;
        }
    }
    let mut before = 0;
    for i in 1..words.len() {
        if !words[before].0.ends_with(' ') && CLOSING.contains(words[i].0.as_str()) {
            let (closing, tokens) = std::mem::take(&mut words[i]);
            words[before].0.push_str(&closing);
            words[before].1.end = words[before].1.end.max(tokens.end);
        } else {
            before = i;
        }
    }
    words.retain(|(word, _)| !word.is_empty());
    words
}

/// Tokens that are not real follow those of the text.
pub(super) fn align(program: &Program, tokens: &[u32], mel: &Features) -> Result<Vec<f32>, ModelError> {
    let arguments = || {
        let context = program.signatures()[0].arguments[1].ty.shape[1];
        let mut padded: Vec<i32> = tokens.iter().map(|&token| token.cast_signed()).collect();
        padded.resize(context, 0);
        let frames = mel.numbers.len() / mel.width.max(1);
        Ok::<_, ArrayError>([
            Array::from_slice(&mel.numbers, [1, frames, mel.width])?,
            Array::from_slice(&padded, [1, context])?,
            Array::from_slice(&[tokens.len() as i32], [1])?,
        ])
    };
    let found = program.call("align", &arguments().map_err(EmbedError::from)?).map_err(EmbedError::from)?;
    let weights = found.first().map(Array::to_vec::<f32>).transpose().map_err(EmbedError::from)?;
    Ok(weights.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn tokens_become_words() {
        // `|` ends a token.
        let check = |text: &str, has_spaces: bool, expected: &[&str]| {
            let tokens: Vec<&str> = text.split('|').collect();
            let ids: Vec<u32> = (0..tokens.len() as u32).collect();
            let decode = |ids: &[u32]| -> Result<String, Infallible> {
                Ok(ids.iter().map(|&id| tokens[id as usize]).collect())
            };
            let parts = characters(&ids, decode).unwrap_or_default();
            let found = punctuated(if has_spaces { joined(parts) } else { parts });
            assert_eq!(found.iter().map(|(word, _)| word.as_str()).collect::<Vec<_>>(), expected, "{text}");
            let mut next = 0;
            for (word, tokens) in &found {
                assert_eq!((tokens.start, decode(&ids[tokens.clone()]).as_ref()), (next, Ok(word)));
                next = tokens.end;
            }
            assert_eq!(next, ids.len());
        };
        check(" Ne|ver| tried|,| ever| fa|il|ed|.", true, &[" Never", " tried,", " ever", " failed."]);
        check(" He| said|:| \"|No|,\"| twice|.", true, &[" He", " said:", " \"No,\"", " twice."]);
        check("明|天|。", false, &["明", "天。"]);
        check("明|天|。", true, &["明天。"]);
        check(" (|a|)| -| b", true, &[" (a)", " - b"]);
    }

    #[test]
    fn a_half_character_is_no_word() {
        let bytes = ["a".as_bytes(), &[0xe6, 0x98], &[0x8e], &[0xff], b"b"];
        let decode = |ids: &[u32]| -> Result<String, Infallible> {
            let bytes: Vec<u8> = ids.iter().flat_map(|&id| bytes[id as usize]).copied().collect();
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        let found = characters(&[0, 1, 2, 3, 4], decode).unwrap_or_default();
        assert_eq!(
            found.iter().map(|(word, _)| word.as_str()).collect::<Vec<_>>(),
            ["a", "明", "\u{fffd}", "b"]
        );
        assert_eq!(found[1].1, 1..3);
    }

    #[test]
    fn the_path_has_the_largest_sum() {
        let check = |rows: &[&[f32]], expected: &[usize]| {
            let columns = rows.first().map_or(0, |row| row.len());
            assert_eq!(warp(&rows.concat(), rows.len(), columns), expected, "{rows:?}");
        };
        check(&[&[1.0, 1.0, -1.0, -1.0], &[-1.0, -1.0, 1.0, -1.0], &[-1.0, -1.0, -1.0, 1.0]], &[0, 2, 3]);
        check(&[&[1.0, -1.0], &[1.0, -1.0], &[-1.0, 1.0]], &[0, 0, 1]);
        // Of equal paths, the one that comes along the last token.
        check(&[&[1.0, 1.0, 0.0], &[0.0, 0.0, 1.0]], &[0, 1]);
        check(&[&[f32::NAN, f32::NAN]], &[0]);
        check(&[&[f32::NAN; 3], &[f32::NAN; 3]], &[0, 0]);
        check(&[&[], &[]], &[0, 0]);
        check(&[], &[]);
    }

    #[test]
    fn rows_are_reflected_at_both_ends() {
        assert_eq!(filtered(&[5.0, 1.0, 2.0, 9.0], 3), [1.0, 2.0, 2.0, 2.0]);
        assert_eq!(filtered(&[3.0, 1.0], 5), [3.0, 1.0]);
        let weights = AttentionWeights { numbers: vec![0.5; 12], tokens: 3, positions: 4 };
        assert_eq!(weights.ends(1..3, 4, 7), [0, 0]);
        assert_eq!(weights.ends(0..0, 4, 7), [0; 0]);
        assert_eq!(weights.ends(0..2, 0, 7), [0, 0]);
    }
}
