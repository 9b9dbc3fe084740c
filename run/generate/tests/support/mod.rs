//! A network in plain Rust whose logits depend on all tokens that it read, by way of its state. Any wrong state gives other
//! logits. The partition of tokens into calls does not matter.
#![allow(dead_code, clippy::unwrap_used, reason = "helpers of several tests, which fail as tests do")]

use std::cell::Cell;
use std::ops::ControlFlow;

use ops::{ElementType, TensorType};
use trace::{
    Argument, KvFormat, KvState, Part, RecurrentState, RingState, Role, Signature, StateKind, StateName,
};
use tracewright_generate::{CallArgument, Executor, GenerateError, Network};

pub const CONTEXT: usize = 600;
pub const CHUNK: usize = 16;
/// Tokens of the entry point that verifies drafts.
pub const WIDTH: usize = 8;
/// The most tokens of a text that an extended network reads as others do.
pub const ORIGINAL: usize = 40;
const WINDOW: usize = 5;

pub fn go_on<T>(_: T) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// The parts of a network's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layers {
    Kv,
    KvAndRing,
    All,
    /// The state of a text with more than [`ORIGINAL`] tokens is another one from the first token on.
    KvExtended,
    AllExtended,
}

pub const LAYERS: [Layers; 3] = [Layers::Kv, Layers::KvAndRing, Layers::All];
pub const ALL_LAYERS: [Layers; 5] =
    [Layers::Kv, Layers::KvAndRing, Layers::All, Layers::KvExtended, Layers::AllExtended];

pub struct Hashing {
    vocabulary: usize,
    batch: usize,
    /// Whether entry points serve some of the rows.
    parts: bool,
    states: Vec<StateKind>,
    extended: bool,
    /// How many calls there were.
    pub calls: Cell<usize>,
    /// Tokens that the calls took, padding included.
    pub positions: Cell<usize>,
}

/// A network whose calls serve all rows.
pub fn hashing(vocabulary: usize, batch: usize, layers: Layers) -> Network<Hashing> {
    network(vocabulary, batch, false, layers)
}

/// A network whose calls also serve some of the rows: a prompt or a draft one, and tokens one, two, four, … or all.
pub fn hashing_parts(vocabulary: usize, batch: usize, layers: Layers) -> Network<Hashing> {
    network(vocabulary, batch, true, layers)
}

fn network(vocabulary: usize, batch: usize, parts: bool, layers: Layers) -> Network<Hashing> {
    let kv = StateKind::Kv(KvState { format: KvFormat::Computed });
    let ring = StateKind::Ring(RingState { window: WINDOW, slack: CHUNK, format: KvFormat::Computed });
    let states = match layers {
        Layers::Kv | Layers::KvExtended => vec![kv],
        Layers::KvAndRing => vec![kv, ring],
        Layers::All | Layers::AllExtended => vec![kv, ring, StateKind::Recurrent(RecurrentState)],
    };
    let extended = matches!(layers, Layers::KvExtended | Layers::AllExtended);
    let (calls, positions) = (Cell::new(0), Cell::new(0));
    let executor = Hashing { vocabulary, batch, parts, states, extended, calls, positions };
    let signatures = executor.signatures();
    Network::on(executor, &signatures).unwrap()
}

