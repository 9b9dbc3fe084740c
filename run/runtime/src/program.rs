//! Declares [`VmModule`], which is a loaded module whose functions can be called.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use crate::buffer::Buffer;
use crate::device::Runtime;
use crate::error::{RuntimeError, Status, StatusCode};
use crate::ffi;
use crate::parameters::Parameters;

/// Clones are the same module.
#[derive(Clone)]
pub struct VmModule(Rc<Inner>);

struct Inner {
    raw: ffi::Program,
    exports: Vec<Export>,
    runtime: Runtime,
}

struct Export {
    ordinal: usize,
    name: String,
    declaration: String,
    arguments: usize,
}

impl VmModule {
    /// Loads a compiled module. The module reads its parameters from the given scopes.
    pub fn load(
        runtime: &Runtime,
        vmfb: impl AsRef<[u8]>,
        parameters: &[Parameters],
    ) -> Result<Self, RuntimeError> {
        let parameters = parameters.iter().map(ffi::Parameters::new).collect::<Result<Vec<_>, _>>()?;
        let vmfb = vmfb.as_ref();
        check_end(vmfb).map_err(RuntimeError::NotAModule)?;
        let raw = ffi::Program::load(runtime.raw(), vmfb, &parameters).map_err(load_error)?;
        let exports = exports(&raw).map_err(RuntimeError::Load)?;
        Ok(Self(Rc::new(Inner { raw, exports, runtime: runtime.clone() })))
    }

    pub fn functions(&self) -> impl Iterator<Item = &str> {
        self.0.exports.iter().map(|export| export.name.as_str())
    }

    pub fn function(&self, name: &str) -> Result<VmFunction, RuntimeError> {
        match self.0.exports.iter().position(|export| export.name == name) {
            Some(index) => Ok(VmFunction { program: self.clone(), index }),
            None => Err(RuntimeError::NoFunction {
                name: name.into(),
                exports: self.functions().map(str::to_owned).collect(),
            }),
        }
    }
}

fn exports(raw: &ffi::Program) -> Result<Vec<Export>, Status> {
    let mut exports = Vec::new();
    for ordinal in 0..raw.export_count() {
        let name = raw.export_name(ordinal)?;
        // The compiler's own: initializers, and the asynchronous twin of every function.
        if name.starts_with("__") || name.ends_with("$async") {
            continue;
        }
        let declaration = raw.export_declaration(ordinal)?;
        let (arguments, _) = raw.export_arity(ordinal)?;
        exports.push(Export { ordinal, name, declaration, arguments });
    }
    Ok(exports)
}

/// A module ends with a zip directory, which IREE does not read, so it would not notice missing bytes.
fn check_end(vmfb: &[u8]) -> Result<(), Status> {
    const END_RECORD: usize = 22;
    let end = vmfb.len().saturating_sub(END_RECORD);
    if vmfb.starts_with(b"PK\x03\x04") && !vmfb[end..].starts_with(b"PK\x05\x06") {
        return Err(Status { code: StatusCode::DataLoss, message: "the end of the file is missing".into() });
    }
    Ok(())
}

/// Also accepts modules for other machines, and without their parameters.
pub(crate) fn check(vmfb: &[u8]) -> Result<(), Status> {
    check_end(vmfb)?;
    let runtime = ffi::Runtime::new(0, false)?;
    match ffi::Program::load(&runtime, vmfb, &[]) {
        Err((status, verified)) if !verified => Err(status),
        // It is whole, and lacks its parameters, or another machine.
        _ => Ok(()),
    }
}

/// By the text of IREE's message.
fn load_error((status, verified): (Status, bool)) -> RuntimeError {
    let says = |words: &[&str]| words.iter().any(|word| status.message.contains(word));
    if says(&[
        "version mismatch",
        "HAL device `",
        "no executable loader",
        "required import",
        "required features",
    ]) {
        RuntimeError::OtherVersion(status)
    } else if !verified {
        RuntimeError::NotAModule(status)
    } else if says(&["no parameter found", "no provider registered"]) {
        RuntimeError::MissingParameter(status)
    } else if says(&["parameter `"]) && says(&["out of bounds"]) {
        RuntimeError::ShortParameter(status)
    } else {
        RuntimeError::Load(status)
    }
}

