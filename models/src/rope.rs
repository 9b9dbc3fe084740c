//! Computes the frequencies of rotary embeddings with the same rounding as HF transformers
//! (`modeling_rope_utils.py`).

use dsl::nn::{Attend, RopeFrequencies};
use dsl::{Axis, F32, Float, Tensor};
use files::limits;

use crate::config::Keys;

/// The method that adapts the frequencies of a rotary embedding to long contexts.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// The frequencies do not change.
    Default,
    /// One divisor of all frequencies (Chen et al., "Extending Context Window … via Positional
    /// Interpolation", 2023).
    Linear {
        /// The divisor of all frequencies.
        factor: f64,
    },
    /// Rotates the first pairs; exponents are fractions of all features
    /// (`_compute_proportional_rope_parameters`).
    Proportional {
        /// For pairs that rotate, from the first on.
        proportion: f64,
        /// The divisor of all frequencies.
        factor: f64,
    },
    /// NTK-aware: longer sequences get a larger base (`_compute_dynamic_ntk_parameters`). HF transformers
    /// lets it grow with each token, while earlier keys keep theirs. Here, all long sequences have the base
    /// for the compiled context.
    Dynamic {
        /// Growth of the base.
        factor: f64,
        /// The largest number of tokens in a sequence whose base does not change.
        max_position_embeddings: f64,
    },
    /// Divides low frequencies, keeps high ones, and interpolates between (Llama 3.1;
    /// `_compute_llama3_parameters`).
    Llama3 {
        /// The divisor of the lowest frequencies.
        factor: f64,
        /// Pairs with fewer turns in the original context are divided.
        low_freq_factor: f64,
        /// Pairs with more turns in the original context stay.
        high_freq_factor: f64,
        /// In tokens.
        original_max_position_embeddings: f64,
    },
    /// Like `Llama3`, but linear over the feature's index, with a factor on cosine and sine (Peng et al.,
    /// "YaRN", 2023; `_compute_yarn_parameters`).
    Yarn {
        /// The divisor of the lowest frequencies.
        factor: f64,
        /// Pairs with more turns in the original context stay.
        beta_fast: f64,
        /// Pairs with fewer turns in the original context are divided.
        beta_slow: f64,
        /// In tokens.
        original_max_position_embeddings: f64,
        /// Whether the method rounds the start and the end of the interpolation to whole feature indices.
        truncate: bool,
        /// For cosine and sine.
        attention_factor: f64,
    },
    /// A divisor per frequency (Ding et al., "LongRoPE", 2024; `_compute_longrope_parameters`). Beyond the
    /// original context, all positions of a sequence get long factors, as in HF transformers
    /// (`Phi3ForCausalLM.prepare_inputs_for_generation`).
    LongRope {
        /// The divisors for sequences of at most the original context.
        short_factor: Vec<f64>,
        /// For longer sequences.
        long_factor: Vec<f64>,
        /// In tokens.
        original_max_position_embeddings: f64,
        /// For cosine and sine.
        attention_factor: f64,
    },
}

/// The parameters of a rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeParameters {
    /// The base of the frequencies, which form a geometric series.
    pub theta: f64,
    /// For a head's features that rotate, from the first on.
    pub partial_rotary_factor: f64,
    /// The method that adapts the frequencies of a rotary embedding to long contexts.
    pub scaling: RopeScaling,
}

/// The factor by which attention multiplies the query at position p, which is 1 + β · ln(1 + ⌊p / original⌋).
#[derive(Clone, Debug, PartialEq)]
pub struct QueryGrowth {
    /// The number β.
    pub beta: f64,
    /// The largest number of tokens in a sequence before the context was extended.
    pub original: usize,
}

impl QueryGrowth {
    pub(crate) fn read(rope: &Keys) -> Self {
        let beta = rope.number("llama_4_scaling_beta");
        Self { beta, original: rope.count("original_max_position_embeddings") }
    }

