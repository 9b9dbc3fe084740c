//! [`Program`] is a loaded network that you call with tensors in host memory.

use generate::{CallArgument, Executor as _, GenerateError, Iree, Network, Xla};
use ops::{Array, TensorType};
use runtime::{Buffer, Runtime, RuntimeError};
use trace::{Argument, Role, Signature};

/// A compiled network with its weights, loaded on a device. You can call the entry points of a `Program`.
pub struct Program {
    loaded: LoadedProgram,
    signatures: Vec<Signature>,
}

enum LoadedProgram {
    Iree(Iree),
    Xla(Xla),
}

/// A language model that IREE or XLA runs.
pub enum LoadedNetwork {
    /// A network on a device of IREE.
    Iree(Network),
    /// A network on the devices of a PJRT plugin.
    Xla(Network<Xla>),
}

/// The reason why a call was rejected, or failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("the program has no entry point `{name}`; its entry points are {entries:?}")]
    NoEntry { name: String, entries: Vec<String> },
    /// The caller passed too many or too few arguments.
    #[error("the entry point `{entry}` takes {expected} arguments ({}), found {found}", .arguments.join(", "))]
    Count { entry: String, expected: usize, arguments: Vec<String>, found: usize },
    /// Unknown, missing or passed twice.
    #[error("the entry point `{entry}`: {what} `{name}`; its arguments are {}", .arguments.join(", "))]
    Name {
        entry: String,
        /// The end of the error message, which describes the problem with the argument's name.
        what: &'static str,
        name: String,
        arguments: Vec<String>,
    },
    /// A wrong element type, shape or axis name.
    #[error("the entry point `{entry}`: the argument `{name}` is {found}, expected {expected}")]
    Argument {
        entry: String,
        name: String,
        /// The type, the shape and the axes that the entry point declares for the argument.
        expected: String,
        /// Type, shape and axes of the passed value.
        found: String,
    },
    #[error(transparent)]
    Runtime(#[from] runtime::RuntimeError),
    #[error(transparent)]
    Generate(#[from] GenerateError),
}

impl Program {
    pub fn new(
        runtime: &Runtime,
        program: &runtime::VmModule,
        signatures: Vec<Signature>,
    ) -> Result<Self, RuntimeError> {
        Ok(Self::on_iree(Iree::new(runtime, program)?, signatures))
    }

    pub fn on_iree(executor: Iree, signatures: Vec<Signature>) -> Self {
        Self { loaded: LoadedProgram::Iree(executor), signatures }
    }

    pub fn on_xla(executor: Xla, signatures: Vec<Signature>) -> Self {
        Self { loaded: LoadedProgram::Xla(executor), signatures }
    }

    pub fn signatures(&self) -> &[Signature] {
        &self.signatures
    }

    /// Predicts the next token; only for programs in IREE.
    pub fn network(&self) -> Result<Network, GenerateError> {
        match &self.loaded {
            LoadedProgram::Iree(executor) => Network::on(executor.clone(), &self.signatures),
            LoadedProgram::Xla(_) => Err(GenerateError::OtherEngine),
        }
    }

    /// Converts a program for IREE or XLA to a language model that predicts the next token.
    pub fn into_network(self) -> Result<LoadedNetwork, GenerateError> {
        Ok(match self.loaded {
            LoadedProgram::Iree(..) => LoadedNetwork::Iree(self.network()?),
            LoadedProgram::Xla(executor) => LoadedNetwork::Xla(Network::on(executor, &self.signatures)?),
        })
    }

    /// In the declared order. Arguments are checked before the call.
    pub fn call(&self, entry: &str, arguments: &[Array]) -> Result<Vec<Array>, CallError> {
        let signature = self.signature(entry)?;
        if arguments.len() != signature.arguments.len() {
            return Err(CallError::Count {
                entry: entry.into(),
                expected: signature.arguments.len(),
                arguments: listed(signature),
                found: arguments.len(),
            });
        }
        for (array, argument) in arguments.iter().zip(&signature.arguments) {
            check(entry, array, argument)?;
        }
        match &self.loaded {
            LoadedProgram::Iree(executor) => in_iree(executor, signature, arguments),
            LoadedProgram::Xla(executor) => in_xla(executor, signature, arguments),
        }
    }

    /// In any order.
    pub fn call_named(&self, entry: &str, arguments: &[(&str, Array)]) -> Result<Vec<Array>, CallError> {
        let signature = self.signature(entry)?;
        let refuse = |what, name: &str| CallError::Name {
            entry: entry.into(),
            what,
            name: name.into(),
            arguments: listed(signature),
        };
        let is_known = |name: &str| signature.arguments.iter().any(|argument| argument.name == name);
        if let Some((name, _)) = arguments.iter().find(|(name, _)| !is_known(name)) {
            return Err(refuse("there is no argument", name));
        }
        let mut ordered = Vec::with_capacity(signature.arguments.len());
        for argument in &signature.arguments {
            let mut given = arguments.iter().filter(|(name, _)| *name == argument.name);
            ordered.push(match (given.next(), given.next()) {
                (Some((_, array)), None) => array.clone(),
                (None, _) => return Err(refuse("there is no value for the argument", &argument.name)),
                (Some(_), Some(_)) => return Err(refuse("there are two values for", &argument.name)),
            });
        }
        self.call(entry, &ordered)
    }

    fn signature(&self, name: &str) -> Result<&Signature, CallError> {
        self.signatures.iter().find(|signature| signature.name == name).ok_or_else(|| CallError::NoEntry {
            name: name.into(),
            entries: self.signatures.iter().map(|signature| signature.name.clone()).collect(),
        })
    }
}

fn in_iree(executor: &Iree, signature: &Signature, arguments: &[Array]) -> Result<Vec<Array>, CallError> {
    let mut passed = Vec::with_capacity(arguments.len());
    for (array, argument) in arguments.iter().zip(&signature.arguments) {
        passed.push(if argument.is_host_scalar() {
            host_scalar(array).into()
        } else {
            Buffer::from_bytes(executor.runtime(), array.ty(), array.bytes())?.into()
        });
    }
    let results = executor.function(&signature.name)?.call(passed)?;
    let array = |(value, result): (runtime::VmValue, &Argument)| -> Result<Array, CallError> {
        Ok(match value {
            runtime::VmValue::Buffer(buffer) => {
                Array::from_bytes(buffer.ty().clone(), axes(result), buffer.read()?)
            }
            runtime::VmValue::I32(number) => {
                let ty = TensorType::new(ops::ElementType::I32, []);
                Array::from_bytes(ty, axes(result), number.to_le_bytes().into())
            }
        })
    };
    results.into_iter().zip(&signature.results).map(array).collect()
}

fn in_xla(executor: &Xla, signature: &Signature, arguments: &[Array]) -> Result<Vec<Array>, CallError> {
    let mut passed = Vec::with_capacity(arguments.len());
    for (array, argument) in arguments.iter().zip(&signature.arguments) {
        passed.push(if argument.is_host_scalar() {
            CallArgument::Scalar(host_scalar(array))
        } else {
            CallArgument::Buffer(executor.upload(array.ty(), array.bytes())?)
        });
    }
    let results = executor.call(&signature.name, passed)?;
    let array = |(buffer, result): (_, &Argument)| -> Result<Array, CallError> {
        Ok(Array::from_bytes(result.ty.clone(), axes(result), executor.read(&buffer)?))
    };
    results.into_iter().zip(&signature.results).map(array).collect()
}

fn host_scalar(array: &Array) -> i32 {
    array.to_vec::<i32>().map_or(0, |numbers| numbers[0])
}

fn axes(argument: &Argument) -> Vec<String> {
    argument.axes.iter().map(|axis| axis.to_string()).collect()
}

/// Formats the arguments of an entry point for an error message.
fn listed(signature: &Signature) -> Vec<String> {
    signature.arguments.iter().map(|argument| format!("`{argument}`")).collect()
}

/// Element type, shape, and the names of axes if the value has them.
fn check(entry: &str, array: &Array, argument: &Argument) -> Result<(), CallError> {
    let named = array.axes().iter().map(String::as_str).eq(argument.axes.iter().map(|axis| &**axis));
    if *array.ty() == argument.ty && (array.axes().is_empty() || named) {
        return Ok(());
    }
    let text = |ty: &TensorType, axes: Vec<&str>| {
        if axes.is_empty() { format!("`{ty}`") } else { format!("`{ty}` with the axes {}", axes.join(", ")) }
    };
    let role = match argument.role {
        Role::Plain => String::new(),
        role => format!(" ({role})"),
    };
    Err(CallError::Argument {
        entry: entry.into(),
        name: argument.name.clone(),
        expected: text(&argument.ty, argument.axes.iter().map(|axis| &**axis).collect()) + &role,
        found: text(array.ty(), array.axes().iter().map(String::as_str).collect()),
    })
}
