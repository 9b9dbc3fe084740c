//! Creates parameters for weights that the archive stores in another layout than the checkpoint.

use ops::{InferError, Op};
use trace::{Builder, NodeId, NodeKind, Parameter, Recipe};

/// Creates a parameter that Tracewright computes from another parameter with a recipe, when
/// Tracewright writes the archive.
pub(crate) fn from_recipe(
    b: &mut Builder<'_>,
    key: String,
    parameter: &Parameter,
    recipe: impl FnOnce(Recipe) -> Recipe,
) -> Result<NodeId, InferError> {
    let source = match &parameter.recipe {
        Some(recipe) => Recipe::clone(recipe),
        None => Recipe::Source(parameter.key.clone(), parameter.ty.clone()),
    };
    let parameter = Parameter::derived(key, recipe(source))?;
    let ty = parameter.ty.clone();
    Ok(b.push(NodeKind::Parameter(parameter), vec![ty], &[]))
}

pub(crate) fn step(op: impl Into<Op>, operand: Recipe) -> Recipe {
    Recipe::Op(op.into(), vec![operand])
}