    /// Attention that multiplies the queries by the factor, for positions below `most`.
    pub(crate) fn applied<T: Float>(&self, at: Attend<T>, most: usize) -> Attend<T> {
        // The table contains a factor for each possible value of ⌊p / original⌋.
        let factors: Vec<f64> = (0..most.div_ceil(self.original))
            .map(|turn| 1.0 + self.beta * libm::log1p(turn as f64))
            .collect();
        let length = at.cos.map_or(1, |cos| cos.extent(at.queries));
        let turns = at.at.positions(at.queries, length) / self.original as f64;
        at.tempered(Tensor::<F32>::numbers(&factors, Axis("Turn")).rows(turns).to())
    }
}

/// Defaults for keys of the rotary embedding that are missing in `config.json`.
#[derive(Clone, Debug)]
pub struct RopeDefaults {
    /// The base of the frequencies.
    pub theta: f64,
    /// For features; `None` if the family always rotates all.
    pub partial_rotary_factor: Option<f64>,
    /// The largest number of tokens in a sequence.
    pub max_position_embeddings: usize,
    /// Before the context was extended; `None` for `max_position_embeddings`.
    pub original_max_position_embeddings: Option<usize>,
    /// Configuration keys that other code reads from the object of the rotary embedding.
    pub others: &'static [&'static str],
}

impl RopeDefaults {
    /// Base 10,000, all features, context not extended.
    pub fn new(max_position_embeddings: usize) -> Self {
        let (partial_rotary_factor, original_max_position_embeddings) = (None, None);
        Self {
            theta: 1e4,
            partial_rotary_factor,
            max_position_embeddings,
            original_max_position_embeddings,
            others: &[],
        }
    }
}

/// Keys of the rotary embedding that are outside of the object `rope_parameters` or `rope_scaling`.
struct Outside<'a> {
    keys: &'a Keys,
    /// The key of the base, and its value.
    theta: (&'static str, Option<f64>),
    partial: Option<f64>,
    original: Option<f64>,
    defaults: &'a RopeDefaults,
}

impl RopeParameters {
    /// Creates a rotary embedding that rotates all features and does not adapt the frequencies.
    pub fn plain(theta: f64) -> Self {
        Self { theta, partial_rotary_factor: 1.0, scaling: RopeScaling::Default }
    }

    /// `rope_parameters` (HF transformers 5), or `rope_theta` and `rope_scaling` (4).
    pub fn read(keys: &Keys, defaults: &RopeDefaults) -> Self {
        let outside = Outside::new(keys, "rope_theta", defaults);
        outside.read(
            ("rope_parameters", keys.object("rope_parameters")),
            ("rope_scaling", keys.object("rope_scaling")),
        )
    }

    /// With and without a sliding window; `theta` has the default bases. HF transformers 5 has an object for
    /// each kind in `rope_parameters`. In 4, `rope_local_base_freq` is for windows, `rope_theta` and
    /// `rope_scaling` for the others.
    pub fn by_layer_type(keys: &Keys, theta: [f64; 2], max_position_embeddings: usize) -> [Self; 2] {
        let both = keys.object("rope_parameters");
        let one = |key| both.as_ref().and_then(|both| both.object(key));
        let [sliding, full] =
            theta.map(|theta| RopeDefaults { theta, ..RopeDefaults::new(max_position_embeddings) });
        let sliding = Outside::new(keys, "rope_local_base_freq", &sliding)
            .read(("rope_parameters.sliding_attention", one("sliding_attention")), ("rope_scaling", None));
        let full = Outside::new(keys, "rope_theta", &full).read(
            ("rope_parameters.full_attention", one("full_attention")),
            ("rope_scaling", keys.object("rope_scaling")),
        );
        both.into_iter().for_each(|both| keys.close(both));
        [sliding, full]
    }

