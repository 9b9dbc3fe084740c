//! Tensors of a program that XLA runs, in host memory or on the devices.

use std::cell::RefCell;
use std::rc::Rc;

use ops::TensorType;
use pjrt::PjrtBuffer;

use crate::GenerateError;
use crate::network::integers;

/// A tensor for [`Xla`](crate::Xla). A new tensor stays in host memory until a call moves it to the devices
/// on which the entry point expects it.
pub enum XlaBuffer {
    /// A tensor of zeros whose memory is not allocated yet.
    Zeros(TensorType),
    /// The little-endian bytes of a tensor in host memory.
    Host(TensorType, Vec<u8>),
    /// A tensor of the program, in the memory of the devices.
    Devices(DeviceTensor),
}

/// A tensor in device memory. If a decode call replaces it, all clones refer to the new tensor.
#[derive(Clone)]
pub struct DeviceTensor(Rc<Inner>);

struct Inner {
    /// The tensor on the devices, or `None` after a call has consumed the tensor.
    buffer: RefCell<Option<PjrtBuffer>>,
    /// The bytes of a small tensor that the host has read.
    bytes: RefCell<Option<Vec<u8>>>,
}

/// The largest size in bytes of a tensor for which the host keeps a copy after reading the tensor.
const SMALL: usize = 256;

impl DeviceTensor {
    pub(crate) fn new(buffer: PjrtBuffer) -> Self {
        Self(Rc::new(Inner { buffer: RefCell::new(Some(buffer)), bytes: RefCell::new(None) }))
    }

    pub(crate) fn take(&self) -> Result<PjrtBuffer, GenerateError> {
        self.0.buffer.take().ok_or_else(lost)
    }

    pub(crate) fn put(&self, buffer: PjrtBuffer) {
        self.0.bytes.take();
        self.0.buffer.replace(Some(buffer));
    }

    pub(crate) fn with<T, E: Into<GenerateError>>(
        &self,
        act: impl FnOnce(&PjrtBuffer) -> Result<T, E>,
    ) -> Result<T, GenerateError> {
        act(self.0.buffer.borrow().as_ref().ok_or_else(lost)?).map_err(Into::into)
    }

    /// Returns all bytes in host memory. Copies a small tensor from the device only once.
    pub(crate) fn bytes(&self) -> Result<Vec<u8>, GenerateError> {
        if let Some(bytes) = &*self.0.bytes.borrow() {
            return Ok(bytes.clone());
        }
        let bytes = self.with(PjrtBuffer::read)?;
        if bytes.len() <= SMALL {
            self.0.bytes.replace(Some(bytes.clone()));
        }
        Ok(bytes)
    }

    /// Returns the integers of a small tensor. The result is `None` if the host has not read the tensor yet.
    pub(crate) fn kept_integers(&self) -> Option<Vec<i32>> {
        self.0.bytes.borrow().as_deref().map(integers)
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

/// Returns the error for a tensor that a failed call has consumed.
fn lost() -> GenerateError {
    let why = "has lost its state in a call that failed; load the model again".into();
    GenerateError::EntryPoint { name: "decode".into(), why }
}
