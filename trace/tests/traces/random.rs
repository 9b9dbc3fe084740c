//! Tests random valid traces with all operations: the traces pass the verification, and their
//! printed text parses to equal traces.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use ops::{Attribute as _, Op, Reader, TensorType};
use proptest::prelude::*;
use tracewright_trace::*;

fn operation(text: &str) -> Op {
    Op::parse(&mut Reader::new(text)).unwrap()
}

fn ty(text: &str) -> TensorType {
    TensorType::parse(&mut Reader::new(text)).unwrap()
}

/// The choices for the next node. The numbers select among the existing nodes.
#[derive(Clone, Debug)]
struct Step {
    example: usize,
    picks: [usize; 5],
    name: String,
    line: u32,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let text = prop_oneof!["[a-z_]{1,8}", "[ -~\n\t\u{e9}\u{4e2d}]{0,12}"];
    let step = (any::<usize>(), any::<[usize; 5]>(), text, any::<u32>());
    let step = step.prop_map(|(example, picks, name, line)| Step { example, picks, name, line });
    prop::collection::vec(step, 1..24)
}

/// Selects an existing node of this type, or creates a new input or weight.
fn operand(function: &mut Function, ty: &TensorType, pick: usize, step: &Step) -> NodeId {
    let is_value = |id: &NodeId| !matches!(function.node(*id).kind, NodeKind::Call { .. });
    let fits: Vec<NodeId> =
        function.ids().filter(is_value).filter(|&id| function.node(id).ty() == ty).collect();
    if !fits.is_empty() && !pick.is_multiple_of(4) {
        return fits[pick % fits.len()];
    }
    let kind = match pick % 2 {
        0 => NodeKind::input(function.inputs().len(), step.name.clone()),
        _ => {
            NodeKind::Parameter(Parameter::new(format!("{}.{}", function.prefix, function.len()), ty.clone()))
        }
    };
    function.push(node(kind, vec![ty.clone()], step), &[])
}

fn node(kind: NodeKind, types: Vec<TensorType>, step: &Step) -> Node {
    let axes = match step.line % 2 {
        0 => (0..types[0].rank()).map(|i| format!("A{i}").into()).collect(),
        _ => vec![],
    };
    Node {
        kind,
        types,
        axes,
        provenance: Provenance::new(&step.name, &format!("{}.rs", step.name), step.line),
    }
}

fn function(trace: &Trace, index: usize, steps: &[Step]) -> Function {
    let examples: Vec<_> =
        Op::examples().into_iter().flat_map(|(_, e)| e).filter(|e| e.result.is_ok()).collect();
    let mut function = Function::new(format!("f{index}"), format!("f{index}.*"));
    for step in steps {
        if index > 0 && step.example.is_multiple_of(5) {
            let callee = FunctionId((step.picks[0] % index) as u32);
            let types: Vec<TensorType> =
                trace.function(callee).inputs().iter().map(|(_, ty)| (*ty).clone()).collect();
            let results: Vec<TensorType> =
                trace.function(callee).output_types().into_iter().cloned().collect();
            let pick = |(i, ty)| operand(&mut function, ty, step.picks[i % 5], step);
            let arguments: Vec<NodeId> = types.iter().enumerate().map(pick).collect();
            let kind = NodeKind::Call { function: callee, prefix: step.name.clone() };
            let mut call = node(kind, results.clone(), step);
            call.axes.clear();
            let call = function.push(call, &arguments);
            let index = step.picks[1] % results.len();
            function.push(node(NodeKind::Result { index }, vec![results[index].clone()], step), &[call]);
        } else {
            let example = examples[step.example % examples.len()];
            let types: Vec<TensorType> = example.operands.iter().map(|text| ty(text)).collect();
            let pick = |(i, ty)| operand(&mut function, ty, step.picks[i % 5], step);
            let operands: Vec<NodeId> = types.iter().enumerate().map(pick).collect();
            let op = operation(example.op);
            let result = op.infer(&types.iter().collect::<Vec<_>>()).unwrap();
            function.push(node(NodeKind::Op(op), vec![result], step), &operands);
        }
        let last = NodeId::new(function.len() - 1);
        function.outputs.push(Output::new(step.name.clone(), last));
    }
    function
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_random_trace_verifies_and_reads_back(bodies in prop::collection::vec(steps(), 1..4)) {
        let mut trace = Trace::default();
        for (index, steps) in bodies.iter().enumerate() {
            let function = function(&trace, index, steps);
            trace.functions.push(function);
        }
        trace.entries = vec![FunctionId(bodies.len() as u32 - 1)];
        // With random prefixes, calls can declare the same key with two types. This is the only
        // error that the test allows.
        match trace.verify() {
            Ok(()) | Err(VerifyError::Parameter(_)) => {}
            Err(error) => panic!("{error}"),
        }
        let text = trace.to_string();
        let again: Trace = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
        prop_assert_eq!(&again, &trace);
        prop_assert_eq!(again.to_string(), text);

        // The verification notices a wrong type of any node.
        let victim = bodies[0][0].picks[2] % trace.functions[0].len();
        let node = trace.functions[0].node_mut(NodeId::new(victim));
        node.types[0].shape.push(3);
        node.axes.clear();
        if !matches!(node.kind, NodeKind::Input { .. }) {
            prop_assert!(trace.verify().is_err());
        }
    }
}
