//! Creates a profile from the measurements of a language model. The profile shows the nodes of the
//! trace that each dispatch computes.

use std::collections::{BTreeMap, BTreeSet};

use ops::{CostOperand, Op};
use simplify::Cost;
use targets::Machine;
use trace::{Function, NodeId, NodeKind, Trace};

use super::paths::Declared;
use super::{Language, Measured};
use crate::profile::{Profile, ProfiledDispatch, ProfiledPlace};

impl Language {
    /// `None` if no device of the model counts calls.
    pub(super) fn profiled(
        &self,
        model: &str,
        entry: &str,
        calls: f64,
        measured: &Measured,
    ) -> Option<Profile> {
        if measured.dispatches.is_empty() {
            return None;
        }
        let machine = &self.plan.target.machine;
        let recorded = Costs::of(&self.recorded, entry, machine);
        let written = Costs::of(&self.expanded.trace, entry, machine);
        let order = self.paths.order.get(entry).map(Vec::as_slice).unwrap_or_default();
        let places: Vec<BTreeSet<Declared>> = order.iter().map(|one| self.paths.at(one)).collect();
        // For each source location in a layer, the number of dispatches that compute a part of the location's
        // operations.
        let mut parts: BTreeMap<(Option<&str>, &Declared), usize> = BTreeMap::new();
        let mut alike: BTreeMap<&str, f64> = BTreeMap::new();
        for (one, places) in order.iter().zip(&places) {
            *alike.entry(&one.name).or_default() += 1.0;
            places.iter().for_each(|at| *parts.entry((one.within.as_deref(), at)).or_default() += 1);
        }
        let mut dispatches = Vec::new();
        for (one, places) in order.iter().zip(&places) {
            let alike = alike[one.name.as_str()];
            let Some(function) = measured.dispatches.iter().find(|dispatch| dispatch.name == one.name) else {
                continue;
            };
            let layer = one.within.clone().filter(|layer| written.layers.contains_key(layer));
            let alone = |at: &Declared| parts[&(one.within.as_deref(), at)] == 1;
            let is_known = !places.is_empty() && places.iter().all(alone);
            let cost = |at: &Declared| written.at(layer.as_deref(), at).map(|(cost, _)| cost);
            let mut whole = Cost::default();
            places.iter().filter_map(cost).for_each(|cost| whole += cost);
            let share = |at: &Declared| {
                if whole.seconds > 0.0 {
                    cost(at).map_or(0.0, |cost| cost.seconds / whole.seconds)
                } else {
                    1.0 / places.len() as f64
                }
            };
            let place = |at: &Declared| ProfiledPlace {
                path: at.path.clone(),
                file: at.file.clone(),
                line: at.line,
                operation: recorded.at(layer.as_deref(), at).map(|(_, operation)| operation.to_owned()),
                share: share(at),
            };
            dispatches.push(ProfiledDispatch {
                function: one.name.clone(),
                calls: function.calls / alike / calls,
                seconds: function.seconds / alike / calls,
                bytes: is_known.then_some(whole.bytes),
                flops: is_known.then_some(whole.flops),
                places: places.iter().map(place).collect(),
                layer,
            });
        }
        // The remaining functions are not in the program's list of dispatches, but have measured times.
        let rest = measured.dispatches.iter().filter(|function| !alike.contains_key(function.name.as_str()));
        dispatches.extend(rest.map(|function| ProfiledDispatch {
            function: function.name.clone(),
            layer: None,
            calls: function.calls / calls,
            seconds: function.seconds / calls,
            bytes: None,
            flops: None,
            places: Vec::new(),
        }));
        let variant = measured.label.variant.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        Some(Profile {
            case: measured.label.case.clone(),
            variant: variant.collect(),
            seconds: measured.seconds.median / calls,
            dispatches,
            ..Profile::new(model, &self.plan, &self.recorded, entry)
        })
    }
}

/// Contains the estimated costs of an entry point's operations, by source location.
struct Costs {
    /// For each function and source location: the total cost, and the most expensive operation with its cost.
    functions: Vec<BTreeMap<Declared, (Cost, String, f64)>>,
    entry: usize,
    /// Maps the prefix of a layer's parameter keys to the index of the function that computes the layer.
    layers: BTreeMap<String, usize>,
}

impl Costs {
    fn of(trace: &Trace, entry: &str, machine: &Machine) -> Self {
        let functions = trace.functions.iter().map(|function| costs(function, machine)).collect();
        let found = trace.entries.iter().find(|&&id| trace.function(id).name == entry);
        let entry = found.map_or(0, |id| id.0 as usize);
        let calls = trace.functions.get(entry).into_iter().flat_map(|function| {
            function.ids().filter_map(move |id| match &function.node(id).kind {
                NodeKind::Call { function, prefix } => Some((prefix.clone(), function.0 as usize)),
                _ => None,
            })
        });
        Self { functions, entry, layers: calls.collect() }
    }

    /// The total cost there, and the most expensive operation.
    fn at(&self, layer: Option<&str>, at: &Declared) -> Option<(Cost, &str)> {
        let layer = layer.and_then(|layer| self.layers.get(layer));
        let functions = layer.into_iter().chain([&self.entry]).filter_map(|&index| self.functions.get(index));
        functions.filter_map(|costs| costs.get(at)).map(|(cost, most, _)| (*cost, most.as_str())).next()
    }
}

fn costs(function: &Function, machine: &Machine) -> BTreeMap<Declared, (Cost, String, f64)> {
    let mut costs: BTreeMap<Declared, (Cost, String, f64)> = BTreeMap::new();
    for id in function.ids() {
        let node = function.node(id);
        let NodeKind::Op(op) = &node.kind else { continue };
        let splat = |id: NodeId| match &function.node(id).kind {
            NodeKind::Op(Op::Constant(constant)) => constant.value.as_splat().is_some(),
            _ => false,
        };
        let operands = function.operands(id);
        let read = |&id: &NodeId| CostOperand { ty: function.node(id).ty(), splat: splat(id) };
        let operands: Vec<CostOperand<'_>> = operands.iter().map(read).collect();
        let cost = simplify::cost(machine, op, &operands, node.ty());
        let at = Declared {
            path: node.provenance.path.to_string(),
            file: node.provenance.file.to_string(),
            line: node.provenance.line,
        };
        let none = Cost::default();
        let (whole, most, largest) = costs.entry(at).or_insert((none, word(op), cost.seconds));
        *whole += cost;
        if cost.seconds > *largest {
            (*most, *largest) = (word(op), cost.seconds);
        }
    }
    costs
}

/// Returns the short name of an operation, such as `linear` or `tanh`.
fn word(op: &Op) -> String {
    let mut text = String::new();
    op.print(&mut text);
    let kind = text.split_once(" kind=").and_then(|(_, kind)| kind.split(' ').next());
    kind.unwrap_or(op.name()).to_owned()
}
