//! Equations of operations that only move data.

use egg::Id;
use ops::ops::{
    BroadcastInDim, Constant, DotGeneral, DynamicSlice, Gather, Narrow, Permute, Reduce, Reshape,
};
use ops::{Literal, Op};

use super::{Rule, Site, Tree, attribute};

pub(super) const RULES: &[Rule] = &[
    attribute("reshape same", "reshape(x, shape of x) = x", "reshape", reshape_same),
    attribute("reshape reshape", "reshape(reshape(x)) = reshape(x)", "reshape", reshape_reshape),
    attribute("permute identity", "permute(x, [0, 1, …]) = x", "permute", permute_identity),
    attribute("permute permute", "permute(permute(x, p), q) = permute(x, p∘q)", "permute", permute_permute),
    attribute("permute units", "permute(x), only extents of 1 move = reshape(x)", "permute", permute_units),
    attribute("permute broadcast", "permute(broadcast(x)) = broadcast(x)", "permute", permute_broadcast),
    attribute("permute dot_general", "permute(a · b) = b · a", "permute", permute_dot),
    attribute("narrow all", "narrow(x, everything) = x", "narrow", narrow_all),
    attribute("narrow narrow", "narrow(narrow(x)) = narrow(x)", "narrow", narrow_narrow),
    attribute("narrow concatenate", "narrow(concatenate(…, x, …)) = narrow(x)", "narrow", narrow_concatenate),
    attribute("narrow broadcast", "narrow(broadcast(x)) = broadcast(narrow(x))", "narrow", narrow_broadcast),
    attribute("narrow permute", "narrow(permute(x)) = permute(narrow(x))", "narrow", narrow_permute),
    attribute("broadcast same", "broadcast(x, shape of x) = x", "broadcast_in_dim", broadcast_same),
    attribute(
        "broadcast broadcast",
        "broadcast(broadcast(x)) = broadcast(x)",
        "broadcast_in_dim",
        broadcast_broadcast,
    ),
    attribute(
        "broadcast units",
        "broadcast(x), only extents of 1 are new = reshape(x)",
        "broadcast_in_dim",
        broadcast_units,
    ),
    attribute("concatenate one", "concatenate(x) = x", "concatenate", concatenate_one),
    attribute(
        "concatenate empty",
        "concatenate(x, empty) = concatenate(x)",
        "concatenate",
        concatenate_empty,
    ),
    attribute(
        "concatenate concatenate",
        "concatenate(concatenate(x, y), z) = concatenate(x, y, z)",
        "concatenate",
        concatenate_concatenate,
    ),
    attribute(
        "concatenate narrow",
        "concatenate(narrow(x, 0..m), narrow(x, m..n)) = narrow(x, 0..n)",
        "concatenate",
        concatenate_narrow,
    ),
    attribute("gather iota", "gather(x, 0, 1, …) = narrow(x)", "gather", gather_iota),
    attribute("gather gather", "gather(gather(x, i), j) = gather(x, gather(i, j))", "gather", gather_gather),
    attribute("iota unit", "iota along an extent of 1 = 0", "iota", iota_unit),
    attribute("dynamic_slice all", "dynamic_slice(x, everything) = x", "dynamic_slice", dynamic_slice_all),
    attribute(
        "dynamic_slice constant",
        "dynamic_slice(x, constant) = narrow(x)",
        "dynamic_slice",
        dynamic_slice_constant,
    ),
    attribute(
        "dynamic_slice elementwise",
        "dynamic_slice(f(x)) = f(dynamic_slice(x))",
        "dynamic_slice",
        dynamic_slice_rows,
    ),
    attribute(
        "dynamic_update_slice all",
        "dynamic_update_slice(x, everything) = update",
        "dynamic_update_slice",
        dynamic_update_slice_all,
    ),
    attribute("dot_general permute", "permute(a) · permute(b) = a · b", "dot_general", dot_permute),
    attribute("reduce permute", "reduce(permute(x)) = reduce(x)", "reduce", reduce_permute),
];

/// Returns the operations of the kind `$kind` in a class of equal expressions, with their
/// attributes and operands.
macro_rules! computed {
    ($site:expr, $class:expr, $kind:ident) => {
        $site.ops($class).filter_map(|(op, operands)| match op {
            Op::$kind(op) => Some((op, operands)),
            _ => None,
        })
    };
}

/// The attributes of the operation that a rule matches.
macro_rules! this {
    ($site:expr, $kind:ident) => {
        match $site.op {
            Op::$kind(op) => op,
            _ => return vec![],
        }
    };
}

fn when(holds: bool, tree: impl FnOnce() -> Tree) -> Vec<Tree> {
    if holds { vec![tree()] } else { vec![] }
}

fn reshape(site: &Site<'_>, x: Id) -> Tree {
    Tree::op(Reshape { shape: site.result().shape.clone() }, [x.into()])
}

