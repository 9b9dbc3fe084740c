//! Collects the data of a report from the plan of a network and the plan's trace.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tracewright::lower::{self, Module};
use tracewright::ops::{Attribute as _, CostOperand, Op, TensorType};
use tracewright::simplify;
use tracewright::targets::Machine;
use tracewright::trace::{Function, Node, NodeId, NodeKind, Parameter, Provenance, Role, Trace, key_pattern};
use tracewright::{Footprint, Plan, PlanError, StagedTrace};

use super::model::*;

/// The number of source lines that the report shows before and after the line that declares a node.
const AROUND: u32 = 3;

/// The text of a Rust file by the name in a node, such as `models/src/llama.rs`; `None` if unreadable.
pub type ReadSource<'a> = &'a dyn Fn(&str) -> Option<String>;

impl NetworkReport {
    pub fn new(name: &str, plan: &Plan, traced: &Trace, read: ReadSource<'_>) -> Result<Self, PlanError> {
        let staged = plan.stages(traced)?;
        let (simplified, composites) = &staged.simplified;
        let (expanded, primitives) = &staged.expanded;
        let module = lower::lower(&expanded.trace, &plan.target)?;
        let footprint = Footprint::of(expanded)?;
        let machine = &plan.target.machine;
        let stages = [
            (Stage::Traced, traced, None),
            (Stage::Simplified, simplified, Some(composites)),
            (Stage::Expanded, &expanded.trace, Some(primitives)),
        ];
        let graphs = |(stage, trace, report)| graphs(trace, stage, machine, report);
        let mut graphs: Vec<FunctionGraph> = stages.into_iter().flat_map(graphs).collect();
        add_statements(&mut graphs, &module, &expanded.trace);
        let mut fired: BTreeMap<&str, usize> = BTreeMap::new();
        for (rule, count) in composites.fired.iter().chain(&primitives.fired) {
            *fired.entry(rule).or_default() += count;
        }
        let rule = |(name, fired): (&str, usize)| {
            let equation = simplify::rules::equation(name).unwrap_or_default();
            RuleFacts { name: name.to_owned(), equation, fired }
        };
        let declared = traced.counts()?;
        Ok(Self {
            label: name.to_owned(),
            network: NetworkFacts {
                element: plan.element.to_string(),
                context: plan.context,
                chunk: plan.chunk,
                batch: plan.batch,
                rules: plan.rules.to_string(),
                parameters: declared.parameter_elements,
                parameter_bytes: declared.parameter_bytes,
                bandwidth: machine.bandwidth,
                flops: machine.flops,
            },
            parameters: parameters(&staged, traced, &footprint)?,
            rules: fired.into_iter().map(rule).collect(),
            memory: memory(&footprint),
            masks: masks(traced),
            rotary: rotary(traced),
            sources: sources(traced, read),
            graphs,
            profile: None,
        })
    }
}

/// `report` describes the simplification before the stage.
fn graphs(
    trace: &Trace,
    stage: Stage,
    machine: &Machine,
    report: Option<&simplify::Report>,
) -> Vec<FunctionGraph> {
    let layers = layers(trace);
    let mut graphs: Vec<FunctionGraph> = Vec::with_capacity(trace.functions.len());
    for (index, function) in trace.functions.iter().enumerate() {
        let nodes: Vec<NodeFacts> = function.ids().map(|id| node(function, id, machine, &graphs)).collect();
        let mut cost = CostFacts::default();
        nodes.iter().for_each(|node| cost += node.cost);
        let change = report.and_then(|report| report.functions.iter().find(|c| c.name == function.name));
        let fired = change.iter().flat_map(|change| &change.fired);
        let result = |output: &tracewright::trace::Output| ResultFacts {
            name: output.name.clone(),
            role: output.role.to_string(),
            node: output.node.index().to_string(),
        };
        graphs.push(FunctionGraph {
            id: graph_id(stage, &function.name),
            stage,
            function: function.name.clone(),
            entry: trace.entries.iter().any(|id| id.0 as usize == index),
            prefix: function.prefix.clone(),
            layers: layers[index].clone(),
            cost,
            fired: fired.map(|(rule, count)| ((*rule).to_owned(), *count)).collect(),
            nodes,
            results: function.outputs.iter().map(result).collect(),
            statements: Vec::new(),
        });
    }
    graphs
}

