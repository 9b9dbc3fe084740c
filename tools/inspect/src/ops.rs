//! `trace-dump ops` lists all operations with their documentation.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use clap::Args;
use serde_json::{Value, json};
use tracewright::lower;
use tracewright::ops::{
    Attribute as _, Documented, ElementType, Example, Form, Op, Operand, Reader, Statements, TensorType,
};
use tracewright::trace::{Builder, Function, FunctionId, NodeKind, Output, Provenance, Trace};

use crate::error::InspectError;

#[derive(Args)]
pub struct OpsArguments {
    /// Print the list as JSON, with attributes, element types, StableHLO names, examples and source files
    #[arg(long)]
    json: bool,
}

impl OpsArguments {
    pub fn run(&self) -> Result<(), InspectError> {
        Ok(console::print(&ops(self.json))?)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The operation is a single StableHLO statement.
    Primitive,
    Composite,
    Kernel,
    /// `bake` computes the operation when `bake` writes an archive. The operation is never in a module.
    Archive,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Primitive => "primitive",
            Self::Composite => "composite",
            Self::Kernel => "kernel",
            Self::Archive => "archive",
        }
    }
}

/// An operation, and facts that `ops` derives from the valid examples of the operation.
struct Listed {
    said: Documented,
    kind: Kind,
    operands: BTreeSet<usize>,
    /// The element types of the first operand, or of the result if the operation has no operand.
    elements: Vec<ElementType>,
    /// Names of StableHLO operations.
    becomes: BTreeSet<String>,
}

fn ops(json: bool) -> String {
    let listed: Vec<Listed> = Op::documented().into_iter().map(Listed::new).collect();
    if json {
        format!("{:#}\n", Value::Array(listed.iter().map(Listed::object).collect()))
    } else {
        listed.iter().map(Listed::line).collect()
    }
}

impl Listed {
    fn new(said: Documented) -> Self {
        let good: Vec<(Op, Vec<TensorType>)> = said.examples.iter().filter_map(read).collect();
        let mut becomes = BTreeSet::new();
        let mut kind = Kind::Primitive;
        for (op, types) in &good {
            kind = match op.form() {
                Form::Primitive => {
                    becomes.extend(statements(op, types).iter().filter_map(|text| word(text)));
                    Kind::Primitive
                }
                Form::Composite(_) | Form::Idiom(_) => {
                    becomes.extend(converted(op, types));
                    Kind::Composite
                }
                Form::Archive(_) => Kind::Archive,
                Form::Kernel => Kind::Kernel,
            };
        }
        let accepts = |element: &ElementType| {
            good.iter().any(|(op, types)| {
                let Some(first) = types.first() else {
                    return op.infer(&[]).is_ok_and(|ty| ty.element == *element);
                };
                let alike = |ty: &TensorType| {
                    if ty.element == first.element {
                        TensorType::new(*element, ty.shape.clone())
                    } else {
                        ty.clone()
                    }
                };
                let types: Vec<TensorType> = types.iter().map(alike).collect();
                op.infer(&types.iter().collect::<Vec<_>>()).is_ok()
            })
        };
        Self {
            operands: good.iter().map(|(_, types)| types.len()).collect(),
            elements: ElementType::ALL.iter().copied().filter(accepts).collect(),
            said,
            kind,
            becomes,
        }
    }

    /// The first sentence of an operation's documentation.
    fn summary(&self) -> String {
        let text = self.doc();
        let paragraph = text.split("\n\n").next().unwrap_or_default().replace('\n', " ");
        let end = paragraph.find(". ").map_or(paragraph.len(), |end| end + 1);
        paragraph[..end].to_owned()
    }

    fn doc(&self) -> String {
        let lines: Vec<&str> =
            self.said.doc.iter().map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
        lines.join("\n")
    }

    fn file(&self) -> String {
        format!("trace/ops/src/ops/{}.rs", self.said.module.rsplit("::").next().unwrap_or_default())
    }

