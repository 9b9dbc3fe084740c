//! Root mean square norms of rows.

use ops::ops::{RmsNorm, WeightStyle};
use ops::{Real, TensorType};

use crate::code::{Buffer, Code, Element, Type, Value};
use crate::fused_op::Epilogue;
use crate::kernel::{self, Kernel};
use crate::lane;

const LANES: Type = Type::lanes(16, Element::F32);

#[derive(Clone, Copy)]
pub(crate) struct Norm {
    style: WeightStyle,
    epsilon: Real,
    pub(crate) element: Element,
    pub(crate) features: usize,
}

impl Norm {
    pub(crate) fn of(op: &RmsNorm, x: &TensorType) -> Self {
        let (element, features) = (lane(x.element), x.shape[x.rank() - 1]);
        Self { style: op.style, epsilon: op.epsilon, element, features }
    }

    /// The suffix of a kernel's name.
    pub(crate) fn name(self) -> String {
        format!("{}_{:x}", self.style.word(), self.epsilon.0.to_bits())
    }

    pub(crate) fn weight(self, code: &Code, index: usize) -> Buffer<'_> {
        code.binding(index, self.element, self.features)
    }

    /// Blocks of 16 numbers, not rounded. `body` gets the first index, and the count to the row's end.
    pub(crate) fn row<'k>(
        self,
        code: &'k Code,
        (x, start): (Buffer<'k>, Value<'k>),
        weight: Buffer<'k>,
        put: impl Fn(Value<'k>, usize, Value<'k>),
    ) {
        let factor = self.factor(code, x, start).broadcast(16);
        code.chunks(self.features, |at, left| {
            let normalised = x.load_floats(start + at, left) * factor;
            let weight = weight.load_floats(at, left);
            let scaled = match self.style {
                WeightStyle::Scale => normalised.rounded(self.element) * weight,
                WeightStyle::Wide => normalised * weight,
                WeightStyle::OnePlus => normalised * (code.constant(LANES, 1.0) + weight),
            };
            put(at, left, scaled);
        });
    }

    /// Computes the norm of a row, rounds the results, and stores the results in memory.
    pub(crate) fn fill<'k>(
        self,
        code: &'k Code,
        x: (Buffer<'k>, Value<'k>),
        weight: Buffer<'k>,
        (to, place): (Buffer<'k>, Value<'k>),
    ) {
        self.row(code, x, weight, |at, left, numbers| {
            to.store_lanes(place + at, numbers.convert(self.element), left);
        });
    }

    /// Computes the factor 1 / √(mean(x²) + epsilon) for a row x.
    fn factor<'k>(self, code: &'k Code, x: Buffer<'k>, start: Value<'k>) -> Value<'k> {
        let squares = code.fold_chunks(self.features, &[code.constant(LANES, 0.0)], |at, left, sums| {
            let x = x.load_floats(start + at, left);
            vec![x.multiply_add(x, sums[0])]
        });
        let sum = squares[0].sum();
        let number = |value: f64| code.constant(sum.ty(), value);
        let mean = sum.divide(number(self.features as f64)) + number(self.epsilon.0);
        number(1.0).divide(mean.square_root())
    }
}

pub(crate) fn kernel<'a>(
    op: &RmsNorm,
    x: &TensorType,
    tail: &'a Epilogue,
    element: Element,
) -> (String, impl FnOnce() -> Kernel + 'a) {
    let norm = Norm::of(op, x);
    let features = norm.features;
    let rows = x.count() / features;
    let name = format!("rms_norm_{}_{rows}x{features}_{}", norm.element, norm.name());
    let workgroups = rows.min(8);
    let kernel = move || {
        kernel::new(2 + tail.bindings(), workgroups, |code| {
            let x = code.binding(0, norm.element, rows * features);
            let weight = norm.weight(code, 1);
            let end = tail.end(code, 2, (element, rows, features));
            code.repeat(kernel::share(code, rows, workgroups), 1, |row| {
                norm.row(code, (x, row * features), weight, |at, left, numbers| {
                    end.write(code, &[numbers], (row, at), code.mask(left));
                });
            });
        })
    };
    (name, kernel)
}
