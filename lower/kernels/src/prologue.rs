//! The prologue of a fused operation: a norm and then a rotary embedding on the rows of an operand.

use crate::code::{Buffer, Code, Value};
use crate::fused_op::FusedPrologue;
use crate::norm::Norm;
use crate::rope::Rotation;

#[derive(Clone, Copy)]
pub(crate) struct Prologue {
    norm: Option<Norm>,
    rotation: Option<Rotation>,
}

impl Prologue {
    /// Returns the prologue of a fused operation; `None` if kernels do not support the prologue.
    pub(crate) fn of(fused: FusedPrologue<'_>) -> Option<Self> {
        let norm = fused.norm.map(|(op, x)| Norm::of(op, x));
        let rotation = match fused.rope {
            Some((op, types)) => Some(Rotation::of(op, types)?),
            None => None,
        };
        Some(Self { norm, rotation })
    }

    pub(crate) fn is_nothing(self) -> bool {
        self.norm.is_none() && self.rotation.is_none()
    }

    pub(crate) fn rotates(self) -> bool {
        self.rotation.is_some()
    }

    /// Whether the prologue supports rows with the given number of features.
    pub(crate) fn takes(self, features: usize) -> bool {
        self.norm.is_none_or(|norm| norm.features == features)
            && self.rotation.is_none_or(|rotation| rotation.features == features)
    }

    /// The suffix of a kernel's name that identifies this prologue.
    pub(crate) fn name(self) -> String {
        let normed = self.norm.map(|norm| format!("_normed_{}", norm.name()));
        let rotated = self.rotation.map(|rotation| format!("_rope_{}", rotation.name()));
        normed.into_iter().chain(rotated).collect()
    }

    /// The bindings for the norm's weight and for the tables of the rotary embedding.
    pub(crate) fn bindings(self) -> usize {
        usize::from(self.norm.is_some()) + 2 * usize::from(self.rotation.is_some())
    }

    /// Creates the prologue's bindings, numbered from `first`, and memory for a row of `features` numbers
    /// between norm and rotary embedding.
    pub(crate) fn start(self, code: &Code, first: usize, features: usize) -> Start<'_> {
        let norm = self.norm.map(|norm| (norm, norm.weight(code, first)));
        let tables = first + usize::from(norm.is_some());
        let rotation = self.rotation.map(|rotation| (rotation, rotation.tables(code, tables)));
        let between = self.norm.filter(|_| self.rotation.is_some());
        let between = between.map(|norm| (code.scratch(norm.element, features), code.index(0)));
        Start { norm, between, rotation, features }
    }
}

/// The source of a kernel's rows: the operand in memory, and the prologue that the kernel applies.
pub(crate) struct Start<'k> {
    norm: Option<(Norm, Buffer<'k>)>,
    between: Option<(Buffer<'k>, Value<'k>)>,
    rotation: Option<(Rotation, [Buffer<'k>; 2])>,
    features: usize,
}

impl<'k> Start<'k> {
    /// Applies the prologue to a row of the operand, and stores the result at another position in memory. The
    /// index of the row refers to the axis order that the norm and the rotary embedding declare.
    pub(crate) fn row(
        &self,
        code: &'k Code,
        row: Value<'k>,
        mut from: (Buffer<'k>, Value<'k>),
        to: (Buffer<'k>, Value<'k>),
    ) {
        if let Some((norm, weight)) = self.norm {
            let between = self.between.unwrap_or(to);
            norm.fill(code, from, weight, between);
            from = between;
        }
        match self.rotation {
            Some((rotation, tables)) => rotation.row(code, row, tables, from, to),
            None if self.norm.is_some() => {}
            None => code.chunks(self.features, |at, left| {
                to.0.store_lanes(to.1 + at, from.0.load_lanes(from.1 + at, left), left);
            }),
        }
    }
}
