//! Packs the rows of a matrix into panels, and unpacks panels. In a panel, sixteen rows of a matrix
//! are stored side by side for kernels.

use half::{bf16, f16};

use super::{DOUBLED_FLOATS, FloatGroup, GROUP, Group, LINE, PANEL, Quantized, SuperBlock, WeightFormat};

impl WeightFormat {
    /// Packs at most 16 rows of a matrix into a panel. The slice `rows` contains `inputs` numbers
    /// per row, one row after another.
    ///
    /// # Panics
    /// Panics if the length of `packed` differs from the length of a panel.
    pub fn pack_panel(self, rows: &[f32], inputs: usize, packed: &mut [u8]) {
        assert_eq!(packed.len(), self.packed(PANEL, inputs).bytes(), "the bytes of a panel");
        packed.fill(0);
        match self {
            Self::F32 => pack_kept::<1, 4>(rows, inputs, packed, |number| {
                if number.is_nan() { f32::NAN } else { number }.to_le_bytes()
            }),
            Self::F16 => pack_kept::<1, 2>(rows, inputs, packed, |number| {
                if number.is_nan() { f16::NAN } else { f16::from_f32(number) }.to_le_bytes()
            }),
            Self::Bf16 => pack_kept::<2, 2>(rows, inputs, packed, |number| {
                if number.is_nan() { bf16::NAN } else { bf16::from_f32(number) }.to_le_bytes()
            }),
            Self::Q8 | Self::Q4 | Self::Q4K | Self::Mxfp4 => {
                self.pack_groups(rows, inputs, packed, |_, _| None);
            }
        }
    }

