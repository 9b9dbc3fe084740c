//! Converts the tokenizer of a GGUF file to Hugging Face files. ggml's `docs/gguf.md` describes the keys.
//! llama.cpp (`src/llama-vocab.cpp`) defines `tokenizer.ggml.pre` and the beginning special token. Tests
//! compare the tokens with llama.cpp's.

mod special;

use std::collections::HashMap;

use files::limits;
use irpa::{Gguf, GgufArray, GgufValue, ModelFiles};
use serde_json::{Map, Value, json};

use crate::GenerateError;

pub(crate) const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";
const GENERATION: &str = "generation_config.json";

/// Creates the content of the file `name`. `files` keeps the small files, so the vocabulary is read once.
pub(crate) fn made(files: &ModelFiles, file: &Gguf, name: &str) -> Result<Option<Value>, GenerateError> {
    if ![TOKENIZER, CONFIG, GENERATION].contains(&name) {
        return Ok(None);
    }
    let Some(vocabulary) = Vocabulary::read(file)? else { return Ok(None) };
    if name == TOKENIZER {
        files.text(CONFIG, || Ok::<_, GenerateError>(Some(vocabulary.config().to_string())))?;
        // If the keys are invalid, the reader of this file reports the error.
        let _ = files.text(GENERATION, || vocabulary.generation().map(|json| Some(json.to_string())));
        return vocabulary.tokenizer().map(Some);
    }
    if name == CONFIG { Ok(Some(vocabulary.config())) } else { vocabulary.generation().map(Some) }
}

/// The kind of a token (`tokenizer.ggml.token_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// How a text becomes tokens (`tokenizer.ggml.model`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    /// `llama`: pieces of text, which merge by score.
    Pieces,
    /// `gpt2`: byte sequences, which merge in a list's order.
    Bytes,
    /// `gemma4`: pieces of text, which merge in a list's order.
    Listed,
}

struct Vocabulary<'a> {
    file: &'a Gguf,
    style: Style,
    tokens: Vec<&'a str>,
    kinds: Vec<Kind>,
    /// The ids of the tokens that end a text, in ascending order.
    ends: Vec<usize>,
}

impl<'a> Vocabulary<'a> {
    /// Reads the vocabulary of a GGUF file. The result is `None` if the file has no tokenizer.
    fn read(file: &'a Gguf) -> Result<Option<Self>, GenerateError> {
        const MODEL: &str = "tokenizer.ggml.model";
        let style = match file.text(MODEL) {
            None if file.get(MODEL).is_none() => return Ok(None),
            Some("none" | "no_vocab") => return Ok(None),
            Some("llama") => Style::Pieces,
            Some("gpt2") => Style::Bytes,
            Some("gemma4") => Style::Listed,
            found => return Err(wrong(file, MODEL, found.unwrap_or("no text"), "llama, gpt2 or gemma4")),
        };
        const TOKENS: &str = "tokenizer.ggml.tokens";
        let expected = "a list of texts";
        let texts = array(file, TOKENS)?.ok_or_else(|| wrong(file, TOKENS, "missing", expected))?;
        let count = texts.len();
        if count > limits::TOKENS {
            return Err(wrong(file, TOKENS, count, "at most 1048576 tokens"));
        }
        let texts = texts.texts().ok_or_else(|| wrong(file, TOKENS, "of another type", expected))?;
        let tokens: Vec<&str> = texts.collect();
        let mut ids = HashMap::with_capacity(count);
        for (id, text) in tokens.iter().enumerate() {
            if let Some(first) = ids.insert(text, id) {
                let found = format!("{text} for tokens {first} and {id}");
                return Err(wrong(file, TOKENS, found, "a text for each token"));
            }
        }
        check_keys(file, count)?;
        let mut vocabulary = Self { file, style, tokens, kinds: kinds(file, count)?, ends: Vec::new() };
        vocabulary.find_special();
        Ok(Some(vocabulary))
    }

    fn of_kind(&self, wanted: Kind) -> impl Iterator<Item = (usize, &'a str)> {
        let tokens = self.tokens.iter().copied().enumerate().zip(&self.kinds);
        tokens.filter(move |(_, kind)| **kind == wanted).map(|(token, _)| token)
    }

