//! Creates, copies and changes tensors on devices, without copying numbers to the host. To create, copy or
//! change a tensor, this crate runs a small helper module on the devices. This crate compiles a helper module
//! once for each tensor type, before the first use of the module. Each device runs the helper module on its
//! part of the tensor. Therefore, the types in the helper module are the types of the parts, and not the
//! types of whole tensors.

use std::rc::Rc;

use ops::{ElementType, TensorType};

use super::{Client, PjrtBuffer};
use crate::error::PjrtError;
use crate::ffi::{RawExecutable, RawTensor};
use crate::options::XlaOptions;
use crate::placement::Placement;

impl Client {
    /// On the device, without copying zeros from the host.
    pub fn zeros(&self, placement: &Placement, ty: &TensorType) -> Result<PjrtBuffer, PjrtError> {
        let parts = self.on_parts(zeros(&placement.local(ty)?), placement, &[], &[])?;
        Ok(PjrtBuffer { client: self.clone(), parts, ty: ty.clone(), placement: placement.clone() })
    }

    /// Calls a helper module on each device. `arguments` has the parts of each tensor; the call does not
    /// consume those in `kept`.
    fn on_parts(
        &self,
        module: String,
        placement: &Placement,
        arguments: &[&[RawTensor]],
        kept: &[i64],
    ) -> Result<Vec<RawTensor>, PjrtError> {
        let executable = self.helper(module, placement)?;
        let devices = 0..placement.devices().len();
        let passed = devices.map(|place| arguments.iter().map(|parts| &parts[place]).collect());
        let returned = executable.execute(&passed.collect::<Vec<_>>(), kept, 1);
        let returned = returned.map_err(|status| PjrtError::failed("move a tensor", status))?;
        Ok(returned.into_iter().flatten().collect())
    }

    fn helper(&self, module: String, placement: &Placement) -> Result<Rc<RawExecutable>, PjrtError> {
        let key = (module, placement.devices());
        if let Some(known) = self.0.helpers.borrow().get(&key) {
            return Ok(known.clone());
        }
        let compiled = Rc::new(self.compiled(&key.0, placement.devices(), &XlaOptions::default())?);
        self.0.helpers.borrow_mut().insert(key, compiled.clone());
        Ok(compiled)
    }

    fn row_index(&self, placement: &Placement, row: usize) -> Result<PjrtBuffer, PjrtError> {
        let copies = Placement::copies(placement.devices());
        self.upload(&copies, &TensorType::new(ElementType::I32, []), &(row as i32).to_le_bytes())
    }
}

impl PjrtBuffer {
    /// On the same devices.
    pub fn copied(&self) -> Result<Self, PjrtError> {
        let module = copy(&self.placement.local(&self.ty)?);
        let parts = self.client.on_parts(module, &self.placement, &[&self.parts], &[0])?;
        Ok(self.like(self.ty.clone(), parts))
    }

