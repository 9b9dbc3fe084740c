//! Computes how far a right answer may be from the evaluator's, if operations read results of others.
//!
//! The bound of one operation does not tell how a difference grows later: a division may read a sum of −0, or a
//! comparison may depend on an omitted rounding. Therefore the program is evaluated several times, as recorded and
//! in primitives, with random choices wherever there is a choice. An answer is right if it lies among these
//! answers, or as near to them as they lie to each other. StableHLO, IEEE 754 or a processor leaves each of these
//! choices open:
//!
//! - **Sums** (`reduce`, `dot_general`) are added in any order. Each partial sum may be off by half a unit in the
//!   last place of the sum of all magnitudes. If that sum overflows, a partial sum may. A sum of zero has either
//!   sign. Sums of representable whole numbers are exact.
//! - **Transcendental functions**, `power` and `erf` keep within
//!   [`Operation::BOUND`](tracewright::ops::Operation::BOUND).
//! - **A product in f32** that is added to something may stay unrounded and not overflow, because processors have
//!   fused instructions.
//! - **A rounding to f16 or bf16** may be omitted. Compilers compute several such operations in f32 and round the
//!   last, which also avoids overflow in between.
//! - **Integers** that bf16 or f16 cannot represent may first be rounded to f32, because StableHLO does not define
//!   their conversion.
//! - **Subnormal numbers** of f32 and bf16 may be zero wherever they are read, because threads of IREE and XLA
//!   flush them.
//!
//! A NaN has no sign and no payload. Everything else must equal the evaluator's answer, including integers and
//! truth values.

use tracewright::ops::ops::{BinaryKind, DotGeneral, ReduceKind, UnaryKind};
use tracewright::ops::{Bound, ElementType, Op, TensorType, Value};
use tracewright::trace::{Function, NodeKind};

use crate::arbitrary::Dice;
use crate::evaluate::WeightValues;

/// How far a result may be from the expected one.
#[derive(Clone, Debug)]
pub enum Leeway {
    /// A bound of the operation that made it of exact operands.
    Within(Bound),
    /// Other results that are as right.
    Among(Vec<Value>),
}

/// How often each choice is made anew.
const DRAWS: u64 = 64;

impl Leeway {
    /// The ranges of results of a function without calls, from several of its forms: as recorded, and in
    /// primitives.
    pub fn of(forms: [&Function; 2], arguments: &[Value], weights: &WeightValues) -> Vec<Self> {
        let mut others = vec![Vec::new(); forms[0].outputs.len()];
        for (seed, form) in (0..DRAWS).zip(forms.into_iter().cycle()) {
            let results = draw(form, arguments, weights, &mut Dice::new(seed));
            others.iter_mut().zip(results).for_each(|(others, result)| others.push(result));
        }
        others.into_iter().map(Self::Among).collect()
    }

    /// The first element of `found` that is wrong: (index, expected, found).
    pub fn first_violation(&self, expected: &Value, found: &Value) -> Option<(usize, f64, f64)> {
        let others = match self {
            Self::Within(bound) => return bound.first_violation(expected, found),
            Self::Among(others) => others,
        };
        let mut pairs = expected.data.iter().zip(&found.data).enumerate();
        let wrong = |&(i, (&expected, &found)): &(usize, (&f64, &f64))| {
            !Range::of(expected, others.iter().map(|other| other.data[i])).holds(found)
        };
        pairs.find(wrong).map(|(i, (&expected, &found))| (i, expected, found))
    }

    /// How many elements are held to a number, give or take a hundredth of it, and how many there are.
    pub fn held(&self, expected: &Value) -> (usize, usize) {
        let is_held = |(i, &expected): (usize, &f64)| match self {
            Self::Within(_) => true,
            Self::Among(others) => {
                let range = Range::of(expected, others.iter().map(|other| other.data[i]));
                let width = range.high - range.low;
                let narrow = width <= 0.01 * range.high.abs().max(range.low.abs());
                !range.open && (range.nan || range.same.is_some() || narrow)
            }
        };
        (expected.data.iter().enumerate().filter(|&pair| is_held(pair)).count(), expected.data.len())
    }
}

/// The possible values of one element.
struct Range {
    low: f64,
    high: f64,
    /// Whether one of them is a NaN.
    nan: bool,
    /// Whether a choice makes the difference between a number and none: then nothing is known.
    open: bool,
    /// Whether all are the same, the sign of zero included.
    same: Option<u64>,
}

