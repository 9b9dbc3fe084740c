//! One product by itself: as a program that is compiled, and as the evaluator computes it.

use std::collections::BTreeMap;
use std::sync::Arc;

use lower::{FusedProduct, LowerError, Module};
use ops::format::PANEL;
use ops::ops::{BinaryKind, PackedLinear};
use ops::{Bound, InferError, TensorType, Value};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use runtime::{PARAMETER_ALIGNMENT, ParameterData, Parameters};
use targets::{Target, Tiling, Tuning};
use trace::{Builder, Evaluation, FunctionId, NodeId, NodeKind, Parameter, Trace, functions};

use super::TuneError;
use crate::bench::entry;

/// Bytes of all weights together, so that each comes from memory when it is its turn again.
const SPREAD: usize = 128 << 20;

/// Multiplications and additions that one call of all of them takes at most, unless a single one takes more.
const WORK: usize = 1 << 31;

/// Weights at most.
const WEIGHTS: usize = 64;

/// Panels that are made of random numbers before they come again: a prime, so that no two neighbours are equal anywhere.
const PANELS: usize = 251;

/// Rows and panels that the evaluator computes.
const SAMPLE: usize = 3;

/// The entry point that computes one product, and that which computes one with each weight, each waiting for the one
/// before.
pub(super) const ONE: &str = "one";
pub(super) const ALL: &str = "all";

/// A product, what it is computed of, and what comes of it.
pub(super) struct Sampled {
    product: FusedProduct,
    /// Bytes of all weights, from an aligned place on.
    bytes: Arc<Vec<u8>>,
    start: usize,
    weights: usize,
    /// x, what is added to the result, and the weight of the norm.
    pub(super) arguments: Vec<Value>,
    seed: u64,
}

impl Sampled {
    /// With random numbers.
    pub(super) fn new(product: &FusedProduct, seed: u64) -> Self {
        let FusedProduct { op, x, .. } = product;
        let [rows, inputs] = x.shape[..] else { unreachable!("a matrix") };
        let bytes = op.format.packed(op.outputs, inputs).bytes();
        let most = (WORK / (2 * rows * inputs * op.outputs)).min(SPREAD / bytes);
        let weights = most.clamp(1, WEIGHTS);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let half_width = (3.0 / inputs as f32).sqrt();
        let stride = op.format.packed(PANEL, inputs).bytes();
        let distinct = PANELS.min(weights * bytes / stride);
        let mut panels = vec![0; distinct * stride];
        for panel in panels.chunks_exact_mut(stride) {
            let rows: Vec<f32> = (0..PANEL * inputs).map(|_| half_width * number(&mut random)).collect();
            op.format.pack_panel(&rows, inputs, panel);
        }
        let mut all: Vec<u8> = Vec::with_capacity(weights * bytes + PARAMETER_ALIGNMENT);
        let start = all.as_ptr().align_offset(PARAMETER_ALIGNMENT);
        all.resize(start, 0);
        (0..weights * bytes / stride).for_each(|i| {
            let at = i % distinct * stride;
            all.extend_from_slice(&panels[at..at + stride]);
        });
        let arguments = numbers(product, &mut random);
        Self { product: product.clone(), bytes: Arc::new(all), start, weights, arguments, seed }
    }

    /// x, what is added to the result, and the weight of the norm: other numbers than all before.
    pub(super) fn others(&self, trial: u64) -> Vec<Value> {
        numbers(&self.product, &mut ChaCha8Rng::seed_from_u64(self.seed.wrapping_add(trial)))
    }

    /// The program, in which the product is cut in one way.
    pub(super) fn lowered(&self, target: &Target, name: &str, tiling: Tiling) -> Result<Module, TuneError> {
        let tuning = Tuning { products: BTreeMap::from([(name.to_owned(), tiling)]) };
        let target = Target { tuning, ..target.clone() };
        Ok(lower::lower(&traced(&self.product, self.weights)?, &target)?)
    }

    /// The weights, where they lie.
    pub(super) fn parameters(&self) -> Parameters {
        let bytes = self.weight_bytes();
        let range = |i: usize| self.start + i * bytes..self.start + (i + 1) * bytes;
        let entries = (0..self.weights).map(|i| (key(i), ParameterData::Range(range(i)))).collect();
        Parameters { scope: "model".into(), bytes: self.bytes.clone(), entries }
    }

    fn weight_bytes(&self) -> usize {
        let FusedProduct { op, x, .. } = &self.product;
        op.format.packed(op.outputs, x.shape[1]).bytes()
    }

    /// What two programs may differ by that sum in another order.
    pub(super) fn bound(&self) -> Bound {
        Bound::UlpsOfLargest(16.0)
    }

    /// What a program and the evaluator may differ by.
    pub(super) fn bound_of_sample(&self) -> Bound {
        let FusedProduct { op, norm, .. } = &self.product;
        match norm.is_some() && op.format.element().is_none() {
            // What was normalized is rounded to bytes: a byte more or less, where a sum of squares rounds otherwise.
            true => Bound::UlpsOfLargest(0.06 / op.element.ulp(1.0)),
            false => self.bound(),
        }
    }

    /// Some rows and panels of the result.
    pub(super) fn sample(&self, result: &Value) -> Value {
        pick(result, &self.rows(), &self.columns(&self.panels()))
    }

