//! Rotary position embeddings that rotate pairs of elements, where the two elements are half a head apart.

use ops::TensorType;
use ops::ops::{Rope, RopeLayout};

use crate::code::{Buffer, Code, Element, Value};
use crate::kernel::{self, Kernel};
use crate::lane;
use crate::norm::Norm;

/// Rotates the first 2 · `half` of `features` numbers of each row.
#[derive(Clone, Copy)]
pub(crate) struct Rotation {
    element: Element,
    rows: usize,
    pub(crate) features: usize,
    half: usize,
    table: usize,
    /// The token positions, and the consecutive rows that have the same one.
    positions: usize,
    after: usize,
    /// The number of rows per sequence, if the positions differ between the sequences.
    sequence: usize,
}

impl Rotation {
    /// `None` if the kernel does not support the operation.
    pub(crate) fn of(op: &Rope, [x, table]: [&TensorType; 2]) -> Option<Self> {
        let last = x.rank() - 1;
        let features = x.shape[last];
        let rows = x.count() / features.max(1);
        let rotation = Self {
            element: lane(x.element),
            rows,
            features,
            half: table.shape[table.rank() - 1],
            table: table.count(),
            positions: x.shape[op.axis],
            after: x.shape[op.axis + 1..last].iter().product(),
            sequence: if table.rank() == 3 { rows / x.shape[0].max(1) } else { rows },
        };
        let served = op.layout == RopeLayout::HalfSplit && x.count() > 0 && table.count() > 0;
        served.then_some(rotation)
    }

    /// The suffix of a kernel's name that identifies this rotary embedding.
    pub(crate) fn name(self) -> String {
        let Self { half, sequence, positions, after, .. } = self;
        format!("{half}_{sequence}x{positions}x{after}")
    }

    /// Binds the cosine and sine tables as `first` and `first + 1`.
    pub(crate) fn tables(self, code: &Code, first: usize) -> [Buffer<'_>; 2] {
        [0, 1].map(|index| code.binding(first + index, self.element, self.table))
    }

    /// Rotates a row of `from` into `to`, and copies the features without an angle.
    pub(crate) fn row<'k>(
        self,
        code: &'k Code,
        row: Value<'k>,
        [cos, sin]: [Buffer<'k>; 2],
        (from, start): (Buffer<'k>, Value<'k>),
        (to, at): (Buffer<'k>, Value<'k>),
    ) {
        let (element, half) = (self.element, self.half);
        let place = |count: usize| code.index(count);
        let position = row.divide(place(self.after)).remainder(place(self.positions));
        let position = position + row.divide(place(self.sequence)) * self.positions;
        let table = position * half;
        code.chunks(half, |feature, left| {
            let [a, b] = [feature, feature + half].map(|feature| from.load_floats(start + feature, left));
            let [cos, sin] = [cos, sin].map(|buffer| buffer.load_floats(table + feature, left));
            // The code rounds the same intermediate results as the operation `rope`.
            let first = (a * cos).rounded(element) - (b * sin).rounded(element);
            let second = (b * cos).rounded(element) + (a * sin).rounded(element);
            to.store_lanes(at + feature, first.convert(element), left);
            to.store_lanes(at + feature + half, second.convert(element), left);
        });
        code.chunks(self.features - 2 * half, |feature, left| {
            let feature = feature + 2 * half;
            to.store_lanes(at + feature, from.load_lanes(start + feature, left), left);
        });
    }
}

/// Returns a kernel that applies a rotary embedding to the rows of x, optionally after a norm.
pub(crate) fn kernel(rotation: Rotation, norm: Option<Norm>) -> (String, impl FnOnce() -> Kernel + use<>) {
    let Rotation { element, rows, features, .. } = rotation;
    let normed = norm.map(|norm| format!("_normed_{}", norm.name())).unwrap_or_default();
    let name = format!("rope_{element}_{rows}x{features}_{}{normed}", rotation.name());
    let workgroups = (rows / 32).clamp(1, 8);
    let kernel = move || {
        kernel::new(4 + usize::from(norm.is_some()), workgroups, |code| {
            let x = code.binding(0, element, rows * features);
            let tables = rotation.tables(code, 1);
            let weight =
                norm.map(|norm| (norm, norm.weight(code, 3), code.scratch(element, features), code.index(0)));
            let result = code.binding(3 + usize::from(norm.is_some()), element, rows * features);
            code.repeat(kernel::share(code, rows, workgroups), 1, |row| {
                let start = row * features;
                let from = match weight {
                    Some((norm, weight, normalised, at)) => {
                        norm.fill(code, (x, start), weight, (normalised, at));
                        (normalised, at)
                    }
                    None => (x, start),
                };
                rotation.row(code, row, tables, from, (result, start));
            });
        })
    };
    (name, kernel)
}
