//! A [`Value`] is a tensor of the reference evaluator, with f64 elements that its type can represent.

use half::{bf16, f16};

use crate::{ElementType, TensorType};

/// A tensor with which the reference evaluator computes. The element type can represent each number
/// exactly, and every NaN is the canonical NaN.
///
/// ```
/// use tracewright_ops::{ElementType, TensorType, Value};
///
/// // What the type does not have is rounded to what it has.
/// let value = Value::new(TensorType::new(ElementType::Bf16, [2]), [1.0, 0.1]);
/// assert_eq!(value.at(&[1]), 0.10009765625);
/// assert_eq!(value.to_bytes(), [0x80, 0x3f, 0xcd, 0x3d]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    pub ty: TensorType,
    /// The elements of the tensor as f64 numbers, in row-major order.
    pub data: Vec<f64>,
}

impl Value {
    /// Rounds each element to the element type.
    ///
    /// # Panics
    /// Panics if `data` does not contain `ty.count()` elements.
    pub fn new(ty: TensorType, data: impl IntoIterator<Item = f64>) -> Self {
        let data: Vec<f64> = data.into_iter().map(|x| ty.element.round(x)).collect();
        assert_eq!(data.len(), ty.count(), "a value of {ty} needs {} elements", ty.count());
        Self { ty, data }
    }

    /// Creates a tensor in row-major order, and calls `f` with the index of each element.
    pub fn from_fn(ty: TensorType, mut f: impl FnMut(&[usize]) -> f64) -> Self {
        let mut data = Vec::with_capacity(ty.count());
        for_each_index(&ty.shape, |index| data.push(f(index)));
        Self::new(ty, data)
    }

    pub fn at(&self, index: &[usize]) -> f64 {
        self.data[flat_index(&self.ty.shape, index)]
    }

    /// From little-endian bytes.
    ///
    /// # Panics
    /// Panics if the length of `bytes` differs from `ty.bytes()`.
    pub fn from_bytes(ty: TensorType, bytes: &[u8]) -> Self {
        assert_eq!(bytes.len(), ty.bytes(), "storage of {ty}");
        let data = (0..ty.count()).map(|i| ty.element.decode(ty.element.load(bytes, i))).collect();
        Self { ty, data }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.ty.bytes()];
        for (i, &x) in self.data.iter().enumerate() {
            self.ty.element.store(&mut bytes, i, self.ty.element.encode(x));
        }
        bytes
    }
}

/// Calls `f` with every index of `shape` in row-major order.
pub fn for_each_index(shape: &[usize], mut f: impl FnMut(&[usize])) {
    if shape.contains(&0) {
        return;
    }
    let mut index = vec![0; shape.len()];
    loop {
        f(&index);
        let Some(axis) = (0..shape.len()).rev().find(|&a| index[a] + 1 < shape[a]) else { return };
        index[axis] += 1;
        index[axis + 1..].fill(0);
    }
}

/// Row-major.
pub fn flat_index(shape: &[usize], index: &[usize]) -> usize {
    index.iter().zip(shape).fold(0, |flat, (&i, &extent)| flat * extent + i)
}

/// The exact sum, rounded once, so that it does not depend on the order. An empty sum is +0. Shewchuk,
/// "Adaptive Precision Floating-Point Arithmetic and Fast Robust Geometric Predicates" (1997): the running
/// sum is a list of non-overlapping partial sums, which are exact.
pub fn exact_sum(terms: impl IntoIterator<Item = f64>) -> f64 {
    let mut partials: Vec<f64> = Vec::new();
    let (mut special, mut negative_zeros_only, mut any) = (0.0f64, true, false);
    for term in terms {
        any = true;
        negative_zeros_only &= term == 0.0 && term.is_sign_negative();
        if !term.is_finite() {
            special += term;
            continue;
        }
        let mut x = term;
        let mut kept = 0;
        for i in 0..partials.len() {
            let mut y = partials[i];
            if x.abs() < y.abs() {
                (x, y) = (y, x);
            }
            let high = x + y;
            let low = y - (high - x);
            if low != 0.0 {
                partials[kept] = low;
                kept += 1;
            }
            x = high;
        }
        partials.truncate(kept);
        partials.push(x);
    }
    if special != 0.0 || special.is_nan() {
        return special;
    }
    if any && negative_zeros_only {
        return -0.0;
    }
    // The loop adds the partial sums from the largest down. If the remainder is exactly half an
    // ulp, the next partial sum decides the rounding.
    let Some(mut sum) = partials.pop() else { return 0.0 };
    while let Some(next) = partials.pop() {
        let high = sum + next;
        let low = next - (high - sum);
        sum = high;
        if low != 0.0 {
            if let Some(&below) = partials.last()
                && (low < 0.0) == (below < 0.0)
            {
                let doubled = low * 2.0;
                let candidate = sum + doubled;
                if doubled == candidate - sum {
                    sum = candidate;
                }
            }
            break;
        }
    }
    sum
}

