use super::binary::larger;
use super::prelude::*;

crate::words! {
    pub enum ReduceKind {
        /// The reduction computes the sum of the elements.
        Add = "add",
        /// The reduction returns the largest element, or NaN if any element is NaN.
        Maximum = "maximum",
        /// The reduction returns the smallest element, or NaN if any element is NaN.
        Minimum = "minimum",
    }
}

operation! {
    /// Combines the elements along some axes, and removes these axes. The StableHLO operation is
    /// `reduce`, which starts from the neutral element of the function.
    Reduce = "reduce" {
        /// The function with which the operation combines elements.
        kind: ReduceKind,
        /// The axes that the operation removes, in ascending order.
        axes: Vec<usize>,
    }
}

impl Operation for Reduce {
    const CLASS: OpClass = OpClass::Reduction;
    const KEEPS_AXES: bool = true;
    const BOUND: Bound = Bound::UlpsOfLargest(4.0);
    const EXAMPLES: &'static [Example] = &[
        good("reduce kind=add axes=[1]", &["f32[2,3] 1,2,3,4,5,6"], "f32[2] 6,15"),
        good("reduce kind=add axes=[0]", &["i32[2,3] 1,2,3,4,5,6"], "i32[3] 5,7,9"),
        good("reduce kind=add axes=[0,2]", &["f32[2,3,4]"], "f32[3]"),
        good("reduce kind=maximum axes=[1]", &["f32[2,3] 1,nan,3,-4,-5,-6"], "f32[2] nan,-4"),
        good("reduce kind=maximum axes=[0]", &["i32[3] -7,-9,-8"], "i32[] -7"),
        good("reduce kind=minimum axes=[0]", &["i32[3] 7,9,8"], "i32[] 7"),
        good("reduce kind=minimum axes=[1]", &["f32[2,3]"], "f32[2]"),
        bad("reduce kind=add axes=[2]", &["f32[2,3]"], "axis 2 does not exist in `f32[2,3]`"),
        bad("reduce kind=add axes=[1,0]", &["f32[2,3]"], "expected ascending axes"),
        bad("reduce kind=add axes=[0]", &["i1[2]"], "needs elements of type float or integer"),
    ];

    fn bound(&self) -> Bound {
        match self.kind {
            ReduceKind::Add => Self::BOUND,
            ReduceKind::Maximum | ReduceKind::Minimum => Bound::Exact,
        }
    }

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [x] = arity(Self::NAME, operands)?;
        element(Self::NAME, x, "float or integer", |e| e != ElementType::I1)?;
        let ascending = self.axes.is_sorted_by(|a, b| a < b);
        attribute(Self::NAME, "axes", &self.axes, "ascending axes", ascending)?;
        for &a in &self.axes {
            axis(Self::NAME, a, x)?;
        }
        let kept = |(a, &extent): (usize, &usize)| (!self.axes.contains(&a)).then_some(extent);
        Ok(TensorType::new(x.element, x.shape.iter().enumerate().filter_map(kept).collect::<Vec<_>>()))
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let x = operands[0];
        let reduced: Vec<usize> = self.axes.iter().map(|&a| x.ty.shape[a]).collect();
        let kept: Vec<usize> = (0..x.ty.rank()).filter(|a| !self.axes.contains(a)).collect();
        let mut source = vec![0; x.ty.rank()];
        let mut terms = Vec::new();
        Value::from_fn(ty.clone(), |index| {
            kept.iter().zip(index).for_each(|(&a, &i)| source[a] = i);
            terms.clear();
            crate::for_each_index(&reduced, |index| {
                self.axes.iter().zip(index).for_each(|(&a, &i)| source[a] = i);
                terms.push(x.at(&source));
            });
            let nan = terms.iter().any(|t| t.is_nan());
            let terms = terms.iter().copied();
            match self.kind {
                ReduceKind::Add if ty.element.is_integer() => ty.element.wrap(terms.map(|t| t as i64).sum()),
                ReduceKind::Add => exact_sum(terms),
                _ if nan => f64::NAN,
                ReduceKind::Maximum => terms.fold(f64::NEG_INFINITY, larger),
                ReduceKind::Minimum => -terms.fold(f64::NEG_INFINITY, |m, t| larger(m, -t)),
            }
        })
    }

    fn iteration_space(&self, operands: &[&TensorType], _: &TensorType) -> IterationSpace {
        let count = operands[0].rank();
        let kept = (0..count).filter(|axis| !self.axes.contains(axis)).map(Some).collect();
        let operands = operands.iter().map(|operand| same(operand.rank())).collect();
        IterationSpace { operands, result: kept, count }
    }

    fn label(&self) -> String {
        format!("reduce {}", self.kind.word())
    }
}

impl Primitive for Reduce {
    fn spell(&self, s: &mut dyn Statements, operands: &[Operand<'_>], ty: &TensorType) -> String {
        let x = operands[0];
        let neutral = match self.kind {
            ReduceKind::Add => 0.0,
            ReduceKind::Maximum => f64::NEG_INFINITY,
            ReduceKind::Minimum => f64::INFINITY,
        };
        let scalar = TensorType::new(ty.element, []);
        let literal = crate::Literal::splat(scalar.clone(), neutral);
        let init = s.statement(format!("stablehlo.constant {}", literal.mlir()));
        format!(
            "stablehlo.reduce({} init: {init}) applies stablehlo.{} across dimensions = {} : ({}, {}) -> {}",
            x.name,
            self.kind.word(),
            mlir_list(&self.axes),
            x.ty.mlir(),
            scalar.mlir(),
            ty.mlir()
        )
    }
}