    /// The same as the evaluator gives it.
    pub(super) fn expected(&self) -> Result<Value, TuneError> {
        let FusedProduct { op, x, halves, .. } = &self.product;
        let inputs = x.shape[1];
        let (rows, panels) = (self.rows(), self.panels());
        let columns = self.columns(&panels);
        let parts = if *halves { 2 } else { 1 };
        let product = FusedProduct {
            op: PackedLinear { outputs: parts * columns.len(), ..op.clone() },
            x: TensorType::new(x.element, [rows.len(), inputs]),
            ..self.product.clone()
        };
        let all: Vec<usize> = (0..inputs).collect();
        let mut arguments =
            vec![pick(&self.arguments[0], &rows, &all), pick(&self.arguments[1], &rows, &columns)];
        arguments.extend(self.arguments[2..].iter().cloned());
        let stride = op.format.packed(PANEL, inputs).bytes();
        let half = self.width() / PANEL;
        let places = (0..parts).flat_map(|part| panels.iter().map(move |panel| part * half + panel));
        let panel = |panel: usize| &self.bytes[self.start + panel * stride..][..stride];
        let weight: Vec<u8> = places.flat_map(panel).copied().collect();
        let weight = Value::from_bytes(op.format.packed(product.op.outputs, inputs), &weight);
        let weight = |_: &str| Some(weight.clone());
        let evaluation = Evaluation { parameters: &weight, watch: None };
        Ok(trace::evaluate(&traced(&product, 1)?, ONE, arguments, evaluation)?.swap_remove(0))
    }

    /// The columns of the result.
    fn width(&self) -> usize {
        columns(&self.product)
    }

    fn rows(&self) -> Vec<usize> {
        some(self.product.x.shape[0])
    }

    fn panels(&self) -> Vec<usize> {
        some(self.width().div_ceil(PANEL))
    }

    fn columns(&self, panels: &[usize]) -> Vec<usize> {
        panels.iter().flat_map(|panel| panel * PANEL..((panel + 1) * PANEL).min(self.width())).collect()
    }
}

/// Some rows and columns of a matrix.
fn pick(value: &Value, rows: &[usize], columns: &[usize]) -> Value {
    let picked = rows.iter().flat_map(|&row| columns.iter().map(move |&column| value.at(&[row, column])));
    Value::new(TensorType::new(value.ty.element, [rows.len(), columns.len()]), picked)
}

/// The columns of a product's result.
fn columns(product: &FusedProduct) -> usize {
    if product.halves { product.op.outputs / 2 } else { product.op.outputs }
}

/// Between −1 and 1.
fn number(random: &mut ChaCha8Rng) -> f32 {
    (random.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0
}

/// Random arguments.
fn numbers(product: &FusedProduct, random: &mut ChaCha8Rng) -> Vec<Value> {
    let mut argument = |ty: TensorType, centre: f32| {
        let count = ty.count();
        Value::new(ty, (0..count).map(|_| f64::from(centre + number(random))))
    };
    types(product).into_iter().zip([0.0, 0.0, 1.0]).map(|(ty, centre)| argument(ty, centre)).collect()
}

/// The first and the last of some places, and those between.
fn some(count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..SAMPLE).map(|i| i * (count - 1) / (SAMPLE - 1)).collect();
    places.dedup();
    places
}

fn key(index: usize) -> String {
    format!("weight{index}")
}

/// The types of x, of what is added, and of the norm's weight.
fn types(product: &FusedProduct) -> Vec<TensorType> {
    let FusedProduct { op, x, norm, .. } = product;
    let mut types = vec![x.clone(), TensorType::new(op.element, [x.shape[0], columns(product)])];
    types.extend(norm.as_ref().map(|_| TensorType::new(x.element, [x.shape[1]])));
    types
}

/// Programs of a product: with one weight, and with each of several.
fn traced(product: &FusedProduct, weights: usize) -> Result<Trace, LowerError> {
    let chain = |weights: usize| {
        move |b: &mut Builder<'_>| -> Result<NodeId, InferError> {
            let mut inputs = Vec::new();
            for (index, ty) in types(product).into_iter().enumerate() {
                inputs.push(b.push(NodeKind::input(index, format!("x{index}")), vec![ty], &[]));
            }
            let ty = product.op.format.packed(product.op.outputs, product.x.shape[1]);
            // Each is added to what came before, as a residual is: so none runs beside another.
            (0..weights).try_fold(inputs[1], |sum, index| {
                let parameter = NodeKind::Parameter(Parameter::new(key(index), ty.clone()));
                let weight = b.push(parameter, vec![ty.clone()], &[]);
                let x = match &product.norm {
                    Some(norm) => b.op(norm.clone(), &[inputs[0], inputs[2]])?,
                    None => inputs[0],
                };
                let y = b.op(product.op.clone(), &[x, weight])?;
                let y = if product.halves { functions::gated(b, y, functions::silu)? } else { y };
                b.binary(BinaryKind::Add, sum, y)
            })
        }
    };
    let functions = vec![entry(ONE, "product", chain(1))?, entry(ALL, "product", chain(weights))?];
    Ok(Trace { functions, entries: vec![FunctionId(0), FunctionId(1)] })
}
