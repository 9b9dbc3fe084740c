//! Creates attention operations with which the tuner measures kernels.

use lower::{FusedAttention, LowerError};
use ops::ops::{Dequantize, MaskTerm, Sdpa};
use ops::{ElementType, Op, TensorType, Value};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use runtime::Parameters;
use trace::{Evaluation, NodeId, Trace};

use super::TuneError;
use super::sample::{Aligned, ONE, Sample, chained, copies, number, numbers, parameter, some};

/// With random keys and values.
pub(super) struct AttentionSample {
    attention: FusedAttention,
    keys: Aligned,
    copies: usize,
    seed: u64,
}

/// A parameter that attention reads.
type KeyedType = (String, TensorType);

impl AttentionSample {
    pub(super) fn new(attention: &FusedAttention, seed: u64) -> Self {
        let [q, k, v] = [0, 1, 2].map(|i| &attention.types[i]);
        let [keys, features, values] = [k.shape[k.rank() - 2], k.shape[k.rank() - 1], v.shape[v.rank() - 1]];
        let work = q.count() / features * keys * (features + values) / 2;
        let bytes: usize = stored(attention, 0).iter().map(|(_, ty)| ty.bytes()).sum();
        let copies = copies(work, bytes);
        let mut random = ChaCha8Rng::seed_from_u64(!seed);
        let keys = Aligned::new(copies * bytes, |all| {
            for (_, ty) in (0..copies).flat_map(|copy| stored(attention, copy)) {
                let from = all.len();
                all.resize(from + ty.bytes(), 0);
                for i in 0..ty.count() {
                    let number = match ty.element {
                        ElementType::I8 => f64::from(random.next_u32() as i8),
                        _ if attention.quantized => f64::from(number(&mut random) / 127.0),
                        _ => f64::from(number(&mut random)),
                    };
                    ty.element.store(&mut all[from..], i, ty.element.encode(number));
                }
            }
        });
        Self { attention: attention.clone(), keys, copies, seed }
    }

    /// Queries are at the end of the cache, so all of it is read.
    fn offset(&self) -> usize {
        let FusedAttention { op, types, .. } = &self.attention;
        let [queries, keys] = [0, 1].map(|i| types[i].shape[types[i].rank() - 2]);
        let turns = if op.mask.contains(&MaskTerm::Ring) { 3 } else { 1 };
        if op.offset { (turns * keys).saturating_sub(queries) } else { 0 }
    }

    /// Checked rows: index, key head and query.
    fn rows(&self) -> Vec<[usize; 3]> {
        let [q, k] = [0, 1].map(|i| &self.attention.types[i]);
        let heads: usize = k.shape[..k.rank() - 2].iter().product();
        let queries = q.shape[q.rank() - 2];
        let group = q.count() / (heads * queries * q.shape[q.rank() - 1]);
        let of_head = |head: usize| {
            let row =
                move |member: usize, place: usize| [(head * group + member) * queries + place, head, place];
            some(group)
                .into_iter()
                .flat_map(move |member| some(queries).into_iter().map(move |i| row(member, i)))
        };
        some(heads).into_iter().flat_map(of_head).collect()
    }
}

impl Sample for AttentionSample {
    fn traced(&self, copies: usize) -> Result<Trace, LowerError> {
        traced(&self.attention, copies)
    }

    fn copies(&self) -> usize {
        self.copies
    }

    fn parameters(&self) -> Parameters {
        let stored = (0..self.copies).flat_map(|copy| stored(&self.attention, copy));
        self.keys.parameters(stored.map(|(key, ty)| (key, ty.bytes())))
    }

