//! [`Scope`] is the field path of a block or a leaf in its model.

use std::rc::Rc;

use crate::{BuildError, Dim};

/// The field path of a block or leaf in its model. The path is also the prefix of the checkpoint
/// keys of the block's weights.
#[derive(Clone, Debug)]
pub struct Scope {
    path: Rc<str>,
    /// Whether this block is an element of a block array `[Block; L]`.
    pub(crate) element: bool,
}

impl Scope {
    /// The scope of a root block. All checkpoint keys of the model start with `prefix`, which is
    /// empty for most checkpoints.
    pub fn root(prefix: &str) -> Self {
        Self { path: prefix.into(), element: false }
    }

    /// The scope of the field `field` of this block.
    pub fn child(&self, field: &str) -> Self {
        Self { path: join(&self.path, field).into(), element: false }
    }

    /// Returns the scope of element `index` of the block array in the field `field`.
    pub fn element(&self, field: &str, index: usize) -> Self {
        let path = join(&join(&self.path, field), &index.to_string());
        Self { path: path.into(), element: true }
    }

    /// The index of this element in its block array, or `None` if this block is no element of an array.
    pub fn index(&self) -> Option<usize> {
        let index = self.path.rsplit('.').next().filter(|_| self.element);
        index.and_then(|index| index.parse().ok())
    }

    /// The field path, with dots between fields.
    pub fn path(&self) -> &Rc<str> {
        &self.path
    }

    /// The field path with `*` instead of the index: `model.layers.*` for `model.layers.3`.
    pub(crate) fn pattern(&self) -> String {
        match self.path.rsplit_once('.') {
            Some((array, _)) => format!("{array}.*"),
            None => "*".into(),
        }
    }
}

fn join(path: &str, field: &str) -> String {
    if path.is_empty() { field.to_owned() } else { [path, ".", field].concat() }
}

/// A block that another block can build and own as a field. [`model!`](crate::model) implements this trait.
pub trait Block: Sized + 'static {
    /// The type of the block's configuration.
    type Config;

    /// Builds the block at the field path of `scope`.
    ///
    /// # Errors
    /// Returns an error if an extent from the configuration contradicts `dims`.
    fn build(scope: Scope, config: &Rc<Self::Config>) -> Result<Self, BuildError>;

    /// The axes that `dims` declares for this block, and then the axes of the fields that are
    /// blocks. Elements of a block array with different axes have separate recordings.
    fn declared_axes(&self) -> Vec<Dim>;
}

/// Converts a model's configuration to the configuration of another model. A model whose
/// configuration implements this trait can have blocks of another model as fields.
pub trait Project<Target> {
    /// Returns the configuration for fields that are blocks of another model.
    fn project(&self) -> Target;

    /// The configuration for the element `index` of a block array `[Block; L]`. Implement this
    /// function if the elements of the array have different sizes. By default, all elements of the
    /// array have the same configuration.
    fn project_at(&self, _index: usize) -> Target {
        self.project()
    }
}

impl<C: Clone> Project<C> for C {
    fn project(&self) -> C {
        self.clone()
    }
}
