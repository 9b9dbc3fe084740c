//! Selects the operations of an XLA module that kernels for NVIDIA GPUs compute. The kernels
//! compute matmuls and attention in calls with few tokens, and all other operations stay StableHLO.

use std::collections::{BTreeMap, BTreeSet};

use kernels::{CUDA_VECTORS, CudaAttention, CudaKernel, CudaProduct};
use ops::ops::{BinaryKind, MaskTerm, RopeLayout, UnaryKind};
use ops::{ElementType, Op, TensorType};
use targets::{Backend, DeviceKind, Target};
use trace::{Function, NodeId, NodeKind};

use crate::fusion::NodeUses;
use crate::layout::Layouts;

/// Whether a module for this target can call Tracewright's kernels for NVIDIA GPUs.
pub(crate) fn has_cuda_kernels(target: &Target) -> bool {
    target.backend == Backend::Xla && target.device == DeviceKind::Cuda
}

/// A call of a kernel, with the operands and the results of the call.
pub(crate) struct CudaCall {
    pub(crate) kernel: CudaKernel,
    pub(crate) operands: Vec<NodeId>,
    /// The nodes whose values the kernel returns as results.
    pub(crate) results: Vec<NodeId>,
    /// The nodes whose values only the kernel needs, between the operands and the results of the kernel.
    within: Vec<NodeId>,
}

/// The calls of CUDA kernels in a function.
#[derive(Default)]
pub(crate) struct CudaCalls {
    /// The kernel calls. Each key of this map is the node that the kernel call replaces.
    called: BTreeMap<NodeId, CudaCall>,
    /// All nodes of the function that the kernels compute.
    within: BTreeSet<NodeId>,
}

impl CudaCalls {
    /// Finds the CUDA kernel calls for a function whose composite operations are not expanded. The
    /// kernels read no weight with a layout of its own. In an expanded function no such weight is left,
    /// so the function finds the calls that it found before the expansion.
    pub(crate) fn of(function: &Function, layouts: &Layouts) -> Self {
        let uses = NodeUses::of(function);
        let mut calls = Self::default();
        for id in function.ids() {
            if let Some(call) = attention(&uses, id) {
                calls.add(id, call);
            }
        }
        let linears: BTreeMap<NodeId, CudaProduct> =
            function.ids().filter_map(|id| Some((id, product(&uses, id, layouts)?))).collect();
        let inputs: BTreeSet<NodeId> = linears.keys().map(|&id| function.operands(id)[0]).collect();
        for input in inputs {
            let of_input: Vec<NodeId> =
                linears.keys().copied().filter(|&id| function.operands(id)[0] == input).collect();
            calls.products(&uses, input, &of_input, &linears);
        }
        calls
    }

    /// Returns the kernel call that replaces a node; `None` if no kernel call replaces the node.
    pub(crate) fn at(&self, id: NodeId) -> Option<&CudaCall> {
        self.called.get(&id)
    }

    /// Whether a kernel computes this node.
    pub(crate) fn computes(&self, id: NodeId) -> bool {
        self.within.contains(&id)
    }

    fn add(&mut self, at: NodeId, call: CudaCall) {
        self.within.extend(call.results.iter().chain(&call.within));
        self.called.insert(at, call);
    }

    /// Adds the kernels for all matmuls that read the same input.
    fn products(
        &mut self,
        uses: &NodeUses<'_>,
        input: NodeId,
        linears: &[NodeId],
        products: &BTreeMap<NodeId, CudaProduct>,
    ) {
        let weight = |id: &NodeId| uses.function.operands(*id)[1];
        let Some((norm, x)) = norm(uses, input, linears) else {
            for id in linears {
                let (at, call) = residual(uses, *id, products[id]).unwrap_or_else(|| {
                    let operands = vec![input, weight(id)];
                    let kernel = CudaKernel::Linear(products[id]);
                    (*id, CudaCall { kernel, operands, results: vec![*id], within: Vec::new() })
                });
                self.add(at, call);
            }
            return;
        };
        let with_norm = |id: &NodeId| CudaProduct { norm: Some(norm), ..products[id] };
        self.within.insert(input);
        let mut rest = linears.to_vec();
        if let &[gate, up] = linears
            && let Some((gate, up, product)) = [(gate, up), (up, gate)]
                .into_iter()
                .find_map(|(gate, up)| Some((gate, up, gated(uses, gate, up)?)))
        {
            let kernel = CudaKernel::Gated(with_norm(&gate));
            let operands = vec![x[0], x[1], weight(&gate), weight(&up)];
            let (&written, within) = product.split_last().unwrap_or((&gate, &[]));
            let within = [within, &[gate, up]].concat();
            self.add(written, CudaCall { kernel, operands, results: vec![written], within });
            rest.clear();
        }
        for group in rest.chunks(3) {
            let weights: Vec<NodeId> = group.iter().map(weight).collect();
            let is_early = weights.iter().all(|&weight| is_parameter(uses, weight) || weight < group[0]);
            if let &[first, second, third] = group
                && is_early
            {
                let others = [products[&second].outputs, products[&third].outputs];
                let kernel = CudaKernel::Three(with_norm(&first), others);
                let operands = [&x[..], &weights].concat();
                self.add(first, CudaCall { kernel, operands, results: group.to_vec(), within: Vec::new() });
                continue;
            }
            for (&id, &weight) in group.iter().zip(&weights) {
                let kernel = CudaKernel::Linear(with_norm(&id));
                let operands = vec![x[0], x[1], weight];
                self.add(id, CudaCall { kernel, operands, results: vec![id], within: Vec::new() });
            }
        }
    }
}

