//! Compares the values of a network with activations that a reference program, such as Hugging Face
//! transformers, computed. An activation and a node in the trace belong together if they have the
//! same module path.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use irpa::{ArchiveError, Checkpoint};
use ops::{Bound, ElementType, Op, TensorType, Value, WeightUse};
use trace::{Function, NodeId, NodeKind, Trace};

use super::difference::share;
use super::region::Region;
use super::{BisectError, Bisected, ComparedNode, Difference, Finding, Form, NamedNode, TokenCall, place};

/// Inputs and outputs of all modules in a reference program, such as Hugging Face transformers.
/// `tests/oracle/activations.py` writes the file: `model.layers.0.mlp` is a module's output,
/// `model.layers.0.mlp:input` its input, and `tokens` what was read.
pub struct Activations {
    file: Checkpoint,
}

/// Relative to the largest activation: the programs add in different orders, and so round differently.
const APART: f64 = 3e-5;
const APART_NARROW: f64 = 16.0;

impl Activations {
    pub fn open(path: &Path) -> Result<Self, ArchiveError> {
        Ok(Self { file: Checkpoint::open(path)? })
    }

    pub fn tokens(&self) -> Option<Vec<u32>> {
        let tokens = self.value("tokens").filter(|value| value.ty.element == ElementType::I32)?;
        tokens.data.into_iter().map(|token| u32::try_from(token as i64).ok()).collect()
    }

    fn value(&self, key: &str) -> Option<Value> {
        Some(Value::from_bytes(self.file.ty(key).ok()?, self.file.data(key).ok()?))
    }

    /// In the shape of `ty`, because the reference can merge axes.
    fn shaped(&self, key: &str, ty: &TensorType) -> Option<Value> {
        let value = self.value(key)?;
        (value.data.len() == ty.count()).then(|| Value { ty: ty.clone(), data: value.data })
    }

    /// Runs an entry point that computes the logits of all tokens, and compares all nodes. Both must compute
    /// in `element`.
    pub fn compare(
        &self,
        form: &dyn Form,
        trace: &Trace,
        call: &TokenCall,
        element: ElementType,
    ) -> Result<Bisected, BisectError> {
        let signature = super::signature(trace, &call.entry)?;
        let region = Region::of_entry(trace, &call.entry, call.arguments(&signature, &Default::default()));
        let mut compared = 0;
        let seen = self.look(form, &region, element, &mut compared)?;
        let finding = self.deepest(form, &seen, element, &mut compared)?;
        let output = |(name, node): (String, NodeId)| {
            let known = seen.points.iter().rev().find(|point| point.node == node)?;
            Some((name, known.difference.clone()))
        };
        let outputs = region.function().outputs.iter().map(|output| (output.name.clone(), output.node));
        let results = outputs.filter_map(output).collect();
        Ok(Bisected { compared, finding, results, reference: Vec::new() })
    }

    /// Compares the values of all nodes for which the reference program's file contains activations.
    fn look<'r>(
        &self,
        form: &dyn Form,
        region: &'r Region,
        element: ElementType,
        compared: &mut usize,
    ) -> Result<Known<'r>, BisectError> {
        let function = region.function();
        let nodes = region.nodes();
        let probed = region.together(&nodes);
        let results = form.run(&probed.trace, &region.arguments)?.swap_remove(0);
        let values: BTreeMap<NodeId, &Value> =
            nodes.iter().zip(&probed.places).map(|(&node, &(_, place))| (node, &results[place])).collect();
        let mut points = Vec::new();
        for (node, key) in points_of(function, &nodes) {
            let Some(value) = values.get(&node) else { continue };
            let Some(known) = self.shaped(&key, &value.ty) else { continue };
            let allowed = apart(element, value.ty.element).allowances(&known).collect();
            points.push(Point { node, difference: Difference::of(value, &known, allowed) });
        }
        *compared += points.len();
        let values = values.into_iter().map(|(node, value)| (node, value.clone())).collect();
        Ok(Known { region, values, points })
    }

    /// The first node that differs. A single layer runs with the reference's input.
    fn deepest(
        &self,
        form: &dyn Form,
        seen: &Known<'_>,
        element: ElementType,
        compared: &mut usize,
    ) -> Result<Option<Finding>, BisectError> {
        let function = seen.region.function();
        for (index, point) in seen.points.iter().enumerate() {
            if point.difference.beyond == 0 {
                continue;
            }
            let NodeKind::Result { .. } = function.node(point.node).kind else {
                return Ok(Some(seen.finding(index)));
            };
            let call = function.operands(point.node)[0];
            let path = &function.node(call).provenance.path;
            let mut arguments = seen.operands(call);
            if let Some(first) = arguments.first_mut()
                && let Some(known) = self.shaped(&format!("{path}:input"), &first.ty)
            {
                *first = known;
            }
            let inner = seen.region.of_call(call, arguments);
            let within = self.look(form, &inner, element, compared)?;
            if let Some(finding) = self.deepest(form, &within, element, compared)? {
                return Ok(Some(finding));
            }
            // If the layer computes the right result from the right input, the difference comes from the
            // inputs of earlier layers and grows from layer to layer.
            let output = &inner.function().outputs[0];
            let given = within.values.get(&output.node).and_then(|value| {
                let known = self.shaped(path, &value.ty)?;
                let allowed = apart(element, value.ty.element).allowances(&known).collect();
                Some(Difference::of(value, &known, allowed))
            });
            if given.is_none_or(|difference| difference.beyond > 0) {
                return Ok(Some(seen.finding(index)));
            }
        }
        Ok(None)
    }
}

