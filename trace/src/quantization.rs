//! The formats in which an archive stores weights, chosen for a whole network or by tensor name.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use ops::format::{Offered, PANEL};
use ops::{TensorType, WeightFormat};

use crate::{Parameter, key_pattern};

/// How matmul weights are stored. Norms, biases, and matrices with fewer outputs than a panel's 16 rows keep
/// the network's element type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Quantization {
    /// All weights in the element type of the network.
    #[default]
    Computed,
    All(WeightFormat),
    /// The given format, except the output head and the value matrices, which have 8 bits.
    Mixed(WeightFormat),
    /// Each tensor-name pattern selects the storage format of the matching weights, as in a
    /// quantized checkpoint, and the name of a tensor selects the format of this tensor. Weights
    /// that match nothing keep the element type of the network.
    ByKey(Arc<BTreeMap<String, WeightFormat>>),
    /// By tensor-name pattern, where `None` is the network's element type; `base` for the others.
    Mapped {
        base: Box<Quantization>,
        formats: Arc<BTreeMap<String, Option<WeightFormat>>>,
    },
}

impl Quantization {
    /// An empty map keeps the network's element type.
    pub fn by_key(formats: BTreeMap<String, WeightFormat>) -> Self {
        if formats.is_empty() { Self::Computed } else { Self::ByKey(Arc::new(formats)) }
    }

    /// Selects the storage formats of `base`, except for the weights that match a pattern.
    pub fn mapped(base: Self, formats: BTreeMap<String, Option<WeightFormat>>) -> Self {
        Self::Mapped { base: Box::new(base), formats: Arc::new(formats) }
    }

    /// One format for all matrices, the output head included. A network of one matmul is its own output head.
    #[must_use]
    pub fn pure(&self) -> Self {
        match self {
            Self::Mixed(format) => Self::All(*format),
            _ => self.clone(),
        }
    }

    /// Whether weights are rounded, by Tracewright or in the checkpoint.
    pub fn rounds(&self) -> bool {
        *self != Self::Computed
    }

    /// Empty unless formats were selected by pattern.
    pub fn formats(&self) -> Arc<BTreeMap<String, WeightFormat>> {
        match self {
            Self::ByKey(formats) => formats.clone(),
            _ => Arc::default(),
        }
    }

    /// `None` for the network's element type.
    ///
    /// # Panics
    /// Panics if the choice depends on the network, and was not resolved.
    pub fn format(&self, parameter: &Parameter) -> Option<WeightFormat> {
        match self {
            Self::Computed => None,
            Self::All(format) => Some(*format),
            Self::ByKey(formats) => {
                let of = |(key, _): (&str, &TensorType)| format_of(formats, key);
                let sources = parameter.sources();
                let formats = sources.iter().copied().map(of).collect::<Option<Vec<_>>>()?;
                let (first, others) = formats.split_first()?;
                // Rows of two matrices have no scale in common.
                let whole =
                    |(_, ty): &(&str, &TensorType)| ty.shape.first().is_some_and(|n| n.is_multiple_of(PANEL));
                let shares = first.floats().is_some_and(|floats| floats.scales.are_shared());
                if shares && !others.is_empty() && !sources.iter().all(whole) {
                    return None;
                }
                // If the sources of a parameter have different formats, the archive stores the
                // parameter in 8 bits, because 8 bits lose the least precision.
                let one = others.iter().all(|other| other == first);
                Some(if one { *first } else { WeightFormat::Q8 })
            }
            Self::Mixed(_) | Self::Mapped { .. } => unreachable!("formats are resolved before they are read"),
        }
    }
}

/// Returns the storage format of a tensor: the format for its name or, without one, the format for
/// its tensor-name pattern.
pub fn format_of(formats: &BTreeMap<String, WeightFormat>, key: &str) -> Option<WeightFormat> {
    formats.get(key).or_else(|| formats.get(&key_pattern(key))).copied()
}

impl From<Option<WeightFormat>> for Quantization {
    fn from(format: Option<WeightFormat>) -> Self {
        format.map_or(Self::Computed, Self::All)
    }
}

/// As for `--quant`: `q4` is mixed, and `q4:pure` stores every matrix in q4.
impl fmt::Display for Quantization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Computed => f.write_str("none"),
            Self::All(format) if choice(*format) == Some(Offered::Mixed) => {
                write!(f, "{}:pure", format.word())
            }
            Self::All(format) | Self::Mixed(format) => f.write_str(format.word()),
            Self::ByKey(_) => f.write_str("stored"),
            Self::Mapped { base, formats } => {
                base.fmt(f)?;
                formats.iter().try_for_each(|(pattern, format)| {
                    write!(f, ",{pattern}={}", format.map_or("none", WeightFormat::word))
                })
            }
        }
    }
}

fn choice(format: WeightFormat) -> Option<Offered> {
    format.groups()?.choice
}

/// The names that [`Quantization::from_str`] reads: `none`, the formats, and mixed formats with `:pure`.
fn names() -> String {
    let mixed = WeightFormat::choices().filter(|(_, choice)| *choice == Offered::Mixed);
    let pure: Vec<String> = mixed.map(|(format, _)| format!("{}:pure", format.word())).collect();
    let formats = WeightFormat::choices().map(|(format, _)| format.word().to_owned());
    let mut names: Vec<String> = ["none".to_owned()].into_iter().chain(formats).chain(pure).collect();
    let last = names.pop().unwrap_or_default();
    format!("{} or {last}", names.join(", "))
}

/// The error for a word that is not the name of a storage format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is not a weight format, expected {}", names(), found = .0)]
pub struct UnknownQuantization(pub String);

impl FromStr for Quantization {
    type Err = UnknownQuantization;

    fn from_str(text: &str) -> Result<Self, UnknownQuantization> {
        if text == "none" {
            return Ok(Self::Computed);
        }
        let (word, pure) = text.strip_suffix(":pure").map_or((text, false), |word| (word, true));
        let found = WeightFormat::choices().find(|(format, _)| format.word() == word);
        match found {
            Some((format, Offered::Mixed)) if !pure => Ok(Self::Mixed(format)),
            Some((format, choice)) if !pure || choice == Offered::Mixed => Ok(Self::All(format)),
            _ => Err(UnknownQuantization(text.to_owned())),
        }
    }
}
