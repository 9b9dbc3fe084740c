//! Multiplies rows of integers by their scales, if no attention kernel reads the integers directly.

use ops::TensorType;
use ops::ops::Dequantize;

use crate::code::{Element, Type};
use crate::kernel::{self, Kernel};
use crate::lane;

pub(crate) fn kernel(op: &Dequantize, integers: &TensorType) -> (String, impl FnOnce() -> Kernel + use<>) {
    let element = lane(op.element);
    let features = integers.shape[integers.rank() - 1];
    let rows = integers.count() / features;
    let name = format!("dequantize_{element}_{rows}x{features}");
    let workgroups = rows.min(8);
    let kernel = move || {
        kernel::new(3, workgroups, |code| {
            let integers = code.binding(0, Element::I8, rows * features);
            let scales = code.binding(1, Element::F32, rows);
            let result = code.binding(2, element, rows * features);
            code.repeat(kernel::share(code, rows, workgroups), 1, |row| {
                let scale = scales.load(row, Type::Scalar(Element::F32)).broadcast(16);
                code.chunks(features, |at, left| {
                    let at = row * features + at;
                    let numbers = integers.load_floats(at, left) * scale;
                    result.store_lanes(at, numbers.convert(element), left);
                });
            });
        })
    };
    (name, kernel)
}
