//! A [`Parameter`] is a weight of the network. A parameter can have a recipe that computes the
//! weight from tensors of the checkpoint.

use std::sync::Arc;

use ops::Attribute as _;
use ops::ops::{Concatenate, Permute, Reshape};
use ops::{Form, InferError, Op, ParseError, Reader, TensorType, Value, print_string};

/// A weight of the network, with its key and its type. In the body of a repeated layer, the key of
/// the weight starts with the prefix of the function, such as `model.layers.*`. Each call of the
/// repeated layer replaces the prefix in the key.
///
/// ```
/// use ops::{ElementType, TensorType};
/// use tracewright_trace::Parameter;
///
/// // GPT-2 stores this matrix with inputs first.
/// let ty = TensorType::new(ElementType::F32, [2304, 768]);
/// let weight = Parameter::transposed("h.0.attn.c_attn.weight", ty)?;
/// let (key, stored) = weight.sources()[0];
/// assert_eq!((key, stored.to_string()), ("h.0.attn.c_attn.weight", "f32[768,2304]".into()));
/// # Ok::<(), ops::InferError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Parameter {
    /// The key in the archive and, without a recipe, in the checkpoint.
    pub key: String,
    pub ty: TensorType,
    /// Computes the weight from tensors of the checkpoint; `None` if it is itself one.
    pub recipe: Option<Arc<Recipe>>,
}

/// A recipe: a computation that the crate `bake` runs once, when it writes the archive.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Recipe {
    /// Key, and the type that the network declares.
    Source(String, TensorType),
    Op(Op, Vec<Recipe>),
}

/// The most nested operations in the text. The simplification creates about ten.
const DEEPEST: usize = 256;

pub fn resolve_key(key: &str, prefix: &str, replacement: &str) -> String {
    match key.strip_prefix(prefix) {
        Some(rest) if !prefix.is_empty() && (rest.is_empty() || rest.starts_with('.')) => {
            format!("{replacement}{rest}")
        }
        _ => key.to_owned(),
    }
}

/// Each list index becomes `*`: `model.layers.3.mlp` gives `model.layers.*.mlp`.
pub fn key_pattern(key: &str) -> String {
    let part = |part| if str::parse::<usize>(part).is_ok() { "*" } else { part };
    key.split('.').map(part).collect::<Vec<_>>().join(".")
}

impl Parameter {
    pub fn new(key: impl Into<String>, ty: TensorType) -> Self {
        Self { key: key.into(), ty, recipe: None }
    }

    /// The checkpoint stores the matrix transposed.
    pub fn transposed(key: impl Into<String>, ty: TensorType) -> Result<Self, InferError> {
        let key = key.into();
        let stored = TensorType::new(ty.element, ty.shape.iter().rev().copied().collect::<Vec<_>>());
        let source = Recipe::Source(key.clone(), stored);
        Self::derived(key, Recipe::Op(Permute { order: vec![1, 0] }.into(), vec![source]))
    }

    /// Slices along the first axis are separate tensors, whose keys are `pattern` with the index for `*`.
    pub fn stacked(pattern: impl Into<String>, ty: TensorType) -> Result<Self, InferError> {
        let pattern = pattern.into();
        let Some((&count, slice)) = ty.shape.split_first() else {
            return Err(InferError::Axis { op: "stacked", axis: 0, ty });
        };
        // The last `*` is the index of a slice. Earlier `*` are indices of repeated blocks.
        let Some((before, after)) = pattern.rsplit_once('*') else {
            let (found, expected) = (pattern, "one with a `*`".to_owned());
            return Err(InferError::Attribute { op: "stacked", what: "the key", found, expected });
        };
        let piece = |index: usize| {
            let source =
                Recipe::Source(format!("{before}{index}{after}"), TensorType::new(ty.element, slice));
            Recipe::Op(Reshape { shape: [&[1], slice].concat() }.into(), vec![source])
        };
        let recipe = Recipe::Op(Concatenate { axis: 0 }.into(), (0..count).map(piece).collect());
        Self::derived(pattern, recipe)
    }

    pub fn derived(key: impl Into<String>, recipe: Recipe) -> Result<Self, InferError> {
        Ok(Self { key: key.into(), ty: recipe.ty()?, recipe: Some(Arc::new(recipe)) })
    }

    pub fn resolved(&self, prefix: &str, replacement: &str) -> Self {
        Self {
            key: resolve_key(&self.key, prefix, replacement),
            ty: self.ty.clone(),
            recipe: self.recipe.as_ref().map(|recipe| Arc::new(recipe.resolved(prefix, replacement))),
        }
    }

    /// Whether the archive stores the weight in the memory layout that kernels read.
    pub fn is_packed(&self) -> bool {
        matches!(self.recipe.as_deref(), Some(Recipe::Op(Op::Pack(_), _)))
    }

    /// The checkpoint's tensors in the recipe, with repetitions.
    pub fn sources(&self) -> Vec<(&str, &TensorType)> {
        match &self.recipe {
            None => vec![(&self.key, &self.ty)],
            Some(recipe) => recipe.sources(),
        }
    }

