//! Tile registers with 16 rows of 64 bytes, and products of tiles (Intel, "64 and IA-32 Architectures Software
//! Developer's Manual", volume 1, chapter 18: AMX).

use crate::code::{Buffer, Code, Element, Type, Value};

pub(crate) const ROWS: usize = 16;

/// The bytes in a full row of a tile, and in the units of a weight's panels.
pub(crate) const LINE: usize = 64;

const REGISTERS: usize = 8;

/// The tile registers that a worker uses while it runs a kernel.
#[derive(Clone, Copy)]
pub(crate) struct Tiles<'k> {
    code: &'k Code,
    extents: Extents,
}

/// The rows of each tile register, and the bytes per row.
pub(crate) type Extents = [(usize, usize); REGISTERS];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TileProducts {
    pub(crate) bf16: bool,
    pub(crate) bytes: bool,
}

/// Whether this process may use tile registers. It must request them once, on Linux with
/// `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`; a kernel cannot know whether it has.
pub(crate) fn granted(code: &Code) -> Value<'_> {
    const ARCH_PRCTL: usize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    let arguments = [ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA].map(|number| code.index(number));
    code.system_call(ARCH_PRCTL, arguments).equals(code.index(0))
}

impl<'k> Tiles<'k> {
    /// Sets the extents of tile registers from `memory`'s first cache line, and all registers to zero.
    pub(crate) fn configure(code: &'k Code, extents: Extents, memory: Buffer<'k>) -> Self {
        // The configuration contains the palette (1) and the start row (0). The bytes per row
        // follow from byte 16 on, with two bytes per register. The rows follow from byte 48 on,
        // with one byte per register.
        let mut bytes = vec![0; 64];
        bytes[0] = 1;
        for (register, (rows, line)) in extents.into_iter().enumerate() {
            bytes[16 + 2 * register] = line;
            bytes[48 + register] = rows;
        }
        memory.store_bits(code.index(0), code.numbers(Type::lanes(64, Element::I8), &bytes));
        code.assembly("ldtilecfg [$0]", &[memory.address(code.index(0))]);
        Self { code, extents }
    }

    pub(crate) fn release(self) {
        self.code.assembly("tilerelease", &[]);
    }

    pub(crate) fn zero(self, register: usize) {
        self.code.assembly(&format!("tilezero tmm{register}"), &[]);
    }

    /// Rows of the tile are `stride` bytes apart.
    pub(crate) fn load(self, register: usize, from: Value<'k>, stride: usize) {
        self.code.assembly(&format!("tileloadd tmm{register}, [$0 + $1]"), &[from, self.code.index(stride)]);
    }

    /// Stores a tile register at an address, without gaps between the rows.
    pub(crate) fn store(self, register: usize, to: Value<'k>) {
        self.code.assembly(&format!("tilestored [$0 + $1], tmm{register}"), &[to, self.code.index(LINE)]);
    }

    /// Computes sums[r][i] + Σⱼ x[r][j] · weights[j / 2][2 i + j % 2] for bf16, with sums in f32.
    pub(crate) fn add_bf16(self, registers: [usize; 3]) {
        self.multiply("tdpbf16ps", registers);
    }

    /// Computes sums[r][i] + Σⱼ x[r][j] · weights[j / 4][4 i + j % 4] for signed bytes.
    pub(crate) fn add_bytes(self, registers: [usize; 3]) {
        self.multiply("tdpbssd", registers);
    }

    fn multiply(self, instruction: &str, registers: [usize; 3]) {
        let [sums, x, weights] = registers.map(|register| self.extents[register]);
        assert!(sums == (x.0, weights.1) && x.1 / 4 == weights.0, "tiles that cannot be multiplied");
        let [sums, x, weights] = registers;
        self.code.assembly(&format!("{instruction} tmm{sums}, tmm{x}, tmm{weights}"), &[]);
    }
}