    fn line(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:<22} {:<10} {}", self.said.name, self.kind.word(), self.summary());
        text
    }

    fn object(&self) -> Value {
        let Documented { name, rust, fields, examples, .. } = self.said;
        let attribute = |(name, doc): &(&str, &[&str])| json!({ "name": name, "doc": doc.join("\n").trim() });
        let good = examples.iter().filter(|example| example.result.is_ok());
        let uses = good
            .map(|e| json!({ "op": e.op, "operands": e.operands, "result": e.result.ok() }))
            .collect::<Vec<_>>();
        let words = |kind| if self.kind == kind { json!(self.becomes) } else { json!([]) };
        json!({
            "name": name, "kind": self.kind.word(), "summary": self.summary(), "doc": self.doc(),
            "file": self.file(), "rust": format!("tracewright::ops::ops::{rust}"),
            "attributes": fields.iter().map(attribute).collect::<Vec<_>>(),
            "operands": self.operands,
            "elements": self.elements.iter().map(ElementType::to_string).collect::<Vec<_>>(),
            "stablehlo": words(Kind::Primitive), "becomes": words(Kind::Composite), "examples": uses,
        })
    }
}

/// The operation of a valid example, and its operands' types.
fn read(example: &Example) -> Option<(Op, Vec<TensorType>)> {
    example.result.ok()?;
    let op = Op::parse(&mut Reader::new(example.op)).ok()?;
    let types = example.operands.iter().map(|text| TensorType::parse(&mut Reader::new(text)).ok());
    Some((op, types.collect::<Option<_>>()?))
}

/// The StableHLO statements that a module needs before the operation's own statement.
struct Before(Vec<String>);

impl Statements for Before {
    fn statement(&mut self, rhs: String) -> String {
        self.group(rhs, 1)
    }

    fn group(&mut self, rhs: String, _: usize) -> String {
        self.0.push(rhs);
        format!("%before{}", self.0.len())
    }
}

/// The StableHLO statements of a primitive operation, without the names of the results.
fn statements(op: &Op, types: &[TensorType]) -> Vec<String> {
    let Ok(ty) = op.infer(&types.iter().collect::<Vec<_>>()) else { return Vec::new() };
    let names: Vec<String> = (0..types.len()).map(|i| format!("%{i}")).collect();
    let operands: Vec<Operand<'_>> = names.iter().zip(types).map(|(name, ty)| Operand { name, ty }).collect();
    let mut before = Before(Vec::new());
    let last = op.spell(&mut before, &operands, &ty);
    before.0.into_iter().chain(last).collect()
}

/// The name of the StableHLO operation in a statement, such as `stablehlo.add`.
fn word(statement: &str) -> Option<String> {
    let rest = &statement[statement.find("stablehlo.")?..];
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '.').unwrap_or(rest.len());
    Some(rest[..end].to_owned())
}

fn converted(op: &Op, types: &[TensorType]) -> BTreeSet<String> {
    let mut function = Function::new("main", "");
    let mut b = Builder { function: &mut function, provenance: Provenance::new("", file!(), line!()) };
    let input = |(i, ty): (usize, &TensorType)| (NodeKind::input(i, format!("x{i}")), vec![ty.clone()]);
    let inputs: Vec<_> =
        types.iter().enumerate().map(input).map(|(kind, types)| b.push(kind, types, &[])).collect();
    let Ok(result) = b.op(op.clone(), &inputs) else { return BTreeSet::new() };
    function.outputs = vec![Output::new("result", result)];
    let trace = Trace { functions: vec![function], entries: vec![FunctionId(0)] };
    let Ok(expanded) = lower::expand(&trace) else { return BTreeSet::new() };
    let nodes = expanded.functions.iter().flat_map(|function| function.ids().map(|id| function.node(id)));
    nodes
        .filter_map(|node| match &node.kind {
            NodeKind::Op(op) => Some(op.name().to_owned()),
            _ => None,
        })
        .collect()
}
