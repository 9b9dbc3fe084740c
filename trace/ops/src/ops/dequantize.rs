use super::prelude::*;

operation! {
    /// Multiplies rows of integers by their scales: `i8[…, E]` and `f32[…]` give `[…, E]`. Each row
    /// of integers has one scale, by which the operation multiplies the integers.
    Dequantize = "dequantize" {
        /// The element type of the dequantized result.
        element: ElementType,
    }
}

impl Operation for Dequantize {
    const CLASS: OpClass = OpClass::Elementwise;
    const IS_MAP: bool = false;
    const BOUND: Bound = Bound::Exact;
    const EXAMPLES: &'static [Example] = &[
        good("dequantize element=f32", &["i8[2,2] 1,-2,127,0", "f32[2] 0.5,3"], "f32[2,2] 0.5,-1,381,0"),
        good("dequantize element=bf16", &["i8[3] 127,-127,1", "f32[] 1.01"], "bf16[3] 128,-128,1.0078125"),
        good("dequantize element=f16", &["i8[2,3,5,20]", "f32[2,3,5]"], "f16[2,3,5,20]"),
        good("dequantize element=bf16", &["i8[1,2,7,33]", "f32[1,2,7]"], "bf16[1,2,7,33]"),
        bad("dequantize element=f32", &["i32[2,2]", "f32[2]"], "needs elements of type i8"),
        bad("dequantize element=f32", &["i8[2,2]", "bf16[2]"], "needs elements of type f32"),
        bad("dequantize element=f32", &["i8[2,3]", "f32[3]"], "each row must have a scale"),
        bad(
            "dequantize element=f32",
            &["i8[]", "f32[]"],
            "the rank of the integers is 0, expected at least 1",
        ),
        bad("dequantize element=i32", &["i8[2,3]", "f32[2]"], "element is I32, expected a float"),
        bad("dequantize element=f32", &["i8[2,3]"], "takes 2 operands"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [integers, scales] = arity(Self::NAME, operands)?;
        element(Self::NAME, integers, "i8", |e| e == ElementType::I8)?;
        element(Self::NAME, scales, "f32", |e| e == ElementType::F32)?;
        attribute(Self::NAME, "element", self.element, "a float", self.element.is_float())?;
        let rank = integers.rank();
        attribute(Self::NAME, "the rank of the integers", rank, "at least 1", rank > 0)?;
        let fits = scales.shape == integers.shape[..rank - 1];
        agree(Self::NAME, "each row must have a scale", integers, scales, fits)?;
        Ok(integers.with_element(self.element))
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let [integers, scales] = operands else { unreachable!("inferred") };
        let features = ty.shape[ty.rank() - 1];
        let number =
            |(i, integer): (usize, &f64)| ElementType::F32.round(integer * scales.data[i / features]);
        Value::new(ty.clone(), integers.data.iter().enumerate().map(number))
    }
}