    /// Returns the id under a key, if the vocabulary contains it. The kind `llama` has default values.
    fn id(&self, key: &str) -> Option<usize> {
        let id = match (self.file.get(&format!("tokenizer.ggml.{key}_token_id")), key) {
            (Some(GgufValue::Integer(id)), _) => usize::try_from(id).ok()?,
            (Some(_), _) => return None,
            (None, "unknown") if self.style == Style::Pieces => 0,
            (None, "bos") if self.style == Style::Pieces => 1,
            (None, "eos") if self.style == Style::Pieces => 2,
            (None, _) => return None,
        };
        (id < self.tokens.len()).then_some(id)
    }

    fn flag(&self, key: &str, default: bool) -> bool {
        match self.file.get(&format!("tokenizer.ggml.{key}")) {
            Some(GgufValue::Bool(flag)) => flag,
            _ => default,
        }
    }

    /// The tokens that end a text, and those of no text. Like llama.cpp, ignores ids outside the vocabulary.
    fn generation(&self) -> Result<Value, GenerateError> {
        const SUPPRESS: &str = "tokenizer.ggml.suppress_tokens";
        let Some(ids) = array(self.file, SUPPRESS)? else { return Ok(json!({ "eos_token_id": self.ends })) };
        let bad = || wrong(self.file, SUPPRESS, "of another type", "a list of token ids");
        let is_token = |id: &i128| (0..self.tokens.len() as i128).contains(id);
        let ids: Vec<u64> = ids.integers().ok_or_else(bad)?.filter(is_token).map(|id| id as u64).collect();
        Ok(json!({ "eos_token_id": self.ends, "suppress_tokens": ids }))
    }

    /// Returns the content of a `tokenizer_config.json`: the special tokens and the chat templates.
    fn config(&self) -> Value {
        let names =
            [("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")];
        let special = names.into_iter().filter_map(|(name, key)| Some((name, self.tokens[self.id(key)?])));
        let mut config: Map<String, Value> =
            special.map(|(name, text)| (name.to_owned(), text.into())).collect();
        let template = |key: &str| self.file.text(key);
        const DEFAULT: &str = "tokenizer.chat_template";
        let named = self.file.keys().filter_map(|key| {
            let name = key.strip_prefix(DEFAULT)?.strip_prefix('.')?;
            Some(json!({ "name": name, "template": template(key)? }))
        });
        let mut named: Vec<Value> = named.collect();
        match (template(DEFAULT), named.is_empty()) {
            (Some(only), true) => drop(config.insert("chat_template".into(), only.into())),
            (default, _) => {
                named.extend(default.map(|text| json!({ "name": "default", "template": text })));
                if !named.is_empty() {
                    config.insert("chat_template".into(), named.into());
                }
            }
        }
        config.into()
    }

