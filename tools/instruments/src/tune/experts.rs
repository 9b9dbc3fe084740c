//! Creates the matmuls with which the tuner measures kernels for mixtures of experts. Each row of a
//! matmul's input selects the expert matrix that multiplies this row.

use lower::{FusedExperts, LowerError};
use ops::format::PANEL;
use ops::ops::PackedExperts;
use ops::{ElementType, TensorType, Value};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use runtime::Parameters;
use trace::{Evaluation, NodeId, Trace};

use super::TuneError;
use super::matmul::pick;
use super::sample::{Aligned, ONE, Sample, chained, copies, key, numbers, panels, parameter, some};

pub(super) struct ExpertsSample {
    experts: FusedExperts,
    weights: Aligned,
    copies: usize,
    seed: u64,
}

impl ExpertsSample {
    pub(super) fn new(experts: &FusedExperts, seed: u64) -> Self {
        let FusedExperts { op, x, .. } = experts;
        let inputs = x.shape[x.rank() - 1];
        let bytes = op.format.packed(op.experts * op.outputs, inputs).bytes();
        let rows: usize = places(experts).iter().product();
        let copies = copies(rows * inputs * op.outputs, bytes);
        let count = copies * op.experts * op.outputs / PANEL;
        let weights = panels(op.format, inputs, count, &mut ChaCha8Rng::seed_from_u64(!seed));
        Self { experts: experts.clone(), weights, copies, seed }
    }

    fn rows(&self) -> Vec<usize> {
        some(places(&self.experts).iter().product())
    }

    fn panels(&self) -> Vec<usize> {
        some(self.experts.op.outputs / PANEL)
    }

    fn columns(&self) -> Vec<usize> {
        self.panels().into_iter().flat_map(|panel| panel * PANEL..(panel + 1) * PANEL).collect()
    }

    /// With indices, neighbouring rows have different matrices.
    fn matrix(&self, row: usize) -> usize {
        let FusedExperts { op, indices, .. } = &self.experts;
        let step = if indices.is_some() { 3 } else { 1 };
        row * step % op.experts
    }
}

impl Sample for ExpertsSample {
    fn traced(&self, copies: usize) -> Result<Trace, LowerError> {
        traced(&self.experts, copies)
    }

    fn copies(&self) -> usize {
        self.copies
    }

    fn parameters(&self) -> Parameters {
        let FusedExperts { op, x, .. } = &self.experts;
        let bytes = op.format.packed(op.experts * op.outputs, x.shape[x.rank() - 1]).bytes();
        self.weights.parameters((0..self.copies).map(|i| (key(i), bytes)))
    }

    /// Activations, a tensor to add, and indices of experts.
    fn arguments(&self, trial: u64) -> Vec<Value> {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed.wrapping_add(trial));
        let argument = |ty: TensorType| match ty.element {
            ElementType::I32 => {
                let indices: Vec<f64> = (0..ty.count()).map(|row| self.matrix(row) as f64).collect();
                Value::new(ty, indices)
            }
            _ => numbers(ty, 0.0, &mut random),
        };
        types(&self.experts).into_iter().map(argument).collect()
    }

    fn sample(&self, result: &Value) -> Value {
        let outputs = self.experts.op.outputs;
        let ty = TensorType::new(result.ty.element, [result.ty.count() / outputs, outputs]);
        pick(&Value::new(ty, result.data.iter().copied()), &self.rows(), &self.columns())
    }

    /// Some columns of each checked row: its product with some panels of its expert.
    fn expected(&self) -> Result<Value, TuneError> {
        let FusedExperts { op, x, .. } = &self.experts;
        let inputs = x.shape[x.rank() - 1];
        let (rows, columns) = (self.rows(), self.columns());
        let few = FusedExperts {
            op: PackedExperts { experts: rows.len(), outputs: columns.len(), ..op.clone() },
            x: TensorType::new(x.element, [rows.len(), inputs]),
            indices: None,
        };
        let given = self.arguments(0);
        let matrix_of = |value: &Value, width: usize| {
            let ty = TensorType::new(value.ty.element, [value.ty.count() / width, width]);
            Value::new(ty, value.data.iter().copied())
        };
        // The kernel can multiply one row of x with several matrices.
        let shared = places(&self.experts).iter().product::<usize>() * inputs / x.count();
        let rows_of_x: Vec<usize> = rows.iter().map(|row| row / shared).collect();
        let all: Vec<usize> = (0..inputs).collect();
        let arguments = vec![
            pick(&matrix_of(&given[0], inputs), &rows_of_x, &all),
            pick(&matrix_of(&given[1], op.outputs), &rows, &columns),
        ];
        let stride = op.format.packed(PANEL, inputs).bytes();
        let at = |row: usize, panel: usize| (self.matrix(row) * (op.outputs / PANEL) + panel) * stride;
        let places = rows.iter().flat_map(|&row| self.panels().into_iter().map(move |panel| at(row, panel)));
        let weight: Vec<u8> = places.flat_map(|at| self.weights.slice(at, stride)).copied().collect();
        let weight = Value::from_bytes(op.format.packed(rows.len() * columns.len(), inputs), &weight);
        let weight = |_: &str| Some(weight.clone());
        let evaluation = Evaluation { parameters: &weight, watch: None };
        Ok(trace::evaluate(&traced(&few, 1)?, ONE, arguments, evaluation)?.swap_remove(0))
    }
}

/// Returns the sizes of all axes of the result except the last axis.
fn places(FusedExperts { x, indices, .. }: &FusedExperts) -> &[usize] {
    indices.as_ref().map_or(&x.shape[..x.rank() - 1], |indices| &indices.shape)
}

/// Activations, the tensor to add, and indices.
fn types(experts: &FusedExperts) -> Vec<TensorType> {
    let FusedExperts { op, x, indices } = experts;
    let mut types = vec![x.clone(), TensorType::new(op.element, [places(experts), &[op.outputs]].concat())];
    types.extend(indices.clone());
    types
}

/// One entry point reads one stack, the other `stacks` of them in turn.
fn traced(experts: &FusedExperts, stacks: usize) -> Result<Trace, LowerError> {
    let FusedExperts { op, x, .. } = experts;
    chained("experts", &types(experts), stacks, |b, inputs, index| {
        let ty = op.format.packed(op.experts * op.outputs, x.shape[x.rank() - 1]);
        let weight = parameter(b, key(index), ty);
        let operands: Vec<NodeId> = [inputs[0], weight].into_iter().chain(inputs.get(2).copied()).collect();
        b.op(op.clone(), &operands)
    })
}
