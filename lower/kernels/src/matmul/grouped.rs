//! Matmuls in which many activation rows choose their matrices. A separate kernel groups the rows by
//! matrix. Therefore the matmul reads each matrix only once, for all rows that chose it.

use ops::{ElementType, TensorType};

use super::{Matmul, Stack};
use crate::code::{Code, Element, Type, Value};
use crate::kernel;
use crate::packing::Packing;

const INTEGER: Type = Type::Scalar(Element::I32);

impl Matmul<'_> {
    /// The stack of matrices if the matmul reads its rows by matrix. Several rows then share a matrix.
    pub(super) fn grouped(&self) -> Option<Stack> {
        self.stack.filter(|stack| stack.chosen && stack.rows >= stack.matrices)
    }

    /// The kernel that groups the rows by matrix; `None` if they are read in order. For n matrices, it
    /// returns n + 1 numbers and a list. The rows of matrix m are the items from number m to number m + 1.
    pub(crate) fn grouping(&self) -> Option<Packing<'static>> {
        let Stack { matrices, rows, .. } = self.grouped()?;
        let ty = TensorType::new(ElementType::I32, [matrices + 1 + rows]);
        let name = format!("group_{rows}_of_{matrices}");
        let kernel = move || kernel::new(2, 1, |code| write(code, matrices, rows));
        Some(Packing { name, ty, operands: vec![2], kernel: Box::new(kernel) })
    }
}

/// A counting sort of the rows, which keeps the order of rows with the same matrix.
fn write(code: &Code, matrices: usize, rows: usize) {
    let choices = code.binding(0, Element::I32, rows);
    let result = code.binding(1, Element::I32, matrices + 1 + rows);
    let places = code.scratch(Element::I32, matrices);
    let [zero, one] = [0.0, 1.0].map(|number| code.constant(INTEGER, number));
    let all = || code.index(0)..code.index(matrices);
    code.repeat(all(), 1, |matrix| places.store(matrix, zero));
    let of_row = |row| nearest(code, choices.load(row, INTEGER), matrices);
    code.repeat(code.index(0)..code.index(rows), 1, |row| {
        let matrix = of_row(row);
        places.store(matrix, places.load(matrix, INTEGER) + one);
    });
    // The count of each matrix becomes the place of the first of its rows.
    code.fold(all(), 1, &[zero], |matrix, first| {
        let count = places.load(matrix, INTEGER);
        places.store(matrix, first[0]);
        result.store(matrix, first[0]);
        vec![first[0] + count]
    });
    result.store(code.index(matrices), code.constant(INTEGER, rows as f64));
    code.repeat(code.index(0)..code.index(rows), 1, |row| {
        let matrix = of_row(row);
        let place = places.load(matrix, INTEGER);
        result.store(place.place() + (matrices + 1), row.number());
        places.store(matrix, place + one);
    });
}

/// Returns an index of a matrix as a place, with the nearest valid index if it is out of range.
pub(super) fn nearest<'k>(code: &'k Code, index: Value<'k>, matrices: usize) -> Value<'k> {
    let [first, last] = [0.0, matrices.saturating_sub(1) as f64].map(|n| code.constant(INTEGER, n));
    index.max(first).min(last).place()
}
