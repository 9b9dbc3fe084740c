use super::tiles::TileProducts;
use super::{FLOATS, I32, in_parts};
use crate::code::{Element, Type, Value};

/// The instructions of an x86-64 processor. All have AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct X86 {
    /// Vectors of 512 bits.
    avx512: bool,
    /// Sums of four products of bytes: of 512 bits, or of 256.
    vnni: Option<usize>,
    /// Sums of two products of bf16.
    bf16: bool,
    /// Whether those are slow: on Intel's cores (known by `avx512fp16`, which no other has) one of them takes as long as four
    /// products of f32; on AMD's as long as one.
    slow_bf16: bool,
    /// Products of tiles.
    tiles: TileProducts,
}

impl X86 {
    /// The one that has these features. Tiles are asked for as Linux wants it.
    pub(super) fn of(has: impl Fn(&[&str]) -> bool, is_linux: bool) -> Option<Self> {
        let avx512 = has(&["avx512f", "avx512bw", "avx512vl", "avx512dq"]);
        let vnni = match () {
            () if avx512 && has(&["avx512vnni"]) => Some(512),
            () if has(&["avxvnni"]) => Some(256),
            () => None,
        };
        let tiles = |product: &str| avx512 && is_linux && has(&["amx-tile", product]);
        has(&["avx2", "fma", "f16c"]).then(|| Self {
            avx512,
            vnni,
            bf16: avx512 && has(&["avx512bf16"]),
            slow_bf16: has(&["avx512bf16", "avx512fp16"]),
            tiles: TileProducts { bf16: tiles("amx-bf16"), bytes: tiles("amx-int8") },
        })
    }

    pub(super) fn rows(self) -> usize {
        if self.avx512 { 8 } else { 3 }
    }

    pub(super) fn name(self) -> String {
        let width = if self.avx512 { "avx512" } else { "avx2" };
        let vnni = self.vnni.map(|bits| format!("_vnni{bits}")).unwrap_or_default();
        let extensions = [
            (self.bf16, if self.slow_bf16 { "_slow_bf16" } else { "_bf16" }),
            (self.tiles.bf16, "_tiles_bf16"),
            (self.tiles.bytes, "_tiles_bytes"),
        ];
        let extensions = extensions.into_iter().filter_map(|(has, name)| has.then_some(name));
        format!("{width}{vnni}{}", extensions.collect::<String>())
    }

    pub(super) fn is_fast_in_bf16(self) -> bool {
        self.bf16 && !self.slow_bf16
    }

    pub(super) fn tiles(self) -> TileProducts {
        self.tiles
    }

    pub(super) fn add_bytes<'k>(
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
        in_parts(2, [sums, bytes, x], &|operands| {
            let [sums, bytes, x] = operands;
            if self.vnni == Some(256) {
                return code.instruction("llvm.x86.avx512.vpdpbusd.256", &operands, sums.ty());
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
        })
    }

    pub(super) fn add_bf16_pairs<'k>(
        self,
        sums: Value<'k>,
        weights: Value<'k>,
        pairs: Value<'k>,
    ) -> Option<Value<'k>> {
        let ty = Type::lanes(32, Element::Bf16);
        let operands = [sums, weights.bits(ty), pairs.bits(ty)];
        let instruction = "llvm.x86.avx512bf16.dpbf16ps.512";
        self.bf16.then(|| sums.code().instruction(instruction, &operands, FLOATS))
    }
}
