//! Splits the text of an answer into reasoning, content and function calls. The type [`AnswerReader`] reads
//! both streamed answers and whole answers. The reader's result does not depend on how the text is divided
//! into pieces. A streamed answer has the same content and the same function calls as a whole answer. The
//! reader returns each function call once.

mod blocks;
mod calls;
mod cut;
mod fence;
mod harmony;
#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::update::{ToolCall, Update};
use blocks::{BLOCKS, CallBlock};
use calls::RawCall;
use fence::FENCE;
use harmony::Harmony;

/// Describes to the reader which parts the text of an answer can contain.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The functions that the model can call, as in OpenAI's API.
    pub tools: Vec<Value>,
    /// Whether the answer contains at most one function call.
    pub is_single: bool,
    /// Whether the whole text is a function call in JSON, because the request requires a call.
    pub is_call: bool,
    /// Whether the whole text is content, without reasoning and function calls.
    pub is_plain: bool,
    /// Whether the text continues an earlier text, so it begins with content.
    pub continues: bool,
    /// The marker that begins reasoning, if the prompt ends with this marker.
    pub reasons: Option<&'static str>,
}

/// The markers that the model writes before and after its reasoning.
pub const REASONING: [(&str, &str); 2] = [("<think>", "</think>"), ("[THINK]", "[/THINK]")];

/// The special tokens that mark function calls.
const OF_CALLS: [&str; 8] = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|python_tag|>",
    "<start_function_call>",
    "<end_function_call>",
];

impl Reading {
    /// Returns the special tokens whose names the text must contain, because the reader needs these names as
    /// markers. If a marker is an ordinary token of the tokenizer, the text contains the marker anyway.
    pub fn shown(&self, is_special: impl Fn(&str) -> bool) -> Vec<String> {
        if self.is_plain || self.is_call {
            return Vec::new();
        }
        let mut shown: Vec<&str> = REASONING.iter().flat_map(|&(open, close)| [open, close]).collect();
        if !self.tools.is_empty() {
            shown.extend(OF_CALLS);
            shown.push("<escape>");
        }
        if is_special(harmony::CHANNEL) {
            shown.extend(harmony::MARKERS);
        }
        shown.into_iter().map(str::to_owned).collect()
    }

    fn calls(&self) -> bool {
        !self.tools.is_empty()
    }
}

