//! Adapters among which each sequence of a batch chooses: y = W · x + B · (A · x), with an A and a B for each adapter.
//! Source: Chen et al., "Punica: Multi-Tenant LoRA Serving" (2023).

use std::collections::{BTreeMap, BTreeSet};

use models::{LoraMatrices, NarrowMatrices};
use ops::format::{ActivationBits, PANEL};
use ops::ops::{
    BinaryKind, BroadcastInDim, Compare, Direction, DotGeneral, Gather, Narrow, PackedExperts, Select,
};
use ops::{ElementType, InferError, Op, TensorType, WeightFormat};
use trace::{
    Builder, Function, NodeId, NodeKind, Output, Parameter, Provenance, Role, Trace, key_pattern, resolve_key,
};

/// The adapters for which a program is compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterRoom {
    /// The number of adapters among which sequences choose; an adapter has an index from 1 to `count`.
    pub count: usize,
    /// The largest rank for a weight, with `*` for the layer.
    ranks: BTreeMap<String, usize>,
    /// For all other weights of linear layers; `None` if no adapter changes them.
    others: Option<usize>,
}

/// An adapter that does not fit the [`AdapterRoom`] of a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdapterError {
    /// The program computes the weight in a way that knows no adapters, such as experts.
    #[error(
        "the adapter changes `{weight}`, which is not the weight of a linear layer for each token; add the adapter to \
         the weights instead"
    )]
    Weight {
        /// The name of the weight.
        weight: String,
    },
    /// The program was compiled without adapters for the weight.
    #[error(
        "the adapter changes `{weight}`, but the program is compiled for adapters that don't; name the adapter when \
         you open the model, or set the largest rank of all adapters"
    )]
    Unchanged {
        /// The name of the weight.
        weight: String,
    },
    /// The rank is larger than the one for which the program was compiled.
    #[error(
        "the rank of the adapter for `{weight}` is {rank}, expected at most {most}; set the largest rank of all \
         adapters when you open the model"
    )]
    Rank {
        /// The name of the weight.
        weight: String,
        /// The rank of the adapter.
        rank: usize,
        /// The largest rank of the program.
        most: usize,
    },
}

const WEIGHT: &str = ".weight";
const ADAPTER: &str = "adapter";
const A: &str = ".lora_A";
const B: &str = ".lora_B";