fn is_parameter(uses: &NodeUses<'_>, id: NodeId) -> bool {
    matches!(uses.function.node(id).kind, NodeKind::Parameter(_))
}

/// Returns the sizes of a matmul that multiplies at most `CUDA_VECTORS` vectors. Returns `None` if
/// the node is not a matmul, if the matmul multiplies more than `CUDA_VECTORS` vectors, if the
/// weight is quantized, or if no kernel supports the sizes.
fn product(uses: &NodeUses<'_>, id: NodeId, layouts: &Layouts) -> Option<CudaProduct> {
    if let Some(&weight) = uses.function.operands(id).get(1)
        && let NodeKind::Parameter(parameter) = &uses.function.node(weight).kind
        && matches!(layouts.get(&parameter.key), Some(Ok(_)))
    {
        return None;
    }
    let (Some(Op::Linear(_)), &[x, weight]) = (uses.op(id), &uses.types(id)[..]) else { return None };
    let is_bf16 = |ty: &TensorType| ty.element == ElementType::Bf16;
    let &[outputs, inputs] = &weight.shape[..] else { return None };
    let vectors = x.count().checked_div(inputs)?;
    let product = CudaProduct { vectors, inputs, outputs, norm: None };
    let supported = vectors <= CUDA_VECTORS && CudaKernel::Linear(product).is_supported();
    (is_bf16(x) && is_bf16(weight) && supported).then_some(product)
}

/// Returns the norm before some matmuls, and the operands of the norm. Returns `None` if any node
/// other than the matmuls reads the result of the norm.
fn norm(
    uses: &NodeUses<'_>,
    input: NodeId,
    linears: &[NodeId],
) -> Option<((f32, ops::ops::WeightStyle), [NodeId; 2])> {
    let Some(Op::RmsNorm(op)) = uses.op(input) else { return None };
    let &[x, weight] = &uses.function.operands(input)[..] else { return None };
    let only =
        !uses.returned[input.index()] && uses.users[input.index()].iter().all(|user| linears.contains(user));
    let bf16 = uses.types(input).iter().all(|ty| ty.element == ElementType::Bf16);
    (only && bf16).then_some(((op.epsilon.0 as f32, op.style), [x, weight]))
}

/// A matmul together with the residual addition after the matmul.
fn residual(uses: &NodeUses<'_>, id: NodeId, product: CudaProduct) -> Option<(NodeId, CudaCall)> {
    let &[sum] = &uses.users[id.index()][..] else { return None };
    let Some(Op::Binary(op)) = uses.op(sum) else { return None };
    let operands = uses.function.operands(sum);
    let other = *operands.iter().find(|&&operand| operand != id)?;
    let is_sum = op.kind == BinaryKind::Add && uses.alone_uses(id, sum);
    is_sum.then(|| {
        let of = uses.function.operands(id);
        let operands = vec![of[0], of[1], other];
        let kernel = CudaKernel::Residual(product);
        (sum, CudaCall { kernel, operands, results: vec![sum], within: vec![id] })
    })
}

/// Returns the nodes of a gated activation function, from `silu(gate)` to `silu(gate) · up`. In order, the
/// nodes are a conversion to f32, the logistic function, a product, a conversion to bf16 and a product.
fn gated(uses: &NodeUses<'_>, gate: NodeId, up: NodeId) -> Option<Vec<NodeId>> {
    let only_user = |id: NodeId| match uses.users[id.index()][..] {
        [user] if !uses.returned[id.index()] => Some(user),
        _ => None,
    };
    let multiplies = |id: NodeId, a: NodeId, b: NodeId| {
        let operands = uses.function.operands(id);
        matches!(uses.op(id), Some(Op::Binary(op)) if op.kind == BinaryKind::Multiply)
            && (operands == [a, b] || operands == [b, a])
    };
    let converts = |id: NodeId, to: ElementType| matches!(uses.op(id), Some(Op::Convert(op)) if op.to == to);
    let wide = only_user(gate)?;
    let &[a, b] = &uses.users[wide.index()][..] else { return None };
    let is_logistic =
        |id: &NodeId| matches!(uses.op(*id), Some(Op::Unary(op)) if op.kind == UnaryKind::Logistic);
    let (logistic, activated) = if is_logistic(&a) { (a, b) } else { (b, a) };
    let narrow = only_user(activated)?;
    let result = only_user(narrow)?;
    let is_silu = converts(wide, ElementType::F32)
        && !uses.returned[wide.index()]
        && is_logistic(&logistic)
        && only_user(logistic)? == activated
        && multiplies(activated, wide, logistic)
        && converts(narrow, ElementType::Bf16)
        && multiplies(result, narrow, up)
        && only_user(up)? == result;
    is_silu.then(|| vec![wide, logistic, activated, narrow, result])
}

