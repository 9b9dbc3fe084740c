//! [`AnyExecutor`] runs a program with IREE or with XLA. The caller chooses the engine at run time.

use std::ops::Range;

use ops::TensorType;
use runtime::{Buffer, Transfers};

use crate::GenerateError;
use crate::device_tensor::XlaBuffer;
use crate::executor::{CallArgument, Executor, Iree};
use crate::xla::Xla;

/// An executor that uses IREE or XLA.
pub enum AnyExecutor {
    /// A program that IREE has loaded.
    Iree(Iree),
    /// A program that XLA has compiled.
    Xla(Xla),
}

/// A tensor of a program that an [`AnyExecutor`] runs.
pub enum AnyBuffer {
    /// A tensor on a device that IREE uses.
    Iree(Buffer),
    /// A tensor of a program that XLA runs.
    Xla(XlaBuffer),
}

impl AnyExecutor {
    /// Returns how many bytes were copied between host and device so far.
    pub fn transfers(&self) -> Transfers {
        match self {
            Self::Iree(iree) => iree.runtime().transfers(),
            Self::Xla(xla) => {
                let (host_to_device, device_to_host) = xla.client().transferred();
                Transfers { host_to_device, device_to_host }
            }
        }
    }
}

impl Executor for AnyExecutor {
    type Buffer = AnyBuffer;

    fn zeros(&self, ty: &TensorType) -> Result<AnyBuffer, GenerateError> {
        Ok(match self {
            Self::Iree(iree) => AnyBuffer::Iree(iree.zeros(ty)?),
            Self::Xla(xla) => AnyBuffer::Xla(xla.zeros(ty)?),
        })
    }

    fn upload(&self, ty: &TensorType, bytes: &[u8]) -> Result<AnyBuffer, GenerateError> {
        Ok(match self {
            Self::Iree(iree) => AnyBuffer::Iree(iree.upload(ty, bytes)?),
            Self::Xla(xla) => AnyBuffer::Xla(xla.upload(ty, bytes)?),
        })
    }

    fn copy(&self, ty: &TensorType, buffer: &AnyBuffer) -> Result<AnyBuffer, GenerateError> {
        match (self, buffer) {
            (Self::Iree(iree), AnyBuffer::Iree(buffer)) => iree.copy(ty, buffer).map(AnyBuffer::Iree),
            (Self::Xla(xla), AnyBuffer::Xla(buffer)) => xla.copy(ty, buffer).map(AnyBuffer::Xla),
            _ => Err(GenerateError::OtherEngine),
        }
    }

    fn read(&self, buffer: &AnyBuffer) -> Result<Vec<u8>, GenerateError> {
        match (self, buffer) {
            (Self::Iree(iree), AnyBuffer::Iree(buffer)) => iree.read(buffer),
            (Self::Xla(xla), AnyBuffer::Xla(buffer)) => xla.read(buffer),
            _ => Err(GenerateError::OtherEngine),
        }
    }

    fn read_element(&self, buffer: &AnyBuffer, index: usize) -> Result<Vec<u8>, GenerateError> {
        match (self, buffer) {
            (Self::Iree(iree), AnyBuffer::Iree(buffer)) => iree.read_element(buffer, index),
            (Self::Xla(xla), AnyBuffer::Xla(buffer)) => xla.read_element(buffer, index),
            _ => Err(GenerateError::OtherEngine),
        }
    }

    fn read_range(&self, buffer: &AnyBuffer, bytes: Range<usize>) -> Result<Vec<u8>, GenerateError> {
        match (self, buffer) {
            (Self::Iree(iree), AnyBuffer::Iree(buffer)) => iree.read_range(buffer, bytes),
            (Self::Xla(xla), AnyBuffer::Xla(buffer)) => xla.read_range(buffer, bytes),
            _ => Err(GenerateError::OtherEngine),
        }
    }

