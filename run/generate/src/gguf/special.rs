//! Finds the special tokens of a GGUF vocabulary by their texts, as llama.cpp does
//! (`llama_vocab::impl::load`). Many files mark the end of a turn as normal, or lack types.

use super::{Kind, Vocabulary};

/// The texts of tokens that end a text even if no metadata key names these tokens.
const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// A token for filling in the middle of a text, which a metadata key or its text identifies.
struct Fill {
    keys: &'static [&'static str],
    texts: &'static [&'static str],
    /// Whether the token ends a text.
    ends: bool,
}

const FILL: [Fill; 6] = [
    Fill {
        keys: &["fim_pre", "prefix"],
        texts: &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
        ends: false,
    },
    Fill {
        keys: &["fim_suf", "suffix"],
        texts: &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
        ends: false,
    },
    Fill {
        keys: &["fim_mid", "middle"],
        texts: &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
        ends: false,
    },
    Fill {
        keys: &["fim_pad"],
        texts: &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
        ends: true,
    },
    Fill {
        keys: &["fim_rep"],
        texts: &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
        ends: true,
    },
    Fill { keys: &["fim_sep"], texts: &["<|file_sep|>"], ends: true },
];

/// The texts of gpt-oss that separate the parts of an answer. llama.cpp shows these tokens as text.
const PARTS: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// The special tokens of Phi-3 that don't remove the spaces behind them.
pub(super) const KEEP_SPACE: &[&str] = &["<unk>", "<s>", "<|endoftext|>"];

impl Vocabulary<'_> {
    /// Makes the tokens for an end and for filling in the middle control tokens; lists those for an end.
    pub(super) fn find_special(&mut self) {
        let written = self.kinds.clone();
        let mut ends: Vec<usize> = ["eos", "eot", "eom"].into_iter().filter_map(|key| self.id(key)).collect();
        for Fill { keys, texts, ends: is_end } in &FILL {
            let named = keys.iter().rev().find_map(|key| self.id(key));
            let found = named.or_else(|| {
                let id = self.tokens.iter().position(|text| texts.contains(text))?;
                self.kinds[id] = Kind::Control;
                Some(id)
            });
            ends.extend(found.filter(|_| *is_end));
        }
        for (id, text) in self.tokens.iter().enumerate() {
            if ENDS.contains(text) {
                self.kinds[id] = Kind::Control;
                ends.push(id);
            } else if PARTS.contains(text) && self.kinds[id] != Kind::Control {
                self.kinds[id] = Kind::UserDefined;
            }
        }
        let has = |ends: &[usize], text: &str| ends.iter().any(|&id| self.tokens[id] == text);
        let calls = has(&ends, "<|call|>") || has(&ends, "<|calls|>");
        let separates = calls && (has(&ends, "<|return|>") || has(&ends, "<|flush|>"));
        let responds = has(&ends, "<|tool_response>");
        // In these vocabularies, `<|end|>` ends a part of an answer, and `</s>` is other text.
        let (tokens, kinds) = (&self.tokens, &mut self.kinds);
        ends.retain(|&id| {
            let kind = match tokens[id] {
                "<|end|>" if separates && written[id] == Kind::Control => Kind::Control,
                "<|end|>" if separates => Kind::UserDefined,
                "</s>" if responds => Kind::Normal,
                _ => return true,
            };
            kinds[id] = kind;
            false
        });
        ends.sort_unstable();
        ends.dedup();
        self.ends = ends;
    }

    /// Whether special tokens remove the spaces behind them. Like llama.cpp, reads the name of the model.
    pub(super) fn is_phi3(&self) -> bool {
        let name = self.file.text("general.name").unwrap_or_default().to_lowercase();
        name.contains("phi-3") || name.contains("phi3")
    }
}
