//! A kernel's work by itself: as a program that is compiled, and as the evaluator computes it.

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

/// Bytes of what all works read together, so that each comes from memory when it is its turn again.
const SPREAD: usize = 128 << 20;

/// Multiplications and additions that one call of all of them takes at most, unless a single one takes more.
const WORK: usize = 1 << 31;

/// Works at most.
const COPIES: usize = 64;

/// The entry point that does one work, and that which does one with each of what is read, each waiting for the one before.
pub(super) const ONE: &str = "one";
pub(super) const ALL: &str = "all";

/// A work, what it is done with, and what comes of it.
pub(super) trait Sample {
    /// A program that does it, so often.
    fn traced(&self, copies: usize) -> Result<Trace, LowerError>;

    /// How often the entry point [`ALL`] does it.
    fn copies(&self) -> usize;

    /// What is read, where it lies: the weights, or the keys and values.
    fn parameters(&self) -> Parameters;

    /// Other random arguments than all before.
    fn arguments(&self, trial: u64) -> Vec<Value>;

    /// What two programs may differ by that sum in another order.
    fn bound(&self) -> Bound {
        Bound::UlpsOfLargest(16.0)
    }

    /// What a program and the evaluator may differ by.
    fn bound_of_sample(&self) -> Bound {
        self.bound()
    }

    fn sample(&self, result: &Value) -> Value;

    /// The same as the evaluator gives it for the arguments of trial 0.
    fn expected(&self) -> Result<Value, TuneError>;

    /// The program, in which the work of a name is cut in one way.
    fn lowered(&self, target: &Target, name: &str, tiling: Tiling) -> Result<Module, TuneError> {
        let kernels = BTreeMap::from([(name.to_owned(), tiling)]);
        let target = Target { tuning: Tuning { kernels, ..Tuning::default() }, ..target.clone() };
        Ok(lower::lower(&self.traced(self.copies())?, &target)?)
    }
}

/// How often a work of so many multiplications, which reads so many bytes, is done by [`ALL`].
pub(super) fn copies(work: usize, bytes: usize) -> usize {
    (WORK / (2 * work).max(1)).min(SPREAD / bytes.max(1)).clamp(1, COPIES)
}

/// Panels that are made of random numbers before they come again: a prime, so that no two neighbours are equal anywhere.
const PANELS: usize = 251;

/// Packed weights of so many panels.
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

/// Programs of a work: done once, and so often, with inputs of these types. `one` says a single one of them, from the inputs
/// and its number. Each is added to what came before, the second input first, as a residual is: so none runs beside another.
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

/// A parameter of such a program.
pub(super) fn parameter(b: &mut Builder<'_>, key: String, ty: TensorType) -> NodeId {
    b.push(NodeKind::Parameter(Parameter::new(key, ty.clone())), vec![ty], &[])
}

/// The key of a weight.
pub(super) fn key(index: usize) -> String {
    format!("weight{index}")
}

/// Bytes at an aligned place.
pub(super) struct Aligned {
    bytes: Arc<Vec<u8>>,
    start: usize,
}

impl Aligned {
    /// So many, which `fill` appends.
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

    /// Parameters of so many bytes each, one after the other.
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

/// Between −1 and 1.
pub(super) fn number(random: &mut ChaCha8Rng) -> f32 {
    (random.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0
}

/// A tensor of random numbers around one.
pub(super) fn numbers(ty: TensorType, centre: f32, random: &mut ChaCha8Rng) -> Value {
    let count = ty.count();
    Value::new(ty, (0..count).map(|_| f64::from(centre + number(random))))
}

/// Places that are looked at of as many as there are: the first and the last, and one between.
pub(super) fn some(count: usize) -> Vec<usize> {
    const SAMPLE: usize = 3;
    let mut places: Vec<usize> = (0..SAMPLE).map(|i| i * (count - 1) / (SAMPLE - 1)).collect();
    places.dedup();
    places
}