/// Rounds towards zero, and sets the last bit if that changes `x`. To round the result to a type at least two
/// bits narrower is the same as to round `x` once.
fn rounded_to_odd(x: f64) -> f32 {
    let nearest = x as f32;
    if f64::from(nearest) == x || nearest.is_nan() {
        return nearest;
    }
    let away = f64::from(nearest).abs() > x.abs();
    f32::from_bits((nearest.to_bits() - u32::from(away)) | 1)
}

impl ElementType {
    /// Floats to nearest, halves to even; integers truncated and saturated. `i1` is true unless zero.
    pub fn round(self, x: f64) -> f64 {
        self.decode(self.encode(x))
    }

    /// Wraps an integer of any size to the integer type, as two's complement does.
    pub fn wrap(self, x: i64) -> f64 {
        match self {
            Self::I8 => x as i8 as f64,
            Self::I4 => (x << 60 >> 60) as f64,
            _ => x as i32 as f64,
        }
    }

    /// The bit pattern of the rounded number. Every NaN becomes the canonical quiet NaN.
    #[inline]
    pub fn encode(self, x: f64) -> u32 {
        // The crate `half` drops half of the f64 mantissa before it rounds. If the number is first
        // rounded to odd as f32, the conversion from f32 rounds correctly. (Boldo and Melquiond,
        // "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd",
        // 2008.)
        match self {
            Self::F32 if x.is_nan() => 0x7fc0_0000,
            Self::F16 if x.is_nan() => 0x7e00,
            Self::Bf16 if x.is_nan() => 0x7fc0,
            Self::F32 => (x as f32).to_bits(),
            Self::F16 => f16::from_f32_const(rounded_to_odd(x)).to_bits().into(),
            Self::Bf16 => bf16::from_f32_const(rounded_to_odd(x)).to_bits().into(),
            Self::I32 => x as i32 as u32,
            Self::I8 => x as i8 as u8 as u32,
            Self::I4 => (x as i8).clamp(-8, 7) as u32 & 0xf,
            Self::I1 => (x != 0.0).into(),
        }
    }

    /// Returns the number that `bits` represent in the element type. Every NaN becomes the canonical NaN.
    pub fn decode(self, bits: u32) -> f64 {
        let x = match self {
            Self::F32 => f32::from_bits(bits).into(),
            Self::F16 => f16::from_bits(bits as u16).to_f64_const(),
            Self::Bf16 => bf16::from_bits(bits as u16).to_f64_const(),
            Self::I32 => (bits as i32).into(),
            Self::I8 => (bits as u8 as i8).into(),
            Self::I4 => (((bits << 28) as i32) >> 28).into(),
            Self::I1 => (bits & 1).into(),
        };
        if x.is_nan() { f64::NAN } else { x }
    }

    /// From element `start` on. f32 must be able to represent every number of the element type.
    pub fn decode_all(self, bytes: &[u8], start: usize, out: &mut [f32]) {
        match self {
            // Most weights have this type, so the loop does not match the type for each element.
            Self::Bf16 => {
                let (pairs, _) = bytes[2 * start..].as_chunks();
                for (value, &[low, high]) in out.iter_mut().zip(pairs) {
                    *value = f32::from_le_bytes([0, 0, low, high]);
                }
            }
            Self::F32 => {
                let (words, _) = bytes[4 * start..].as_chunks();
                for (value, &word) in out.iter_mut().zip(words) {
                    *value = f32::from_le_bytes(word);
                }
            }
            _ => {
                for (i, value) in out.iter_mut().enumerate() {
                    *value = self.decode(self.load(bytes, start + i)) as f32;
                }
            }
        }
    }

