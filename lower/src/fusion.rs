//! Decides which neighbouring operations one kernel computes together as a fused operation. Each
//! fused operation saves a dispatch of a kernel.

use std::collections::BTreeMap;

use kernels::{Broadcast, Epilogue, EpilogueOp, FusedOp, Kernels, TailStep, Tokens};
use ops::ops::{Binary, BroadcastInDim, Constant, Convert, Narrow, Reshape, Unary};
use ops::{ElementType, Form, Op, Real, TensorType};
use trace::{Function, NodeId, NodeKind};

/// A fused operation with the operands of its kernel.
pub(crate) struct Fusion<'f> {
    pub(crate) work: FusedOp<'f>,
    /// The main operation, whose name and source location Tracewright gives to the kernel.
    pub(crate) named: NodeId,
    pub(crate) operands: Vec<NodeId>,
}

/// The fused operations that kernels compute in a function.
pub(crate) struct Fusions<'f> {
    /// The fused operations. Each key in this map is the node whose value a kernel computes.
    written: BTreeMap<NodeId, Fusion<'f>>,
    /// For each linear attention whose new state and outputs are read separately: the nodes that
    /// read the state, and the nodes that read the outputs.
    parts: BTreeMap<NodeId, [Vec<NodeId>; 2]>,
    /// Whether a node needs no code: either a kernel computes the node, or no other node reads the node.
    within: Vec<bool>,
}

impl<'f> Fusions<'f> {
    /// Fuses as many operations of a function as the kernels of the target support.
    pub(crate) fn of(function: &'f Function, kernels: &Kernels) -> Self {
        if kernels.is_empty() {
            let within = function.live().into_iter().map(|live| !live).collect();
            return Self { written: BTreeMap::new(), parts: BTreeMap::new(), within };
        }
        let (written, within) = (BTreeMap::new(), vec![false; function.len()]);
        let mut fusions = Self { written, parts: BTreeMap::new(), within };
        let uses = NodeUses::of(function);
        // The loop starts at the last node, so that an operation can fuse the norm and the rotary embedding
        // before it.
        for id in function.ids().rev() {
            // After expansion, the only composite operations are the operations of kernels.
            if let Some(op) = uses.op(id)
                && matches!(op.form(), Form::Composite(_) | Form::Kernel)
                && !fusions.within[id.index()]
            {
                fusions.add(&uses, id, FusedOp::alone(op, uses.types(id)), kernels);
            }
        }
        for (&id, fusion) in &fusions.written {
            if let Op::LinearAttention(_) = fusion.work.main
                && let Some(parts) = uses.parts(id)
            {
                fusions.parts.insert(id, parts);
            }
        }
        // A node that only fused nodes read, such as a broadcast bias, needs no code of its own either.
        let mut needed = uses.returned;
        for id in function.ids().rev() {
            if !needed[id.index()] {
                continue;
            }
            let operands = match fusions.at(id) {
                Some(fusion) => fusion.operands.clone(),
                None => function.operands(id),
            };
            operands.into_iter().for_each(|operand| needed[operand.index()] = true);
        }
        fusions.within = needed.into_iter().map(|needed| !needed).collect();
        for part in fusions.parts.values().flatten().flatten() {
            fusions.within[part.index()] = true;
        }
        fusions
    }

    /// Returns the fused operation that computes the final value of a node.
    pub(crate) fn at(&self, id: NodeId) -> Option<&Fusion<'f>> {
        self.written.get(&id)
    }

    /// Returns the nodes that read the new state of a linear attention, and the nodes that read the
    /// outputs; `None` if another node reads both together.
    pub(crate) fn parts(&self, id: NodeId) -> Option<&[Vec<NodeId>; 2]> {
        self.parts.get(&id)
    }

    /// Whether a node needs no code of its own, because the kernel of another node computes the node.
    pub(crate) fn within(&self, id: NodeId) -> bool {
        self.within[id.index()]
    }

    /// Fuses the operations around a main operation, as many as a kernel can compute with it.
    fn add(&mut self, uses: &NodeUses<'f>, id: NodeId, work: FusedOp<'f>, kernels: &Kernels) {
        let operands = uses.function.operands(id);
        let mut kernel = Growing { kernels, main: id, work, within: Vec::new(), operands, written: id };
        uses.prologue(&mut kernel);
        uses.quantized(&mut kernel);
        uses.by_token(&mut kernel);
        uses.kept(&mut kernel);
        uses.epilogue(&mut kernel);
        let Growing { work, within, operands, written, .. } = kernel;
        within.into_iter().for_each(|id| self.within[id.index()] = true);
        self.written.insert(written, Fusion { work, named: id, operands });
    }
}

