//! Creates matmuls with which the tuner measures kernels.

use lower::{FusedMatmul, LowerError};
use ops::format::PANEL;
use ops::ops::PackedLinear;
use ops::{Bound, TensorType, Value};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use runtime::Parameters;
use trace::{Evaluation, Trace, functions};

use super::TuneError;
use super::sample::{Aligned, ONE, Sample, chained, copies, key, numbers, panels, parameter, some};

pub(super) struct MatmulSample {
    product: FusedMatmul,
    weights: Aligned,
    copies: usize,
    seed: u64,
}

impl MatmulSample {
    pub(super) fn new(product: &FusedMatmul, seed: u64) -> Self {
        let FusedMatmul { op, x, .. } = product;
        let [rows, inputs] = x.shape[..] else { unreachable!("a matrix") };
        let bytes = op.format.packed(op.outputs, inputs).bytes();
        let copies = copies(rows * inputs * op.outputs, bytes);
        let stride = op.format.packed(PANEL, inputs).bytes();
        let mut random = ChaCha8Rng::seed_from_u64(!seed);
        let weights = panels(op.format, inputs, copies * bytes / stride, &mut random);
        Self { product: product.clone(), weights, copies, seed }
    }

    fn weight_bytes(&self) -> usize {
        let FusedMatmul { op, x, .. } = &self.product;
        op.format.packed(op.outputs, x.shape[1]).bytes()
    }

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

impl Sample for MatmulSample {
    fn traced(&self, copies: usize) -> Result<Trace, LowerError> {
        traced(&self.product, copies)
    }

    fn copies(&self) -> usize {
        self.copies
    }

    fn parameters(&self) -> Parameters {
        self.weights.parameters((0..self.copies).map(|i| (key(i), self.weight_bytes())))
    }

    /// Activations, a tensor to add, and the fused norm's weight.
    fn arguments(&self, trial: u64) -> Vec<Value> {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed.wrapping_add(trial));
        let centres = [0.0, 0.0, 1.0];
        types(&self.product).into_iter().zip(centres).map(|(ty, at)| numbers(ty, at, &mut random)).collect()
    }

    fn bound_of_sample(&self) -> Bound {
        let FusedMatmul { op, norm, .. } = &self.product;
        if norm.is_some() && op.format.groups().is_some() {
            // The kernel rounds normalized activations to bytes. If the sum of squares rounds differently, a byte
            // can differ by one.
            Bound::UlpsOfLargest(0.06 / op.element.ulp(1.0))
        } else {
            self.bound()
        }
    }

    fn sample(&self, result: &Value) -> Value {
        pick(result, &self.rows(), &self.columns(&self.panels()))
    }

    fn expected(&self) -> Result<Value, TuneError> {
        let FusedMatmul { op, x, halves, .. } = &self.product;
        let inputs = x.shape[1];
        let (rows, places) = (self.rows(), self.panels());
        let columns = self.columns(&places);
        let parts = if *halves { 2 } else { 1 };
        let product = FusedMatmul {
            op: PackedLinear { outputs: parts * columns.len(), ..op.clone() },
            x: TensorType::new(x.element, [rows.len(), inputs]),
            ..self.product.clone()
        };
        let all: Vec<usize> = (0..inputs).collect();
        let given = self.arguments(0);
        let mut arguments = vec![pick(&given[0], &rows, &all), pick(&given[1], &rows, &columns)];
        arguments.extend(given[2..].iter().cloned());
        let stride = op.format.packed(PANEL, inputs).bytes();
        let half = self.width() / PANEL;
        let places = (0..parts).flat_map(|part| places.iter().map(move |panel| part * half + panel));
        let panel = |panel: usize| self.weights.slice(panel * stride, stride);
        let weight: Vec<u8> = places.flat_map(panel).copied().collect();
        let weight = Value::from_bytes(op.format.packed(product.op.outputs, inputs), &weight);
        let weight = |_: &str| Some(weight.clone());
        let evaluation = Evaluation { parameters: &weight, watch: None };
        Ok(trace::evaluate(&traced(&product, 1)?, ONE, arguments, evaluation)?.swap_remove(0))
    }
}

pub(super) fn pick(value: &Value, rows: &[usize], columns: &[usize]) -> Value {
    let picked = rows.iter().flat_map(|&row| columns.iter().map(move |&column| value.at(&[row, column])));
    Value::new(TensorType::new(value.ty.element, [rows.len(), columns.len()]), picked)
}

fn columns(product: &FusedMatmul) -> usize {
    if product.halves { product.op.outputs / 2 } else { product.op.outputs }
}

/// Activations, the tensor to add, and the norm's weight.
fn types(product: &FusedMatmul) -> Vec<TensorType> {
    let FusedMatmul { op, x, norm, .. } = product;
    let mut types = vec![x.clone(), TensorType::new(op.element, [x.shape[0], columns(product)])];
    types.extend(norm.as_ref().map(|_| TensorType::new(x.element, [x.shape[1]])));
    types
}

/// One entry point has one weight, the other `weights` of them in turn.
fn traced(product: &FusedMatmul, weights: usize) -> Result<Trace, LowerError> {
    chained("product", &types(product), weights, |b, inputs, index| {
        let ty = product.op.format.packed(product.op.outputs, product.x.shape[1]);
        let weight = parameter(b, key(index), ty);
        let x = match &product.norm {
            Some(norm) => b.op(norm.clone(), &[inputs[0], inputs[2]])?,
            None => inputs[0],
        };
        let y = b.op(product.op.clone(), &[x, weight])?;
        if product.halves { functions::gated(b, y, functions::silu) } else { Ok(y) }
    })
}