    /// Heads with 0 features are rejected elsewhere.
    pub fn check(&self, keys: &Keys, features: usize) {
        if self.partial_rotary_factor > 1.0 {
            return keys.refuse("partial_rotary_factor", self.partial_rotary_factor, "at most 1");
        }
        if features > limits::HEAD && keys.get("head_dim").is_none() {
            let expected = format!("at most {} features of a head", limits::HEAD);
            return keys.refuse("hidden_size / num_attention_heads", features, expected);
        }
        let rotated = self.rotated(features);
        let pairs = rotated.div_ceil(2);
        if features > 0 && (pairs == 0 || 2 * pairs > features) {
            let expected = "an even number: rotary embedding pairs features";
            keys.refuse("head_dim", features, expected);
        }
        match &self.scaling {
            RopeScaling::Dynamic { .. } if rotated == 2 => {
                keys.refuse("head_dim", features, "more than two features to rotate with a dynamic base");
            }
            RopeScaling::LongRope { short_factor, long_factor, .. } => {
                for (key, factors) in [("short_factor", short_factor), ("long_factor", long_factor)] {
                    // Earlier code has rejected an invalid list, which is empty here.
                    if !factors.is_empty() && factors.len() != pairs {
                        let expected =
                            format!("{pairs}, one for each pair of the {rotated} rotated features");
                        keys.refuse(key, format!("{} numbers", factors.len()), expected);
                    }
                }
            }
            _ => {}
        }
        // Earlier code has rejected an invalid number, which is 0 here.
        if (1..=limits::HEAD).contains(&features) && !keys.has_problems() {
            let lengths = [Some(1), self.original().map(|original| original.saturating_add(1))];
            let frequencies = lengths.into_iter().flatten().map(|length| self.of_length(features, length));
            let mut used = frequencies.flat_map(|all| all.inv_freq.into_iter().take(self.turning(pairs)));
            if let Some(useless) = used.find(|frequency| !frequency.is_normal()) {
                let found = format!("{:?}, with a frequency of {useless}", self.theta);
                keys.refuse("rope_theta", found, "frequencies above 0, as `rope_scaling` stretches them");
            }
        }
    }

    /// An odd number is rounded up to pairs.
    fn rotated(&self, features: usize) -> usize {
        (features as f64 * self.partial_rotary_factor) as usize
    }

    /// Pairs with a frequency above 0, of `pairs`.
    fn turning(&self, pairs: usize) -> usize {
        match self.scaling {
            RopeScaling::Proportional { proportion, .. } => (pairs as f64 * proportion) as usize,
            _ => pairs,
        }
    }

    /// The longest sequence with the original frequencies; beyond, all positions have others. `None` if they
    /// do not depend on it.
    pub fn original(&self) -> Option<usize> {
        match self.scaling {
            RopeScaling::Dynamic { max_position_embeddings: original, .. }
            | RopeScaling::LongRope { original_max_position_embeddings: original, .. } => {
                Some(original as usize)
            }
            _ => None,
        }
    }

    /// A dynamic embedding multiplies `most` by its factor.
    pub(crate) fn longest(&self, most: usize) -> usize {
        match self.scaling {
            RopeScaling::Dynamic { factor, .. } => {
                most.max(((most as f64 * factor) as usize).min(limits::POSITIONS))
            }
            _ => most,
        }
    }

    /// For a context of `context`; beyond [`original`](Self::original), with both short and long ones.
    pub fn frequencies(&self, features: usize, context: usize) -> RopeFrequencies {
        match self.original().filter(|original| *original < context) {
            None => self.of_length(features, context),
            Some(original) => {
                let longer = Box::new(self.of_length(features, context));
                RopeFrequencies { beyond: Some((original, longer)), ..self.of_length(features, original) }
            }
        }
    }

