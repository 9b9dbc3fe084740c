use super::prelude::*;
use crate::format::{PANEL, WeightFormat};

operation! {
    /// Packs a matrix `[outputs, inputs]` into a format that kernels read: see [`WeightFormat`].
    /// The operation rounds the numbers of the matrix to the storage format.
    ///
    /// The crate `bake` computes `pack` when it writes an archive. No compiled program contains `pack`.
    Pack = "pack" {
        /// The storage format of the packed matrix.
        format: WeightFormat,
    }
}

impl Operation for Pack {
    const CLASS: OpClass = OpClass::Movement;
    const BOUND: Bound = Bound::Exact;
    const EXAMPLES: &'static [Example] = &[
        good("pack format=f32", &["f32[2,1] 5,-7"], "f32[1,1,16,1] 5,-7,0,0,0,0,0,0,0,0,0,0,0,0,0,0"),
        good(
            "pack format=bf16",
            &["bf16[2,3] 1,2,3,4,5,6"],
            "bf16[1,2,16,2] 1,2,4,5,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,3,0,6,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0",
        ),
        good("pack format=f16", &["f16[17,3]"], "f16[2,3,16,1]"),
        good("pack format=q8", &["f32[3,65]"], "i8[1,2,1088]"),
        good("pack format=q4", &["bf16[3,64]"], "i8[1,1,576]"),
        good("pack format=mxfp4", &["bf16[17,129]"], "i8[2,2,1088]"),
        good("pack format=f8", &["f32[17,130]"], "i8[2,2120]"),
        good("pack format=f8_rows", &["bf16[3,5]"], "i8[1,192]"),
        good("pack format=nf4", &["f32[3,65]"], "i8[1,704]"),
        good("pack format=q4_k", &["bf16[17,257]"], "i8[2,2,2304]"),
        bad("pack format=q4", &["f32[4]"], "must be a matrix"),
        bad("pack format=q4", &["i8[4,4]"], "needs elements of type float"),
        bad("pack format=bf16", &["f32[4,4]"], "the format must keep the element type"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [w] = arity(Self::NAME, operands)?;
        element(Self::NAME, w, "float", ElementType::is_float)?;
        agree(Self::NAME, "the weight must be a matrix", w, w, w.rank() == 2)?;
        let kept = self.format.element().is_none_or(|element| element == w.element);
        agree(Self::NAME, "the format must keep the element type", w, w, kept)?;
        Ok(self.format.packed(w.shape[0], w.shape[1]))
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let w = operands[0];
        let inputs = w.ty.shape[1];
        let rows: Vec<f32> = w.data.iter().map(|&x| x as f32).collect();
        let mut bytes = vec![0; ty.bytes()];
        let panel = self.format.packed(PANEL, inputs).bytes();
        if panel > 0 {
            for (rows, packed) in rows.chunks(PANEL * inputs).zip(bytes.chunks_exact_mut(panel)) {
                self.format.pack_panel(rows, inputs, packed);
            }
        }
        Value::from_bytes(ty.clone(), &bytes)
    }

    fn work(&self, _: &[CostOperand<'_>], _: &TensorType) -> OpWork {
        // The operation has no cost at run time, because `bake` computes it when it writes the
        // archive.
        OpWork::FREE
    }

    fn bakes(&self) -> bool {
        true
    }
}

/// A matrix `[outputs, inputs]`; quantized numbers are multiplied by their scales.
pub(super) fn unpacked(format: WeightFormat, packed: &Value, outputs: usize, inputs: usize) -> Value {
    let bytes = packed.to_bytes();
    let panel = format.packed(PANEL, inputs).bytes();
    let mut rows = vec![0.0; outputs * inputs];
    if panel > 0 {
        for (rows, packed) in rows.chunks_mut(PANEL * inputs).zip(bytes.chunks_exact(panel)) {
            format.unpack_panel(packed, inputs, rows);
        }
    }
    Value::new(TensorType::new(ElementType::F32, [outputs, inputs]), rows.into_iter().map(f64::from))
}
