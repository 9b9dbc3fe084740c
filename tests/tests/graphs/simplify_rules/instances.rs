//! Small functions in which a rule is likely to find something, with random attributes, types and elements.

use std::collections::BTreeMap;

use egg::{ENodeOrVar, Pattern, Var};
use ops::ops::*;
use ops::{ElementType, Literal, Op, TensorType, Value};
use simplify::Term;
use simplify::rules::{Rule, RuleKind, Table};
use trace::{
    Builder, Evaluation, Function, FunctionId, NodeId, NodeKind, Output, Parameter, Provenance, Trace,
};
use tracewright_tests::arbitrary::{self, Dice};

/// A function whose last node is what the rule is about, and the value of each node.
pub struct Instance {
    pub function: Function,
    pub values: Vec<Value>,
}

impl Instance {
    /// The types of all nodes.
    pub fn types(&self) -> impl Iterator<Item = &TensorType> {
        self.function.ids().map(|id| self.function.node(id).ty())
    }

    /// The function in the text form.
    pub fn trace(&self) -> Trace {
        Trace { functions: vec![self.function.clone()], entries: vec![FunctionId(0)] }
    }
}

/// An instance of a rule; `None` if what the dice chose is not valid.
pub fn instance(rule: &Rule, table: Table, dice: &mut Dice) -> Option<Instance> {
    let mut function = Function::new("instance", "");
    let builder = Builder { function: &mut function, provenance: Provenance::new("here", "here.rs", 1) };
    let mut make = Make { dice, builder };
    let root = match rule.how {
        RuleKind::Text { left, splats, .. } => make.text(left, splats)?,
        RuleKind::Attribute { .. } => make.attributes(rule.name)?,
    };
    function.outputs = vec![Output::new("result", root)];
    let value = match table {
        Table::Approximate => arbitrary::tame_value,
        _ => arbitrary::value,
    };
    let mut values: Vec<Value> = Vec::new();
    for id in function.ids() {
        let node = function.node(id);
        let operands = function.operands(id);
        let operands: Vec<&Value> = operands.iter().map(|o| &values[o.index()]).collect();
        let made = match &node.kind {
            NodeKind::Op(op) => op.eval(&operands, node.ty()),
            _ => value(dice, node.ty()),
        };
        values.push(made);
    }
    Some(Instance { function, values })
}

/// The function evaluated once more, by the trace's own evaluator: the helper above is no second meaning.
#[test]
fn instances_are_what_the_evaluator_says() {
    for (place, table, rule) in super::rules() {
        for (_, instance) in super::attempts(place, table, &rule).take(3) {
            let function = &instance.function;
            let mut arguments = Vec::new();
            let mut weights = BTreeMap::new();
            for (id, value) in function.ids().zip(&instance.values) {
                match &function.node(id).kind {
                    NodeKind::Input { .. } => arguments.push(value.clone()),
                    NodeKind::Parameter(parameter) => {
                        weights.insert(parameter.key.clone(), value.clone());
                    }
                    _ => {}
                }
            }
            let parameters = |key: &str| weights.get(key).cloned();
            let evaluation = Evaluation { parameters: &parameters, watch: None };
            let trace = instance.trace();
            trace.verify().unwrap();
            let found = trace::evaluate(&trace, "instance", arguments, evaluation).unwrap();
            let expected = &instance.values[function.outputs[0].node.index()];
            assert!(arbitrary::same(&found[0], expected), "{}", rule.name);
        }
    }
}

struct Make<'a, 'b> {
    dice: &'a mut Dice,
    builder: Builder<'b>,
}

impl Make<'_, '_> {
    fn ty(&self, id: NodeId) -> TensorType {
        self.builder.ty(id).clone()
    }

    fn input(&mut self, ty: TensorType) -> NodeId {
        let index = self.builder.function.inputs().len();
        self.builder.push(NodeKind::input(index, format!("argument{index}")), vec![ty], &[])
    }

    fn weight(&mut self, ty: TensorType) -> NodeId {
        let key = format!("weight{}", self.builder.function.len());
        self.builder.push(NodeKind::Parameter(Parameter::new(key, ty.clone())), vec![ty], &[])
    }

