//! Parses the message format of gpt-oss:
//! `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`. Source: the
//! harmony response format, <https://github.com/openai/harmony>.

pub const START: &str = "<|start|>";
pub const CHANNEL: &str = "<|channel|>";
pub const MESSAGE: &str = "<|message|>";

/// The tokens that end the text of a message.
pub const ENDS: [&str; 5] = ["<|end|>", "<|call|>", "<|return|>", START, CHANNEL];

/// The names of all special tokens of the harmony format.
pub const MARKERS: [&str; 7] =
    ["<|end|>", "<|call|>", "<|return|>", "<|constrain|>", START, CHANNEL, MESSAGE];

/// The part of a harmony message that the reader is currently reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Harmony {
    /// The header before `<|message|>`, which contains the channel and the recipient.
    Header,
    Analysis,
    Final,
    /// The reader is reading the arguments of a function call.
    Call(String),
}

/// Parses a header such as `<|channel|>commentary to=functions.weather <|constrain|>json`. Returns
/// the kind of text that follows the header.
pub fn part(header: &str) -> Harmony {
    let recipient = header.split("to=functions.").nth(1);
    let name =
        recipient.map(|rest| rest.split(|c: char| c.is_whitespace() || c == '<').next().unwrap_or_default());
    match (name, header.contains("<|channel|>analysis")) {
        (Some(name), _) if !name.is_empty() => Harmony::Call(name.to_owned()),
        (_, true) => Harmony::Analysis,
        _ => Harmony::Final,
    }
}
