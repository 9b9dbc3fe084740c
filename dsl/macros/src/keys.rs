//! Checks the checkpoint keys of fields, and the fields that share a weight by `tied`.

use quote::ToTokens as _;
use syn::Ident;

use super::ast::*;
use super::context::{Errors, suggestion};
use super::leaf::leaf_kind;

/// `tied` names a leaf with a matrix of the same shape, in the block or nested in it.
pub fn ties(model: &Model, block: &Block, errors: &mut Errors) {
    for field in &block.fields {
        let Some(tied) = &field.tied else { continue };
        let FieldType::Leaf(leaf) = &field.ty else {
            errors.at(&field.name, format!("`{}` is no leaf, and only a leaf can be tied", field.name));
            continue;
        };
        let Some(kind) = leaf_kind(&leaf.name) else { continue };
        if !kind.ties {
            errors.at(&leaf.name, format!("a `{}` cannot be tied", kind.name));
        } else if let Some(transposed) = leaf.setting("transposed") {
            let message = "a tied weight is stored as the leaf that it belongs to says; remove `transposed`";
            errors.at(&transposed.name, message);
        } else if let Err((at, message)) = tie(model, block, field, leaf, &tied.path) {
            errors.at(at, message);
        }
    }
}

fn tie<'a>(
    model: &'a Model,
    mut block: &'a Block,
    field: &Field,
    leaf: &Leaf,
    path: &'a [Ident],
) -> Result<(), (&'a Ident, String)> {
    let Some((last, way)) = path.split_last() else { return Ok(()) };
    let find = |block: &'a Block, segment: &'a Ident| -> Result<&'a Field, (&'a Ident, String)> {
        block.field(segment).ok_or_else(|| {
            let fields: Vec<String> = block.fields.iter().map(|field| field.name.to_string()).collect();
            let hint = suggestion(&segment.to_string(), fields.iter().map(String::as_str));
            (segment, format!("the block `{}` has no field `{segment}`{hint}", block.name))
        })
    };
    for segment in way {
        block = match &find(block, segment)?.ty {
            FieldType::Here(name) => match model.block(name) {
                Some(inner) => inner,
                None => return Ok(()),
            },
            FieldType::Array(..) => return Err((segment, array(segment))),
            FieldType::Leaf(leaf) => {
                return Err((segment, format!("`{segment}` is a `{}`, which has no fields", leaf.name)));
            }
            FieldType::Elsewhere(_) => {
                return Err((
                    segment,
                    format!("`{segment}` is a block from elsewhere, whose fields are not known here"),
                ));
            }
        };
    }
    let target = find(block, last)?;
    let home = match &target.ty {
        FieldType::Leaf(home) => home,
        FieldType::Array(..) => return Err((last, array(last))),
        _ => return Err((last, format!("`{last}` is a block; only a leaf has a weight"))),
    };
    if std::ptr::eq(target, field) {
        return Err((last, format!("`{last}` is tied to itself")));
    }
    if target.tied.is_some() {
        return Err((last, format!("`{last}` is tied itself; name the leaf whose weight it is")));
    }
    if home.setting("transposed").is_some() {
        return Err((last, format!("`{last}` is stored transposed, and nothing can be tied to it")));
    }
    if leaf_kind(&home.name).is_some_and(|kind| !kind.ties) {
        return Err((last, format!("a `{}` cannot be tied to a `{}`", leaf.name, home.name)));
    }
    let [own, other] = [leaf, home].map(|leaf| leaf.element.to_token_stream().to_string());
    if own != other {
        return Err((last, format!("`{last}` has another element type than `{}`", field.name)));
    }
    let known = |leaf: &Leaf| leaf.stored().into_iter().all(|axis| model.is_dim(axis));
    let (own, other) = (matrix(leaf), matrix(home));
    if own != other && known(leaf) && known(home) {
        return Err((last, format!("`{}` stores `{own}` but `{last}` stores `{other}`", field.name)));
    }
    Ok(())
}

fn array(segment: &Ident) -> String {
    format!("`{segment}` is an array, in which no single weight can be named")
}

/// `[B·C, A]` for `Linear[A -> B, C]`.
fn matrix(leaf: &Leaf) -> String {
    let merged = |axes: &[Ident]| axes.iter().map(Ident::to_string).collect::<Vec<_>>();
    match &leaf.outputs {
        Some((_, outputs)) => format!("[{}, {}]", merged(outputs).join("·"), merged(&leaf.axes).join("·")),
        None => format!("[{}]", merged(&leaf.axes).join(", ")),
    }
}

/// Checks that a checkpoint can contain each key, and that no two leaves have the same key.
pub fn keys(block: &Block, errors: &mut Errors) {
    for (index, field) in block.fields.iter().enumerate() {
        let Some(at) = &field.at else { continue };
        let is_leaf = |field: &Field| matches!(field.ty, FieldType::Leaf(_));
        // If two fields set the same key with `at`, the error refers to the second field.
        let twin = block.fields.iter().enumerate().find(|(other, twin)| {
            is_leaf(twin) && twin.key() == field.key() && (*other < index || twin.at.is_none())
        });
        if let Some(message) = wrong_key(field, &at.value()) {
            errors.at(at, message);
        } else if let Some((_, twin)) = twin.filter(|_| is_leaf(field)) {
            let twin = &twin.name;
            errors.at(at, format!("`{twin}` has this key already; `tied({twin})` is how weights are shared"));
        }
    }
}

fn wrong_key(field: &Field, key: &str) -> Option<&'static str> {
    let fits = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\' | '*');
    let is_level = |level: &str| level == "*" || !level.is_empty() && level.chars().all(fits);
    let has_first_axis = |leaf: &Leaf| leaf.name == "Weight" && !leaf.axes.is_empty();
    match key.split('.').filter(|level| *level == "*").count() {
        _ if !key.split('.').all(is_level) => {
            Some("a key is words between dots, as in `\"self.query\"`, without spaces and quotes")
        }
        0 => None,
        1 if matches!(&field.ty, FieldType::Leaf(leaf) if has_first_axis(leaf)) => None,
        1 => Some(
            "a key with `*` names the tensors that a `Weight` is made of, one for each place along its first axis, \
             as in `Weight[X, F, D] at \"experts.*.weight\"`",
        ),
        _ => Some("a key has one `*`, which counts along the first axis of the weight"),
    }
}
