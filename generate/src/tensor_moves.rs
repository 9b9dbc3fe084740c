//! Small StableHLO modules that create, copy and change tensors on a device of XLA.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use ops::{ElementType, TensorType};
use pjrt::{Client, Executable, PjrtArgument, PjrtBuffer, PjrtError, XlaOptions};

/// Creates, copies and changes tensors on the device, so that no state passes through the host. A module is
/// compiled for each type of tensor when it is needed.
pub(crate) struct TensorMoves {
    client: Client,
    ordinal: usize,
    compiled: RefCell<HashMap<String, Rc<Executable>>>,
}

impl TensorMoves {
    pub fn new(client: &Client, ordinal: usize) -> Self {
        Self { client: client.clone(), ordinal, compiled: RefCell::default() }
    }

    /// Creates a tensor of zeros.
    pub fn zeros(&self, ty: &TensorType) -> Result<PjrtBuffer, PjrtError> {
        self.run(zeros(ty), Vec::new())
    }

    /// Copies a tensor.
    pub fn copy(&self, buffer: &PjrtBuffer) -> Result<PjrtBuffer, PjrtError> {
        self.run(copy(buffer.ty()), vec![PjrtArgument::Kept(buffer)])
    }

    /// Copies rows from `first` on. The copy has the type `ty`.
    pub fn rows(&self, buffer: &PjrtBuffer, ty: &TensorType, first: usize) -> Result<PjrtBuffer, PjrtError> {
        let first = self.index(first)?;
        self.run(rows(buffer.ty(), ty), vec![PjrtArgument::Kept(buffer), PjrtArgument::Donated(first)])
    }

    /// Replaces the rows from `first` on. The result has the memory of `buffer`.
    pub fn put_rows(
        &self,
        buffer: PjrtBuffer,
        first: usize,
        rows: &PjrtBuffer,
    ) -> Result<PjrtBuffer, PjrtError> {
        let first = self.index(first)?;
        let text = put_rows(buffer.ty(), rows.ty());
        let arguments =
            vec![PjrtArgument::Donated(buffer), PjrtArgument::Kept(rows), PjrtArgument::Donated(first)];
        self.run(text, arguments)
    }

    fn index(&self, index: usize) -> Result<PjrtBuffer, PjrtError> {
        let ty = TensorType::new(ElementType::I32, []);
        self.client.upload(self.ordinal, &ty, &(index as i32).to_le_bytes())
    }

    /// Calls a module that has one result.
    fn run(&self, text: String, arguments: Vec<PjrtArgument<'_>>) -> Result<PjrtBuffer, PjrtError> {
        let known = self.compiled.borrow().get(&text).cloned();
        let executable = match known {
            Some(executable) => executable,
            None => {
                let compiled = self.client.compile(&text, self.ordinal, &XlaOptions::default())?;
                let compiled = Rc::new(compiled);
                self.compiled.borrow_mut().insert(text, compiled.clone());
                compiled
            }
        };
        let mut results = executable.execute(arguments)?;
        match results.pop() {
            Some(result) => Ok(result),
            None => unreachable!("each module here has one result"),
        }
    }
}

fn zeros(ty: &TensorType) -> String {
    let tensor = ty.mlir();
    let scalar = TensorType::new(ty.element, []).mlir();
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

/// The argument is kept, so XLA cannot return its memory.
fn copy(ty: &TensorType) -> String {
    let tensor = ty.mlir();
    format!("func.func @main(%a: {tensor}) -> {tensor} {{ return %a : {tensor} }}")
}

fn rows(from: &TensorType, rows: &TensorType) -> String {
    let (tensor, part) = (from.mlir(), rows.mlir());
    let (starts, types) = starts(from);
    format!(
        "func.func @main(%a: {tensor}, %first: tensor<i32>) -> {part} {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.dynamic_slice %a, {starts}, sizes = {sizes} : ({tensor}, {types}) -> {part}
  return %0 : {part}
}}",
        sizes = format_args!("{:?}", rows.shape)
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

/// The start of a slice that begins at the row `%first`, and the types of the start.
fn starts(ty: &TensorType) -> (String, String) {
    let starts: Vec<&str> = (0..ty.rank()).map(|axis| if axis == 0 { "%first" } else { "%zero" }).collect();
    (starts.join(", "), vec!["tensor<i32>"; ty.rank()].join(", "))
}
