//! Emits the IREE code of `bounded_sdpa`: attention that reads only the used slots of a KV cache. The program
//! computes the number of used slots at run time. The number of used slots is an integer on the host, and
//! determines the length of the slices that the device reads. In StableHLO, a slice length that the program
//! computes would be a tensor, and the host would have to wait for the device to compute the tensor.

use std::fmt::Write as _;

use ops::ops::{BoundedSdpa, MaskTerm, Sdpa};
use ops::{ElementType, Op, Operand, Statements, TensorType};
use targets::DeviceKind;

use super::Program;

/// The program rounds the number of keys up to a multiple of 64, which is a multiple of all vector lengths.
const STEP: usize = 64;

/// The program reads a cache with at most 512 keys completely, because a conditional branch would
/// take longer than reading all keys.
const LEAST: usize = 512;

/// The idiom replaces only attention that has a single query per head, because the matmul then takes little
/// time compared to reading the caches. With several queries per head, the function has two integers on the
/// host, and iree-compile 3.13 then leaves a dispatch before the conditional branch
/// (docs/upstream/two_numbers.mlir). For devices other than the CPU, iree-compile leaves a dispatch before
/// the conditional branch in all functions. A program with ring buffers has two integers on the host even for
/// a single query, so iree-compile cannot compile `bounded_sdpa` in such a program.
pub(super) fn of(op: &Op, operands: &[&TensorType], program: &Program<'_>) -> Option<Op> {
    let (Op::Sdpa(op), [q, k, ..]) = (op, operands) else { return None };
    let bounded = BoundedSdpa { mask: op.mask.clone(), scale: op.scale, softcap: op.softcap };
    let (queries, keys) = (q.shape[q.rank() - 2], k.shape[k.rank() - 2]);
    let same = op.offset && bounded.unbounded() == *op;
    let compiles = program.target.device == DeviceKind::Cpu && !program.has_rings;
    let bounded = Op::from(bounded);
    (same && compiles && queries == 1 && keys > LEAST && bounded.infer(operands).is_ok()).then_some(bounded)
}

/// The right-hand side of the idiom's statement is a conditional branch. If few slots of the caches are used,
/// the program copies the slice of used slots; otherwise, the program reads the whole caches.
pub(super) fn spell(
    s: &mut dyn Statements,
    op: &BoundedSdpa,
    operands: &[Operand<'_>],
    ty: &TensorType,
) -> String {
    let [q, k, v, offset] = operands else { unreachable!("inferred") };
    let (queries, keys) = (q.ty.shape[q.ty.rank() - 2], k.ty.shape[k.ty.rank() - 2]);
    let start = s.statement(format!("tensor.extract {}[] : tensor<i32>", offset.name));
    let start = s.statement(format!("arith.index_cast {start} : i32 to index"));
    let index = |s: &mut dyn Statements, n: usize| s.statement(format!("arith.constant {n} : index"));
    let (ahead, step, half) = (index(s, queries + STEP - 1), index(s, STEP), index(s, keys / 2));
    let last = s.statement(format!("arith.addi {start}, {ahead} : index"));
    let steps = s.statement(format!("arith.divui {last}, {step} : index"));
    let used = s.statement(format!("arith.muli {steps}, {step} : index"));
    let short = s.statement(format!("arith.cmpi ule, {used}, {half} : index"));

    // In a matmul whose batch axes all have the extent 1, iree-compile 3.13 removes these axes by
    // reshapes, and rejects the reshape of a tensor whose length the program computes. Without these
    // axes, only the axes of the heads and of the features remain.
    let batch = &k.ty.shape[..k.ty.rank() - 2];
    if queries > 1 || batch.iter().any(|&extent| extent > 1) {
        return branches(op, operands, ty, (&short, &used));
    }
    let matrix = |ty: &TensorType| {
        let columns = ty.shape[ty.rank() - 1];
        TensorType::new(ty.element, [ty.shape.iter().product::<usize>() / columns, columns])
    };
    let types = [q.ty, k.ty, v.ty, ty].map(matrix);
    let mut names = Vec::new();
    for (operand, matrix) in [q, k, v].into_iter().zip(&types) {
        names.push(s.statement(reshaped(operand.name, operand.ty, matrix)));
    }
    let [q, k, v] = [0, 1, 2].map(|at| Operand { name: &names[at], ty: &types[at] });
    let attended = branches(op, &[q, k, v, *offset], &types[3], (&short, &used));
    let attended = s.statement(attended);
    reshaped(&attended, &types[3], ty)
}

fn reshaped(x: &str, from: &TensorType, to: &TensorType) -> String {
    format!("stablehlo.reshape {x} : ({}) -> {}", from.mlir(), to.mlir())
}

/// Returns the conditional branch. `used` is the number of used slots, and `short` is the condition
/// that at most half of the slots are used.
fn branches(
    op: &BoundedSdpa,
    operands: &[Operand<'_>],
    ty: &TensorType,
    (short, used): (&str, &str),
) -> String {
    let result = ty.mlir();
    let branch = |name: &str, used: Option<&str>| {
        let mut region = Region { prefix: format!("%{name}{}", &short[1..]), lines: Vec::new() };
        let attended = Attention { op, operands, ty, used }.spell(&mut region);
        let attended = region.statement(attended);
        let lines = region.lines.iter().fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "      {line}");
            text
        });
        format!("{{\n{lines}      scf.yield {attended} : {result}\n    }}")
    };
    let (part, all) = (branch("part", Some(used)), branch("all", None));
    format!("scf.if {short} -> ({result}) {part} else {all}")
}

