//! [`Executor`] calls the entry points of a network with IREE, with XLA, or in the reference evaluator.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use ops::{ElementType, TensorType, Value};
use runtime::{Buffer, Runtime, RuntimeError, Transfers, VmFunction, VmModule};
use trace::{Evaluation, Trace, evaluate};

use crate::GenerateError;

/// An argument of a call, passed by value.
pub enum CallArgument<Buffer> {
    /// A tensor that the call consumes and may overwrite.
    Buffer(Buffer),
    /// An integer that is in host memory and not on the device.
    Scalar(i32),
}

/// Calls the entry points of a program.
pub trait Executor {
    /// A tensor on the device that runs the calls.
    type Buffer;

    /// Creates a tensor whose elements are all zero.
    fn zeros(&self, ty: &TensorType) -> Result<Self::Buffer, GenerateError>;

    /// Creates a tensor from little-endian bytes.
    fn upload(&self, ty: &TensorType, bytes: &[u8]) -> Result<Self::Buffer, GenerateError>;

    /// Creates a copy of a tensor in the device's memory.
    fn copy(&self, ty: &TensorType, buffer: &Self::Buffer) -> Result<Self::Buffer, GenerateError> {
        self.upload(ty, &self.read(buffer)?)
    }

    /// Returns the little-endian bytes of a tensor.
    fn read(&self, buffer: &Self::Buffer) -> Result<Vec<u8>, GenerateError>;

    /// Returns the little-endian bytes of the element with this index in row-major order.
    fn read_element(&self, buffer: &Self::Buffer, index: usize) -> Result<Vec<u8>, GenerateError>;

    /// Reads a range of the bytes of a tensor.
    fn read_range(&self, buffer: &Self::Buffer, bytes: Range<usize>) -> Result<Vec<u8>, GenerateError> {
        Ok(self.read(buffer)?[bytes].to_vec())
    }

    /// Replaces bytes from `offset` on. Only called for tensors [in host memory](Self::is_in_host_memory).
    fn write_range(
        &self,
        ty: &TensorType,
        buffer: Self::Buffer,
        offset: usize,
        bytes: &[u8],
    ) -> Result<Self::Buffer, GenerateError> {
        let mut all = self.read(&buffer)?;
        all[offset..][..bytes.len()].copy_from_slice(bytes);
        self.upload(ty, &all)
    }

    /// Copies consecutive rows, beginning with `first`. Their number is that of the type `ty`.
    fn copied_rows(
        &self,
        buffer: &Self::Buffer,
        ty: &TensorType,
        first: usize,
    ) -> Result<Self::Buffer, GenerateError> {
        let offset = ty.with_rows(first).bytes();
        self.upload(ty, &self.read_range(buffer, offset..offset + ty.bytes())?)
    }

    /// Returns consecutive rows from `first` on as an argument of the type `ty`: a copy, or shared memory.
    fn rows(
        &self,
        buffer: &mut Self::Buffer,
        ty: &TensorType,
        first: usize,
    ) -> Result<Self::Buffer, GenerateError> {
        self.copied_rows(buffer, ty, first)
    }

    /// Writes the rows from [`rows`](Self::rows) that a call has changed back, beginning with `first`.
    fn put_rows(
        &self,
        ty: &TensorType,
        buffer: Self::Buffer,
        first: usize,
        rows: Self::Buffer,
    ) -> Result<Self::Buffer, GenerateError> {
        self.write_range(ty, buffer, ty.with_rows(first).bytes(), &self.read(&rows)?)
    }

    /// The same memory for a call that only reads it, or `None` if a call needs memory of its own.
    fn alias(&self, _buffer: &Self::Buffer) -> Result<Option<Self::Buffer>, GenerateError> {
        Ok(None)
    }

    /// Returns how many bytes were copied between host and device so far.
    fn transfers(&self) -> Transfers {
        Transfers::default()
    }

