//! Starts the next decode call before the host has read the token of the last call. So the device need not wait for
//! the host.
//!
//! The call takes the most likely token, which is right if the caller chooses this token. Otherwise the caller's own
//! call computes the same position again: a state with a slot for each position only has a wrong vector in a slot
//! after the last position until then.

use std::cell::RefCell;
use std::rc::Rc;

use ops::TensorType;
use pjrt::PjrtBuffer;
use trace::{Role, Signature};

use crate::GenerateError;
use crate::executor::CallArgument;
use crate::xla::XlaBuffer;

/// A tensor on the devices. A clone refers to the same tensor, which a call may replace by the tensor after the
/// next token.
#[derive(Clone)]
pub struct DeviceTensor(Rc<Inner>);

struct Inner {
    /// `None` after a call has taken the tensor.
    buffer: RefCell<Option<PjrtBuffer>>,
    /// The bytes of a small tensor, once the host has read them.
    bytes: RefCell<Option<Vec<u8>>>,
}

/// The largest number of bytes that the host keeps of a tensor.
const SMALL: usize = 256;

impl DeviceTensor {
    pub(crate) fn new(buffer: PjrtBuffer) -> Self {
        Self(Rc::new(Inner { buffer: RefCell::new(Some(buffer)), bytes: RefCell::new(None) }))
    }

    pub(crate) fn take(&self) -> Result<PjrtBuffer, GenerateError> {
        self.0.buffer.take().ok_or_else(lost)
    }

    fn put(&self, buffer: PjrtBuffer) {
        self.0.bytes.take();
        self.0.buffer.replace(Some(buffer));
    }

    pub(crate) fn with<T, E: Into<GenerateError>>(
        &self,
        act: impl FnOnce(&PjrtBuffer) -> Result<T, E>,
    ) -> Result<T, GenerateError> {
        act(self.0.buffer.borrow().as_ref().ok_or_else(lost)?).map_err(Into::into)
    }

    /// All bytes. The bytes of a small tensor are copied only once.
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

    /// The bytes of an element.
    pub(crate) fn element(&self, index: usize) -> Result<Vec<u8>, GenerateError> {
        self.with(|buffer| buffer.read_element(index))
    }