/// A number that looks random.
pub fn mixed(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_add(0x7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Hashing {
    fn state_type(kind: StateKind, batch: usize) -> TensorType {
        let slots = match kind {
            StateKind::Recurrent(_) => return TensorType::new(ElementType::I32, [batch, 1]),
            kind => kind.slots(CONTEXT).unwrap(),
        };
        TensorType::new(ElementType::I32, [batch, 1, slots, 1])
    }

    fn signatures(&self) -> Vec<Signature> {
        let of = |name: &str, role, element, shape: &[usize]| Argument {
            name: name.into(),
            role,
            ty: TensorType::new(element, shape),
            axes: Vec::new(),
        };
        let (i32, vocabulary) = (ElementType::I32, self.vocabulary);
        let states = |batch: usize| {
            self.states.iter().zip(0..).map(move |(&kind, layer)| {
                let part = Part { kind, name: StateName::new("seen").unwrap() };
                let ty = Self::state_type(kind, batch);
                of(&format!("seen{layer}"), Role::State { layer, part }, i32, &ty.shape)
            })
        };
        let entry = |name: &str, batch: usize, chunk: usize| {
            let each = name.starts_with("verify");
            let (logits, token) = if each {
                (vec![batch, chunk, vocabulary], vec![batch, chunk])
            } else {
                (vec![batch, vocabulary], vec![batch])
            };
            let mut arguments = vec![
                of("tokens", Role::Tokens, i32, &[batch, chunk]),
                of("start", Role::Start { context: CONTEXT }, i32, &[batch]),
                of("count", Role::Count, i32, &[batch]),
            ];
            arguments.extend(states(batch));
            let extended = of("above", Role::Extended { original: ORIGINAL }, i32, &[batch]);
            arguments.extend(self.extended.then_some(extended));
            let mut results = vec![
                of("logits", Role::Logits, ElementType::F32, &logits),
                of("token", Role::Token, i32, &token),
            ];
            results.extend(states(batch));
            Signature { name: name.into(), arguments, results }
        };
        let batch = self.batch;
        let mut entries = vec![entry("decode", batch, 1), entry("verify", batch, WIDTH)];
        if self.parts {
            entries.extend([entry("prefill_1", 1, CHUNK), entry("verify_1", 1, WIDTH)]);
            let rows = (0..).map(|i| 1 << i).take_while(|&rows| rows < batch);
            entries.extend(rows.map(|rows| entry(&format!("decode_{rows}"), rows, 1)));
        } else {
            entries.insert(0, entry("prefill", batch, CHUNK))
        }
        entries
    }

    /// The logits after position `at` of a row, by what its state holds.
    fn logits(&self, states: &[Vec<i32>], (row, rows): (usize, usize), at: usize) -> Vec<f32> {
        let mut hash = 1;
        let (mut last, mut before) = (0, 0);
        for (&kind, state) in self.states.iter().zip(states) {
            let slots = state.len() / rows;
            let own = &state[row * slots..][..slots];
            match kind {
                StateKind::Kv(_) => {
                    own[..=at].iter().for_each(|&token| hash = mixed(hash, token as u64));
                    (last, before) = (own[at], own[at.saturating_sub(1)]);
                }
                StateKind::Ring(_) => {
                    let window = (at + 1).saturating_sub(WINDOW)..=at;
                    window.for_each(|position| hash = mixed(hash, own[position % slots] as u64));
                }
                StateKind::Recurrent(_) => hash = mixed(hash, own[0] as u64),
            }
        }
        // What follows two tokens is mostly the same, so that texts repeat.
        let usual = mixed(last as u64 / 3, before as u64 % 2) % self.vocabulary as u64;
        let rare = hash.is_multiple_of(6);
        (0..self.vocabulary as u64)
            .map(|token| {
                let noise = (mixed(hash, token) >> 40) as f32 / (1u64 << 24) as f32;
                if token == usual && !rare { noise + 3.0 } else { noise * 2.0 }
            })
            .collect()
    }
}

fn numbers(bytes: &[u8]) -> Vec<i32> {
    bytes.as_chunks().0.iter().copied().map(i32::from_le_bytes).collect()
}

impl Executor for Hashing {
    type Buffer = Vec<u8>;

    /// Garbage: position 0 is empty whatever the buffers hold.
    fn zeros(&self, ty: &TensorType) -> Result<Vec<u8>, GenerateError> {
        Ok((0..4 * ty.count()).map(|i| (i % 7) as u8).collect())
    }

    fn upload(&self, _: &TensorType, bytes: &[u8]) -> Result<Vec<u8>, GenerateError> {
        Ok(bytes.to_vec())
    }

    fn read(&self, buffer: &Vec<u8>) -> Result<Vec<u8>, GenerateError> {
        Ok(buffer.clone())
    }

    fn read_element(&self, buffer: &Vec<u8>, index: usize) -> Result<Vec<u8>, GenerateError> {
        Ok(buffer[4 * index..][..4].to_vec())
    }

    fn call(&self, name: &str, arguments: Vec<CallArgument<Vec<u8>>>) -> Result<Vec<Vec<u8>>, GenerateError> {
        let mut arguments = arguments.into_iter().map(|argument| match argument {
            CallArgument::Buffer(bytes) => numbers(&bytes),
            CallArgument::Scalar(number) => vec![number],
        });
        let mut next = || arguments.next().unwrap();
        let (tokens, start, count) = (next(), next(), next());
        let mut states: Vec<Vec<i32>> = self.states.iter().map(|_| next()).collect();
        let rows = start.len();
        let extended = if self.extended { next() } else { vec![0; rows] };
        let chunk = tokens.len() / rows;
        self.calls.set(self.calls.get() + 1);
        self.positions.set(self.positions.get() + tokens.len());
        let nothing = vec![0.0; self.vocabulary];
        let mut after = vec![nothing.clone(); tokens.len()];
        for row in 0..rows {
            // Position 0 is empty, with tokens and without.
            for (_, state) in self
                .states
                .iter()
                .zip(&mut states)
                .filter(|(kind, _)| start[row] == 0 && matches!(kind, StateKind::Recurrent(_)))
            {
                state[row] = 0;
            }
            for i in 0..count[row] as usize {
                let position = start[row] as usize + i;
                let token = tokens[row * chunk + i] + 1000 * extended[row];
                for (&kind, state) in self.states.iter().zip(&mut states) {
                    let slots = state.len() / rows;
                    let own = &mut state[row * slots..][..slots];
                    match kind {
                        StateKind::Recurrent(_) => {
                            let before = if position == 0 { 0 } else { own[0] };
                            own[0] = mixed(before as u64, token as u64) as i32;
                        }
                        _ => own[position % slots] = token,
                    }
                }
                after[row * chunk + i] = self.logits(&states, (row, rows), position);
            }
        }
        if !name.starts_with("verify") {
            let last = |row: usize| match count[row] as usize {
                0 => nothing.clone(),
                count => after[row * chunk + count - 1].clone(),
            };
            after = (0..rows).map(last).collect();
        }
        let best = |row: &Vec<f32>| {
            (1..row.len()).fold(0, |best, token| if row[token] > row[best] { token } else { best }) as u32
        };
        let favoured = after.iter().flat_map(|row| best(row).to_le_bytes()).collect();
        let logits = after.iter().flatten().flat_map(|logit| logit.to_le_bytes()).collect();
        let states = states.iter().map(|state| state.iter().flat_map(|x| x.to_le_bytes()).collect());
        Ok([logits, favoured].into_iter().chain(states).collect())
    }
}