    /// Whether the host reads device memory as fast as its own. If not, state is copied on the device only.
    fn is_in_host_memory(&self) -> bool {
        true
    }

    /// Whether a call of the entry point begins at once. Otherwise, the call waits for a compilation.
    fn is_ready(&self, _entry: &str, _patience: Patience) -> bool {
        true
    }

    /// Calls an entry point of the program, and returns the results.
    fn call(
        &self,
        entry: &str,
        arguments: Vec<CallArgument<Self::Buffer>>,
    ) -> Result<Vec<Self::Buffer>, GenerateError>;
}

/// A compiled program that IREE has loaded. Clones are the same program.
#[derive(Clone)]
pub struct Iree {
    runtime: Runtime,
    functions: Rc<RefCell<HashMap<String, VmFunction>>>,
    later: Rc<RefCell<Option<LaterModules>>>,
}

/// Returns the next module of a program whose entry points are compiled one after another, or `None` if no
/// module is ready.
pub type LaterModules = Box<dyn FnMut(Patience) -> Result<Option<VmModule>, GenerateError>>;

/// How much a call wants an entry point that may not be compiled yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Another entry point is good enough for some time.
    Idle,
    /// Another entry point takes much longer, so the compilation begins now.
    Soon,
    /// No other entry point can do the work, so the call waits for the compilation.
    Waits,
}

impl Iree {
    /// Creates an executor for the functions of a loaded program.
    pub fn new(runtime: &Runtime, program: &VmModule) -> Result<Self, RuntimeError> {
        let executor = Self { runtime: runtime.clone(), functions: Rc::default(), later: Rc::default() };
        executor.add(program)?;
        Ok(executor)
    }

    /// Adds modules with further entry points of the program, which may still be compiled.
    #[must_use]
    pub fn with_later(self, later: LaterModules) -> Self {
        Self { later: Rc::new(RefCell::new(Some(later))), ..self }
    }

    fn add(&self, module: &VmModule) -> Result<(), RuntimeError> {
        let mut functions = self.functions.borrow_mut();
        for name in module.functions() {
            functions.insert(name.to_owned(), module.function(name)?);
        }
        Ok(())
    }

    /// Returns an entry point of the program, and waits for its compilation.
    pub fn function(&self, entry: &str) -> Result<VmFunction, GenerateError> {
        self.add_later(entry, Patience::Waits)?;
        self.loaded(entry).ok_or_else(|| GenerateError::EntryPoint {
            name: entry.into(),
            why: "is missing in the program".into(),
        })
    }

    fn loaded(&self, entry: &str) -> Option<VmFunction> {
        self.functions.borrow().get(entry).cloned()
    }

    /// Adds the modules that are compiled now, or all modules up to the one with `entry` if the call waits.
    fn add_later(&self, entry: &str, patience: Patience) -> Result<(), GenerateError> {
        let mut later = self.later.borrow_mut();
        while self.loaded(entry).is_none()
            && let Some(next) = later.as_mut()
        {
            match next(patience)? {
                Some(module) => self.add(&module)?,
                None if patience == Patience::Waits => *later = None,
                None => break,
            }
        }
        Ok(())
    }

    /// Returns the runtime of the device that runs the calls.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }
}

impl Executor for Iree {
    type Buffer = Buffer;

    fn zeros(&self, ty: &TensorType) -> Result<Buffer, GenerateError> {
        Ok(Buffer::zeros(&self.runtime, ty)?)
    }

    fn upload(&self, ty: &TensorType, bytes: &[u8]) -> Result<Buffer, GenerateError> {
        Ok(Buffer::from_bytes(&self.runtime, ty, bytes)?)
    }

    fn copy(&self, _: &TensorType, buffer: &Buffer) -> Result<Buffer, GenerateError> {
        Ok(buffer.copied()?)
    }

    fn read(&self, buffer: &Buffer) -> Result<Vec<u8>, GenerateError> {
        Ok(buffer.read()?)
    }