impl AdapterRoom {
    /// For at least these adapters. With `rank`, all linear layers get room for other adapters of up to this rank.
    pub fn new<'a>(
        count: usize,
        rank: Option<usize>,
        adapters: impl IntoIterator<Item = &'a LoraMatrices>,
    ) -> Self {
        let whole = |rank: usize| rank.max(1).next_multiple_of(PANEL);
        let mut ranks = BTreeMap::new();
        for (weight, matrices) in adapters.into_iter().flat_map(|adapter| &adapter.0) {
            let known = ranks.entry(key_pattern(weight)).or_insert(0);
            *known = whole(matrices.rank.max(rank.unwrap_or(0))).max(*known);
        }
        Self { count: count.max(1), ranks, others: rank.map(whole) }
    }

    fn rank(&self, weight: &str) -> Option<usize> {
        self.ranks.get(&key_pattern(weight)).copied().or(self.others)
    }

    /// Checks that a program can apply an adapter. `arguments` are those with the role [`Role::LowRank`].
    pub fn check(
        &self,
        adapter: &LoraMatrices,
        is_argument: impl Fn(&str) -> bool,
    ) -> Result<(), AdapterError> {
        for (weight, matrices) in &adapter.0 {
            let Some(most) = self.rank(weight) else {
                return Err(AdapterError::Unchanged { weight: weight.clone() });
            };
            if !is_argument(&format!("{}{A}", module(weight))) {
                return Err(AdapterError::Weight { weight: weight.clone() });
            }
            if matrices.rank > most {
                return Err(AdapterError::Rank { weight: weight.clone(), rank: matrices.rank, most });
            }
        }
        Ok(())
    }

    /// Adds the adapters to all entry points. With `packs`, kernels read the matrices from panels.
    ///
    /// # Errors
    /// Returns an error if an operation rejects the types of its operands.
    pub fn add_to(&self, trace: &Trace, packs: bool) -> Result<Trace, InferError> {
        let pooled = pooled(trace);
        let mut sites: Vec<Vec<Site>> = Vec::new();
        for function in &trace.functions {
            let own = self.sites(trace, function, &sites, &pooled);
            sites.push(own);
        }
        let rewriting = Rewriting { trace, room: self, sites: &sites, packs };
        let functions = trace.functions.iter().zip(&sites).map(|(function, own)| rewriting.of(function, own));
        let mut functions = functions.collect::<Result<Vec<_>, _>>()?;
        for id in &trace.entries {
            set_roles(&mut functions[id.0 as usize], self.count);
        }
        Ok(Trace { functions, entries: trace.entries.clone() })
    }

    /// The linear layers of a function and of those that it calls, each once.
    fn sites(
        &self,
        trace: &Trace,
        function: &Function,
        of_others: &[Vec<Site>],
        pooled: &BTreeSet<String>,
    ) -> Vec<Site> {
        let mut sites: Vec<Site> = Vec::new();
        for id in function.ids() {
            let found = match &function.node(id).kind {
                NodeKind::Op(Op::Linear(_)) => self.site(function, id, pooled).into_iter().collect(),
                NodeKind::Call { function: callee, prefix } => {
                    let own = &trace.function(*callee).prefix;
                    of_others[callee.0 as usize].iter().map(|site| site.called(own, prefix)).collect()
                }
                NodeKind::Input { .. }
                | NodeKind::Parameter(_)
                | NodeKind::Op(_)
                | NodeKind::Result { .. } => Vec::new(),
            };
            found.into_iter().for_each(|site| {
                if !sites.iter().any(|known| known.module == site.module) {
                    sites.push(site);
                }
            });
        }
        sites
    }

    fn site(&self, function: &Function, id: NodeId, pooled: &BTreeSet<String>) -> Option<Site> {
        let (weight, x) = weight_of(function, id)?;
        let rank = self.rank(weight).filter(|_| !pooled.contains(&key_pattern(weight)))?;
        let &[batch, _, inputs] = &x.shape[..] else { return None };
        let outputs = *function.node(id).ty().shape.last()?;
        Some(Site { module: module(weight).to_owned(), batch, inputs, outputs, rank })
    }

    /// The bytes of an argument with the role [`Role::LowRank`], from the adapters with the indices 1, 2, ….
    pub fn bytes(&self, name: &str, ty: &TensorType, adapters: &[Option<&LoraMatrices>]) -> Vec<u8> {
        let is_a = name.ends_with(A);
        let weight = format!("{}.weight", name.trim_end_matches(A).trim_end_matches(B));
        // Both forms have as many numbers for each adapter.
        let packs = ty.rank() == 4;
        let columns = ty.shape[if packs { 1 } else { 2 }];
        let rows = if packs { ty.shape[0] * PANEL / self.count } else { ty.shape[1] };
        let mut numbers = vec![0.0f32; ty.count()];
        for (slot, adapter) in adapters.iter().enumerate().take(self.count) {
            let Some(matrices) = adapter.and_then(|adapter| adapter.0.get(&weight)) else { continue };
            let NarrowMatrices { rank, inputs, a, b, .. } = matrices;
            let (from, width) = if is_a { (a, *inputs) } else { (b, *rank) };
            for (row, line) in from.chunks(width.max(1)).enumerate() {
                let row = slot * rows + row;
                for (column, x) in line.iter().enumerate() {
                    let place = if packs {
                        (row / PANEL * columns + column) * PANEL + row % PANEL
                    } else {
                        row * columns + column
                    };
                    numbers[place] = *x;
                }
            }
        }
        numbers.into_iter().flat_map(f32::to_le_bytes).collect()
    }
}