    /// Mostly an input: what is known ahead of time is folded.
    fn leaf(&mut self, ty: TensorType) -> NodeId {
        match self.dice.below(20) {
            0 => self.weight(ty),
            1 => {
                let value = Literal::from_value(&arbitrary::value(self.dice, &ty));
                self.builder.push(NodeKind::Op(Constant { value }.into()), vec![ty], &[])
            }
            _ => self.input(ty),
        }
    }

    /// A leaf of any type of at least so many axes.
    fn any(&mut self, least: usize) -> NodeId {
        let element = arbitrary::element(self.dice);
        let ty = arbitrary::ty(self.dice, element, least);
        self.leaf(ty)
    }

    /// A constant of equal elements, written as it is or as a number repeated.
    fn splat(&mut self, ty: &TensorType, value: f64) -> Option<NodeId> {
        if self.dice.chance(70) {
            return self.op(Constant { value: Literal::splat(ty.clone(), value) }, &[]);
        }
        let scalar = TensorType::new(ty.element, []);
        let scalar = self.op(Constant { value: Literal::splat(scalar, value) }, &[])?;
        // Folding nothing gives no number.
        if ty.count() == 0 {
            return None;
        }
        self.op(BroadcastInDim { shape: ty.shape.clone(), axes: vec![] }, &[scalar])
    }

    fn op(&mut self, op: impl Into<Op>, operands: &[NodeId]) -> Option<NodeId> {
        self.builder.op(op, operands).ok()
    }

    /// A random operation of this name that reads `x`.
    fn over(&mut self, name: &str, x: NodeId) -> Option<NodeId> {
        let given = self.ty(x);
        let (op, types) = arbitrary::operation(self.dice, name, Some(&given))?;
        let at = types.iter().position(|ty| *ty == given)?;
        let mut operands = Vec::new();
        for (i, ty) in types.into_iter().enumerate() {
            let again = ty == given && self.dice.chance(25);
            operands.push(if i == at || again { x } else { self.leaf(ty) });
        }
        self.op(op, &operands)
    }

    fn chain(&mut self, least: usize, names: &[&str]) -> Option<NodeId> {
        let x = self.any(least);
        names.iter().try_fold(x, |x, name| self.over(name, x))
    }

    /// The left side of a rule, over random leaves.
    fn text(&mut self, left: &str, splats: &[(&str, f64)]) -> Option<NodeId> {
        let pattern: Pattern<Term> = left.parse().unwrap();
        let variables = pattern.vars();
        let element = arbitrary::element(self.dice);
        let ty = arbitrary::ty(self.dice, element, 0);
        // Every variable has the one type, or says of each element whether.
        let choices: Vec<usize> = (0..1 << variables.len()).collect();
        let choices = self.dice.shuffled(choices);
        let typed = |choice: usize| -> BTreeMap<Var, TensorType> {
            let of =
                |i: usize| if choice >> i & 1 == 1 { ty.with_element(ElementType::I1) } else { ty.clone() };
            variables.iter().enumerate().map(|(i, &variable)| (variable, of(i))).collect()
        };
        let fits = |types: &BTreeMap<Var, TensorType>| {
            let mut known: Vec<TensorType> = Vec::new();
            for node in pattern.ast.iter() {
                let ty = match node {
                    ENodeOrVar::Var(variable) => types[variable].clone(),
                    ENodeOrVar::ENode(term) => {
                        let operands: Vec<&TensorType> =
                            term.operands.iter().map(|&id| &known[usize::from(id)]).collect();
                        match term.op().unwrap().infer(&operands) {
                            Ok(ty) => ty,
                            Err(_) => return false,
                        }
                    }
                };
                known.push(ty);
            }
            true
        };
        let types = choices.into_iter().map(typed).find(fits)?;
        let mut leaves: BTreeMap<Var, NodeId> = BTreeMap::new();
        for (&variable, ty) in &types {
            let splat = splats.iter().find(|(name, _)| variable.to_string() == *name);
            let leaf = match splat {
                Some(&(_, value)) => self.splat(ty, value)?,
                None => self.leaf(ty.clone()),
            };
            leaves.insert(variable, leaf);
        }
        let mut made: Vec<NodeId> = Vec::new();
        for node in pattern.ast.iter() {
            let id = match node {
                ENodeOrVar::Var(variable) => leaves[variable],
                ENodeOrVar::ENode(term) => {
                    let operands: Vec<NodeId> =
                        term.operands.iter().map(|&id| made[usize::from(id)]).collect();
                    self.op(term.op().unwrap().clone(), &operands)?
                }
            };
            made.push(id);
        }
        made.last().copied()
    }

