//! What a processor's instructions do for a kernel.

mod arm;
pub(crate) mod tiles;
mod x86;

use targets::{Backend, DeviceKind, Target};

use crate::code::{Element, Type, Value};
use arm::Arm;
use tiles::TileProducts;
use x86::X86;

/// The instructions that kernels differ by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
    X86(X86),
    Arm(Arm),
}

const I32: Type = Type::lanes(16, Element::I32);
const FLOATS: Type = Type::lanes(16, Element::F32);

impl Isa {
    pub(crate) fn of(target: &Target) -> Option<Self> {
        let features = target.features.as_ref()?;
        let has = |names: &[&str]| names.iter().all(|name| features.iter().any(|feature| feature == name));
        match (target.backend, target.device, target.architecture()) {
            (Backend::Iree3_13, DeviceKind::Cpu, "x86_64") => X86::of(has, target.is_linux()).map(Self::X86),
            (Backend::Iree3_13, DeviceKind::Cpu, "aarch64") => Arm::of(has).map(Self::Arm),
            _ => None,
        }
    }

    /// How many rows of sixteen sums stay in registers, and, but where vectors are short, another panel's beside them.
    pub(crate) fn rows(self) -> usize {
        match self {
            Self::X86(x86) => x86.rows(),
            Self::Arm(_) => 3,
        }
    }

    /// Whether sixteen sums take two registers of a sixteen, so that few stay there.
    pub(crate) fn has_short_vectors(self) -> bool {
        matches!(self, Self::X86(x86) if x86.has_short_vectors())
    }

    /// A name for what the code depends on.
    pub(crate) fn name(self) -> String {
        match self {
            Self::X86(x86) => x86.name(),
            Self::Arm(arm) => arm.name(),
        }
    }

    /// Which tiles it multiplies.
    pub(crate) fn tiles(self) -> TileProducts {
        match self {
            Self::X86(x86) => x86.tiles(),
            Self::Arm(_) => TileProducts { bf16: false, bytes: false },
        }
    }

    /// Whether [`add_bytes`](Self::add_bytes) takes all bytes with a sign.
    pub(crate) fn is_signed(self) -> bool {
        match self {
            Self::X86(x86) => x86.is_signed(),
            Self::Arm(arm) => arm.is_signed(),
        }
    }

    /// sums[i] + Σⱼ bytes[4 i + j] · x[4 i + j] for 16 sums of each row: of each of eight columns at most its bytes, and x for
    /// each row. x has a sign and is not −128, bytes have one only where all do.
    ///
    /// `small` bytes are from 0 to 15: without instructions for it, sums of products have 16 bits.
    pub(crate) fn add_bytes<'k>(
        self,
        sums: Vec<Value<'k>>,
        columns: impl Iterator<Item = (Value<'k>, Vec<Value<'k>>)>,
        small: bool,
    ) -> Vec<Value<'k>> {
        match self {
            Self::X86(x86) => x86.add_bytes(sums, columns, small),
            Self::Arm(arm) => by_column(sums, columns, |sum, bytes, x| arm.add_bytes(sum, bytes, x)),
        }
    }

    /// Whether [`add_bf16_pairs`](Self::add_bf16_pairs) takes less time than two products of f32.
    pub(crate) fn is_fast_in_bf16(self) -> bool {
        match self {
            Self::X86(x86) => x86.is_fast_in_bf16(),
            Self::Arm(arm) => arm.is_fast_in_bf16(),
        }
    }

    /// sums[i] + weights[2 i] · x[0] + weights[2 i + 1] · x[1] for 16 sums: pairs of bf16, each as the 32 bits that they are.
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

/// The first (0) or the second (1) of sixteen pairs of bf16 in f32: a bf16 is the upper half of one.
pub(crate) fn bf16_of_pairs<'k>(pairs: Value<'k>, which: usize) -> Value<'k> {
    let half = match which {
        0 => pairs.shift_left(16),
        _ => pairs.and(pairs.code().constant(I32, -65536.0)),
    };
    half.bits(FLOATS)
}

/// Each row's sums and what a column adds to them: all rows need the column before the next one is looked at, as registers
/// are few.
fn by_column<'k>(
    sums: Vec<Value<'k>>,
    columns: impl Iterator<Item = (Value<'k>, Vec<Value<'k>>)>,
    add: impl Fn(Value<'k>, Value<'k>, Value<'k>) -> Value<'k>,
) -> Vec<Value<'k>> {
    columns
        .fold(sums, |sums, (bytes, x)| sums.into_iter().zip(x).map(|(sum, x)| add(sum, bytes, x)).collect())
}

/// What instructions for shorter vectors make of long ones: of each of 2ⁿ equal parts of the operands, side by side.
fn in_parts<'k, const N: usize>(
    parts: usize,
    operands: [Value<'k>; N],
    instruction: &dyn Fn([Value<'k>; N]) -> Value<'k>,
) -> Value<'k> {
    if parts == 1 {
        return instruction(operands);
    }
    let [lower, upper] =
        [0, 1].map(|half| in_parts(parts / 2, operands.map(|value| value.half(half)), instruction));
    lower.followed_by(upper)
}