fn graph_id(stage: Stage, function: &str) -> String {
    format!("{}/{function}", stage.name())
}

/// For each function, the prefixes of parameter keys in its calls, each once.
fn layers(trace: &Trace) -> Vec<Vec<String>> {
    let mut layers = vec![Vec::new(); trace.functions.len()];
    for caller in &trace.functions {
        for id in caller.ids() {
            if let NodeKind::Call { function, prefix } = &caller.node(id).kind {
                let known = &mut layers[function.0 as usize];
                if !known.contains(prefix) {
                    known.push(prefix.clone());
                }
            }
        }
    }
    layers
}

/// `known` are the graphs of earlier functions.
fn node(function: &Function, id: NodeId, machine: &Machine, known: &[FunctionGraph]) -> NodeFacts {
    let Node { kind, types, axes, provenance } = function.node(id);
    let operands = function.operands(id);
    let mut text = String::new();
    let mut cost = CostFacts::default();
    let mut subgraph_ids = Vec::new();
    let (class, label) = match kind {
        NodeKind::Input { index, name, role } => {
            text = format!("input {index} \"{name}\"");
            if *role != Role::Plain {
                text.push_str(&format!(" role={role}"));
            }
            (NodeClass::Input, name.clone())
        }
        NodeKind::Parameter(parameter) => {
            text = format!("parameter \"{}\"", parameter.key);
            if let Some(recipe) = &parameter.recipe {
                text.push_str(" = ");
                recipe.print(&mut text);
            }
            (NodeClass::Parameter, parameter.key.clone())
        }
        NodeKind::Op(op) => {
            op.print(&mut text);
            let splat = |id: NodeId| match &function.node(id).kind {
                NodeKind::Op(Op::Constant(constant)) => constant.value.as_splat().is_some(),
                _ => false,
            };
            let read = |&id: &NodeId| CostOperand { ty: function.node(id).ty(), splat: splat(id) };
            let reads: Vec<CostOperand<'_>> = operands.iter().map(read).collect();
            let simplify::Cost { bytes, flops, seconds } = simplify::cost(machine, op, &reads, &types[0]);
            cost = CostFacts { bytes, flops, seconds };
            (op.class().into(), op.label())
        }
        NodeKind::Call { function: callee, prefix } => {
            let callee = &known[callee.0 as usize];
            text = format!("call @{} prefix=\"{prefix}\"", callee.function);
            cost = callee.cost;
            subgraph_ids.push(callee.id.clone());
            (NodeClass::Call, callee.function.clone())
        }
        NodeKind::Result { index } => {
            text = format!("result {index}");
            (NodeClass::Result, text.clone())
        }
    };
    let edge = |(position, operand): (usize, &NodeId)| EdgeFacts {
        source_node_id: operand.index().to_string(),
        source_node_output_id: match kind {
            NodeKind::Result { index } => index.to_string(),
            _ => "0".into(),
        },
        target_node_input_id: position.to_string(),
    };
    let types: Vec<TypeFacts> = types.iter().map(|ty| named(ty, axes)).collect();
    let output = |(index, ty): (usize, &TypeFacts)| OutputFacts {
        id: index.to_string(),
        attrs: vec![AttributeFacts { key: "tensor_shape".into(), value: ty.named() }],
    };
    let path = &provenance.path;
    NodeFacts {
        id: id.index().to_string(),
        label,
        namespace: lower::namespace(if path.is_empty() { &function.name } else { path }),
        incoming_edges: operands.iter().enumerate().map(edge).collect(),
        subgraph_ids,
        attrs: attributes(&text, cost, provenance),
        outputs_metadata: types.iter().enumerate().map(output).collect(),
        class,
        text,
        types,
        cost,
        measured: None,
        path: path.to_string(),
        file: provenance.file.to_string(),
        line: provenance.line,
    }
}

fn attributes(text: &str, cost: CostFacts, provenance: &Provenance) -> Vec<AttributeFacts> {
    let mut attrs: Vec<(&str, String)> = vec![("operation", text.to_owned())];
    if cost.seconds > 0.0 {
        attrs.push(("bytes", cost.bytes.to_string()));
        attrs.push(("FLOPs", cost.flops.to_string()));
        attrs.push(("roofline", format!("{:.3} µs", cost.seconds * 1e6)));
    }
    attrs.push(("Rust", format!("{}:{}", provenance.file, provenance.line)));
    let attribute = |(key, value): (&str, String)| AttributeFacts { key: key.into(), value };
    attrs.into_iter().map(attribute).collect()
}