    /// A shape with many extents of 1.
    fn unit_shape(&mut self) -> Vec<usize> {
        let mut shape: Vec<usize> = Vec::new();
        for _ in 0..1 + self.dice.below(4) {
            let unit = self.dice.chance(55);
            let extent = arbitrary::extent(self.dice);
            shape.push(if unit { 1 } else { extent });
        }
        shape
    }

    /// A number of many sizes for an approximate rule.
    fn factor(&mut self, element: ElementType) -> f64 {
        let range = if self.dice.chance(30) { 140 } else { 20 };
        let exponent = self.dice.below(2 * range) as i32 - range as i32;
        let mantissa = 1.0 + self.dice.below(1000) as f64 / 1000.0;
        let sign = if self.dice.chance(50) { 1.0 } else { -1.0 };
        element.round(sign * mantissa * 2f64.powi(exponent))
    }

    /// The operands and attributes that an attribute rule matches.
    fn attributes(&mut self, rule: &str) -> Option<NodeId> {
        match rule {
            "select or" => {
                let x = self.any(0);
                let ty = self.ty(x);
                let (c, d) = (ty.with_element(ElementType::I1), ty.with_element(ElementType::I1));
                let (c, d, y) = (self.leaf(c), self.leaf(d), self.leaf(ty));
                let inner = self.op(Select {}, &[d, x, y])?;
                self.op(Select {}, &[c, x, inner])
            }
            "convert same" => {
                let x = self.any(0);
                let to = self.ty(x).element;
                self.op(Convert { to }, &[x])
            }
            "convert convert" => self.chain(0, &["convert", "convert"]),
            "reduce_precision convert" => {
                let element = arbitrary::float(self.dice);
                let ty = arbitrary::ty(self.dice, element, 0);
                let x = self.leaf(ty);
                let wide = self.op(Convert { to: ElementType::F32 }, &[x])?;
                self.over("reduce_precision", wide)
            }
            "unary broadcast" => self.chain(0, &["broadcast_in_dim", "unary"]),
            "convert broadcast" => self.chain(0, &["broadcast_in_dim", "convert"]),
            "binary broadcast" | "compare broadcast" => {
                let name = if rule == "binary broadcast" { "binary" } else { "compare" };
                let x = self.any(0);
                let first = self.over("broadcast_in_dim", x)?;
                let NodeKind::Op(broadcast) = self.builder.function.node(first).kind.clone() else {
                    return None;
                };
                let second = match self.dice.below(4) {
                    0 => first,
                    1 => {
                        let value = *self.dice.pick(&[0.0, -0.0, 1.0, -3.0]);
                        let ty = self.ty(first);
                        self.op(Constant { value: Literal::splat(ty, value) }, &[])?
                    }
                    _ => {
                        let ty = self.ty(x);
                        let y = self.leaf(ty);
                        self.op(broadcast, &[y])?
                    }
                };
                let ty = self.ty(first);
                let (op, _) = arbitrary::operation(self.dice, name, Some(&ty))?;
                let operands = if self.dice.chance(50) { [first, second] } else { [second, first] };
                self.op(op, &operands)
            }
            "reduce unit axes" => {
                let element = arbitrary::element(self.dice);
                let shape = self.unit_shape();
                let axes =
                    (0..shape.len()).filter(|&axis| shape[axis] == 1 && self.dice.chance(60)).collect();
                let x = self.leaf(TensorType::new(element, shape));
                let kind = *self.dice.pick(ReduceKind::ALL);
                self.op(Reduce { kind, axes }, &[x])
            }

            _ => self.moved(rule),
        }
    }