/// A fused operation, to which each fusion adds operations.
struct Growing<'f, 'k> {
    kernels: &'k Kernels,
    main: NodeId,
    work: FusedOp<'f>,
    /// The nodes that the kernel computes, except `written`.
    within: Vec<NodeId>,
    operands: Vec<NodeId>,
    /// The node whose value the kernel writes.
    written: NodeId,
}

impl<'f> Growing<'f, '_> {
    /// Changes the fused operation, if a kernel can compute the changed operation.
    fn change(&mut self, change: impl FnOnce(&mut FusedOp<'f>)) -> bool {
        let mut with = self.work.clone();
        change(&mut with);
        let possible = self.kernels.can_do(&with);
        if possible {
            self.work = with;
        }
        possible
    }

    fn write(&mut self, node: NodeId) {
        self.within.push(self.written);
        self.written = node;
    }
}

/// A function, together with a list of the users of each node.
pub(crate) struct NodeUses<'f> {
    pub(crate) function: &'f Function,
    pub(crate) users: Vec<Vec<NodeId>>,
    /// For each node, whether the node is a result of the function.
    pub(crate) returned: Vec<bool>,
}

/// A sequence of operations that a kernel could compute as the epilogue after a main operation.
struct Ending {
    tail: Epilogue,
    operands: Vec<NodeId>,
    /// The main operation, and all nodes of the epilogue sequence except the last node.
    within: Vec<NodeId>,
    written: NodeId,
}

impl<'f> NodeUses<'f> {
    pub(crate) fn of(function: &'f Function) -> Self {
        let mut users = vec![Vec::new(); function.len()];
        for id in function.ids() {
            for operand in function.operands(id) {
                users[operand.index()].push(id);
            }
        }
        let mut returned = vec![false; function.len()];
        function.outputs.iter().for_each(|output| returned[output.node.index()] = true);
        Self { function, users, returned }
    }

    /// Returns the nodes that read the new state of the linear attention `id`, and the nodes that
    /// read the outputs; `None` if another node reads both together.
    fn parts(&self, id: NodeId) -> Option<[Vec<NodeId>; 2]> {
        let keys = *self.types(id).get(5)?.shape.get(3)?;
        let rows = self.function.node(id).ty().shape[3];
        let mut parts = [Vec::new(), Vec::new()];
        for &user in &self.users[id.index()] {
            let part = match self.op(user)? {
                Op::Narrow(Narrow { axis: 3, start: 0, length }) if *length == keys => 0,
                Op::Narrow(Narrow { axis: 3, start, length }) if (*start, *length) == (keys, rows - keys) => {
                    1
                }
                _ => return None,
            };
            parts[part].push(user);
        }
        (!self.returned[id.index()]).then_some(parts)
    }

