//! [`Parameter`] is a weight, and the recipe that computes the weight from the checkpoint's tensors.

use std::sync::Arc;

use ops::Attribute as _;
use ops::ops::{Concatenate, Permute, Reshape};
use ops::{Form, InferError, Op, ParseError, Reader, TensorType, Value, print_string};

/// A weight: its key and its type. In the body of a repeated block, the key starts with the function's
/// prefix, `model.layers.*`, which each call replaces.
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
    /// The key of the weight in the archive. Without a recipe, this is also the key in the checkpoint.
    pub key: String,
    pub ty: TensorType,
    /// The recipe that computes the weight from the checkpoint's tensors; `None` if the weight itself is a
    /// tensor of the checkpoint.
    pub recipe: Option<Arc<Recipe>>,
}

/// A computation that `bake` runs once, when it writes the archive.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Recipe {
    /// A tensor of the checkpoint, with its key and its declared type.
    Source(String, TensorType),
    Op(Op, Vec<Recipe>),
}

/// The largest nesting depth of operations in a recipe's text. Simplification creates recipes of about ten
/// nested operations.
const DEEPEST: usize = 256;

/// The key of a parameter in a call that replaces `prefix` by `replacement`.
pub fn resolve_key(key: &str, prefix: &str, replacement: &str) -> String {
    match key.strip_prefix(prefix) {
        Some(rest) if !prefix.is_empty() && (rest.is_empty() || rest.starts_with('.')) => {
            format!("{replacement}{rest}")
        }
        _ => key.to_owned(),
    }
}

/// The pattern of a key: `*` replaces each index of a list. For example, `model.layers.3.mlp` becomes
/// `model.layers.*.mlp`.
pub fn key_pattern(key: &str) -> String {
    let part = |part| if str::parse::<usize>(part).is_ok() { "*" } else { part };
    key.split('.').map(part).collect::<Vec<_>>().join(".")
}

impl Parameter {
    /// Creates a parameter that is a tensor of the checkpoint.
    pub fn new(key: impl Into<String>, ty: TensorType) -> Self {
        Self { key: key.into(), ty, recipe: None }
    }

    /// Creates a parameter for a matrix that the checkpoint stores transposed.
    ///
    /// # Errors
    /// Returns an error if the type is not a matrix of floats.
    pub fn transposed(key: impl Into<String>, ty: TensorType) -> Result<Self, InferError> {
        let key = key.into();
        let stored = TensorType::new(ty.element, ty.shape.iter().rev().copied().collect::<Vec<_>>());
        let source = Recipe::Source(key.clone(), stored);
        Self::derived(key, Recipe::Op(Permute { order: vec![1, 0] }.into(), vec![source]))
    }

    /// Creates a parameter whose slices along the first axis are tensors of the checkpoint. In the key of a
    /// slice, its index replaces the `*` of `pattern`.
    ///
    /// # Errors
    /// Returns an error if the pattern has no `*`, or the type has no axis or an element type that recipes
    /// don't support.
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
    ///
    /// # Errors
    /// Returns an error if an operation of the recipe rejects its operands, or if recipes don't support the
    /// operation.
    pub fn derived(key: impl Into<String>, recipe: Recipe) -> Result<Self, InferError> {
        Ok(Self { key: key.into(), ty: recipe.ty()?, recipe: Some(Arc::new(recipe)) })
    }

    /// The parameter in a call that replaces `prefix` by `replacement`.
    pub fn resolved(&self, prefix: &str, replacement: &str) -> Self {
        Self {
            key: resolve_key(&self.key, prefix, replacement),
            ty: self.ty.clone(),
            recipe: self.recipe.as_ref().map(|recipe| Arc::new(recipe.resolved(prefix, replacement))),
        }
    }

    /// Whether the weight is stored in the memory layout that kernels read.
    pub fn is_packed(&self) -> bool {
        matches!(self.recipe.as_deref(), Some(Recipe::Op(Op::Pack(_), _)))
    }

    /// The key and the type of every tensor of the checkpoint that the recipe reads. A tensor that the recipe
    /// reads twice occurs twice.
    pub fn sources(&self) -> Vec<(&str, &TensorType)> {
        match &self.recipe {
            None => vec![(&self.key, &self.ty)],
            Some(recipe) => recipe.sources(),
        }
    }

    /// The value of the parameter, computed from the values of the checkpoint's tensors.
    ///
    /// # Errors
    /// Returns an error if a tensor is missing or has another type. The error contains the tensor's key and
    /// its declared type.
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
    /// Whether a recipe may contain an operation with operands of these types. The condition is that `bake`
    /// can compute any piece of the result from bounded pieces of the operands.
    pub fn can(op: &Op, operands: &[&TensorType]) -> bool {
        op.bakes() && operands.iter().all(|ty| ty.element.is_float())
    }

    pub fn operations(&self) -> usize {
        match self {
            Self::Source(..) => 0,
            Self::Op(_, operands) => 1 + operands.iter().map(Self::operations).sum::<usize>(),
        }
    }

    /// The type of the recipe's result.
    ///
    /// # Errors
    /// Returns an error if an operation rejects its operands, or recipes don't support it.
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

    fn sources(&self) -> Vec<(&str, &TensorType)> {
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

    /// Appends the recipe as text, for example `concatenate axis=0 ("a" : f32[2], "b" : f32[3])`.
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

    /// Parses the output of [`Recipe::print`].
    ///
    /// # Errors
    /// Returns an error if the text is not a recipe, or nests operations too deeply.
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
