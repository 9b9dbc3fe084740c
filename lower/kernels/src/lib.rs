//! Kernels for operations for which `iree-compile` generates slow code, such as matmuls with packed weights.
//! A kernel is MLIR text in the module of the StableHLO code that calls it, so `iree-compile` can compile it
//! for all its processors. The target decides which kernel computes an operation, or StableHLO code without
//! one.

mod append;
mod attention;
mod code;
mod contraction;
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

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use ops::format::ActivationBits;
use ops::ops::{Dequantize, LinearAttention, PackedExperts, PackedLinear, PackedRows, RmsNorm};
use ops::{ElementType, Op, Operand, Statements, TensorType, WeightFormat};
use targets::{Numerics, Target, Tiling};

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

/// The kernels that the target supports, and those that the module's code calls.
pub struct Kernels {
    isa: Option<Isa>,
    portable: bool,
    tuning: BTreeMap<String, Tiling>,
    /// The tilings from tuning files that the module uses.
    tuned: BTreeMap<String, Tiling>,
    called: BTreeMap<String, Kernel>,
    /// The epilogues of the called kernels, whose names contain an index in this list.
    tails: Vec<Epilogue>,
}

impl Kernels {
    /// Creates the set of a target's kernels, empty if the processor features are unknown.
    pub fn of(target: &Target) -> Self {
        let portable = target.numerics == Numerics::Portable;
        Self { isa: Isa::of(target), portable, tuning: target.tuning.kernels.clone(), ..Self::none() }
    }

    pub fn none() -> Self {
        let (tuning, tuned) = (BTreeMap::new(), BTreeMap::new());
        Self { isa: None, portable: false, tuning, tuned, called: BTreeMap::new(), tails: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.isa.is_none()
    }

    /// Whether kernels for several tokens can use tile registers, which add products in another order.
    pub fn have_tiles(&self) -> bool {
        self.isa.is_some_and(|isa| {
            let tiles = isa.tiles();
            tiles.bf16 || tiles.bytes
        })
    }

    /// Whether a kernel supports this weight, for any number of activation rows and for row lookups.
    pub fn serve(&self, format: WeightFormat, outputs: usize, inputs: usize) -> bool {
        self.isa.is_some()
            && outputs > 0
            && inputs > 0
            && (format.groups().is_none() || inputs <= quantized::LONGEST)
    }

    /// Whether one kernel can compute the main operation, the prologue and the epilogue of a fused operation.
    pub fn can_do(&self, work: &FusedOp<'_>) -> bool {
        self.serving(work).is_some()
    }

    /// The kernel that computes the main operation, the prologue and the epilogue of a fused operation.
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

    /// Returns the call of a fused operation as a right-hand side, or `None` without a kernel for it.
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

    /// Calls the kernel of a fused linear attention. Returns the names of the new state matrices and of the
    /// outputs, or `None` for another operation or without a kernel.
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

    /// Returns the tiling for the fused operation `work` from the tuning file, or else `usual`.
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

    /// The tilings of a fused matmul or attention that are worth measuring; `None` for others.
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

    /// Calls the kernels that prepare operands. Returns index, name and type of each prepared operand.
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

    fn fused<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.portable { Cow::Owned(contraction::fused(text)) } else { Cow::Borrowed(text) }
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
        let mut functions = BTreeMap::new();
        for (name, function) in self.called.values().flat_map(|kernel| &kernel.functions) {
            let before = functions.insert(name, function);
            debug_assert!(before.is_none_or(|before| before == function), "{name} has two meanings");
        }
        functions.values().for_each(|function| text.push_str(&self.fused(function)));
        for (name, kernel) in &self.called {
            let arguments = (0..kernel.bindings)
                .map(|i| format!("%b{i}: !stream.binding"))
                .collect::<Vec<_>>()
                .join(", ");
            let body = self.fused(&kernel.body);
            let _ = writeln!(text, "      func.func @{name}({arguments}) {{\n{body}        return\n      }}");
        }
        text.push_str("    }\n  }\n");
        text
    }
}

/// A fused operation as a matmul with one matrix; `None` if it is none or no kernel supports it.
fn linear<'a>(isa: Isa, op: &PackedLinear, work: &'a FusedOp<'_>) -> Option<Matmul<'a>> {
    product(isa, work, (op.format, op.activations), (op.element, op.outputs), None)
}

/// A fused operation as a matmul with a stack of matrices; `None` if it is none or has no kernel.
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
