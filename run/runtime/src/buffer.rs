//! Declares [`Buffer`], which is a tensor in device memory.

use std::fmt;
use std::ops::Range;

use ops::TensorType;

use crate::device::Runtime;
use crate::error::RuntimeError;
use crate::ffi;

/// Bytes. Kernels on every device can read tensors with this alignment.
const ALIGNMENT: usize = 256;

/// A dense, row-major tensor in the memory of a device.
///
/// `Buffer` does not implement `Clone`. A call may update its arguments in place, so the call
/// consumes its arguments and returns new buffers.
///
/// ```
/// use ops::{ElementType, TensorType};
/// use tracewright_runtime::{Buffer, Device, Runtime, RuntimeError};
///
/// let runtime = Runtime::new(Device::LocalSync)?;
/// let zeros = Buffer::zeros(&runtime, &TensorType::new(ElementType::F32, [2]))?;
/// assert_eq!(zeros.read()?, [0; 8]);
/// # Ok::<(), RuntimeError>(())
/// ```
pub struct Buffer {
    // Before the runtime: a buffer goes back to a device that is still there.
    raw: ffi::Buffer,
    ty: TensorType,
    runtime: Runtime,
}

impl Buffer {
    pub fn zeros(runtime: &Runtime, ty: &TensorType) -> Result<Self, RuntimeError> {
        size(ty)?;
        Self::new(runtime, ty, None, "allocate")
    }

    /// Little-endian. `i1` takes one byte, and two `i4` share one.
    pub fn from_bytes(runtime: &Runtime, ty: &TensorType, bytes: &[u8]) -> Result<Self, RuntimeError> {
        check_length(ty, bytes.len())?;
        let buffer = Self::new(runtime, ty, Some(bytes), "fill")?;
        runtime.count(bytes.len(), 0);
        Ok(buffer)
    }

    fn new(
        runtime: &Runtime,
        ty: &TensorType,
        bytes: Option<&[u8]>,
        action: &'static str,
    ) -> Result<Self, RuntimeError> {
        let raw = ffi::Buffer::new(runtime.raw(), ty, bytes).map_err(|status| RuntimeError::Buffer {
            action,
            ty: ty.clone(),
            status,
        })?;
        Ok(Self { raw, ty: ty.clone(), runtime: runtime.clone() })
    }

    /// `None` if the element type is not supported.
    pub(crate) fn from_raw(runtime: &Runtime, raw: ffi::Buffer) -> Option<Self> {
        let ty = TensorType::new(raw.element()?, raw.shape());
        Some(Self { raw, ty, runtime: runtime.clone() })
    }

    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Copies the tensor to new memory on the same device.
    pub fn copied(&self) -> Result<Self, RuntimeError> {
        let copied = self.raw.copy(self.runtime.raw());
        let raw =
            copied.map_err(|status| RuntimeError::Buffer { action: "copy", ty: self.ty.clone(), status })?;
        Ok(Self { raw, ty: self.ty.clone(), runtime: self.runtime.clone() })
    }

    pub fn read(&self) -> Result<Vec<u8>, RuntimeError> {
        let mut bytes = vec![0; self.ty.bytes()];
        self.read_into(&mut bytes)?;
        Ok(bytes)
    }

    /// `target` must have the size of the tensor.
    pub fn read_into(&self, target: &mut [u8]) -> Result<(), RuntimeError> {
        check_length(&self.ty, target.len())?;
        let read = self.raw.read(self.runtime.raw(), 0, target);
        read.map_err(|status| RuntimeError::Buffer { action: "read", ty: self.ty.clone(), status })?;
        self.runtime.count(0, target.len());
        Ok(())
    }

    /// Row-major `index`. The element type must have at least eight bits.
    pub fn read_element(&self, index: usize) -> Result<Vec<u8>, RuntimeError> {
        let mut bytes = vec![0; self.ty.element.bytes(1)];
        let read = self.raw.read(self.runtime.raw(), index * bytes.len(), &mut bytes);
        read.map_err(|status| RuntimeError::Buffer { action: "read", ty: self.ty.clone(), status })?;
        self.runtime.count(0, bytes.len());
        Ok(bytes)
    }

