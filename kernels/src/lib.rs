//! Code of our own for what a compiler is slow at: products over packed weights.
//!
//! A kernel is text in the same module as the StableHLO that calls it, so that nothing but `iree-compile` is needed to
//! build it, for any processor that it knows. Which kernel serves an operation follows from the target; what none
//! serves stays StableHLO.

mod attention;
mod code;
mod isa;
mod kernel;
mod norm;
mod product;
mod quantized;
mod rope;
mod rows;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ops::ops::{PackedLinear, PackedRows};
use ops::{ElementType, Op, Operand, Statements, TensorType, WeightFormat};
use targets::Target;

use attention::Attention;
use code::Element;
use isa::Isa;
use kernel::Kernel;

/// The kernels of a module: which there could be, and which are called.
pub struct Kernels {
    isa: Option<Isa>,
    called: BTreeMap<String, Kernel>,
}

impl Kernels {
    /// Those for a target, if its features are known and there are any.
    pub fn of(target: &Target) -> Self {
        Self { isa: Isa::of(target), called: BTreeMap::new() }
    }

    /// None at all.
    pub fn none() -> Self {
        Self { isa: None, called: BTreeMap::new() }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.isa.is_none()
    }

    /// Whether there are products, of any number of rows, for weights of this shape in a format, and their rows can be
    /// looked up.
    pub fn serve(&self, format: WeightFormat, outputs: usize, inputs: usize) -> bool {
        self.isa.is_some()
            && outputs > 0
            && inputs > 0
            && (format.element().is_some() || inputs <= quantized::LONGEST)
    }

    /// Whether a kernel computes an operation that could also be said in primitives.
    pub fn compute(&self, op: &Op, operands: &[&TensorType]) -> bool {
        let known = match op {
            Op::Sdpa(op) => Attention::of(op, operands).is_some(),
            Op::Rope(op) => rope::serves(op, operands),
            Op::RmsNorm(_) => operands[0].count() > 0,
            _ => false,
        };
        known && self.isa.is_some()
    }

    /// What calls the kernel for an operation: the right-hand side of its statement. `None` if no kernel serves it.
    pub fn call(
        &mut self,
        statements: &mut dyn Statements,
        op: &Op,
        operands: &[Operand<'_>],
        ty: &TensorType,
    ) -> Option<String> {
        let isa = self.isa?;
        let types: Vec<&TensorType> = operands.iter().map(|operand| operand.ty).collect();
        Some(match op {
            Op::PackedLinear(op) => self.linear(isa, statements, op, operands, ty),
            Op::PackedRows(op) => self.rows(op, operands, ty),
            Op::Sdpa(op) => self.dispatch(Attention::of(op, &types)?.kernel(), &typed(operands), &ty.mlir()),
            Op::Rope(op) if rope::serves(op, &types) => {
                self.dispatch(rope::kernel(op, &types), &typed(operands), &ty.mlir())
            }
            Op::RmsNorm(op) if ty.count() > 0 => {
                self.dispatch(norm::kernel(op, ty), &typed(operands), &ty.mlir())
            }
            _ => return None,
        })
    }

    fn linear(
        &mut self,
        isa: Isa,
        statements: &mut dyn Statements,
        op: &PackedLinear,
        operands: &[Operand<'_>],
        ty: &TensorType,
    ) -> String {
        let [x, _, added @ ..] = operands else { unreachable!("inferred") };
        let inputs = x.ty.shape[x.ty.rank() - 1];
        let rows = x.ty.count() / inputs;
        let product = product::Product {
            format: op.format,
            x: lane(x.ty.element),
            y: lane(op.element),
            rows,
            inputs,
            outputs: op.outputs,
            adds: !added.is_empty(),
            isa,
        };
        let quantized;
        let mut operands = typed(operands);
        if product.quantizes_apart() {
            let integers =
                TensorType::new(ElementType::I8, [rows, quantized::Form { inputs }.bytes()]).mlir();
            let quantize = quantized::kernel(lane(x.ty.element), rows, inputs);
            let call = self.dispatch(quantize, &operands[..1], &integers);
            quantized = statements.statement(call);
            operands[0] = (&quantized, integers);
        }
        self.dispatch(product.kernel(), &operands, &ty.mlir())
    }

    fn rows(&mut self, op: &PackedRows, operands: &[Operand<'_>], ty: &TensorType) -> String {
        self.dispatch(rows::kernel(op, ty.count() / op.inputs), &typed(operands), &ty.mlir())
    }

    fn dispatch(
        &mut self,
        (name, kernel): (String, impl FnOnce() -> Kernel),
        operands: &[(&str, String)],
        result: &str,
    ) -> String {
        let names = operands.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let types = operands.iter().map(|(_, ty)| ty.as_str()).collect::<Vec<_>>().join(", ");
        let call = format!("flow.dispatch @kernels::@{name}({names}) : ({types}) -> {result}");
        self.called.entry(name).or_insert_with(kernel);
        call
    }

    /// The text of all kernels that were called, for the module that calls them.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if self.called.is_empty() {
            return text;
        }
        text.push_str("  stream.executable private @kernels {\n");
        for (name, kernel) in &self.called {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "    stream.executable.export public @{name} workgroups() -> (index, index, index) {{\n      \
                 %n = arith.constant {} : index\n      %one = arith.constant 1 : index\n      \
                 stream.return %n, %one, %one : index, index, index\n    }}",
                kernel.workgroups
            );
        }
        text.push_str("    builtin.module {\n");
        for (name, kernel) in &self.called {
            let arguments = (0..kernel.bindings)
                .map(|i| format!("%b{i}: !stream.binding"))
                .collect::<Vec<_>>()
                .join(", ");
            let _ = writeln!(
                text,
                "      func.func @{name}({arguments}) {{\n{}        return\n      }}",
                kernel.body
            );
        }
        text.push_str("    }\n  }\n");
        text
    }
}

fn typed<'a>(operands: &[Operand<'a>]) -> Vec<(&'a str, String)> {
    operands.iter().map(|operand| (operand.name, operand.ty.mlir())).collect()
}

/// How a kernel calls an element type.
fn lane(element: ElementType) -> Element {
    match element {
        ElementType::F32 => Element::F32,
        ElementType::F16 => Element::F16,
        ElementType::Bf16 => Element::Bf16,
        ElementType::I32 => Element::I32,
        ElementType::I8 | ElementType::I4 => Element::I8,
        ElementType::I1 => Element::I1,
    }
}
