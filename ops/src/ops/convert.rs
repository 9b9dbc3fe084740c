use super::compare::{Compare, Direction};
use super::prelude::*;

operation! {
    /// Elementwise conversion to another element type: to nearest even between floats; towards zero from float
    /// to integer (out of range is implementation-defined in StableHLO; here it saturates). StableHLO: `convert`.
    Convert = "convert" {
        /// The result's element type.
        to: ElementType,
    }
}

impl Operation for Convert {
    const BOUND: Bound = Bound::Exact;
    const EXAMPLES: &'static [Example] = &[
        good("convert to=bf16", &["f32[3] 1,1.001953125,1.005859375"], "bf16[3] 1,1,1.0078125"),
        good("convert to=f16", &["f32[2] 65504,100000"], "f16[2] 65504,inf"),
        good("convert to=f32", &["bf16[2,3]"], "f32[2,3]"),
        good("convert to=f32", &["f16[2,3]"], "f32[2,3]"),
        good("convert to=f32", &["i32[2] 3,-4"], "f32[2] 3,-4"),
        good("convert to=i32", &["f32[4] 1.9,-1.9,0.5,-0"], "i32[4] 1,-1,0,0"),
        good("convert to=f32", &["i8[2] 127,-128"], "f32[2] 127,-128"),
        good("convert to=i32", &["i8[2] 127,-128"], "i32[2] 127,-128"),
        good("convert to=f32", &["i1[2] 0,1"], "f32[2] 0,1"),
        good("convert to=i32", &["i1[2] 0,1"], "i32[2] 0,1"),
        good("convert to=i1", &["f32[4] 0,-0,0.25,nan"], "i1[4] 0,0,1,1"),
        good("convert to=i1", &["i32[3] 0,2,-1"], "i1[3] 0,1,1"),
        good("convert to=i1", &["i32[] 4"], "i1[] 1"),
        good("convert to=i1", &["f16[] -0"], "i1[] 0"),
        // IREE takes and returns whole bytes of i4: an even number of elements.
        good("convert to=i8", &["i4[6] 7,-8,0,1,-1,2"], "i8[6] 7,-8,0,1,-1,2"),
        good("convert to=f32", &["i4[4] 7,-8,0,1"], "f32[4] 7,-8,0,1"),
        good("convert to=bf16", &["i1[2] 0,1"], "bf16[2] 0,1"),
        good("convert to=bf16", &["i8[3] 127,-128,3"], "bf16[3] 127,-128,3"),
        // Halfway between two bf16, and one off it, which f32 does not tell from halfway.
        good(
            "convert to=bf16",
            &["i32[6] 1077936128,1077936129,-1077936129,1086324736,1086324735,257"],
            "bf16[6] 1073741824,1082130432,-1082130432,1090519040,1082130432,256",
        ),
        good(
            "convert to=bf16",
            &["i32[4] 2147483647,-2147483648,-1,16777217"],
            "bf16[4] 2147483648,-2147483648,-1,16777216",
        ),
        good("convert to=f16", &["i32[4] 65519,65520,-2049,2051"], "f16[4] 65504,inf,-2048,2052"),
        bad("convert to=f32", &[], "takes 1 operands"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [x] = arity(Self::NAME, operands)?;
        Ok(x.with_element(self.to))
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        Value::new(ty.clone(), operands[0].data.iter().copied())
    }

    fn spell(&self, s: &mut dyn Statements, operands: &[Operand<'_>], ty: &TensorType) -> Spelling {
        let x = operands[0];
        if ty.element == ElementType::Bf16 && !x.ty.element.is_float() {
            return Spelling::Primitive(integer_to_bf16(s, x));
        }
        // StableHLO's definition of it. iree-compile 3.13 fails on the conversion of a scalar argument to i1.
        if ty.element == ElementType::I1 && x.ty.element != ElementType::I1 {
            let zero = crate::Literal::splat(x.ty.clone(), 0.0);
            let name = &s.statement(format!("stablehlo.constant {}", zero.mlir()));
            return Compare { direction: Direction::Ne }.spell(s, &[x, Operand { name, ty: x.ty }], ty);
        }
        Spelling::Primitive(convert(x.name, x.ty, ty))
    }
}

fn convert(name: &str, from: &TensorType, to: &TensorType) -> String {
    format!("stablehlo.convert {name} : ({}) -> {}", from.mlir(), to.mlir())
}

/// iree-compile 3.13 cannot link a conversion of integers to bf16 for CPUs without such an instruction, and makes one
/// of two conversions over f32 unless something is between them.
fn integer_to_bf16(s: &mut dyn Statements, x: Operand<'_>) -> String {
    let exact = if x.ty.element == ElementType::I32 { few_bits(s, x) } else { x.name.to_string() };
    let wide = x.ty.with_element(ElementType::F32);
    let name = s.statement(convert(&exact, x.ty, &wide));
    let name = s.statement(format!("stablehlo.reduce_precision {name}, format = e8m7 : {}", wide.mlir()));
    convert(&name, &wide, &x.ty.with_element(ElementType::Bf16))
}

/// An i32 that f32 holds exactly and bf16 rounds as it rounds `x`. Above 2²⁴, bf16 rounds at multiples of 2¹⁶, so every
/// number between two multiples of 2⁸ may become the one in their middle, which has 24 bits.
fn few_bits(s: &mut dyn Statements, x: Operand<'_>) -> String {
    let (ty, flags) = (x.ty.mlir(), x.ty.with_element(ElementType::I1).mlir());
    let mut binary = |op: &str, a: &str, number: i32| {
        let number = s.statement(format!("stablehlo.constant dense<{number}> : {ty}"));
        s.statement(format!("stablehlo.{op} {a}, {number} : {ty}"))
    };
    let floor = binary("and", x.name, -256);
    let middle = binary("or", &floor, 128);
    // That of the smallest i32 is itself, which is a power of two.
    let magnitude = s.statement(format!("stablehlo.abs {} : {ty}", x.name));
    let limit = s.statement(format!("stablehlo.constant dense<{}> : {ty}", 1 << 24));
    let mut compare = |direction: &str, a: &str, b: &str| {
        s.statement(format!("stablehlo.compare {direction}, {a}, {b}, SIGNED : ({ty}, {ty}) -> {flags}"))
    };
    let multiple = compare("EQ", &floor, x.name);
    let small = compare("LE", &magnitude, &limit);
    let exact = s.statement(format!("stablehlo.or {multiple}, {small} : {flags}"));
    s.statement(format!("stablehlo.select {exact}, {}, {middle} : {flags}, {ty}", x.name))
}