    pub(crate) fn types(&self, id: NodeId) -> Vec<&'f TensorType> {
        self.function.operands(id).into_iter().map(|operand| self.function.node(operand).ty()).collect()
    }

    pub(crate) fn op(&self, id: NodeId) -> Option<&'f Op> {
        match &self.function.node(id).kind {
            NodeKind::Op(op) => Some(op),
            _ => None,
        }
    }

    /// Whether `user` is the only user of a node, and reads the node only once.
    pub(crate) fn alone_uses(&self, id: NodeId, user: NodeId) -> bool {
        self.users[id.index()] == [user] && !self.returned[id.index()]
    }

    /// Fuses the rotary embedding and the norm that compute the first operand of the main operation, or the
    /// vectors that an append appends. The function also fuses the permutation that moves the token axis of
    /// the operand behind the head axis. No other node may use the result of a fused operation.
    fn prologue(&self, kernel: &mut Growing<'f, '_>) {
        let id = kernel.main;
        let writes = matches!(kernel.work.main, Op::Append(_));
        let by_rows = writes || matches!(kernel.work.main, Op::Sdpa(_));
        let mut is_part = false;
        let prepared = usize::from(writes);
        let (mut user, mut first) = (id, kernel.operands[prepared]);
        let (mut weight, mut tables) = (Vec::new(), Vec::new());
        // Operations before a slice of a larger row are not fused.
        while !is_part && self.alone_uses(first, user) {
            let Some(op) = self.op(first) else { break };
            let inputs = self.function.operands(first);
            let FusedOp { mut prologue, mut layout, .. } = kernel.work;
            match op {
                // The function looks through a reshape that keeps the rows.
                Op::Reshape(Reshape { .. }) if by_rows => {}
                Op::Permute(permute)
                    if by_rows && user == id && permute.order == tokens_last(permute.order.len()) =>
                {
                    let stride = self.types(first)[0].shape[2..].iter().product();
                    layout.tokens = Some(Tokens { stride, from: 0 });
                }
                Op::Narrow(narrow) if by_rows => {
                    let shape = &kernel.work.types[prepared].shape;
                    let (sequences, each) = (shape[0], shape[shape.len() - 2]);
                    let part = part(narrow, self.types(first)[0], sequences * each);
                    // The head axis comes before the token axis here, unless there is one token.
                    if part.is_none() || layout.tokens.is_none() && each != 1 {
                        break;
                    }
                    layout.tokens = part;
                    is_part = true;
                }
                Op::Rope(rope) if prologue.rope.is_none() && prologue.norm.is_none() => {
                    let types = self.types(first);
                    prologue.rope = Some((rope, [types[0], types[1]]));
                    tables = inputs[1..].to_vec();
                }
                Op::RmsNorm(norm) if prologue.norm.is_none() => {
                    prologue.norm = Some((norm, self.types(first)[0]));
                    weight = inputs[1..].to_vec();
                }
                _ => break,
            }
            if !kernel.change(|work| (work.prologue, work.layout) = (prologue, layout)) {
                break;
            }
            kernel.within.push(first);
            (user, first) = (first, inputs[0]);
        }
        // A reshape is not fused if no norm, slice or rotary embedding precedes the reshape.
        while let Some(&last) = kernel.within.last()
            && matches!(self.op(last), Some(Op::Reshape(_)))
        {
            kernel.within.pop();
            first = last;
        }
        kernel.operands[prepared] = first;
        if kernel.work.prologue.norm.is_some() {
            kernel.operands.extend(weight);
        }
        if kernel.work.prologue.rope.is_some() {
            kernel.operands.extend(tables);
        }
    }

    /// Lets attention read the integers and scales of keys and values that no other node reads.
    fn quantized(&self, kernel: &mut Growing<'f, '_>) {
        let (Op::Sdpa(_), &[_, k, v, ..]) = (kernel.work.main, &kernel.operands[..]) else { return };
        let stored = |of: NodeId| {
            let swallowed =
                matches!(self.op(of), Some(Op::Dequantize(_))) && self.alone_uses(of, kernel.main);
            swallowed.then(|| self.function.operands(of))
        };
        if let (Some(keys), Some(values)) = (stored(k), stored(v))
            && kernel.change(|work| work.layout.quantized = true)
        {
            kernel.within.extend([k, v]);
            (kernel.operands[1], kernel.operands[2]) = (keys[0], values[0]);
            kernel.operands.extend([keys[1], values[1]]);
        }
    }

    /// Lets attention write its result in the order of tokens, if only the permutation to this
    /// order reads the result.
    fn by_token(&self, kernel: &mut Growing<'f, '_>) {
        let (id, rank) = (kernel.main, self.function.node(kernel.main).ty().rank());
        if let (Op::Sdpa(_), &[user]) = (kernel.work.main, &self.users[id.index()][..])
            && matches!(self.op(user), Some(Op::Permute(permute)) if permute.order == tokens_first(rank))
            && !self.returned[id.index()]
            && kernel.change(|work| work.layout.by_token = true)
        {
            kernel.write(user);
        }
    }

    /// Lets attention compute only the first features of each result, if only they are read.
    fn kept(&self, kernel: &mut Growing<'f, '_>) {
        let last = kernel.written;
        if let (Op::Sdpa(_), &[user]) = (kernel.work.main, &self.users[last.index()][..])
            && let Some(Op::Narrow(Narrow { axis, start: 0, length })) = self.op(user)
            && *axis + 1 == self.function.node(last).ty().rank()
            && !self.returned[last.index()]
            && kernel.change(|work| work.layout.kept = Some(*length))
        {
            kernel.write(user);
        }
    }

    /// Fuses the longest sequence of elementwise operations on the result.
    fn epilogue(&self, kernel: &mut Growing<'f, '_>) {
        if kernel.written != kernel.main {
            return;
        }
        let mut endings = self.endings(kernel.main).into_iter();
        if let Some(ending) = endings.find(|ending| kernel.change(|work| work.epilogue = ending.tail.clone()))
        {
            kernel.operands.extend(ending.operands);
            kernel.within.extend(ending.within);
            kernel.written = ending.written;
        }
    }

    /// Returns the sequences of elementwise operations that could become the epilogue of a node.
    /// The list begins with the longest sequence.
    fn endings(&self, id: NodeId) -> Vec<Ending> {
        let mut growth = Growth::new(self, id);
        let ty = growth.ty.clone();
        let later = self.function.ids().filter(|later| later.index() > id.index());
        let mut ends: Vec<NodeId> = Vec::new();
        for later in later {
            let same = self.function.node(later).types.first().is_some_and(|found| found.shape == ty.shape);
            if same && growth.joins(later) {
                ends.push(later);
            }
        }
        ends.into_iter().rev().filter_map(|end| growth.ending(end)).collect()
    }
}

