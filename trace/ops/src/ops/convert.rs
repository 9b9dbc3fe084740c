use super::prelude::*;

operation! {
    /// Converts each element to another element type. A conversion between float types rounds to
    /// the nearest number, and to the even number if two numbers are equally near. A conversion
    /// from a float type to an integer type rounds towards zero. A number out of the range of the
    /// integer type becomes the nearest integer of the type. (StableHLO leaves this case to the
    /// implementation.) The StableHLO operation is `convert`.
    Convert = "convert" {
        /// The element type to which the operation converts the elements.
        to: ElementType,
    }
}

impl Operation for Convert {
    const CLASS: OpClass = OpClass::Elementwise;
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
        // IREE takes and returns i4 in whole bytes, so the number of elements is even.
        good("convert to=i8", &["i4[6] 7,-8,0,1,-1,2"], "i8[6] 7,-8,0,1,-1,2"),
        good("convert to=f32", &["i4[4] 7,-8,0,1"], "f32[4] 7,-8,0,1"),
        good("convert to=bf16", &["i1[2] 0,1"], "bf16[2] 0,1"),
        good("convert to=bf16", &["i8[3] 127,-128,3"], "bf16[3] 127,-128,3"),
        // These integers are halfway between two bf16, or differ from the middle by 1. As f32, the
        // middle and its neighbours are the same number.
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

    fn bakes(&self) -> bool {
        self.to.is_float()
    }

    fn label(&self) -> String {
        format!("to {}", self.to)
    }
}

impl Primitive for Convert {
    fn spell(&self, _: &mut dyn Statements, operands: &[Operand<'_>], ty: &TensorType) -> String {
        let x = operands[0];
        format!("stablehlo.convert {} : ({}) -> {}", x.name, x.ty.mlir(), ty.mlir())
    }
}