/// The extents of a shape that are not 1.
fn without_units(shape: &[usize]) -> impl Iterator<Item = &usize> {
    shape.iter().filter(|&&extent| extent != 1)
}

fn reshape_same(site: &Site<'_>) -> Vec<Tree> {
    let x = site.operands[0];
    when(site.ty(x) == site.result(), || x.into())
}

fn reshape_reshape(site: &Site<'_>) -> Vec<Tree> {
    computed!(site, site.operands[0], Reshape).map(|(_, x)| reshape(site, x[0])).collect()
}

fn permute_identity(site: &Site<'_>) -> Vec<Tree> {
    let permute = this!(site, Permute);
    when(permute.order.iter().copied().eq(0..permute.order.len()), || site.operands[0].into())
}

fn permute_permute(site: &Site<'_>) -> Vec<Tree> {
    let outer = this!(site, Permute);
    let composed = computed!(site, site.operands[0], Permute).map(|(inner, x)| {
        let order = outer.order.iter().map(|&axis| inner.order[axis]).collect();
        Tree::op(Permute { order }, [x[0].into()])
    });
    composed.collect()
}

fn permute_units(site: &Site<'_>) -> Vec<Tree> {
    let permute = this!(site, Permute);
    let x = site.operands[0];
    let moved: Vec<usize> =
        permute.order.iter().copied().filter(|&axis| site.ty(x).shape[axis] != 1).collect();
    when(moved.is_sorted(), || reshape(site, x))
}

fn permute_broadcast(site: &Site<'_>) -> Vec<Tree> {
    let permute = this!(site, Permute);
    let place = |axis: usize| permute.order.iter().position(|&from| from == axis);
    let moved = computed!(site, site.operands[0], BroadcastInDim).filter_map(|(broadcast, x)| {
        let axes = broadcast.axes.iter().map(|&axis| place(axis)).collect::<Option<_>>()?;
        Some(Tree::op(BroadcastInDim { shape: site.result().shape.clone(), axes }, [x[0].into()]))
    });
    moved.collect()
}

fn permute_dot(site: &Site<'_>) -> Vec<Tree> {
    let permute = this!(site, Permute);
    let swapped = computed!(site, site.operands[0], DotGeneral).filter_map(|(dot, operands)| {
        let (left, right) = (operands[0], operands[1]);
        let batch = dot.left_batch.len();
        let free = |x: Id, contract: &[usize]| site.ty(x).rank() - batch - contract.len();
        let (of_left, of_right) = (free(left, &dot.left_contract), free(right, &dot.right_contract));
        let rotated =
            (0..batch).chain(batch + of_left..batch + of_left + of_right).chain(batch..batch + of_left);
        let swapped = DotGeneral {
            left_batch: dot.right_batch.clone(),
            right_batch: dot.left_batch.clone(),
            left_contract: dot.right_contract.clone(),
            right_contract: dot.left_contract.clone(),
            element: dot.element,
        };
        let holds = permute.order.iter().copied().eq(rotated);
        holds.then(|| Tree::op(swapped, [right.into(), left.into()]))
    });
    swapped.collect()
}

fn narrow_all(site: &Site<'_>) -> Vec<Tree> {
    let x = site.operands[0];
    when(site.ty(x) == site.result(), || x.into())
}

fn narrow_narrow(site: &Site<'_>) -> Vec<Tree> {
    let outer = this!(site, Narrow);
    let inner = computed!(site, site.operands[0], Narrow).filter(|(inner, _)| inner.axis == outer.axis);
    let composed = inner.map(|(inner, x)| {
        let start = inner.start + outer.start;
        Tree::op(Narrow { axis: outer.axis, start, length: outer.length }, [x[0].into()])
    });
    composed.collect()
}

fn narrow_concatenate(site: &Site<'_>) -> Vec<Tree> {
    let narrow = this!(site, Narrow);
    let mut found = Vec::new();
    for (concatenate, pieces) in computed!(site, site.operands[0], Concatenate) {
        if concatenate.axis != narrow.axis {
            let pieces = pieces.iter().map(|&piece| Tree::op(narrow.clone(), [piece.into()]));
            found.push(Tree::op(concatenate.clone(), pieces.collect::<Vec<_>>()));
            continue;
        }
        let mut first = 0;
        for &piece in pieces {
            let length = site.ty(piece).shape[narrow.axis];
            if first <= narrow.start && narrow.start + narrow.length <= first + length {
                let start = narrow.start - first;
                let within = Narrow { axis: narrow.axis, start, length: narrow.length };
                found.push(Tree::op(within, [piece.into()]));
                break;
            }
            first += length;
        }
    }
    found
}