fn named(ty: &TensorType, axes: &[tracewright::trace::AxisName]) -> TypeFacts {
    TypeFacts {
        element: ty.element.to_string(),
        shape: ty.shape.clone(),
        axes: axes.iter().map(ToString::to_string).collect(),
        bytes: ty.bytes(),
    }
}

/// To the last stage, by source locations.
fn add_statements(graphs: &mut [FunctionGraph], module: &Module, trace: &Trace) {
    let mut places: HashMap<String, &Provenance> = HashMap::new();
    for function in &trace.functions {
        for id in function.ids() {
            let provenance = &function.node(id).provenance;
            places.entry(lower::location(provenance)).or_insert(provenance);
        }
    }
    let mut of: HashMap<&str, Vec<StatementFacts>> = HashMap::new();
    for statement in module.statements() {
        let Some(Provenance { path, file, line }) = places.get(statement.location) else { continue };
        of.entry(statement.function).or_default().push(StatementFacts {
            text: statement.text.to_owned(),
            path: path.to_string(),
            file: file.to_string(),
            line: *line,
        });
    }
    for graph in graphs.iter_mut().filter(|graph| graph.stage == Stage::Expanded) {
        graph.statements = of.remove(graph.function.as_str()).unwrap_or_default();
    }
}

fn parameters(
    staged: &StagedTrace,
    traced: &Trace,
    footprint: &Footprint,
) -> Result<Vec<ParameterGroup>, PlanError> {
    let expanded = &staged.expanded.0.trace;
    let mut axes: HashMap<String, &[tracewright::trace::AxisName]> = HashMap::new();
    for function in traced.functions.iter().chain(&expanded.functions) {
        for id in function.ids() {
            let node = function.node(id);
            if let NodeKind::Parameter(parameter) = &node.kind
                && node.axes.len() == parameter.ty.rank()
            {
                axes.insert(key_pattern(&parameter.key), &node.axes);
            }
        }
    }
    let mut stored: HashMap<&str, String> = HashMap::new();
    for (how, what) in &footprint.weights {
        stored.extend(what.keys.iter().map(|key| (key.as_str(), how.to_string())));
    }
    let mut groups: BTreeMap<(String, TensorType, Option<String>), ParameterGroup> = BTreeMap::new();
    for parameter in expanded.parameters()? {
        let recipe = recipe(&parameter);
        let key = key_pattern(&parameter.key);
        let group = groups.entry((key.clone(), parameter.ty.clone(), recipe.clone())).or_insert_with(|| {
            let axes = axes.get(&key).copied().filter(|axes| axes.len() == parameter.ty.rank());
            let sources: BTreeSet<String> =
                parameter.sources().iter().map(|(key, _)| key_pattern(key)).collect();
            ParameterGroup {
                ty: named(&parameter.ty, axes.unwrap_or_default()),
                stored: stored.get(parameter.key.as_str()).cloned().unwrap_or_default(),
                keys: Vec::new(),
                sources: sources.into_iter().collect(),
                key,
                recipe,
            }
        });
        group.keys.push(parameter.key);
    }
    let mut groups: Vec<ParameterGroup> = groups.into_values().collect();
    // Elements of a list in the order of their numbers.
    let numbers =
        |key: &String| key.split('.').filter_map(|part| part.parse::<usize>().ok()).collect::<Vec<_>>();
    groups.iter_mut().for_each(|group| group.keys.sort_by_key(numbers));
    Ok(groups)
}

/// Returns the recipe that computes a weight from the checkpoint, with `*` in place of the layer's number.
fn recipe(parameter: &Parameter) -> Option<String> {
    let mut text = String::new();
    parameter.recipe.as_ref()?.print(&mut text);
    for (key, _) in parameter.sources() {
        text = text.replace(&format!("\"{key}\""), &format!("\"{}\"", key_pattern(key)));
    }
    Some(text)
}

fn memory(footprint: &Footprint) -> MemoryFacts {
    let weights = footprint.weights.iter().map(|(stored, what)| StoredFacts {
        stored: stored.to_string(),
        count: what.keys.len(),
        bytes: what.bytes,
    });
    MemoryFacts {
        weights: weights.collect(),
        repacked: footprint.repacked,
        state: footprint.state.clone(),
        activations: footprint.activations.clone(),
        constants: footprint.constants,
        running: footprint.running(),
        compiling: footprint.compile,
    }
}

