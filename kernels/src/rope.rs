//! Rotary position embeddings whose pairs are half a head apart.

use ops::TensorType;
use ops::ops::{Rope, RopeLayout};

use crate::kernel::{self, Kernel};
use crate::lane;

/// Whether the kernel serves an operation.
pub(crate) fn serves(op: &Rope, operands: &[&TensorType]) -> bool {
    op.layout == RopeLayout::HalfSplit && operands.iter().all(|ty| ty.count() > 0)
}

/// The rotated rows of x; what the tables do not reach passes through.
pub(crate) fn kernel(op: &Rope, operands: &[&TensorType]) -> (String, impl FnOnce() -> Kernel) {
    let (x, tables) = (operands[0], operands[1]);
    let element = lane(x.element);
    let (features, half) = (x.shape[x.rank() - 1], tables.shape[tables.rank() - 1]);
    let rows = x.count() / features;
    let (positions, after) = (x.shape[op.axis], x.shape[op.axis + 1..x.rank() - 1].iter().product::<usize>());
    // Rows of a sequence that has positions of its own.
    let sequence = if tables.rank() == 3 { rows / x.shape[0] } else { rows };
    let name = format!("rope_{element}_{rows}x{features}_{half}_{sequence}x{positions}x{after}");
    let workgroups = (rows / 32).clamp(1, 8);
    let kernel = move || {
        kernel::new(4, workgroups, |code| {
            let x = code.binding(0, element, rows * features);
            let [cos, sin] = [1, 2].map(|index| code.binding(index, element, tables.count()));
            let result = code.binding(3, element, rows * features);
            code.repeat(kernel::share(code, rows, workgroups), 1, |row| {
                let place = |count: usize| code.index(count);
                let position = row.divide(place(after)).remainder(place(positions));
                let position = position + row.divide(place(sequence)) * positions;
                let (start, table) = (row * features, position * half);
                code.chunks(half, |at, left| {
                    let [a, b] = [at, at + half].map(|at| x.load_floats(start + at, left));
                    let [cos, sin] = [cos, sin].map(|buffer| buffer.load_floats(table + at, left));
                    // Rounded as often as the operation says.
                    let first = (a * cos).rounded(element) - (b * sin).rounded(element);
                    let second = (b * cos).rounded(element) + (a * sin).rounded(element);
                    result.store_lanes(start + at, first.convert(element), left);
                    result.store_lanes(start + at + half, second.convert(element), left);
                });
                code.chunks(features - 2 * half, |at, left| {
                    let at = start + at + 2 * half;
                    result.store_lanes(at, x.load_lanes(at, left), left);
                });
            });
        })
    };
    (name, kernel)
}