    fn moved(&mut self, rule: &str) -> Option<NodeId> {
        match rule {
            "reshape same" => {
                let x = self.any(0);
                let shape = self.ty(x).shape;
                self.op(Reshape { shape }, &[x])
            }
            "reshape reshape" => self.chain(0, &["reshape", "reshape"]),
            "permute identity" => {
                let x = self.any(0);
                let order = (0..self.ty(x).rank()).collect();
                self.op(Permute { order }, &[x])
            }
            "permute permute" => self.chain(1, &["permute", "permute"]),
            "permute units" => {
                let element = arbitrary::element(self.dice);
                let shape = self.unit_shape();
                // Any order in which the other axes are ascending.
                let mut others = (0..shape.len()).filter(|&axis| shape[axis] != 1);
                let order = self.dice.shuffled((0..shape.len()).collect());
                let order =
                    order.iter().map(|&axis| if shape[axis] == 1 { axis } else { others.next().unwrap() });
                let order = order.collect();
                let x = self.leaf(TensorType::new(element, shape.clone()));
                self.op(Permute { order }, &[x])
            }
            "permute broadcast" => self.chain(0, &["broadcast_in_dim", "permute"]),
            "permute dot_general" => {
                let dot = self.chain(0, &["dot_general"])?;
                let function = &self.builder.function;
                let NodeKind::Op(Op::DotGeneral(op)) = function.node(dot).kind.clone() else { return None };
                let free = |at: usize, contract: &[usize]| {
                    function.node(function.operands(dot)[at]).ty().rank()
                        - op.left_batch.len()
                        - contract.len()
                };
                let (batch, left, right) =
                    (op.left_batch.len(), free(0, &op.left_contract), free(1, &op.right_contract));
                let order = (0..batch).chain(batch + left..batch + left + right).chain(batch..batch + left);
                self.op(Permute { order: order.collect() }, &[dot])
            }
            "narrow all" => {
                let x = self.any(1);
                let ty = self.ty(x);
                let axis = self.dice.below(ty.rank());
                self.op(Narrow { axis, start: 0, length: ty.shape[axis] }, &[x])
            }
            "narrow narrow" => self.chain(1, &["narrow", "narrow"]),
            "narrow concatenate" => self.chain(1, &["concatenate", "narrow"]),
            "narrow broadcast" => self.chain(0, &["broadcast_in_dim", "narrow"]),
            "narrow permute" => self.chain(1, &["permute", "narrow"]),
            "broadcast same" => {
                let x = self.any(0);
                let TensorType { shape, .. } = self.ty(x);
                let axes = (0..shape.len()).collect();
                self.op(BroadcastInDim { shape, axes }, &[x])
            }
            _ => self.repeated_or_joined(rule),
        }
    }

    fn repeated_or_joined(&mut self, rule: &str) -> Option<NodeId> {
        match rule {
            "broadcast broadcast" => self.chain(0, &["broadcast_in_dim", "broadcast_in_dim"]),
            "broadcast units" => {
                let element = arbitrary::element(self.dice);
                let from = self.unit_shape();
                let x = self.leaf(TensorType::new(element, from.clone()));
                // The axes that count stay in order; the others go anywhere.
                let rank = from.len() + self.dice.below(3);
                let places = self.dice.shuffled((0..rank).collect::<Vec<_>>());
                let (mut full, spare) = {
                    let count = from.iter().filter(|&&extent| extent != 1).count();
                    (places[..count].to_vec(), places[count..].to_vec())
                };
                full.sort_unstable();
                let (mut full, mut spare) = (full.into_iter(), spare.into_iter());
                let mut shape = vec![1; rank];
                let mut axes = Vec::new();
                for extent in from {
                    let axis = if extent == 1 { spare.next()? } else { full.next()? };
                    shape[axis] = extent;
                    axes.push(axis);
                }
                self.op(BroadcastInDim { shape, axes }, &[x])
            }
            "concatenate one" => {
                let x = self.any(1);
                let axis = self.dice.below(self.builder.ty(x).rank());
                self.op(Concatenate { axis }, &[x])
            }
            "concatenate empty" => {
                let x = self.any(1);
                let mut ty = self.ty(x);
                let axis = self.dice.below(ty.rank());
                let mut pieces = vec![x];
                for _ in 0..1 + self.dice.below(3) {
                    ty.shape[axis] = *self.dice.pick(&[0, 0, 1, 3]);
                    let piece = self.leaf(ty.clone());
                    pieces.push(piece);
                }
                let pieces = self.dice.shuffled(pieces);
                self.op(Concatenate { axis }, &pieces)
            }
            "concatenate concatenate" => self.chain(1, &["concatenate", "concatenate"]),
            "concatenate narrow" => {
                let x = self.any(1);
                let ty = self.ty(x);
                let axis = self.dice.below(ty.rank());
                let mut start = self.dice.below(ty.shape[axis] + 1);
                let mut pieces = Vec::new();
                for _ in 0..1 + self.dice.below(3) {
                    let length = self.dice.below(ty.shape[axis] - start + 1);
                    pieces.push(self.op(Narrow { axis, start, length }, &[x])?);
                    start += length;
                    if self.dice.chance(10) {
                        start = self.dice.below(start + 1);
                    }
                }
                self.op(Concatenate { axis }, &pieces)
            }
            _ => self.gathered(rule),
        }
    }

