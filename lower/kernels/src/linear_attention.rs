//! A kernel for linear attention, one token after another. Each number has the same operations, and so the
//! same bits, however calls divide the tokens.

use ops::TensorType;
use ops::ops::{LinearAttention, LinearAttentionSizes};

use crate::code::{Buffer, Code, Element, Type, Value};
use crate::kernel::{self, Kernel};
use crate::math;

const LANES: Type = Type::lanes(16, Element::F32);
const SCALAR: Type = Type::Scalar(Element::F32);

/// The value features in one pass over a state matrix: four vectors.
const BLOCK: usize = 64;

#[derive(Clone, Copy)]
struct Buffers<'k> {
    q: Buffer<'k>,
    k: Buffer<'k>,
    v: Buffer<'k>,
    decay: Buffer<'k>,
    rate: Buffer<'k>,
    state: Buffer<'k>,
    /// The new state matrices, and the outputs of the tokens.
    new: Buffer<'k>,
    outputs: Buffer<'k>,
}

/// The new state matrices, and the outputs of the tokens.
pub(crate) fn results(types: &[&TensorType]) -> [TensorType; 2] {
    let LinearAttentionSizes { sequences, tokens, heads, groups, keys, values } =
        LinearAttention::sizes(types[2], types[5]);
    [keys, tokens].map(|rows| TensorType::new(types[5].element, [sequences, heads, groups, rows, values]))
}

pub(crate) fn kernel(
    op: &LinearAttention,
    types: &[&TensorType],
) -> (String, impl FnOnce() -> Kernel + use<>) {
    let (delta, sizes, starts) = (op.delta, LinearAttention::sizes(types[2], types[5]), types[6].count());
    let LinearAttentionSizes { sequences, tokens, heads, groups, keys, values } = sizes;
    let name = format!(
        "linear_attention{}_{starts}x{sequences}x{tokens}x{heads}x{groups}x{keys}x{values}",
        if delta { "_delta" } else { "" },
    );
    let matrices = sequences * heads * groups;
    let workgroups = matrices.min(32);
    let kernel = move || {
        kernel::new(10, workgroups, |code| {
            let [of_keys, of_gates] = [sequences * tokens * heads, sequences * tokens * heads * groups];
            let floats = |index, length| code.binding(index, Element::F32, length);
            let buffers = Buffers {
                q: floats(0, of_keys * keys),
                k: floats(1, of_keys * keys),
                v: floats(2, of_gates * values),
                decay: floats(3, of_gates),
                rate: floats(4, of_gates),
                state: floats(5, matrices * keys * values),
                new: floats(8, matrices * keys * values),
                outputs: floats(9, matrices * tokens * values),
            };
            let [start, count] = [6, 7].map(|index| code.binding(index, Element::I32, starts));
            let zero = code.constant(Type::Scalar(Element::I32), 0.0);
            code.repeat(kernel::share(code, matrices, workgroups), 1, |matrix| {
                let sequence = matrix.divide(code.index(matrices / starts));
                let begins = start.load(sequence, zero.ty()).equals(zero);
                let count = count.load(sequence, zero.ty()).max(zero).place().min(code.index(tokens));
                code.runs(values, BLOCK, |at, length| {
                    let block = Block { code, sizes, delta, buffers, matrix, at, length };
                    block.begin(begins);
                    code.repeat(code.index(0)..count, 1, |token| block.step(token));
                    code.repeat(count..code.index(tokens), 1, |token| block.pad(token));
                });
            });
        })
    };
    (name, kernel)
}

/// Neighbouring columns of a state matrix.
struct Block<'k> {
    code: &'k Code,
    sizes: LinearAttentionSizes,
    delta: bool,
    buffers: Buffers<'k>,
    matrix: Value<'k>,
    /// The first column, and the number of columns.
    at: Value<'k>,
    length: usize,
}

impl<'k> Block<'k> {
    /// Each vector's first column, and the columns from there to the end of the block.
    fn vectors(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let length = self.length;
        (0..length).step_by(16).map(move |from| (from, length - from))
    }

