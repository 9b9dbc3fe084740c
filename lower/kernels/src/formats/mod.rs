//! How kernels read the scales of packed weights: one file per format, and one line per format below.
//! The planes and the meaning of the codes come from [`Groups`].

mod floats;
mod integers;
mod iq4_xs;
mod mxfp4;
mod nvfp4;
mod q2_k;
mod q3_k;
mod q4_k;
mod q6_k;
mod q8;

use ops::WeightFormat;
use ops::format::{GROUP, Groups, Integers};

use crate::code::{Buffer, Code, Element, Type, Value};
use crate::isa::Small;
use crate::matmul::Panel;
use crate::quantized::Sums;

pub(crate) use floats::{E4M3_UNIT, nested_floats};

/// The numbers of a group, each a vector with a lane for each of 16 rows. A group of 32 columns has one
/// scale, or two for its halves, and as many minima or none. For matmuls, minima are added; for rows,
/// they are subtracted.
#[derive(Clone)]
pub(crate) struct GroupScales<'k> {
    pub(crate) scales: Vec<Value<'k>>,
    pub(crate) minima: Vec<Value<'k>>,
}

/// The scales of a chunk. The argument of the function is the index of a group in the chunk.
pub(crate) type ChunkScales<'k> = Box<dyn Fn(usize) -> GroupScales<'k> + 'k>;

impl<'k> GroupScales<'k> {
    pub(crate) fn one(scale: Value<'k>) -> Self {
        Self { scales: vec![scale], minima: Vec::new() }
    }

    /// The order in which memory holds the numbers.
    pub(crate) fn all(&self) -> impl Iterator<Item = Value<'k>> + '_ {
        self.scales.iter().chain(&self.minima).copied()
    }
}

/// Code that reads the scales of a format. A chunk begins at the byte `start` of the panel.
pub(crate) trait ReadScales: Sync {
    fn of_chunk<'k>(&self, code: &'k Code, panel: Panel<'k>, start: Value<'k>) -> ChunkScales<'k>;

    /// Reads the scales of a group whose index in its chunk is known only at run time.
    fn at<'k>(&self, panel: Panel<'k>, start: Value<'k>, group: Value<'k>) -> GroupScales<'k>;

    fn of_row(&self) -> RowScales;

    /// Computes the integer of a weight from its code, as i32.
    fn integer<'k>(&self, groups: &Groups, stored: Value<'k>) -> Value<'k> {
        let number = |number: i8| stored.code().constant(stored.ty(), f64::from(number));
        match groups.integers {
            Integers::Minus(0) => stored,
            Integers::Minus(less) => stored - stored.code().constant(stored.ty(), f64::from(less)),
            Integers::Table(table) => {
                (0..).zip(&table[..15]).fold(number(table[15]), |other, (code, &integer)| {
                    number(integer).or_else(stored.equals(number(code)), other)
                })
            }
        }
    }
}

/// One row of the matrix; a panel stores the row together with 15 other rows.
#[derive(Clone, Copy)]
pub(crate) struct Line<'k> {
    pub(crate) weight: Buffer<'k>,
    /// The index in the matrix of the first byte of the panel.
    pub(crate) base: Value<'k>,
    pub(crate) lane: Value<'k>,
}

impl<'k> Line<'k> {
    pub(crate) fn number(self, at: Value<'k>, element: Element) -> Value<'k> {
        let bytes = self.weight.load(self.base + at, Type::lanes(element.bits() / 8, Element::I8));
        bytes.bits(Type::Scalar(element))
    }
}

/// Code that reads the scales of one row.
pub(crate) enum RowScales {
    /// The arguments are the first byte of the chunk, and the index of the group in the chunk.
    ByGroup(for<'k> fn(Line<'k>, Value<'k>, Value<'k>) -> GroupScales<'k>),
    /// For scales that share work. The argument is the first byte of the chunk.
    ByChunk(for<'k> fn(Line<'k>, Value<'k>) -> ChunkScales<'k>),
}

/// Returns the code that reads the scales of a format with groups.
pub(crate) fn scales_of(format: WeightFormat) -> &'static dyn ReadScales {
    match format {
        WeightFormat::Int4G128 | WeightFormat::Int8G128 => &integers::Spans::<1, false>,
        WeightFormat::Uint4G128 | WeightFormat::Uint3G128 | WeightFormat::Uint2G128 => {
            &integers::Spans::<1, true>
        }
        WeightFormat::Uint4G32 => &integers::Spans::<4, true>,
        WeightFormat::Q8 | WeightFormat::Q4 | WeightFormat::Q5_0 | WeightFormat::Iq4Nl => {
            &q8::Halves { minima: false }
        }
        WeightFormat::Q4_1 | WeightFormat::Q5_1 => &q8::Halves { minima: true },
        WeightFormat::Q4K | WeightFormat::Q5K => &q4_k::Counted,
        WeightFormat::Mxfp4 => &mxfp4::Powers,
        WeightFormat::Q6K | WeightFormat::Iq3S => &q6_k::Sixteenths::<1>,
        WeightFormat::Q3K => &q3_k::SixBits,
        WeightFormat::Q2K => &q2_k::FourBits,
        WeightFormat::Iq4Xs => &iq4_xs::Split,
        WeightFormat::Iq2 => &q6_k::Sixteenths::<8>,
        WeightFormat::Iq3Xxs => &q6_k::Sixteenths::<4>,
        WeightFormat::Nvfp4 => &nvfp4::FloatSteps,
        WeightFormat::F32
        | WeightFormat::F16
        | WeightFormat::Bf16
        | WeightFormat::F8
        | WeightFormat::F8Rows
        | WeightFormat::Nf4
        | WeightFormat::Fp4
        | WeightFormat::Nf4Nested
        | WeightFormat::Fp4Nested => unreachable!("a format with groups"),
    }
}

/// The largest magnitude of a table's integers.
pub(crate) fn largest(table: &[i8; 16]) -> i8 {
    table.iter().map(|integer| integer.abs()).max().unwrap_or_default()
}

/// The number to add to a weight's bytes, read as signed or unsigned, to get its integers.
pub(crate) fn added(groups: &Groups, signed: bool) -> i32 {
    match groups.integers {
        Integers::Table(_) if signed => 0,
        Integers::Table(table) => -i32::from(largest(table)),
        Integers::Minus(_) if signed && groups.planes == [8] => 0,
        Integers::Minus(less) => -i32::from(less),
    }
}

pub(crate) fn small(groups: &Groups) -> Small {
    match groups.integers {
        Integers::Table(table) if largest(table) < 16 => Small::Signed,
        Integers::Table(_) => Small::No,
        Integers::Minus(_) if groups.bits() <= 4 => Small::Unsigned,
        Integers::Minus(_) => Small::No,
    }
}

/// Returns the kind of sum that the layout of quantized activations stores for each group.
pub(crate) fn sums(groups: &Groups, signed: bool) -> Sums {
    match added(groups, signed) {
        _ if groups.minima && groups.group < GROUP => Sums::HalfNumbers,
        _ if groups.minima => Sums::Numbers,
        added if groups.group < GROUP => Sums::Halves(added),
        added => Sums::Times(added),
    }
}