impl Range {
    fn of(expected: f64, others: impl Iterator<Item = f64>) -> Self {
        let mut range = Self {
            low: f64::INFINITY,
            high: f64::NEG_INFINITY,
            nan: expected.is_nan(),
            open: false,
            same: Some(expected.to_bits()),
        };
        for x in others.chain([expected]) {
            range.low = range.low.min(x);
            range.high = range.high.max(x);
            range.open |= x.is_nan() != range.nan || x.is_finite() != expected.is_finite();
            range.same = range.same.filter(|&bits| bits == x.to_bits());
        }
        range.open |= range.low < range.high && !expected.is_finite();
        range
    }

    fn holds(&self, found: f64) -> bool {
        let around = self.high - self.low;
        match self.same {
            _ if self.open => true,
            _ if self.nan => found.is_nan(),
            Some(bits) => found.to_bits() == bits,
            None => (self.low - around..=self.high + around).contains(&found),
        }
    }
}

/// A value under the choices made so far.
#[derive(Clone)]
struct Drawn {
    /// As the program says.
    value: Value,
    /// The values without rounding to a narrower type.
    wide: Vec<f64>,
    /// How far each number may be from these.
    slack: Vec<f64>,
}

impl Drawn {
    fn exact(value: Value) -> Self {
        Self { wide: value.data.clone(), slack: vec![0.0; value.data.len()], value }
    }

    /// As one reader sees it: another may see it otherwise.
    fn seen(&self, dice: &mut Dice) -> Value {
        let element = self.value.ty.element;
        if !element.is_float() {
            return self.value.clone();
        }
        // All of them alike, as a loop has them, or each otherwise.
        let rounded = *dice.pick(&[0, 50, 100]);
        let mut see = |i: usize| {
            let x = if dice.chance(rounded) { self.value.data[i] } else { self.wide[i] };
            let x = match self.slack[i] {
                0.0 => x,
                slack if slack.is_finite() => x + slack * (dice.below(3) as f64 - 1.0),
                _ => *dice.pick(&[x, f64::INFINITY, f64::NEG_INFINITY, f64::NAN]),
            };
            let flushed = element != ElementType::F16 && x.abs() < f64::from(f32::MIN_POSITIVE);
            if flushed && dice.chance(50) { 0.0f64.copysign(x) } else { x }
        };
        let data = (0..self.wide.len()).map(&mut see).collect();
        Value { ty: self.value.ty.clone(), data }
    }
}

/// The results of one evaluation.
fn draw(function: &Function, arguments: &[Value], weights: &WeightValues, dice: &mut Dice) -> Vec<Value> {
    let live = function.live();
    let mut values: Vec<Option<Drawn>> = Vec::with_capacity(function.len());
    for id in function.ids() {
        let operands = || function.operands(id).into_iter().filter_map(|o| values[o.index()].as_ref());
        let drawn = live[id.index()].then(|| match &function.node(id).kind {
            NodeKind::Input { index, .. } => Drawn::exact(arguments[*index].clone()),
            NodeKind::Parameter(parameter) => {
                let value = parameter.value(&|key| weights.get(key).cloned());
                Drawn::exact(value.unwrap_or_else(|(key, ty)| panic!("no weight `{key}` of {ty}")))
            }
            NodeKind::Op(op) => apply(op, &operands().collect::<Vec<_>>(), function.node(id).ty(), dice),
            NodeKind::Call { .. } | NodeKind::Result { .. } => panic!("`{}` calls others", function.name),
        });
        values.push(drawn);
    }
    let results = function.outputs.iter().filter_map(|output| values[output.node.index()].as_ref());
    results.map(|drawn| Value::new(drawn.value.ty.clone(), drawn.seen(dice).data)).collect()
}

