use super::prelude::*;

operation! {
    /// Multiplies two tensors and sums over the contracted axes. The axes of the result are the
    /// batch axes, then the free axes of the left operand, then the free axes of the right operand.
    /// The operation sums products of narrow floats in the wider type of the result, and lets sums
    /// of integers wrap around. The StableHLO operation is `dot_general`.
    DotGeneral = "dot_general" {
        /// The indices of the left operand's batch axes.
        left_batch: Vec<usize>,
        /// For each batch axis of the left operand, the index of the corresponding axis of the right operand.
        right_batch: Vec<usize>,
        /// The indices of the left operand's contracted axes.
        left_contract: Vec<usize>,
        /// For each contracted axis of the left operand, the index of the corresponding axis of the
        /// right operand.
        right_contract: Vec<usize>,
        /// The element type of the result, which is at least as wide as the operands' type.
        element: ElementType,
    }
}

impl DotGeneral {
    fn free(rank: usize, batch: &[usize], contract: &[usize]) -> Vec<usize> {
        (0..rank).filter(|a| !batch.contains(a) && !contract.contains(a)).collect()
    }
}

impl Operation for DotGeneral {
    const CLASS: OpClass = OpClass::Matmul;
    const WEIGHT_USE: Option<WeightUse> = Some(WeightUse::Stack);
    const BOUND: Bound = Bound::UlpsOfLargest(8.0);
    const EXAMPLES: &'static [Example] = &[
        good(
            "dot_general left_batch=[] right_batch=[] left_contract=[1] right_contract=[0] element=f32",
            &["f32[2,3] 1,2,3,4,5,6", "f32[3,2] 7,8,9,10,11,12"],
            "f32[2,2] 58,64,139,154",
        ),
        good(
            "dot_general left_batch=[0] right_batch=[1] left_contract=[2] right_contract=[2] element=f32",
            &["f32[2,3,4]", "f32[5,2,4]"],
            "f32[2,3,5]",
        ),
        good(
            "dot_general left_batch=[] right_batch=[] left_contract=[0,1] right_contract=[1,0] element=f32",
            &["f32[2,3]", "f32[3,2,4]"],
            "f32[4]",
        ),
        good(
            "dot_general left_batch=[] right_batch=[] left_contract=[1] right_contract=[1] element=f32",
            &["bf16[3,8]", "bf16[5,8]"],
            "f32[3,5]",
        ),
        good(
            "dot_general left_batch=[] right_batch=[] left_contract=[1] right_contract=[1] element=f32",
            &["f16[3,8]", "f16[5,8]"],
            "f32[3,5]",
        ),
        good(
            "dot_general left_batch=[] right_batch=[] left_contract=[1] right_contract=[1] element=i32",
            &["i8[3,8]", "i8[5,8]"],
            "i32[3,5]",
        ),
        good(
            "dot_general left_batch=[] right_batch=[] left_contract=[0] right_contract=[0] element=i32",
            &["i32[2] 65536,2147483647", "i32[2] 65537,3"],
            "i32[] -2147418115",
        ),
        bad(
            "dot_general left_batch=[] right_batch=[] left_contract=[1] right_contract=[0] element=f32",
            &["f32[2,3]", "f32[4,2]"],
            "paired axes must have one extent, found `f32[2,3]` and `f32[4,2]`",
        ),
        bad(
            "dot_general left_batch=[] right_batch=[] left_contract=[2] right_contract=[0] element=f32",
            &["f32[2,3]", "f32[4,2]"],
            "axis 2 does not exist in `f32[2,3]`",
        ),
        bad(
            "dot_general left_batch=[0] right_batch=[0] left_contract=[0] right_contract=[1] element=f32",
            &["f32[2,3]", "f32[2,2]"],
            "expected distinct axes",
        ),
        bad(
            "dot_general left_batch=[] right_batch=[] left_contract=[1] right_contract=[1] element=f32",
            &["f32[2,3]", "bf16[2,3]"],
            "operands must have one element type",
        ),
        bad(
            "dot_general left_batch=[] right_batch=[] left_contract=[1] right_contract=[1] element=bf16",
            &["f32[2,3]", "f32[2,3]"],
            "expected f32, or a wider type of its kind",
        ),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [a, b] = arity(Self::NAME, operands)?;
        agree(Self::NAME, "operands must have one element type", a, b, a.element == b.element)?;
        element(Self::NAME, a, "float or integer", |e| e != ElementType::I1)?;
        let wide = if a.element.is_float() { ElementType::F32 } else { ElementType::I32 };
        let expected = format!("{}, or a wider type of its kind", a.element);
        attribute(Self::NAME, "element", self.element, expected, [a.element, wide].contains(&self.element))?;
        let sides =
            [(a, &self.left_batch, &self.left_contract), (b, &self.right_batch, &self.right_contract)];
        for (ty, batch, contract) in sides {
            let mut seen = Vec::new();
            for &i in batch.iter().chain(contract) {
                axis(Self::NAME, i, ty)?;
                attribute(Self::NAME, "axes", (batch, contract), "distinct axes", !seen.contains(&i))?;
                seen.push(i);
            }
        }
        let pairs = [(&self.left_batch, &self.right_batch), (&self.left_contract, &self.right_contract)];
        for (left, right) in pairs {
            let paired =
                left.len() == right.len() && left.iter().zip(right).all(|(&i, &j)| a.shape[i] == b.shape[j]);
            agree(Self::NAME, "paired axes must have one extent", a, b, paired)?;
        }
        let mut shape: Vec<usize> = self.left_batch.iter().map(|&i| a.shape[i]).collect();
        shape.extend(Self::free(a.rank(), &self.left_batch, &self.left_contract).iter().map(|&i| a.shape[i]));
        shape.extend(
            Self::free(b.rank(), &self.right_batch, &self.right_contract).iter().map(|&i| b.shape[i]),
        );
        Ok(TensorType::new(self.element, shape))
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let [a, b] = operands else { unreachable!("inferred") };
        let left_free = Self::free(a.ty.rank(), &self.left_batch, &self.left_contract);
        let right_free = Self::free(b.ty.rank(), &self.right_batch, &self.right_contract);
        let contracted: Vec<usize> = self.left_contract.iter().map(|&i| a.ty.shape[i]).collect();
        let (mut i, mut j) = (vec![0; a.ty.rank()], vec![0; b.ty.rank()]);
        let mut terms = Vec::new();
        Value::from_fn(ty.clone(), |index| {
            let (batch, rest) = index.split_at(self.left_batch.len());
            let (left, right) = rest.split_at(left_free.len());
            for (n, &k) in batch.iter().enumerate() {
                (i[self.left_batch[n]], j[self.right_batch[n]]) = (k, k);
            }
            left_free.iter().zip(left).for_each(|(&axis, &k)| i[axis] = k);
            right_free.iter().zip(right).for_each(|(&axis, &k)| j[axis] = k);
            terms.clear();
            crate::for_each_index(&contracted, |k| {
                for (n, &k) in k.iter().enumerate() {
                    (i[self.left_contract[n]], j[self.right_contract[n]]) = (k, k);
                }
                terms.push((a.at(&i), b.at(&j)));
            });
            if ty.element.is_integer() {
                ty.element.wrap(
                    terms.iter().fold(0, |sum, &(a, b)| {
                        i64::wrapping_add(sum, i64::wrapping_mul(a as i64, b as i64))
                    }),
                )
            } else {
                exact_sum(terms.iter().map(|(a, b)| a * b))
            }
        })
    }

    fn work(&self, operands: &[CostOperand<'_>], ty: &TensorType) -> OpWork {
        let contracted = self.left_contract.iter().map(|&axis| operands[0].ty.shape[axis]).product();
        OpWork::matmul(operands, ty, contracted)
    }

    fn iteration_space(&self, operands: &[&TensorType], ty: &TensorType) -> IterationSpace {
        let mut count = ty.rank();
        let [mut left, mut right] = [0, 1].map(|at| vec![None; operands[at].rank()]);
        for (at, (&l, &r)) in self.left_batch.iter().zip(&self.right_batch).enumerate() {
            (left[l], right[r]) = (Some(at), Some(at));
        }
        for (&l, &r) in self.left_contract.iter().zip(&self.right_contract) {
            (left[l], right[r]) = (Some(count), Some(count));
            count += 1;
        }
        let free = left.iter_mut().chain(&mut right).filter(|axis| axis.is_none());
        free.zip(self.left_batch.len()..).for_each(|(axis, at)| *axis = Some(at));
        IterationSpace { operands: vec![left, right], result: same(ty.rank()), count }
    }
}

impl Primitive for DotGeneral {
    fn spell(&self, _: &mut dyn Statements, operands: &[Operand<'_>], ty: &TensorType) -> String {
        let [a, b] = operands else { unreachable!("inferred") };
        let batch = if self.left_batch.is_empty() {
            String::new()
        } else {
            format!("batching_dims = {} x {}, ", mlir_list(&self.left_batch), mlir_list(&self.right_batch))
        };
        format!(
            "stablehlo.dot_general {}, {}, {batch}contracting_dims = {} x {} : ({}, {}) -> {}",
            a.name,
            b.name,
            mlir_list(&self.left_contract),
            mlir_list(&self.right_contract),
            a.ty.mlir(),
            b.ty.mlir(),
            ty.mlir()
        )
    }
}
