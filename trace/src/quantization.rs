//! The formats in which an archive stores weights, chosen for a whole network or by tensor name.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use ops::format::Offered;
use ops::{TensorType, WeightFormat};

use crate::{Parameter, key_pattern};

/// The storage formats of the weights that matmuls read. Norms, biases, and matrices with fewer
/// outputs than the 16 rows of a panel always have the element type of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Quantization {
    /// The archive stores all weights in the element type of the network.
    #[default]
    Computed,
    All(WeightFormat),
    /// The archive stores matmul weights in the given format, but stores the output head and the
    /// value matrices in 8 bits.
    Mixed(WeightFormat),
    /// Each tensor-name pattern selects the storage format of the matching weights, as in a
    /// quantized checkpoint, and the name of a tensor selects the format of this tensor. Weights
    /// that match nothing keep the element type of the network.
    ByKey(Arc<BTreeMap<String, WeightFormat>>),
    /// The map `formats` contains a storage format for each tensor-name pattern, where `None`
    /// selects the element type of the network. The choice `base` selects the storage format of the
    /// weights that match no pattern.
    Mapped {
        base: Box<Quantization>,
        formats: Arc<BTreeMap<String, Option<WeightFormat>>>,
    },
}

impl Quantization {
    /// Selects the storage formats of weights by tensor-name patterns. An empty map selects the
    /// element type of the network for all weights.
    pub fn by_key(formats: BTreeMap<String, WeightFormat>) -> Self {
        if formats.is_empty() { Self::Computed } else { Self::ByKey(Arc::new(formats)) }
    }

    /// Selects the storage formats of `base`, except for the weights that match a pattern.
    pub fn mapped(base: Self, formats: BTreeMap<String, Option<WeightFormat>>) -> Self {
        Self::Mapped { base: Box::new(base), formats: Arc::new(formats) }
    }

    /// Selects the same storage format for all matrices, including the output head. With a mixed
    /// format, a network that consists of a single matmul would store its matrix in 8 bits, because
    /// the matrix is the output head.
    #[must_use]
    pub fn pure(&self) -> Self {
        match self {
            Self::Mixed(format) => Self::All(*format),
            _ => self.clone(),
        }
    }

    /// Whether any weights of the program are rounded. Either Tracewright rounds the weights, or
    /// the checkpoint contains rounded weights.
    pub fn rounds(&self) -> bool {
        *self != Self::Computed
    }

    /// Returns the storage format for each tensor-name pattern. The map is empty if you did not
    /// select storage formats by tensor-name pattern.
    pub fn formats(&self) -> Arc<BTreeMap<String, WeightFormat>> {
        match self {
            Self::ByKey(formats) => formats.clone(),
            _ => Arc::default(),
        }
    }

    /// Returns the storage format of a parameter; `None` if the archive stores the parameter in the
    /// element type of the network.
    ///
    /// # Panics
    /// Panics if the choice depends on the network, and was not resolved.
    pub fn format(&self, parameter: &Parameter) -> Option<WeightFormat> {
        match self {
            Self::Computed => None,
            Self::All(format) => Some(*format),
            Self::ByKey(formats) => {
                let of = |(key, _): (&str, &TensorType)| format_of(formats, key);
                let formats = parameter.sources().into_iter().map(of).collect::<Option<Vec<_>>>()?;
                let (first, others) = formats.split_first()?;
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

/// Prints the name of the storage format as you write it for the flag `--quant`. `q4` is a mixed
/// storage format, and `q4:pure` stores every matrix in q4.
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
