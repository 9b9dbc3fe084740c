//! The AST of a `model!` declaration, before any checks. The module [`check`](super::check) decides
//! whether the declaration is valid.

use proc_macro2::Group;
use syn::ext::IdentExt as _;
use syn::{
    Attribute, GenericParam, Generics, Ident, Lit, LitInt, LitStr, Path, Token, Type, TypePath, Visibility,
};

/// A whole declaration in `model!`. The first block of the declaration is the root block.
pub struct Model {
    pub blocks: Vec<Block>,
}

/// `vis Name<T: Float>(Config): Role<T> { … }`, or an inner block `Name { … }`.
pub struct Block {
    pub attrs: Vec<Attribute>,
    pub vis: Visibility,
    pub name: Ident,
    /// A block without its own has those of the root block.
    pub generics: Generics,
    pub config: Option<Type>,
    /// The trait that the block implements with its function `forward`.
    pub role: Option<Path>,
    pub dims: Vec<Dims>,
    pub caches: Vec<Cache>,
    pub shards: Vec<Shard>,
    pub fields: Vec<Field>,
    pub functions: Vec<Function>,
}

/// The list of axes and their extents, for example `dims { V = vocab_size, … }`.
pub struct Dims {
    pub keyword: Ident,
    pub dims: Vec<Dim>,
}

/// The declaration of one axis in `dims { … }`, for example `E = head_dim or D / H`.
pub struct Dim {
    pub name: Ident,
    pub value: Extent,
}

/// The extent on the right-hand side of a declaration in `dims { … }`, for example `D / H` in `E = D / H`.
pub enum Extent {
    /// The value of a configuration key, such as `head_dim`. Keys begin with a lower-case letter.
    Key(Ident),
    /// An earlier dim. Dims begin with an upper-case letter.
    Dim(Ident),
    Integer(LitInt),
    Sum(Box<Extent>, Box<Extent>),
    Product(Box<Extent>, Box<Extent>),
    Quotient(Box<Extent>, Box<Extent>),
    /// `head_dim or D / H`: the default applies if the key is `None`.
    Or(Ident, Box<Extent>),
}

/// `cache { L of [K, E] within window if attends, L of delta: Recurrent<F32>[H, E] if recurs }`.
pub struct Cache {
    pub keyword: Ident,
    pub states: Vec<LayerState>,
}

/// The `shard` clause, for example `shard { K, F, V over model; B over data }`.
pub struct Shard {
    pub keyword: Ident,
    pub rules: Vec<ShardRule>,
}

/// A list of axes that Tracewright partitions over one axis of a device mesh.
pub struct ShardRule {
    pub axes: Vec<Ident>,
    pub over: Ident,
}

/// The declaration of a state that all layers have, or that only the layers with a given condition have.
pub struct LayerState {
    pub layers: Ident,
    pub name: Option<Ident>,
    /// The name of the state's type in `dsl::nn::states`.
    pub kind: Ident,
    /// The state's element type, if it differs from the model's element type.
    pub element: Option<Type>,
    pub axes: Vec<StateAxis>,
    /// The method of the configuration that returns the size of a layer's attention window.
    pub window: Option<Ident>,
    /// The method of the configuration that decides whether a layer has this state.
    pub condition: Option<Ident>,
    /// Whether only the function `draft` reads this state.
    pub is_draft: bool,
}

impl LayerState {
    /// All axes that the declaration of the state names.
    pub fn named_axes(&self) -> impl Iterator<Item = &Ident> {
        std::iter::once(&self.layers)
            .chain(self.axes.iter().flat_map(|axis| std::iter::once(&axis.name).chain(&axis.extent)))
    }
}

/// An axis of a state. For example, `K = W` declares the axis `K` with the extent of the dim `W`.
pub struct StateAxis {
    pub name: Ident,
    pub extent: Option<Ident>,
}

/// A declaration of a field in a block, for example `name: type at "key" = tied(path) if key`.
pub struct Field {
    pub attrs: Vec<Attribute>,
    pub name: Ident,
    pub ty: FieldType,
    /// The field's key in the checkpoint, if the key differs from the field's name.
    pub at: Option<LitStr>,
    pub tied: Option<Tied>,
}

pub enum FieldType {
    Leaf(Box<Leaf>),
    /// A block that this `model!` declares.
    Here(Ident),
    /// A path, a type with generic arguments, or a type parameter.
    Elsewhere(TypePath),
    /// An array of blocks, for example `[Layer; L]`.
    Array(Box<FieldType>, Ident),
}

/// A built-in leaf, for example `Linear<F32>[D -> V](bias if key)`.
pub struct Leaf {
    pub name: Ident,
    /// The leaf's element type, if it differs from the model's element type.
    pub element: Option<Type>,
    /// Before the arrow `->`, if there is one.
    pub axes: Vec<Ident>,
    /// The arrow `->` and the output axes after the arrow, as in `[D -> V]`.
    pub outputs: Option<(Token![->], Vec<Ident>)>,
    pub settings: Vec<Setting>,
}

/// In parentheses after the axes: `bias`, `bias if attention_bias`, `bias = false`, `eps = rms_norm_eps`.
pub struct Setting {
    pub name: Ident,
    pub value: SettingValue,
}