    /// Pair i has `1 / theta^(2i / R)` for R rotated features, adapted to the context. In f32 like torch,
    /// because each ulp affects the logits of late positions.
    fn of_length(&self, features: usize, context: usize) -> RopeFrequencies {
        let rotated = self.rotated(features);
        let (base, pairs) = (self.base(rotated, context), rotated.div_ceil(2));
        let turning = self.turning(pairs);
        let frequency = |i: usize| {
            let exponent = (2 * i) as f32 / rotated as f32;
            // torch computes groups of 32 elements with its vector function, and the remaining elements with
            // its scalar function.
            let power = if i < turning / 32 * 32 { vector_power } else { scalar_power };
            f64::from(self.stretched(i, power(base, exponent), rotated, context))
        };
        let scaling = match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } | RopeScaling::LongRope { attention_factor, .. } => {
                attention_factor
            }
            _ => 1.0,
        };
        let still = std::iter::repeat_n(0.0, pairs - turning);
        RopeFrequencies::new((0..turning).map(frequency).chain(still).collect(), scaling)
    }

    fn base(&self, rotated: usize, context: usize) -> f32 {
        match self.scaling {
            RopeScaling::Dynamic { factor, max_position_embeddings: max } if context as f64 > max => {
                let growth = factor as f32 * context as f32 / max as f32 - (factor - 1.0) as f32;
                let exponent = rotated as f64 / (rotated as f64 - 2.0);
                self.theta as f32 * libm::pow(f64::from(growth), exponent) as f32
            }
            _ => self.theta as f32,
        }
    }

    /// Before, the wavelength is 2π · `period`.
    fn stretched(&self, i: usize, period: f32, rotated: usize, context: usize) -> f32 {
        let inv_freq = 1.0 / period;
        match &self.scaling {
            RopeScaling::Default | RopeScaling::Dynamic { .. } => inv_freq,
            RopeScaling::Linear { factor } | RopeScaling::Proportional { factor, .. } => {
                inv_freq / *factor as f32
            }
            &RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings: original,
            } => {
                let wavelength = (2.0 * std::f64::consts::PI) as f32 / inv_freq;
                if wavelength > (original / low_freq_factor) as f32 {
                    return inv_freq / factor as f32;
                }
                if wavelength < (original / high_freq_factor) as f32 {
                    return inv_freq;
                }
                let smooth = (original as f32 / wavelength - low_freq_factor as f32)
                    / (high_freq_factor - low_freq_factor) as f32;
                (1.0 - smooth) * inv_freq / factor as f32 + smooth * inv_freq
            }
            &RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original_max_position_embeddings: original,
                truncate,
                ..
            } => {
                // The index of the feature that makes this number of turns in the original context.
                let feature = |turns: f64| {
                    let wavelength = original / (turns * 2.0 * std::f64::consts::PI);
                    rotated as f64 * libm::log(wavelength) / (2.0 * libm::log(self.theta))
                };
                let (mut low, mut high) = (feature(beta_fast), feature(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.max(0.0), high.min(rotated as f64 - 1.0));
                if low == high {
                    high += 0.001;
                }
                let ramp = ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
                let kept = 1.0 - ramp;
                1.0 / (factor as f32 * period) * (1.0 - kept) + inv_freq * kept
            }
            RopeScaling::LongRope {
                short_factor,
                long_factor,
                original_max_position_embeddings: original,
                ..
            } => {
                let factors = if context as f64 > *original { long_factor } else { short_factor };
                1.0 / (factors.get(i).copied().unwrap_or(1.0) as f32 * period)
            }
        }
    }
}

/// Rounded once to f32.
fn scalar_power(base: f32, exponent: f32) -> f32 {
    libm::pow(f64::from(base), f64::from(exponent)) as f32
}