/// A linear layer whose result adapters change.
#[derive(Clone)]
struct Site {
    /// The name of the weight without `.weight`.
    module: String,
    batch: usize,
    inputs: usize,
    outputs: usize,
    rank: usize,
}

impl Site {
    /// The layer under the prefix of a call.
    fn called(&self, prefix: &str, replacement: &str) -> Self {
        Self { module: resolve_key(&self.module, prefix, replacement), ..self.clone() }
    }

    /// The types of A and B.
    fn types(&self, count: usize, packs: bool) -> [TensorType; 2] {
        let &Self { inputs, outputs, rank, .. } = self;
        if packs {
            let outputs = outputs.next_multiple_of(PANEL);
            [(rank, inputs), (outputs, rank)]
                .map(|(rows, columns)| WeightFormat::F32.packed(count * rows, columns))
        } else {
            [[count, rank, inputs], [count, outputs, rank]]
                .map(|shape| TensorType::new(ElementType::F32, shape))
        }
    }

    /// The numbers that adapters add for x `[B, S, inputs]`: −0 for sequences without an adapter, because y + −0 has the bits
    /// of y for any y.
    fn change(
        &self,
        b: &mut Builder<'_>,
        (x, adapter): (NodeId, NodeId),
        matrices: [NodeId; 2],
        (count, packs): (usize, bool),
    ) -> Result<NodeId, InferError> {
        let tokens = b.ty(x).shape[1];
        let chosen = b.with_scalar(BinaryKind::Subtract, adapter, 1.0)?;
        let mut change = b.convert(x, ElementType::F32)?;
        let places = b.op(BroadcastInDim { shape: vec![self.batch, tokens], axes: vec![0] }, &[chosen])?;
        for (matrices, outputs) in matrices.into_iter().zip([self.rank, self.outputs]) {
            change = if packs {
                let (format, element) = (WeightFormat::F32, ElementType::F32);
                let (experts, activations) = (count, ActivationBits::default());
                let whole = outputs.next_multiple_of(PANEL);
                let op = PackedExperts { format, experts, outputs: whole, element, activations };
                let sums = b.op(op, &[change, matrices, places])?;
                if whole == outputs {
                    sums
                } else {
                    b.op(Narrow { axis: 2, start: 0, length: outputs }, &[sums])?
                }
            } else {
                let own = b.op(Gather {}, &[matrices, chosen])?;
                let (left_batch, right_batch) = (vec![0], vec![0]);
                let (left_contract, right_contract) = (vec![2], vec![2]);
                let element = ElementType::F32;
                let op = DotGeneral { left_batch, right_batch, left_contract, right_contract, element };
                b.op(op, &[change, own])?
            };
        }
        let zero = b.splat(adapter, 0.0)?;
        let is_adapted = b.op(Compare { direction: Direction::Gt }, &[adapter, zero])?;
        let shape = b.ty(change).shape.clone();
        let is_adapted = b.op(BroadcastInDim { shape, axes: vec![0] }, &[is_adapted])?;
        let nothing = b.splat(change, -0.0)?;
        b.op(Select {}, &[is_adapted, change, nothing])
    }
}

/// The weight and the operand of a linear layer.
fn weight_of(function: &Function, id: NodeId) -> Option<(&str, &TensorType)> {
    let operands = function.operands(id);
    match &function.node(*operands.get(1)?).kind {
        NodeKind::Parameter(Parameter { key, .. }) if key.ends_with(WEIGHT) => {
            Some((key, function.node(operands[0]).ty()))
        }
        _ => None,
    }
}

fn module(weight: &str) -> &str {
    weight.strip_suffix(WEIGHT).unwrap_or(weight)
}

/// The weights of linear layers that do not always compute all positions of sequences, such as the head.
fn pooled(trace: &Trace) -> BTreeSet<String> {
    let of_function = |function: &Function| {
        let linear =
            function.ids().filter(|id| matches!(function.node(*id).kind, NodeKind::Op(Op::Linear(_))));
        let weights = linear.filter_map(|id| weight_of(function, id).filter(|(_, x)| x.rank() != 3));
        weights.map(|(weight, _)| key_pattern(weight)).collect::<Vec<_>>()
    };
    trace.functions.iter().flat_map(of_function).collect()
}