/// The part of the answer to which the next unread text belongs.
#[derive(Clone, Debug)]
enum State {
    Start,
    /// The unread text is reasoning, which ends at the given marker.
    Reasoning(&'static str),
    /// The unread text begins with the whitespace between the reasoning and the content.
    Answer,
    Content,
    /// The unread text is inside a block with function calls.
    Call(&'static CallBlock),
    /// The unread text is behind the marker of a Markdown block, which may contain function calls.
    Fence,
    /// The unread text is JSON that may be a function call. The JSON extends to the end of the answer.
    Json,
    Harmony(Harmony),
    /// The unread text is content that extends to the end of the answer.
    Plain,
    /// The whole answer is a single function call in JSON, because the request requires a call.
    Forced,
}

/// Reads the text of one answer.
pub struct AnswerReader {
    reading: Reading,
    state: State,
    /// Unread text; the reader does not know yet whether the text is reasoning, content or a function call.
    rest: String,
    /// Whitespace at the end of the reasoning or the content. If no more text follows, the reader
    /// drops the whitespace.
    space: String,
    /// Whether the reader has returned any reasoning.
    has_reasoned: bool,
    calls: usize,
    /// Whether the limit of new tokens ended the text.
    is_cut: bool,
    /// Whether the text ends inside a function call.
    is_partial: bool,
}

/// Whether the reader can continue with the unread text, or must wait until more text arrives.
#[derive(PartialEq)]
enum Next {
    Goes,
    Waits,
}

impl AnswerReader {
    pub fn new(reading: Reading) -> Self {
        let state = match &reading {
            Reading { is_call: true, .. } => State::Forced,
            Reading { is_plain: true, .. } => State::Plain,
            Reading { reasons, .. } => {
                let closes = REASONING.iter().find(|(open, _)| *reasons == Some(open));
                let begin = if reading.continues { State::Content } else { State::Start };
                closes.map_or(begin, |(_, close)| State::Reasoning(close))
            }
        };
        Self {
            reading,
            state,
            rest: String::new(),
            space: String::new(),
            has_reasoned: false,
            calls: 0,
            is_cut: false,
            is_partial: false,
        }
    }

    /// Adds a piece of text, and returns the parts of the answer that no later text can change.
    pub fn push(&mut self, piece: &str) -> Vec<Update> {
        self.rest.push_str(piece);
        self.read(false)
    }

    /// Ends the text, and returns the remaining parts of the answer. If `is_cut`, the text ends at the limit of new
    /// tokens, possibly inside a function call.
    pub fn finish(&mut self, is_cut: bool) -> Vec<Update> {
        self.is_cut = is_cut;
        self.read(true)
    }

    pub fn has_calls(&self) -> bool {
        self.calls > 0
    }

    /// Whether the answer has function calls, and the last one is complete.
    pub fn ends_with_calls(&self) -> bool {
        self.has_calls() && !self.is_partial
    }

    fn read(&mut self, is_end: bool) -> Vec<Update> {
        let mut out = Vec::new();
        while self.step(is_end, &mut out) == Next::Goes {}
        out
    }

    fn step(&mut self, is_end: bool, out: &mut Vec<Update>) -> Next {
        match self.state.clone() {
            State::Start => self.start(is_end),
            State::Reasoning(close) => self.reasoning(close, is_end, out),
            State::Answer => self.answer(is_end),
            State::Content => self.content(is_end, out),
            State::Call(block) => self.call(block, is_end, out),
            State::Fence => self.fence(is_end, out),
            State::Json => self.json(is_end, out),
            State::Harmony(part) => self.harmony(part, is_end, out),
            State::Plain => {
                let text = std::mem::take(&mut self.rest);
                self.say(text, out);
                Next::Waits
            }
            State::Forced => self.forced(is_end, out),
        }
    }

    fn start(&mut self, is_end: bool) -> Next {
        let text = self.rest.trim_start();
        let opened = REASONING.iter().find(|(open, _)| text.starts_with(open));
        let may_open = |marker: &str| marker.starts_with(text) && !is_end;
        if let Some((open, close)) = opened {
            self.rest = text[open.len()..].to_owned();
            self.state = State::Reasoning(close);
        } else if text.starts_with(harmony::CHANNEL) || text.starts_with(harmony::START) {
            self.rest = text.to_owned();
            self.state = State::Harmony(Harmony::Header);
        } else if REASONING.iter().any(|(open, _)| may_open(open))
            || may_open(harmony::CHANNEL)
            || may_open(harmony::START)
        {
            return Next::Waits;
        } else if self.reading.calls() {
            self.state = State::Answer;
        } else {
            self.state = State::Content;
        }
        Next::Goes
    }

    fn reasoning(&mut self, close: &str, is_end: bool, out: &mut Vec<Update>) -> Next {
        let found = self.rest.find(close);
        let end = found.unwrap_or(if is_end { self.rest.len() } else { held(&self.rest, &[close]) });
        let text = self.rest[..end].to_owned();
        self.rest.drain(..found.map_or(end, |at| at + close.len()));
        self.reason(&text, out);
        match found {
            Some(_) => {
                self.space.clear();
                self.state = State::Answer;
                Next::Goes
            }
            None => Next::Waits,
        }
    }

    /// Adds reasoning to `out`, without whitespace at the beginning and at the end.
    fn reason(&mut self, text: &str, out: &mut Vec<Update>) {
        let text = if self.has_reasoned { text } else { text.trim_start() };
        let kept = text.trim_end();
        if !kept.is_empty() {
            self.has_reasoned = true;
            out.push(Update::Reasoning(std::mem::take(&mut self.space) + kept));
        }
        if self.has_reasoned {
            self.space.push_str(&text[kept.len()..]);
        }
    }

    /// Skips whitespace before the content, and checks whether the text begins with JSON that may
    /// be a function call.
    fn answer(&mut self, is_end: bool) -> Next {
        let text = self.rest.trim_start();
        if text.is_empty() && !is_end {
            return Next::Waits;
        }
        let may_call = self.reading.calls() && (text.starts_with('{') || text.starts_with('['));
        self.state = match calls::looks_like_calls(text) {
            None if may_call && !is_end => return Next::Waits,
            Some(true) if may_call => State::Json,
            _ => State::Content,
        };
        self.rest = text.to_owned();
        Next::Goes
    }

    fn content(&mut self, is_end: bool, out: &mut Vec<Update>) -> Next {
        if !self.reading.calls() {
            let text = std::mem::take(&mut self.rest);
            self.say(text, out);
            return Next::Waits;
        }
        let blocks = BLOCKS.iter().map(|block| (block.open, State::Call(block)));
        let all = blocks.chain([(FENCE, State::Fence)]);
        let found = all.filter_map(|(open, state)| Some((self.rest.find(open)?, open, state)));
        if let Some((at, open, state)) = found.min_by_key(|(at, ..)| *at) {
            let text = self.rest[..at].to_owned();
            self.rest.drain(..at + open.len());
            self.hold(&text, out);
            self.state = state;
            return Next::Goes;
        }
        let opens: Vec<&str> = BLOCKS.iter().map(|block| block.open).chain([FENCE]).collect();
        let end = if is_end { self.rest.len() } else { held(&self.rest, &opens) };
        let text: String = self.rest.drain(..end).collect();
        self.hold(&text, out);
        if is_end && !self.has_calls() {
            let space = std::mem::take(&mut self.space);
            self.say(space, out);
        }
        Next::Waits
    }

    /// Adds content to `out`, but holds back the whitespace at the end of the content.
    fn hold(&mut self, text: &str, out: &mut Vec<Update>) {
        let kept = text.trim_end();
        if !kept.is_empty() {
            let space = std::mem::take(&mut self.space);
            self.say(space + kept, out);
        }
        self.space.push_str(&text[kept.len()..]);
    }

    fn say(&mut self, text: String, out: &mut Vec<Update>) {
        if !text.is_empty() {
            out.push(Update::Content(text));
        }
    }

    fn call(&mut self, block: &'static CallBlock, is_end: bool, out: &mut Vec<Update>) -> Next {
        let found = block.close.and_then(|close| Some((self.rest.find(close)?, close.len())));
        if found.is_none() && !is_end {
            return Next::Waits;
        }
        let (end, length) = found.unwrap_or((self.rest.len(), 0));
        let inside = self.rest[..end].to_owned();
        let close = self.rest[end..end + length].to_owned();
        self.rest.drain(..end + length);
        let calls = (block.parse)(&inside, &self.reading.tools);
        self.state = State::Content;
        // The last parameter of a cut call has no end, but looks like a whole one.
        let is_open = self.is_cut && found.is_none() && inside.contains("<parameter=");
        if !calls.is_empty() && !is_open {
            self.space.clear();
            self.tell(calls, out);
        } else if self.is_cut && found.is_none() {
            self.tell_cut((block.cut)(&inside, &self.reading.tools), out);
        } else {
            self.hold(&[block.open, &inside, &close].concat(), out);
        }
        Next::Goes
    }

    /// Reads the text behind the marker of a Markdown block, in which some models write function calls.
    fn fence(&mut self, is_end: bool, out: &mut Vec<Update>) -> Next {
        let Some((calls, length)) = fence::calls(&self.rest, &self.reading.tools, is_end) else {
            return Next::Waits;
        };
        let text: String = self.rest.drain(..length).collect();
        self.state = State::Content;
        let cut = || cut::cut_json(&text, &self.reading.tools);
        match calls.is_empty() && is_end && self.is_cut && length > 0 {
            true if fence::is_call(&text, &self.reading.tools) => self.tell_cut(cut(), out),
            _ if calls.is_empty() => self.hold(&(FENCE.to_owned() + &text), out),
            _ => {
                self.space.clear();
                self.tell(calls, out);
            }
        }
        Next::Goes
    }

    fn json(&mut self, is_end: bool, out: &mut Vec<Update>) -> Next {
        if !is_end {
            return Next::Waits;
        }
        let calls = calls::json_calls(&self.rest, &self.reading.tools);
        if calls.iter().all(|call| calls::is_known(&self.reading.tools, &call.name)) && !calls.is_empty() {
            self.rest.clear();
            self.tell(calls, out);
            return Next::Waits;
        }
        if self.is_cut && cut::begins_call(&self.rest, &self.reading.tools) {
            let text = std::mem::take(&mut self.rest);
            self.tell_cut(cut::cut_json(&text, &self.reading.tools), out);
            return Next::Waits;
        }
        self.state = State::Content;
        Next::Goes
    }

    fn forced(&mut self, is_end: bool, out: &mut Vec<Update>) -> Next {
        if is_end {
            let text = std::mem::take(&mut self.rest);
            match calls::json_calls(&text, &self.reading.tools) {
                calls if calls.is_empty() && self.is_cut => {
                    self.tell_cut(cut::cut_json(&text, &self.reading.tools), out);
                }
                calls if calls.is_empty() => self.say(text, out),
                calls => self.tell(calls, out),
            }
        }
        Next::Waits
    }

    /// Adds function calls of which the last one may be incomplete.
    fn tell_cut(&mut self, calls: Vec<RawCall>, out: &mut Vec<Update>) {
        self.is_partial = true;
        self.space.clear();
        self.tell(calls, out);
    }

    fn tell(&mut self, calls: Vec<RawCall>, out: &mut Vec<Update>) {
        for RawCall { name, arguments } in calls {
            if self.reading.is_single && self.has_calls() {
                return;
            }
            self.calls += 1;
            out.push(Update::Call(ToolCall { id: calls::id(), name, arguments }));
        }
    }

    fn harmony(&mut self, part: Harmony, is_end: bool, out: &mut Vec<Update>) -> Next {
        if part == Harmony::Header {
            let Some((header, body)) = self.rest.split_once(harmony::MESSAGE) else { return Next::Waits };
            self.state = State::Harmony(harmony::part(header));
            self.rest = body.to_owned();
            return Next::Goes;
        }
        let found = harmony::ENDS.iter().filter_map(|end| self.rest.find(end)).min();
        let is_call = matches!(part, Harmony::Call(_));
        if is_call && found.is_none() && !is_end {
            return Next::Waits;
        }
        self.is_partial |= is_call && found.is_none() && self.is_cut;
        let safe = if is_end { self.rest.len() } else { held(&self.rest, &harmony::ENDS) };
        let text: String = self.rest.drain(..found.unwrap_or(safe)).collect();
        match part {
            Harmony::Header => {}
            Harmony::Analysis => self.reason(&text, out),
            Harmony::Final => self.say(text, out),
            Harmony::Call(name) => self.tell(vec![RawCall { name, arguments: text.trim().to_owned() }], out),
        }
        if found.is_none() {
            return Next::Waits;
        }
        self.space.clear();
        self.state = State::Harmony(Harmony::Header);
        Next::Goes
    }
}

/// Returns the length of the text before the position at which one of the markers may begin.
fn held(text: &str, markers: &[&str]) -> usize {
    let begins = |at: &usize| markers.iter().any(|marker| marker.starts_with(&text[*at..]));
    text.char_indices().map(|(at, _)| at).find(begins).unwrap_or(text.len())
}