    fn gathered(&mut self, rule: &str) -> Option<NodeId> {
        match rule {
            "gather iota" => {
                let table = self.any(1);
                let rows = self.ty(table).shape[0];
                let length = self.dice.below(rows + 2);
                let ty = TensorType::new(ElementType::I32, [length]);
                let indices = self.op(Iota { ty, axis: 0 }, &[])?;
                self.op(Gather {}, &[table, indices])
            }
            "gather gather" => {
                let table = self.any(1);
                let first = 1 + self.dice.below(5);
                let first = self.leaf(TensorType::new(ElementType::I32, [first]));
                let rows = self.op(Gather {}, &[table, first])?;
                let rank = self.dice.below(3);
                let shape = arbitrary::shape(self.dice, rank);
                let second = self.leaf(TensorType::new(ElementType::I32, shape));
                self.op(Gather {}, &[rows, second])
            }
            "iota unit" => {
                let element = arbitrary::element(self.dice);
                let mut ty = arbitrary::ty(self.dice, element, 1);
                let axis = self.dice.below(ty.rank());
                ty.shape[axis] = 1;
                // What is small is folded before any rule sees it, and what is empty shows nothing.
                if self.dice.chance(30) {
                    let (few, many) = (*self.dice.pick(&[3, 5, 7]), 1400 + self.dice.below(99));
                    ty.shape = self.dice.shuffled(vec![1, few, many]);
                    let axis = ty.shape.iter().position(|&extent| extent == 1)?;
                    return self.op(Iota { ty, axis }, &[]);
                }
                self.op(Iota { ty, axis }, &[])
            }
            _ => self.sliced(rule),
        }
    }