    /// Returns the content of a `tokenizer.json`, in the format of Hugging Face transformers.
    fn tokenizer(&self) -> Result<Value, GenerateError> {
        let is_phi3 = self.is_phi3();
        let added = |special: bool| {
            move |(id, content): (usize, &str)| {
                let rstrip = is_phi3 && !special::KEEP_SPACE.contains(&content);
                json!({ "id": id, "content": content, "special": special, "single_word": false, "lstrip": false,
                        "rstrip": rstrip, "normalized": false })
            }
        };
        let mut added_tokens: Vec<Value> = self.of_kind(Kind::Control).map(added(true)).collect();
        added_tokens.extend(self.of_kind(Kind::Unknown).map(added(true)));
        added_tokens
            .extend(self.of_kind(Kind::UserDefined).filter(|(_, text)| !text.is_empty()).map(added(false)));
        let (parts, add_bos) = match self.style {
            Style::Pieces => self.pieces()?,
            Style::Bytes => self.byte_level()?,
            Style::Listed => self.listed_pieces()?,
        };
        let Parts { normalizer, pre_tokenizer, decoder, model } = parts;
        Ok(json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added_tokens,
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": decoder, "model": model,
            "post_processor": self.around(add_bos),
        }))
    }

    /// Returns the post-processor, which adds special tokens before and after every text.
    fn around(&self, add_bos: bool) -> Value {
        let token = |add: bool, key| {
            let id = self.id(key).filter(|_| add)?;
            Some((id, self.tokens[id]))
        };
        let begin = token(self.flag("add_bos_token", add_bos), "bos");
        let end = token(self.flag("add_eos_token", false), "eos");
        if begin.is_none() && end.is_none() {
            return Value::Null;
        }
        let special = |(_, text): (usize, &str)| json!({ "SpecialToken": { "id": text, "type_id": 0 } });
        let text = |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } });
        let single = begin.map(special).into_iter().chain([text("A")]).chain(end.map(special));
        let ids = begin.into_iter().chain(end);
        let tokens: Map<String, Value> = ids
            .map(|(id, text)| (text.to_owned(), json!({ "id": text, "ids": [id], "tokens": [text] })))
            .collect();
        json!({
            "type": "TemplateProcessing", "single": single.collect::<Vec<_>>(), "pair": [text("A"), text("B")],
            "special_tokens": tokens,
        })
    }

    fn ids(&self) -> Map<String, Value> {
        self.tokens.iter().enumerate().map(|(id, text)| ((*text).to_owned(), id.into())).collect()
    }

    /// Builds a tokenizer like SentencePiece, which merges by score and encodes unknown characters as bytes.
    fn pieces(&self) -> Result<(Parts, bool), GenerateError> {
        const SCORES: &str = "tokenizer.ggml.scores";
        let bad = |found: String| wrong(self.file, SCORES, found, "a number for each token");
        let scores = array(self.file, SCORES)?.ok_or_else(|| bad("missing".into()))?;
        let scores: Vec<f64> = scores.floats().ok_or_else(|| bad("of another type".into()))?.collect();
        if scores.len() != self.tokens.len() {
            return Err(bad(format!("{} numbers for {} tokens", scores.len(), self.tokens.len())));
        }
        if let Some(at) = scores.iter().position(|score| score.is_nan()) {
            return Err(bad(format!("NaN for token {at}")));
        }
        let joins = |kind: Kind| matches!(kind, Kind::Normal | Kind::UserDefined | Kind::Unused);
        let ids: HashMap<&str, usize> =
            self.tokens.iter().enumerate().map(|(id, text)| (*text, id)).collect();
        let mut merges = Vec::new();
        for (id, text) in self.tokens.iter().enumerate().filter(|(id, _)| joins(self.kinds[*id])) {
            if text.len() > limits::GGUF_TOKEN {
                let found = format!("token {id} of {} bytes", text.len());
                return Err(wrong(self.file, "tokenizer.ggml.tokens", found, "at most 1024 bytes"));
            }
            for (at, _) in text.char_indices().skip(1) {
                let (left, right) = text.split_at(at);
                if let (Some(&before), Some(&after)) = (ids.get(left), ids.get(right)) {
                    merges.push((scores[id], before, after, left, right));
                }
            }
        }
        merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        let merges: Vec<Value> = merges.into_iter().map(|(.., left, right)| json!([left, right])).collect();
        let unknown = self.id("unknown").or_else(|| self.of_kind(Kind::Unknown).next().map(|(id, _)| id));
        let (space, mark) = (json!({ "String": " " }), json!({ "String": "▁" }));
        let replace = json!({ "type": "Replace", "pattern": space, "content": "▁" });
        let mut decoders = vec![
            json!({ "type": "Replace", "pattern": mark, "content": " " }),
            json!({ "type": "ByteFallback" }),
            json!({ "type": "Fuse" }),
        ];
        let normalizer = if self.flag("add_space_prefix", true) {
            decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
            let prepend = json!({ "type": "Prepend", "prepend": "▁" });
            json!({ "type": "Sequence", "normalizers": [prepend, replace] })
        } else {
            replace
        };
        let model = json!({
            "type": "BPE", "vocab": self.ids(), "merges": merges, "fuse_unk": true,
            "unk_token": unknown.map(|id| self.tokens[id]),
            "byte_fallback": self.kinds.contains(&Kind::Byte) || ids.contains_key("<0x0A>"),
        });
        let decoder = json!({ "type": "Sequence", "decoders": decoders });
        Ok((Parts { normalizer, pre_tokenizer: Value::Null, decoder, model }, true))
    }

    /// The pairs in the order in which they merge.
    fn merges(&self) -> Result<Vec<Value>, GenerateError> {
        const MERGES: &str = "tokenizer.ggml.merges";
        let bad = |found: &str| wrong(self.file, MERGES, found, "a list of texts, of two parts each");
        let merges = array(self.file, MERGES)?.ok_or_else(|| bad("missing"))?;
        let pair = |text: &str| {
            // The search skips the first character, because a piece of text can begin with a space.
            let at = text.char_indices().skip(1).find(|(_, letter)| *letter == ' ');
            at.map(|(at, _)| json!([&text[..at], &text[at + 1..]])).ok_or_else(|| bad(text))
        };
        merges.texts().ok_or_else(|| bad("of another type"))?.map(pair).collect()
    }

    /// Builds a tokenizer like Gemma 4: pieces within a line merge in a list's order.
    fn listed_pieces(&self) -> Result<(Parts, bool), GenerateError> {
        let model = json!({
            "type": "BPE", "vocab": self.ids(), "merges": self.merges()?, "fuse_unk": true, "byte_fallback": true,
            "unk_token": self.id("unknown").map(|id| self.tokens[id]),
        });
        let normalizer = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
        let pre_tokenizer = json!({ "type": "Split", "pattern": { "Regex": r"\n+" }, "behavior": "Isolated", "invert": false });
        let decoders = [
            json!({ "type": "Replace", "pattern": { "String": "▁" }, "content": " " }),
            json!({ "type": "ByteFallback" }),
            json!({ "type": "Fuse" }),
        ];
        let decoder = json!({ "type": "Sequence", "decoders": decoders });
        Ok((Parts { normalizer, pre_tokenizer, decoder, model }, false))
    }

    /// Builds a tokenizer like GPT-2: a pattern splits words, and byte sequences merge in a list's order.
    fn byte_level(&self) -> Result<(Parts, bool), GenerateError> {
        const PRE: &str = "tokenizer.ggml.pre";
        let merges = self.merges()?;
        let pre = self.file.text(PRE).unwrap_or("default");
        let words = Words::of(pre).ok_or_else(|| {
            wrong(self.file, PRE, pre, "one of those that are listed in docs/guides/gguf.md")
        })?;
        let split = |pattern: &&str| json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
        let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
        let splits: Vec<Value> = words.patterns.iter().map(split).chain([bytes.clone()]).collect();
        let model = json!({
            "type": "BPE", "vocab": self.ids(), "merges": merges, "ignore_merges": words.whole_first,
        });
        let pre_tokenizer = json!({ "type": "Sequence", "pretokenizers": splits });
        Ok((Parts { normalizer: Value::Null, pre_tokenizer, decoder: bytes, model }, words.add_bos))
    }
}

