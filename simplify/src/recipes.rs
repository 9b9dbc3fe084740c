//! Which terms can be computed when the archive is written, and what they are called there.

use egg::Id;
use ops::ops::BinaryKind;
use ops::{Attribute as _, Op, Real, print_string};
use std::collections::HashMap;
use trace::{NodeKind, Parameter, Recipe};

use crate::Term;
use crate::facts::Graph;

/// Of every class of weights and constants alone the recipe that makes it, if `bake` knows how.
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
    let supported = match op {
        Op::Permute(_) | Op::Concatenate(_) | Op::Reshape(_) | Op::BroadcastInDim(_) => true,
        Op::Convert(convert) => convert.to.is_float() && graph[term.operands[0]].data.ty().element.is_float(),
        Op::Binary(binary) => matches!(binary.kind, BinaryKind::Add | BinaryKind::Multiply),
        _ => false,
    };
    if !supported || !graph[graph.find(term.operands[0])].data.ty().element.is_float() {
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
    (sources > 0).then(|| Recipe::Op(op.clone(), operands))
}

/// The parameter that holds what a recipe makes, if that is worth a place in the archive: what only repeats or
/// renames elements is not.
pub(crate) fn stored(recipe: &Recipe) -> Option<Parameter> {
    match recipe {
        Recipe::Op(Op::Permute(_) | Op::Concatenate(_) | Op::Convert(_) | Op::Binary(_), _) => {
            let (first, rest) = describe(recipe)?;
            Parameter::derived(format!("{first}{rest}"), recipe.clone()).ok()
        }
        _ => None,
    }
}

/// The first source and what is done to it: `…q_proj.weight` and `+k_proj.weight+v_proj.weight`.
fn describe(recipe: &Recipe) -> Option<(String, String)> {
    match recipe {
        Recipe::Source(key, _) => Some((key.clone(), String::new())),
        Recipe::Op(op, operands) => {
            let mut described = operands.iter().map(describe);
            let (first, mut text) = described.by_ref().flatten().next()?;
            let separator = match op {
                Op::Concatenate(concatenate) if concatenate.axis == 0 => "+".to_owned(),
                Op::Convert(convert) => {
                    text.push_str(&format!("~{}", convert.to));
                    return Some((first, text));
                }
                Op::Binary(binary) => format!("~{}", binary.kind.word()),
                op => {
                    let mut name = String::from("~");
                    op.print(&mut name);
                    name.replace(' ', ".")
                }
            };
            let mut rest = described;
            if operands.len() == 1 {
                text.push_str(&separator);
            }
            for operand in &operands[1..] {
                text.push_str(&separator);
                match (rest.next().flatten(), operand) {
                    (Some((key, more)), _) => {
                        text.push_str(relative(&key, &first));
                        text.push_str(&more);
                    }
                    (None, Recipe::Op(Op::Constant(constant), _)) => {
                        let element = constant.value.ty().element;
                        let splat = constant.value.as_splat().map(|bits| Real(element.decode(bits)));
                        let mut value = String::new();
                        match splat {
                            Some(number) => number.print(&mut value),
                            None => constant.value.print(&mut value),
                        }
                        text.push_str(&format!("({})", value.replace(' ', ".")));
                    }
                    (None, other) => {
                        let mut printed = String::new();
                        print_string(&format!("{other:?}"), &mut printed);
                        text.push_str(&printed.replace(['"', ' '], "."));
                    }
                }
            }
            Some((first, text))
        }
    }
}

/// `key` without the levels that it shares with `first`.
fn relative<'a>(key: &'a str, first: &str) -> &'a str {
    let shared = key.bytes().zip(first.bytes()).take_while(|(a, b)| a == b).count();
    let level = key[..shared].rfind('.').map_or(0, |dot| dot + 1);
    &key[level..]
}
