//! Finds expressions that the crate `bake` can compute when it writes the archive, and gives these
//! expressions names.

use egg::Id;
use ops::{Attribute as _, Form, Op, Real, TensorType};
use std::collections::HashMap;
use trace::{NodeKind, Parameter, Recipe};

use crate::Term;
use crate::facts::Graph;

/// The largest number of operations in one recipe. A recipe is a tree, so a recipe contains an
/// operation twice if two operations use the operation's result.
const OPERATIONS: usize = 64;

/// Returns the recipe of every class that depends only on weights and constants, if the crate
/// `bake` can compute the recipe.
pub(crate) fn recipes(graph: &Graph) -> HashMap<Id, Recipe> {
    let mut known: HashMap<Id, Recipe> = HashMap::new();
    let mut ids: Vec<Id> = graph.classes().map(|class| class.id).collect();
    ids.sort_unstable();
    loop {
        let before = known.len();
        for &id in &ids {
            if !known.contains_key(&id)
                && let Some(recipe) = graph[id].nodes.iter().find_map(|term| recipe(graph, &known, term))
            {
                known.insert(id, recipe);
            }
        }
        if known.len() == before {
            return known;
        }
    }
}

fn recipe(graph: &Graph, known: &HashMap<Id, Recipe>, term: &Term) -> Option<Recipe> {
    let op = match &*term.kind {
        NodeKind::Parameter(Parameter { key, ty, recipe }) => {
            return Some(match recipe {
                Some(recipe) => (**recipe).clone(),
                None => Recipe::Source(key.clone(), ty.clone()),
            });
        }
        NodeKind::Op(op) => op,
        _ => return None,
    };
    let splat = |id: &Id| graph[*id].data.splat().is_some();
    let of = |id: &Id| known.get(&graph.find(*id)).cloned();
    let types: Vec<&TensorType> = term.operands.iter().map(|&id| graph[id].data.ty()).collect();
    if matches!(op, Op::Constant(_)) || !Recipe::can(op, &types) {
        return None;
    }
    let mut sources = 0;
    let operand = |id: &Id| match of(id) {
        Some(recipe) => {
            sources += 1;
            Some(recipe)
        }
        None if splat(id) => {
            let value = graph[*id].data.constant.clone()?;
            Some(Recipe::Op(ops::ops::Constant { value }.into(), vec![]))
        }
        None => None,
    };
    let operands: Vec<Recipe> = term.operands.iter().map(operand).collect::<Option<_>>()?;
    let count: usize = operands.iter().map(Recipe::operations).sum();
    (sources > 0 && count < OPERATIONS).then(|| Recipe::Op(op.clone(), operands))
}

/// Returns the parameter for a recipe, if the archive should store the result of the recipe. A
/// recipe that only repeats or renames elements is not worth storing.
pub(crate) fn stored(recipe: &Recipe) -> Option<Parameter> {
    match recipe {
        Recipe::Op(op, _) if op.form() == Form::Primitive && !op.is_view() => {
            let (first, rest) = describe(recipe)?;
            Parameter::derived(format!("{first}{rest}"), recipe.clone()).ok()
        }
        _ => None,
    }
}

/// Returns a name for a recipe: the key of the first source tensor, and a description of the
/// operations: `…q_proj.weight` and `+k_proj.weight+v_proj.weight`. Numbers and computed operands
/// are in brackets in the description. If an operation has operands before the first source tensor,
/// the description lists these operands before the operation: `norm.weight~(1.0)subtract`.
fn describe(recipe: &Recipe) -> Option<(String, String)> {
    let (op, operands) = match recipe {
        Recipe::Source(key, _) => return Some((key.clone(), String::new())),
        Recipe::Op(op, operands) => (op, operands),
    };
    let described: Vec<Option<(String, String)>> = operands.iter().map(describe).collect();
    let place = described.iter().position(Option::is_some)?;
    let (first, mut text) = described[place].clone()?;
    let other = |at: usize| match (&described[at], &operands[at]) {
        (Some((key, done)), _) if done.is_empty() => relative(key, &first).to_owned(),
        (Some((key, done)), _) => format!("({}{done})", relative(key, &first)),
        (None, Recipe::Op(Op::Constant(constant), _)) => {
            let element = constant.value.ty().element;
            let mut value = String::new();
            match constant.value.as_splat() {
                Some(bits) => Real(element.decode(bits)).print(&mut value),
                None => constant.value.print(&mut value),
            }
            format!("({})", value.replace(' ', "."))
        }
        // All operands are constants, and constant folding has already computed the result.
        (None, _) => "()".to_owned(),
    };
    let separator = match op {
        Op::Concatenate(concatenate) if concatenate.axis == 0 && place == 0 => "+".to_owned(),
        Op::Convert(convert) => format!("~{}", convert.to),
        Op::Binary(binary) => format!("~{}", binary.kind.word()),
        op => {
            let mut name = String::from("~");
            op.print(&mut name);
            name.replace(' ', ".")
        }
    };
    let before: String = (0..place).map(other).collect();
    match (before.is_empty(), operands.len()) {
        (true, 1) => text.push_str(&separator),
        (true, _) => {}
        (false, _) => text.push_str(&separator.replacen('~', &format!("~{before}"), 1)),
    }
    for at in place + 1..operands.len() {
        if before.is_empty() {
            text.push_str(&separator);
        }
        text.push_str(&other(at));
    }
    Some((first, text))
}

/// Removes from the start of the text `key` the levels that `key` and `first` have in common.
fn relative<'a>(key: &'a str, first: &str) -> &'a str {
    let shared = key.bytes().zip(first.bytes()).take_while(|(a, b)| a == b).count();
    let level = key[..shared].rfind('.').map_or(0, |dot| dot + 1);
    &key[level..]
}
