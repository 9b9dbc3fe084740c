//! The messages to a process for schemas, as frames: a length of four little-endian bytes, and content.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use crate::SchemaNote;
use crate::constraint::matching::Source;
use crate::constraint::refusal::Refusal;

/// The largest length of a frame in bytes.
const LONGEST: u32 = 1 << 30;

#[derive(Debug, Serialize, Deserialize)]
pub enum ConstraintRequest {
    /// Compiles the source. The reply is `Checked`.
    Check { source: Source, stop_tokens: Vec<u32> },
    /// Begins a text. There is no reply.
    Begin { source: Source, stop_tokens: Vec<u32> },
    /// The reply is `Mask`.
    Mask,
    /// Takes a chosen token and at most `most` forced tokens. The reply is `Moved`.
    Advance { token: u32, most: usize },
    /// The answer to [`ConstraintReply::Encode`].
    Encoded(Option<Vec<u32>>),
}

#[derive(Debug, Serialize, Deserialize)]
pub enum ConstraintReply {
    /// The process has read the tokens.
    Ready,
    Checked(Result<Vec<SchemaNote>, Box<Refusal>>),
    Moved {
        tokens: Vec<u32>,
        is_complete: bool,
    },
    Failed(String),
    /// A request to Tracewright: the tokens of this text.
    Encode(String),
    /// One bit per token, or `None` if the text is complete; not in JSON, because a mask is large.
    #[serde(skip)]
    Mask(Option<Vec<u32>>),
}

/// The first byte of a frame with a mask. JSON never begins with this byte.
const MASK: u8 = 0;

impl ConstraintReply {
    pub fn frame(&self) -> io::Result<Vec<u8>> {
        match self {
            Self::Mask(mask) => {
                let words = mask.iter().flatten().flat_map(|word| word.to_le_bytes());
                Ok([MASK, u8::from(mask.is_some())].into_iter().chain(words).collect())
            }
            reply => Ok(serde_json::to_vec(reply)?),
        }
    }

    pub fn of(frame: &[u8]) -> io::Result<Self> {
        match frame {
            [MASK, 0] => Ok(Self::Mask(None)),
            [MASK, 1, words @ ..] => {
                let words = words
                    .chunks_exact(4)
                    .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
                Ok(Self::Mask(Some(words.collect())))
            }
            json => Ok(serde_json::from_slice(json)?),
        }
    }
}

pub fn write_frame(output: &mut impl Write, frame: &[u8]) -> io::Result<()> {
    let length = u32::try_from(frame.len()).map_err(io::Error::other)?;
    output.write_all(&length.to_le_bytes())?;
    output.write_all(frame)?;
    output.flush()
}

pub fn read_frame(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > LONGEST {
        let why = format!("a frame has {length} bytes, expected at most {LONGEST}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let mut frame = Vec::new();
    input.take(length.into()).read_to_end(&mut frame)?;
    if frame.len() < length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(frame)
}

/// Writes the bytes of all tokens, each after its length as four bytes.
pub fn words_frame(words: &[Vec<u8>]) -> Vec<u8> {
    let word = |word: &Vec<u8>| [&(word.len() as u32).to_le_bytes()[..], word].concat();
    words.iter().flat_map(word).collect()
}

pub fn words_of(mut frame: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    while let Some((length, rest)) = frame.split_first_chunk::<4>() {
        let (word, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        words.push(word.to_vec());
        frame = rest;
    }
    frame.is_empty().then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The errors and notes of the process reach the server as they are.
    #[test]
    fn refusals_and_notes_arrive_as_they_were_sent() {
        let prepared = |schema| crate::constraint::schema::prepare(schema, false, 0);
        let syntax = prepared("{\n\"type\" 1}").err().unwrap();
        let kind = prepared(r#"{"type":1}"#).err().unwrap();
        let unsupported = prepared(r#"{"contains":{}}"#).err().unwrap();
        let pattern = prepared(r#"{"pattern":"(a)\\1"}"#).err().unwrap();
        let reference = prepared(r##"{"$ref":"#/x"}"##).err().unwrap();
        let grammar = Refusal::Grammar { at: Some((1, 2)), why: "x".into() };
        let prepared = [syntax, kind, unsupported, pattern, reference].map(Refusal::Prepare);
        let notes = vec![SchemaNote::OneOf { at: "/oneOf".into() }, SchemaNote::Anything];
        let refusals = prepared.into_iter().chain([Refusal::Schema("y".into()), grammar]);
        for checked in refusals.map(|refusal| Err(Box::new(refusal))).chain([Ok(notes)]) {
            let frame = ConstraintReply::Checked(checked.clone()).frame().unwrap();
            let Ok(ConstraintReply::Checked(found)) = ConstraintReply::of(&frame) else { panic!() };
            assert_eq!(found, checked);
        }
    }

    #[test]
    fn messages_arrive_as_they_were_sent() {
        for mask in [None, Some(vec![]), Some(vec![1, u32::MAX])] {
            let Ok(ConstraintReply::Mask(found)) =
                ConstraintReply::of(&ConstraintReply::Mask(mask.clone()).frame().unwrap())
            else {
                panic!()
            };
            assert_eq!(found, mask);
        }
        let words = [b"".to_vec(), b"ab".to_vec()];
        let frame = words_frame(&words);
        assert_eq!(words_of(&frame).unwrap(), words);
        assert_eq!(words_of(&frame[..frame.len() - 1]), None);
        let mut written = Vec::new();
        write_frame(&mut written, &frame).unwrap();
        assert_eq!(read_frame(&mut &written[..]).unwrap(), frame);
        assert!(read_frame(&mut &written[..written.len() - 1]).is_err());
        assert!(read_frame(&mut &[0xff; 4][..]).is_err());
    }
}
