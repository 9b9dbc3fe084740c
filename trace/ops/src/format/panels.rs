//! Packs and unpacks panels, in which sixteen rows of a matrix are side by side for kernels.

use half::{bf16, f16};

use super::groups::GroupLine;
use super::{GROUP, Groups, LINE, PANEL, Quantized, SUPER_BLOCK, ScaleBytes, WeightFormat};
use crate::ElementType;

impl WeightFormat {
    /// Packs at most 16 rows of a matrix into a panel. The slice `rows` contains `inputs` numbers
    /// per row, one row after another.
    ///
    /// # Panics
    /// Panics if the length of `packed` differs from the length of a panel.
    pub fn pack_panel(self, rows: &[f32], inputs: usize, packed: &mut [u8]) {
        assert_eq!(packed.len(), self.packed(PANEL, inputs).bytes(), "the bytes of a panel");
        packed.fill(0);
        match self.element() {
            None if self.floats().is_some() => {
                self.pack_floats(rows, inputs, packed, |_, _| None);
            }
            None => {
                self.pack_groups(rows, inputs, packed, |_, _| None);
            }
            Some(ElementType::F16) => pack_kept::<1, 2>(rows, inputs, packed, |number| {
                if number.is_nan() { f16::NAN } else { f16::from_f32(number) }.to_le_bytes()
            }),
            Some(ElementType::Bf16) => pack_kept::<2, 2>(rows, inputs, packed, |number| {
                if number.is_nan() { bf16::NAN } else { bf16::from_f32(number) }.to_le_bytes()
            }),
            Some(_) => pack_kept::<1, 4>(rows, inputs, packed, |number| {
                if number.is_nan() { f32::NAN } else { number }.to_le_bytes()
            }),
        }
    }

    /// Packs at most 16 rows of a matrix into a panel, for a format with scales. The closure `known` can
    /// return the quantized values that begin at a given row and column. The function quantizes those values
    /// for which `known` returns `None`. Returns whether all scales of the panel are finite.
    ///
    /// # Panics
    /// Panics if the format has no groups, or if the length of `packed` differs from the length of a panel.
    pub fn pack_groups(
        self,
        rows: &[f32],
        inputs: usize,
        packed: &mut [u8],
        known: impl Fn(usize, usize) -> Option<Quantized>,
    ) -> bool {
        let groups = self.facts();
        let mut finite = true;
        let together = groups.block.numbers();
        for (index, chunk) in packed.chunks_exact_mut(self.chunk()).enumerate() {
            let (scales, lines) = chunk.split_at_mut(self.scales());
            scales.fill(0);
            for lines in lines.chunks_exact_mut(groups.group_bytes()) {
                (0..PANEL).for_each(|row| groups.store(row, &[groups.zero(); GROUP], lines));
            }
            for (row, numbers) in rows.chunks_exact(inputs).enumerate() {
                let first = index * self.columns();
                let columns = &numbers[first..inputs.min(first + self.columns())];
                for (run, numbers) in columns.chunks(together).enumerate() {
                    let known = known(row, first + run * together);
                    let block = known.unwrap_or_else(|| self.quantize(numbers)).bytes;
                    finite &= groups.is_finite(&block);
                    groups.move_scales(row, run, |block_bytes, panel_bytes, four_bits| match four_bits {
                        Some(shift) => scales[panel_bytes.start] |= block[block_bytes.start] << shift,
                        None => scales[panel_bytes].copy_from_slice(&block[block_bytes]),
                    });
                    let codes = groups.codes(&block);
                    let lines = lines.chunks_exact_mut(groups.group_bytes()).skip(run * together / GROUP);
                    let codes = codes[..together].as_chunks::<GROUP>().0.iter();
                    lines.zip(codes).for_each(|(lines, codes)| groups.store(row, codes, lines));
                }
            }
        }
        finite
    }

    /// Unpacks the rows of a panel that [`pack_panel`](Self::pack_panel) wrote. The function
    /// multiplies quantized values by their scales.
    ///
    /// # Panics
    /// Panics if `packed` is not a whole panel, or if `rows` has more than 16 rows.
    pub fn unpack_panel(self, packed: &[u8], inputs: usize, rows: &mut [f32]) {
        for (row, numbers) in rows.chunks_exact_mut(inputs).enumerate() {
            match (self.element(), self.groups()) {
                (Some(element), _) => {
                    for (column, number) in numbers.iter_mut().enumerate() {
                        let place = match element {
                            ElementType::Bf16 => column / 2 * 2 * PANEL + row * 2 + column % 2,
                            _ => column * PANEL + row,
                        };
                        *number = element.decode(element.load(packed, place)) as f32;
                    }
                }
                (_, Some(groups)) => {
                    let chunks = packed.chunks_exact(self.chunk());
                    for (numbers, chunk) in numbers.chunks_mut(self.columns()).zip(chunks) {
                        groups.unpack(row, chunk.split_at(self.scales()), numbers);
                    }
                }
                (None, None) => {
                    let Some(floats) = self.floats() else { unreachable!("a format without numbers") };
                    floats.unpack(row, packed, inputs, numbers);
                }
            }
        }
    }
}

