//! Tracewright's own kernels for operations for which `iree-compile` generates slow code, such as
//! matmuls with packed weights.
//!
//! A kernel is MLIR text. The text of a kernel is in the same MLIR module as the StableHLO code
//! that calls the kernel. Therefore `iree-compile` can compile a kernel for every processor that
//! `iree-compile` supports. The target decides which kernel computes an operation. If the target
//! has no kernel for an operation, the module computes the operation with StableHLO code.

mod append;
mod attention;
mod code;
mod cuda;
mod dequantize;
mod formats;
mod fused_op;
mod isa;
mod kernel;
mod linear_attention;
mod math;
mod matmul;
mod norm;
mod packing;
mod prologue;
mod quantized;
mod rope;
mod rows;
mod tilings;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ops::format::ActivationBits;
use ops::ops::{Dequantize, LinearAttention, PackedExperts, PackedLinear, PackedRows, RmsNorm};
use ops::{ElementType, Op, Operand, Statements, TensorType, WeightFormat};
use targets::{Target, Tiling};

use append::Appending;
use attention::Attention;
use code::Element;
use isa::Isa;
use kernel::Kernel;
use matmul::{Matmul, Stack};
use norm::Norm;
use packing::Packing;
use rope::Rotation;

pub use cuda::{CUDA_VECTORS, CudaAttention, CudaKernel, CudaProduct};
pub use fused_op::{Broadcast, Epilogue, EpilogueOp, FusedLayout, FusedOp, FusedPrologue, TailStep, Tokens};
pub use tilings::Tilings;

