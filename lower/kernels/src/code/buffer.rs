//! A block of memory that kernels read and write.

use super::{Buffer, Element, Type, Value};

impl<'k> Buffer<'k> {
    pub(super) fn ty(&self) -> String {
        let length = self.length.map_or("?".to_owned(), |length| length.to_string());
        format!("memref<{length}x{}>", self.element.name())
    }

    pub(crate) fn element(&self) -> Element {
        self.element
    }

    /// Consecutive elements, one for each lane.
    pub(crate) fn load(&self, at: Value<'k>, ty: Type) -> Value<'k> {
        assert_eq!(ty.element(), Some(self.element), "a load of other elements");
        match ty {
            Type::Vector(..) => {
                self.code.read(ty, format_args!("vector.load {self}[{at}] : {}, {ty}", self.ty()))
            }
            _ => self.code.read(ty, format_args!("memref.load {self}[{at}] : {}", self.ty())),
        }
    }

    /// The first `count` elements, with zeros in the other lanes.
    pub(crate) fn load_first(&self, at: Value<'k>, ty: Type, count: usize) -> Value<'k> {
        let Type::Vector(lanes, _) = ty else { unreachable!("a scalar is loaded whole") };
        self.load_masked(at, ty, self.code.first_lanes(self.code.index(count), lanes))
    }

    /// The elements that the mask selects, with zeros in the other lanes.
    pub(crate) fn load_masked(&self, at: Value<'k>, ty: Type, mask: Value<'k>) -> Value<'k> {
        let (zero, own) = (self.code.constant(ty, 0.0), self.ty());
        self.code.read(
            ty,
            format_args!(
                "vector.maskedload {self}[{at}], {mask}, {zero} : {own}, {}, {ty} into {ty}",
                mask.ty
            ),
        )
    }

    /// 16 numbers, with zeros after the first `left` ones.
    pub(crate) fn load_lanes(&self, at: Value<'k>, left: usize) -> Value<'k> {
        let ty = Type::lanes(16, self.element);
        if left >= 16 { self.load(at, ty) } else { self.load_first(at, ty, left) }
    }

    /// 16 numbers as f32, with zeros after the first `left` ones.
    pub(crate) fn load_floats(&self, at: Value<'k>, left: usize) -> Value<'k> {
        self.load_lanes(at, left).convert(Element::F32)
    }

    /// Stores the first `left` lanes of 16.
    pub(crate) fn store_lanes(&self, at: Value<'k>, value: Value<'k>, left: usize) {
        match left {
            16.. => self.store(at, value),
            _ => self.store_masked(at, self.code.first_lanes(self.code.index(left), 16), value),
        }
    }

    pub(crate) fn store(&self, at: Value<'k>, value: Value<'k>) {
        assert_eq!(value.ty.element(), Some(self.element), "a store of other elements");
        match value.ty {
            Type::Vector(..) => self.code.line(format_args!(
                "vector.store {value}, {self}[{at}] : {}, {}",
                self.ty(),
                value.ty
            )),
            _ => self.code.line(format_args!("memref.store {value}, {self}[{at}] : {}", self.ty())),
        }
    }

    /// Stores the bits as elements of another type.
    pub(crate) fn store_bits(&self, at: Value<'k>, value: Value<'k>) {
        self.store(at, value.bits(Type::lanes(value.ty.bits() / self.element.bits(), self.element)));
    }

    pub(crate) fn store_masked(&self, at: Value<'k>, mask: Value<'k>, value: Value<'k>) {
        self.code.line(format_args!(
            "vector.maskedstore {self}[{at}], {mask}, {value} : {}, {}, {}",
            self.ty(),
            mask.ty,
            value.ty
        ));
    }

    pub(crate) fn address(&self, at: Value<'k>) -> Value<'k> {
        let start = format_args!("memref.extract_aligned_pointer_as_index {self} : {} -> index", self.ty());
        self.code.value(Type::Index, start) + at * (self.element.bits() / 8)
    }

    /// Prefetches a line into the first-level cache. Addresses after the end of the memory are ignored.
    pub(crate) fn prefetch(&self, at: Value<'k>) {
        self.code.line(format_args!("memref.prefetch {self}[{at}], read, locality<3>, data : {}", self.ty()));
    }

    /// Emits an instruction that prefetches a cache line into the second-level cache.
    pub(crate) fn prefetch_to_second(&self, at: Value<'k>) {
        self.code.line(format_args!("memref.prefetch {self}[{at}], read, locality<2>, data : {}", self.ty()));
    }
}
