//! [`Program`] is a loaded network that you call with tensors in host memory.

use generate::{GenerateError, Iree, Network};
use ops::{Array, TensorType};
use runtime::{Buffer, Runtime};
use trace::{Argument, Role, Signature};

/// A compiled network with its weights, loaded on a device. You call the entry points of the program.
pub struct Program {
    runtime: Runtime,
    program: runtime::VmModule,
    signatures: Vec<Signature>,
}

/// The reason why a call was rejected, or failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The program has no entry point of this name.
    #[error("there is no entry point `{name}`; there are {entries:?}")]
    NoEntry {
        /// The name that was asked for.
        name: String,
        /// The names of the entry points.
        entries: Vec<String>,
    },
    /// The number of arguments is wrong.
    #[error("the entry point `{entry}` takes {expected} arguments ({}), found {found}", .arguments.join(", "))]
    Count {
        /// Name of the entry point.
        entry: String,
        /// The number of arguments that the entry point takes.
        expected: usize,
        /// The arguments of the entry point, with their types.
        arguments: Vec<String>,
        /// The number of arguments that were given.
        found: usize,
    },
    /// A name does not belong to an argument, is missing or occurs twice.
    #[error("the entry point `{entry}`: {what} `{name}`; its arguments are {}", .arguments.join(", "))]
    Name {
        /// Name of the entry point.
        entry: String,
        /// The problem, as a phrase for the message.
        what: &'static str,
        /// The name of the argument.
        name: String,
        /// The entry point's arguments, with their types.
        arguments: Vec<String>,
    },
    /// An argument has another element type or shape.
    #[error("the entry point `{entry}`: the argument `{name}` is {found}, expected {expected}")]
    Argument {
        /// Name of the entry point.
        entry: String,
        /// Name of the argument in question.
        name: String,
        /// The declared type, shape and axes.
        expected: String,
        /// The given type, shape and axes.
        found: String,
    },
    /// IREE failed during the call.
    #[error(transparent)]
    Runtime(#[from] runtime::RuntimeError),
}

impl Program {
    /// Creates a program from a module that IREE has loaded.
    pub fn new(runtime: &Runtime, program: runtime::VmModule, signatures: Vec<Signature>) -> Self {
        Self { runtime: runtime.clone(), program, signatures }
    }

    /// The arguments and results of each entry point.
    pub fn signatures(&self) -> &[Signature] {
        &self.signatures
    }

    /// Returns the program as a language model that predicts the next token.
    ///
    /// # Errors
    /// Returns an error if an entry point or one of its roles is missing.
    pub fn network(&self) -> Result<Network, GenerateError> {
        Network::on(self.executor()?, &self.signatures)
    }

    /// The executor that calls the entry points.
    pub(crate) fn executor(&self) -> Result<Iree, GenerateError> {
        Iree::new(&self.runtime, &self.program)
    }

    /// Calls an entry point with arguments in their order, and returns the results.
    ///
    /// # Errors
    /// Returns an error if an argument is wrong, which the function checks before the call, or if the call
    /// fails.
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
        let mut passed = Vec::with_capacity(arguments.len());
        for (array, argument) in arguments.iter().zip(&signature.arguments) {
            check(entry, array, argument)?;
            passed.push(match argument.is_host_scalar() {
                true => array.to_vec::<i32>().map_or(0, |numbers| numbers[0]).into(),
                false => Buffer::from_bytes(&self.runtime, array.ty(), array.bytes())?.into(),
            });
        }
        let results = self.program.function(entry)?.call(passed)?;
        let array = |(value, result): (runtime::VmValue, &Argument)| -> Result<Array, CallError> {
            let axes = result.axes.iter().map(|axis| axis.to_string()).collect();
            Ok(match value {
                runtime::VmValue::Buffer(buffer) => {
                    Array::from_bytes(buffer.ty().clone(), axes, buffer.read()?)
                }
                runtime::VmValue::I32(number) => {
                    let ty = TensorType::new(ops::ElementType::I32, []);
                    Array::from_bytes(ty, axes, number.to_le_bytes().into())
                }
            })
        };
        results.into_iter().zip(&signature.results).map(array).collect()
    }

    /// Calls an entry point with named arguments in any order, and returns the results.
    ///
    /// # Errors
    /// Returns the same errors as [`call`](Self::call).
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

/// The arguments of an entry point, formatted for a message.
fn listed(signature: &Signature) -> Vec<String> {
    signature.arguments.iter().map(|argument| format!("`{argument}`")).collect()
}

/// Compares an argument with its declaration: element type, shape, and names of axes if the argument has
/// them.
fn check(entry: &str, array: &Array, argument: &Argument) -> Result<(), CallError> {
    let named = array.axes().iter().map(String::as_str).eq(argument.axes.iter().map(|axis| &**axis));
    if *array.ty() == argument.ty && (array.axes().is_empty() || named) {
        return Ok(());
    }
    let text = |ty: &TensorType, axes: Vec<&str>| match axes.is_empty() {
        true => format!("`{ty}`"),
        false => format!("`{ty}` with the axes {}", axes.join(", ")),
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
