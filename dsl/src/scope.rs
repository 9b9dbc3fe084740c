//! Where a block or a leaf stands in its model.

use std::rc::Rc;

use crate::BuildError;

/// The place of a block or leaf in its model: its field path, which is also the prefix of its checkpoint keys.
#[derive(Clone, Debug)]
pub struct Scope {
    root: Rc<str>,
    path: Rc<str>,
    /// Whether this is an element of a `[Block; L]`.
    pub(crate) element: bool,
}

impl Scope {
    /// The scope of a root block whose keys start with `prefix` (`""` in most checkpoints).
    pub fn root(prefix: &str) -> Self {
        Self { root: prefix.into(), path: prefix.into(), element: false }
    }

    /// The scope of a field.
    pub fn child(&self, field: &str) -> Self {
        Self { root: self.root.clone(), path: join(&self.path, field).into(), element: false }
    }

    /// The scope of one element of a field that repeats a block.
    pub fn element(&self, field: &str, index: usize) -> Self {
        let path = join(&join(&self.path, field), &index.to_string());
        Self { root: self.root.clone(), path: path.into(), element: true }
    }

    /// The scope of a field path that starts at the root: `model.embed_tokens`.
    pub fn from_root(&self, path: &str) -> Self {
        Self { root: self.root.clone(), path: join(&self.root, path).into(), element: false }
    }

    /// The field path.
    pub fn path(&self) -> &Rc<str> {
        &self.path
    }

    /// `model.layers.*` for `model.layers.3`.
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

/// A block as whoever holds it builds it. [`model!`](crate::model) implements it.
pub trait Block: Sized + 'static {
    /// What it is built from.
    type Config;

    /// The block at a place of the model.
    ///
    /// # Errors
    /// If an extent that the configuration gives is not what `dims` declares.
    fn build(scope: Scope, config: &Rc<Self::Config>) -> Result<Self, BuildError>;
}

/// A configuration seen as another model's, so that its blocks can be fields of this one.
pub trait Project<Target> {
    /// The other model's configuration.
    fn project(&self) -> Target;
}

impl<C: Clone> Project<C> for C {
    fn project(&self) -> C {
        self.clone()
    }
}
