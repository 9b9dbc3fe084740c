//! The facts that the file of a format with groups declares.

use std::array::from_fn;

use half::f16;

use super::{BlockFormat, GROUP, GROUPS, GroupPart, LINE, PANEL, SUPER_BLOCK, WeightFormat};
use crate::ElementType;

/// The codes of a block: the unsigned integers that the block stores.
pub type Codes = [u8; SUPER_BLOCK];

/// The facts of a format with groups.
pub struct Groups {
    /// The block of GGUF with the same integers and scales. A quantized block has these bytes.
    pub block: BlockFormat,
    /// The other blocks of GGUF whose numbers the format keeps without loss.
    pub exact: &'static [BlockFormat],
    /// The number of values that share a scale: 32, or 16.
    pub group: usize,
    /// The widths in bits of the planes that together store a code, from the lowest bits on.
    pub planes: &'static [usize],
    pub integers: Integers,
    /// The number of columns in a chunk of a panel.
    pub columns: usize,
    /// The bytes of a block that contain its scales, in the order of a panel.
    pub scales: &'static [ScaleBytes],
    /// The scales that a block contains.
    pub read_scales: fn(&[u8]) -> Scales,
    /// The element type of scales that are not multiples of steps, in the archive.
    pub element: ElementType,
    /// Whether the scales are multiples of steps.
    pub in_steps: bool,
    /// The power of two by which the steps are multiplied.
    pub unit: f32,
    /// Whether a minimum is subtracted from the numbers of a group.
    pub minima: bool,
    pub read: fn(&[u8], &mut Codes),
    /// Replaces the codes of a block.
    pub write: fn(&Codes, &mut [u8]),
    /// Rounds the values of a block, whose errors have the given weights.
    pub quantize: fn(&[f32], &[f32]) -> Vec<u8>,
    /// The code that is nearest to a number in units of the scale.
    pub round: fn(f32) -> u8,
    /// Fits the scale and the minimum of one group again: block, index of the group, values, weights.
    pub refit: Option<Refit>,
    /// The numbers that the format keeps of a group of another block.
    pub keep: fn(&Group) -> Option<Vec<u8>>,
    /// How you choose the format for a network; `None` if only checkpoints do.
    pub choice: Option<Offered>,
}

/// The arguments are the block, the index of the group, the values and their weights.
type Refit = fn(&mut [u8], usize, &[f32], &[f32]);

/// How a format is chosen for a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// For all matrices.
    All,
    /// With a format of 8 bits for the matrices whose rounding matters most, unless `:pure` is given.
    Mixed,
}

/// The integer of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integers {
    /// The code minus this number.
    Minus(u8),
    /// The number at the place of the code, such as twice the value of a four-bit float (e2m1).
    Table(&'static [i8; 16]),
}

/// Equally wide pieces of a block's bytes.
#[derive(Clone, Copy)]
pub struct ScaleBytes {
    pub at: usize,
    pub count: usize,
    pub width: usize,
}

impl ScaleBytes {
    /// The width of bytes of which a panel keeps the lower four bits. The rows 0 to 7 have the lower half of a
    /// panel's byte, and the rows 8 to 15 the upper half.
    pub const FOUR_BITS: usize = 0;

    /// The bytes in a panel for one of the pieces of sixteen rows.
    pub(super) fn panel_bytes(&self) -> usize {
        if self.width == Self::FOUR_BITS { PANEL / 2 } else { self.width * PANEL }
    }
}

/// The scales of a block.
pub enum Scales {
    /// The scale and the minimum of the only group.
    Each([f32; 2]),
    /// The scale of each group, without minima.
    All([f32; 2 * GROUPS]),
    InSteps(BlockSteps),
}

/// The steps of a block, and for each group the scale and the minimum as numbers of steps. Without
/// minima, the second step is 0.
pub struct BlockSteps {
    pub steps: [f16; 2],
    pub counts: [[i8; 2]; 2 * GROUPS],
}

impl Groups {
    /// Returns the number of bits of a code.
    pub fn bits(&self) -> usize {
        self.planes.iter().sum()
    }

    /// The planes of a code: the position of the lowest bit, and the width in bits.
    pub fn planes(&self) -> impl DoubleEndedIterator<Item = (usize, usize)> + use<> {
        let starts = self.planes.iter().scan(0, |sum, width| {
            *sum += width;
            Some((*sum - width, *width))
        });
        starts.collect::<Vec<_>>().into_iter()
    }

