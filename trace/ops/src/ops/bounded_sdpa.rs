use super::prelude::*;
use super::sdpa::{MaskTerm, Sdpa};
use crate::Real;

operation! {
    /// Computes attention like [`Sdpa`] with a causal mask, but reads no key after the last query.
    /// The operands are the queries, the keys, the values and the offset `i32[]`. The cost of
    /// `bounded_sdpa` depends on the offset, but not on the size of the KV cache.
    ///
    /// StableHLO cannot express attention over a variable number of keys, because all extents in
    /// StableHLO are static. The crate `lower` emits the operation as code in IREE's own dialects.
    BoundedSdpa = "bounded_sdpa" {
        /// The terms of the attention mask: a causal term, and optionally window terms.
        mask: Vec<MaskTerm>,
        /// The factor by which the operation multiplies the attention scores. The value `none`
        /// selects the factor 1/√E, where E is the number of features.
        scale: Option<Real>,
        /// The bound on the attention scores: each score becomes `cap · tanh(score / cap)`.
        softcap: Option<Real>,
    }
}

impl BoundedSdpa {
    /// The [`Sdpa`] with the same result, which may also read keys after the last query.
    pub fn unbounded(&self) -> Sdpa {
        Sdpa { mask: self.mask.clone(), scale: self.scale, softcap: self.softcap, offset: true }
    }
}

impl Operation for BoundedSdpa {
    const CLASS: OpClass = OpClass::Attention;
    const BOUND: Bound = Sdpa::BOUND;
    const EXAMPLES: &'static [Example] = &[
        good(
            "bounded_sdpa mask=[causal] scale=none softcap=none",
            &["f32[3,1,2]", "f32[3,200,2]", "f32[3,200,2]", "i32[] 0"],
            "f32[3,1,2]",
        ),
        good(
            "bounded_sdpa mask=[causal] scale=none softcap=none",
            &["f32[1,2,3,1,64]", "f32[1,2,256,64]", "f32[1,2,256,32]", "i32[] 63"],
            "f32[1,2,3,1,32]",
        ),
        good(
            "bounded_sdpa mask=[causal] scale=none softcap=1.5",
            &["f32[2,3,5,8]", "f32[2,3,200,8]", "f32[2,3,200,8]", "i32[] 60"],
            "f32[2,3,5,8]",
        ),
        good(
            "bounded_sdpa mask=[causal,window(7)] scale=0.5 softcap=none",
            &["f32[2,2,16,8]", "f32[2,130,8]", "f32[2,130,8]", "i32[] 114"],
            "f32[2,2,16,8]",
        ),
        good(
            "bounded_sdpa mask=[causal] scale=none softcap=none",
            &["bf16[2,3,2,16]", "bf16[2,130,16]", "bf16[2,130,16]", "i32[] 64"],
            "bf16[2,3,2,16]",
        ),
        bad(
            "bounded_sdpa mask=[causal,padding] scale=none softcap=none",
            &["f32[2,1,2]", "f32[2,3,2]", "f32[2,3,2]", "i32[]"],
            "expected causal, and windows",
        ),
        bad(
            "bounded_sdpa mask=[causal] scale=none softcap=none",
            &["f32[1,2]", "f32[3,2]", "f32[3,2]", "i32[]"],
            "expected at least 3",
        ),
        bad(
            "bounded_sdpa mask=[causal] scale=none softcap=none",
            &["f32[2,1,2]", "f32[2,3,2]", "f32[2,3,2]", "i32[2]"],
            "the offset must be one number",
        ),
        bad(
            "bounded_sdpa mask=[causal] scale=none softcap=none",
            &["f32[2,1,2]", "f32[2,3,2]", "f32[2,3,2]"],
            "takes 4 operands, found 3",
        ),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [q, k, v, offset] = arity(Self::NAME, operands)?;
        let known = |term: &MaskTerm| matches!(term, MaskTerm::Causal | MaskTerm::Window(_));
        let bounded = self.mask.contains(&MaskTerm::Causal) && self.mask.iter().all(known);
        attribute(Self::NAME, "mask", &self.mask, "causal, and windows", bounded)?;
        // iree-compile 3.13 cannot multiply matrices of unknown extents that belong to no batch
        // (docs/upstream/rank_two.mlir).
        attribute(Self::NAME, "the rank of k", k.rank(), "at least 3", k.rank() >= 3)?;
        agree(Self::NAME, "the offset must be one number", offset, q, offset.rank() == 0)?;
        self.unbounded().infer(&[q, k, v, offset])
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        self.unbounded().eval(operands, ty)
    }
}