/// Copies functions, and adds the changes of adapters.
struct Rewriting<'t> {
    trace: &'t Trace,
    room: &'t AdapterRoom,
    sites: &'t [Vec<Site>],
    packs: bool,
}

impl Rewriting<'_> {
    fn of(&self, function: &Function, sites: &[Site]) -> Result<Function, InferError> {
        let Some(first) = sites.first() else { return Ok(function.clone()) };
        let mut new = Function::new(&*function.name, &*function.prefix);
        let mut inputs = function.inputs().len();
        let provenance = Provenance::new("", "program/src/low_rank.rs", line!());
        let mut b = Builder { function: &mut new, provenance };
        let mut input = |b: &mut Builder<'_>, name: String, ty: TensorType| {
            let id = b.push(NodeKind::input(inputs, name), vec![ty], &[]);
            inputs += 1;
            id
        };
        let adapter = input(&mut b, ADAPTER.to_owned(), TensorType::new(ElementType::I32, [first.batch]));
        let mut matrices = BTreeMap::new();
        for site in sites {
            b.provenance = Provenance::new(&site.module, "program/src/low_rank.rs", line!());
            let [of_a, of_b] = site.types(self.room.count, self.packs);
            let names = [A, B].map(|end| format!("{}{end}", site.module));
            let [name_a, name_b] = names;
            let both = [input(&mut b, name_a, of_a), input(&mut b, name_b, of_b)];
            matrices.insert(site.module.as_str(), both);
        }
        let mut ids: Vec<NodeId> = Vec::with_capacity(function.len());
        for id in function.ids() {
            let node = function.node(id).clone();
            let mut operands: Vec<NodeId> = function.operands(id).iter().map(|id| ids[id.index()]).collect();
            b.provenance = node.provenance.clone();
            if let NodeKind::Call { function: callee, prefix } = &node.kind {
                let called = &self.sites[callee.0 as usize];
                operands.extend((!called.is_empty()).then_some(adapter));
                let own = &self.trace.function(*callee).prefix;
                for site in called {
                    operands.extend(matrices[site.called(own, prefix).module.as_str()]);
                }
            }
            let own = weight_of(function, id).filter(|_| matches!(node.kind, NodeKind::Op(Op::Linear(_))));
            let site = own.and_then(|(weight, _)| sites.iter().find(|site| site.module == module(weight)));
            let change = site.map(|site| {
                let of = (self.room.count, self.packs);
                site.change(&mut b, (operands[0], adapter), matrices[site.module.as_str()], of)
            });
            let (axes, element) = (node.axes.clone(), node.types.first().map(|ty| ty.element));
            let made = b.function.push(node, &operands);
            ids.push(match (change.transpose()?, element) {
                (Some(change), Some(element)) => {
                    let wide = b.convert(made, ElementType::F32)?;
                    let sum = b.binary(BinaryKind::Add, wide, change)?;
                    let sum = b.convert(sum, element)?;
                    b.function.node_mut(sum).axes = axes;
                    sum
                }
                _ => made,
            });
        }
        let output = |output: &Output| Output { node: ids[output.node.index()], ..output.clone() };
        new.outputs = function.outputs.iter().map(output).collect();
        Ok(new)
    }
}

/// The roles of the arguments of an entry point.
fn set_roles(entry: &mut Function, count: usize) {
    for id in entry.ids() {
        if let NodeKind::Input { name, role, .. } = &mut entry.node_mut(id).kind
            && *role == Role::Plain
        {
            *role = match name.as_str() {
                ADAPTER => Role::Adapter { count },
                _ if name.ends_with(A) || name.ends_with(B) => Role::LowRank,
                _ => Role::Plain,
            };
        }
    }
}