    /// The groups of each 32 values.
    pub fn parts(&self) -> usize {
        GROUP / self.group
    }

    /// The numbers that describe a group: the scale and, in some formats, the minimum.
    pub fn scales_of_group(&self) -> usize {
        1 + usize::from(self.minima)
    }

    pub(super) fn scale_bytes(&self) -> usize {
        let bytes: usize = self.scales.iter().map(|piece| piece.count * piece.panel_bytes()).sum();
        self.columns / self.block.numbers() * bytes
    }

    pub fn integer(&self, code: u8) -> i8 {
        match self.integers {
            Integers::Minus(less) => code.wrapping_sub(less) as i8,
            Integers::Table(table) => table[usize::from(code & 15)],
        }
    }

    /// Returns the code of the integer 0.
    pub fn zero(&self) -> u8 {
        match self.integers {
            Integers::Minus(less) => less,
            Integers::Table(_) => 0,
        }
    }

    /// Returns the scale and the minimum of each group in a block.
    pub fn scales_of(&self, block: &[u8]) -> [[f32; 2]; 2 * GROUPS] {
        match (self.read_scales)(block) {
            Scales::Each(one) => [one; 2 * GROUPS],
            Scales::All(scales) => scales.map(|scale| [scale, 0.0]),
            Scales::InSteps(BlockSteps { steps, counts }) => {
                let steps = steps.map(|step| step.to_f32() * self.unit);
                counts.map(|counts| from_fn(|which| steps[which] * f32::from(counts[which])))
            }
        }
    }

    /// Whether a block's scales are finite: no number was NaN, infinite, or too large for the scale's type.
    pub fn is_finite(&self, block: &[u8]) -> bool {
        self.scales_of(block).iter().flatten().all(|scale| scale.is_finite())
    }

    pub fn codes(&self, block: &[u8]) -> Codes {
        let mut codes = [0; SUPER_BLOCK];
        (self.read)(block, &mut codes);
        codes
    }

    /// Computes numbers from their codes.
    pub(super) fn numbers(&self, codes: &[u8], scales: &[[f32; 2]], numbers: &mut [f32]) {
        for (numbers, (codes, [scale, minimum])) in
            numbers.chunks_mut(self.group).zip(codes.chunks(self.group).zip(scales))
        {
            for (number, code) in numbers.iter_mut().zip(codes) {
                *number = f32::from(self.integer(*code)) * scale - minimum;
            }
        }
    }
}

/// Sixteen rows that are packed together: the lines of a group, from the first to the last.
pub(super) struct GroupLine {
    /// The lowest bit of the line's plane in a code, and the number of bits.
    pub shift: usize,
    pub width: usize,
    /// The first of the groups of four columns whose bits the line contains.
    pub four: usize,
}

impl Groups {
    /// The lines of a group in a panel.
    pub(super) fn lines(&self) -> impl Iterator<Item = GroupLine> + use<> {
        self.planes().rev().flat_map(|(shift, width)| {
            (0..width).map(move |line| GroupLine { shift, width, four: line * (8 / width) })
        })
    }

    pub(super) fn group_bytes(&self) -> usize {
        self.bits() * LINE
    }
}

/// The integers of a group with one scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    pub integers: [i8; GROUP],
    pub scale: f16,
}

/// The values of a weight row that Tracewright quantizes together: a group or a block of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantized {
    pub block: BlockFormat,
    /// The bytes of the block, as in GGUF.
    pub bytes: Vec<u8>,
}

impl Quantized {
    /// Returns the quantized values in the format `format`; `None` if the format cannot represent the values.
    pub fn kept_in(self, format: WeightFormat) -> Option<Self> {
        if format.block() == Some(self.block) {
            return Some(self);
        }
        let groups = format.groups()?;
        let bytes = (groups.keep)(&self.block.group(&self.bytes)?)?;
        Some(Self { block: groups.block, bytes })
    }
}

impl GroupPart {
    /// The tensors that contain a weight in a format with groups.
    pub(super) fn of(groups: &Groups) -> &'static [Self] {
        if groups.in_steps { Self::ALL } else { &[Self::Integers, Self::Scales] }
    }
}