    /// Queries, a tensor to add, and the first query's position. Large numbers to add would hide an error.
    fn arguments(&self, trial: u64) -> Vec<Value> {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed.wrapping_add(trial));
        let offset = self.offset() as f64;
        let argument = |(i, ty): (usize, TensorType)| match i {
            0 => numbers(ty, 0.0, &mut random),
            1 => {
                let small = numbers(ty, 0.0, &mut random);
                Value::new(small.ty, small.data.into_iter().map(|x| x / 64.0))
            }
            _ => Value::new(ty.clone(), std::iter::repeat_n(offset, ty.count())),
        };
        types(&self.attention).into_iter().enumerate().map(argument).collect()
    }

    fn sample(&self, result: &Value) -> Value {
        let features = result.ty.shape[result.ty.rank() - 1];
        let rows = self.rows();
        let data =
            rows.iter().flat_map(|[row, ..]| result.data[row * features..][..features].iter().copied());
        Value::new(TensorType::new(result.ty.element, [rows.len(), features]), data)
    }

    /// Row by row, with one query at its position.
    fn expected(&self) -> Result<Value, TuneError> {
        let given = self.arguments(0);
        let FusedAttention { op, types, quantized } = &self.attention;
        let row_of = |value: &Value, row: usize| {
            let features = value.ty.shape[value.ty.rank() - 1];
            let ty = TensorType::new(value.ty.element, [1, features]);
            Value::new(ty, value.data[row * features..][..features].iter().copied())
        };
        let mut rows = Vec::new();
        for [row, head, place] in self.rows() {
            let of_head = |ty: &TensorType| TensorType::new(ty.element, &ty.shape[ty.rank() - 2..]);
            let alone = FusedAttention {
                op: Sdpa { offset: true, ..op.clone() },
                types: vec![
                    TensorType::new(types[0].element, [1, types[0].shape[types[0].rank() - 1]]),
                    of_head(&types[1]),
                    of_head(&types[2]),
                    TensorType::new(ElementType::I32, []),
                ],
                quantized: *quantized,
            };
            let mut from = 0;
            let slices: Vec<(String, Value)> = stored(&self.attention, 0)
                .into_iter()
                .zip(stored(&alone, 0))
                .map(|((_, all), (key, ty))| {
                    let bytes = self.keys.slice(from + head * ty.bytes(), ty.bytes());
                    from += all.bytes();
                    (key, Value::from_bytes(ty, bytes))
                })
                .collect();
            let parameters =
                |key: &str| slices.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone());
            let offset = (self.offset() + place) as f64;
            let offset = Value::new(TensorType::new(ElementType::I32, []), [offset]);
            let arguments = vec![row_of(&given[0], row), row_of(&given[1], row), offset];
            let evaluation = Evaluation { parameters: &parameters, watch: None };
            rows.push(trace::evaluate(&traced(&alone, 1)?, ONE, arguments, evaluation)?.swap_remove(0));
        }
        let features = types[2].shape[types[2].rank() - 1];
        let ty = TensorType::new(types[0].element, [rows.len(), features]);
        Ok(Value::new(ty, rows.into_iter().flat_map(|row| row.data)))
    }
}

/// Returns the keys and types of the KV-cache parameters that the attention operation reads.
fn stored(FusedAttention { types, quantized, .. }: &FusedAttention, copy: usize) -> Vec<KeyedType> {
    let part = |(name, ty): (&str, &TensorType)| {
        if *quantized {
            vec![
                (format!("{name}{copy}"), ty.with_element(ElementType::I8)),
                (
                    format!("{name}{copy}.scales"),
                    TensorType::new(ElementType::F32, &ty.shape[..ty.rank() - 1]),
                ),
            ]
        } else {
            vec![(format!("{name}{copy}"), ty.clone())]
        }
    };
    [("keys", &types[1]), ("values", &types[2])].into_iter().flat_map(part).collect()
}

/// Returns the types of the queries, of the tensor that the operation adds to the result, and of the offset.
fn types(FusedAttention { op, types, .. }: &FusedAttention) -> Vec<TensorType> {
    let [q, v] = [&types[0], &types[2]];
    let shape = [&q.shape[..q.rank() - 1], &v.shape[v.rank() - 1..]].concat();
    let mut all = vec![q.clone(), TensorType::new(q.element, shape)];
    all.extend(op.offset.then(|| types[3].clone()));
    all
}

/// One entry point reads one KV cache, the other `caches` of them in turn.
fn traced(attention: &FusedAttention, caches: usize) -> Result<Trace, LowerError> {
    chained("attention", &types(attention), caches, |b, inputs, copy| {
        let mut read: Vec<NodeId> =
            stored(attention, copy).into_iter().map(|(key, ty)| parameter(b, key, ty)).collect();
        if attention.quantized {
            let dequantize = Op::from(Dequantize { element: attention.types[1].element });
            read = vec![b.op(dequantize.clone(), &read[..2])?, b.op(dequantize, &read[2..])?];
        }
        let operands: Vec<NodeId> =
            [inputs[0]].into_iter().chain(read).chain(inputs.get(2).copied()).collect();
        b.op(attention.op.clone(), &operands)
    })
}