impl Groups {
    /// Calls `each` with the range of each piece of scales in the block `run` and in the chunk's scales. For
    /// pieces of four bits, the place of the bits in the panel's byte follows.
    fn move_scales(
        &self,
        row: usize,
        run: usize,
        mut each: impl FnMut(std::ops::Range<usize>, std::ops::Range<usize>, Option<usize>),
    ) {
        let mut base = 0;
        for piece in self.scales {
            for i in 0..piece.count {
                let first = base + (run * piece.count + i) * piece.panel_bytes();
                if piece.width == ScaleBytes::FOUR_BITS {
                    let (from, to) = (piece.at + i, first + row % 8);
                    each(from..from + 1, to..to + 1, Some(row / 8 * 4));
                    continue;
                }
                let (from, to) = (piece.at + i * piece.width, first + row * piece.width);
                each(from..from + piece.width, to..to + piece.width, None);
            }
            base += self.columns / self.block.numbers() * piece.count * piece.panel_bytes();
        }
    }

    /// Stores the codes of a group of one row in the lines of the group.
    fn store(&self, row: usize, codes: &[u8; GROUP], lines: &mut [u8]) {
        let (fours, _) = codes.as_chunks::<4>();
        for (line, GroupLine { shift, width, four }) in lines.chunks_exact_mut(LINE).zip(self.lines()) {
            let mask = u32::from(u8::MAX >> (8 - width)) * 0x0101_0101;
            let fields = fours[four..four + 8 / width].iter().enumerate();
            let word = fields.fold(0, |word, (field, four)| {
                word | (u32::from_le_bytes(*four) >> shift & mask) << (width * field)
            });
            line[4 * row..][..4].copy_from_slice(&word.to_le_bytes());
        }
    }

    fn load(&self, row: usize, lines: &[u8]) -> [u8; GROUP] {
        let mut codes = [0; GROUP];
        for (line, GroupLine { shift, width, four }) in lines.chunks_exact(LINE).zip(self.lines()) {
            for (field, codes) in codes[4 * four..].chunks_mut(4).take(8 / width).enumerate() {
                let bytes = line[4 * row..][..4].iter();
                let bits = bytes.map(|byte| byte >> (width * field) & (u8::MAX >> (8 - width)));
                codes.iter_mut().zip(bits).for_each(|(code, bits)| *code |= bits << shift);
            }
        }
        codes
    }

    /// Unpacks the numbers of one row in a chunk.
    fn unpack(&self, row: usize, (scales, lines): (&[u8], &[u8]), numbers: &mut [f32]) {
        let together = self.block.numbers();
        let mut lines = lines.chunks_exact(self.group_bytes());
        for (run, numbers) in numbers.chunks_mut(together).enumerate() {
            let mut block = vec![0; self.block.bytes()];
            self.move_scales(row, run, |block_bytes, panel_bytes, four_bits| match four_bits {
                Some(shift) => block[block_bytes.start] = scales[panel_bytes.start] >> shift & 15,
                None => block[block_bytes].copy_from_slice(&scales[panel_bytes]),
            });
            let mut codes = [0; SUPER_BLOCK];
            for (codes, lines) in codes[..together].as_chunks_mut::<GROUP>().0.iter_mut().zip(&mut lines) {
                *codes = self.load(row, lines);
            }
            self.numbers(&codes[..together], &self.scales_of(&block), numbers);
        }
    }
}

/// The number of columns that the function packs at a time.
const NEAR: usize = 64;

/// Packs `TOGETHER` values of each row side by side, with `BYTES` bytes per value, without groups.
fn pack_kept<const TOGETHER: usize, const BYTES: usize>(
    rows: &[f32],
    inputs: usize,
    packed: &mut [u8],
    encode: impl Fn(f32) -> [u8; BYTES],
) {
    // The loop packs some columns of all rows at a time, so that neighbouring bytes stay in the
    // cache until all of them are written.
    for first in (0..inputs).step_by(NEAR) {
        for (row, numbers) in rows.chunks_exact(inputs).enumerate() {
            let numbers = &numbers[first..inputs.min(first + NEAR)];
            let lines = packed[first * PANEL * BYTES..].chunks_exact_mut(TOGETHER * PANEL * BYTES);
            for (line, numbers) in lines.zip(numbers.chunks(TOGETHER)) {
                let (places, _) = line[row * TOGETHER * BYTES..].as_chunks_mut::<BYTES>();
                places.iter_mut().zip(numbers).for_each(|(place, number)| *place = encode(*number));
            }
        }
    }
}
