use super::prelude::*;

operation! {
    /// Writes the vectors of new tokens into the slots of a cache. The operands are the cache, the
    /// new vectors, the position `start` and the token count `count`. The attribute `axis` is the
    /// axis of tokens in the new vectors, and the axis of slots in the cache. The operation stores
    /// the first `count` new vectors in the slots from `start` on. All other slots keep their
    /// content. The number `start` is never negative. `start` and `count` are `i32[]`, or `i32[B]`
    /// with one number for each index of the cache's first axis.
    ///
    /// If `ring` is true, the cache is a ring buffer of R slots, and the operation stores the vector for slot
    /// s in slot s mod R. Without a ring buffer, the operation drops vectors for slots after the last slot.
    Append = "append" {
        /// The axis with this index contains the slots in the cache, and the tokens in the new vectors.
        axis: usize,
        /// Whether the slots of the cache are a ring buffer.
        ring: bool,
    }
}

impl Append {
    /// Whether each index of the first axis has its own `start` and `count`.
    pub fn by_row(start: &TensorType) -> bool {
        start.rank() == 1
    }
}

impl Operation for Append {
    const CLASS: OpClass = OpClass::State;
    const IN_PLACE: bool = true;
    const BOUND: Bound = Bound::Exact;
    const EXAMPLES: &'static [Example] = &[
        good(
            "append axis=0 ring=false",
            &["i32[4] 1,2,3,4", "i32[3] 7,8,9", "i32[] 1", "i32[] 2"],
            "i32[4] 1,7,8,4",
        ),
        // The operation drops padding tokens, and tokens for slots after the last slot.
        good(
            "append axis=0 ring=false",
            &["i32[4] 1,2,3,4", "i32[3] 7,8,9", "i32[] 3", "i32[] 2"],
            "i32[4] 1,2,3,7",
        ),
        good(
            "append axis=0 ring=true",
            &["i32[4] 1,2,3,4", "i32[3] 7,8,9", "i32[] 7", "i32[] 2"],
            "i32[4] 8,2,3,7",
        ),
        good(
            "append axis=1 ring=false",
            &["i32[2,3] 1,2,3,4,5,6", "i32[2,2] 7,8,9,0", "i32[2] 1,0", "i32[2] 1,2"],
            "i32[2,3] 1,7,3,9,0,6",
        ),
        good(
            "append axis=2 ring=false",
            &["f32[1,2,9,4]", "f32[1,2,3,4]", "i32[] 7", "i32[] 3"],
            "f32[1,2,9,4]",
        ),
        good(
            "append axis=2 ring=true",
            &["bf16[3,2,5,4]", "bf16[3,2,3,4]", "i32[3] 4,12,0", "i32[3] 3,0,2"],
            "bf16[3,2,5,4]",
        ),
        good(
            "append axis=2 ring=false",
            &["f16[3,2,5,20]", "f16[3,2,1,20]", "i32[3] 4,3,0", "i32[3] 1,0,1"],
            "f16[3,2,5,20]",
        ),
        good(
            "append axis=2 ring=false",
            &["i8[1,3,6,35]", "i8[1,3,4,35]", "i32[] 0", "i32[] 3"],
            "i8[1,3,6,35]",
        ),
        bad("append axis=0 ring=false", &["f32[4]", "f32[5]", "i32[]", "i32[]"], "expected at most 4"),
        bad(
            "append axis=0 ring=false",
            &["f32[4,2]", "f32[1,3]", "i32[]", "i32[]"],
            "must agree except along the axis",
        ),
        bad(
            "append axis=0 ring=false",
            &["f32[4]", "bf16[1]", "i32[]", "i32[]"],
            "must agree except along the axis",
        ),
        bad(
            "append axis=1 ring=false",
            &["f32[2,4]", "f32[2,1]", "i32[2]", "i32[]"],
            "start and count must be alike",
        ),
        bad(
            "append axis=1 ring=false",
            &["f32[2,4]", "f32[2,1]", "i32[3]", "i32[3]"],
            "start must be `i32[]` or have a number for each index of the first axis",
        ),
        bad(
            "append axis=0 ring=false",
            &["f32[4,2]", "f32[1,2]", "i32[4]", "i32[4]"],
            "start must be `i32[]` or have a number for each index of the first axis",
        ),
        bad("append axis=0 ring=false", &["f32[4]", "f32[1]", "i32[]"], "takes 4 operands, found 3"),
    ];

    fn infer(&self, operands: &[&TensorType]) -> Result<TensorType, InferError> {
        let [cache, new, start, count] = arity(Self::NAME, operands)?;
        let slots = axis(Self::NAME, self.axis, cache)?;
        let tokens = axis(Self::NAME, self.axis, new)?;
        let mut like = new.clone();
        like.shape[self.axis] = slots;
        agree(Self::NAME, "types must agree except along the axis", cache, new, like == *cache)?;
        attribute(Self::NAME, "the number of tokens", tokens, format!("at most {slots}"), tokens <= slots)?;
        element(Self::NAME, start, "i32", |e| e == ElementType::I32)?;
        let rule = "start must be `i32[]` or have a number for each index of the first axis";
        let fits = start.rank() == 0 || self.axis > 0 && start.shape == cache.shape[..1];
        agree(Self::NAME, rule, start, cache, fits)?;
        agree(Self::NAME, "start and count must be alike", start, count, start == count)?;
        Ok(cache.clone())
    }

    fn eval(&self, operands: &[&Value], ty: &TensorType) -> Value {
        let [cache, new, start, count] = operands else { unreachable!("inferred") };
        let slots = ty.shape[self.axis] as i64;
        let of_row = |numbers: &Value, index: &[usize]| {
            if Self::by_row(&numbers.ty) { numbers.data[index[0]] as i64 } else { numbers.data[0] as i64 }
        };
        let mut source = vec![0; ty.rank()];
        Value::from_fn(ty.clone(), |index| {
            let token = index[self.axis] as i64 - of_row(start, index);
            let token = if self.ring { token.rem_euclid(slots) } else { token };
            let tokens = of_row(count, index).min(new.ty.shape[self.axis] as i64);
            if !(0..tokens).contains(&token) {
                return cache.at(index);
            }
            source.copy_from_slice(index);
            source[self.axis] = token as usize;
            new.at(&source)
        })
    }
}
