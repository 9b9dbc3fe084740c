use super::{cut, joined};
use crate::code::{Element, Type, Value};

/// The instruction set of an AArch64 processor with vectors of 128 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arm {
    /// Whether the processor has the dot product instruction for four pairs of signed bytes.
    dotprod: bool,
    i8mm: bool,
    /// Whether the processor has the dot product instruction for two pairs of bf16.
    bf16: bool,
}

/// The number of 128-bit vectors that together contain sixteen floats, or 64 bytes.
pub(super) const PARTS: usize = 4;

const SUMS: Type = Type::lanes(4, Element::I32);
const WORDS: Type = Type::lanes(8, Element::I16);

impl Arm {
    pub(super) fn of(has: impl Fn(&[&str]) -> bool) -> Option<Self> {
        let [dotprod, i8mm, bf16] = ["dotprod", "i8mm", "bf16"].map(|name| has(&[name]));
        has(&["neon"]).then_some(Self { dotprod, i8mm, bf16 })
    }

    pub(super) fn name(self) -> String {
        let parts = [(self.dotprod, "_dotprod"), (self.i8mm, "_i8mm"), (self.bf16, "_bf16")];
        parts.into_iter().filter(|(has, _)| *has).fold("neon".to_owned(), |name, (_, part)| name + part)
    }

    pub(super) fn is_signed(self) -> bool {
        !self.i8mm
    }

    pub(super) fn is_fast_in_bf16(self) -> bool {
        self.bf16
    }

    pub(super) fn add_bytes<'k>(self, sums: Value<'k>, bytes: Value<'k>, x: Value<'k>) -> Value<'k> {
        let code = sums.code();
        match self {
            Self { i8mm: true, .. } => code.instruction("llvm.aarch64.neon.usdot", &[sums, bytes, x], SUMS),
            Self { dotprod: true, .. } => code.instruction("llvm.aarch64.neon.sdot", &[sums, bytes, x], SUMS),
            _ => {
                // No byte of x is −128, so the sum of two products fits into 16 bits.
                let products = [0, 1].map(|half| {
                    let operands = [bytes.half(half), x.half(half)];
                    code.instruction("llvm.aarch64.neon.smull", &operands, WORDS)
                });
                let pairs = code.instruction("llvm.aarch64.neon.addp", &products, WORDS);
                sums + code.instruction("llvm.aarch64.neon.saddlp", &[pairs], SUMS)
            }
        }
    }

    pub(super) fn add_bf16_pairs<'k>(
        self,
        sums: Value<'k>,
        weights: Value<'k>,
        pairs: Value<'k>,
    ) -> Option<Value<'k>> {
        let code = sums.code();
        let ty = Type::lanes(32, Element::Bf16);
        self.bf16.then(|| {
            let [sums, weights, pairs] =
                [sums, weights.bits(ty), pairs.bits(ty)].map(|value| cut(value, PARTS));
            let added = sums.iter().zip(weights.iter().zip(&pairs)).map(|(&sums, (&weights, &pairs))| {
                code.instruction("llvm.aarch64.neon.bfdot", &[sums, weights, pairs], sums.ty())
            });
            joined(&added.collect::<Vec<_>>())
        })
    }
}