    fn is(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

/// A failed call has taken the tensor.
fn lost() -> GenerateError {
    let why = "has lost its state in a call that failed; load the model again".into();
    GenerateError::EntryPoint { name: "decode".into(), why }
}

/// The arguments and results of a decode call that can start early.
pub(crate) struct Ahead {
    pub tokens: usize,
    pub start: usize,
    pub count: usize,
    /// The type of the tokens.
    pub ty: TensorType,
    /// For each tensor of the state, the indices of its argument and its result.
    pub states: Vec<(usize, usize)>,
    pub token: usize,
    /// Whether start and count are single numbers.
    pub is_scalar: bool,
    /// The number of positions that the state has slots for.
    context: usize,
}

impl Ahead {
    /// The arguments and results of an entry point, if its calls can start early: each call takes one token of each
    /// sequence, and the state has a slot for each position.
    pub(crate) fn of(entry: &Signature) -> Option<Self> {
        let argument =
            |is: &dyn Fn(Role) -> bool| entry.arguments.iter().position(|argument| is(argument.role));
        let result = |role: Role| entry.results.iter().position(|result| result.role == role);
        let tokens = argument(&|role| role == Role::Tokens)?;
        let start = argument(&|role| matches!(role, Role::Start { .. }))?;
        let count = argument(&|role| role == Role::Count)?;
        let Role::Start { context } = entry.arguments[start].role else { return None };
        let ty = entry.arguments[tokens].ty.clone();
        let token = result(Role::Token)?;
        let mut states = Vec::new();
        for (index, argument) in entry.arguments.iter().enumerate() {
            if [tokens, start, count].contains(&index) {
                continue;
            }
            let Role::State { part, .. } = argument.role else { return None };
            let (slots, _) = part.slots(context, argument.ty.rank())?;
            if slots != context {
                return None;
            }
            states.push((index, result(argument.role)?));
        }
        let one_token = ty.shape.get(1) == Some(&1) && ty.count() == entry.results[token].ty.count();
        let is_scalar = entry.arguments[start].ty.rank() == 0;
        one_token.then_some(Self { tokens, start, count, ty, states, token, is_scalar, context })
    }
}

/// What the host passes to a decode call.
pub(crate) struct Passed {
    tokens: Vec<i32>,
    pub start: Vec<i32>,
    pub count: Vec<i32>,
    states: Vec<DeviceTensor>,
}

impl Passed {
    /// The values of arguments, if the numbers are on the host and the state is on the device.
    pub(crate) fn of(ahead: &Ahead, arguments: &[CallArgument<XlaBuffer>]) -> Option<Self> {
        let numbers = |index: usize| match arguments.get(index)? {
            CallArgument::Scalar(number) => Some(vec![*number]),
            CallArgument::Buffer(XlaBuffer::Host(_, bytes)) => Some(integers(bytes)),
            CallArgument::Buffer(_) => None,
        };
        let state = |&(index, _): &(usize, usize)| match arguments.get(index)? {
            CallArgument::Buffer(XlaBuffer::Devices(tensor)) => Some(tensor.clone()),
            _ => None,
        };
        Some(Self {
            tokens: numbers(ahead.tokens)?,
            start: numbers(ahead.start)?,
            count: numbers(ahead.count)?,
            states: ahead.states.iter().map(state).collect::<Option<_>>()?,
        })
    }

    /// The starts of the next call; `None` if the state has no slot for the next token.
    pub(crate) fn next(&self, ahead: &Ahead) -> Option<Vec<i32>> {
        let next: Vec<i32> = self.start.iter().zip(&self.count).map(|(start, count)| start + count).collect();
        let fits = |(&start, &count): (&i32, &i32)| (start + count) as usize <= ahead.context;
        next.iter().zip(&self.count).all(fits).then_some(next)
    }
}

/// The call after the last decode call.
pub(crate) struct Expected {
    pub entry: String,
    pub start: Vec<i32>,
    pub count: Vec<i32>,
    /// The state before the call; if the call has started, the state after the call.
    pub states: Vec<DeviceTensor>,
    /// The most likely token of each sequence.
    pub token: DeviceTensor,
    /// The results of the call, if it has started.
    pub results: Option<Vec<DeviceTensor>>,
}

impl Expected {
    /// Whether a call is the expected one. The host must have read the tokens.
    pub(crate) fn is(&self, entry: &str, passed: &Passed) -> bool {
        let Some(tokens) = self.token.0.bytes.borrow().as_deref().map(integers) else { return false };
        self.entry == entry
            && (&self.start, &self.count) == (&passed.start, &passed.count)
            && self.states.len() == passed.states.len()
            && self.states.iter().zip(&passed.states).all(|(one, other)| one.is(other))
            && tokens.len() == passed.tokens.len()
            && tokens.iter().zip(&passed.tokens).enumerate().all(|(row, (expected, token))| {
                expected == token || self.count.get(row).is_some_and(|&count| count == 0)
            })
    }

    /// The results of the call, whose state is in `states`.
    pub(crate) fn started(
        results: Vec<PjrtBuffer>,
        ahead: &Ahead,
        states: &[DeviceTensor],
    ) -> Vec<DeviceTensor> {
        let of_state = |at: usize| ahead.states.iter().position(|&(_, result)| result == at);
        let result = |(at, buffer): (usize, PjrtBuffer)| match of_state(at) {
            Some(state) => {
                states[state].put(buffer);
                states[state].clone()
            }
            None => DeviceTensor::new(buffer),
        };
        results.into_iter().enumerate().map(result).collect()
    }
}

fn integers(bytes: &[u8]) -> Vec<i32> {
    bytes.chunks_exact(4).map(|bytes| i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect()
}