/// For a base above 1, rounded as torch's vector function: one in sixty results is not the nearest f32. It is
/// `exp(exponent · log(base))` with short f32 polynomials for the last terms. Method and coefficients are
/// those of Sleef's powf (1 ulp), with f64 in place of pairs of f32.
fn vector_power(base: f32, exponent: f32) -> f32 {
    let series = |x: f64, coefficients: &[f32]| {
        f64::from(coefficients.iter().fold(0.0, |sum: f32, c| sum.mul_add(x as f32, *c)))
    };
    // base = m · 2^e with 3/4 ≤ m < 3/2; log(m) = 2 artanh((m − 1) / (m + 1)).
    let e = libm::frexp(f64::from(base * (1.0 / 0.75))).1 - 1;
    let m = libm::scalbn(f64::from(base), -e);
    let x = (m - 1.0) / (m + 1.0);
    let tail = x * x * series(x * x, &[0.240_320_35, 0.285_112_68, 0.400_008]) + 2.0 / 3.0;
    let log = f64::from(e) * std::f64::consts::LN_2 + 2.0 * x + x * x * x * tail;
    // exp(y) = 2^n · exp(y − n · log 2)
    let y = log * f64::from(exponent);
    let n = (y * std::f64::consts::LOG2_E).round_ties_even();
    let y = y - n * std::f64::consts::LN_2;
    let tail = series(y, &[0.001_363_246_5, 0.008_365_969, 0.041_671_082, 0.166_665_52, 0.499_999_85]);
    libm::scalbn(1.0 + (y + y * y * tail), n as i32) as f32
}

impl<'a> Outside<'a> {
    fn new(keys: &'a Keys, theta: &'static str, defaults: &'a RopeDefaults) -> Self {
        let theta = (theta, keys.optional_number(theta));
        let partial =
            defaults.partial_rotary_factor.and_then(|_| keys.optional_number("partial_rotary_factor"));
        let original = keys.optional_number("original_max_position_embeddings");
        Self { keys, theta, partial, original, defaults }
    }

    /// From `new` or `old`, which must be equal if both are there.
    fn read(&self, new: (&str, Option<Keys>), old: (&str, Option<Keys>)) -> RopeParameters {
        let [new, old] = [new, old].map(|(name, nested)| nested.map(|nested| self.nested(name, nested)));
        match (new, old) {
            (Some(new), Some(old)) if new != old => {
                let expected = "the same, or one of the two";
                self.keys.refuse("rope_scaling", "another embedding than `rope_parameters`", expected);
                new
            }
            (Some(found), _) | (None, Some(found)) => found,
            (None, None) => RopeParameters {
                theta: self.theta.1.unwrap_or(self.defaults.theta),
                partial_rotary_factor: self.partial.or(self.defaults.partial_rotary_factor).unwrap_or(1.0),
                scaling: RopeScaling::Default,
            },
        }
    }

    fn nested(&self, name: &str, nested: Keys) -> RopeParameters {
        let agreed = |key: &str, inner: Option<f64>, outer: (&str, Option<f64>)| {
            self.keys.agreed((&format!("{name}.{key}"), inner), outer)
        };
        // These keys split the position of an image token into three positions. A text token has
        // three equal positions, so the split has no effect.
        nested.ignore(&["mrope_interleaved", "mrope_section"]);
        let theta = agreed("rope_theta", nested.optional_number("rope_theta"), self.theta);
        let theta = theta.unwrap_or(self.defaults.theta);
        let partial_rotary_factor = match self.defaults.partial_rotary_factor {
            None => 1.0,
            Some(default) => {
                let key = "partial_rotary_factor";
                agreed(key, nested.optional_number(key), (key, self.partial)).unwrap_or(default)
            }
        };
        let (new, old) = (nested.optional_text("rope_type"), nested.optional_text("type"));
        let kind = nested.agreed(("rope_type", new), ("type", old));
        let scaling = match self.scaling(name, &nested, kind.as_deref().unwrap_or("default")) {
            Some(scaling) => {
                self.keys.close_ignoring(nested, self.defaults.others);
                scaling
            }
            None => {
                self.keys.give_up(nested);
                RopeScaling::Default
            }
        };
        // The scaling method `Proportional` already contains the fraction.
        let is_proportional = matches!(scaling, RopeScaling::Proportional { .. });
        let partial_rotary_factor = if is_proportional { 1.0 } else { partial_rotary_factor };
        RopeParameters { theta, partial_rotary_factor, scaling }
    }