pub enum SettingValue {
    Bare,
    If(Ident),
    Name(Ident),
    Literal(Lit),
}

/// A tie of two weights, for example `tied(model.embed_tokens) if tie_word_embeddings`.
pub struct Tied {
    pub path: Vec<Ident>,
    pub condition: Option<Ident>,
}

/// A function, for example `fn forward(x: T[B, S, D]) -> T[B, S, D] { … }`.
pub struct Function {
    pub attrs: Vec<Attribute>,
    pub name: Ident,
    /// An explicit `self` argument, which is allowed but not needed.
    pub receiver: Option<Token![self]>,
    pub arguments: Vec<Argument>,
    pub output: Option<SignatureType>,
    /// The body of the function, including the braces.
    pub body: Group,
}

pub struct Argument {
    pub mutability: Option<Token![mut]>,
    pub name: Ident,
    pub ty: SignatureType,
}

pub enum SignatureType {
    Tensor(TensorType),
    /// A reference to a tensor, `&T[…]`. The macro always rejects a reference to a tensor.
    TensorReference(Token![&], TensorType),
    Tuple(Vec<SignatureType>),
    Rust(Type),
}

/// The type of a tensor: `T[B, S, D]`, or `T[.., D]` for a tensor with any axes before D.
pub struct TensorType {
    pub element: Ident,
    pub rest: Option<Token![..]>,
    pub axes: Vec<Ident>,
}

impl Model {
    pub fn root(&self) -> &Block {
        &self.blocks[0]
    }

    pub fn block(&self, name: &Ident) -> Option<&Block> {
        self.blocks.iter().find(|block| block.name == *name)
    }

    pub fn dims(&self) -> impl Iterator<Item = &Dim> {
        self.root().dims.iter().flat_map(|section| &section.dims)
    }

    pub fn is_dim(&self, axis: &Ident) -> bool {
        self.dims().any(|dim| dim.name == *axis)
    }

    /// Returns the checkpoint key of a field. The field path `path` leads from `block` to the field.
    pub fn key(&self, block: &Block, path: &[Ident]) -> String {
        let mut block = Some(block);
        let level = |name: &Ident| {
            let field = block.and_then(|block| block.field(name));
            block = field.and_then(|field| match &field.ty {
                FieldType::Here(inner) => self.block(inner),
                _ => None,
            });
            field.map_or_else(|| name.to_string(), Field::key)
        };
        path.iter().map(level).collect::<Vec<_>>().join(".")
    }
}

impl Block {
    /// The name of the element type, which is the block's first generic parameter.
    pub fn element(&self) -> Option<&Ident> {
        match self.generics.params.first() {
            Some(GenericParam::Type(parameter)) => Some(&parameter.ident),
            _ => None,
        }
    }

    pub fn field(&self, name: &Ident) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == *name)
    }

    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|function| function.name == name)
    }
}

impl Field {
    /// Appended to the block's checkpoint key.
    pub fn key(&self) -> String {
        self.at.as_ref().map_or_else(|| self.name.unraw().to_string(), LitStr::value)
    }

    /// A pattern of several tensors, as in `experts.*.w1.weight`.
    pub fn is_stacked(&self) -> bool {
        self.key().split('.').any(|level| level == "*")
    }
}

impl FieldType {
    /// `Here` becomes `Elsewhere` for a generic parameter, which can be a block from outside.
    pub fn resolve(&mut self, generics: &Generics) {
        match self {
            FieldType::Here(name) if generics.type_params().any(|parameter| parameter.ident == *name) => {
                *self = FieldType::Elsewhere(syn::parse_quote!(#name));
            }
            FieldType::Array(element, _) => element.resolve(generics),
            _ => {}
        }
    }

    /// For an array, its elements' type.
    pub fn element(&self) -> &FieldType {
        match self {
            FieldType::Array(element, _) => element.element(),
            other => other,
        }
    }
}

impl Leaf {
    /// In the order of the checkpoint: a linear layer stores output axes first.
    pub fn stored(&self) -> Vec<&Ident> {
        let outputs = self.outputs.iter().flat_map(|(_, outputs)| outputs);
        outputs.chain(&self.axes).collect()
    }

    pub fn setting(&self, name: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.name == name)
    }
}

impl Function {
    /// All tensor types in the function's signature.
    pub fn tensors(&self) -> Vec<&TensorType> {
        let mut found = Vec::new();
        for ty in self.arguments.iter().map(|argument| &argument.ty).chain(&self.output) {
            ty.tensors(&mut found);
        }
        found
    }
}

impl SignatureType {
    fn tensors<'a>(&'a self, found: &mut Vec<&'a TensorType>) {
        match self {
            SignatureType::Tensor(tensor) | SignatureType::TensorReference(_, tensor) => found.push(tensor),
            SignatureType::Tuple(parts) => parts.iter().for_each(|part| part.tensors(found)),
            SignatureType::Rust(_) => {}
        }
    }
}

/// Whether a name in `dims` is an axis. A name that is not an axis is a configuration key.
pub fn is_axis_name(name: &Ident) -> bool {
    name.to_string().starts_with(char::is_uppercase)
}