/// Returns the permutation of axes from `[B, S, …, E]` to `[B, …, S, E]`.
fn tokens_last(rank: usize) -> Vec<usize> {
    let Some(last) = rank.checked_sub(1).filter(|&last| last > 1) else { return Vec::new() };
    [0].into_iter().chain(2..last).chain([1, last]).collect()
}

fn tokens_first(rank: usize) -> Vec<usize> {
    let Some(last) = rank.checked_sub(1).filter(|&last| last > 1) else { return Vec::new() };
    [0, last - 1].into_iter().chain(1..last - 1).chain([last]).collect()
}

/// Returns the position of a slice within the matrix row of each token.
fn part(narrow: &Narrow, of: &TensorType, tokens: usize) -> Option<Tokens> {
    let (before, from) = of.shape.split_at(narrow.axis);
    let within: usize = from[1..].iter().product();
    let rows = before.iter().product::<usize>() == tokens;
    rows.then(|| Tokens { stride: from[0] * within, from: narrow.start * within })
}

/// The state of the search for elementwise operations that follow a node.
struct Growth<'g, 'f> {
    uses: &'g NodeUses<'f>,
    id: NodeId,
    /// The type of the node whose result the epilogue reads. If the epilogue combines two halves of
    /// the node's value, `ty` is the type of a half.
    ty: TensorType,
    /// The node whose result the epilogue reads, or the two nodes that contain the halves of this result.
    parts: Vec<NodeId>,
    /// The elementwise operations that the search has found so far, in order.
    joined: Vec<NodeId>,
}

impl<'g, 'f> Growth<'g, 'f> {
    fn new(uses: &'g NodeUses<'f>, id: NodeId) -> Self {
        let ty = uses.function.node(id).ty();
        let half = |start: usize| {
            let length = ty.shape.last()? / 2;
            let is = |user: &&NodeId| {
                matches!(uses.op(**user), Some(Op::Narrow(narrow))
                    if *narrow == Narrow { axis: ty.rank() - 1, start: start * length, length })
            };
            uses.users[id.index()].iter().find(is).copied()
        };
        match (half(0), half(1)) {
            (Some(first), Some(second)) if uses.users[id.index()].len() == 2 => {
                let ty = uses.function.node(first).ty().clone();
                Self { uses, id, ty, parts: vec![first, second], joined: Vec::new() }
            }
            _ => Self { uses, id, ty: ty.clone(), parts: vec![id], joined: Vec::new() },
        }
    }

    fn knows(&self, id: NodeId) -> bool {
        self.parts.contains(&id) || self.joined.contains(&id)
    }

    /// Whether a node is an elementwise operation that the search can add to the epilogue. Each operand of
    /// the operation must be a value that the search found, or a value that is computed before the epilogue.
    fn joins(&mut self, id: NodeId) -> bool {
        let operands = self.uses.function.operands(id);
        let elementwise = matches!(self.uses.op(id), Some(Op::Unary(_) | Op::Binary(_) | Op::Convert(_)));
        let known = |&operand: &NodeId| self.knows(operand) || self.operand(operand).is_some();
        let joins = elementwise
            && self.uses.function.node(id).ty().element.is_float()
            && operands.iter().any(|&operand| self.knows(operand))
            && operands.iter().all(known);
        if joins {
            self.joined.push(id);
        }
        joins
    }

