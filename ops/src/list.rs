//! What is made of the closed list of operations, which is in `ops/mod.rs`.

use crate::Example;

/// What an operation says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Documented {
    /// The name in the text form.
    pub name: &'static str,
    pub rust: &'static str,
    /// The module that declares it.
    pub module: &'static str,
    /// Its documentation, line by line.
    pub doc: &'static [&'static str],
    /// Its attributes, and the lines of their documentation.
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
        /// Calls a macro with `name::Operation` for each composite that is a function of each element of one float tensor.
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
        /// Who says how an operation is computed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Form<'a> {
            /// It is one StableHLO statement.
            Primitive,
            /// A converter expands it into primitives.
            Composite(Composite<'a>),
            /// It replaces a composite where one compiler needs other words for it.
            Idiom(Idiom<'a>),
            /// It happens when an archive is written; no program contains it.
            Archive(LayoutOp<'a>),
            /// Only kernels compute it.
            Kernel,
        }

        /// A composite operation. The list is closed, so that each has a converter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Composite<'a> {
            $(#[doc = concat!("See [`", stringify!($composite), "`].")] $composite(&'a $composite)),*
        }

        /// An operation that happens when an archive is written.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum LayoutOp<'a> {
            $(#[doc = concat!("See [`", stringify!($archive), "`].")] $archive(&'a $archive)),*
        }

        /// An operation in words that only one compiler knows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Idiom<'a> {
            $(#[doc = concat!("See [`", stringify!($idiom), "`].")] $idiom(&'a $idiom)),*
        }

        impl Op {
            /// Who says how it is computed.
            pub fn form(&self) -> Form<'_> {
                match self {
                    $(Self::$primitive(_) => Form::Primitive,)*
                    $(Self::$composite(op) => Form::Composite(Composite::$composite(op)),)*
                    $(Self::$idiom(op) => Form::Idiom(Idiom::$idiom(op)),)*
                    $(Self::$archive(op) => Form::Archive(LayoutOp::$archive(op)),)*
                    $(Self::$kernel(_) => Form::Kernel,)*
                }
            }

            /// The StableHLO spelling of a primitive; `None` for other operations.
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

        /// One operation with its attributes. The list is closed, so that every stage is total.
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Op { $(#[doc = concat!("See [`", stringify!($name), "`].")] $name($name)),* }

        impl Op {
            /// The names of all operations, in the order of the list.
            pub const NAMES: &'static [&'static str] = &[$($name::NAME),*];

            /// The name in the text form.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => $name::NAME),* }
            }

            /// The type of the result.
            ///
            /// # Errors
            /// What is wrong with the operands' types or the attributes.
            pub fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
                match self { $(Self::$name(op) => op.infer(operands)),* }
            }

            /// The reference meaning. `ty` is what [`Op::infer`] answered for the operands' types.
            pub fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
                match self { $(Self::$name(op) => op.eval(operands, ty)),* }
            }

            /// What kind of operation it is.
            pub fn class(&self) -> OpClass {
                match self { $(Self::$name(_) => $name::CLASS),* }
            }

            /// Whether each element of the result is a function of the operands' elements at the same place.
            pub fn is_map(&self) -> bool {
                match self { $(Self::$name(_) => $name::IS_MAP),* }
            }

            /// Whether the result is a part of the operand, or the operand several times.
            pub fn is_view(&self) -> bool {
                match self { $(Self::$name(_) => $name::IS_VIEW),* }
            }

            /// Whether each element of the result depends only on elements at its own place along the axes that both have.
            pub fn keeps_axes(&self) -> bool {
                match self { $(Self::$name(_) => $name::KEEPS_AXES),* }
            }

            /// Whether a compiler may write the result where an operand of the same type is.
            pub fn in_place(&self) -> bool {
                match self { $(Self::$name(_) => $name::IN_PLACE),* }
            }

            /// Whether of operand 0 it reads only the rows that indices select.
            pub fn picks_rows(&self) -> bool {
                match self { $(Self::$name(_) => $name::PICKS_ROWS),* }
            }

            /// Whether any piece of the result can be made from bounded pieces of float operands when an archive is written.
            pub fn bakes(&self) -> bool {
                match self { $(Self::$name(op) => op.bakes()),* }
            }

            /// What it does, in a word or two.
            pub fn label(&self) -> String {
                match self { $(Self::$name(op) => op.label()),* }
            }

            /// How it reads a weight that may be stored in another layout.
            pub fn weight_use(&self) -> Option<WeightUse> {
                match self { $(Self::$name(_) => $name::WEIGHT_USE),* }
            }

            /// What it asks of a machine that computes it.
            pub fn work(&self, operands: &[CostOperand<'_>], ty: &TensorType) -> OpWork {
                match self { $(Self::$name(op) => op.work(operands, ty)),* }
            }

            /// The loops it runs over.
            pub fn iteration_space(&self, operands: &[&TensorType], ty: &TensorType) -> IterationSpace {
                match self { $(Self::$name(op) => op.iteration_space(operands, ty)),* }
            }

            /// How far IREE's result may be from [`Op::eval`]'s.
            pub fn bound(&self) -> Bound {
                match self { $(Self::$name(op) => op.bound()),* }
            }

            /// What every operation says of itself, in the order of the list.
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

            /// The examples of every operation, with its name.
            pub fn examples() -> Vec<(&'static str, &'static [Example])> {
                vec![$(($name::NAME, $name::EXAMPLES)),*]
            }

            /// Appends the name and the attributes.
            pub fn print(&self, out: &mut String) {
                out.push_str(self.name());
                match self { $(Self::$name(op) => op.print_attributes(out)),* }
            }

            /// Reads what [`Op::print`] wrote.
            ///
            /// # Errors
            /// Where the text departs from it.
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
