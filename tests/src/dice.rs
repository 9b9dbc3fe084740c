//! Random choices, shapes and values. The same seed gives the same.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use tracewright::ops::{ElementType, Literal, TensorType, Value};

/// A source of random choices.
pub struct Dice(ChaCha8Rng);

impl Dice {
    /// The choices that belong to a seed.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A number below `n`; 0 if there is none.
    pub fn below(&mut self, n: usize) -> usize {
        (self.0.next_u64() % n.max(1) as u64) as usize
    }

    /// True in so many cases of a hundred.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of several.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// The same in random order.
    pub fn shuffled<T>(&mut self, mut items: Vec<T>) -> Vec<T> {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
        items
    }
}

/// More elements make a case slow and find nothing new.
pub const ELEMENTS: usize = 120;

/// An extent: 0 and 1 and odd ones often.
pub fn extent(dice: &mut Dice) -> usize {
    *dice.pick(&[0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4, 5, 5, 7])
}

/// A shape of so many axes.
pub fn shape(dice: &mut Dice, rank: usize) -> Vec<usize> {
    let mut shape: Vec<usize> = (0..rank).map(|_| extent(dice)).collect();
    while shape.iter().filter(|&&extent| extent > 0).product::<usize>() > ELEMENTS {
        let axis = dice.below(rank);
        shape[axis] = shape[axis].min(1 + dice.below(3));
    }
    shape
}

pub fn element(dice: &mut Dice) -> ElementType {
    *dice.pick(&ElementType::ALL)
}

pub fn float(dice: &mut Dice) -> ElementType {
    *dice.pick(&[ElementType::F32, ElementType::F16, ElementType::Bf16])
}

/// Any type of at least so many axes.
pub fn ty(dice: &mut Dice, element: ElementType, least: usize) -> TensorType {
    let rank = least + dice.below(5 - least.min(4));
    TensorType::new(element, shape(dice, rank))
}

/// A number that an element type may hold: special ones, small ones, ones of any size.
fn number(dice: &mut Dice, element: ElementType) -> f64 {
    let tame = dice.below(9) as f64 - 4.0;
    match element {
        ElementType::I1 => dice.below(2) as f64,
        ElementType::I4 => dice.below(16) as f64 - 8.0,
        ElementType::I8 | ElementType::I32 => {
            let (low, high) = match element {
                ElementType::I8 => (-128.0, 127.0),
                _ => (f64::from(i32::MIN), f64::from(i32::MAX)),
            };
            *dice.pick(&[tame, tame, tame, tame, low, low + 1.0, high, 100.0, 0.0, -1.0])
        }
        _ => {
            let smallest = element.ulp(0.0);
            let largest = match element {
                ElementType::F32 => f64::from(f32::MAX),
                ElementType::F16 => 65504.0,
                _ => 3.3895313892515355e38,
            };
            let special = [f64::NAN, 0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, smallest, -3.0 * smallest];
            let special = [&special[..], &[largest, -largest, 1.0, -1.0]].concat();
            match dice.below(8) {
                0 | 1 => *dice.pick(&special),
                2 | 3 => tame,
                _ => element.round(tame_float(dice)),
            }
        }
    }
}

/// A float of many digits between 2⁻⁴ and 2⁴.
fn tame_float(dice: &mut Dice) -> f64 {
    let sign = if dice.chance(50) { 1.0 } else { -1.0 };
    let exponent = dice.below(8) as i32 - 4;
    sign * (1.0 + dice.below(1 << 30) as f64 / f64::from(1 << 30)) * 2f64.powi(exponent)
}

/// Random elements: NaN, ±0, ±∞, subnormals, the largest integers and equal elements among them.
pub fn value(dice: &mut Dice, ty: &TensorType) -> Value {
    fill(dice, ty, number)
}

/// Random floats between 2⁻⁴ and 2⁴ and small integers: no step of what is computed of a few of them is out of range.
pub fn tame_value(dice: &mut Dice, ty: &TensorType) -> Value {
    fill(
        dice,
        ty,
        |dice, element| if element.is_float() { tame_float(dice) } else { number(dice, ElementType::I4) },
    )
}

fn fill(dice: &mut Dice, ty: &TensorType, number: fn(&mut Dice, ElementType) -> f64) -> Value {
    let mut data: Vec<f64> = Vec::with_capacity(ty.count());
    for _ in 0..ty.count() {
        let again = !data.is_empty() && dice.chance(15);
        let next = if again { *dice.pick(&data) } else { number(dice, ty.element) };
        data.push(next);
    }
    Value::new(ty.clone(), data)
}

/// A constant of this type: equal elements or others.
pub fn literal(dice: &mut Dice, ty: &TensorType) -> Literal {
    if dice.chance(60) {
        let value = *dice.pick(&[0.0, -0.0, 1.0, 1.0, -1.0, 2.0, 0.5, f64::NAN]);
        Literal::splat(ty.clone(), value)
    } else {
        Literal::from_value(&value(dice, ty))
    }
}

/// Every axis in a random order, or in its own.
pub fn order(dice: &mut Dice, rank: usize) -> Vec<usize> {
    let axes: Vec<usize> = (0..rank).collect();
    match dice.below(5) {
        0 => axes,
        1 if rank > 0 => {
            let by = dice.below(rank);
            [&axes[by..], &axes[..by]].concat()
        }
        _ => dice.shuffled(axes),
    }
}

/// Another shape of as many elements.
pub fn refactored(dice: &mut Dice, from: &[usize]) -> Vec<usize> {
    let count: usize = from.iter().product();
    if dice.chance(15) {
        return from.to_vec();
    }
    if count == 0 {
        let rank = dice.below(3);
        let mut to = shape(dice, 1 + rank);
        to[dice.below(1 + rank)] = 0;
        return to;
    }
    // The prime factors, put together at random; then extents of 1.
    let mut to = Vec::new();
    let mut rest = count;
    let mut factor = 2;
    while rest > 1 {
        while rest.is_multiple_of(factor) {
            rest /= factor;
            if to.is_empty() || dice.chance(60) && to.len() < 4 {
                to.push(factor)
            } else {
                let axis = dice.below(to.len());
                to[axis] *= factor;
            }
        }
        factor += 1;
    }
    let mut to = dice.shuffled(to);
    while to.len() < 5 && dice.chance(35) {
        to.insert(dice.below(to.len() + 1), 1);
    }
    to
}

/// Whether two values are the same bit for bit, where any NaN equals any NaN.
pub fn same(a: &Value, b: &Value) -> bool {
    let bits =
        |value: &Value| -> Vec<u32> { value.data.iter().map(|&x| value.ty.element.encode(x)).collect() };
    a.ty == b.ty && bits(a) == bits(b)
}