/// An argument or a result of a call, as IREE's virtual machine represents it.
#[derive(Debug)]
pub enum VmValue {
    /// A tensor. A call consumes its arguments, and no two results share memory.
    Buffer(Buffer),
    /// An integer in host memory. Integers in host memory avoid transfers to and from the device.
    I32(i32),
}

impl From<Buffer> for VmValue {
    fn from(buffer: Buffer) -> Self {
        Self::Buffer(buffer)
    }
}

impl From<i32> for VmValue {
    fn from(value: i32) -> Self {
        Self::I32(value)
    }
}

impl VmValue {
    pub fn buffer(self) -> Option<Buffer> {
        match self {
            Self::Buffer(buffer) => Some(buffer),
            Self::I32(_) => None,
        }
    }

    pub fn i32(self) -> Option<i32> {
        match self {
            Self::I32(value) => Some(value),
            Self::Buffer(_) => None,
        }
    }
}

#[derive(Clone)]
pub struct VmFunction {
    program: VmModule,
    index: usize,
}

impl VmFunction {
    /// MLIR; empty if the module does not contain it.
    pub fn declaration(&self) -> &str {
        &self.export().declaration
    }

    /// Waits for the results.
    pub fn call(&self, arguments: Vec<VmValue>) -> Result<Vec<VmValue>, RuntimeError> {
        let Inner { raw, runtime, .. } = &*self.program.0;
        let Export { ordinal, name, declaration, arguments: expected } = self.export();
        if arguments.len() != *expected {
            let (function, declaration) = (name.clone(), declaration.clone());
            return Err(RuntimeError::Arity {
                function,
                expected: *expected,
                found: arguments.len(),
                declaration,
            });
        }
        let failed = |status| {
            let (function, declaration) = (name.clone(), declaration.clone());
            RuntimeError::Call { function, status, declaration }
        };
        let mut call = ffi::Call::new(raw, *ordinal).map_err(failed)?;
        for (index, argument) in arguments.into_iter().enumerate() {
            match argument {
                VmValue::Buffer(buffer) if !buffer.runtime().is(runtime) => {
                    return Err(RuntimeError::OtherRuntime { function: name.clone(), index });
                }
                VmValue::Buffer(buffer) => call.push_buffer(buffer.into_raw()),
                VmValue::I32(value) => call.push_i32(value),
            }
            .map_err(failed)?;
        }
        let mut taken = Taken::default();
        let results = call.invoke().map_err(failed)?.into_iter().enumerate();
        // After each call, since a device keeps account of a few thousand functions only.
        if runtime.is_watched() {
            runtime.raw().note().map_err(failed)?;
        }
        results
            .map(|(index, value)| match value {
                ffi::RawValue::I32(value) => Ok(VmValue::I32(value)),
                ffi::RawValue::Buffer(raw) => {
                    let buffer = Buffer::from_raw(runtime, raw);
                    let buffer = buffer.ok_or(RuntimeError::ResultType { function: name.clone(), index })?;
                    taken.owned(buffer).map(VmValue::Buffer)
                }
            })
            .collect()
    }

    fn export(&self) -> &Export {
        &self.program.0.exports[self.index]
    }
}

/// The memory of a call's results. IREE can return one buffer several times, and constants and mapped
/// parameters without a copy. A later call that updates such a result in place would overwrite the other, so
/// shared results are copied.
#[derive(Default)]
struct Taken(HashMap<usize, Vec<Range<usize>>>);

impl Taken {
    fn owned(&mut self, buffer: Buffer) -> Result<Buffer, RuntimeError> {
        let (allocation, offset) = buffer.address();
        let range = offset..offset + buffer.ty().bytes();
        let ranges = self.0.entry(allocation).or_default();
        let overlaps = ranges.iter().any(|other| other.start < range.end && range.start < other.end);
        if overlaps || !buffer.is_writable() {
            return buffer.separate();
        }
        ranges.push(range);
        Ok(buffer)
    }
}
