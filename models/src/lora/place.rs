//! Finds the weights of the network that a module of an adapter changes. The two can divide matrices differently.

use std::ops::Range;

use irpa::{Checkpoint, CheckpointTensor};

use super::adapter::{Adapter, ModuleUpdate};
use super::error::LoraProblem;
use crate::{Opened, head};

/// Modules that some checkpoints store as one matrix, with the outputs one after the other.
const FUSED: &[(&str, &[&str])] = &[
    ("self_attn.qkv_proj", &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    ("mlp.gate_up_proj", &["mlp.gate_proj", "mlp.up_proj"]),
];

/// A weight, its changed outputs, and the first row of B for them.
pub(super) struct WeightPart {
    pub weight: String,
    pub outputs: Range<usize>,
    pub first: usize,
    pub inputs_first: bool,
}

/// The weight that a tensor of the adapter replaces.
pub(super) fn whole(
    adapter: &Adapter,
    tensor: &str,
    weight: &str,
    network: &Opened,
    checkpoint: &Checkpoint,
) -> Result<String, LoraProblem> {
    let names = network.naming.of_weight(weight);
    let Some(found) = names.iter().find_map(|name| checkpoint.get(name)) else {
        if names.iter().any(|name| name == head::HEAD) {
            check_tied(tensor, head::HEAD, network, checkpoint)?;
        }
        return Err(no_module(tensor, weight, &names, checkpoint));
    };
    check_tied(tensor, &found.name, network, checkpoint)?;
    let shape = adapter.tensors.get(tensor).map_or_else(Vec::new, |tensor| tensor.shape.clone());
    if found.has_shape(&shape) {
        Ok(found.name.clone())
    } else {
        Err(LoraProblem::Shape {
            tensor: tensor.to_owned(),
            found: shape,
            expected: found.shape.clone(),
            because: format!("`{}` of the model has this shape", found.name),
        })
    }
}

/// The weights that an update changes: one, or each that is a part of the module.
pub(super) fn parts(
    adapter: &Adapter,
    update: &ModuleUpdate,
    network: &Opened,
    checkpoint: &Checkpoint,
) -> Result<Vec<WeightPart>, LoraProblem> {
    let names = network.naming.of_weight(&format!("{}.weight", update.module));
    let shape = |name: &str| adapter.tensors.get(name).map_or_else(Vec::new, |tensor| tensor.shape.clone());
    let (a, b) = (shape(&update.a), shape(&update.b));
    let ([first, second], [outputs, rank]) = (&a[..], &b[..]) else {
        let (tensor, found) = if a.len() == 2 { (update.b.clone(), b) } else { (update.a.clone(), a) };
        let expected = vec![found.first().copied().unwrap_or(1), found.iter().skip(1).product()];
        let because = "it is a factor of a matrix".to_owned();
        return Err(LoraProblem::Shape { tensor, found, expected, because });
    };
    let (inputs, a_rank) = if update.a_transposed { (*first, *second) } else { (*second, *first) };
    if a_rank != *rank {
        return Err(LoraProblem::Shape {
            tensor: update.b.clone(),
            found: b.clone(),
            expected: vec![*outputs, a_rank],
            because: format!("`{}` has the rank {a_rank}", update.a),
        });
    }
    let matrix = Matrix { update, outputs: *outputs, inputs, rank: *rank };
    if let Some(found) = names.iter().find_map(|name| checkpoint.get(name)) {
        check_tied(&update.b, &found.name, network, checkpoint)?;
        let inputs_first = matrix.order_in(found, *outputs)?;
        return Ok(vec![WeightPart {
            weight: found.name.clone(),
            outputs: 0..*outputs,
            first: 0,
            inputs_first,
        }]);
    }
    if names.iter().any(|name| name == head::HEAD) {
        check_tied(&update.b, head::HEAD, network, checkpoint)?;
    }
    for name in &names {
        if let Some(part) = matrix.within(name, checkpoint)? {
            return Ok(vec![part]);
        }
        if let Some(parts) = matrix.across(name, checkpoint)? {
            return Ok(parts);
        }
    }
    Err(no_module(&update.b, &update.module, &names, checkpoint))
}

/// B · A of an update.
struct Matrix<'a> {
    update: &'a ModuleUpdate,
    outputs: usize,
    inputs: usize,
    rank: usize,
}

