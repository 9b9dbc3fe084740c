//! A program and what it is given, as a text; and the least part of it that still fails.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use tracewright::lower;
use tracewright::ops::{Attribute as _, Op, ParseError, Reader, TensorType, Value};
use tracewright::simplify::{Options, simplify};
use tracewright::trace::{Builder, Function, FunctionId, NodeId, NodeKind, Output, Parameter, Trace};

use crate::arbitrary::same;
use crate::evaluate::{WeightValues, evaluate};
use crate::leeway::Leeway;

/// A program of one function, and what it is given.
#[derive(Clone, Debug)]
pub struct GraphCase {
    pub trace: Trace,
    /// One value for each input.
    pub arguments: Vec<Value>,
    /// Those that it reads, by key.
    pub weights: WeightValues,
}

impl GraphCase {
    /// The program's only function.
    pub fn function(&self) -> &Function {
        &self.trace.functions[0]
    }

    /// Its operations, without the constants.
    pub fn operations(&self) -> Vec<Op> {
        let function = self.function();
        let operation = |id| match &function.node(id).kind {
            NodeKind::Op(Op::Constant(_)) => None,
            NodeKind::Op(op) => Some(op.clone()),
            _ => None,
        };
        function.ids().filter_map(operation).collect()
    }

    pub fn expected(&self) -> Vec<Value> {
        evaluate(&self.trace, &self.function().name, &self.arguments, &self.weights)
    }

    /// The same program simplified; its weights are made of these.
    pub fn simplified(&self) -> Self {
        let (trace, _) = simplify(&self.trace, &Options::default());
        let mut weights = self.weights.clone();
        for parameter in trace.functions[0].parameters() {
            let value = parameter.value(&|key| weights.get(key).cloned());
            let value = value.unwrap_or_else(|(key, ty)| panic!("no weight `{key}` of {ty}"));
            weights.insert(parameter.key.clone(), value);
        }
        Self { trace, arguments: self.arguments.clone(), weights }
    }

    /// The same program in primitives.
    ///
    /// # Panics
    /// If a converter refuses it.
    pub fn in_primitives(&self) -> Self {
        let trace = lower::expand(&self.trace).unwrap_or_else(|error| panic!("{error}\n{}", self.trace));
        Self { trace, ..self.clone() }
    }

    /// How far each result may be from the expected one.
    pub fn leeway(&self) -> Vec<Leeway> {
        Leeway::of([self.function(), self.in_primitives().function()], &self.arguments, &self.weights)
    }

    /// The first difference from the expected results, if there is one.
    pub fn violation(&self, found: &[Value]) -> Option<String> {
        let expected = self.expected();
        if expected.len() == found.len() && expected.iter().zip(found).all(|(a, b)| same(a, b)) {
            return None;
        }
        violation(&expected, &self.leeway(), found)
    }

    /// The least part of a program that still fails: one result, of operations each of which is needed, the others replaced
    /// by what the evaluator gives for them.
    pub fn shrunk(&self, fails: &mut dyn FnMut(&Self) -> bool) -> Self {
        let mut least = self.clone();
        // The first operation whose result is wrong: what it needs is right.
        let ends: Vec<NodeId> = operations(self.function()).collect();
        if let Some(case) =
            ends.iter().map(|&end| self.part(&[end], &BTreeSet::new())).find(|case| fails(case))
        {
            least = case;
        }
        loop {
            let outputs: Vec<NodeId> = least.function().outputs.iter().map(|output| output.node).collect();
            let inner = operations(least.function()).filter(|id| !outputs.contains(id)).collect::<Vec<_>>();
            let mut without = inner.iter().rev().map(|&id| least.part(&outputs, &BTreeSet::from([id])));
            match without.find(|case| fails(case)) {
                Some(case) => least = case,
                None => return least,
            }
        }
    }