    /// Packs at most 16 rows of a matrix into a panel, for a format with scales. The closure
    /// `known` can return the quantized values that begin at a given row and column. The function
    /// quantizes those values for which `known` returns `None`. Returns whether all scales of the
    /// panel are finite.
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
        let mut finite = true;
        let (columns, together) = (self.columns(), self.together().unwrap_or(1));
        let zero = self.offset() * if self.in_a_byte() == Some(2) { 0x11 } else { 1 };
        for (index, chunk) in packed.chunks_exact_mut(self.chunk()).enumerate() {
            let (scales, integers) = chunk.split_at_mut(self.scales());
            scales.fill(0);
            integers.fill(zero);
            for (row, numbers) in rows.chunks_exact(inputs).enumerate() {
                let first = index * columns;
                let columns = &numbers[first..inputs.min(first + columns)];
                for (run, numbers) in columns.chunks(together).enumerate() {
                    let known = known(row, first + run * together);
                    let quantized = known.unwrap_or_else(|| self.quantize(numbers));
                    finite &= quantized.is_finite();
                    match quantized {
                        Quantized::Group(Group { integers: own, scale }) => {
                            scales[2 * (run * PANEL + row)..][..2].copy_from_slice(&scale.to_le_bytes());
                            self.store_group(row, run, &own, integers);
                        }
                        Quantized::Floats(FloatGroup { codes, exponent }) => {
                            scales[run * PANEL + row] = exponent;
                            self.store_group(row, run, &codes.map(|code| code as i8), integers);
                        }
                        Quantized::SuperBlock(block) => {
                            let steps = block.steps.iter().enumerate();
                            steps.for_each(|(which, step)| {
                                scales[2 * (which * PANEL + row)..][..2].copy_from_slice(&step.to_le_bytes());
                            });
                            let counts = block.packed_counts();
                            for (line, counts) in scales[LINE..].chunks_exact_mut(LINE).zip(counts.chunks(4))
                            {
                                line[4 * row..][..4].copy_from_slice(counts);
                            }
                            for (group, own) in block.integers.iter().enumerate() {
                                self.store_group(row, group, &own.map(|integer| integer as i8), integers);
                            }
                        }
                    }
                }
            }
        }
        finite
    }

    /// Returns the index of a value in a panel, counted in elements.
    fn place(self, row: usize, column: usize) -> usize {
        match self {
            Self::Bf16 => column / 2 * 2 * PANEL + row * 2 + column % 2,
            _ => column * PANEL + row,
        }
    }

    /// Stores the integers of a group of one row in the lines of the row's chunk.
    fn store_group(self, row: usize, group: usize, integers: &[i8; GROUP], lines: &mut [u8]) {
        let in_a_byte = self.in_a_byte().unwrap_or(1);
        let (fours, _) = integers.as_chunks::<4>();
        let lines = lines.chunks_exact_mut(LINE).skip(group * GROUP / (4 * in_a_byte));
        for (line, fours) in lines.zip(fours.chunks_exact(in_a_byte)) {
            let bytes = |four: &[i8; 4]| four.map(|integer| (integer as u8).wrapping_add(self.offset()));
            let word = match fours {
                [four] => u32::from_le_bytes(bytes(four)),
                _ => u32::from_le_bytes(bytes(&fours[0])) | u32::from_le_bytes(bytes(&fours[1])) << 4,
            };
            line[4 * row..][..4].copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Returns two numbers for a value: the index of its byte in the chunk, and the number of bits
    /// by which the value is shifted in the byte.
    fn nibble(self, row: usize, column: usize) -> (usize, u32) {
        let in_a_byte = self.in_a_byte().unwrap_or(1);
        let line = column / (4 * in_a_byte) * LINE;
        (self.scales() + line + 4 * row + column % 4, (column / 4 % in_a_byte * 4) as u32)
    }

    /// Unpacks the rows of a panel that [`pack_panel`](Self::pack_panel) wrote. The function
    /// multiplies quantized values by their scales.
    ///
    /// # Panics
    /// Panics if `packed` is not a whole panel, or if `rows` has more than 16 rows.
    pub fn unpack_panel(self, packed: &[u8], inputs: usize, rows: &mut [f32]) {
        let bytes = self.chunk();
        for (row, numbers) in rows.chunks_exact_mut(inputs).enumerate() {
            for (column, number) in numbers.iter_mut().enumerate() {
                *number = match self.element() {
                    Some(element) => element.decode(element.load(packed, self.place(row, column))) as f32,
                    None => {
                        let chunk = &packed[column / self.columns() * bytes..][..bytes];
                        let column = column % self.columns();
                        let (byte, shift) = self.nibble(row, column);
                        let bits = if self.in_a_byte() == Some(2) { 15 } else { 255 };
                        let stored = chunk[byte] >> shift & bits;
                        let integer = match self {
                            Self::Mxfp4 => i32::from(DOUBLED_FLOATS[usize::from(stored)]),
                            _ => i32::from(stored) - i32::from(self.offset()),
                        };
                        let [scale, minimum] = self.scale_and_minimum(chunk, row, column / GROUP);
                        integer as f32 * scale - minimum
                    }
                };
            }
        }
    }

    /// Returns the scale and the minimum for one group of a row in a chunk.
    fn scale_and_minimum(self, chunk: &[u8], row: usize, group: usize) -> [f32; 2] {
        let half = |which: usize| {
            let at = 2 * (which * PANEL + row);
            f16::from_le_bytes([chunk[at], chunk[at + 1]])
        };
        match self {
            Self::Q4K => {
                let packed = std::array::from_fn(|i| chunk[LINE * (1 + i / 4) + 4 * row + i % 4]);
                let counts = SuperBlock::unpacked_counts(packed)[group].map(f32::from);
                [0, 1].map(|which| half(which).to_f32() * counts[which])
            }
            Self::Mxfp4 => [FloatGroup::half_scale(chunk[group * PANEL + row]), 0.0],
            _ => [half(group).to_f32(), 0.0],
        }
    }
}

/// The number of columns that the function packs at a time.
const NEAR: usize = 64;

/// Packs values in a format without groups: the function stores `TOGETHER` values of each row side
/// by side, with `BYTES` bytes per value.
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
