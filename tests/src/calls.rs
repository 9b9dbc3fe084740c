//! Programs of many small entry points, each called once, with the evaluator's answers: what other implementations
//! of StableHLO are compared with.

use std::ops::Range;

use tracewright::ops::ops::{Convert, Reshape};
use tracewright::ops::{Attribute as _, Bound, ElementType, InferError, Op, Reader, TensorType, Value};
use tracewright::trace::{Builder, Function, FunctionId, NodeId, NodeKind, Output, Provenance, Trace};

use crate::arbitrary::{Dice, limited_graph, same};
use crate::case::{self, GraphCase};
pub use crate::evaluate::{WeightValues, evaluate};
use crate::leeway::Leeway;
use crate::portable::{Numbers, PORTABLE};

/// Entry points, what they are called with, and what they give.
#[derive(Default)]
pub struct Calls {
    /// The program: one entry point for each call, in the same order.
    pub trace: Trace,
    pub weights: WeightValues,
    pub calls: Vec<CheckedCall>,
    /// How many graphs simplification changed.
    pub changed: usize,
}

impl Calls {
    /// Adds a call of one operation.
    pub fn call(&mut self, op: impl Into<Op>, arguments: Vec<Value>) {
        let op = op.into();
        let text = format!("{op:?} of {}", arguments[0].ty);
        self.graph(text, arguments, op.bound(), |b, ids| b.op(op.clone(), ids));
    }

    /// Adds a call of several operations.
    pub fn graph(
        &mut self,
        text: String,
        arguments: Vec<Value>,
        bound: Bound,
        build: impl Fn(&mut Builder<'_>, &[NodeId]) -> Result<NodeId, InferError>,
    ) {
        let name = format!("call{}", self.calls.len());
        let types: Vec<TensorType> = arguments.iter().map(|value| value.ty.clone()).collect();
        entry(&mut self.trace, &name, &types, |b, ids| Ok(vec![build(b, ids)?]));
        let expected = evaluate(&self.trace, &name, &arguments, &self.weights);
        self.calls.push(CheckedCall { name, text, arguments, expected, leeway: vec![Leeway::Within(bound)] });
    }

    /// Some of the calls, and their entry points.
    pub fn only(self, range: Range<usize>) -> Self {
        let calls: Vec<CheckedCall> = self.calls.into_iter().skip(range.start).take(range.len()).collect();
        let names: Vec<&str> = calls.iter().map(|call| &*call.name).collect();
        Self { trace: self.trace.with_entries(&names), calls, ..self }
    }
}

/// A call of an entry point.
#[derive(Clone)]
pub struct CheckedCall {
    pub name: String,
    /// A description for messages.
    pub text: String,
    /// One value for each input.
    pub arguments: Vec<Value>,
    pub expected: Vec<Value>,
    /// How far from it each result may be.
    pub leeway: Vec<Leeway>,
}

impl CheckedCall {
    /// The first wrong result, if there is one.
    pub fn violation(&self, found: &[Value]) -> Option<String> {
        let what = case::violation(&self.expected, &self.leeway, found)?;
        Some(format!("{what}: {}", self.text))
    }
}

/// Every good example of every operation that StableHLO or a converter spells.
pub fn examples() -> Calls {
    examples_of(|name| !name.starts_with("pack") && name != "quantize")
}

/// Every good example of the operations that `wanted` names.
pub fn examples_of(wanted: impl Fn(&str) -> bool) -> Calls {
    let mut all = Calls::default();
    for (name, examples) in Op::examples().into_iter().filter(|(name, _)| wanted(name)) {
        for (i, example) in examples.iter().filter(|e| e.result.is_ok()).enumerate() {
            let seed = |j: usize| (i * 8 + j) as u64;
            let arguments: Vec<Value> =
                example.operands.iter().enumerate().map(|(j, text)| operand(text, seed(j))).collect();
            let types: Vec<TensorType> = arguments.iter().map(|v| v.ty.clone()).collect();
            let name = format!("{name}_{i}");
            let op = op(example.op);
            entry(&mut all.trace, &name, &types, |b, ids| Ok(vec![b.op(op.clone(), ids)?]));
            all.calls.push(CheckedCall {
                text: format!("{} of {:?}", example.op, example.operands),
                expected: evaluate(&all.trace, &name, &arguments, &all.weights),
                leeway: vec![Leeway::Within(op.bound())],
                name,
                arguments,
            });
        }
    }
    all
}

pub const GRAPHS: usize = 50;

/// Random graphs, each as it is and simplified.
///
/// # Panics
/// If the evaluator sees a difference.
pub fn graphs(module: u64) -> Calls {
    let mut all = Calls::default();
    let mut seed = module << 32;
    for number in 0..GRAPHS {
        let name = format!("graph{module}_{number}");
        let case = loop {
            seed += 1;
            if let Some(case) = portable(seed, &name) {
                break case;
            }
        };
        all.add_with_simplified(case);
    }
    all
}

/// The random graph of a seed that every implementation computes alike, and what it is given; nothing if the graph has no
/// operations.
pub fn portable(seed: u64, name: &str) -> Option<GraphCase> {
    let mut dice = Dice::new(seed);
    let nodes = 4 + dice.below(10);
    let trace = limited_graph(&mut dice, nodes, name, &PORTABLE);
    let function = &trace.functions[0];
    if function.outputs.is_empty() {
        return None;
    }
    let numbers = *dice.pick(&Numbers::ALL);
    let arguments = function.inputs().into_iter().map(|(_, ty)| numbers.value(&mut dice, ty)).collect();
    let weights = function.parameters().map(|p| (p.key.clone(), numbers.value(&mut dice, &p.ty))).collect();
    Some(GraphCase { trace, arguments, weights })
}

/// Every case that failed once, as it is and simplified.
pub fn found() -> Calls {
    let mut all = Calls::default();
    for (name, mut case) in case::found() {
        case.trace.functions[0].name = name.replace('-', "_");
        all.add_with_simplified(case);
    }
    all
}

impl Calls {
    /// Adds a program as it is and simplified.
    fn add_with_simplified(&mut self, case: GraphCase) {
        let expected = case.expected();
        let mut simplified = case.simplified();
        assert!(expected.iter().zip(&simplified.expected()).all(|(a, b)| same(a, b)), "{case}");
        self.changed += usize::from(simplified.function() != case.function());
        simplified.trace.functions[0].name += "_simplified";
        for case in [case, simplified] {
            self.add(case, expected.clone());
        }
    }