    /// Returns the value of an operand that the search did not find: a number, or a node that is
    /// computed before the epilogue.
    fn operand(&self, id: NodeId) -> Option<Outside> {
        let node = self.uses.function.node(id);
        let [ty] = &node.types[..] else { return None };
        if !ty.element.is_float() {
            return None;
        }
        match self.uses.op(id) {
            Some(Op::Constant(Constant { value })) if value.as_splat().is_some() => {
                let number = ty.element.decode(value.as_splat()?);
                number.is_finite().then_some(Outside::Number(Real(number), ty.element))
            }
            Some(Op::BroadcastInDim(BroadcastInDim { shape, axes }))
                if *shape == self.ty.shape && axes.len() == 1 && axes[0] + 1 == shape.len() =>
            {
                let mut from = self.uses.function.operands(id)[0];
                let rounded = self.uses.function.node(from).ty().element;
                if let Some(Op::Convert(Convert { .. })) = self.uses.op(from) {
                    from = self.uses.function.operands(from)[0];
                }
                let element = self.uses.function.node(from).ty().element;
                let there = from.index() < self.id.index() && element.is_float();
                there.then_some(Outside::Operand(from, Broadcast::LastAxis(element), rounded))
            }
            _ if ty.shape == self.ty.shape && id.index() < self.id.index() => {
                Some(Outside::Operand(id, Broadcast::Everywhere(ty.element), ty.element))
            }
            _ => None,
        }
    }

    /// Returns the epilogue that ends at `end`, if no node outside of the epilogue reads an
    /// intermediate value of the epilogue.
    fn ending(&self, end: NodeId) -> Option<Ending> {
        let mut within = vec![end];
        for &id in self.joined.iter().rev() {
            let needed = self.uses.users[id.index()].iter().any(|user| within.contains(user));
            if needed && id != end {
                within.push(id);
            }
        }
        let inner = |id: NodeId| {
            let used = self.uses.users[id.index()].iter().all(|user| within.contains(user));
            used && !self.uses.returned[id.index()]
        };
        let halves = self.parts.len() == 2;
        let parts = self.parts.iter().all(|&part| inner(part));
        let own = !halves || !self.uses.returned[self.id.index()];
        if !parts || !own || !within[1..].iter().all(|&id| inner(id)) {
            return None;
        }
        within.sort_unstable();
        let mut steps = Steps {
            growth: self,
            tail: Epilogue { halves, ..Epilogue::default() },
            operands: Vec::new(),
            places: BTreeMap::new(),
        };
        within.iter().try_for_each(|&id| steps.add(id))?;
        let Steps { tail, operands, .. } = steps;
        within.retain(|&id| id != end);
        within.extend(&self.parts);
        if halves {
            within.push(self.id);
        }
        Some(Ending { tail, operands, within, written: end })
    }
}

/// A value that the epilogue reads, and that the program computes before the epilogue.
enum Outside {
    Number(Real, ElementType),
    /// The node of the epilogue's operand, how the epilogue broadcasts the operand, and the element
    /// type to which the epilogue first rounds the node.
    Operand(NodeId, Broadcast, ElementType),
}

/// The operations of an epilogue that the search has found so far.
struct Steps<'g, 'f> {
    growth: &'g Growth<'g, 'f>,
    tail: Epilogue,
    operands: Vec<NodeId>,
    places: BTreeMap<NodeId, usize>,
}

impl Steps<'_, '_> {
    fn add(&mut self, id: NodeId) -> Option<()> {
        let uses = self.growth.uses;
        let inputs = uses.function.operands(id);
        let places = inputs.into_iter().map(|input| self.place(input)).collect::<Option<Vec<_>>>()?;
        let kind = match (uses.op(id)?, &places[..]) {
            (Op::Unary(Unary { kind }), &[x]) => EpilogueOp::Unary(*kind, x),
            (Op::Binary(Binary { kind }), &[a, b]) => EpilogueOp::Binary(*kind, a, b),
            (Op::Convert(_), &[x]) => EpilogueOp::Convert(x),
            _ => return None,
        };
        self.push(id, kind, uses.function.node(id).ty().element);
        Some(())
    }

    /// Returns the index of the epilogue operation that computes the value of a node.
    fn place(&mut self, id: NodeId) -> Option<usize> {
        if let Some(&place) = self.places.get(&id) {
            return Some(place);
        }
        let element = self.growth.uses.function.node(id).ty().element;
        if let Some(part) = self.growth.parts.iter().position(|&part| part == id) {
            return Some(self.push(id, EpilogueOp::Result(part), element));
        }
        Some(match self.growth.operand(id)? {
            Outside::Number(number, element) => self.push(id, EpilogueOp::Constant(number), element),
            Outside::Operand(from, spread, rounded) => {
                let index = self.operands.len();
                self.operands.push(from);
                self.tail.operands.push(spread);
                self.push(id, EpilogueOp::Operand(index), rounded)
            }
        })
    }

    fn push(&mut self, id: NodeId, kind: EpilogueOp, element: ElementType) -> usize {
        let place = self.tail.steps.len();
        self.tail.steps.push(TailStep { kind, element });
        self.places.insert(id, place);
        place
    }
}