    fn scaling(&self, name: &str, nested: &Keys, kind: &str) -> Option<RopeScaling> {
        let max = self.defaults.max_position_embeddings as f64;
        let original = || {
            let key = "original_max_position_embeddings";
            let inner = (&*format!("{name}.{key}"), nested.optional_number(key));
            let default =
                self.defaults.original_max_position_embeddings.map_or(max, |original| original as f64);
            self.keys.agreed(inner, (key, self.original)).unwrap_or(default)
        };
        // The default of the factor is the ratio of the extended context to the original context.
        let extended = |original: f64| nested.optional_number("factor").unwrap_or(max / original);
        Some(match kind {
            "default" => RopeScaling::Default,
            "linear" => RopeScaling::Linear { factor: nested.number("factor") },
            "proportional" => {
                let key = "partial_rotary_factor";
                let proportion = nested.optional_number(key).unwrap_or(1.0);
                if proportion > 1.0 {
                    nested.refuse(key, proportion, "at most 1");
                }
                let factor = nested.optional_number("factor").unwrap_or(1.0);
                RopeScaling::Proportional { proportion, factor }
            }
            "dynamic" => {
                RopeScaling::Dynamic { factor: nested.number("factor"), max_position_embeddings: max }
            }
            "llama3" => RopeScaling::Llama3 {
                factor: nested.number("factor"),
                low_freq_factor: nested.number("low_freq_factor"),
                high_freq_factor: nested.number("high_freq_factor"),
                original_max_position_embeddings: original(),
            },
            "yarn" => {
                let original = original();
                let factor = extended(original);
                let loudness = |factor: f64, scale: f64| {
                    if factor <= 1.0 { 1.0 } else { 0.1 * scale * libm::log(factor) + 1.0 }
                };
                let scales = (nested.optional_number("mscale"), nested.optional_number("mscale_all_dim"));
                let recommended = match scales {
                    (Some(scale), Some(all)) => loudness(factor, scale) / loudness(factor, all),
                    _ => loudness(factor, 1.0),
                };
                RopeScaling::Yarn {
                    factor,
                    beta_fast: nested.optional_number("beta_fast").unwrap_or(32.0),
                    beta_slow: nested.optional_number("beta_slow").unwrap_or(1.0),
                    original_max_position_embeddings: original,
                    truncate: nested.flag("truncate", true),
                    attention_factor: nested.optional_number("attention_factor").unwrap_or(recommended),
                }
            }
            // The first Phi-3 checkpoints use the name "su" (`configuration_phi3.py`).
            "longrope" | "su" => {
                let original = original();
                let recommended = match extended(original) {
                    factor if factor <= 1.0 => 1.0,
                    factor => (1.0 + libm::log(factor) / libm::log(original)).sqrt(),
                };
                RopeScaling::LongRope {
                    short_factor: factors(nested, "short_factor"),
                    long_factor: factors(nested, "long_factor"),
                    original_max_position_embeddings: original,
                    attention_factor: nested.optional_number("attention_factor").unwrap_or(recommended),
                }
            }
            other => {
                let expected = "one of default, linear, dynamic, llama3, yarn, longrope, proportional";
                nested.refuse("rope_type", format!("\"{other}\""), expected);
                return None;
            }
        })
    }
}

/// Reads a list of divisors of LongRoPE.
fn factors(keys: &Keys, key: &'static str) -> Vec<f64> {
    let value = keys.get(key);
    let items = value.and_then(|value| value.as_array()).map(Vec::as_slice).unwrap_or_default();
    let positive = |item: &serde_json::Value| item.as_f64().filter(|x| *x > 0.0 && x.is_finite());
    match items.iter().map(positive).collect() {
        Some(numbers) if !items.is_empty() => numbers,
        _ => {
            let found = value.map_or_else(|| "missing".to_owned(), ToString::to_string);
            keys.refuse(key, found, "a list of positive numbers");
            Vec::new()
        }
    }
}
