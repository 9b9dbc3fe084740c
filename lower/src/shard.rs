//! Partitions tensors over a device mesh, by the names of their axes. Tracewright sets a sharding
//! only for arguments (including weights and state) and for results. XLA's partitioner derives the
//! sharding of all values between the arguments and the results, and inserts the collectives.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ops::format::GroupPart;
use ops::ops::Quantize;
use ops::{Op, TensorType};
use targets::{Mesh, MeshAxis, ShardRule};
use trace::{
    AxisName, Function, NodeKind, Parameter, ParameterConflict, Recipe, Trace, axis_factors, key_pattern,
};

/// The smallest number of axes of a stack of matrices.
const STACK: usize = 3;

/// The sharding of a program's tensors over a device mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards {
    /// The mesh. Tracewright splits a mesh axis into two axes if any tensor is partitioned over only a
    /// fraction of the devices along the mesh axis. For example, for a model with 8 key-value heads,
    /// `model=16` becomes `model.0=8,model.1=2`. The split does not change the order of the devices.
    pub mesh: Mesh,
    /// The sharding of each weight, by the key of the weight.
    pub weights: BTreeMap<String, Sharding>,
    /// The sharding of each entry point, by the name of the entry point.
    pub entries: BTreeMap<String, EntryShards>,
    /// The tensors that are partitioned over only a fraction of the devices along the mesh axis
    /// that a rule names.
    pub notes: BTreeSet<ShardNote>,
    /// Whether the mesh divides the experts of any layer, so that each device stores only some of
    /// the experts.
    pub divides_experts: bool,
}

/// The sharding of the arguments and results of an entry point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryShards {
    pub arguments: Vec<Sharding>,
    pub results: Vec<Sharding>,
}

/// The sharding of a tensor. For each axis of the tensor, the sharding lists the mesh axes over which
/// Tracewright partitions the tensor axis. In each list of mesh axes, the mesh axis that varies slowest comes
/// first. Devices along mesh axes that are not listed have copies of the same part of the tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sharding(pub Vec<Vec<MeshAxis>>);

/// A tensor axis that Tracewright partitions over only a fraction of the devices along a mesh axis,
/// or over no devices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShardNote {
    /// The tensor axis is shorter than the mesh axis, so several devices have a copy of the same
    /// part of the tensor.
    Short { axis: String, extent: usize, over: MeshAxis },
    /// The key-value heads are partitioned over only a fraction of the devices along the mesh axis. The query
    /// heads of each key-value head are partitioned over the remaining devices along the mesh axis.
    Groups {
        axis: String,
        extent: usize,
        over: MeshAxis,
        parts: usize,
        /// The number of devices over which the query heads of one key-value head are partitioned.
        rest: usize,
    },
    /// The number of experts is not divisible by the number of devices along the mesh axis, so
    /// Tracewright does not partition the experts along the mesh axis.
    Experts {
        axis: String,
        extent: usize,
        over: MeshAxis,
        /// The axis of each expert that Tracewright partitions instead.
        instead: String,
    },
    /// The number of experts is not divisible by the number of devices along the mesh axis, and no
    /// rule partitions another axis of a weight of the experts.
    WholeExperts {
        axis: String,
        extent: usize,
        over: MeshAxis,
        /// The pattern of the weight's key, such as `model.layers.*.mlp.experts.gate_up_proj`.
        weight: String,
    },
}

