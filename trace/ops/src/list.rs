//! Types and functions that handle all operations of the closed list in `ops/mod.rs`.

use crate::Example;

/// The documentation of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Documented {
    /// The name of the operation in the text form of traces.
    pub name: &'static str,
    pub rust: &'static str,
    pub module: &'static str,
    pub doc: &'static [&'static str],
    /// The attributes of the operation, each with the lines of its documentation.
    pub fields: &'static [(&'static str, &'static [&'static str])],
    pub examples: &'static [Example],
}

macro_rules! operations {
    (
        $dollar:tt
        functions { $($function:ident::$map:ident,)* }
        primitives { $($primitive_file:ident::$primitive:ident,)* }
        composites { $($composite_file:ident::$composite:ident,)* }
        idioms { $($idiom_file:ident::$idiom:ident,)* }
        archive { $($archive_file:ident::$archive:ident,)* }
        kernels { $($kernel_file:ident::$kernel:ident,)* }
    ) => {
        /// Calls a macro with a list of `name::Operation`. The list contains each composite
        /// operation that is an elementwise function of one float tensor.
        #[macro_export]
        macro_rules! float_functions {
            ($dollar then:ident) => { $dollar then! { $($function::$map,)* } };
        }

        operations! {
            primitives { $($primitive_file::$primitive,)* }
            composites { $($function::$map,)* $($composite_file::$composite,)* }
            idioms { $($idiom_file::$idiom,)* }
            archive { $($archive_file::$archive,)* }
            kernels { $($kernel_file::$kernel,)* }
        }
    };
    (
        primitives { $($primitive_file:ident::$primitive:ident,)* }
        composites { $($composite_file:ident::$composite:ident,)* }
        idioms { $($idiom_file:ident::$idiom:ident,)* }
        archive { $($archive_file:ident::$archive:ident,)* }
        kernels { $($kernel_file:ident::$kernel:ident,)* }
    ) => {
        /// Describes whether StableHLO, a converter, a compiler's dialect or the crate `bake`
        /// computes an operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Form<'a> {
            /// The operation is a single StableHLO statement.
            Primitive,
            /// A converter expands the operation to primitive operations.
            Composite(Composite<'a>),
            /// The operation belongs to the dialect of one compiler, and replaces a composite
            /// operation in programs for this compiler.
            Idiom(Idiom<'a>),
            /// The crate `bake` computes the operation when it writes an archive. No compiled
            /// program contains an operation that `bake` computes.
            Archive(LayoutOp<'a>),
            Kernel,
        }

        /// A composite operation. The list of composite operations is closed, so every composite
        /// operation has a converter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Composite<'a> {
            $(#[doc = concat!("See [`", stringify!($composite), "`].")] $composite(&'a $composite)),*
        }

        /// An operation that the crate `bake` computes when it writes an archive.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum LayoutOp<'a> {
            $(#[doc = concat!("See [`", stringify!($archive), "`].")] $archive(&'a $archive)),*
        }

        /// An operation that belongs to the dialect of one compiler.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Idiom<'a> {
            $(#[doc = concat!("See [`", stringify!($idiom), "`].")] $idiom(&'a $idiom)),*
        }

        impl Op {
            pub fn form(&self) -> Form<'_> {
                match self {
                    $(Self::$primitive(_) => Form::Primitive,)*
                    $(Self::$composite(op) => Form::Composite(Composite::$composite(op)),)*
                    $(Self::$idiom(op) => Form::Idiom(Idiom::$idiom(op)),)*
                    $(Self::$archive(op) => Form::Archive(LayoutOp::$archive(op)),)*
                    $(Self::$kernel(_) => Form::Kernel,)*
                }
            }

            /// Returns the StableHLO statement of a primitive operation; `None` for other operations.
            pub fn spell(
                &self, statements: &mut dyn Statements, operands: &[Operand<'_>], ty: &TensorType,
            ) -> Option<String> {
                match self {
                    $(Self::$primitive(op) => Some(op.spell(statements, operands, ty)),)*
                    $(Self::$composite(_) => None,)*
                    $(Self::$idiom(_) => None,)*
                    $(Self::$archive(_) => None,)*
                    $(Self::$kernel(_) => None,)*
                }
            }
        }

        operations! {
            $($primitive_file::$primitive,)* $($composite_file::$composite,)*
            $($idiom_file::$idiom,)* $($archive_file::$archive,)* $($kernel_file::$kernel,)*
        }
    };
    ($($file:ident::$name:ident,)*) => {
        $(pub use $file::$name;)*

        /// An operation with its attributes. The list of operations is closed, so every stage of
        /// the compiler handles every operation.
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Op { $(#[doc = concat!("See [`", stringify!($name), "`].")] $name($name)),* }

        impl Op {
            /// The names of all operations, in the order of the closed list.
            pub const NAMES: &'static [&'static str] = &[$($name::NAME),*];

            /// The name of the operation in the text form of traces.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => $name::NAME),* }
            }

            /// Computes the type of the operation's result.
            pub fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
                match self { $(Self::$name(op) => op.infer(operands)),* }
            }

            /// Evaluates the operation exactly as its definition requires. The argument `ty` is the
            /// type that [`Op::infer`] returns for the operands' types.
            pub fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
                match self { $(Self::$name(op) => op.eval(operands, ty)),* }
            }

            pub fn class(&self) -> OpClass {
                match self { $(Self::$name(_) => $name::CLASS),* }
            }

            /// Whether each element of the result depends only on the operands' elements at the same index.
            pub fn is_map(&self) -> bool {
                match self { $(Self::$name(_) => $name::IS_MAP),* }
            }

            /// Whether the result only selects or repeats elements of the operand.
            pub fn is_view(&self) -> bool {
                match self { $(Self::$name(_) => $name::IS_VIEW),* }
            }

            /// Whether each element of the result depends only on operand elements with the same
            /// index, along the axes that the operand and the result have in common.
            pub fn keeps_axes(&self) -> bool {
                match self { $(Self::$name(_) => $name::KEEPS_AXES),* }
            }

            /// Whether a compiler may write the result into the memory of an operand that has the same type.
            pub fn in_place(&self) -> bool {
                match self { $(Self::$name(_) => $name::IN_PLACE),* }
            }

            /// Whether the operation reads only the rows of operand 0 that its indices select.
            pub fn picks_rows(&self) -> bool {
                match self { $(Self::$name(_) => $name::PICKS_ROWS),* }
            }

            /// Whether the crate `bake` can compute the result in pieces, and reads only a bounded
            /// part of the float operands for each piece.
            pub fn bakes(&self) -> bool {
                match self { $(Self::$name(op) => op.bakes()),* }
            }

            /// Returns a label of one or two words for the operation in diagrams.
            pub fn label(&self) -> String {
                match self { $(Self::$name(op) => op.label()),* }
            }

            /// How the operation reads a weight that the archive can store in another layout.
            pub fn weight_use(&self) -> Option<WeightUse> {
                match self { $(Self::$name(_) => $name::WEIGHT_USE),* }
            }

            /// Returns the number of bytes and arithmetic operations that the operation needs, for
            /// a cost model.
            pub fn work(&self, operands: &[CostOperand<'_>], ty: &TensorType) -> OpWork {
                match self { $(Self::$name(op) => op.work(operands, ty)),* }
            }

            /// Returns the loops that compute the operation, and the axes to which each loop belongs.
            pub fn iteration_space(&self, operands: &[&TensorType], ty: &TensorType) -> IterationSpace {
                match self { $(Self::$name(op) => op.iteration_space(operands, ty)),* }
            }

            /// Returns the largest allowed difference between IREE's result and the result of [`Op::eval`].
            pub fn bound(&self) -> Bound {
                match self { $(Self::$name(op) => op.bound()),* }
            }

            /// Returns the documentation of every operation, in the order of the list.
            pub fn documented() -> Vec<Documented> {
                vec![$(Documented {
                    name: $name::NAME,
                    rust: stringify!($name),
                    module: $name::MODULE,
                    doc: $name::DOC,
                    fields: $name::FIELDS,
                    examples: $name::EXAMPLES,
                }),*]
            }

            /// Returns the examples of every operation, with the operation's name.
            pub fn examples() -> Vec<(&'static str, &'static [Example])> {
                vec![$(($name::NAME, $name::EXAMPLES)),*]
            }

            /// Appends the name and the attributes of the operation to `out`.
            pub fn print(&self, out: &mut String) {
                out.push_str(self.name());
                match self { $(Self::$name(op) => op.print_attributes(out)),* }
            }

            /// Parses an operation from the text that [`Op::print`] appends.
            pub fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
                let mut ahead = reader.clone();
                let name = ahead.word()?;
                $(if name == $name::NAME {
                    *reader = ahead;
                    return $name::parse_attributes(reader).map(Self::$name);
                })*
                reader.error("the name of an operation")
            }
        }

        $(impl From<$name> for Op {
            fn from(op: $name) -> Self {
                Self::$name(op)
            }
        })*
    };
}
