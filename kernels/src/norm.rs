//! Root mean square norms, a row at a time.

use ops::TensorType;
use ops::ops::{RmsNorm, WeightStyle};

use crate::code::{Buffer, Code, Element, Type, Value};
use crate::kernel::{self, Kernel};
use crate::lane;

const LANES: Type = Type::lanes(16, Element::F32);

/// The norm of each row of a tensor.
pub(crate) fn kernel(op: &RmsNorm, ty: &TensorType) -> (String, impl FnOnce() -> Kernel) {
    let element = lane(ty.element);
    let features = ty.shape[ty.rank() - 1];
    let rows = ty.count() / features;
    let name =
        format!("rms_norm_{element}_{rows}x{features}_{}_{:x}", op.style.word(), op.epsilon.0.to_bits());
    let workgroups = rows.min(8);
    let kernel = move || {
        kernel::new(3, workgroups, |code| {
            let x = code.binding(0, element, rows * features);
            let weight = code.binding(1, element, features);
            let result = code.binding(2, element, rows * features);
            code.repeat(kernel::share(code, rows, workgroups), 1, |row| {
                let start = row * features;
                let factor = factor(code, x, start, features, op.epsilon.0).broadcast(16);
                code.chunks(features, |at, left| {
                    let normalised = x.load_floats(start + at, left) * factor;
                    let weight = weight.load_floats(at, left);
                    let scaled = match op.style {
                        WeightStyle::Scale => normalised.rounded(element) * weight,
                        WeightStyle::Wide => normalised * weight,
                        WeightStyle::OnePlus => normalised * (code.constant(LANES, 1.0) + weight),
                    };
                    result.store_lanes(start + at, scaled.convert(element), left);
                });
            });
        })
    };
    (name, kernel)
}

/// 1 / √(mean(x²) + epsilon)
fn factor<'k>(code: &'k Code, x: Buffer<'k>, start: Value<'k>, features: usize, epsilon: f64) -> Value<'k> {
    let squares = code.fold_chunks(features, &[code.constant(LANES, 0.0)], |at, left, sums| {
        let x = x.load_floats(start + at, left);
        vec![x.multiply_add(x, sums[0])]
    });
    let sum = squares[0].sum();
    let number = |value: f64| code.constant(sum.ty(), value);
    let mean = sum.divide(number(features as f64)) + number(epsilon);
    number(1.0).divide(mean.square_root())
}