/// The reason why Tracewright cannot partition tensors with the given rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    /// A rule names a mesh axis that the mesh does not have.
    #[error("the sharding rule `{rule}` divides along the axis `{}`, which the mesh `{mesh}` does not have", .rule.over)]
    NoMeshAxis { rule: ShardRule, mesh: Mesh },
    /// The mesh has an axis that no sharding rule uses.
    #[error(
        "no rule divides a tensor along the axis `{axis}` of the mesh `{mesh}`, so all devices of this \
        axis would compute the same values"
    )]
    Idle { axis: String, mesh: Mesh },
    /// Two rules name the same tensor axis.
    #[error("two rules divide the axis `{0}`, expected one rule")]
    Twice(String),
    /// No tensor has the axis that a rule names.
    #[error("no weight, argument or result has the axis `{axis}`; the existing axes are {}", .known.join(", "))]
    NoAxis { axis: String, known: Vec<String> },
    /// The extent of a tensor axis is not divisible by the size of the mesh axis.
    #[error(
        "the tensor `{tensor}`: the axis `{axis}` of extent {extent} is not divisible by the {} devices \
        along `{}`",
        .over.size, .over.name
    )]
    Uneven { tensor: String, axis: String, extent: usize, over: MeshAxis },
    /// The tensor axis is an inner axis of a merged axis, and the outer axis of the merged axis is
    /// not partitioned.
    #[error(
        "the tensor `{tensor}`: the axis `{axis}` is not the outermost axis in the combined axis `{within}`; \
        divide the outermost axis, or none of the combined axes"
    )]
    Within {
        tensor: String,
        axis: String,
        /// The merged axis that contains the tensor axis.
        within: String,
    },
    /// Two tensor axes need incompatible splits of the same mesh axis.
    #[error("along the mesh axis `{}` of {} devices, one tensor axis needs {first} parts and another tensor \
        axis needs {second} parts", .over.name, .over.size)]
    Cuts {
        over: MeshAxis,
        first: usize,
        /// The number of pieces into which the second tensor axis must be divided.
        second: usize,
    },
    /// Two declarations of the same weight partition the axes of the weight differently.
    #[error("two declarations of the weight `{0}` divide its axes in different ways")]
    TwoWays(String),
    /// The trace declares a parameter with two different types.
    #[error(transparent)]
    Parameter(#[from] ParameterConflict),
}

/// A span is a factor of a mesh axis, between two divisors of the size of the mesh axis.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Span {
    over: usize,
    from: usize,
    to: usize,
}

/// The sharding rule for each tensor axis, and the splits of mesh axes that the rules need.
struct Divider<'a> {
    mesh: &'a Mesh,
    /// The index of the mesh axis for each tensor axis, and the rule that names the tensor axis.
    rules: BTreeMap<&'a str, (usize, &'a ShardRule)>,
    groups: BTreeSet<&'a str>,
    /// The axes of experts.
    experts: BTreeSet<&'a str>,
    /// For each mesh axis, the divisors of the axis's size at which Tracewright splits the axis.
    cuts: Vec<BTreeSet<usize>>,
    notes: BTreeSet<ShardNote>,
    divides_experts: bool,
}

impl Shards {
    /// Partitions the arguments and results of a recorded trace over the devices of a mesh. The
    /// simplification of a program without an archive does not change the program's arguments and results.
    pub fn new(recorded: &Trace, mesh: &Mesh, rules: &[ShardRule]) -> Result<Self, ShardError> {
        let mut divider = Divider::new(recorded, mesh, rules)?;
        let declared = declared_axes(recorded);
        let mut weights: BTreeMap<String, Vec<Vec<Span>>> = BTreeMap::new();
        for (key, read) in recorded.reads()?.entries {
            let mut ways = read.origins.iter().filter_map(|origin| declared.get(origin.as_str()));
            let mut way = |axes: &Vec<&[AxisName]>| -> Result<Vec<Vec<Vec<Span>>>, ShardError> {
                axes.iter().map(|axes| divider.place(&key, axes, &read.parameter.ty, true)).collect()
            };
            let ways = ways.try_fold(Vec::new(), |mut all, axes| {
                all.extend(way(axes)?);
                Ok::<_, ShardError>(all)
            })?;
            if ways.windows(2).any(|pair| pair[0] != pair[1]) {
                return Err(ShardError::TwoWays(key));
            }
            let whole = || vec![Vec::new(); read.parameter.ty.rank()];
            weights.insert(key, ways.into_iter().next().unwrap_or_else(whole));
        }
        let mut entries = Vec::new();
        for &id in &recorded.entries {
            let signature = recorded.function(id).signature();
            let mut place = |list: &[trace::Argument]| -> Result<Vec<Vec<Vec<Span>>>, ShardError> {
                list.iter().map(|a| divider.place(&a.name, &a.axes, &a.ty, false)).collect()
            };
            entries.push((signature.name, place(&signature.arguments)?, place(&signature.results)?));
        }
        let pieces = divider.pieces()?;
        let sharding = |axes: Vec<Vec<Span>>| divider.sharding(&pieces, &axes);
        let all = |list: Vec<Vec<Vec<Span>>>| list.into_iter().map(sharding).collect();
        let entry = |(name, arguments, results)| {
            (name, EntryShards { arguments: all(arguments), results: all(results) })
        };
        Ok(Self {
            weights: weights.into_iter().map(|(key, axes)| (key, sharding(axes))).collect(),
            entries: entries.into_iter().map(entry).collect(),
            mesh: Mesh { axes: pieces.iter().flatten().map(|(axis, _)| axis.clone()).collect() },
            notes: divider.notes,
            divides_experts: divider.divides_experts,
        })
    }

