use super::tiles::TileProducts;
use super::{Column, FLOATS, Small, by_column};
use crate::code::{Element, Type, Value};

/// The instruction set of an x86-64 processor with AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct X86 {
    /// Vectors of 512 bits.
    avx512: bool,
    /// The bits (512 or 256) in the vectors of the dot product of four pairs of bytes.
    vnni: Option<usize>,
    /// Whether the dot product of two pairs of bf16 takes less time than two multiplications of f32. It takes
    /// as long as one on AMD's cores, and as long as four on Intel's, which have `avx512fp16`.
    bf16: bool,
    tiles: TileProducts,
}

impl X86 {
    /// Without `may_tile`, kernels use no tile registers. Only Linux lets a process request them.
    pub(super) fn of(has: impl Fn(&[&str]) -> bool, may_tile: bool) -> Option<Self> {
        let avx512 = has(&["avx512f", "avx512bw", "avx512vl", "avx512dq"]);
        let vnni = match () {
            () if avx512 && has(&["avx512vnni"]) => Some(512),
            () if has(&["avxvnni"]) => Some(256),
            () => None,
        };
        let tiles = |product: &str| avx512 && may_tile && has(&["amx-tile", product]);
        has(&["avx2", "fma", "f16c"]).then(|| Self {
            avx512,
            vnni,
            bf16: avx512 && has(&["avx512bf16"]) && !has(&["avx512fp16"]),
            tiles: TileProducts { bf16: tiles("amx-bf16"), bytes: tiles("amx-int8") },
        })
    }

    pub(super) fn rows(self) -> usize {
        if self.avx512 { 8 } else { 4 }
    }

    pub(super) fn has_short_vectors(self) -> bool {
        !self.avx512
    }

    pub(super) fn name(self) -> String {
        let width = if self.avx512 { "avx512" } else { "avx2" };
        let vnni = self.vnni.map(|bits| format!("_vnni{bits}")).unwrap_or_default();
        let extensions =
            [(self.bf16, "_bf16"), (self.tiles.bf16, "_tiles_bf16"), (self.tiles.bytes, "_tiles_bytes")];
        let extensions = extensions.into_iter().filter_map(|(has, name)| has.then_some(name));
        format!("{width}{vnni}{}", extensions.collect::<String>())
    }

    pub(super) fn is_fast_in_bf16(self) -> bool {
        self.bf16
    }

    pub(super) fn tiles(self) -> TileProducts {
        self.tiles
    }

    pub(super) fn is_signed(self) -> bool {
        self.vnni.is_none()
    }

    /// The registers that 64 bytes of a multiplication occupy: 1 with 512-bit VNNI, otherwise 2.
    pub(super) fn parts(self) -> usize {
        if self.vnni == Some(512) { 1 } else { 2 }
    }

    pub(super) fn add_bytes<'k>(
        self,
        sums: Vec<Value<'k>>,
        columns: impl Iterator<Item = Column<'k>>,
        small: Small,
    ) -> Vec<Value<'k>> {
        let Some(bits) = self.vnni else { return by_words(sums, columns, small) };
        let instruction = format!("llvm.x86.avx512.vpdpbusd.{bits}");
        by_column(sums, columns, |sum, bytes, x| {
            sum.code().instruction(&instruction, &[sum, bytes, x], sum.ty())
        })
    }

    /// Returns the number of vectors into which a lookup splits 64 bytes, and the instruction of the lookup.
    pub(super) fn looks_up(self) -> (usize, &'static str) {
        if self.avx512 { (1, "llvm.x86.avx512.pshuf.b.512") } else { (2, "llvm.x86.avx2.pshuf.b") }
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

/// Multiplies unsigned by signed bytes, and adds two neighbouring products into a 16-bit word.
fn by_words<'k>(
    sums: Vec<Value<'k>>,
    columns: impl Iterator<Item = Column<'k>>,
    small: Small,
) -> Vec<Value<'k>> {
    let call = |name: &str, operands: [Value<'k>; 2], element, lanes| {
        operands[0].code().instruction(
            &format!("llvm.x86.avx2.{name}"),
            &operands,
            Type::lanes(lanes, element),
        )
    };
    let multiply = |bytes, x| call("pmadd.ub.sw", [bytes, x], Element::I16, 16);
    let pairs = |words: Value<'k>| {
        let ones = words.code().constant(words.ty(), 1.0);
        call("pmadd.wd", [words, ones], Element::I32, 8)
    };
    // LLVM must not reorder the sums.
    let settled = |sum: Value<'k>| sum.code().opaque(sum);
    // The sign of each byte moves to its factor in x. The sum of two products of 128 and 127 fits into 15 bits.
    let signed = |bytes, x| call("psign.b", [x, bytes], Element::I8, 32);
    let of_signed = |bytes: Value<'k>, x| multiply(bytes.abs(), signed(bytes, x));
    if small == Small::No {
        return by_column(sums, columns, |sum, bytes, x| settled(sum + pairs(of_signed(bytes, x))));
    }
    // The sum of eight times two products of 15 and 127 fits into 15 bits.
    let zeros = sums.iter().map(|sum| sum.code().constant(Type::lanes(16, Element::I16), 0.0));
    let words = by_column(zeros.collect(), columns, |words, bytes, x| {
        let products = if small == Small::Signed { of_signed(bytes, x) } else { multiply(bytes, x) };
        settled(words + products)
    });
    sums.into_iter().zip(words).map(|(sum, words)| sum + pairs(words)).collect()
}