    pub fn load(self, bytes: &[u8], i: usize) -> u32 {
        match self.bits() {
            32 => u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]),
            16 => u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).into(),
            4 => (bytes[i / 2] >> (4 * (i % 2)) & 0xf).into(),
            _ => bytes[i].into(),
        }
    }

    #[inline]
    pub fn store(self, bytes: &mut [u8], i: usize, bits: u32) {
        match self.bits() {
            32 => bytes[4 * i..][..4].copy_from_slice(&bits.to_le_bytes()),
            16 => bytes[2 * i..][..2].copy_from_slice(&(bits as u16).to_le_bytes()),
            4 => {
                let shift = 4 * (i % 2);
                bytes[i / 2] = bytes[i / 2] & !(0xf << shift) | ((bits as u8 & 0xf) << shift);
            }
            _ => bytes[i] = bits as u8,
        }
    }

    /// The distance from |x| to the next larger number of the type.
    pub fn ulp(self, x: f64) -> f64 {
        let (mantissa, min_exponent) = match self {
            Self::F32 => (23, -126),
            Self::F16 => (10, -14),
            Self::Bf16 => (7, -126),
            _ => return 1.0,
        };
        let exponent =
            if x == 0.0 || !x.is_finite() { min_exponent } else { libm::ilogb(x).max(min_exponent) };
        libm::exp2((exponent - mantissa) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact_and_have_no_order() {
        let terms = [1e100, 1.0, -1e100, 2f64.powi(-60), 3.0];
        assert_eq!(exact_sum(terms), 4.0);
        assert_eq!(exact_sum(terms.into_iter().rev()), 4.0);
        // A remainder of exactly half an ulp rounds to even, and a slightly larger remainder rounds
        // up.
        assert_eq!(exact_sum([1.0, 2f64.powi(-53)]), 1.0);
        assert_eq!(exact_sum([1.0, 2f64.powi(-53), 2f64.powi(-200)]), 1.0 + f64::EPSILON);
        assert!(exact_sum([f64::INFINITY, f64::NEG_INFINITY]).is_nan());
        assert!(exact_sum([-0.0, -0.0]).is_sign_negative());
        assert!(exact_sum([-0.0, 0.0]).is_sign_positive());
    }

    #[test]
    fn rounding_is_to_the_nearest_and_ties_go_to_even() {
        for element in [ElementType::F16, ElementType::Bf16] {
            // The test rounds the midpoint of every pair of positive neighbours, and the f64
            // numbers next to the midpoint.
            for bits in 0..if element == ElementType::F16 { 0x7bffu32 } else { 0x7f7f } {
                let (low, high) = (element.decode(bits), element.decode(bits + 1));
                let middle = (low + high) / 2.0;
                let even = if bits % 2 == 0 { low } else { high };
                let (below, above) = (middle.next_down(), middle.next_up());
                for (x, expected) in [(middle, even), (below, low), (above, high), (low, low)] {
                    assert_eq!(element.round(x).to_bits(), expected.to_bits(), "{element} {x:e}");
                    assert_eq!(element.round(-x).to_bits(), (-expected).to_bits(), "{element} {x:e}");
                }
            }
            assert_eq!(element.round(f64::MAX), f64::INFINITY);
            assert_eq!(element.round(f64::NEG_INFINITY), f64::NEG_INFINITY);
            assert_eq!(element.round(-f64::MIN_POSITIVE).to_bits(), (-0.0f64).to_bits());
        }
    }

    #[test]
    fn s1_every_element_type_round_trips_through_storage() {
        for element in ElementType::ALL {
            let patterns = if element.bits() == 32 { 1 << 16 } else { 1u32 << element.bits().min(16) };
            for pattern in 0..patterns {
                let bits = match element {
                    ElementType::I1 => pattern & 1,
                    _ if element.bits() == 32 => pattern.wrapping_mul(0x9e37_79b9),
                    _ => pattern,
                };
                let x = element.decode(bits);
                if !x.is_nan() {
                    assert_eq!(element.encode(x), bits, "{element} {bits:#x}");
                }
                let mut bytes = [0u8; 12];
                element.store(&mut bytes, 1, bits);
                assert_eq!(element.load(&bytes, 1), bits);
            }
        }
        assert_eq!(ElementType::F32.ulp(1.0), f32::EPSILON as f64);
        assert_eq!(ElementType::Bf16.ulp(1.5), 2f64.powi(-7));
    }
}
