use super::prelude::*;

operation! {
    /// Selects a range of static length along one axis. The operands are the tensor x and the start
    /// index (`i32[]`). The program computes the start index at run time, and clamps the start
    /// index to make the range fit. The StableHLO operation is `dynamic_slice`.
    DynamicSlice = "dynamic_slice" {
        /// The axis along which the operation selects the range.
        axis: usize,
        /// The number of indices in the selected range.
        length: usize,
    }
}

impl Operation for DynamicSlice {
    const CLASS: OpClass = OpClass::Movement;
    const BOUND: Bound = Bound::Exact;
    const EXAMPLES: &'static [Example] = &[
        good("dynamic_slice axis=1 length=2", &["i32[2,3] 1,2,3,4,5,6", "i32[] 1"], "i32[2,2] 2,3,5,6"),
        good("dynamic_slice axis=0 length=2", &["i32[4] 1,2,3,4", "i32[] 3"], "i32[2] 3,4"),
        good("dynamic_slice axis=0 length=2", &["i32[4] 1,2,3,4", "i32[] -1"], "i32[2] 1,2"),
        good("dynamic_slice axis=1 length=1", &["bf16[2,5,3]", "i32[] 4"], "bf16[2,1,3]"),
        bad("dynamic_slice axis=0 length=5", &["f32[4]", "i32[]"], "length is 5, expected at most 4"),
        bad("dynamic_slice axis=0 length=1", &["f32[4]", "i32[1]"], "the start must be a scalar"),
        bad("dynamic_slice axis=0 length=1", &["f32[4]", "f32[]"], "needs elements of type i32"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [x, start] = arity(Self::NAME, operands)?;
        let extent = axis(Self::NAME, self.axis, x)?;
        attribute(
            Self::NAME,
            "length",
            self.length,
            format_args!("at most {extent}"),
            self.length <= extent,
        )?;
        scalar_start(Self::NAME, start)?;
        let mut ty = x.clone();
        ty.shape[self.axis] = self.length;
        Ok(ty)
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let [x, start] = operands else { unreachable!("inferred") };
        let start = clamped(start, x.ty.shape[self.axis], self.length);
        super::Narrow { axis: self.axis, start, length: self.length }.eval(&[x], ty)
    }

    fn iteration_space(&self, operands: &[&TensorType], ty: &TensorType) -> IterationSpace {
        if operands[0].shape == ty.shape {
            IterationSpace::aligned(operands, ty)
        } else {
            IterationSpace::aligned_but(self.axis, operands, ty)
        }
    }
}

impl Primitive for DynamicSlice {
    fn spell(&self, s: &mut dyn Statements, operands: &[Operand<'_>], ty: &TensorType) -> String {
        let [x, start] = operands else { unreachable!("inferred") };
        let (starts, types) = starts(s, self.axis, x.ty.rank(), start.name);
        format!(
            "stablehlo.dynamic_slice {}, {starts}, sizes = {} : ({}, {types}) -> {}",
            x.name,
            mlir_list(&ty.shape),
            x.ty.mlir(),
            ty.mlir()
        )
    }
}

pub(super) fn scalar_start(op: &'static str, start: &TensorType) -> Result<(), InferError> {
    element(op, start, "i32", |e| e == ElementType::I32)?;
    let scalar = TensorType::new(ElementType::I32, []);
    agree(op, "the start must be a scalar", start, &scalar, start.rank() == 0)
}

pub(super) fn clamped(start: &Value, extent: usize, length: usize) -> usize {
    (start.data[0].max(0.0) as usize).min(extent - length)
}

/// The SSA names and types of the start indices, which are zero for all axes except `axis`.
pub(super) fn starts(s: &mut dyn Statements, axis: usize, rank: usize, start: &str) -> (String, String) {
    let zero = match rank {
        1 => String::new(),
        _ => s.statement("stablehlo.constant dense<0> : tensor<i32>".into()),
    };
    let names: Vec<&str> = (0..rank).map(|a| if a == axis { start } else { &zero }).collect();
    (names.join(", "), vec!["tensor<i32>"; rank].join(", "))
}
