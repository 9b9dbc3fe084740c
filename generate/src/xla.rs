//! [`Xla`] is an executor whose entry points XLA has compiled.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use ops::{ElementType, TensorType};
use pjrt::{Client, Executable, PjrtArgument, PjrtBuffer, Placement};

use crate::GenerateError;
use crate::executor::{CallArgument, Executor};

/// A program of XLA: an executable for each entry point, and the weights on the devices.
pub struct Xla {
    client: Client,
    functions: HashMap<String, XlaFunction>,
}

/// An entry point that XLA has compiled.
pub struct XlaFunction {
    /// The executable of the entry point. The executable takes the arguments of the entry point, then its
    /// weights.
    pub executable: Executable,
    /// The placement of each argument of the entry point.
    pub arguments: Vec<Placement>,
    /// The weights in the order of the executable's arguments. Entry points share these weights.
    pub weights: Vec<Rc<PjrtBuffer>>,
}

/// A tensor of an [`Xla`]. The argument that a tensor becomes determines its placement, so a new tensor stays in
/// host memory until a call takes it.
pub enum XlaBuffer {
    /// Zeros that no memory contains yet.
    Zeros(TensorType),
    /// The little-endian bytes of a tensor in host memory.
    Host(TensorType, Vec<u8>),
    /// A tensor on the devices.
    Devices(PjrtBuffer),
}

impl Xla {
    /// Creates an executor for entry points by name. The entry points and their weights must be on devices of this
    /// client.
    pub fn new(client: &Client, functions: HashMap<String, XlaFunction>) -> Self {
        Self { client: client.clone(), functions }
    }

    /// The client whose devices run the calls.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The tensor on the devices of an argument. A tensor with another placement is copied.
    fn placed(&self, placement: &Placement, buffer: XlaBuffer) -> Result<PjrtBuffer, GenerateError> {
        Ok(match buffer {
            XlaBuffer::Zeros(ty) => self.client.zeros(placement, &ty)?,
            XlaBuffer::Host(ty, bytes) => self.client.upload(placement, &ty, &bytes)?,
            XlaBuffer::Devices(buffer) if buffer.placement() == placement => buffer,
            XlaBuffer::Devices(buffer) => self.client.upload(placement, buffer.ty(), &buffer.read()?)?,
        })
    }
}

impl Executor for Xla {
    type Buffer = XlaBuffer;

    fn zeros(&self, ty: &TensorType) -> Result<XlaBuffer, GenerateError> {
        Ok(XlaBuffer::Zeros(ty.clone()))
    }

    fn upload(&self, ty: &TensorType, bytes: &[u8]) -> Result<XlaBuffer, GenerateError> {
        Ok(XlaBuffer::Host(ty.clone(), bytes.to_vec()))
    }

    fn read(&self, buffer: &XlaBuffer) -> Result<Vec<u8>, GenerateError> {
        Ok(match buffer {
            XlaBuffer::Zeros(ty) => vec![0; ty.bytes()],
            XlaBuffer::Host(_, bytes) => bytes.clone(),
            XlaBuffer::Devices(buffer) => buffer.read()?,
        })
    }

    fn copy(&self, _: &TensorType, buffer: &XlaBuffer) -> Result<XlaBuffer, GenerateError> {
        Ok(match buffer {
            XlaBuffer::Zeros(ty) => XlaBuffer::Zeros(ty.clone()),
            XlaBuffer::Host(ty, bytes) => XlaBuffer::Host(ty.clone(), bytes.clone()),
            XlaBuffer::Devices(buffer) => XlaBuffer::Devices(buffer.copied()?),
        })
    }

    fn copied_rows(
        &self,
        buffer: &XlaBuffer,
        ty: &TensorType,
        first: usize,
    ) -> Result<XlaBuffer, GenerateError> {
        Ok(match buffer {
            XlaBuffer::Zeros(_) => XlaBuffer::Zeros(ty.clone()),
            XlaBuffer::Devices(buffer) if !buffer.placement().divides_rows() => {
                XlaBuffer::Devices(buffer.rows(first, ty.shape[0])?)
            }
            buffer => {
                let range = byte_range(ty, first);
                XlaBuffer::Host(ty.clone(), self.read_range(buffer, range)?)
            }
        })
    }

    fn put_rows(
        &self,
        ty: &TensorType,
        buffer: XlaBuffer,
        first: usize,
        rows: XlaBuffer,
    ) -> Result<XlaBuffer, GenerateError> {
        let placement = match (&buffer, &rows) {
            (XlaBuffer::Devices(buffer), _) | (_, XlaBuffer::Devices(buffer)) => Some(buffer.placement()),
            _ => None,
        };
        let Some(placement) = placement.filter(|placement| !placement.divides_rows()).cloned() else {
            let mut bytes = self.read(&buffer)?;
            let rows = self.read(&rows)?;
            bytes[ty.with_rows(first).bytes()..][..rows.len()].copy_from_slice(&rows);
            return self.upload(ty, &bytes);
        };
        let rows = self.placed(&placement, rows)?;
        let whole = self.placed(&placement, buffer)?;
        Ok(XlaBuffer::Devices(whole.put_rows(first, &rows)?))
    }

    fn read_element(&self, buffer: &XlaBuffer, index: usize) -> Result<Vec<u8>, GenerateError> {
        Ok(match buffer {
            XlaBuffer::Zeros(ty) => vec![0; ty.element.bytes(1)],
            XlaBuffer::Host(ty, bytes) => {
                let size = ty.element.bytes(1);
                bytes[index * size..][..size].to_vec()
            }
            XlaBuffer::Devices(buffer) => buffer.read_element(index)?,
        })
    }

    fn is_in_host_memory(&self) -> bool {
        false
    }

    fn call(
        &self,
        entry: &str,
        arguments: Vec<CallArgument<XlaBuffer>>,
    ) -> Result<Vec<XlaBuffer>, GenerateError> {
        let Some(function) = self.functions.get(entry) else {
            return Err(GenerateError::EntryPoint {
                name: entry.into(),
                why: "is missing in the program".into(),
            });
        };
        let mut passed = Vec::with_capacity(arguments.len() + function.weights.len());
        for (argument, placement) in arguments.into_iter().zip(&function.arguments) {
            let buffer = match argument {
                CallArgument::Buffer(buffer) => buffer,
                CallArgument::Scalar(number) => {
                    self.upload(&TensorType::new(ElementType::I32, []), &number.to_le_bytes())?
                }
            };
            passed.push(PjrtArgument::Donated(self.placed(placement, buffer)?));
        }
        passed.extend(function.weights.iter().map(|weight| PjrtArgument::Kept(weight)));
        Ok(function.executable.execute(passed)?.into_iter().map(XlaBuffer::Devices).collect())
    }
}

/// The bytes of rows of the type `ty` from `first` on.
fn byte_range(ty: &TensorType, first: usize) -> Range<usize> {
    let offset = ty.with_rows(first).bytes();
    offset..offset + ty.bytes()
}