    /// Adds the sharding of the tensors that store quantized weights. The outputs of a quantized
    /// weight are partitioned like the outputs of the recorded weight. The inputs are partitioned
    /// only between groups, because the numbers of a group have a common scale.
    #[must_use]
    pub fn with_groups(mut self, parameters: &[Parameter]) -> Self {
        let mut groups = Vec::new();
        for parameter in parameters {
            let Some(Recipe::Op(Op::Quantize(Quantize { part, .. }), _)) = parameter.recipe.as_deref() else {
                continue;
            };
            let matrix = match part {
                GroupPart::Integers => Some(parameter.key.as_str()),
                part => parameter.key.strip_suffix(part.word()).and_then(|key| key.strip_suffix('.')),
            };
            let Some(Sharding(axes)) = matrix.and_then(|key| self.weights.get(key)) else { continue };
            let mut axes = axes.clone();
            axes.resize(parameter.ty.rank(), Vec::new());
            for (axes, extent) in axes.iter_mut().zip(&parameter.ty.shape) {
                let parts: usize = axes.iter().map(|axis| axis.size).product();
                if !extent.is_multiple_of(parts) {
                    axes.clear();
                }
            }
            groups.push((parameter.key.clone(), Sharding(axes)));
        }
        self.weights.extend(groups);
        self
    }

    pub fn whole() -> Self {
        let (weights, entries) = (BTreeMap::new(), BTreeMap::new());
        Self { mesh: Mesh::default(), weights, entries, notes: BTreeSet::new(), divides_experts: false }
    }

    /// Returns the number of bytes of the given weights that each device stores.
    pub fn device_bytes(&self, parameters: &[Parameter]) -> usize {
        let bytes = |p: &Parameter| p.ty.bytes() / self.weights.get(&p.key).map_or(1, Sharding::parts);
        parameters.iter().map(bytes).sum()
    }

    /// Returns the weights of which every device stores all elements.
    pub fn replicated<'a>(&self, parameters: &'a [Parameter]) -> Vec<&'a Parameter> {
        let whole = |p: &&Parameter| self.weights.get(&p.key).is_none_or(|sharding| sharding.parts() == 1);
        parameters.iter().filter(whole).collect()
    }
}

impl Sharding {
    /// Returns the number of pieces into which the sharding divides the tensor.
    pub fn parts(&self) -> usize {
        self.0.iter().flatten().map(|axis| axis.size).product()
    }

    /// Returns the type of the piece of a tensor that one device stores under the sharding.
    pub fn local(&self, ty: &TensorType) -> TensorType {
        let parts = |axes: &Vec<MeshAxis>| axes.iter().map(|axis| axis.size).product::<usize>();
        let mut ty = ty.clone();
        ty.shape.iter_mut().zip(&self.0).for_each(|(extent, axes)| *extent /= parts(axes));
        ty
    }
}

/// Prints the sharding in Shardy's syntax, for example `[{"model"}, {}]`.
impl fmt::Display for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axis = |axes: &Vec<MeshAxis>| {
            let names: Vec<String> = axes.iter().map(|axis| format!("\"{}\"", axis.name)).collect();
            format!("{{{}}}", names.join(", "))
        };
        write!(f, "[{}]", self.0.iter().map(axis).collect::<Vec<_>>().join(", "))
    }
}