    /// Copies a range of the tensor's bytes from the device.
    pub fn read_range(&self, range: Range<usize>) -> Result<Vec<u8>, RuntimeError> {
        let mut bytes = vec![0; range.len()];
        let read = self.raw.read(self.runtime.raw(), range.start, &mut bytes);
        read.map_err(|status| RuntimeError::Buffer { action: "read", ty: self.ty.clone(), status })?;
        self.runtime.count(0, bytes.len());
        Ok(bytes)
    }

    /// From byte `offset` on.
    pub fn write_range(&mut self, offset: usize, bytes: &[u8]) -> Result<(), RuntimeError> {
        let written = self.raw.write(self.runtime.raw(), offset, bytes);
        written.map_err(|status| RuntimeError::Buffer { action: "write", ty: self.ty.clone(), status })?;
        self.runtime.count(bytes.len(), 0);
        Ok(())
    }

    /// `count` rows (slices along the first axis) as a tensor for a call. It shares their memory if the first
    /// is aligned, and otherwise is a copy. Pass the changed rows to [`put_rows`](Self::put_rows).
    pub fn rows(&mut self, first: usize, count: usize) -> Result<Self, RuntimeError> {
        let (ty, offset) = (self.ty.with_rows(count), self.ty.with_rows(first).bytes());
        let part = self.raw.part(&ty, offset);
        let raw = part.map_err(|status| RuntimeError::Buffer { action: "split", ty: ty.clone(), status })?;
        let part = Self { raw, ty, runtime: self.runtime.clone() };
        if offset.is_multiple_of(ALIGNMENT) { Ok(part) } else { part.separate() }
    }

    /// The same memory, for a call that only reads it. Neither may be passed to a call that writes.
    pub fn alias(&self) -> Result<Self, RuntimeError> {
        let alias = self.raw.part(&self.ty, 0);
        let raw =
            alias.map_err(|status| RuntimeError::Buffer { action: "share", ty: self.ty.clone(), status })?;
        Ok(Self { raw, ty: self.ty.clone(), runtime: self.runtime.clone() })
    }

    /// The rows that a call returned. If it changed them in place, nothing is copied.
    pub fn put_rows(&mut self, first: usize, rows: Self) -> Result<(), RuntimeError> {
        let offset = self.ty.with_rows(first).bytes();
        let (allocation, start) = self.address();
        if rows.address() == (allocation, start + offset) {
            return Ok(());
        }
        let put = self.raw.put(self.runtime.raw(), offset, &rows.raw);
        put.map_err(|status| RuntimeError::Buffer { action: "join", ty: self.ty.clone(), status })
    }

    /// Equal for an argument and a result that reuses its memory.
    pub fn address(&self) -> (usize, usize) {
        self.raw.place()
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(crate) fn into_raw(self) -> ffi::Buffer {
        self.raw
    }

    /// Into memory that no other buffer uses.
    pub(crate) fn separate(self) -> Result<Self, RuntimeError> {
        let copied = self.raw.copy(self.runtime.raw());
        let raw =
            copied.map_err(|status| RuntimeError::Buffer { action: "copy", ty: self.ty.clone(), status })?;
        Ok(Self { raw, ..self })
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.raw.is_writable()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({})", self.ty)
    }
}

fn check_length(ty: &TensorType, found: usize) -> Result<(), RuntimeError> {
    let expected = size(ty)?;
    if found == expected { Ok(()) } else { Err(RuntimeError::Length { ty: ty.clone(), expected, found }) }
}

/// Fails on overflow.
fn size(ty: &TensorType) -> Result<usize, RuntimeError> {
    let elements = ty.shape.iter().try_fold(1usize, |count, &extent| count.checked_mul(extent));
    let fits = elements.and_then(|count| count.checked_mul(ty.element.bits())).is_some();
    if fits { Ok(ty.bytes()) } else { Err(RuntimeError::TooLarge(ty.clone())) }
}