fn narrow_broadcast(site: &Site<'_>) -> Vec<Tree> {
    let narrow = this!(site, Narrow);
    let smaller = computed!(site, site.operands[0], BroadcastInDim).map(|(broadcast, x)| {
        let from = broadcast.axes.iter().position(|&axis| axis == narrow.axis);
        let repeated = |axis: usize| site.ty(x[0]).shape[axis] == 1;
        let x = match from {
            Some(axis) if !repeated(axis) => {
                Tree::op(Narrow { axis, start: narrow.start, length: narrow.length }, [x[0].into()])
            }
            _ => x[0].into(),
        };
        let (shape, axes) = (site.result().shape.clone(), broadcast.axes.clone());
        Tree::op(BroadcastInDim { shape, axes }, [x])
    });
    smaller.collect()
}

fn narrow_permute(site: &Site<'_>) -> Vec<Tree> {
    let narrow = this!(site, Narrow);
    let inner = computed!(site, site.operands[0], Permute).map(|(permute, x)| {
        let axis = permute.order[narrow.axis];
        let within = Narrow { axis, start: narrow.start, length: narrow.length };
        Tree::op(permute.clone(), [Tree::op(within, [x[0].into()])])
    });
    inner.collect()
}

fn broadcast_same(site: &Site<'_>) -> Vec<Tree> {
    let broadcast = this!(site, BroadcastInDim);
    let x = site.operands[0];
    let same = site.ty(x) == site.result() && broadcast.axes.iter().copied().eq(0..broadcast.axes.len());
    when(same, || x.into())
}

fn broadcast_broadcast(site: &Site<'_>) -> Vec<Tree> {
    let outer = this!(site, BroadcastInDim);
    let composed = computed!(site, site.operands[0], BroadcastInDim).map(|(inner, x)| {
        let axes = inner.axes.iter().map(|&axis| outer.axes[axis]).collect();
        Tree::op(BroadcastInDim { shape: outer.shape.clone(), axes }, [x[0].into()])
    });
    composed.collect()
}

fn broadcast_units(site: &Site<'_>) -> Vec<Tree> {
    let broadcast = this!(site, BroadcastInDim);
    let x = site.operands[0];
    let (from, to) = (&site.ty(x).shape, &site.result().shape);
    let order: Vec<usize> =
        broadcast.axes.iter().zip(from).filter(|&(_, &extent)| extent != 1).map(|(&axis, _)| axis).collect();
    when(without_units(from).eq(without_units(to)) && order.is_sorted(), || reshape(site, x))
}

fn concatenate_one(site: &Site<'_>) -> Vec<Tree> {
    when(site.operands.len() == 1, || site.operands[0].into())
}

fn concatenate_empty(site: &Site<'_>) -> Vec<Tree> {
    let concatenate = this!(site, Concatenate);
    let full = |piece: &Id| site.ty(*piece).shape[concatenate.axis] > 0;
    let kept: Vec<Tree> = site.operands.iter().copied().filter(full).map(Tree::from).collect();
    let some_go = !kept.is_empty() && kept.len() < site.operands.len();
    when(some_go, || Tree::op(concatenate.clone(), kept))
}

fn concatenate_concatenate(site: &Site<'_>) -> Vec<Tree> {
    let concatenate = this!(site, Concatenate);
    let mut flat = Vec::new();
    for &piece in site.operands {
        // A concatenation of a single piece can be in the same class as this piece.
        let inner = computed!(site, piece, Concatenate).find(|(inner, pieces)| {
            inner.axis == concatenate.axis && pieces.len() > 1 && !pieces.contains(&piece)
        });
        match inner {
            Some((_, pieces)) => flat.extend(pieces.iter().copied().map(Tree::from)),
            None => flat.push(piece.into()),
        }
    }
    when(flat.len() > site.operands.len(), || Tree::op(concatenate.clone(), flat))
}

fn concatenate_narrow(site: &Site<'_>) -> Vec<Tree> {
    let concatenate = this!(site, Concatenate);
    let axis = concatenate.axis;
    let Some((&first, rest)) = site.operands.split_first() else { return vec![] };
    let starts = computed!(site, first, Narrow).filter(|(narrow, _)| narrow.axis == axis);
    let joined = starts.filter_map(|(start, x)| {
        let mut end = start.start + start.length;
        for &piece in rest {
            let (next, _) = computed!(site, piece, Narrow)
                .find(|(next, of)| next.axis == axis && next.start == end && of[0] == x[0])?;
            end += next.length;
        }
        let length = end - start.start;
        Some(Tree::op(Narrow { axis, start: start.start, length }, [x[0].into()]))
    });
    joined.collect()
}

fn gather_iota(site: &Site<'_>) -> Vec<Tree> {
    let (table, indices) = (site.operands[0], site.operands[1]);
    let length = site.ty(indices).count();
    let counts = site.ty(indices).rank() == 1
        && length <= site.ty(table).shape[0]
        && computed!(site, indices, Iota).next().is_some();
    when(counts, || Tree::op(Narrow { axis: 0, start: 0, length }, [table.into()]))
}

