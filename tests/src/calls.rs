//! Programs of many small entry points, each called once, with the evaluator's answers: what other implementations
//! of StableHLO are compared with.

use std::collections::BTreeMap;
use std::ops::Range;

use tracewright::ops::ops::{BinaryKind, Convert, ReduceKind, Reshape, UnaryKind};
use tracewright::ops::{
    Attribute as _, Bound, ElementType, InferError, Literal, Op, Reader, TensorType, Value,
};
use tracewright::simplify::{Options, simplify};
use tracewright::trace::{
    self, Builder, Evaluation, Function, FunctionId, NodeId, NodeKind, Output, Provenance, Trace,
};

use crate::arbitrary::{Dice, Limits, limited_graph, same};

/// Entry points, what they are called with, and what they give.
#[derive(Default)]
pub struct Calls {
    /// The program: one entry point for each call, in the same order.
    pub trace: Trace,
    /// Its weights.
    pub weights: WeightValues,
    /// The calls.
    pub calls: Vec<CheckedCall>,
    /// How many graphs simplification changed.
    pub changed: usize,
}

impl Calls {
    /// Some of the calls, and their entry points.
    pub fn only(self, range: Range<usize>) -> Self {
        let calls: Vec<CheckedCall> = self.calls.into_iter().skip(range.start).take(range.len()).collect();
        let names: Vec<&str> = calls.iter().map(|call| &*call.name).collect();
        Self { trace: self.trace.with_entries(&names), calls, ..self }
    }
}

/// A call of an entry point.
pub struct CheckedCall {
    /// The entry point.
    pub name: String,
    /// What it is, for messages.
    pub text: String,
    /// One value for each input.
    pub arguments: Vec<Value>,
    /// What the evaluator gives.
    pub expected: Vec<Value>,
    /// How far from it each result may be.
    pub bounds: Vec<Bound>,
}

impl CheckedCall {
    /// What is wrong with these results.
    pub fn violation(&self, found: &[Value]) -> Option<String> {
        if found.len() != self.expected.len() {
            return Some(format!("{}: {} results, expected {}", self.text, found.len(), self.expected.len()));
        }
        (0..found.len()).find_map(|i| {
            let (expected, found, bound) = (&self.expected[i], &found[i], self.bounds[i]);
            if expected.ty != found.ty {
                return Some(format!(
                    "{}: result {i} is {:?}, expected {:?}",
                    self.text, found.ty, expected.ty
                ));
            }
            let (index, expected, found) = bound.first_violation(expected, found)?;
            let text = &self.text;
            Some(format!("{text}: result {i}, element {index} is {found}, expected {expected} {bound:?}"))
        })
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
                bounds: vec![op.bound()],
                name,
                arguments,
            });
        }
    }
    all
}

/// Graphs in one module.
pub const GRAPHS: usize = 50;

/// Random graphs, each as it is and simplified.
///
/// # Panics
/// If the evaluator sees a difference.
pub fn graphs(module: u64) -> Calls {
    let mut all = Calls::default();
    let mut seed = module << 32;
    while all.calls.len() < 2 * GRAPHS {
        seed += 1;
        let mut dice = Dice::new(seed);
        let name = format!("graph{}", all.calls.len() / 2);
        let nodes = 4 + dice.below(10);
        let before = limited_graph(&mut dice, nodes, &name, &PORTABLE);
        if before.functions[0].outputs.is_empty() {
            continue;
        }
        let (after, report) = simplify(&before, &Options::default());
        all.changed += usize::from(report.functions[0].cost[0] != report.functions[0].cost[1]);
        let function = &before.functions[0];
        let arguments: Vec<Value> =
            function.inputs().into_iter().map(|(_, ty)| integers(&mut dice, ty)).collect();
        for parameter in function.parameters() {
            all.weights.insert(parameter.key.clone(), integers(&mut dice, &parameter.ty));
        }
        for parameter in after.functions[0].parameters() {
            let value = parameter.value(&|key| all.weights.get(key).cloned());
            let value = value.unwrap_or_else(|(key, ty)| panic!("no weight `{key}` of {ty:?}"));
            all.weights.insert(parameter.key.clone(), value);
        }
        let bound = |output: &Output| match &function.node(output.node).kind {
            NodeKind::Op(op) => op.bound(),
            _ => Bound::Exact,
        };
        let bounds: Vec<Bound> = function.outputs.iter().map(bound).collect();
        let expected = evaluate(&before, &name, &arguments, &all.weights);
        let found = evaluate(&after, &name, &arguments, &all.weights);
        assert!(expected.iter().zip(&found).all(|(a, b)| same(a, b)), "{before}\n{after}");
        for (trace, suffix) in [(before, ""), (after, "_simplified")] {
            let name = format!("{name}{suffix}");
            let text = format!("module {module}, {trace}");
            let Some(mut function) = trace.functions.into_iter().next() else { continue };
            function.name.clone_from(&name);
            all.trace.entries.push(FunctionId(all.trace.functions.len() as u32));
            all.trace.functions.push(function);
            let (arguments, expected, bounds) = (arguments.clone(), expected.clone(), bounds.clone());
            all.calls.push(CheckedCall { name, text, arguments, expected, bounds });
        }
    }
    all
}