fn apply(op: &Op, operands: &[&Drawn], ty: &TensorType, dice: &mut Dice) -> Drawn {
    if !ty.element.is_float() {
        let seen: Vec<Value> = operands.iter().map(|x| x.seen(dice)).collect();
        return Drawn::exact(op.eval(&seen.iter().collect::<Vec<_>>(), ty));
    }
    if moves(op, operands) {
        // What may be different moves along.
        let wide_ty = ty.with_element(ElementType::F32);
        let along = |part: fn(&Drawn) -> &Vec<f64>| {
            let floats = operands.iter().map(|x| {
                if x.value.ty.element.is_float() { wide(&x.value, part(x)) } else { x.value.clone() }
            });
            op.eval(&floats.collect::<Vec<_>>().iter().collect::<Vec<_>>(), &wide_ty).data
        };
        let values: Vec<&Value> = operands.iter().map(|x| &x.value).collect();
        let value = op.eval(&values, ty);
        let (wide, slack) = if operands.is_empty() {
            (value.data.clone(), vec![0.0; value.data.len()])
        } else {
            (along(|x| &x.wide), along(|x| &x.slack))
        };
        return Drawn { value, wide, slack: slack.into_iter().map(f64::abs).collect() };
    }
    let seen: Vec<Value> = operands.iter().map(|x| x.seen(dice)).collect();
    let mut value = op.eval(&seen.iter().collect::<Vec<_>>(), ty);
    let unrounded: Vec<Value> =
        seen.iter().map(|x| if x.ty.element.is_float() { wide(x, &x.data) } else { x.clone() }).collect();
    let unrounded: Vec<&Value> = unrounded.iter().collect();
    let mut unrounded = op.eval(&unrounded, &ty.with_element(ElementType::F32));
    if matches!(op, Op::Binary(binary) if binary.kind == BinaryKind::Multiply) {
        let exact = seen[0].data.iter().zip(&seen[1].data).map(|(a, b)| a * b);
        unrounded.data = exact.collect();
    }
    let slack = slack(op, &seen, &value);
    if is_sum(op) {
        let zeros = value.data.iter_mut().chain(&mut unrounded.data).filter(|x| **x == 0.0);
        zeros.for_each(|x| *x = *dice.pick(&[0.0, -0.0]));
    }
    Drawn { value, wide: unrounded.data, slack }
}

/// The same numbers, or others, as f32.
fn wide(value: &Value, data: &[f64]) -> Value {
    Value { ty: value.ty.with_element(ElementType::F32), data: data.to_vec() }
}

/// Whether an operation puts numbers elsewhere and computes none.
fn moves(op: &Op, operands: &[&Drawn]) -> bool {
    match op {
        Op::Unary(unary) => matches!(unary.kind, UnaryKind::Negate | UnaryKind::Abs),
        Op::Convert(convert) => convert.to == ElementType::F32 && operands[0].value.ty.element.is_float(),
        Op::Constant(_)
        | Op::Iota(_)
        | Op::Select(_)
        | Op::OptimizationBarrier(_)
        | Op::Reshape(_)
        | Op::Permute(_)
        | Op::Narrow(_)
        | Op::BroadcastInDim(_)
        | Op::Concatenate(_)
        | Op::Gather(_)
        | Op::DynamicSlice(_)
        | Op::DynamicUpdateSlice(_)
        | Op::Append(_) => true,
        _ => false,
    }
}

fn is_sum(op: &Op) -> bool {
    match op {
        Op::Reduce(reduce) => reduce.kind == ReduceKind::Add,
        Op::DotGeneral(_) => true,
        _ => false,
    }
}

/// How far each number of an operation's result may be from what is computed of these operands.
fn slack(op: &Op, operands: &[Value], value: &Value) -> Vec<f64> {
    match op {
        _ if is_sum(op) => sum_slack(op, operands, &value.ty),
        _ if op.is_map() => op.bound().allowances(value).collect(),
        _ => vec![0.0; value.data.len()],
    }
}

/// The error of a sum in any order.
fn sum_slack(op: &Op, operands: &[Value], ty: &TensorType) -> Vec<f64> {
    let element = ty.element;
    let terms = match op {
        Op::DotGeneral(DotGeneral { left_contract, .. }) => {
            left_contract.iter().map(|&axis| operands[0].ty.shape[axis]).product()
        }
        _ => operands[0].ty.count().checked_div(ty.count()).unwrap_or(0),
    };
    let finite = |x: f64| if x.is_finite() { x.abs() } else { 0.0 };
    let magnitudes: Vec<Value> = operands
        .iter()
        .map(|x| Value { ty: x.ty.clone(), data: x.data.iter().map(|&x| finite(x)).collect() })
        .collect();
    let magnitudes = op.eval(&magnitudes.iter().collect::<Vec<_>>(), ty);
    let whole = operands.iter().all(|x| x.data.iter().all(|x| x.fract() == 0.0));
    let smallest = f64::from(f32::MIN_POSITIVE);
    let of_sum = |&sum: &f64| match sum {
        _ if terms <= 1 && operands.len() == 1 => 0.0,
        0.0 => 0.0,
        sum if !sum.is_finite() => f64::INFINITY,
        // All whole numbers up to where the unit in the last place is one.
        sum if whole && element.ulp(sum) < 1.0 => 0.0,
        sum => terms as f64 * (0.5 * element.ulp(sum) + if sum < 1e-30 { smallest } else { 0.0 }),
    };
    magnitudes.data.iter().map(of_sum).collect()
}