impl fmt::Display for ShardNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { axis, extent, over } => {
                let same = over.size / extent;
                write!(
                    f,
                    "{axis} has {extent} for the {} devices along `{}`: each part is held by {same} of them",
                    over.size, over.name
                )
            }
            Self::Groups { axis, extent, over, parts: 1, rest } => write!(
                f,
                "{axis} of {extent} is not divisible by the {rest} devices that are left along `{}`: they compute the same",
                over.name
            ),
            Self::Groups { axis, extent, over, parts, .. } => {
                write!(
                    f,
                    "{axis} of {extent} is divided by {parts} instead, along the rest of `{}`",
                    over.name
                )
            }
            Self::Experts { axis, extent, over, instead } => write!(
                f,
                "{axis} of {extent} experts is not divisible by the {} devices along `{}`: {instead} of each expert is \
                divided instead",
                over.size, over.name
            ),
            Self::WholeExperts { axis, extent, over, weight } => write!(
                f,
                "{axis} of {extent} experts is not divisible by the {} devices along `{}`: each device holds all of \
                `{weight}`",
                over.size, over.name
            ),
        }
    }
}

/// Returns the axis names of each weight, by the key of the weight in the function that declares it.
fn declared_axes(trace: &Trace) -> BTreeMap<&str, Vec<&[AxisName]>> {
    let mut declared: BTreeMap<&str, Vec<&[AxisName]>> = BTreeMap::new();
    for function in &trace.functions {
        for node in function.ids().map(|id| function.node(id)) {
            if let NodeKind::Parameter(parameter) = &node.kind {
                declared.entry(&parameter.key).or_default().push(&node.axes);
            }
        }
    }
    declared
}

/// Returns those axes of the queries that the keys do not have, for attention whose query heads
/// share key-value heads.
fn group_axes(function: &Function) -> Vec<&str> {
    let mut groups = Vec::new();
    for id in function.ids() {
        if let NodeKind::Op(Op::Sdpa(_)) = &function.node(id).kind {
            let operands = function.operands(id);
            let [queries, keys] = [operands[0], operands[1]].map(|operand| &function.node(operand).axes[..]);
            // The last two axes of the queries are positions and features.
            let heads = &queries[..queries.len().saturating_sub(2)];
            groups.extend(heads.iter().filter(|axis| !keys.contains(axis)).map(|axis| &**axis));
        }
    }
    groups
}

/// Returns the axes of experts: the first axes of stacks of matrices `[experts, …]` with which the
/// function multiplies.
fn expert_axes(function: &Function) -> Vec<&str> {
    let mut experts = Vec::new();
    for id in function.ids() {
        let NodeKind::Op(Op::DotGeneral(_)) = &function.node(id).kind else { continue };
        let mut read = function.operands(id)[1];
        while let NodeKind::Op(Op::Gather(_) | Op::Permute(_) | Op::Reshape(_) | Op::Convert(_)) =
            &function.node(read).kind
        {
            read = function.operands(read)[0];
        }
        let node = function.node(read);
        if let NodeKind::Parameter(parameter) = &node.kind
            && parameter.ty.rank() >= STACK
        {
            experts.extend(node.axes.first().map(|axis| &**axis));
        }
    }
    experts
}

/// Whether a network has experts whose weights would be whole on each device with the given rules:
/// no rule divides any other axis than the axis of experts.
pub fn leaves_experts_whole(trace: &Trace, rules: &[ShardRule]) -> bool {
    let experts: BTreeSet<&str> = trace.functions.iter().flat_map(expert_axes).collect();
    let is_divided = |(name, &extent): (&AxisName, &usize)| {
        axis_factors(name, extent).iter().any(|(axis, _)| {
            !experts.contains(axis)
                && rules
                    .iter()
                    .any(|rule| rule.over != ShardRule::NONE && rule.axes.iter().any(|a| a == axis))
        })
    };
    let mut nodes = trace.functions.iter().flat_map(|function| function.ids().map(|id| function.node(id)));
    nodes.any(|node| match &node.kind {
        NodeKind::Parameter(parameter) => {
            parameter.ty.rank() >= STACK
                && node.axes.first().is_some_and(|axis| experts.contains(&**axis))
                && !node.axes.iter().zip(&parameter.ty.shape).any(is_divided)
        }
        NodeKind::Input { .. } | NodeKind::Op(_) | NodeKind::Call { .. } | NodeKind::Result { .. } => false,
    })
}

