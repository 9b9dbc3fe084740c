//! The matrices of adapters, which stay on the device between calls.

use std::cell::{Ref, RefCell};
use std::collections::BTreeMap;

use ops::TensorType;
use trace::{Role, Signature};

use crate::GenerateError;
use crate::entry::refuse;
use crate::executor::Executor;

/// The tensors of the arguments with the role `low_rank`, by name.
pub(crate) struct LowRankTensors<B>(RefCell<BTreeMap<String, (TensorType, B)>>);

impl<B> LowRankTensors<B> {
    /// Zeros for the matrices that entry points take, which have one type in all of them.
    pub fn zeros<E: Executor<Buffer = B>>(
        executor: &E,
        signatures: &[Signature],
    ) -> Result<Self, GenerateError> {
        let mut all = BTreeMap::<String, (TensorType, B)>::new();
        for signature in signatures {
            for argument in signature.arguments.iter().filter(|argument| argument.role == Role::LowRank) {
                match all.get(&argument.name) {
                    Some((ty, _)) if *ty == argument.ty => {}
                    Some((ty, _)) => {
                        let why = format!("takes `{argument}`, expected the type {ty} of other entry points");
                        return Err(refuse(signature, why));
                    }
                    None => {
                        let zeros = executor.zeros(&argument.ty)?;
                        all.insert(argument.name.clone(), (argument.ty.clone(), zeros));
                    }
                }
            }
        }
        Ok(Self(RefCell::new(all)))
    }

    pub fn all(&self) -> Ref<'_, BTreeMap<String, (TensorType, B)>> {
        self.0.borrow()
    }

    pub fn set<E: Executor<Buffer = B>>(
        &self,
        executor: &E,
        bytes: impl Fn(&str, &TensorType) -> Vec<u8>,
    ) -> Result<(), GenerateError> {
        for (name, (ty, buffer)) in &mut *self.0.borrow_mut() {
            *buffer = executor.upload(ty, &bytes(name, ty))?;
        }
        Ok(())
    }
}
