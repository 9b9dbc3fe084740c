//! The processor instructions that kernels use.

mod arm;
pub(crate) mod tiles;
mod x86;

use targets::{Backend, DeviceKind, Numerics, Target};

use crate::code::{Element, Type, Value};
use arm::Arm;
use tiles::TileProducts;
use x86::X86;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
    X86(X86),
    Arm(Arm),
}

const I32: Type = Type::lanes(16, Element::I32);
const FLOATS: Type = Type::lanes(16, Element::F32);

/// The features of instructions that multiply bf16, and round in their own way.
const BF16: [&str; 3] = ["avx512bf16", "amx-bf16", "bf16"];

impl Isa {
    pub(crate) fn of(target: &Target) -> Option<Self> {
        let features = target.features.as_ref()?;
        let hidden = if target.numerics == Numerics::Portable { &BF16[..] } else { &[] };
        let has = |names: &[&str]| {
            names.iter().all(|name| !hidden.contains(name) && features.iter().any(|feature| feature == name))
        };
        match (target.backend, target.device, target.architecture()) {
            (Backend::Iree3_13, DeviceKind::Cpu, "x86_64") => {
                X86::of(has, target.is_linux() && target.numerics == Numerics::Fast).map(Self::X86)
            }
            (Backend::Iree3_13, DeviceKind::Cpu, "aarch64") => Arm::of(has).map(Self::Arm),
            _ => None,
        }
    }

    /// The rows whose sums (16 each) fit into registers; with long vectors, beside a second panel's.
    pub(crate) fn rows(self) -> usize {
        match self {
            Self::X86(x86) => x86.rows(),
            Self::Arm(_) => 3,
        }
    }

    /// Whether 16 sums need several registers, which leaves room for few sums.
    pub(crate) fn has_short_vectors(self) -> bool {
        matches!(self, Self::X86(x86) if x86.has_short_vectors())
    }

    pub(crate) fn has_long_vectors(self) -> bool {
        matches!(self, Self::X86(x86) if !x86.has_short_vectors())
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::X86(x86) => x86.name(),
            Self::Arm(arm) => arm.name(),
        }
    }

    pub(crate) fn tiles(self) -> TileProducts {
        match self {
            Self::X86(x86) => x86.tiles(),
            Self::Arm(_) => TileProducts { bf16: false, bytes: false },
        }
    }

    /// Whether [`add_bytes`](Self::add_bytes) reads all bytes as signed integers.
    pub(crate) fn is_signed(self) -> bool {
        match self {
            Self::X86(x86) => x86.is_signed(),
            Self::Arm(arm) => arm.is_signed(),
        }
    }

    /// sums[i] + Σⱼ bytes[4 i + j] · x[j] for 16 sums of each row, once for each of at most eight `columns`.
    /// A column has 64 bytes of the weight, and for each row a word with four bytes of x, signed and never
    /// −128. The weight's bytes are signed only if [`is_signed`](Self::is_signed). `small` is their range.
    /// Products of small bytes fit into 16 bits, even without special instructions.
    pub(crate) fn add_bytes<'k>(
        self,
        sums: Vec<Value<'k>>,
        columns: impl Iterator<Item = (Value<'k>, Vec<Value<'k>>)>,
        small: Small,
    ) -> Vec<Value<'k>> {
        let parts = match self {
            Self::X86(x86) => x86.parts(),
            Self::Arm(_) => arm::PARTS,
        };
        let sums = sums.iter().flat_map(|sums| cut(*sums, parts)).collect();
        let columns = columns.map(|(bytes, x)| {
            let (bytes, lanes) = (cut(bytes, parts), 16 / parts);
            let repeated = x.iter().map(|x| x.broadcast(lanes).bits(Type::lanes(4 * lanes, Element::I8)));
            repeated.flat_map(|x| bytes.iter().map(move |&bytes| (bytes, x))).collect()
        });
        let sums = match self {
            Self::X86(x86) => x86.add_bytes(sums, columns, small),
            Self::Arm(arm) => by_column(sums, columns, |sum, bytes, x| arm.add_bytes(sum, bytes, x)),
        };
        sums.chunks(parts).map(joined).collect()
    }

    /// Looks up 64 numbers from 0 to 15.
    pub(crate) fn look_up<'k>(self, table: &[i8; 16], places: Value<'k>) -> Value<'k> {
        let (parts, instruction) = match self {
            Self::X86(x86) => x86.looks_up(),
            Self::Arm(_) => (arm::PARTS, "llvm.aarch64.neon.tbl1"),
        };
        let ty = Type::lanes(64 / parts, Element::I8);
        let table = places.code().numbers(ty, &table.iter().cycle().take(64 / parts).collect::<Vec<_>>());
        let found = cut(places, parts).into_iter();
        let found = found.map(|places| places.code().instruction(instruction, &[table, places], ty));
        joined(&found.collect::<Vec<_>>())
    }

    /// Whether [`add_bf16_pairs`](Self::add_bf16_pairs) takes less time than two multiplications of f32.
    pub(crate) fn is_fast_in_bf16(self) -> bool {
        match self {
            Self::X86(x86) => x86.is_fast_in_bf16(),
            Self::Arm(arm) => arm.is_fast_in_bf16(),
        }
    }

    /// sums[i] + weights[2 i] · x[0] + weights[2 i + 1] · x[1] for 16 sums, with pairs of bf16 as 32 bits.
    pub(crate) fn add_bf16_pairs<'k>(self, sums: Value<'k>, weights: Value<'k>, x: Value<'k>) -> Value<'k> {
        let pairs = x.broadcast(16);
        let added = match self {
            Self::X86(x86) => x86.add_bf16_pairs(sums, weights, pairs),
            Self::Arm(arm) => arm.add_bf16_pairs(sums, weights, pairs),
        };
        added.unwrap_or_else(|| {
            let part = |which| [weights, pairs].map(|pairs| bf16_of_pairs(pairs, which));
            [part(0), part(1)].into_iter().fold(sums, |sums, [weights, x]| weights.multiply_add(x, sums))
        })
    }
}