fn masks(trace: &Trace) -> Vec<MaskFacts> {
    let mut masks: Vec<MaskFacts> = Vec::new();
    let layers = layers(trace);
    for (index, function) in trace.functions.iter().enumerate() {
        for id in function.ids() {
            let NodeKind::Op(Op::Sdpa(sdpa)) = &function.node(id).kind else { continue };
            let operands = function.operands(id);
            let [q, k] = [0, 1].map(|operand| function.node(operands[operand]).ty());
            let from_end =
                |ty: &TensorType, axis: usize| ty.shape.iter().rev().nth(axis).copied().unwrap_or(1);
            let term = |term: &tracewright::ops::ops::MaskTerm| {
                let mut text = String::new();
                term.print(&mut text);
                text
            };
            masks.push(MaskFacts {
                entries: entries_above(trace, index),
                function: function.name.clone(),
                layers: layers[index].clone(),
                terms: sdpa.mask.iter().map(term).collect(),
                queries: from_end(q, 1),
                keys: from_end(k, 1),
                scale: sdpa.scale_for(from_end(q, 0)),
                softcap: sdpa.softcap.map(|cap| cap.0),
                groups: if q.rank() == k.rank() + 1 { from_end(q, 2) } else { 1 },
            });
        }
    }
    masks
}

/// Returns the entry points that call a function, directly or indirectly.
fn entries_above(trace: &Trace, function: usize) -> Vec<String> {
    let mut leads = vec![false; trace.functions.len()];
    leads[function] = true;
    for (index, caller) in trace.functions.iter().enumerate() {
        leads[index] |= caller.ids().any(|id| match caller.node(id).kind {
            NodeKind::Call { function, .. } => leads[function.0 as usize],
            _ => false,
        });
    }
    let entries = trace.entries.iter().filter(|id| leads[id.0 as usize]);
    entries.map(|&id| trace.function(id).name.clone()).collect()
}

fn rotary(trace: &Trace) -> Vec<RotaryFacts> {
    let mut found: Vec<RotaryFacts> = Vec::new();
    for function in &trace.functions {
        for id in function.ids() {
            let NodeKind::Op(Op::Constant(constant)) = &function.node(id).kind else { continue };
            let Some(table) = constant.value.as_rope_table() else { continue };
            let facts = RotaryFacts {
                layers: Vec::new(),
                positions: table.positions,
                scaling: table.scaling.0,
                frequencies: table.inv_freq.iter().map(|frequency| frequency.0).collect(),
            };
            let place =
                found.iter().position(|known| RotaryFacts { layers: Vec::new(), ..known.clone() } == facts);
            let place = place.unwrap_or_else(|| {
                found.push(facts);
                found.len() - 1
            });
            for layer in users(function, id) {
                if !found[place].layers.contains(&layer) {
                    found[place].layers.push(layer);
                }
            }
        }
    }
    found
}

/// The key prefixes of calls that depend on a node without other calls between.
fn users(function: &Function, from: NodeId) -> Vec<String> {
    let mut reached = BTreeSet::from([from]);
    let mut layers = Vec::new();
    for id in function.ids().skip(from.index() + 1) {
        if !function.any_operand(id, |operand| reached.contains(&operand)) {
            continue;
        }
        match &function.node(id).kind {
            NodeKind::Call { prefix, .. } => layers.push(prefix.clone()),
            _ => _ = reached.insert(id),
        }
    }
    layers
}

/// With neighbouring lines.
fn sources(trace: &Trace, read: ReadSource<'_>) -> BTreeMap<String, BTreeMap<u32, String>> {
    let mut lines: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for function in &trace.functions {
        for id in function.ids() {
            let Provenance { file, line, .. } = &function.node(id).provenance;
            lines.entry(file).or_default().extend(line.saturating_sub(AROUND)..=line + AROUND);
        }
    }
    let mut sources = BTreeMap::new();
    for (file, wanted) in lines {
        let Some(text) = read(file) else { continue };
        let numbered = (1u32..).zip(text.lines()).filter(|(number, _)| wanted.contains(number));
        sources.insert(file.to_owned(), numbered.map(|(number, line)| (number, line.to_owned())).collect());
    }
    sources
}
