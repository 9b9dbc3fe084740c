//! Root mean square norms, a row at a time.

use ops::TensorType;
use ops::ops::{RmsNorm, WeightStyle};

use crate::code::{Buffer, Code, Element, Type, Value};
use crate::kernel::{self, Kernel};
use crate::lane;

const LANES: Type = Type::lanes(16, Element::F32);

/// The norm of each row of a tensor.
pub(crate) fn kernel(op: &RmsNorm, ty: &TensorType) -> (String, Kernel) {
    let element = lane(ty.element);
    let features = ty.shape[ty.rank() - 1];
    let rows = ty.count() / features;
    let name =
        format!("rms_norm_{element}_{rows}x{features}_{}_{:x}", op.style.word(), op.epsilon.0.to_bits());
    let workgroups = rows.min(8);
    let kernel = kernel::new(3, workgroups, |code| {
        let x = code.binding(0, element, rows * features);
        let weight = code.binding(1, element, features);
        let result = code.binding(2, element, rows * features);
        code.repeat(kernel::share(code, rows, workgroups), 1, |row| {
            let start = row * features;
            let factor = factor(code, x, start, features, op.epsilon.0).broadcast(16);
            code.chunks(features, |at, left| {
                let normalised = x.load_lanes(start + at, left).convert(Element::F32) * factor;
                let weight = weight.load_lanes(at, left).convert(Element::F32);
                let scaled = match op.style {
                    WeightStyle::Scale => normalised.rounded(element) * weight,
                    WeightStyle::Wide => normalised * weight,
                    WeightStyle::OnePlus => normalised * (code.constant(LANES, 1.0) + weight),
                };
                result.store_lanes(start + at, scaled.convert(element), left);
            });
        });
    });
    (name, kernel)
}

/// 1 / √(mean(x²) + epsilon)
fn factor<'k>(code: &'k Code, x: Buffer<'k>, start: Value<'k>, features: usize, epsilon: f64) -> Value<'k> {
    let add = |at: Value<'k>, left: usize, sum: Value<'k>| {
        let x = x.load_lanes(start + at, left).convert(Element::F32);
        x.multiply_add(x, sum)
    };
    let whole = features / 16 * 16;
    let zero = code.constant(LANES, 0.0);
    let mut sum =
        code.fold(code.index(0)..code.index(whole), 16, &[zero], |at, sums| vec![add(at, 16, sums[0])])[0];
    if whole < features {
        sum = add(code.index(whole), features - whole, sum);
    }
    let sum = sum.sum();
    let number = |value: f64| code.constant(sum.ty(), value);
    let mean = sum.divide(number(features as f64)) + number(epsilon);
    number(1.0).divide(mean.square_root())
}