    fn write_range(
        &self,
        ty: &TensorType,
        buffer: AnyBuffer,
        offset: usize,
        bytes: &[u8],
    ) -> Result<AnyBuffer, GenerateError> {
        match (self, buffer) {
            (Self::Iree(iree), AnyBuffer::Iree(buffer)) => {
                iree.write_range(ty, buffer, offset, bytes).map(AnyBuffer::Iree)
            }
            (Self::Xla(xla), AnyBuffer::Xla(buffer)) => {
                xla.write_range(ty, buffer, offset, bytes).map(AnyBuffer::Xla)
            }
            _ => Err(GenerateError::OtherEngine),
        }
    }

    fn copied_rows(
        &self,
        buffer: &AnyBuffer,
        ty: &TensorType,
        first: usize,
    ) -> Result<AnyBuffer, GenerateError> {
        match (self, buffer) {
            (Self::Iree(iree), AnyBuffer::Iree(buffer)) => {
                iree.copied_rows(buffer, ty, first).map(AnyBuffer::Iree)
            }
            (Self::Xla(xla), AnyBuffer::Xla(buffer)) => {
                xla.copied_rows(buffer, ty, first).map(AnyBuffer::Xla)
            }
            _ => Err(GenerateError::OtherEngine),
        }
    }

    fn rows(
        &self,
        buffer: &mut AnyBuffer,
        ty: &TensorType,
        first: usize,
    ) -> Result<AnyBuffer, GenerateError> {
        match (self, buffer) {
            (Self::Iree(iree), AnyBuffer::Iree(buffer)) => iree.rows(buffer, ty, first).map(AnyBuffer::Iree),
            (Self::Xla(xla), AnyBuffer::Xla(buffer)) => xla.rows(buffer, ty, first).map(AnyBuffer::Xla),
            _ => Err(GenerateError::OtherEngine),
        }
    }

    fn put_rows(
        &self,
        ty: &TensorType,
        buffer: AnyBuffer,
        first: usize,
        rows: AnyBuffer,
    ) -> Result<AnyBuffer, GenerateError> {
        match (self, buffer, rows) {
            (Self::Iree(iree), AnyBuffer::Iree(buffer), AnyBuffer::Iree(rows)) => {
                iree.put_rows(ty, buffer, first, rows).map(AnyBuffer::Iree)
            }
            (Self::Xla(xla), AnyBuffer::Xla(buffer), AnyBuffer::Xla(rows)) => {
                xla.put_rows(ty, buffer, first, rows).map(AnyBuffer::Xla)
            }
            _ => Err(GenerateError::OtherEngine),
        }
    }

    fn is_in_host_memory(&self) -> bool {
        match self {
            Self::Iree(iree) => iree.is_in_host_memory(),
            Self::Xla(xla) => xla.is_in_host_memory(),
        }
    }

    fn call(
        &self,
        entry: &str,
        arguments: Vec<CallArgument<AnyBuffer>>,
    ) -> Result<Vec<AnyBuffer>, GenerateError> {
        match self {
            Self::Iree(iree) => {
                let own = |buffer| match buffer {
                    AnyBuffer::Iree(buffer) => Ok(buffer),
                    AnyBuffer::Xla(_) => Err(GenerateError::OtherEngine),
                };
                let results = iree.call(entry, converted(arguments, own)?)?;
                Ok(results.into_iter().map(AnyBuffer::Iree).collect())
            }
            Self::Xla(xla) => {
                let own = |buffer| match buffer {
                    AnyBuffer::Xla(buffer) => Ok(buffer),
                    AnyBuffer::Iree(_) => Err(GenerateError::OtherEngine),
                };
                let results = xla.call(entry, converted(arguments, own)?)?;
                Ok(results.into_iter().map(AnyBuffer::Xla).collect())
            }
        }
    }
}

/// Converts the arguments to tensors of the engine that runs the call.
fn converted<B>(
    arguments: Vec<CallArgument<AnyBuffer>>,
    own: impl Fn(AnyBuffer) -> Result<B, GenerateError>,
) -> Result<Vec<CallArgument<B>>, GenerateError> {
    let convert = |argument| {
        Ok(match argument {
            CallArgument::Buffer(buffer) => CallArgument::Buffer(own(buffer)?),
            CallArgument::Scalar(number) => CallArgument::Scalar(number),
        })
    };
    arguments.into_iter().map(convert).collect()
}