/// New keys or values, and the position in the cache at which the program appends the keys or values.
#[derive(PartialEq)]
struct Appended {
    cache: NodeId,
    new: NodeId,
    start: NodeId,
    count: Option<NodeId>,
}

/// Returns the append that writes the cache in the node `id`, with the shape `[B, K, N, E]`. The
/// function returns `None` if any node other than `attention` reads the cache.
fn appended(uses: &NodeUses<'_>, id: NodeId, attention: NodeId) -> Option<Appended> {
    let operands = uses.function.operands(id);
    if uses.users[id.index()] != [attention] {
        return None;
    }
    if let (Some(Op::DynamicUpdateSlice(op)), &[cache, new, start]) = (uses.op(id), &operands[..]) {
        return (op.axis == 2).then_some(Appended { cache, new, start, count: None });
    }
    if let (Some(Op::Append(op)), &[cache, new, start, count]) = (uses.op(id), &operands[..]) {
        return (op.axis == 2 && !op.ring).then_some(Appended { cache, new, start, count: Some(count) });
    }
    None
}

/// Returns the input and the cosine and sine tables of the rotary embedding that computes a node.
/// The function finds a rotary embedding even if the program reshapes the result of the embedding.
/// The function adds the nodes between the input and the node to `within`.
fn rotated(
    uses: &NodeUses<'_>,
    mut id: NodeId,
    mut user: NodeId,
    within: &mut Vec<NodeId>,
) -> Option<[NodeId; 3]> {
    while uses.alone_uses(id, user) {
        within.push(id);
        let operands = uses.function.operands(id);
        if let Some(Op::Rope(op)) = uses.op(id) {
            return operands.try_into().ok().filter(|_| op.layout == RopeLayout::HalfSplit);
        }
        let Some(Op::Reshape(_)) = uses.op(id) else { return None };
        (id, user) = (operands[0], id);
    }
    None
}

/// Returns attention for one new token per sequence, together with the rotary embeddings and the
/// cache appends before the attention.
fn attention(uses: &NodeUses<'_>, id: NodeId) -> Option<CudaCall> {
    let Some(Op::Sdpa(op)) = uses.op(id) else { return None };
    let &[q, k, v, offset] = &uses.function.operands(id)[..] else { return None };
    let types = uses.types(id);
    let (&[sequences, heads, group, 1, features], &[_, _, slots, _]) =
        (&types[0].shape[..], &types[1].shape[..])
    else {
        return None;
    };
    let (keys, values) = (appended(uses, k, id)?, appended(uses, v, id)?);
    let mut within = Vec::new();
    let [queries, q_cos, q_sin] = rotated(uses, q, id, &mut within)?;
    let [new_keys, k_cos, k_sin] = rotated(uses, keys.new, k, &mut within)?;
    let new_values = values.new;
    let table = uses.function.node(q_cos).ty();
    let start = uses.function.node(offset).ty();
    let by_row = start.rank() == 1;
    let whole = table.shape.last() == Some(&(features / 2))
        && table.count() == features / 2 * if by_row { sequences } else { 1 };
    let agree = (q_cos, q_sin) == (k_cos, k_sin)
        && keys.start == offset
        && (values.start, values.count) == (keys.start, keys.count)
        && keys.count.is_none_or(|count| uses.function.node(count).ty().rank() == start.rank())
        && (by_row || keys.count.is_none() || sequences == 1);
    let plain = op.mask == [MaskTerm::Causal] && op.softcap.is_none();
    let bf16 = types[..3].iter().all(|ty| ty.element == ElementType::Bf16);
    let kernel = CudaKernel::Attention(CudaAttention {
        sequences,
        heads,
        group,
        features,
        slots,
        scale: op.scale_for(features) as f32,
        by_row,
    });
    if !(whole && agree && plain && bf16 && types[1] == types[2] && kernel.is_supported()) {
        return None;
    }
    let count = keys.count.unwrap_or(offset);
    let operands = vec![queries, new_keys, new_values, q_cos, q_sin, offset, count, keys.cache, values.cache];
    Some(CudaCall { kernel, operands, results: vec![id, k, v], within })
}
