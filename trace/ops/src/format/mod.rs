//! The formats in which an archive stores the weights of matmuls. Kernels read the weights from panels, in
//! which sixteen rows of the matrix are side by side. A column of a panel has sixteen numbers, and is a line
//! of memory that fits the vectors of the processor. In contrast, StableHLO code reads the groups in the
//! order of the checkpoint, with the integers and the scales in separate tensors. The file of a format with
//! groups declares its facts as [`Groups`]. Everything else asks these facts, so that a new format is a file
//! and a line of the list below.

mod activations;
mod block_types;
mod blocks;
mod floats;
mod grids;
mod grouped;
mod groups;
mod integers;
mod panels;
mod search;

use crate::{ElementType, TensorType};

pub use activations::{
    ActivationBits, IGNORED_BITS, LARGEST_ACTIVATION, OUTLIER, RESIDUAL_STEPS, in_integers, outlier_limit,
};
pub use block_types::{BlockFormat, FLOAT_GROUP, GROUPS, SUPER_BLOCK};
pub use blocks::ScaledFloats;
pub use floats::{
    FLOAT_BLOCK, FOUR_BIT_FLOATS, FloatCodes, FloatScales, Floats, NESTED, NESTED_FLOATS, NESTED_START,
    NORMAL_FLOATS, NestedScale,
};
pub use groups::{BlockSteps, Codes, Groups, Integers, Offered, Quantized, ScaleBytes, Scales};
pub use mxfp4::{DOUBLED_FLOATS, LEAST_SCALE};
pub use search::all_finite;

/// The number of matrix rows that are side by side in a panel.
pub const PANEL: usize = 16;

/// The number of values of a weight row that share the scale of their quantized activations.
pub const GROUP: usize = 32;

/// The version of the rounding by [`WeightFormat::quantize`]. A new version renews cached archives.
pub const ROUNDING: u32 = 3;

/// The bytes in a line of a panel, which has equally many of each weight row.
const LINE: usize = PANEL * 4;