fn apart(computed: ElementType, element: ElementType) -> Bound {
    let narrow = APART_NARROW * computed.ulp(1.0);
    share(if computed == ElementType::F32 { APART } else { narrow }, element)
}

/// Values of nodes, and which of them the reference has.
struct Known<'r> {
    region: &'r Region,
    values: BTreeMap<NodeId, Value>,
    points: Vec<Point>,
}

struct Point {
    node: NodeId,
    difference: Difference,
}

/// Inputs and outputs of modules that read weights, and outputs of layers.
fn points_of(function: &Function, nodes: &[NodeId]) -> Vec<(NodeId, String)> {
    let path = |id: NodeId| function.node(id).provenance.path.to_string();
    let is_weight = |id: &NodeId| matches!(function.node(*id).kind, NodeKind::Parameter(_));
    let weighted: BTreeSet<String> = function.ids().filter(is_weight).map(path).collect();
    let mut points = Vec::new();
    for &id in nodes {
        match &function.node(id).kind {
            NodeKind::Result { index: 0 } => points.push((id, path(id))),
            NodeKind::Op(op) if weighted.contains(&path(id)) => {
                if op.weight_use() == Some(WeightUse::Matmul) || matches!(op, Op::RmsNorm(_)) {
                    points.push((function.operands(id)[0], format!("{}:input", path(id))));
                }
                if nodes.iter().rev().find(|last| path(**last) == path(id)) == Some(&id) {
                    points.push((id, path(id)));
                }
            }
            _ => {}
        }
    }
    points
}

impl Known<'_> {
    fn operands(&self, id: NodeId) -> Vec<Value> {
        let function = self.region.function();
        let value = |id: NodeId| match &function.node(id).kind {
            NodeKind::Input { index, .. } => self.region.arguments[*index].clone(),
            NodeKind::Op(op) if !self.values.contains_key(&id) => op.eval(&[], function.node(id).ty()),
            _ => self.values[&id].clone(),
        };
        function.operands(id).into_iter().map(value).collect()
    }

    /// The operation of the differing node, and all since the last one that agrees.
    fn finding(&self, index: usize) -> Finding {
        let function = self.region.function();
        let known = |id: NodeId| {
            self.points.iter().find(|point| point.node == id).map(|point| point.difference.clone())
        };
        let equal = |id: NodeId| known(id).is_some_and(|difference| difference.beyond == 0);
        let is_computed =
            |id: NodeId| matches!(function.node(id).kind, NodeKind::Op(_) | NodeKind::Result { .. });
        let mut named = self.points[index].node;
        while let NodeKind::Op(Op::Reshape(_) | Op::Permute(_)) = function.node(named).kind
            && !equal(function.operands(named)[0])
            && is_computed(function.operands(named)[0])
        {
            named = function.operands(named)[0];
        }
        // Collects all nodes between the last equal values and this node.
        let (mut between, mut pending) = (BTreeSet::new(), function.operands(named));
        while let Some(id) = pending.pop() {
            if between.insert(id) && !equal(id) && is_computed(id) {
                pending.extend(function.operands(id));
            }
        }
        let node = |id: NodeId| ComparedNode { place: place(function, id), difference: known(id) };
        let Point { node: seen, difference } = &self.points[index];
        let after = &self.points[index + 1..];
        Finding {
            node: ComparedNode {
                // The report shows the type of the value that the module gets.
                place: NamedNode { ty: function.node(*seen).ty().to_string(), ..place(function, named) },
                difference: Some(difference.clone()),
            },
            operands: between.into_iter().map(node).collect(),
            only_together: false,
            after: [after.len(), after.iter().filter(|point| point.difference.beyond > 0).count()],
        }
    }
}
