//! Starts the next decode call before the host has read the last result, so the device never waits for the
//! host. The early call processes the most likely token. If the sampler chooses another, a second call
//! computes the position again. Until then the KV cache has a wrong vector after the last valid position,
//! which no call reads.

use ops::TensorType;
use pjrt::PjrtBuffer;
use trace::{Role, Signature};

use crate::device_tensor::{DeviceTensor, XlaBuffer};
use crate::executor::CallArgument;
use crate::network::integers;

/// The arguments and results of a decode call that can start early.
pub(crate) struct Ahead {
    pub tokens: usize,
    pub start: usize,
    pub count: usize,
    /// The argument that selects the rotary embedding; it is equal in the next call, unless that restarts.
    pub extended: Option<usize>,
    /// The tensor type of the argument that contains the token ids.
    pub ty: TensorType,
    /// For each state tensor, the index of its argument and of its result.
    pub states: Vec<(usize, usize)>,
    pub token: usize,
    /// The tensor type of `start` and `count`: the start position and number of tokens of each sequence.
    pub numbers: TensorType,
    /// The number of positions for which the state has memory.
    context: usize,
}

impl Ahead {
    /// Finds an entry point's arguments and results. The result is `None` if its calls cannot start early: it
    /// takes one token per sequence, and the state has memory for every position.
    pub(crate) fn of(entry: &Signature) -> Option<Self> {
        let argument =
            |is: &dyn Fn(Role) -> bool| entry.arguments.iter().position(|argument| is(argument.role));
        let result = |role: Role| entry.results.iter().position(|result| result.role == role);
        let tokens = argument(&|role| role == Role::Tokens)?;
        let start = argument(&|role| matches!(role, Role::Start { .. }))?;
        let count = argument(&|role| role == Role::Count)?;
        let extended = argument(&|role| matches!(role, Role::Extended { .. }));
        let Role::Start { context } = entry.arguments[start].role else { return None };
        let ty = entry.arguments[tokens].ty.clone();
        let token = result(Role::Token)?;
        let mut states = Vec::new();
        for (index, argument) in entry.arguments.iter().enumerate() {
            if [tokens, start, count].contains(&index) || extended == Some(index) {
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
        let numbers = entry.arguments[start].ty.clone();
        one_token.then_some(Self { tokens, start, count, extended, ty, states, token, numbers, context })
    }
}

/// The values that the host passes to a decode call.
pub(crate) struct Passed {
    tokens: Vec<i32>,
    pub start: Vec<i32>,
    pub count: Vec<i32>,
    pub extended: Vec<i32>,
    states: Vec<DeviceTensor>,
}

impl Passed {
    /// Collects the token ids, the positions and the state from the arguments of a decode call. The result is
    /// `None` unless the token ids and positions are in host memory and the state is on the device.
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
            extended: ahead.extended.map_or(Some(Vec::new()), numbers)?,
            states: ahead.states.iter().map(state).collect::<Option<_>>()?,
        })
    }

    /// Returns the start positions of the next call, or `None` if the state has no memory for another token.
    pub(crate) fn next(&self, ahead: &Ahead) -> Option<Vec<i32>> {
        let next: Vec<i32> = self.start.iter().zip(&self.count).map(|(start, count)| start + count).collect();
        let fits = |(&start, &count): (&i32, &i32)| (start + count) as usize <= ahead.context;
        next.iter().zip(&self.count).all(fits).then_some(next)
    }
}

/// The decode call that Tracewright expects after the last decode call.
pub(crate) struct Expected {
    pub entry: String,
    pub start: Vec<i32>,
    pub count: Vec<i32>,
    pub extended: Vec<i32>,
    /// The state that the expected call takes, and after its start the state that it returns.
    pub states: Vec<DeviceTensor>,
    /// The most likely next token of each sequence.
    pub token: DeviceTensor,
    /// The results of the decode call that was started early, if there is such a call.
    pub results: Option<Vec<DeviceTensor>>,
}

impl Expected {
    /// Whether the call has the expected arguments. False until the host has read the expected tokens.
    pub(crate) fn is(&self, entry: &str, passed: &Passed) -> bool {
        let Some(tokens) = self.token.kept_integers() else { return false };
        self.entry == entry
            && (&self.start, &self.count) == (&passed.start, &passed.count)
            && self.extended == passed.extended
            && self.states.len() == passed.states.len()
            && self.states.iter().zip(&passed.states).all(|(one, other)| one.is(other))
            && tokens.len() == passed.tokens.len()
            && tokens.iter().zip(&passed.tokens).enumerate().all(|(row, (expected, token))| {
                expected == token || self.count.get(row).is_some_and(|&count| count == 0)
            })
    }

    /// Returns the results of the expected call, already started, and stores the new state in `states`.
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