/// The kernel that computes one fused operation.
enum Serving<'w> {
    Matmul(Matmul<'w>),
    Rows(&'w PackedRows),
    Append(Appending),
    Dequantize(&'w Dequantize),
    Attention(Attention),
    LinearAttention(&'w LinearAttention),
    Rope(Rotation, Option<Norm>),
    Norm(&'w RmsNorm),
}

/// The kernels that a module can use: the kernels that the target supports, and the kernels that
/// the module's code calls.
pub struct Kernels {
    isa: Option<Isa>,
    tuning: BTreeMap<String, Tiling>,
    /// The tilings from tuning files that the module uses.
    tuned: BTreeMap<String, Tiling>,
    called: BTreeMap<String, Kernel>,
    /// The epilogues of the kernels that the module calls. The name of a kernel contains the index
    /// of the kernel's epilogue in the list of epilogues.
    tails: Vec<Epilogue>,
}

impl Kernels {
    /// Creates the set of kernels that a target supports. The set is empty if the processor
    /// features of the target are unknown.
    pub fn of(target: &Target) -> Self {
        Self { isa: Isa::of(target), tuning: target.tuning.kernels.clone(), ..Self::none() }
    }

    pub fn none() -> Self {
        let (tuning, tuned) = (BTreeMap::new(), BTreeMap::new());
        Self { isa: None, tuning, tuned, called: BTreeMap::new(), tails: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.isa.is_none()
    }

    /// Whether a kernel supports a weight of the given shape and format, for matmuls with any
    /// number of activation rows and also for row lookups.
    pub fn serve(&self, format: WeightFormat, outputs: usize, inputs: usize) -> bool {
        self.isa.is_some()
            && outputs > 0
            && inputs > 0
            && (format.element().is_some() || inputs <= quantized::LONGEST)
    }

    /// Whether one kernel can compute the main operation, the prologue and the epilogue of a fused
    /// operation.
    pub fn can_do(&self, work: &FusedOp<'_>) -> bool {
        self.serving(work).is_some()
    }

    /// The kernel that computes the main operation, the prologue and the epilogue of a fused
    /// operation.
    fn serving<'w>(&self, work: &'w FusedOp<'_>) -> Option<Serving<'w>> {
        let isa = self.isa?;
        let (FusedPrologue { norm, rope }, epilogue) = (work.prologue, &work.epilogue);
        let (plain, ends) = (work.prologue.is_nothing(), epilogue.steps.is_empty());
        let (whole, some) = (!epilogue.halves, work.types.first().is_some_and(|ty| ty.count() > 0));
        if !epilogue.steps.iter().all(|step| step.kind.is_known()) {
            return None;
        }
        Some(match work.main {
            Op::Sdpa(op) if ends => Serving::Attention(Attention::of(isa, op, work)?),
            Op::LinearAttention(op) if plain && ends && whole && work.types[5].count() > 0 => {
                Serving::LinearAttention(op)
            }
            Op::Append(op) if ends => Serving::Append(Appending::of(op, work)?),
            _ if work.layout.tokens.is_some() => return None,
            Op::PackedLinear(op) if rope.is_none() => Serving::Matmul(linear(isa, op, work)?),
            Op::PackedExperts(op) if plain && whole => Serving::Matmul(experts(isa, op, work)?),
            Op::PackedRows(op) if plain && whole && (ends || rows::takes_epilogue(op)) => Serving::Rows(op),
            Op::Dequantize(op) if plain && ends && some => Serving::Dequantize(op),
            Op::Rope(op) if rope.is_none() && ends => {
                let rotation = Rotation::of(op, [work.types[0], work.types[1]])?;
                Serving::Rope(rotation, norm.map(|(op, x)| Norm::of(op, x)))
            }
            Op::RmsNorm(op) if plain && whole && some => Serving::Norm(op),
            _ => return None,
        })
    }

    /// Returns the call of a fused operation's kernel, as the right-hand side of a statement. The
    /// function returns `None` if no kernel supports the fused operation.
    pub fn call(
        &mut self,
        statements: &mut dyn Statements,
        work: &FusedOp<'_>,
        operands: &[Operand<'_>],
        ty: &TensorType,
    ) -> Option<String> {
        let serving = self.serving(work)?;
        let (mut operands, result) = (typed(operands), ty.mlir());
        let element = lane(ty.element);
        Some(match serving {
            Serving::Matmul(product) => {
                let packings = [product.apart(), product.grouping()];
                let packed = self.packed(statements, packings.into_iter().flatten(), &operands);
                packed.iter().for_each(|(index, name, ty)| operands[*index] = (name, ty.clone()));
                let kernel = product.kernel(element, self.tiling(product.key(), product.usual()));
                let name = self.ending(product.name(), &work.epilogue);
                self.dispatch(name, kernel, &operands, &result)
            }
            Serving::Rows(op) => {
                let (name, kernel) = rows::kernel(op, ty.count() / op.inputs, (&work.epilogue, element));
                let name = self.ending(name, &work.epilogue);
                self.dispatch(name, kernel, &operands, &result)
            }
            Serving::Append(appending) => {
                let (name, kernel) = appending.kernel();
                let updated = operands[0].0;
                self.dispatch(name, kernel, &operands, updated)
            }
            Serving::Dequantize(op) => {
                let (name, kernel) = dequantize::kernel(op, work.types[0]);
                self.dispatch(name, kernel, &operands, &result)
            }
            Serving::Attention(attention) => {
                let packed = self.packed(statements, attention.apart().into_iter(), &operands);
                packed.iter().for_each(|(index, name, ty)| operands[*index] = (name, ty.clone()));
                let (name, kernel) = attention.kernel(self.tiling(attention.name(), attention.usual()));
                self.dispatch(name, kernel, &operands, &result)
            }
            Serving::LinearAttention(op) => {
                let parts = self.linear_attention(statements, op, &work.types, &operands);
                let types = linear_attention::results(&work.types).map(|ty| ty.mlir()).join(", ");
                format!("stablehlo.concatenate {}, dim = 3 : ({types}) -> {result}", parts.join(", "))
            }
            Serving::Rope(rotation, norm) => {
                let (name, kernel) = rope::kernel(rotation, norm);
                self.dispatch(name, kernel, &operands, &result)
            }
            Serving::Norm(op) => {
                let (name, kernel) = norm::kernel(op, work.types[0], &work.epilogue, element);
                let name = self.ending(name, &work.epilogue);
                self.dispatch(name, kernel, &operands, &result)
            }
        })
    }

    /// Writes the call of the kernel of a fused linear attention. Returns the names of the two parts of
    /// the operation's result: the new state matrices, and the outputs of the tokens. The function
    /// returns `None` if the operation is not linear attention, or no kernel supports the operation.
    pub fn call_in_parts(
        &mut self,
        statements: &mut dyn Statements,
        work: &FusedOp<'_>,
        operands: &[Operand<'_>],
    ) -> Option<[String; 2]> {
        match self.serving(work)? {
            Serving::LinearAttention(op) => {
                Some(self.linear_attention(statements, op, &work.types, &typed(operands)))
            }
            _ => None,
        }
    }

    fn linear_attention(
        &mut self,
        statements: &mut dyn Statements,
        op: &LinearAttention,
        types: &[&TensorType],
        operands: &[(&str, String)],
    ) -> [String; 2] {
        let (name, kernel) = linear_attention::kernel(op, types);
        let results = linear_attention::results(types).map(|ty| ty.mlir()).join(", ");
        let call = self.dispatch(name, kernel, operands, &format!("({results})"));
        let both = statements.group(call, 2);
        [0, 1].map(|part| format!("{both}#{part}"))
    }

    /// Returns the tiling for the fused operation `work`: the tiling from the tuning file if the
    /// file has one, otherwise the tiling `usual`.
    fn tiling(&mut self, work: String, usual: Tiling) -> Tiling {
        match self.tuning.get(&work) {
            Some(&tiling) => *self.tuned.entry(work).or_insert(tiling),
            None => usual,
        }
    }

    /// The tilings from the target's tuning file that this set of kernels has returned so far.
    pub fn tuned(&self) -> &BTreeMap<String, Tiling> {
        &self.tuned
    }

    /// Returns the tilings of a fused matmul or a fused attention that are worth measuring; `None`
    /// for other operations.
    pub fn tilings(&self, work: &FusedOp<'_>) -> Option<Tilings> {
        match self.serving(work)? {
            Serving::Matmul(product) => Some(product.tilings()),
            Serving::Attention(attention) => Some(attention.tilings()),
            Serving::Rows(_)
            | Serving::Append(_)
            | Serving::Dequantize(_)
            | Serving::LinearAttention(_)
            | Serving::Rope(..)
            | Serving::Norm(_) => None,
        }
    }

    /// Appends the index of the kernel's epilogue to the name of the kernel.
    fn ending(&mut self, name: String, tail: &Epilogue) -> String {
        if tail.steps.is_empty() {
            return name;
        }
        let place = self.tails.iter().position(|known| known == tail).unwrap_or_else(|| {
            self.tails.push(tail.clone());
            self.tails.len() - 1
        });
        format!("{name}_tail{place}")
    }

    /// Writes the calls of the kernels that prepare operands. Returns the index, the name and the type
    /// of each prepared operand.
    fn packed<'a>(
        &mut self,
        statements: &mut dyn Statements,
        packings: impl Iterator<Item = Packing<'a>>,
        operands: &[(&str, String)],
    ) -> Vec<(usize, String, String)> {
        let packed = packings.map(|packing| {
            let Packing { name, ty, operands: read, kernel } = packing;
            let operands: Vec<(&str, String)> = read.iter().map(|&index| operands[index].clone()).collect();
            let call = self.dispatch(name, kernel, &operands, &ty.mlir());
            (read[0], statements.statement(call), ty.mlir())
        });
        packed.collect()
    }

    fn dispatch(
        &mut self,
        name: String,
        kernel: impl FnOnce() -> Kernel,
        operands: &[(&str, String)],
        result: &str,
    ) -> String {
        let names = operands.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let types = operands.iter().map(|(_, ty)| ty.as_str()).collect::<Vec<_>>().join(", ");
        let call = format!("flow.dispatch @kernels::@{name}({names}) : ({types}) -> {result}");
        self.called.entry(name).or_insert_with(kernel);
        call
    }

    /// The MLIR text of all kernels that the module calls.
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

/// Returns a fused operation as a matmul whose weight is one matrix; `None` if the operation is not
/// such a matmul, or if no kernel supports the matmul.
fn linear<'a>(isa: Isa, op: &PackedLinear, work: &'a FusedOp<'_>) -> Option<Matmul<'a>> {
    product(isa, work, (op.format, op.activations), (op.element, op.outputs), None)
}

/// Returns a fused operation as a matmul whose weight is a stack of matrices; `None` if the
/// operation is not such a matmul, or if no kernel supports the matmul.
fn experts<'a>(isa: Isa, op: &PackedExperts, work: &'a FusedOp<'_>) -> Option<Matmul<'a>> {
    let x = *work.types.first()?;
    let chosen = work.types.get(2);
    let rows = chosen.map_or(x.count() / x.shape[x.rank() - 1], |indices| indices.count());
    let stack = Stack { matrices: op.experts, rows, chosen: chosen.is_some() };
    product(isa, work, (op.format, op.activations), (op.element, op.outputs), Some(stack))
}

fn product<'a>(
    isa: Isa,
    work: &'a FusedOp<'_>,
    (format, activations): (WeightFormat, ActivationBits),
    (element, outputs): (ElementType, usize),
    stack: Option<Stack>,
) -> Option<Matmul<'a>> {
    let x = *work.types.first()?;
    let inputs = x.shape[x.rank() - 1];
    let product = Matmul {
        format,
        activations,
        x: lane(x.element),
        y: lane(element),
        rows: x.count() / inputs,
        inputs,
        outputs,
        stack,
        norm: work.prologue.norm.map(|(op, x)| Norm::of(op, x)),
        tail: &work.epilogue,
        isa,
    };
    product.serves().then_some(product)
}

fn typed<'a>(operands: &[Operand<'a>]) -> Vec<(&'a str, String)> {
    operands.iter().map(|operand| (operand.name, operand.ty.mlir())).collect()
}

/// Converts the element type of a tensor to an element type of the kernel language.
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
