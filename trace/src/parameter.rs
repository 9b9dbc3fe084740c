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
    /// The key under which the archive stores the weight. If the weight has no recipe, the weight
    /// has the same key in the checkpoint and in the archive.
    pub key: String,
    pub ty: TensorType,
    /// The recipe that computes the weight from tensors of the checkpoint; `None` if the weight
    /// itself is a tensor of the checkpoint.
    pub recipe: Option<Arc<Recipe>>,
}

/// A recipe: a computation that the crate `bake` runs once, when it writes the archive.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Recipe {
    /// The recipe is a tensor of the checkpoint: its key, and the type that the network declares.
    Source(String, TensorType),
    Op(Op, Vec<Recipe>),
}

/// The largest number of nested operations in the text of a recipe. The simplification creates
/// recipes with about ten nested operations.
const DEEPEST: usize = 256;

/// Returns the key that a parameter has in a call which replaces `prefix` by `replacement`.
pub fn resolve_key(key: &str, prefix: &str, replacement: &str) -> String {
    match key.strip_prefix(prefix) {
        Some(rest) if !prefix.is_empty() && (rest.is_empty() || rest.starts_with('.')) => {
            format!("{replacement}{rest}")
        }
        _ => key.to_owned(),
    }
}

/// Returns the tensor-name pattern for the key of a parameter. In the tensor-name pattern, `*`
/// replaces each index of a list. For example, `model.layers.3.mlp` becomes `model.layers.*.mlp`.
pub fn key_pattern(key: &str) -> String {
    let part = |part| if str::parse::<usize>(part).is_ok() { "*" } else { part };
    key.split('.').map(part).collect::<Vec<_>>().join(".")
}

impl Parameter {
    /// Creates a parameter that is a tensor of the checkpoint and has no recipe.
    pub fn new(key: impl Into<String>, ty: TensorType) -> Self {
        Self { key: key.into(), ty, recipe: None }
    }

    /// Creates a parameter for a matrix that the checkpoint stores in transposed order.
    pub fn transposed(key: impl Into<String>, ty: TensorType) -> Result<Self, InferError> {
        let key = key.into();
        let stored = TensorType::new(ty.element, ty.shape.iter().rev().copied().collect::<Vec<_>>());
        let source = Recipe::Source(key.clone(), stored);
        Self::derived(key, Recipe::Op(Permute { order: vec![1, 0] }.into(), vec![source]))
    }

    /// Creates a parameter whose slices along the first axis are separate tensors in the
    /// checkpoint. The key of a slice is `pattern` with the index of the slice in place of `*`.
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

    /// Creates a parameter that a recipe computes.
    pub fn derived(key: impl Into<String>, recipe: Recipe) -> Result<Self, InferError> {
        Ok(Self { key: key.into(), ty: recipe.ty()?, recipe: Some(Arc::new(recipe)) })
    }

    /// Returns the parameter as it is in a call which replaces `prefix` by `replacement`.
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

    /// Returns the key and the type of every tensor of the checkpoint that the recipe reads. If the
    /// recipe reads a tensor twice, the list contains the tensor twice.
    pub fn sources(&self) -> Vec<(&str, &TensorType)> {
        match &self.recipe {
            None => vec![(&self.key, &self.ty)],
            Some(recipe) => recipe.sources(),
        }
    }

    /// Computes the value of the parameter from the values of the checkpoint's tensors.
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
    /// Whether a recipe may contain the operation `op` with operands of the given types. The crate
    /// `bake` must be able to compute the result of the operation in pieces, and to read only a
    /// bounded part of the operands for each piece.
    pub fn can(op: &Op, operands: &[&TensorType]) -> bool {
        op.bakes() && operands.iter().all(|ty| ty.element.is_float())
    }

    pub fn operations(&self) -> usize {
        match self {
            Self::Source(..) => 0,
            Self::Op(_, operands) => 1 + operands.iter().map(Self::operations).sum::<usize>(),
        }
    }

    /// Returns the type of the recipe's result.
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
                match Self::can(op, &types) && !last {
                    true => Ok(ty),
                    false => Err(InferError::Attribute {
                        op: "recipe",
                        what: "an operation",
                        found: op.name().to_owned(),
                        expected:
                            "constant, permute, concatenate, reshape, broadcast_in_dim, convert, add or \
                                   multiply of floats, and pack or quantize after them"
                                .into(),
                    }),
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

    /// Parses a recipe from the text that [`Recipe::print`] appends.
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
