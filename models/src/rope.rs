//! Rotary frequencies, rounded as transformers rounds them (`modeling_rope_utils.py`).

use dsl::nn::RopeFrequencies;

use crate::config::Keys;

/// How the frequencies are stretched for long contexts.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// As they are.
    Default,
    /// All divided by one factor (Chen et al., "Extending Context Window … via Positional Interpolation", 2023).
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Long wavelengths divided, short ones kept, those between blended (Llama 3.1;
    /// `_compute_llama3_parameters`).
    Llama3 {
        /// The divisor of the lowest frequencies.
        factor: f64,
        /// Below this many turns in the original context a frequency is divided.
        low_freq_factor: f64,
        /// Above this many turns it is kept.
        high_freq_factor: f64,
        /// The original context.
        original_max_position_embeddings: f64,
    },
}

/// A rotary embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeParameters {
    /// The base of the geometric series of frequencies.
    pub theta: f64,
    /// How it is stretched.
    pub scaling: RopeScaling,
}

impl RopeParameters {
    /// Reads `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (transformers 4).
    pub fn read(keys: &Keys, default_theta: f64) -> Self {
        let theta = keys.optional_number("rope_theta");
        let nested = |name| {
            keys.object(name).map(|nested| Self::read_nested(keys, name, nested, theta, default_theta))
        };
        match (nested("rope_parameters"), nested("rope_scaling")) {
            (Some(new), Some(old)) if new != old => {
                keys.refuse(
                    "rope_scaling",
                    "another embedding than `rope_parameters`",
                    "the same, or one of the two",
                );
                new
            }
            (Some(found), _) | (None, Some(found)) => found,
            (None, None) => Self { theta: theta.unwrap_or(default_theta), scaling: RopeScaling::Default },
        }
    }

    fn read_nested(
        keys: &Keys,
        name: &str,
        nested: Keys,
        outer_theta: Option<f64>,
        default_theta: f64,
    ) -> Self {
        let inner = nested.optional_number("rope_theta");
        let theta = keys.agreed((&format!("{name}.rope_theta"), inner), ("rope_theta", outer_theta));
        let theta = theta.unwrap_or(default_theta);
        let (new, old) = (nested.optional_text("rope_type"), nested.optional_text("type"));
        let scaling = match nested.agreed(("rope_type", new), ("type", old)).as_deref() {
            None | Some("default") => RopeScaling::Default,
            Some("linear") => RopeScaling::Linear { factor: nested.number("factor") },
            Some("llama3") => RopeScaling::Llama3 {
                factor: nested.number("factor"),
                low_freq_factor: nested.number("low_freq_factor"),
                high_freq_factor: nested.number("high_freq_factor"),
                original_max_position_embeddings: nested.number("original_max_position_embeddings"),
            },
            Some(other) => {
                nested.refuse("rope_type", format!("\"{other}\""), "one of default, linear, llama3");
                keys.give_up(nested);
                return Self { theta, scaling: RopeScaling::Default };
            }
        };
        keys.close(nested);
        Self { theta, scaling }
    }

    /// The frequencies of `features` features: `1 / theta^(2i / features)`, stretched. All in f32 arithmetic, as
    /// torch computes them: the table of a far position shows every ulp.
    pub fn frequencies(&self, features: usize) -> RopeFrequencies {
        let theta = self.theta as f32;
        let plain = |i: usize| {
            let exponent = (2 * i) as f32 / features as f32;
            1.0 / (libm::pow(f64::from(theta), f64::from(exponent)) as f32)
        };
        let inv_freq = (0..features / 2).map(plain).map(|f| f64::from(self.stretched(f))).collect();
        RopeFrequencies { inv_freq, scaling: 1.0 }
    }

    fn stretched(&self, inv_freq: f32) -> f32 {
        match self.scaling {
            RopeScaling::Default => inv_freq,
            RopeScaling::Linear { factor } => inv_freq / factor as f32,
            RopeScaling::Llama3 {
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
        }
    }
}