fn gather_gather(site: &Site<'_>) -> Vec<Tree> {
    let (rows, outer) = (site.operands[0], site.operands[1]);
    // If the gathered rows are in the class of their table, the rule would apply again and again.
    let composed = computed!(site, rows, Gather)
        .filter(|(_, inner)| site.ty(inner[1]).rank() == 1 && inner[0] != rows && inner[0] != site.class);
    let composed = composed.map(|(_, inner)| {
        let indices = Tree::op(Gather {}, [inner[1].into(), outer.into()]);
        Tree::op(Gather {}, [inner[0].into(), indices])
    });
    composed.collect()
}

fn iota_unit(site: &Site<'_>) -> Vec<Tree> {
    let iota = this!(site, Iota);
    let zero = || Tree::op(Constant { value: Literal::splat(iota.ty.clone(), 0.0) }, []);
    when(iota.ty.shape[iota.axis] == 1, zero)
}

fn dynamic_slice_all(site: &Site<'_>) -> Vec<Tree> {
    let x = site.operands[0];
    when(site.ty(x) == site.result(), || x.into())
}

fn dynamic_slice_constant(site: &Site<'_>) -> Vec<Tree> {
    let DynamicSlice { axis, length } = *this!(site, DynamicSlice);
    let Some(start) = site.facts(site.operands[1]).splat() else { return vec![] };
    let last = site.ty(site.operands[0]).shape[axis] - length;
    let start = start.clamp(0.0, last as f64) as usize;
    vec![Tree::op(Narrow { axis, start, length }, [site.operands[0].into()])]
}

/// Moves a dynamic slice before an operation that computes each element separately. The rule also applies to
/// an operation that computes each row separately, if the slice contains only whole rows.
fn dynamic_slice_rows(site: &Site<'_>) -> Vec<Tree> {
    let slice = this!(site, DynamicSlice);
    let (x, start) = (site.operands[0], site.operands[1]);
    let mut found = Vec::new();
    for (op, operands) in site.ops(x) {
        let rest = match op {
            op if op.is_map() && operands.len() == 1 => &[],
            Op::RmsNorm(_) if site.ty(operands[1]).rank() < site.ty(x).rank() - slice.axis => &operands[1..],
            _ => continue,
        };
        let mut sliced = vec![Tree::op(slice.clone(), [operands[0].into(), start.into()])];
        sliced.extend(rest.iter().copied().map(Tree::from));
        found.push(Tree::Op(op.clone(), sliced));
    }
    found
}

fn dynamic_update_slice_all(site: &Site<'_>) -> Vec<Tree> {
    let update = site.operands[1];
    when(site.ty(update) == site.result(), || update.into())
}

fn dot_permute(site: &Site<'_>) -> Vec<Tree> {
    let dot = this!(site, DotGeneral);
    let mut found = Vec::new();
    for side in [0, 1] {
        let (batch, contract) = match side {
            0 => (&dot.left_batch, &dot.left_contract),
            _ => (&dot.right_batch, &dot.right_contract),
        };
        for (permute, x) in computed!(site, site.operands[side], Permute) {
            let through =
                |axes: &[usize]| -> Vec<usize> { axes.iter().map(|&axis| permute.order[axis]).collect() };
            // The free axes must keep their order, because they have the same order in the result.
            let free: Vec<usize> =
                (0..permute.order.len()).filter(|a| !batch.contains(a) && !contract.contains(a)).collect();
            if !through(&free).is_sorted() {
                continue;
            }
            let mut folded = dot.clone();
            let mut operands = [site.operands[0], site.operands[1]];
            operands[side] = x[0];
            match side {
                0 => (folded.left_batch, folded.left_contract) = (through(batch), through(contract)),
                _ => (folded.right_batch, folded.right_contract) = (through(batch), through(contract)),
            }
            found.push(Tree::op(folded, operands.map(Tree::from)));
        }
    }
    found
}

fn reduce_permute(site: &Site<'_>) -> Vec<Tree> {
    let reduce = this!(site, Reduce);
    let moved = computed!(site, site.operands[0], Permute).filter_map(|(permute, x)| {
        let kept: Vec<usize> = (0..permute.order.len())
            .filter(|axis| !reduce.axes.contains(axis))
            .map(|axis| permute.order[axis])
            .collect();
        let mut axes: Vec<usize> = reduce.axes.iter().map(|&axis| permute.order[axis]).collect();
        axes.sort_unstable();
        kept.is_sorted().then(|| Tree::op(Reduce { kind: reduce.kind, axes }, [x[0].into()]))
    });
    moved.collect()
}
