//! A [`Fingerprint`] is a hash of the logits of a text, with which two people compare the bits of two machines.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use program::numeric::NumericOption;
use serde::Serialize;
use targets::{DeviceKind, Numerics};

use super::{BuildInfo, Model, ModelError, Opening};

/// With every tokenizer, the text has more tokens than [`Fingerprint::TOKENS`].
const TEXT: &str = include_str!("fingerprint.txt");

/// The bits of a model's logits on this machine, as one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fingerprint {
    /// The first 32 hexadecimal digits of the blake3 hash of the logits, which are f32 `[tokens, vocabulary]`.
    pub hash: String,
    /// The name of the model's folder or file.
    pub model: String,
    /// The formats in which the network reads weights, such as `bf16` and `q8`; empty for an export.
    pub formats: Vec<String>,
    /// The options that change numbers and that the caller or the export sets, by name.
    pub options: BTreeMap<&'static str, String>,
    /// The number of tokens of the text.
    pub tokens: usize,
}

/// The text of a fingerprint as tokens, for a model that is not built yet.
#[derive(Clone, Debug)]
pub struct FingerprintText {
    tokens: Vec<u32>,
    model: String,
    options: BTreeMap<&'static str, String>,
}

impl Fingerprint {
    /// The most tokens of a text that a fingerprint reads.
    pub const TOKENS: usize = 256;

    /// The folders of the models that come with Tracewright, and the line of each on every processor with kernels.
    pub const SHIPPED: [(&str, &str); 2] = [
        ("demo", "c68f50a807950c3ccf376841e6e14a30 demo weights=bf16 numerics=portable tokens=256"),
        (
            "demo-gemma3",
            "1142ec794c57b5fe7d8dc3f7b149f3be demo-gemma3 weights=bf16 numerics=portable tokens=256",
        ),
    ];
}

impl FingerprintText {
    /// Converts the text, by default a fixed one, to tokens. Also changes the options of the opening: the
    /// network computes scores, has room for the tokens, and is portable unless the options set another value.
    pub fn new(opening: &mut Opening, text: Option<&str>) -> Result<Self, ModelError> {
        let mut tokens = opening.needed_tokenizer()?.encode(text.unwrap_or(TEXT))?;
        tokens.truncate(Fingerprint::TOKENS.min(opening.max_context().unwrap_or(usize::MAX)));
        opening.fit_context(tokens.len());
        opening.options.score = true;
        let options = &mut opening.options;
        let on_cpu = options.device.is_none_or(|device| device.kind == DeviceKind::Cpu);
        if on_cpu && options.plugin.is_none() && opening.manifest().is_none() {
            opening.options.numeric.numerics.get_or_insert(Numerics::Portable);
        }
        let word = |option: &NumericOption| match opening.manifest() {
            Some(manifest) => manifest.numeric(option.name),
            None => option.word(&opening.options.numeric),
        };
        let options = NumericOption::ALL.iter().filter_map(|option| Some((option.name, word(option)?)));
        Ok(Self { tokens, model: opening.name(), options: options.collect() })
    }

    /// Computes the logits of the text with the model that the opening built.
    pub fn of(self, model: &Model) -> Result<Fingerprint, ModelError> {
        let Self { tokens, model: name, options } = self;
        let mut hasher = blake3::Hasher::new();
        for logit in model.score(&tokens)?.iter().flatten() {
            hasher.update(&logit.to_le_bytes());
        }
        let formats = model.info().build.as_ref().map(BuildInfo::formats).unwrap_or_default();
        let formats: BTreeSet<String> = formats.into_iter().map(|(format, _)| format).collect();
        let hash = hasher.finalize().to_hex()[..32].to_owned();
        let (formats, tokens) = (formats.into_iter().collect(), tokens.len());
        Ok(Fingerprint { hash, model: name, formats, options, tokens })
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hash, model, formats, options, tokens } = self;
        write!(f, "{hash} {model}")?;
        if !formats.is_empty() {
            write!(f, " weights={}", formats.join("+"))?;
        }
        options.iter().try_for_each(|(name, word)| write!(f, " {name}={word}"))?;
        write!(f, " tokens={tokens}")
    }
}