/// What all implementations compute the same in any surroundings. All numbers are small integers, so that sums have
/// no order and narrow floats nothing to round; what has more digits is a result, and nothing reads it. Left out,
/// each because IREE or StableHLO says something else than the evaluator, so that folding shows: empty tensors,
/// which iree-compile does not take everywhere; i4, of which IREE takes whole bytes only; division of integers by zero;
/// conversions to an integer type that may be too small, which wrap around.
const PORTABLE: Limits = Limits {
    accept: |op, types, result| {
        let fits = |ty: &TensorType| !ty.shape.contains(&0) && ty.element != ElementType::I4;
        let sound = match op {
            Op::Binary(binary) => binary.kind != BinaryKind::Divide || result.element.is_float(),
            Op::Convert(convert) => {
                let from = types[0].element;
                convert.to != ElementType::I8 || matches!(from, ElementType::I1 | ElementType::I8)
            }
            // Larger ones are globals, which the interpreter does not know.
            Op::Constant(constant) => match constant.value.as_splat() {
                Some(bits) => result.element.decode(bits).is_finite(),
                None => result.bytes() <= 1024,
            },
            _ => true,
        };
        sound && fits(result) && types.iter().all(|ty| fits(ty))
    },
    read: |op, result| match op {
        Op::Unary(unary) => matches!(unary.kind, UnaryKind::Negate | UnaryKind::Abs | UnaryKind::Not),
        Op::Binary(binary) => match binary.kind {
            BinaryKind::Divide | BinaryKind::Power => false,
            BinaryKind::Add | BinaryKind::Subtract | BinaryKind::Multiply => {
                !matches!(result.element, ElementType::F16 | ElementType::Bf16)
            }
            _ => true,
        },
        Op::Reduce(reduce) => reduce.kind != ReduceKind::Add,
        Op::Constant(constant) => constant.value.as_rope_table().is_none(),
        Op::DotGeneral(_) | Op::Erf(_) | Op::Linear(_) | Op::RmsNorm(_) | Op::Rope(_) | Op::Sdpa(_) => false,
        _ => true,
    },
    leaf: |ty| !ty.shape.contains(&0) && ty.element != ElementType::I4,
    literal: |dice, ty| match dice.chance(60) {
        true => Literal::splat(ty.clone(), *dice.pick(&[0.0, -0.0, 1.0, 1.0, -1.0, 2.0])),
        false => Literal::from_value(&integers(dice, ty)),
    },
};

fn integers(dice: &mut Dice, ty: &TensorType) -> Value {
    let data: Vec<f64> = (0..ty.count()).map(|_| dice.below(9) as f64 - 4.0).collect();
    Value::new(ty.clone(), data)
}

impl Calls {
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

    /// What is wrong with the results of `main`: a line for each call that gave other numbers.
    pub fn violations(&self, results: Vec<Value>) -> Vec<String> {
        let mut results = results.into_iter();
        let mut violation = |call: &CheckedCall| {
            let expected = call.expected.iter();
            let found: Vec<Value> =
                expected.zip(&mut results).map(|(e, r)| Value::new(e.ty.clone(), r.data)).collect();
            call.violation(&found)
        };
        self.calls.iter().filter_map(&mut violation).collect()
    }
}

/// The type in which `main` takes and gives a tensor; it holds all its numbers.
pub fn wire(ty: &TensorType) -> TensorType {
    let element = if ty.element.is_float() { ElementType::F32 } else { ElementType::I32 };
    let shape = if ty.shape.is_empty() { vec![1] } else { ty.shape.clone() };
    TensorType::new(element, shape)
}

/// The numbers of the weights, by key.
pub type WeightValues = BTreeMap<String, Value>;

/// Evaluates an entry point with these weights.
pub fn evaluate(trace: &Trace, name: &str, arguments: &[Value], weights: &WeightValues) -> Vec<Value> {
    let parameters = |key: &str| weights.get(key).cloned();
    let evaluation = Evaluation { parameters: &parameters, watch: None };
    trace::evaluate(trace, name, arguments.to_vec(), evaluation).unwrap_or_else(|error| panic!("{error}"))
}

/// Appends an input.
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
