//! [`Xla`] is an executor whose entry points XLA has compiled.

use std::collections::HashMap;
use std::rc::Rc;

use ops::{ElementType, TensorType};
use pjrt::{Client, Executable, PjrtArgument, PjrtBuffer};

use crate::GenerateError;
use crate::executor::{CallArgument, Executor};
use crate::tensor_moves::TensorMoves;

/// A program of XLA: an executable for each entry point, and the weights on the device.
pub struct Xla {
    client: Client,
    ordinal: usize,
    functions: HashMap<String, XlaFunction>,
    moves: TensorMoves,
}

/// An entry point that XLA has compiled.
pub struct XlaFunction {
    /// The executable of the entry point. The executable takes the arguments of the entry point, then its
    /// weights.
    pub executable: Executable,
    /// The weights in the order of the executable's arguments. Entry points share these weights.
    pub weights: Vec<Rc<PjrtBuffer>>,
}

impl Xla {
    /// Creates an executor for entry points by name. The entry points must be compiled for the device with
    /// this number, which also contains their weights.
    pub fn new(client: &Client, ordinal: usize, functions: HashMap<String, XlaFunction>) -> Self {
        Self { client: client.clone(), ordinal, functions, moves: TensorMoves::new(client, ordinal) }
    }

    /// The client whose device runs the calls.
    pub fn client(&self) -> &Client {
        &self.client
    }
}

impl Executor for Xla {
    type Buffer = PjrtBuffer;

    fn zeros(&self, ty: &TensorType) -> Result<PjrtBuffer, GenerateError> {
        Ok(self.moves.zeros(ty)?)
    }

    fn upload(&self, ty: &TensorType, bytes: &[u8]) -> Result<PjrtBuffer, GenerateError> {
        Ok(self.client.upload(self.ordinal, ty, bytes)?)
    }

    fn read(&self, buffer: &PjrtBuffer) -> Result<Vec<u8>, GenerateError> {
        Ok(buffer.read()?)
    }

    fn copy(&self, _: &TensorType, buffer: &PjrtBuffer) -> Result<PjrtBuffer, GenerateError> {
        Ok(self.moves.copy(buffer)?)
    }

    fn copied_rows(
        &self,
        buffer: &PjrtBuffer,
        ty: &TensorType,
        first: usize,
    ) -> Result<PjrtBuffer, GenerateError> {
        Ok(self.moves.rows(buffer, ty, first)?)
    }

    fn put_rows(
        &self,
        _: &TensorType,
        buffer: PjrtBuffer,
        first: usize,
        rows: PjrtBuffer,
    ) -> Result<PjrtBuffer, GenerateError> {
        Ok(self.moves.put_rows(buffer, first, &rows)?)
    }

    fn read_element(&self, buffer: &PjrtBuffer, index: usize) -> Result<Vec<u8>, GenerateError> {
        Ok(buffer.read_element(index)?)
    }

    fn is_in_host_memory(&self) -> bool {
        false
    }

    fn call(
        &self,
        entry: &str,
        arguments: Vec<CallArgument<PjrtBuffer>>,
    ) -> Result<Vec<PjrtBuffer>, GenerateError> {
        let Some(function) = self.functions.get(entry) else {
            return Err(GenerateError::EntryPoint {
                name: entry.into(),
                why: "is missing in the program".into(),
            });
        };
        let mut passed = Vec::with_capacity(arguments.len() + function.weights.len());
        for argument in arguments {
            passed.push(PjrtArgument::Donated(match argument {
                CallArgument::Buffer(buffer) => buffer,
                CallArgument::Scalar(number) => {
                    self.upload(&TensorType::new(ElementType::I32, []), &number.to_le_bytes())?
                }
            }));
        }
        passed.extend(function.weights.iter().map(|weight| PjrtArgument::Kept(weight)));
        Ok(function.executable.execute(passed)?)
    }
}