/// The sections of a `tokenizer.json` that depend on the kind of tokenizer.
struct Parts {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    model: Value,
}

/// The rules that split a text into words.
struct Words {
    /// The regular expressions that split a text into words, applied in this order to the words of the
    /// previous one. A match is a word, as is the text between two matches.
    patterns: &'static [&'static str],
    /// Whether the tokenizer encodes a word that is in the vocabulary as one token, without applying merges.
    whole_first: bool,
    /// Whether a text begins with a special token, if the metadata do not declare it.
    add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The regular expressions find digits first, then Han, Hiragana and Katakana, and then all other words.
const DEEPSEEK3: &[&str] = &[
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r#"[!"\#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}\~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"#,
];
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

impl Words {
    /// Returns the rules for a value of `tokenizer.ggml.pre`, or `None` if it is not supported.
    fn of(pre: &str) -> Option<Self> {
        let (patterns, whole_first, add_bos): (&[&str], bool, bool) = match pre {
            "gpt-2" | "gpt2" | "phi-2" | "olmo" | "exaone4" => (&[GPT2], false, false),
            "llama-bpe" | "llama3" | "llama-v3" | "lfm2" | "pixtral" => (&[LLAMA3], true, true),
            "dbrx" | "smaug-bpe" => (&[LLAMA3], false, false),
            "glm4" => (&[LLAMA3], true, false),
            "qwen2" | "deepseek-r1-qwen" => (&[QWEN2], false, false),
            "qwen35" => (&[QWEN35], false, false),
            "deepseek-v3" => (DEEPSEEK3, false, false),
            "tekken" => (&[TEKKEN], true, true),
            "gpt-4o" | "llama4" | "minimax-m2" => (&[GPT4O], false, false),
            "smollm" | "starcoder" | "refact" | "command-r" => (&[r"\p{N}", GPT2], false, false),
            "seed-coder" => (&[SEED_CODER], false, false),
            "default" => (&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"], false, false),
            _ => return None,
        };
        Some(Self { patterns, whole_first, add_bos })
    }
}

/// Checks that each key with a token id has a valid type, and that the vocabulary contains the id.
fn check_keys(file: &Gguf, count: usize) -> Result<(), GenerateError> {
    const FLAGS: &[&str] =
        &["tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token", "tokenizer.ggml.add_space_prefix"];
    const UNSUPPORTED: &[&str] =
        &["tokenizer.ggml.normalizer.lowercase", "tokenizer.ggml.normalizer.strip_accents"];
    const TEXTS: &[&str] = &["tokenizer.ggml.pre", "tokenizer.chat_template"];
    const IDS: &[&str] = &[
        "tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.eom_token_id",
        "tokenizer.ggml.fim_pad_token_id",
        "tokenizer.ggml.fim_rep_token_id",
        "tokenizer.ggml.fim_sep_token_id",
    ];
    let is_flag = |value: GgufValue<'_>| matches!(value, GgufValue::Bool(_));
    let is_text = |value: GgufValue<'_>| matches!(value, GgufValue::Text(_));
    let is_token =
        |value: GgufValue<'_>| matches!(value, GgufValue::Integer(id) if (0..count as i128).contains(&id));
    let check = |keys: &[&'static str], expected, is_right: &dyn Fn(GgufValue<'_>) -> bool| {
        let wrongs = keys.iter().filter_map(|key| Some((*key, file.get(key)?)));
        match wrongs.into_iter().find(|(_, value)| !is_right(*value)) {
            Some((key, found)) => Err(wrong(file, key, found, expected)),
            None => Ok(()),
        }
    };
    check(FLAGS, "true or false", &is_flag)?;
    let is_off = |value: GgufValue<'_>| matches!(value, GgufValue::Bool(false));
    check(UNSUPPORTED, "false: these tokenizers keep the letters of a text", &is_off)?;
    check(TEXTS, "a text", &is_text)?;
    check(IDS, "the id of one of its tokens", &is_token)
}

fn kinds(file: &Gguf, count: usize) -> Result<Vec<Kind>, GenerateError> {
    const TYPES: &str = "tokenizer.ggml.token_type";
    let expected = "a number from 1 to 6 for each token";
    let bad = |found: String| wrong(file, TYPES, found, expected);
    let Some(types) = array(file, TYPES)? else { return Ok(vec![Kind::Normal; count]) };
    let kind = |number| {
        Ok(match number {
            1 => Kind::Normal,
            2 => Kind::Unknown,
            3 => Kind::Control,
            4 => Kind::UserDefined,
            5 => Kind::Unused,
            6 => Kind::Byte,
            other => return Err(wrong(file, TYPES, other, expected)),
        })
    };
    if types.len() != count {
        return Err(bad(format!("{} numbers for {count} tokens", types.len())));
    }
    types.integers().ok_or_else(|| bad("of another type".into()))?.map(kind).collect()
}

fn array<'a>(file: &'a Gguf, key: &'static str) -> Result<Option<GgufArray<'a>>, GenerateError> {
    match file.get(key) {
        None => Ok(None),
        Some(GgufValue::Array(array)) => Ok(Some(array)),
        Some(_) => Err(wrong(file, key, "a single value", "a list")),
    }
}

fn wrong(file: &Gguf, key: &'static str, found: impl ToString, expected: &'static str) -> GenerateError {
    GenerateError::Key { path: file.path().into(), key, found: found.to_string(), expected }
}