impl<'a> Divider<'a> {
    fn new(trace: &'a Trace, mesh: &'a Mesh, rules: &'a [ShardRule]) -> Result<Self, ShardError> {
        let mut by_axis = BTreeMap::new();
        for rule in rules.iter().filter(|rule| rule.over != ShardRule::NONE) {
            let Some(over) = mesh.axes.iter().position(|axis| axis.name == rule.over) else {
                return Err(ShardError::NoMeshAxis { rule: rule.clone(), mesh: mesh.clone() });
            };
            for axis in &rule.axes {
                if by_axis.insert(&**axis, (over, rule)).is_some() {
                    return Err(ShardError::Twice(axis.clone()));
                }
            }
        }
        if let Some(idle) = (0..mesh.axes.len()).find(|at| !by_axis.values().any(|(over, _)| over == at)) {
            return Err(ShardError::Idle { axis: mesh.axes[idle].name.clone(), mesh: mesh.clone() });
        }
        let known = divisible_axes(trace);
        if let Some(axis) = by_axis.keys().find(|axis| !known.contains(**axis)) {
            let known = known.into_iter().map(str::to_owned).collect();
            return Err(ShardError::NoAxis { axis: (*axis).into(), known });
        }
        let groups = trace.functions.iter().flat_map(group_axes).filter(|axis| !by_axis.contains_key(axis));
        let (groups, cuts) = (groups.collect(), vec![BTreeSet::new(); mesh.axes.len()]);
        let experts = trace.functions.iter().flat_map(expert_axes).collect();
        let notes = BTreeSet::new();
        Ok(Self { mesh, rules: by_axis, groups, experts, cuts, notes, divides_experts: false })
    }

    /// Returns the sharding of a tensor that has the given axes. If two axes of the tensor need the
    /// same mesh axis, Tracewright partitions only the first of these axes. A rule for an axis of
    /// experts divides only the stacks of matrices. Routers stay whole, because each device needs
    /// the scores of all experts to choose the experts of a token.
    fn place(
        &mut self,
        tensor: &str,
        axes: &[AxisName],
        ty: &TensorType,
        is_weight: bool,
    ) -> Result<Vec<Vec<Span>>, ShardError> {
        let mut taken: Vec<Option<usize>> = vec![None; self.mesh.axes.len()];
        let mut placed = vec![Vec::new(); ty.rank()];
        let mut uneven = None;
        for (at, ((name, &held), spans)) in axes.iter().zip(&ty.shape).zip(&mut placed).enumerate() {
            let mut whole_outside = false;
            for (axis, extent) in axis_factors(name, held) {
                let is_expert = self.experts.contains(axis);
                let divides = !is_expert || (is_weight && at == 0 && ty.rank() >= STACK);
                let span = match self.rules.get(axis).copied().filter(|_| divides) {
                    Some((over, rule))
                        if rule.if_even && !extent.is_multiple_of(self.mesh.axes[over].size) =>
                    {
                        uneven = Some((axis, extent, over));
                        None
                    }
                    Some((over, _)) if taken[over].is_none() => {
                        let parts = self.parts(tensor, axis, extent, over)?;
                        taken[over] = Some(parts);
                        self.divides_experts |= is_expert;
                        Some(Span { over, from: 1, to: parts })
                    }
                    None if self.groups.contains(axis) => self.rest(axis, extent, &taken),
                    _ => None,
                };
                let Some(span) = span.filter(|span| span.from < span.to) else {
                    whole_outside |= extent > 1;
                    continue;
                };
                if whole_outside {
                    let (tensor, axis) = (tensor.into(), axis.into());
                    return Err(ShardError::Within { tensor, axis, within: name.to_string() });
                }
                whole_outside = span.to / span.from < extent;
                self.cuts[span.over].extend([span.from, span.to]);
                spans.push(span);
                if let Some((experts, count, over)) = uneven.take_if(|(_, _, over)| *over == span.over) {
                    let (experts, over) = (experts.to_owned(), self.mesh.axes[over].clone());
                    let instead = axis.to_owned();
                    self.notes.insert(ShardNote::Experts { axis: experts, extent: count, over, instead });
                }
            }
        }
        if let Some((axis, extent, over)) = uneven {
            let (axis, over, weight) = (axis.to_owned(), self.mesh.axes[over].clone(), key_pattern(tensor));
            self.notes.insert(ShardNote::WholeExperts { axis, extent, over, weight });
        }
        Ok(placed)
    }