    /// The program that computes these nodes, given the values of those.
    fn part(&self, outputs: &[NodeId], given: &BTreeSet<NodeId>) -> Self {
        let old = self.function();
        let mut all = self.trace.clone();
        all.functions[0].outputs = old.ids().map(|id| Output::new("value", id)).collect();
        let values = evaluate(&all, &old.name, &self.arguments, &self.weights);
        let mut needed: BTreeSet<NodeId> = outputs.iter().copied().collect();
        for id in old.ids().rev().filter(|id| !given.contains(id)) {
            if needed.contains(&id) {
                needed.extend(old.operands(id));
            }
        }

        let mut function = Function::new(&old.name, &old.prefix);
        let mut arguments: Vec<Value> = Vec::new();
        let mut weights = WeightValues::new();
        let mut ids = vec![NodeId::new(0); old.len()];
        for id in old.ids().filter(|id| needed.contains(id)) {
            let node = old.node(id);
            let mut b = Builder { function: &mut function, provenance: node.provenance.clone() };
            let mut kind = node.kind.clone();
            let mut operands = Vec::new();
            match &kind {
                NodeKind::Parameter(parameter) => {
                    weights.extend(self.read_by(parameter));
                }
                NodeKind::Op(_) if !given.contains(&id) => {
                    operands = old.operands(id).into_iter().map(|operand| ids[operand.index()]).collect();
                }
                _ => {
                    kind = NodeKind::input(arguments.len(), format!("argument{}", arguments.len()));
                    arguments.push(values[id.index()].clone());
                }
            }
            ids[id.index()] = b.push(kind, node.types.clone(), &operands);
        }
        let output = |(i, id): (usize, &NodeId)| Output::new(format!("result{i}"), ids[id.index()]);
        function.outputs = outputs.iter().enumerate().map(output).collect();
        let trace = Trace { functions: vec![function], entries: vec![FunctionId(0)] };
        Self { trace, arguments, weights }
    }

    /// The weights that a parameter is, or is made of.
    fn read_by(&self, parameter: &Parameter) -> WeightValues {
        let own = std::iter::once(parameter.key.as_str());
        let keys = own.chain(parameter.sources().into_iter().map(|(key, _)| key));
        keys.filter_map(|key| Some((key.to_owned(), self.weights.get(key)?.clone()))).collect()
    }
}

/// The first result that is out of bounds, if there is one.
pub fn violation(expected: &[Value], leeway: &[Leeway], found: &[Value]) -> Option<String> {
    if expected.len() != found.len() {
        return Some(format!("{} results, expected {}", found.len(), expected.len()));
    }
    (0..found.len()).find_map(|i| {
        let (expected, found) = (&expected[i], &found[i]);
        if expected.ty != found.ty {
            return Some(format!("result {i} is {}, expected {}", found.ty, expected.ty));
        }
        let (index, expected, found) = leeway[i].first_violation(expected, found)?;
        Some(format!(
            "result {i}, element {index} is {found:?}, expected {expected:?}: {}",
            match &leeway[i] {
                Leeway::Within(bound) => format!("{bound:?}"),
                Leeway::Among(others) => {
                    format!("others: {:?}", others.iter().map(|other| other.data[index]).collect::<Vec<_>>())
                }
            }
        ))
    })
}

fn operations(function: &Function) -> impl DoubleEndedIterator<Item = NodeId> {
    let live = function.live();
    let wanted = move |id: &NodeId| live[id.index()] && matches!(function.node(*id).kind, NodeKind::Op(_));
    function.ids().filter(wanted)
}

impl fmt::Display for GraphCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written = |value: &Value| {
            let numbers: Vec<String> = value.data.iter().map(|x| format!("{x:?}")).collect();
            format!("{} {}", value.ty, numbers.join(",")).trim_end().to_owned()
        };
        for argument in &self.arguments {
            writeln!(f, "argument {}", written(argument))?;
        }
        for (key, value) in &self.weights {
            writeln!(f, "weight {key} {}", written(value))?;
        }
        write!(f, "\n{}", self.trace)
    }
}

impl FromStr for GraphCase {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (mut arguments, mut weights) = (Vec::new(), WeightValues::new());
        let mut rest = text;
        while let Some((line, after)) = rest.split_once('\n') {
            if let Some(value) = line.strip_prefix("argument ") {
                arguments.push(read(value)?);
            } else if let Some((key, value)) =
                line.strip_prefix("weight ").and_then(|line| line.split_once(' '))
            {
                weights.insert(key.to_owned(), read(value)?);
            } else if !line.is_empty() && !line.starts_with('#') {
                break;
            }
            rest = after;
        }
        Ok(Self { trace: rest.parse()?, arguments, weights })
    }
}

/// `f32[2] 1.0,NaN`
fn read(text: &str) -> Result<Value, ParseError> {
    let mut reader = Reader::new(text);
    let ty = TensorType::parse(&mut reader)?;
    let numbers = text.split_once(' ').map_or("", |(_, numbers)| numbers);
    let numbers: Result<Vec<f64>, _> =
        numbers.split(',').filter(|number| !number.is_empty()).map(str::parse).collect();
    match numbers {
        Ok(numbers) if numbers.len() == ty.count() => Ok(Value::new(ty, numbers)),
        _ => reader.error(format!("{} numbers", ty.count())),
    }
}

/// The cases that failed once, by the names of their files.
///
/// # Panics
/// If one is none.
pub fn found() -> Vec<(String, GraphCase)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("found");
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut cases = Vec::new();
    for path in files.filter_map(|file| Some(file.ok()?.path())) {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let case = text.parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        cases.push((name, case));
    }
    cases.sort_by(|(a, _), (b, _)| a.cmp(b));
    cases
}