/// The range of the bytes of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Small {
    /// The bytes have any value.
    No,
    /// The bytes are from 0 to 15.
    Unsigned,
    /// From −15 to 15 if [`is_signed`](Isa::is_signed), otherwise any value.
    Signed,
}

/// The first (0) or second (1) number of each of 16 pairs, as f32: a bf16 is the upper half of an f32.
pub(crate) fn bf16_of_pairs<'k>(pairs: Value<'k>, which: usize) -> Value<'k> {
    let half = match which {
        0 => pairs.shift_left(16),
        _ => pairs.and(pairs.code().constant(I32, -65536.0)),
    };
    half.bits(FLOATS)
}

/// Rounds 16 f32 pairs to bf16, halves away from zero. A NaN stays a NaN, unless all of its bits are 1.
pub(crate) fn bf16_pairs<'k>(first: Value<'k>, second: Value<'k>) -> Value<'k> {
    let code = first.code();
    let [first, second] = [first, second].map(|numbers| numbers.bits(I32) + code.constant(I32, 32768.0));
    first.shift_right(16).or(second.and(code.constant(I32, -65536.0)))
}

/// Transposes 16 vectors of 16 lanes in four steps, which exchange halves of pairs of vectors.
pub(crate) fn transposed<'k>(vectors: Vec<Value<'k>>) -> Vec<Value<'k>> {
    const SIDE: usize = 16;
    let lanes = |own: &dyn Fn(usize) -> usize| (0..SIDE).map(own).collect::<Vec<_>>();
    [8, 4, 2, 1].into_iter().fold(vectors, |vectors, width| {
        let first = lanes(&|lane| if lane & width == 0 { lane } else { SIDE + lane - width });
        let second = lanes(&|lane| if lane & width == 0 { lane + width } else { SIDE + lane });
        let changed = |i: usize| match i & width {
            0 => vectors[i].pick(vectors[i + width], &first),
            _ => vectors[i - width].pick(vectors[i], &second),
        };
        (0..SIDE).map(changed).collect()
    })
}

/// Weights and activations of one weight column, in pairs whose products belong to the same sums.
type Column<'k> = Vec<(Value<'k>, Value<'k>)>;

/// Uses a column for all rows before it loads the next one, because the processor has few registers.
fn by_column<'k>(
    sums: Vec<Value<'k>>,
    columns: impl Iterator<Item = Column<'k>>,
    add: impl Fn(Value<'k>, Value<'k>, Value<'k>) -> Value<'k>,
) -> Vec<Value<'k>> {
    columns.fold(sums, |sums, column| {
        sums.into_iter().zip(column).map(|(sum, (bytes, x))| add(sum, bytes, x)).collect()
    })
}

/// Splits a vector into 2ⁿ equal parts, for processors with shorter vectors.
fn cut(vector: Value<'_>, parts: usize) -> Vec<Value<'_>> {
    match parts {
        1 => vec![vector],
        _ => [0, 1].into_iter().flat_map(|half| cut(vector.half(half), parts / 2)).collect(),
    }
}

fn joined<'k>(parts: &[Value<'k>]) -> Value<'k> {
    match parts {
        [whole] => *whole,
        _ => {
            let (lower, upper) = parts.split_at(parts.len() / 2);
            joined(lower).followed_by(joined(upper))
        }
    }
}