    /// Only for tensors that one device stores as a whole.
    pub fn reshaped(&self, ty: TensorType) -> Result<Self, PjrtError> {
        if ty.count() != self.ty.count()
            || ty.element != self.ty.element
            || self.placement.devices().len() != 1
        {
            let (expected, found) = (self.ty.bytes(), ty.bytes());
            return Err(PjrtError::ByteCount { ty, expected, found });
        }
        let (from, to) = (self.ty.mlir(), ty.mlir());
        let module = format!(
            "func.func @main(%a: {from}) -> {to} {{
  %0 = stablehlo.reshape %a : ({from}) -> {to}
  return %0 : {to}
}}"
        );
        let parts = self.client.on_parts(module, &self.placement, &[&self.parts], &[0])?;
        Ok(self.like(ty, parts))
    }

    /// A row is a slice at an index of the first axis.
    pub fn rows(&self, first: usize, count: usize) -> Result<Self, PjrtError> {
        let ty = self.ty.with_rows(count);
        self.check_rows(first, &ty)?;
        let index = self.client.row_index(&self.placement, first)?;
        let module = rows(&self.placement.local(&self.ty)?, &self.placement.local(&ty)?);
        let parts = self.client.on_parts(module, &self.placement, &[&self.parts, &index.parts], &[0])?;
        Ok(self.like(ty, parts))
    }

    /// From row `first` on. Reuses the memory of this tensor.
    pub fn put_rows(self, first: usize, rows: &Self) -> Result<Self, PjrtError> {
        self.check_rows(first, &rows.ty)?;
        if self.placement != rows.placement {
            let (expected, found) = (self.placement.devices(), rows.placement.devices());
            return Err(PjrtError::OtherDevices { index: 1, expected, found });
        }
        let index = self.client.row_index(&self.placement, first)?;
        let module = put_rows(&self.placement.local(&self.ty)?, &self.placement.local(&rows.ty)?);
        let arguments = [&self.parts[..], &rows.parts, &index.parts];
        let parts = self.client.on_parts(module, &self.placement, &arguments, &[1])?;
        Ok(self.like(self.ty.clone(), parts))
    }

    fn like(&self, ty: TensorType, parts: Vec<RawTensor>) -> Self {
        Self { client: self.client.clone(), parts, ty, placement: self.placement.clone() }
    }

    /// Fails unless each device stores a part of every row.
    fn check_rows(&self, first: usize, ty: &TensorType) -> Result<(), PjrtError> {
        let count = ty.shape.first().copied().unwrap_or_default();
        if self.placement.divides_rows() {
            return Err(PjrtError::DividedRows { ty: self.ty.clone() });
        }
        let (start, end) = (self.ty.with_rows(first).bytes(), self.ty.with_rows(first + count).bytes());
        if self.ty.with_rows(count) == *ty && end <= self.ty.bytes() {
            Ok(())
        } else {
            Err(PjrtError::Range { ty: self.ty.clone(), start, end })
        }
    }
}

fn zeros(ty: &TensorType) -> String {
    let (tensor, scalar) = (ty.mlir(), TensorType::new(ty.element, []).mlir());
    let zero = match ty.element {
        ElementType::I1 => "false",
        element if element.is_float() => "0.0",
        _ => "0",
    };
    format!(
        "func.func @main() -> {tensor} {{
  %zero = stablehlo.constant dense<{zero}> : {scalar}
  %0 = stablehlo.broadcast_in_dim %zero, dims = [] : ({scalar}) -> {tensor}
  return %0 : {tensor}
}}"
    )
}

/// The caller keeps the argument, so XLA cannot reuse its memory.
fn copy(ty: &TensorType) -> String {
    let tensor = ty.mlir();
    format!("func.func @main(%a: {tensor}) -> {tensor} {{ return %a : {tensor} }}")
}

fn rows(from: &TensorType, rows: &TensorType) -> String {
    let (tensor, part, sizes) = (from.mlir(), rows.mlir(), &rows.shape);
    let (starts, types) = starts(from);
    format!(
        "func.func @main(%a: {tensor}, %first: tensor<i32>) -> {part} {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.dynamic_slice %a, {starts}, sizes = {sizes:?} : ({tensor}, {types}) -> {part}
  return %0 : {part}
}}"
    )
}

fn put_rows(into: &TensorType, rows: &TensorType) -> String {
    let (tensor, part) = (into.mlir(), rows.mlir());
    let (starts, types) = starts(into);
    format!(
        "func.func @main(
    %a: {tensor} {{tf.aliasing_output = 0 : i32}}, %rows: {part}, %first: tensor<i32>
) -> {tensor} {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.dynamic_update_slice %a, %rows, {starts} : ({tensor}, {part}, {types}) -> {tensor}
  return %0 : {tensor}
}}"
    )
}

/// The start indices of a slice from row `%first`, and their types.
fn starts(ty: &TensorType) -> (String, String) {
    let starts: Vec<&str> = (0..ty.rank()).map(|axis| if axis == 0 { "%first" } else { "%zero" }).collect();
    (starts.join(", "), vec!["tensor<i32>"; ty.rank()].join(", "))
}