    /// The index in memory of a row of the state matrix.
    fn row(&self, key: Value<'k>) -> Value<'k> {
        let LinearAttentionSizes { keys, values, .. } = self.sizes;
        (self.matrix * keys + key) * values + self.at
    }

    fn load(&self, buffer: Buffer<'k>, place: Value<'k>) -> Vec<Value<'k>> {
        self.vectors().map(|(from, left)| buffer.load_lanes(place + from, left)).collect()
    }

    fn store(&self, buffer: Buffer<'k>, place: Value<'k>, numbers: &[Value<'k>]) {
        for ((from, left), &numbers) in self.vectors().zip(numbers) {
            buffer.store_lanes(place + from, numbers, left);
        }
    }

    fn store_output(&self, token: Value<'k>, numbers: &[Value<'k>]) {
        let LinearAttentionSizes { tokens, values, .. } = self.sizes;
        let place = (self.matrix * tokens + token) * values + self.at;
        self.store(self.buffers.outputs, place, numbers);
    }

    fn zeros(&self) -> Vec<Value<'k>> {
        self.vectors().map(|_| self.code.constant(LANES, 0.0)).collect()
    }

    /// Copies the old state matrix into the new one, before the first token.
    fn begin(&self, begins: Value<'k>) {
        let LinearAttentionSizes { keys, .. } = self.sizes;
        let zero = self.code.constant(LANES, 0.0);
        self.code.repeat(self.code.index(0)..self.code.index(keys), 1, |key| {
            let old = self.load(self.buffers.state, self.row(key));
            let numbers: Vec<Value<'k>> = old.into_iter().map(|old| zero.or_else(begins, old)).collect();
            self.store(self.buffers.new, self.row(key), &numbers);
        });
    }

    fn pad(&self, token: Value<'k>) {
        self.store_output(token, &self.zeros());
    }

    /// Decays the state matrix, adds the value of a token, and computes the output of the token.
    fn step(&self, token: Value<'k>) {
        let LinearAttentionSizes { tokens, heads, groups, keys, values, .. } = self.sizes;
        let Buffers { q, k, v, decay, rate, new: state, .. } = self.buffers;
        let code = self.code;
        let of_sequence = code.index(heads * groups);
        let (sequence, head) = (self.matrix.divide(of_sequence), self.matrix.remainder(of_sequence));
        let token_at = sequence * tokens + token;
        let key_at = (token_at * heads + head.divide(code.index(groups))) * keys;
        let gate_at = token_at * (heads * groups) + head;
        let everywhere = |number: Value<'k>| number.broadcast(16);
        let factor = math::exp(everywhere(decay.load(gate_at, SCALAR)));
        let rate = everywhere(rate.load(gate_at, SCALAR));
        let decayed = |key: Value<'k>| -> Vec<Value<'k>> {
            self.load(state, self.row(key)).into_iter().map(|x| x * factor).collect()
        };
        let all = || code.index(0)..code.index(keys);
        let mut written = self.load(v, gate_at * values + self.at);
        if self.delta {
            let known = code.fold(all(), 1, &self.zeros(), |key, sums| {
                let by = everywhere(k.load(key_at + key, SCALAR));
                decayed(key).into_iter().zip(sums).map(|(x, &sum)| x.multiply_add(by, sum)).collect()
            });
            written = written.into_iter().zip(known).map(|(value, known)| value - known).collect();
        }
        let written: Vec<Value<'k>> = written.into_iter().map(|value| value * rate).collect();
        let outputs = code.fold(all(), 1, &self.zeros(), |key, sums| {
            let [under, by] = [k, q].map(|numbers| everywhere(numbers.load(key_at + key, SCALAR)));
            let decayed = decayed(key).into_iter().zip(&written);
            let new: Vec<Value<'k>> = decayed.map(|(x, &value)| under.multiply_add(value, x)).collect();
            self.store(state, self.row(key), &new);
            new.into_iter().zip(sums).map(|(x, &sum)| x.multiply_add(by, sum)).collect()
        });
        self.store_output(token, &outputs);
    }
}
