//! A loaded network, called with tensors of the host.

use generate::Network;
use ops::{Array, TensorType};
use runtime::{Buffer, Runtime};
use trace::{Argument, Role, Signature};

/// A compiled network with its weights: its entry points can be called.
pub struct Program {
    runtime: Runtime,
    program: runtime::VmModule,
    signatures: Vec<Signature>,
}

/// Why a call was not made, or failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// There is no such entry point.
    #[error("there is no entry point `{name}`; there are {entries:?}")]
    NoEntry {
        /// The name asked for.
        name: String,
        /// The names there are.
        entries: Vec<String>,
    },
    /// Too many arguments, or too few.
    #[error("`{entry}` takes {expected} ({}), found {found} arguments", .arguments.join(", "))]
    Count {
        /// The entry point.
        entry: String,
        /// How many it takes.
        expected: usize,
        /// What it takes.
        arguments: Vec<String>,
        /// How many were given.
        found: usize,
    },
    /// A name that is no argument's, or one that is missing or given twice.
    #[error("`{entry}`: {what} `{name}`; it takes {}", .arguments.join(", "))]
    Name {
        /// The entry point.
        entry: String,
        /// What is wrong with it.
        what: &'static str,
        /// The name.
        name: String,
        /// What the entry point takes.
        arguments: Vec<String>,
    },
    /// An argument of another type.
    #[error("`{entry}`: argument `{name}` is {found}, expected {expected}")]
    Argument {
        /// The entry point.
        entry: String,
        /// The argument.
        name: String,
        /// What it should be.
        expected: String,
        /// What was given.
        found: String,
    },
    /// The call failed.
    #[error(transparent)]
    Runtime(#[from] runtime::RuntimeError),
}

impl Program {
    /// The entry points of a loaded module.
    pub fn new(runtime: &Runtime, program: runtime::VmModule, signatures: Vec<Signature>) -> Self {
        Self { runtime: runtime.clone(), program, signatures }
    }

    /// What can be called, and how.
    pub fn signatures(&self) -> &[Signature] {
        &self.signatures
    }

    /// The program as a network that predicts the next token.
    ///
    /// # Errors
    /// If an entry point lacks a role.
    pub fn network(&self) -> Result<Network, generate::GenerateError> {
        Network::new(&self.runtime, &self.program, &self.signatures)
    }

    /// The results of an entry point for arguments in their order.
    ///
    /// # Errors
    /// What is wrong with the arguments, all of it checked before the call; or a failure of the call.
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

    /// The results of an entry point for arguments by name, in any order.
    ///
    /// # Errors
    /// See [`call`](Self::call).
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

/// What an entry point takes, as messages show it.
fn listed(signature: &Signature) -> Vec<String> {
    signature.arguments.iter().map(|argument| format!("`{argument}`")).collect()
}

/// Compares an argument with what is declared: element type, shape, and the names of axes where it has some.
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
