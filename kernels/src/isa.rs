//! What a processor's instructions do for a kernel.

use targets::{Backend, DeviceKind, Target};

use crate::code::{Element, Type, Value};

/// The instructions of an x86-64 processor that kernels differ by. All have AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Isa {
    /// Vectors of 512 bits.
    avx512: bool,
    /// Sums of four products of bytes: of 512 bits, or of 256.
    vnni: Option<usize>,
    /// Sums of two products of bf16.
    bf16: bool,
}

const I32: Type = Type::lanes(16, Element::I32);
const FLOATS: Type = Type::lanes(16, Element::F32);

impl Isa {
    pub(crate) fn of(target: &Target) -> Option<Self> {
        let features = target.features.as_ref()?;
        let has = |names: &[&str]| names.iter().all(|name| features.iter().any(|feature| feature == name));
        let cpu = (target.backend, target.device) == (Backend::Iree3_13, DeviceKind::Cpu);
        if !cpu || target.architecture() != "x86_64" || !has(&["avx2", "fma", "f16c"]) {
            return None;
        }
        let avx512 = has(&["avx512f", "avx512bw", "avx512vl", "avx512dq"]);
        let vnni = match () {
            () if avx512 && has(&["avx512vnni"]) => Some(512),
            () if has(&["avxvnni"]) => Some(256),
            () => None,
        };
        Some(Self { avx512, vnni, bf16: avx512 && has(&["avx512bf16"]) })
    }

    /// How many rows of sixteen sums stay in registers.
    pub(crate) fn rows(self) -> usize {
        if self.avx512 { 8 } else { 3 }
    }

    /// A name for what the code depends on.
    pub(crate) fn name(self) -> String {
        let width = if self.avx512 { "avx512" } else { "avx2" };
        let vnni = self.vnni.map(|bits| format!("_vnni{bits}")).unwrap_or_default();
        format!("{width}{vnni}{}", if self.bf16 { "_bf16" } else { "" })
    }

    /// sums[i] + Σⱼ bytes[4 i + j] · x[4 i + j] for 16 sums: bytes without a sign, x with one.
    ///
    /// `small` bytes are at most 127: without instructions for it, sums of two products have 16 bits.
    pub(crate) fn add_bytes<'k>(
        self,
        sums: Value<'k>,
        bytes: Value<'k>,
        x: Value<'k>,
        small: bool,
    ) -> Value<'k> {
        let code = sums.code();
        if self.vnni == Some(512) {
            return code.instruction("llvm.x86.avx512.vpdpbusd.512", &[sums, bytes, x], I32);
        }
        let halves = [0, 1].map(|half| {
            let sums = sums.slice(8 * half..8 * half + 8);
            let (bytes, x) = (bytes.slice(32 * half..32 * half + 32), x.slice(32 * half..32 * half + 32));
            if self.vnni == Some(256) {
                return code.instruction("llvm.x86.avx512.vpdpbusd.256", &[sums, bytes, x], sums.ty());
            }
            let words = Type::lanes(16, Element::I16);
            let pair = |bytes: Value<'k>, x: Value<'k>| {
                let sums = code.instruction("llvm.x86.avx2.pmadd.ub.sw", &[bytes, x], words);
                let ones = code.constant(words, 1.0);
                code.instruction("llvm.x86.avx2.pmadd.wd", &[sums, ones], Type::lanes(8, Element::I32))
            };
            match small {
                true => sums + pair(bytes, x),
                false => {
                    let seven = code.constant(bytes.ty(), 127.0);
                    let top = bytes.shift_right(7).and(code.constant(bytes.ty(), 1.0));
                    // 128 times the uppermost bit: 64 of it twice, so that it is a small byte.
                    let upper = top.shift_left(6);
                    let upper = pair(upper, x);
                    sums + pair(bytes.and(seven), x) + upper + upper
                }
            }
        });
        halves[0].followed_by(halves[1])
    }

    /// sums[i] + weights[2 i] · x[0] + weights[2 i + 1] · x[1] for 16 sums: pairs of bf16, each as the 32 bits that they are.
    pub(crate) fn add_bf16_pairs<'k>(self, sums: Value<'k>, weights: Value<'k>, x: Value<'k>) -> Value<'k> {
        let code = sums.code();
        let pairs = x.broadcast(16);
        if self.bf16 {
            let ty = Type::lanes(32, Element::Bf16);
            let operands = [sums, weights.bits(ty), pairs.bits(ty)];
            return code.instruction("llvm.x86.avx512bf16.dpbf16ps.512", &operands, FLOATS);
        }
        // A bf16 is the upper half of an f32.
        let first = |pairs: Value<'k>| pairs.shift_left(16).bits(FLOATS);
        let second = |pairs: Value<'k>| pairs.and(code.constant(I32, -65536.0)).bits(FLOATS);
        let sums = first(weights).multiply_add(first(pairs), sums);
        second(weights).multiply_add(second(pairs), sums)
    }
}