    /// Returns the number of pieces into which the mesh axis `over` divides a tensor axis.
    fn parts(&mut self, tensor: &str, axis: &str, extent: usize, over: usize) -> Result<usize, ShardError> {
        let over = &self.mesh.axes[over];
        if extent.is_multiple_of(over.size) {
            return Ok(over.size);
        }
        let (axis, over) = (axis.to_owned(), over.clone());
        if over.size.is_multiple_of(extent) {
            self.notes.insert(ShardNote::Short { axis, extent, over: over.clone() });
            return Ok(extent);
        }
        Err(ShardError::Uneven { tensor: tensor.into(), axis, extent, over })
    }

    /// Returns the fraction of a mesh axis over which Tracewright partitions the query heads of each
    /// key-value head. The key-value heads are not partitioned over the returned fraction of the mesh axis.
    fn rest(&mut self, axis: &str, extent: usize, taken: &[Option<usize>]) -> Option<Span> {
        let left = |(at, over): (usize, &MeshAxis)| {
            let from = taken[at].filter(|&parts| parts < over.size)?;
            Some((at, over.clone(), from))
        };
        let (at, over, from) = self.mesh.axes.iter().enumerate().find_map(left)?;
        let rest = over.size / from;
        let parts = match () {
            () if extent.is_multiple_of(rest) => rest,
            () if rest.is_multiple_of(extent) => extent,
            () => 1,
        };
        self.notes.insert(ShardNote::Groups { axis: axis.into(), extent, over, parts, rest });
        Some(Span { over: at, from, to: from * parts })
    }

    /// Returns the mesh axes, with the splits that the sharding rules need. For each axis that a split
    /// creates, the function also returns the divisor of the original axis at which the created axis begins.
    fn pieces(&self) -> Result<Vec<Vec<(MeshAxis, usize)>>, ShardError> {
        let of_axis = |(over, cuts): (&MeshAxis, &BTreeSet<usize>)| {
            let mut cuts: BTreeSet<usize> = cuts.clone();
            cuts.extend([1, over.size]);
            let cuts: Vec<usize> = cuts.into_iter().collect();
            let mut pieces = Vec::new();
            for pair in cuts.windows(2) {
                let (first, second) = (pair[0], pair[1]);
                if !second.is_multiple_of(first) {
                    return Err(ShardError::Cuts { over: over.clone(), first, second });
                }
                let name = format!("{}.{}", over.name, pieces.len());
                pieces.push((MeshAxis { name, size: second / first }, first));
            }
            if pieces.len() < 2 {
                pieces = vec![(over.clone(), 1)];
            }
            Ok(pieces)
        };
        self.mesh.axes.iter().zip(&self.cuts).map(of_axis).collect()
    }

    /// Returns the sharding of a tensor with the given `axes` over the given pieces of mesh axes.
    fn sharding(&self, pieces: &[Vec<(MeshAxis, usize)>], axes: &[Vec<Span>]) -> Sharding {
        let pieces = |span: &Span| {
            let (from, to) = (span.from, span.to);
            pieces[span.over]
                .iter()
                .filter(move |(_, at)| (from..to).contains(at))
                .map(|(axis, _)| axis.clone())
        };
        Sharding(axes.iter().map(|spans| spans.iter().flat_map(pieces).collect()).collect())
    }
}

/// Returns the axes that a sharding rule can name: the axes of all weights, arguments and results.
pub fn divisible_axes(trace: &Trace) -> BTreeSet<&str> {
    let mut known = BTreeSet::new();
    for (index, function) in trace.functions.iter().enumerate() {
        let entry = trace.entries.iter().any(|id| id.0 as usize == index);
        let results: Vec<_> = function.outputs.iter().map(|output| output.node).collect();
        for id in function.ids() {
            let node = function.node(id);
            let taken = matches!(node.kind, NodeKind::Parameter(_))
                || entry && (matches!(node.kind, NodeKind::Input { .. }) || results.contains(&id));
            if taken && node.types.len() == 1 {
                let factors = node.axes.iter().zip(&node.ty().shape);
                known.extend(
                    factors.flat_map(|(name, &extent)| axis_factors(name, extent)).map(|(axis, _)| axis),
                );
            }
        }
    }
    known
}
