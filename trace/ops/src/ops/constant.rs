use super::prelude::*;
use crate::Literal;

operation! {
    /// A tensor whose elements are known when Tracewright records the trace. The StableHLO
    /// operation is `constant`.
    Constant = "constant" {
        /// The elements of the tensor, or a rule that computes the elements.
        value: Literal,
    }
}

impl Operation for Constant {
    const CLASS: OpClass = OpClass::Constant;
    const BOUND: Bound = Bound::Exact;
    const EXAMPLES: &'static [Example] = &[
        good("constant value=f32[2,3] splat 1.5", &[], "f32[2,3] 1.5,1.5,1.5,1.5,1.5,1.5"),
        good("constant value=f32[] splat -0.0", &[], "f32[] -0"),
        good("constant value=f32[2] splat bits 0x7fc01234", &[], "f32[2] nan,nan"),
        good("constant value=bf16[3] dense 0x803f0040c0ff", &[], "bf16[3] 1,2,nan"),
        good("constant value=i32[3] dense 0x01000000ffffffff00000080", &[], "i32[3] 1,-1,-2147483648"),
        good("constant value=i8[2,2] dense 0x01ff7f80", &[], "i8[2,2] 1,-1,127,-128"),
        good("constant value=i1[3] dense 0x010001", &[], "i1[3] 1,0,1"),
        good("constant value=f16[2] dense 0x003c00c0", &[], "f16[2] 1,-2"),
        good("constant value=i4[4] dense 0xf187", &[], "i4[4] 1,-1,7,-8"),
        good("constant value=f32[0,2] dense 0x", &[], "f32[0,2]"),
        good(
            "constant value=f32[2,2] rope_table cos scaling=1.0 inv_freq=[1.0,0.5]",
            &[],
            "f32[2,2] 1,1,0.540302276611328125,0.877582550048828125",
        ),
        bad("constant value=f32[] splat 1.0", &["f32[]"], "takes no operands"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [] = arity(Self::NAME, operands)?;
        Ok(self.value.ty().clone())
    }

    fn eval(&self, _: &[&Value], _: &TensorType) -> Value {
        self.value.to_value()
    }

    fn work(&self, _: &[CostOperand<'_>], ty: &TensorType) -> OpWork {
        match self.value.as_splat() {
            Some(_) => OpWork::FREE,
            None => OpWork { bytes: ty.bytes() as f64, ..OpWork::FREE },
        }
    }

    fn bakes(&self) -> bool {
        true
    }

    fn label(&self) -> String {
        self.value.as_rope_table().map_or("constant".into(), |table| format!("{} table", table.part.word()))
    }
}

impl Primitive for Constant {
    fn spell(&self, _: &mut dyn Statements, _: &[Operand<'_>], _: &TensorType) -> String {
        format!("stablehlo.constant {}", self.value.mlir())
    }
}