    pub fn value(&self, of: &dyn Fn(&str) -> Option<Value>) -> Result<Value, (String, TensorType)> {
        match &self.recipe {
            None => source(&self.key, &self.ty, of),
            Some(recipe) => recipe.value(of).map(|(value, _)| value),
        }
    }
}

fn source(
    key: &str,
    ty: &TensorType,
    of: &dyn Fn(&str) -> Option<Value>,
) -> Result<Value, (String, TensorType)> {
    of(key).filter(|value| value.ty == *ty).ok_or_else(|| (key.to_owned(), ty.clone()))
}

impl Recipe {
    /// Whether a recipe may contain `op`: `bake` computes the result in pieces, each from a bounded part of
    /// the operands.
    pub fn can(op: &Op, operands: &[&TensorType]) -> bool {
        op.bakes() && operands.iter().all(|ty| ty.element.is_float())
    }

    pub fn operations(&self) -> usize {
        match self {
            Self::Source(..) => 0,
            Self::Op(_, operands) => 1 + operands.iter().map(Self::operations).sum::<usize>(),
        }
    }

    pub fn ty(&self) -> Result<TensorType, InferError> {
        match self {
            Self::Source(_, ty) => Ok(ty.clone()),
            Self::Op(op, operands) => {
                let types = operands.iter().map(Self::ty).collect::<Result<Vec<_>, _>>()?;
                let types: Vec<&TensorType> = types.iter().collect();
                let ty = op.infer(&types)?;
                // No further operation may read a packed or quantized result.
                let last = operands.iter().any(
                    |operand| matches!(operand, Self::Op(op, _) if matches!(op.form(), Form::Archive(_))),
                );
                if Self::can(op, &types) && !last {
                    Ok(ty)
                } else {
                    Err(InferError::Attribute {
                        op: "recipe",
                        what: "an operation",
                        found: op.name().to_owned(),
                        expected:
                            "constant, permute, concatenate, reshape, broadcast_in_dim, convert, add or \
                                   multiply of floats, and pack or quantize after them"
                                .into(),
                    })
                }
            }
        }
    }

    fn resolved(&self, prefix: &str, replacement: &str) -> Self {
        match self {
            Self::Source(key, ty) => Self::Source(resolve_key(key, prefix, replacement), ty.clone()),
            Self::Op(op, operands) => {
                Self::Op(op.clone(), operands.iter().map(|o| o.resolved(prefix, replacement)).collect())
            }
        }
    }

    pub fn sources(&self) -> Vec<(&str, &TensorType)> {
        match self {
            Self::Source(key, ty) => vec![(key, ty)],
            Self::Op(_, operands) => operands.iter().flat_map(Self::sources).collect(),
        }
    }

    fn value(&self, of: &dyn Fn(&str) -> Option<Value>) -> Result<(Value, TensorType), (String, TensorType)> {
        match self {
            Self::Source(key, ty) => Ok((source(key, ty, of)?, ty.clone())),
            Self::Op(op, operands) => {
                let operands = operands.iter().map(|o| o.value(of)).collect::<Result<Vec<_>, _>>()?;
                let values: Vec<&Value> = operands.iter().map(|(value, _)| value).collect();
                let types: Vec<&TensorType> = operands.iter().map(|(_, ty)| ty).collect();
                let Ok(ty) = op.infer(&types) else {
                    unreachable!("a parameter with a recipe is well-typed")
                };
                Ok((op.eval(&values, &ty), ty))
            }
        }
    }

    /// Appends the text form of the recipe, for example `concatenate axis=0 ("a" : f32[2], "b" : f32[3])`.
    pub fn print(&self, out: &mut String) {
        match self {
            Self::Source(key, ty) => {
                print_string(key, out);
                out.push_str(" : ");
                ty.print(out);
            }
            Self::Op(op, operands) => {
                op.print(out);
                out.push_str(" (");
                for (i, operand) in operands.iter().enumerate() {
                    out.push_str(if i == 0 { "" } else { ", " });
                    operand.print(out);
                }
                out.push(')');
            }
        }
    }

    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        Self::parse_within(reader, DEEPEST)
    }

    fn parse_within(reader: &mut Reader<'_>, depth: usize) -> Result<Self, ParseError> {
        let mut ahead = reader.clone();
        if ahead.eat("\"") {
            let key = reader.string()?;
            reader.expect(":")?;
            return Ok(Self::Source(key, TensorType::parse(reader)?));
        }
        let Some(depth) = depth.checked_sub(1) else {
            return reader.error(format!("a tensor: at most {DEEPEST} operations stand inside each other"));
        };
        let op = Op::parse(reader)?;
        reader.expect("(")?;
        let mut operands = Vec::new();
        while !reader.eat(")") {
            if !operands.is_empty() {
                reader.expect(",")?;
            }
            operands.push(Self::parse_within(reader, depth)?);
        }
        Ok(Self::Op(op, operands))
    }
}