/// The statements of one side of the conditional branch. The SSA names in each side of the branch
/// have a prefix that no other statement has.
struct Region {
    prefix: String,
    lines: Vec<String>,
}

impl Statements for Region {
    fn statement(&mut self, rhs: String) -> String {
        let name = format!("{}_{}", self.prefix, self.lines.len());
        self.lines.push(format!("{name} = {rhs}"));
        name
    }

    fn group(&mut self, rhs: String, results: usize) -> String {
        let name = format!("{}_{}", self.prefix, self.lines.len());
        self.lines.push(format!("{name}:{results} = {rhs}"));
        name
    }
}

/// Attention that reads only the first keys of a KV cache.
struct Attention<'a> {
    op: &'a BoundedSdpa,
    operands: &'a [Operand<'a>],
    ty: &'a TensorType,
    /// The number of keys that attention reads, as an integer on the host; `None` for all keys.
    used: Option<&'a str>,
}

impl Attention<'_> {
    /// Returns the type of a tensor that has one element per key along the given axis.
    fn over_keys(&self, ty: &TensorType, element: ElementType, axis: usize) -> String {
        let extent = |(at, n): (usize, &usize)| match self.used {
            Some(_) if at == axis => "?x".to_owned(),
            _ => format!("{n}x"),
        };
        format!("tensor<{}{}>", ty.shape.iter().enumerate().map(extent).collect::<String>(), element.name())
    }

    /// The keys or values that attention reads: the SSA name and the type of the tensor.
    fn part(&self, s: &mut dyn Statements, name: &str, cache: &Operand<'_>) -> (String, String) {
        let (rank, element) = (cache.ty.rank(), cache.ty.element);
        let part = self.over_keys(cache.ty, element, rank - 2);
        let Some(used) = self.used else { return (cache.name.to_owned(), part) };
        let extent =
            |(axis, n): (usize, &usize)| if axis == rank - 2 { used.to_owned() } else { n.to_string() };
        let extents = cache.ty.shape.iter().enumerate().map(extent).collect::<Vec<_>>().join(", ");
        let (starts, strides) = (vec!["0"; rank].join(", "), vec!["1"; rank].join(", "));
        let first = format!("%{name}{}", &used[1..]);
        // The slice must be a separate dispatch. Otherwise, iree-compile 3.13 slices while it packs
        // for the matmul, and runs out of stack (docs/upstream/slice_while_packing.mlir). An
        // `optimization_barrier` also works, but then the host waits twice in each layer for the
        // values before the barrier.
        let region = format!(
            "flow.dispatch.region -> ({part}{{{used}}}) {{\n        {first} = tensor.extract_slice \
             {}[{starts}] [{extents}] [{strides}] : {} to {part}\n        flow.return {first} : {part}\n      }}",
            cache.name,
            cache.ty.mlir()
        );
        (s.statement(region), part)
    }

    fn shape_of(&self, s: &mut dyn Statements, scores: &TensorType, shape_ty: &str) -> String {
        let rank = scores.rank();
        let extents: Vec<String> = (0..rank)
            .map(|axis| match self.used {
                Some(used) if axis == rank - 1 => {
                    s.statement(format!("arith.index_cast {used} : index to i32"))
                }
                _ => s.statement(format!("arith.constant {} : i32", scores.shape[axis])),
            })
            .collect();
        s.statement(format!("tensor.from_elements {} : {shape_ty}", extents.join(", ")))
    }

    /// Emits the same statements as the converter of `sdpa`, but for another number of keys.
    /// Returns the right-hand side of the last statement.
    fn spell(&self, s: &mut dyn Statements) -> String {
        let [q, k, v, offset] = self.operands else { unreachable!("inferred") };
        let (rank, batch) = (q.ty.rank(), k.ty.rank() - 2);
        let mut scores = q.ty.clone();
        scores.shape[rank - 1] = k.ty.shape[batch];
        let [f32s, i32s, i1s, narrow] = [ElementType::F32, ElementType::I32, ElementType::I1, q.ty.element]
            .map(|element| self.over_keys(&scores, element, rank - 1));
        let shape_ty = format!("tensor<{rank}xi32>");
        let ((k, k_ty), (v, v_ty)) = (self.part(s, "keys", k), self.part(s, "values", v));

        let shape = self.shape_of(s, &scores, &shape_ty);
        let repeat = |s: &mut dyn Statements, x: &str, from: &str, to: &str, axes: &[usize]| {
            repeat(s, x, (&shape, &shape_ty), (from, to), axes)
        };
        let number = |s: &mut dyn Statements, n: f64| {
            let n = s
                .statement(format!("stablehlo.constant dense<0x{:08X}> : tensor<f32>", (n as f32).to_bits()));
            repeat(s, &n, "tensor<f32>", &f32s, &[])
        };

        let batches = (0..batch).map(|axis| axis.to_string()).collect::<Vec<_>>().join(", ");
        let batching = match batch {
            0 => String::new(),
            _ => format!("batching_dims = [{batches}] x [{batches}], "),
        };
        let product = |left: usize, right: usize, a: (&str, &str), b: (&str, &str), result: &str| {
            format!(
                "stablehlo.dot_general {}, {}, {batching}contracting_dims = [{left}] x [{right}] : ({}, {}) -> \
                 {result}",
                a.0, b.0, a.1, b.1
            )
        };
        let q_ty = q.ty.mlir();
        let mut score = s.statement(product(rank - 1, batch + 1, (q.name, &q_ty), (&k, &k_ty), &f32s));
        let scale = number(s, self.op.unbounded().scale_for(q.ty.shape[rank - 1]));
        score = binary(s, "multiply", &score, &scale, &f32s);
        if let Some(cap) = self.op.softcap {
            let cap = number(s, cap.0);
            let ratio = binary(s, "divide", &score, &cap, &f32s);
            let bounded = s.statement(format!("stablehlo.tanh {ratio} : {f32s}"));
            score = binary(s, "multiply", &bounded, &cap, &f32s);
        }

        let iota = |s: &mut dyn Statements, axis: usize| {
            s.statement(format!("stablehlo.dynamic_iota {shape}, dim = {axis} : ({shape_ty}) -> {i32s}"))
        };
        let first = repeat(s, offset.name, "tensor<i32>", &i32s, &[]);
        let key = iota(s, rank - 1);
        // Without batch axes there is one query, and the axis before the keys is that of the heads.
        let query = match batch {
            0 => first,
            _ => {
                let query = iota(s, rank - 2);
                binary(s, "add", &query, &first, &i32s)
            }
        };
        let hidden = number(s, Sdpa::HIDDEN);
        for term in &self.op.mask {
            let visible = match term {
                MaskTerm::Window(width) => {
                    let width = s.statement(format!("stablehlo.constant dense<{width}> : tensor<i32>"));
                    let width = repeat(s, &width, "tensor<i32>", &i32s, &[]);
                    let first_hidden = binary(s, "subtract", &query, &width, &i32s);
                    s.statement(format!(
                        "stablehlo.compare LT, {first_hidden}, {key}, SIGNED : ({i32s}, {i32s}) -> {i1s}"
                    ))
                }
                _ => s.statement(format!(
                    "stablehlo.compare LE, {key}, {query}, SIGNED : ({i32s}, {i32s}) -> {i1s}"
                )),
            };
            score = s.statement(format!("stablehlo.select {visible}, {score}, {hidden} : {i1s}, {f32s}"));
        }

        let mut weights = self.softmax(s, &score, &scores, &shape);
        if narrow != f32s {
            weights = s.statement(format!("stablehlo.convert {weights} : ({f32s}) -> {narrow}"));
        }
        let attended_ty = self.ty.with_element(ElementType::F32).mlir();
        let attended = product(rank - 1, batch, (&weights, &narrow), (&v, &v_ty), &attended_ty);
        if narrow == f32s {
            return attended;
        }
        let attended = s.statement(attended);
        format!("stablehlo.convert {attended} : ({attended_ty}) -> {}", self.ty.mlir())
    }

    /// Emits the statements that compute the softmax weights of the keys from their scores `score`.
    fn softmax(&self, s: &mut dyn Statements, score: &str, scores: &TensorType, shape: &str) -> String {
        let rank = scores.rank();
        let (f32s, shape_ty) =
            (self.over_keys(scores, ElementType::F32, rank - 1), format!("tensor<{rank}xi32>"));
        let row = TensorType::new(ElementType::F32, &scores.shape[..rank - 1]).mlir();
        let others: Vec<usize> = (0..rank - 1).collect();
        let along = |s: &mut dyn Statements, kind: &str, start: f32, x: &str| {
            let start =
                s.statement(format!("stablehlo.constant dense<0x{:08X}> : tensor<f32>", start.to_bits()));
            let reduced = s.statement(format!(
                "stablehlo.reduce({x} init: {start}) applies stablehlo.{kind} across dimensions = [{}] : \
             ({f32s}, tensor<f32>) -> {row}",
                rank - 1
            ));
            repeat(s, &reduced, (shape, &shape_ty), (&row, &f32s), &others)
        };
        let largest = along(s, "maximum", f32::NEG_INFINITY, score);
        let shifted = binary(s, "subtract", score, &largest, &f32s);
        let exponential = s.statement(format!("stablehlo.exponential {shifted} : {f32s}"));
        let sum = along(s, "add", 0.0, &exponential);
        binary(s, "divide", &exponential, &sum, &f32s)
    }
}

/// Emits the statement that broadcasts a tensor to `shape`. The tensor is a scalar, or lacks the
/// last axis of `shape`.
fn repeat(
    s: &mut dyn Statements,
    x: &str,
    (shape, shape_ty): (&str, &str),
    (from, to): (&str, &str),
    axes: &[usize],
) -> String {
    let axes = axes.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let kept = format!("{{known_nonexpanding_dimensions = array<i64: {axes}>}}");
    let kept = if axes.is_empty() { String::new() } else { kept };
    s.statement(format!(
        "stablehlo.dynamic_broadcast_in_dim {x}, {shape}, dims = [{axes}] {kept} : ({from}, {shape_ty}) -> {to}"
    ))
}

fn binary(s: &mut dyn Statements, kind: &str, a: &str, b: &str, ty: &str) -> String {
    s.statement(format!("stablehlo.{kind} {a}, {b} : {ty}"))
}
