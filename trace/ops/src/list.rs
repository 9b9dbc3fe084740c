//! Types and functions that handle all operations of the closed list in `ops/mod.rs`.

use crate::Example;

#[derive(Clone, Copy, Debug)]
pub struct Documented {
    pub name: &'static str,
    pub rust: &'static str,
    pub module: &'static str,
    pub doc: &'static [&'static str],
    /// Attributes, each with the lines of its documentation.
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
        /// Calls a macro with the `name::Operation` of each composite function of one float tensor.
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
        /// Who computes an operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Form<'a> {
            /// The operation is a single StableHLO statement.
            Primitive,
            /// A converter expands the operation to primitive operations.
            Composite(Composite<'a>),
            /// In the dialect of one compiler, in place of a composite operation.
            Idiom(Idiom<'a>),
            /// Computed by `bake` when it writes an archive; in no compiled program.
            Archive(LayoutOp<'a>),
            Kernel,
        }

        /// A closed list, so that every one has a converter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Composite<'a> {
            $(#[doc = concat!("See [`", stringify!($composite), "`].")] $composite(&'a $composite)),*
        }

        /// An operation that the crate `bake` computes when it writes an archive.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum LayoutOp<'a> {
            $(#[doc = concat!("See [`", stringify!($archive), "`].")] $archive(&'a $archive)),*
        }

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

        /// A closed list, so that every stage of the compiler handles every operation.
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Op { $(#[doc = concat!("See [`", stringify!($name), "`].")] $name($name)),* }

        impl Op {
            pub const NAMES: &'static [&'static str] = &[$($name::NAME),*];

            pub fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => $name::NAME),* }
            }

            pub fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
                match self { $(Self::$name(op) => op.infer(operands)),* }
            }

            /// Evaluates the definition exactly. `ty` is the result of [`Op::infer`].
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

            /// Whether each element depends only on operand elements with the same index along common axes.
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

            /// Whether `bake` can compute the result in pieces, each from a bounded part of the float
            /// operands.
            pub fn bakes(&self) -> bool {
                match self { $(Self::$name(op) => op.bakes()),* }
            }

            /// One or two words for diagrams.
            pub fn label(&self) -> String {
                match self { $(Self::$name(op) => op.label()),* }
            }

            /// How the operation reads a weight that the archive can store in another layout.
            pub fn weight_use(&self) -> Option<WeightUse> {
                match self { $(Self::$name(_) => $name::WEIGHT_USE),* }
            }

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

            pub fn examples() -> Vec<(&'static str, &'static [Example])> {
                vec![$(($name::NAME, $name::EXAMPLES)),*]
            }

            pub fn print(&self, out: &mut String) {
                out.push_str(self.name());
                match self { $(Self::$name(op) => op.print_attributes(out)),* }
            }

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