    fn sliced(&mut self, rule: &str) -> Option<NodeId> {
        match rule {
            "dynamic_slice all" => {
                let x = self.any(1);
                let ty = self.ty(x);
                let axis = self.dice.below(ty.rank());
                let start = self.leaf(TensorType::new(ElementType::I32, []));
                self.op(DynamicSlice { axis, length: ty.shape[axis] }, &[x, start])
            }
            "dynamic_slice constant" => {
                let x = self.any(1);
                let ty = self.ty(x);
                let axis = self.dice.below(ty.rank());
                let value = *self.dice.pick(&[0.0, 1.0, 2.0, 3.0, -1.0, 7.0, 2147483647.0, -2147483648.0]);
                let start = Literal::splat(TensorType::new(ElementType::I32, []), value);
                let start = self.op(Constant { value: start }, &[])?;
                let length = self.dice.below(ty.shape[axis] + 1);
                self.op(DynamicSlice { axis, length }, &[x, start])
            }
            "dynamic_slice elementwise" => {
                let name = *self.dice.pick(&["unary", "convert", "reduce_precision", "rms_norm", "rms_norm"]);
                let x = match name {
                    "rms_norm" | "reduce_precision" => {
                        let element = match name {
                            "rms_norm" => arbitrary::float(self.dice),
                            _ => ElementType::F32,
                        };
                        let ty = arbitrary::ty(self.dice, element, 1);
                        self.leaf(ty)
                    }
                    _ => self.any(1),
                };
                let y = self.over(name, x)?;
                let ty = self.ty(y);
                let axis = self.dice.below(ty.rank());
                let length = self.dice.below(*ty.shape.get(axis)? + 1);
                let start = self.leaf(TensorType::new(ElementType::I32, []));
                self.op(DynamicSlice { axis, length }, &[y, start])
            }
            "dynamic_update_slice all" => {
                let x = self.any(1);
                let ty = self.ty(x);
                let axis = self.dice.below(ty.rank());
                let update = self.leaf(ty);
                let start = self.leaf(TensorType::new(ElementType::I32, []));
                self.op(DynamicUpdateSlice { axis }, &[x, update, start])
            }
            "dot_general permute" => {
                let x = self.any(1);
                let left = self.over("permute", x)?;
                let ty = self.ty(left);
                let (op, types) = arbitrary::operation(self.dice, "dot_general", Some(&ty))?;
                let mut operands = Vec::new();
                let mut placed = false;
                for ty in types {
                    if ty == self.ty(left) && !placed {
                        placed = true;
                        operands.push(left);
                    } else {
                        // The operand before some permutation of it.
                        let order = self.dice.shuffled((0..ty.rank()).collect::<Vec<_>>());
                        let mut shape = ty.shape.clone();
                        order.iter().zip(&ty.shape).for_each(|(&axis, &extent)| shape[axis] = extent);
                        let y = self.leaf(TensorType::new(ty.element, shape));
                        operands.push(self.op(Permute { order }, &[y])?);
                    }
                }
                self.op(op, &operands)
            }
            _ => self.multiplied(rule),
        }
    }

    fn multiplied(&mut self, rule: &str) -> Option<NodeId> {
        match rule {
            "reduce permute" => self.chain(1, &["permute", "reduce"]),

            "linears of one input" => {
                let element = arbitrary::float(self.dice);
                let ty = arbitrary::ty(self.dice, element, 1);
                let inputs = *ty.shape.last()?;
                let x = self.leaf(ty);
                let biased = self.dice.chance(40);
                let mut last = None;
                for _ in 0..2 + self.dice.below(3) {
                    let outputs = arbitrary::extent(self.dice);
                    let weight = TensorType::new(element, [outputs, inputs]);
                    let mut operands = vec![x, self.weight(weight)];
                    if biased && self.dice.chance(90) {
                        operands.push(self.weight(TensorType::new(element, [outputs])));
                    }
                    last = self.op(Linear {}, &operands);
                }
                last
            }

            "divide constant" => {
                let x = self.any(0);
                let ty = self.ty(x);
                let value = self.factor(ty.element);
                let c = self.splat(&ty, value)?;
                self.op(Binary { kind: BinaryKind::Divide }, &[x, c])
            }
            "multiply constants" => {
                let x = self.any(0);
                let ty = self.ty(x);
                let product = Binary { kind: BinaryKind::Multiply };
                let (c, d) = (self.factor(ty.element), self.factor(ty.element));
                let (c, d) = (self.splat(&ty, c)?, self.splat(&ty, d)?);
                let y = self.op(product.clone(), &[x, c])?;
                self.op(product, &[y, d])
            }
            "norm scale" => {
                let element = arbitrary::float(self.dice);
                let ty = arbitrary::ty(self.dice, element, 1);
                let inputs = *ty.shape.last()?;
                let x = self.input(ty);
                let scale = self.weight(TensorType::new(element, [inputs]));
                let style = *self.dice.pick(&[WeightStyle::Scale, WeightStyle::Scale, WeightStyle::Wide]);
                let norm = self.op(RmsNorm { epsilon: ops::Real(1e-5), style }, &[x, scale])?;
                let outputs = arbitrary::extent(self.dice);
                let mut operands = vec![norm, self.weight(TensorType::new(element, [outputs, inputs]))];
                if self.dice.chance(40) {
                    operands.push(self.weight(TensorType::new(element, [outputs])));
                }
                self.op(Linear {}, &operands)
            }
            // A rule that has no generator here must not pass.
            _ => panic!("no instances of rule `{rule}`: say in `instances.rs` where it finds something"),
        }
    }
}
