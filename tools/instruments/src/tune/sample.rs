//! Runs the fused operation of one kernel in isolation. The operation runs in a compiled program
//! and in the evaluator.

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

/// Bytes of all copies: more than the processor's cache, so that each reads from memory.
const SPREAD: usize = 128 << 20;

/// Operations in one call of all copies, if there are several.
const WORK: usize = 1 << 31;

const COPIES: usize = 64;

/// [`ONE`] runs one copy, and [`ALL`] all of them, each after the previous one.
pub(super) const ONE: &str = "one";
pub(super) const ALL: &str = "all";

/// A fused operation with inputs and expected results.
pub(super) trait Sample {
    fn traced(&self, copies: usize) -> Result<Trace, LowerError>;

    /// In [`ALL`].
    fn copies(&self) -> usize;

    /// For attention, the keys and values.
    fn parameters(&self) -> Parameters;

    fn arguments(&self, trial: u64) -> Vec<Value>;

    /// Returns the allowed difference between two programs that add numbers in a different order.
    fn bound(&self) -> Bound {
        Bound::UlpsOfLargest(16.0)
    }

    /// Returns the allowed difference between a compiled program and the evaluator.
    fn bound_of_sample(&self) -> Bound {
        self.bound()
    }

    fn sample(&self, result: &Value) -> Value;

    /// Returns the results that the evaluator computes for the arguments of trial 0.
    fn expected(&self) -> Result<Value, TuneError>;

    fn lowered(&self, target: &Target, name: &str, tiling: Tiling) -> Result<Module, TuneError> {
        let kernels = BTreeMap::from([(name.to_owned(), tiling)]);
        let target = Target { tuning: Tuning { kernels, ..Tuning::default() }, ..target.clone() };
        Ok(lower::lower(&self.traced(self.copies())?, &target)?)
    }
}

/// For [`ALL`]; one copy does `work` multiplications and reads `bytes`.
pub(super) fn copies(work: usize, bytes: usize) -> usize {
    (WORK / (2 * work).max(1)).min(SPREAD / bytes.max(1)).clamp(1, COPIES)
}

/// Distinct panels of a weight: prime, so that neighbours always differ.
const PANELS: usize = 251;

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

/// [`ONE`] and [`ALL`]. `one` builds a copy from inputs and index. Each adds its result to a sum that begins
/// with the second input, so that no two run in parallel.
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

pub(super) fn parameter(b: &mut Builder<'_>, key: String, ty: TensorType) -> NodeId {
    b.push(NodeKind::Parameter(Parameter::new(key, ty.clone())), vec![ty], &[])
}

pub(super) fn key(index: usize) -> String {
    format!("weight{index}")
}

/// Owns bytes in memory that are aligned as IREE requires for parameters.
pub(super) struct Aligned {
    bytes: Arc<Vec<u8>>,
    start: usize,
}

impl Aligned {
    /// Allocates `length` bytes, and calls `fill` to write these bytes.
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

    /// Creates parameters with the given lengths in bytes. The parameters are next to each other in memory.
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

pub(super) fn number(random: &mut ChaCha8Rng) -> f32 {
    (random.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0
}

/// Between `centre - 1` and `centre + 1`.
pub(super) fn numbers(ty: TensorType, centre: f32, random: &mut ChaCha8Rng) -> Value {
    let count = ty.count();
    Value::new(ty, (0..count).map(|_| f64::from(centre + number(random))))
}

/// First, middle and last: those that are checked.
pub(super) fn some(count: usize) -> Vec<usize> {
    const SAMPLE: usize = 3;
    let mut places: Vec<usize> = (0..SAMPLE).map(|i| i * (count - 1) / (SAMPLE - 1)).collect();
    places.dedup();
    places
}