/// Declares the formats, each with its name and its kind of numbers, and the files of formats with groups.
macro_rules! formats {
    (dense { $($(#[$dense_doc:meta])* $dense:ident = $dense_word:literal),* $(,)? }
     folders { $($(#[$own_doc:meta])* $own:ident = $own_word:literal in $own_file:ident),* $(,)? }
     groups { $($(#[$doc:meta])* $variant:ident = $word:literal in $file:ident),* $(,)? }
     floats { $($(#[$float_doc:meta])* $float:ident = $float_word:literal in $facts:ident),* $(,)? }) => {
        $(mod $file;)*
        $(mod $own_file;)*

        crate::words! {
            /// A storage format of a weight's numbers. In formats with groups, each number is an
            /// integer multiplied by the scale of its group, and some formats subtract a minimum.
            pub enum WeightFormat {
                $($(#[$dense_doc])* $dense = $dense_word,)*
                $($(#[$doc])* $variant = $word,)*
                $($(#[$own_doc])* $own = $own_word,)*
                $($(#[$float_doc])* $float = $float_word,)*
            }
        }

        impl WeightFormat {
            /// Returns the element type that the format stores without loss; `None` for formats with scales.
            pub fn element(self) -> Option<ElementType> {
                match self {
                    $(Self::$dense => Some(ElementType::$dense),)*
                    $(Self::$variant => None,)*
                    $(Self::$own => None,)*
                    $(Self::$float => None,)*
                }
            }

            /// Returns the facts of a format with groups; `None` for the other formats.
            pub fn groups(self) -> Option<&'static Groups> {
                match self {
                    $(Self::$dense => None,)*
                    $(Self::$variant => Some(&$file::FORMAT),)*
                    $(Self::$own => Some(&$own_file::FORMAT),)*
                    $(Self::$float => None,)*
                }
            }

            /// Returns the facts of a format whose codes are floats; `None` for the other formats.
            pub fn floats(self) -> Option<&'static Floats> {
                match self {
                    $(Self::$float => Some(&floats::$facts),)*
                    _ => None,
                }
            }
        }
    };
}

formats! {
    dense {
        /// The archive stores each number of the weight as f32.
        F32 = "f32",
        /// The archive stores each number of the weight as f16.
        F16 = "f16",
        /// The archive stores each number of the weight as bf16.
        Bf16 = "bf16",
    }
    folders {
        /// Symmetric integers of four bits in groups of 128: 4.125 bits per number. Quantized Hugging Face folders
        /// contain weights in this format, as in the following ones.
        Int4G128 = "int4_g128" in int4_g128,
        /// Integers of four bits in groups of 128, each with a zero point of four bits: 4.16 bits per number.
        Uint4G128 = "uint4_g128" in uint4_g128,
        /// Integers of four bits in groups of 32, each with a zero point of four bits: 4.625 bits per number.
        Uint4G32 = "uint4_g32" in uint4_g32,
        /// Symmetric integers of eight bits in groups of 128: 8.125 bits per number.
        Int8G128 = "int8_g128" in int8_g128,
        /// Integers of two bits in groups of 128, each with a zero point of four bits: 2.16 bits per number.
        Uint2G128 = "uint2_g128" in uint2_g128,
        /// Integers of three bits in groups of 128, each with a zero point of four bits: 3.16 bits per number.
        Uint3G128 = "uint3_g128" in uint3_g128,
    }
    groups {
        /// Symmetric integers of eight bits in groups of 32: 8.5 bits per number.
        Q8 = "q8" in q8,
        /// Symmetric integers of four bits in groups of 32: 4.5 bits per number.
        Q4 = "q4" in q4,
        /// Integers of four bits in groups of 32. Each group has a scale and a minimum of six bits.
        /// The scales of eight groups are multiples of one step, and the minima of the groups are
        /// multiples of another step: 4.5 bits per number.
        Q4K = "q4_k" in q4_k,
        /// Floats of four bits in groups of 32, with a power of two as the scale of each group:
        /// 4.25 bits per number. Published checkpoints contain weights in the format mxfp4.
        Mxfp4 = "mxfp4" in mxfp4,
        /// Integers of six bits in groups of 16. The scale of a group is a number of steps of eight bits, and
        /// 16 groups share a step: 6.5625 bits per number. GGUF files contain weights in this format.
        Q6K = "q6_k" in q6_k,
        /// Symmetric integers of five bits in groups of 32: 5.5 bits per number. GGUF files contain
        /// weights in this format.
        Q5_0 = "q5_0" in q5_0,
        /// Integers of five bits in groups of 32, with scales and minima as in q4_k: 5.5 bits per
        /// number. GGUF files contain weights in this format.
        Q5K = "q5_k" in q5_k,
        /// Integers of four bits in groups of 32. Each group has a scale and a least number: 5 bits per
        /// number. GGUF files contain weights in this format.
        Q4_1 = "q4_1" in q4_1,
        /// Integers of five bits in groups of 32. Each group has a scale and a least number: 6 bits per
        /// number. GGUF files contain weights in this format.
        Q5_1 = "q5_1" in q5_1,
        /// Integers of three bits in groups of 16. The scale of a group is a number of steps of six bits, and
        /// 16 groups share a step: 3.4375 bits per number. GGUF files contain weights in this format.
        Q3K = "q3_k" in q3_k,
        /// Integers of two bits in groups of 16. The scale and the minimum of a group are numbers of steps of
        /// four bits, and 16 groups share the steps: 2.625 bits per number. GGUF files contain weights in this
        /// format.
        Q2K = "q2_k" in q2_k,
        /// Codes of four bits in groups of 32, which a table makes integers: 4.5 bits per number. GGUF files
        /// contain weights in this format.
        Iq4Nl = "iq4_nl" in iq4_nl,
        /// Codes of four bits as in iq4_nl. The scale of a group is a number of steps of six bits, and eight
        /// groups share a step: 4.25 bits per number. GGUF files contain weights in this format.
        Iq4Xs = "iq4_xs" in iq4_xs,
        /// Codes of four bits in groups of 16, which a table makes integers. The scale of a group is a number of
        /// steps of eight bits, and 16 groups share a step: 4.5625 bits per number. GGUF files contain these numbers
        /// in blocks of IQ1 and IQ2.
        Iq2 = "iq2" in iq2,
        /// Codes as in iq2 with the table of IQ3_XXS: 4.5625 bits per number.
        Iq3Xxs = "iq3_xxs" in iq3_xxs,
        /// Codes as in iq2 with the table of IQ3_S: 4.5625 bits per number.
        Iq3S = "iq3_s" in iq3_s,
        /// Floats of four bits in groups of 16, with a float of eight bits as the scale of each group: 4.5 bits per
        /// number. GGUF files contain weights in this format.
        Nvfp4 = "nvfp4" in nvfp4,
    }
    floats {
        /// Floats of eight bits (e4m3). Each block of 128 × 128 has a scale: 8.02 bits per number. Hugging Face
        /// checkpoints contain weights in this format.
        F8 = "f8" in F8,
        /// Floats of eight bits (e4m3). Each row has a scale: 8 bits per number. Hugging Face checkpoints
        /// contain weights in this format.
        F8Rows = "f8_rows" in F8_ROWS,
        /// Codes of four bits in groups of 64, with the numbers of QLoRA: 4.5 bits per number. Checkpoints of
        /// bitsandbytes contain weights in this format.
        Nf4 = "nf4" in NF4,
        /// Codes of four bits in groups of 64, with floats as numbers: 4.5 bits per number. Checkpoints of
        /// bitsandbytes contain weights in this format.
        Fp4 = "fp4" in FP4,
        /// The codes of nf4, and scales of eight bits in units of a scale for each 256 groups: 4.13 bits per
        /// number. Checkpoints of bitsandbytes contain weights in this format.
        Nf4Nested = "nf4_nested" in NF4_NESTED,
        /// The codes of fp4, with scales as in nf4_nested: 4.13 bits per number. Checkpoints of bitsandbytes
        /// contain weights in this format.
        Fp4Nested = "fp4_nested" in FP4_NESTED,
    }
}

crate::words! {
    /// One of the tensors that together contain a weight, in a format with groups.
    pub enum GroupPart {
        /// The tensor contains the integers of the weight, which are multiplied by the scales of
        /// their groups.
        Integers = "integers",
        /// The tensor contains the scales of the groups. If the scales are multiples of steps, the
        /// tensor contains the steps of the scales and minima instead.
        Scales = "scales",
        /// The tensor contains the scale and the minimum of each group, as a number of steps.
        Counts = "counts",
    }
}

impl WeightFormat {
    /// Returns the format that stores numbers of the given element type without loss.
    pub fn dense(element: ElementType) -> Option<Self> {
        Self::ALL.iter().copied().find(|format| format.element() == Some(element))
    }

    /// The formats with groups.
    pub fn grouped_formats() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|format| format.groups().is_some())
    }

    /// The formats that you can choose for a network, with how they are chosen.
    pub fn choices() -> impl Iterator<Item = (Self, Offered)> {
        Self::grouped_formats().filter_map(|format| Some((format, format.groups()?.choice?)))
    }

    /// The names of formats with groups, as a list for errors.
    pub fn list(formats: impl Iterator<Item = Self>) -> String {
        let names: Vec<&str> = formats.map(Self::word).collect();
        match &names[..] {
            [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
            _ => names.concat(),
        }
    }

    /// The values of a weight row that are quantized together; `None` without scales.
    pub fn together(self) -> Option<usize> {
        self.block().map(BlockFormat::numbers)
    }

    /// The block with the same codes and scales; `None` without scales.
    pub fn block(self) -> Option<BlockFormat> {
        let of_floats = || self.floats().map(|floats| floats.block);
        self.groups().map(|groups| groups.block).or_else(of_floats)
    }

    /// The matrix columns in a chunk, whose scales a panel stores together.
    pub fn columns(self) -> usize {
        self.groups().map_or(2 * GROUP, |groups| groups.columns)
    }

    /// The bytes for the scales of a chunk, which come before its integers.
    pub fn scales(self) -> usize {
        self.groups().map_or(LINE, Groups::scale_bytes)
    }

    /// Returns the type of the tensor that contains a packed matrix in the format. Zeros fill the last panel
    /// and the last columns of the packed matrix. In formats without groups, the shape is `[outputs / 16,
    /// inputs, 16, 1]`. For bf16, the panel stores two columns together, and the shape is `[outputs / 16,
    /// inputs / 2, 16, 2]`. In formats with groups, the tensor contains bytes `[outputs / 16, inputs /
    /// columns, bytes]`, in chunks of some columns ([`columns`](Self::columns)). A chunk begins with its
    /// scales: each list of [`Groups::scales`] is a tensor `[blocks, count, 16]`. The lines of all groups
    /// follow. A line has the shape `[16, 4]`, and its bytes contain bits of several codes. With 4 bits, the
    /// low bits of a line belong to four columns, and the high bits to the next four columns. The lines of
    /// upper planes come first in a group. In formats of floats, the tensor contains bytes `[outputs / 16,
    /// bytes]`: see [`Floats`].
    pub fn packed(self, outputs: usize, inputs: usize) -> TensorType {
        let panels = outputs.div_ceil(PANEL);
        if let Some(floats) = self.floats() {
            return TensorType::new(ElementType::I8, [panels, floats.panel_bytes(inputs)]);
        }
        match self.element() {
            Some(ElementType::Bf16) => {
                TensorType::new(ElementType::Bf16, [panels, inputs.div_ceil(2), PANEL, 2])
            }
            Some(element) => TensorType::new(element, [panels, inputs, PANEL, 1]),
            None => TensorType::new(ElementType::I8, [panels, inputs.div_ceil(self.columns()), self.chunk()]),
        }
    }

    /// Returns the number of bytes in a chunk of a panel.
    fn chunk(self) -> usize {
        let bits = self.groups().map_or(8, Groups::bits);
        self.scales() + self.columns() * PANEL * bits / 8
    }

    /// The [`groups`](Self::groups) of a format that is known to have groups.
    ///
    /// # Panics
    /// Panics if the format has no groups.
    pub fn facts(self) -> &'static Groups {
        self.groups().unwrap_or_else(|| unreachable!("{} has no groups", self.word()))
    }

    /// Quantizes the values of a group or a block to integers and scales.
    ///
    /// With eight bits, the number with the largest magnitude becomes an integer near ±127, and
    /// usually −8 with four bits. With four bits, the scale can be negative, because the integer −8
    /// has no positive counterpart. If a number is NaN or infinite, the scale is not finite.
    ///
    /// # Panics
    /// Panics if the format has no groups.
    pub fn quantize(self, numbers: &[f32]) -> Quantized {
        self.quantize_weighted(numbers, &[])
    }

    /// Quantizes like [`quantize`](Self::quantize), but minimizes the weighted sum of the squared errors. The
    /// list of `weights` is empty, or contains a positive weight for the squared error of each value.
    pub fn quantize_weighted(self, numbers: &[f32], weights: &[f32]) -> Quantized {
        let groups = self.facts();
        Quantized { block: groups.block, bytes: (groups.quantize)(numbers, weights) }
    }
}

#[cfg(test)]
mod tests;