impl Matrix<'_> {
    /// Whether the weight has inputs first. For a square matrix, only the adapter tells.
    fn order_in(&self, weight: &CheckpointTensor, outputs: usize) -> Result<bool, LoraProblem> {
        let inputs_first = self.update.inputs_first;
        let shape = |inputs_first| if inputs_first { [self.inputs, outputs] } else { [outputs, self.inputs] };
        if let Some(found) =
            [inputs_first, !inputs_first].into_iter().find(|first| weight.shape == shape(*first))
        {
            return Ok(found);
        }
        let [first, second] = weight.shape[..] else {
            return Err(self.other_outputs(0, format!("`{}` is no matrix", weight.name)));
        };
        let (rows, inputs) = if inputs_first { (second, first) } else { (first, second) };
        let because = format!("`{}` has the shape {:?}", weight.name, weight.shape);
        if inputs == self.inputs {
            return Err(self.other_outputs(rows, because));
        }
        let shape = |inputs| {
            if self.update.a_transposed { vec![inputs, self.rank] } else { vec![self.rank, inputs] }
        };
        let (tensor, found, expected) = (self.update.a.clone(), shape(self.inputs), shape(inputs));
        Err(LoraProblem::Shape { tensor, found, expected, because })
    }

    /// The error that B should have another number of rows.
    fn other_outputs(&self, expected: usize, because: String) -> LoraProblem {
        let shape = |outputs| vec![outputs, self.rank];
        let (found, expected) = (shape(self.outputs), shape(expected));
        LoraProblem::Shape { tensor: self.update.b.clone(), found, expected, because }
    }

    /// The part of a fused weight that is the module. The sizes tell where it is, because the queries can be more
    /// than the keys, but keys and values are equally many.
    fn within(&self, name: &str, checkpoint: &Checkpoint) -> Result<Option<WeightPart>, LoraProblem> {
        for (fused, parts) in FUSED {
            let found = parts.iter().enumerate().find_map(|(index, part)| {
                let before = name.strip_suffix(&format!("{part}.weight"))?;
                Some((index, checkpoint.get(&format!("{before}{fused}.weight"))?))
            });
            let Some((index, weight)) = found else { continue };
            let axis = usize::from(self.update.inputs_first);
            let total = weight.shape.get(axis).copied().unwrap_or(0);
            // The first part, and each of the others.
            let others = parts.len() - 1;
            let rest = total.saturating_sub(self.outputs);
            let sizes = match index {
                0 => (self.outputs, rest / others),
                _ => (total.saturating_sub(others * self.outputs), self.outputs),
            };
            let fits = sizes.0 + others * sizes.1 == total
                && (sizes.0 == sizes.1 || (others > 1 && sizes.0.is_multiple_of(sizes.1.max(1))));
            if !fits {
                let because = format!("`{}` has {total} outputs for {}", weight.name, parts.join(", "));
                return Err(self.other_outputs(total / parts.len(), because));
            }
            let start = if index == 0 { 0 } else { sizes.0 + (index - 1) * sizes.1 };
            let inputs_first = self.order_in(weight, total)?;
            let outputs = start..start + self.outputs;
            return Ok(Some(WeightPart { weight: weight.name.clone(), outputs, first: 0, inputs_first }));
        }
        Ok(None)
    }

    /// The weights that together are the module.
    fn across(&self, name: &str, checkpoint: &Checkpoint) -> Result<Option<Vec<WeightPart>>, LoraProblem> {
        for (fused, parts) in FUSED {
            let Some(before) = name.strip_suffix(&format!("{fused}.weight")) else { continue };
            let weight = |part: &&str| checkpoint.get(&format!("{before}{part}.weight"));
            let Some(weights) = parts.iter().map(weight).collect::<Option<Vec<_>>>() else { continue };
            let (mut first, mut all) = (0, Vec::new());
            for weight in weights {
                let count = weight.shape.get(usize::from(self.update.inputs_first)).copied().unwrap_or(0);
                let inputs_first = self.order_in(weight, count)?;
                all.push(WeightPart { weight: weight.name.clone(), outputs: 0..count, first, inputs_first });
                first += count;
            }
            if first != self.outputs {
                let because = format!("{} have that many outputs", parts.join(", "));
                return Err(self.other_outputs(first, because));
            }
            return Ok(Some(all));
        }
        Ok(None)
    }
}

/// A change of a weight that is both embedding and head is ambiguous: PEFT changes only one of them until it merges.
fn check_tied(
    tensor: &str,
    weight: &str,
    network: &Opened,
    checkpoint: &Checkpoint,
) -> Result<(), LoraProblem> {
    // A file can store the one weight under both names.
    let is_one = network.naming.is_tied() || checkpoint.get(head::HEAD).is_none();
    let is_tied = is_one && network.sentence().is_none();
    if is_tied && (weight == head::HEAD || network.naming.embedding() == Some(weight)) {
        return Err(LoraProblem::Tied { tensor: tensor.to_owned() });
    }
    Ok(())
}

fn no_module(tensor: &str, module: &str, names: &[String], checkpoint: &Checkpoint) -> LoraProblem {
    let name = names.first().map_or(module, String::as_str);
    let similar = checkpoint.tensors().map(|found| (strsim::jaro(name, &found.name), &found.name));
    let nearest = similar.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(similarity, _)| *similarity > 0.8);
    LoraProblem::NoModule {
        tensor: tensor.to_owned(),
        module: module.to_owned(),
        nearest: nearest.map(|(_, name)| name.clone()),
    }
}