    /// Adds a program, which gives this.
    fn add(&mut self, case: GraphCase, expected: Vec<Value>) {
        let (name, text, leeway) = (case.function().name.clone(), case.to_string(), case.leeway());
        let GraphCase { trace, arguments, weights } = case;
        self.weights.extend(weights);
        for function in trace.functions {
            self.trace.entries.push(FunctionId(self.trace.functions.len() as u32));
            self.trace.functions.push(function);
        }
        self.calls.push(CheckedCall { name, text, arguments, expected, leeway });
    }

    pub fn of(case: GraphCase) -> Self {
        let (mut all, expected) = (Self::default(), case.expected());
        all.add(case, expected);
        all
    }

    /// Some of the calls, with what they call.
    pub fn part(&self, range: std::ops::Range<usize>) -> Self {
        let functions = self.trace.functions[range.clone()].to_vec();
        let entries = (0..functions.len()).map(|number| FunctionId(number as u32)).collect();
        let (trace, weights) = (Trace { functions, entries }, self.weights.clone());
        Self { trace, weights, calls: self.calls[range].to_vec(), changed: 0 }
    }

    /// One call as a program of its own.
    pub fn case(&self, number: usize) -> GraphCase {
        let CheckedCall { arguments, .. } = self.calls[number].clone();
        GraphCase { trace: self.part(number..number + 1).trace, arguments, weights: self.weights.clone() }
    }

    /// The program as one function `main` that makes all calls, and its arguments. `main` speaks of f32 and i32
    /// with at least one axis alone, which any host can pass; weights are arguments.
    ///
    /// # Errors
    /// If the types of the program do not fit.
    pub fn as_main(&self) -> Result<(Trace, Vec<Value>), InferError> {
        let mut main = Function::new("main", "");
        let provenance = Provenance::new("main", "tests/src/calls.rs", 1);
        let mut b = Builder { function: &mut main, provenance };
        let mut trace = Trace::default();
        let mut arguments = Vec::new();
        let mut results = Vec::new();
        for (number, (function, call)) in self.trace.functions.iter().zip(&self.calls).enumerate() {
            let mut function = function.clone();
            let mut values = call.arguments.clone();
            for id in function.ids() {
                let NodeKind::Parameter(parameter) = &function.node(id).kind else { continue };
                let key = parameter.key.clone();
                values.push(self.weights[&key].clone());
                function.node_mut(id).kind = NodeKind::input(values.len() - 1, key);
            }
            let mut operands = Vec::new();
            for value in values {
                let wire = wire(&value.ty);
                let x = input(&mut b, arguments.len(), wire.clone());
                let x = b.op(Reshape { shape: value.ty.shape.clone() }, &[x])?;
                operands.push(b.op(Convert { to: value.ty.element }, &[x])?);
                arguments.push(Value::new(wire, value.data));
            }
            let kind = NodeKind::Call { function: FunctionId(number as u32), prefix: String::new() };
            let call = b.push(kind, function.output_types().into_iter().cloned().collect(), &operands);
            for (index, ty) in function.output_types().into_iter().enumerate() {
                let x = b.push(NodeKind::Result { index }, vec![ty.clone()], &[call]);
                let wire = wire(ty);
                let x = b.op(Convert { to: wire.element }, &[x])?;
                results.push(b.op(Reshape { shape: wire.shape }, &[x])?);
            }
            trace.functions.push(function);
        }
        let output = |(i, node)| Output::new(format!("result{i}"), node);
        main.outputs = results.into_iter().enumerate().map(output).collect();
        trace.entries.push(FunctionId(trace.functions.len() as u32));
        trace.functions.push(main);
        Ok((trace, arguments))
    }

