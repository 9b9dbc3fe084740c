//! The fused operation of one kernel in isolation, as a compiled program and in the evaluator.

use std::collections::BTreeMap;
use std::sync::Arc;

use lower::{LowerError, Module};
use ops::format::PANEL;
use ops::ops::BinaryKind;
use ops::{Bound, InferError, TensorType, Value, WeightFormat};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;
use runtime::{PARAMETER_ALIGNMENT, ParameterData, Parameters};
use targets::{Target, Tiling, Tuning};
use trace::{Builder, FunctionId, NodeId, NodeKind, Parameter, Trace};

use super::TuneError;
use crate::bench::entry;

/// The number of bytes that all copies of an operation read together. The number exceeds the cache, so each
/// copy is read from memory.
const SPREAD: usize = 128 << 20;

/// The largest number of multiplications and additions per call of all copies, unless a single copy needs
/// more.
const WORK: usize = 1 << 31;

/// The largest number of copies.
const COPIES: usize = 64;

/// The entry points: [`ONE`] runs one copy. [`ALL`] runs all copies, and each copy waits for the previous
/// copy.
pub(super) const ONE: &str = "one";
pub(super) const ALL: &str = "all";

/// A fused operation with its inputs and its expected results.
pub(super) trait Sample {
    /// A program with the given number of copies of the operation.
    fn traced(&self, copies: usize) -> Result<Trace, LowerError>;

    /// The number of copies in the entry point [`ALL`].
    fn copies(&self) -> usize;

    /// The operation's weights, or its keys and values.
    fn parameters(&self) -> Parameters;

    /// New random arguments for a trial.
    fn arguments(&self, trial: u64) -> Vec<Value>;

    /// The allowed difference between two programs with different orders of summation.
    fn bound(&self) -> Bound {
        Bound::UlpsOfLargest(16.0)
    }

    /// The allowed difference between a program and the evaluator.
    fn bound_of_sample(&self) -> Bound {
        self.bound()
    }

    fn sample(&self, result: &Value) -> Value;

    /// The results that the evaluator computes for the arguments of trial 0.
    fn expected(&self) -> Result<Value, TuneError>;

    /// The program in which the kernel `name` has the given tiling.
    fn lowered(&self, target: &Target, name: &str, tiling: Tiling) -> Result<Module, TuneError> {
        let kernels = BTreeMap::from([(name.to_owned(), tiling)]);
        let target = Target { tuning: Tuning { kernels, ..Tuning::default() }, ..target.clone() };
        Ok(lower::lower(&self.traced(self.copies())?, &target)?)
    }
}

/// The number of copies in [`ALL`] for an operation with this number of multiplications and bytes.
pub(super) fn copies(work: usize, bytes: usize) -> usize {
    (WORK / (2 * work).max(1)).min(SPREAD / bytes.max(1)).clamp(1, COPIES)
}

/// The number of distinct random panels. The number is prime, so that neighbouring panels are different
/// everywhere.
const PANELS: usize = 251;

/// Packed weights with the given number of panels.
pub(super) fn panels(format: WeightFormat, inputs: usize, count: usize, random: &mut ChaCha8Rng) -> Aligned {
    let half_width = (3.0 / inputs as f32).sqrt();
    let stride = format.packed(PANEL, inputs).bytes();
    let distinct = PANELS.min(count);
    let mut panels = vec![0; distinct * stride];
    for panel in panels.chunks_exact_mut(stride) {
        let rows: Vec<f32> = (0..PANEL * inputs).map(|_| half_width * number(random)).collect();
        format.pack_panel(&rows, inputs, panel);
    }
    Aligned::new(count * stride, |all| {
        (0..count).for_each(|i| all.extend_from_slice(&panels[i % distinct * stride..][..stride]));
    })
}

/// Builds programs with one copy and with several copies of an operation, for inputs of these types. `one`
/// builds a copy from the inputs and the number of the copy. The program adds each copy's result to the
/// previous result, like a residual, and starts with the second input. So no two copies run in parallel.
pub(super) fn chained(
    path: &str,
    types: &[TensorType],
    copies: usize,
    one: impl Fn(&mut Builder<'_>, &[NodeId], usize) -> Result<NodeId, InferError>,
) -> Result<Trace, LowerError> {
    let chain = |copies: usize| {
        let one = &one;
        move |b: &mut Builder<'_>| {
            let mut inputs = Vec::new();
            for (index, ty) in types.iter().enumerate() {
                inputs.push(b.push(NodeKind::input(index, format!("x{index}")), vec![ty.clone()], &[]));
            }
            (0..copies).try_fold(inputs[1], |sum, copy| {
                let y = one(b, &inputs, copy)?;
                b.binary(BinaryKind::Add, sum, y)
            })
        }
    };
    let functions = vec![entry(ONE, path, chain(1))?, entry(ALL, path, chain(copies))?];
    Ok(Trace { functions, entries: vec![FunctionId(0), FunctionId(1)] })
}

/// Adds a parameter to such a program.
pub(super) fn parameter(b: &mut Builder<'_>, key: String, ty: TensorType) -> NodeId {
    b.push(NodeKind::Parameter(Parameter::new(key, ty.clone())), vec![ty], &[])
}

pub(super) fn key(index: usize) -> String {
    format!("weight{index}")
}

/// Bytes at an aligned address.
pub(super) struct Aligned {
    bytes: Arc<Vec<u8>>,
    start: usize,
}

impl Aligned {
    /// Creates memory with this number of bytes, which `fill` writes.
    pub(super) fn new(length: usize, fill: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut bytes: Vec<u8> = Vec::with_capacity(length + PARAMETER_ALIGNMENT);
        let start = bytes.as_ptr().align_offset(PARAMETER_ALIGNMENT);
        bytes.resize(start, 0);
        fill(&mut bytes);
        Self { bytes: Arc::new(bytes), start }
    }

    pub(super) fn slice(&self, from: usize, length: usize) -> &[u8] {
        &self.bytes[self.start + from..][..length]
    }

    /// Creates parameters with these lengths, one after the other in memory.
    pub(super) fn parameters(&self, entries: impl IntoIterator<Item = (String, usize)>) -> Parameters {
        let mut at = self.start;
        let entry = |(key, length): (String, usize)| {
            let range = at..at + length;
            at = range.end;
            (key, ParameterData::Range(range))
        };
        let entries = entries.into_iter().map(entry).collect();
        Parameters { scope: "model".into(), bytes: self.bytes.clone(), entries }
    }
}

/// A random number between −1 and 1.
pub(super) fn number(random: &mut ChaCha8Rng) -> f32 {
    (random.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0
}

/// A tensor of random numbers around `centre`.
pub(super) fn numbers(ty: TensorType, centre: f32, random: &mut ChaCha8Rng) -> Value {
    let count = ty.count();
    Value::new(ty, (0..count).map(|_| f64::from(centre + number(random))))
}

/// Some indices among `count` to check: the first, one in between, and the last.
pub(super) fn some(count: usize) -> Vec<usize> {
    const SAMPLE: usize = 3;
    let mut places: Vec<usize> = (0..SAMPLE).map(|i| i * (count - 1) / (SAMPLE - 1)).collect();
    places.dedup();
    places
}
