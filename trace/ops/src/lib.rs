//! Contains the types of a program's values (element type, shape, literal, parameter), and the definition of
//! each operation. The set of operations is closed: all operations are variants of [`Op`]. Each operation has
//! its own source file with the documentation, the typing rule, the definition, and a table of valid and
//! invalid examples. The file of a primitive operation also contains the operation's StableHLO statement.

#[macro_use]
mod list;
mod array;
mod facts;
pub mod format;
mod literal;
mod operation;
pub mod ops;
mod text;
mod types;
mod value;

pub use array::{Array, ArrayError, Number};
pub use facts::{CostOperand, IterationSpace, OpClass, OpWork, WeightUse};
pub use format::WeightFormat;
pub use list::Documented;
pub use literal::{Literal, RopePart, RopeTable};
pub use operation::{Attributes, Bound, Example, InferError, Operand, Operation, Primitive, Statements};
pub use ops::{Composite, Form, Idiom, LayoutOp, Op};
pub use text::{Attribute, ParseError, Reader, Real, print_string};
pub use types::{ElementType, TensorType, UnknownElementType};
pub use value::{Value, exact_sum, flat_index, for_each_index};