    /// The results of each call, of those of `main`.
    pub fn of_main(&self, results: Vec<Value>) -> Vec<Vec<Value>> {
        let mut results = results.into_iter();
        let mut found = |call: &CheckedCall| {
            let expected = call.expected.iter();
            expected.zip(&mut results).map(|(e, r)| Value::new(e.ty.clone(), r.data)).collect()
        };
        self.calls.iter().map(&mut found).collect()
    }

    /// For each result, how many elements must equal a particular number, and how many there are.
    pub fn held(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let of_call = |call: &'_ CheckedCall| {
            let results = call.expected.iter().zip(&call.leeway);
            results.map(|(expected, leeway)| leeway.held(expected)).collect::<Vec<_>>()
        };
        self.calls.iter().flat_map(of_call)
    }
}

/// The type in which `main` takes and gives a tensor; it holds all its numbers.
pub fn wire(ty: &TensorType) -> TensorType {
    let element = if ty.element.is_float() { ElementType::F32 } else { ElementType::I32 };
    let shape = if ty.shape.is_empty() { vec![1] } else { ty.shape.clone() };
    TensorType::new(element, shape)
}

pub fn input(b: &mut Builder<'_>, index: usize, ty: TensorType) -> NodeId {
    b.push(NodeKind::input(index, format!("argument{index}")), vec![ty], &[])
}

/// Appends an entry point with these inputs; `body` gives its results.
pub fn entry(
    trace: &mut Trace,
    name: &str,
    inputs: &[TensorType],
    body: impl FnOnce(&mut Builder<'_>, &[NodeId]) -> Result<Vec<NodeId>, InferError>,
) {
    let mut function = Function::new(name, "");
    let provenance = Provenance::new(name, "tests/src/calls.rs", 1);
    let mut builder = Builder { function: &mut function, provenance };
    let ids: Vec<NodeId> =
        inputs.iter().enumerate().map(|(i, ty)| input(&mut builder, i, ty.clone())).collect();
    let results = body(&mut builder, &ids).unwrap_or_else(|error| panic!("{name}: {error}"));
    let output = |(i, node)| Output::new(format!("result{i}"), node);
    function.outputs = results.into_iter().enumerate().map(output).collect();
    trace.entries.push(FunctionId(trace.functions.len() as u32));
    trace.functions.push(function);
}

/// An operation from its text form.
pub fn op(text: &str) -> Op {
    let mut reader = Reader::new(text);
    let op = Op::parse(&mut reader).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert!(reader.at_end(), "{text}: text is left over");
    op
}

/// A type from its text form: `f32[2,3]`.
pub fn ty(text: &str) -> TensorType {
    TensorType::parse(&mut Reader::new(text)).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// `f32[2,3] 1,2,3,4,5,6`, or `f32[2,3]` with made-up elements.
pub fn operand(text: &str, seed: u64) -> Value {
    let ty = ty(text);
    match text.split_once(' ') {
        Some((_, elements)) => Value::new(
            ty,
            elements.split(',').map(|x| x.parse().unwrap_or_else(|error| panic!("{text}: {error}"))),
        ),
        None => random(ty, seed),
    }
}

/// The same numbers, every fifth 32 of them eight times as large.
pub fn with_outliers(x: Value) -> Value {
    let larger = |(i, x): (usize, &f64)| if i / 32 % 5 == 2 { 8.0 * x } else { *x };
    Value::new(x.ty.clone(), x.data.iter().enumerate().map(larger))
}

/// Made-up elements: magnitudes from 2⁻⁶ to 2², so that scores are of the size that attention knows; both signs, a
/// zero, the first and last equal.
pub fn random(ty: TensorType, seed: u64) -> Value {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678_9abc_def1);
    let mut next = || {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let element = ty.element;
    let mut number = || match element {
        ElementType::I1 => (next() & 1) as f64,
        ElementType::I4 => (next() % 16) as f64 - 8.0,
        ElementType::I8 | ElementType::I32 => (next() % 201) as f64 - 100.0,
        _ => {
            let sign = if next() & 1 == 0 { 1.0 } else { -1.0 };
            let exponent = (next() % 8) as i32 - 6;
            sign * (1.0 + (next() >> 11) as f64 / (1u64 << 53) as f64) * 2f64.powi(exponent)
        }
    };
    let mut data: Vec<f64> = (0..ty.count()).map(|_| number()).collect();
    if let [first, .., last] = &mut data[..] {
        *last = *first;
    }
    if data.len() > 3 {
        data[2] = 0.0;
    }
    Value::new(ty, data)
}