    fn read_element(&self, buffer: &Buffer, index: usize) -> Result<Vec<u8>, GenerateError> {
        Ok(buffer.read_element(index)?)
    }

    fn read_range(&self, buffer: &Buffer, bytes: Range<usize>) -> Result<Vec<u8>, GenerateError> {
        Ok(buffer.read_range(bytes)?)
    }

    fn write_range(
        &self,
        _: &TensorType,
        mut buffer: Buffer,
        offset: usize,
        bytes: &[u8],
    ) -> Result<Buffer, GenerateError> {
        buffer.write_range(offset, bytes)?;
        Ok(buffer)
    }

    fn rows(&self, buffer: &mut Buffer, ty: &TensorType, first: usize) -> Result<Buffer, GenerateError> {
        Ok(buffer.rows(first, ty.shape[0])?)
    }

    fn put_rows(
        &self,
        _: &TensorType,
        mut buffer: Buffer,
        first: usize,
        rows: Buffer,
    ) -> Result<Buffer, GenerateError> {
        buffer.put_rows(first, rows)?;
        Ok(buffer)
    }

    fn alias(&self, buffer: &Buffer) -> Result<Option<Buffer>, GenerateError> {
        Ok(Some(buffer.alias()?))
    }

    fn transfers(&self) -> Transfers {
        self.runtime.transfers()
    }

    /// An error of a compilation belongs to the call, so the entry point of a failed one is ready.
    fn is_ready(&self, entry: &str, patience: Patience) -> bool {
        self.add_later(entry, patience).is_err() || self.loaded(entry).is_some()
    }

    fn call(&self, entry: &str, arguments: Vec<CallArgument<Buffer>>) -> Result<Vec<Buffer>, GenerateError> {
        let function = self.function(entry)?;
        let passed = arguments.into_iter().map(|argument| match argument {
            CallArgument::Buffer(buffer) => runtime::VmValue::Buffer(buffer),
            CallArgument::Scalar(number) => runtime::VmValue::I32(number),
        });
        let results = function.call(passed.collect())?;
        Ok(results.into_iter().filter_map(runtime::VmValue::buffer).collect())
    }
}

/// Runs a trace in the reference evaluator. The evaluator is slow, but needs no compiler.
pub struct Evaluator<'a> {
    /// The trace that the reference evaluator runs.
    pub trace: &'a Trace,
    /// Returns the value of the parameter with the given key, or `None` if the parameter does not exist.
    pub parameters: &'a dyn Fn(&str) -> Option<Value>,
}

impl Executor for Evaluator<'_> {
    type Buffer = Value;

    fn zeros(&self, ty: &TensorType) -> Result<Value, GenerateError> {
        Ok(Value::new(ty.clone(), vec![0.0; ty.count()]))
    }

    fn upload(&self, ty: &TensorType, bytes: &[u8]) -> Result<Value, GenerateError> {
        Ok(Value::from_bytes(ty.clone(), bytes))
    }

    fn read(&self, buffer: &Value) -> Result<Vec<u8>, GenerateError> {
        Ok(buffer.to_bytes())
    }

    fn read_element(&self, buffer: &Value, index: usize) -> Result<Vec<u8>, GenerateError> {
        let ty = TensorType::new(buffer.ty.element, []);
        Ok(Value::new(ty, [buffer.data[index]]).to_bytes())
    }

    fn call(&self, entry: &str, arguments: Vec<CallArgument<Value>>) -> Result<Vec<Value>, GenerateError> {
        let passed = arguments.into_iter().map(|argument| match argument {
            CallArgument::Buffer(value) => value,
            CallArgument::Scalar(number) => {
                Value::new(TensorType::new(ElementType::I32, []), [f64::from(number)])
            }
        });
        let evaluation = Evaluation { parameters: self.parameters, watch: None };
        Ok(evaluate(self.trace, entry, passed.collect(), evaluation)?)
    }
}
