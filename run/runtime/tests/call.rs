//! Calls of compiled modules: values, types, state, and what is refused.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ops::{ElementType, TensorType};
use support::*;
use tracewright_runtime::*;

/// [2, 3] × [3, 4], exact in f32.
const DOT: &str = r#"
func.func @dot(%a: tensor<2x3xf32>, %b: tensor<3x4xf32>) -> tensor<2x4xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}"#;

fn dot_arguments(runtime: &Runtime) -> Vec<VmValue> {
    let b: Vec<f32> = (0..12).map(|i| i as f32).collect();
    vec![tensor(runtime, &[2, 3], &[1., 2., 3., 4., 5., 6.]), tensor(runtime, &[3, 4], &b)]
}

#[test]
fn dot_general_is_exact_on_every_device() {
    let vmfb = vmfb(DOT);
    for device in [
        Device::LocalSync,
        Device::LocalTask { workers: 0 },
        Device::LocalTask { workers: 1 },
        Device::LocalTask { workers: 10_000 },
    ] {
        let runtime = Runtime::new(device).unwrap();
        let program = VmModule::load(&runtime, &vmfb, &[]).unwrap();
        assert_eq!(program.functions().collect::<Vec<_>>(), ["dot"]);
        let result = call(&program, "dot", dot_arguments(&runtime));
        assert_eq!(result, [32., 38., 44., 50., 68., 83., 98., 113.], "{device:?}");
        let counted = Transfers { host_to_device: 4 * (6 + 12), device_to_host: 4 * 8 };
        assert_eq!(runtime.transfers(), counted);
    }
}

#[test]
fn calls_go_on_while_other_threads_open_devices() {
    let vmfb = vmfb(DOT);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    Runtime::new(Device::LocalSync).unwrap();
                }
            });
        }
        let called = scope.spawn(|| {
            let runtime = Runtime::new(Device::LocalSync).unwrap();
            let program = VmModule::load(&runtime, &vmfb, &[]).unwrap();
            for _ in 0..2000 {
                let result = call(&program, "dot", dot_arguments(&runtime));
                assert_eq!(result, [32., 38., 44., 50., 68., 83., 98., 113.]);
            }
        });
        let called = called.join();
        done.store(true, Ordering::Relaxed);
        called.unwrap();
    });
}

/// Eight slots, one of which is written per call; the sum of all says what the state is.
const STATE: &str = r#"
func.func @step(%state: tensor<8x4xf32>, %row: tensor<1x4xf32>, %at: i32) -> (tensor<8x4xf32>, tensor<f32>) {
  %index = tensor.from_elements %at : tensor<i32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %none = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dynamic_update_slice %state, %row, %index, %zero
    : (tensor<8x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<8x4xf32>
  %1 = stablehlo.reduce(%0 init: %none) applies stablehlo.add across dimensions = [0, 1]
    : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  return %0, %1 : tensor<8x4xf32>, tensor<f32>
}"#;

#[test]
fn moved_state_is_updated_in_place() {
    let vmfb = vmfb(STATE);
    for device in [Device::LocalSync, Device::LocalTask { workers: 2 }] {
        let runtime = Runtime::new(device).unwrap();
        let step = VmModule::load(&runtime, &vmfb, &[]).unwrap().function("step").unwrap();
        let mut state = Buffer::zeros(&runtime, &f32s(&[8, 4])).unwrap();
        let mut expected = vec![0f32; 32];
        let address = state.address();
        for i in 0..24usize {
            let row: Vec<f32> = (0..4).map(|j| (i * 4 + j) as f32).collect();
            expected[i % 8 * 4..][..4].copy_from_slice(&row);
            let arguments = vec![state.into(), tensor(&runtime, &[1, 4], &row), (i as i32 % 8).into()];
            let mut results = step.call(arguments).unwrap().into_iter();
            state = results.next().unwrap().buffer().unwrap();
            let sum = results.next().unwrap().buffer().unwrap();
            assert_eq!(floats(&sum.read().unwrap()), [expected.iter().sum::<f32>()]);
        }
        assert_eq!(floats(&state.read().unwrap()), expected);
        assert_eq!(state.address(), address, "one allocation serves all calls");
    }
}

/// A call with two of five rows changes those in place if they begin where kernels expect it, and else through a copy.
#[test]
fn a_call_takes_some_rows_of_a_tensor() {
    for (columns, in_place) in [(64, true), (48, false)] {
        let (all, two) = (f32s(&[5, columns]), f32s(&[2, columns]));
        let ty = two.mlir();
        let vmfb = vmfb(&format!(
            r#"
func.func @step(%rows: {ty}, %new: tensor<2x1xf32>, %at: i32) -> {ty} {{
  %index = tensor.from_elements %at : tensor<i32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %0 = stablehlo.dynamic_update_slice %rows, %new, %zero, %index
    : ({ty}, tensor<2x1xf32>, tensor<i32>, tensor<i32>) -> {ty}
  return %0 : {ty}
}}"#
        ));
        let runtime = local();
        let step = VmModule::load(&runtime, &vmfb, &[]).unwrap().function("step").unwrap();
        let mut state = Buffer::zeros(&runtime, &all).unwrap();
        let mut expected = vec![0f32; 5 * columns];
        for (i, first) in [3, 0, 1, 3].into_iter().enumerate() {
            let rows = state.rows(first, 2).unwrap();
            let (place, address) = (state.address(), rows.address());
            let is_part = address == (place.0, place.1 + first * columns * 4);
            assert_eq!(is_part, in_place || first == 0, "{columns} columns from row {first}");
            let new = [i as f32 + 1.0, -(i as f32)];
            let arguments = vec![rows.into(), tensor(&runtime, &[2, 1], &new), (i as i32).into()];
            let changed = step.call(arguments).unwrap().remove(0).buffer().unwrap();
            assert_eq!(changed.address(), address, "the call changes its argument");
            state.put_rows(first, changed).unwrap();
            (0..2).for_each(|row| expected[(first + row) * columns + i] = new[row]);
            assert_eq!(floats(&state.read().unwrap()), expected);
        }
        assert!(state.rows(4, 2).is_err());
    }
}

#[test]
fn every_element_type_goes_in_and_comes_out() {
    let functions = ElementType::ALL.map(|element| {
        let ty = TensorType::new(element, [2, 4]).mlir();
        format!(
            "func.func @{element}(%a: {ty}) -> {ty} {{ \
               %0 = stablehlo.reverse %a, dims = [1] : {ty} return %0 : {ty} }}\n"
        )
    });
    let runtime = local();
    let supported = ElementType::ALL.into_iter().zip(functions).filter(|(e, _)| *e != ElementType::I4);
    let (elements, text): (Vec<_>, String) = supported.unzip();
    let program = VmModule::load(&runtime, vmfb(&text), &[]).unwrap();
    for element in elements {
        let ty = TensorType::new(element, [2, 4]);
        let width = ty.bytes() / 8;
        // Small positive numbers in every format; a truth value is zero or one.
        let values: Vec<u8> = (0..ty.bytes())
            .map(|i| if element == ElementType::I1 { (i % 3 == 0) as u8 } else { i as u8 + 1 })
            .collect();
        let reversed: Vec<u8> = values
            .chunks_exact(4 * width)
            .flat_map(|row| row.chunks_exact(width).rev().flatten().copied())
            .collect();
        let buffer = Buffer::from_bytes(&runtime, &ty, &values).unwrap();
        assert_eq!(buffer.read().unwrap(), values, "{element}");
        let results = program.function(element.name()).unwrap().call(vec![buffer.into()]).unwrap();
        let result = results.into_iter().next().unwrap().buffer().unwrap();
        assert_eq!(result.ty(), &ty);
        assert_eq!(result.read().unwrap(), reversed, "{element}");
    }
}

#[test]
fn scalars_and_empty_tensors() {
    let text = r#"
func.func @next(%a: i32) -> i32 { %one = arith.constant 1 : i32  %0 = arith.addi %a, %one : i32  return %0 : i32 }
func.func @empty(%a: tensor<0x4xf32>) -> tensor<0x4xf32> { return %a : tensor<0x4xf32> }"#;
    let runtime = local();
    let program = VmModule::load(&runtime, vmfb(text), &[]).unwrap();
    let results = program.function("next").unwrap().call(vec![(-42).into()]).unwrap();
    assert_eq!(results.into_iter().next().unwrap().i32(), Some(-41));
    assert_eq!(call(&program, "empty", vec![tensor(&runtime, &[0, 4], &[])]), Vec::<f32>::new());
}

#[test]
fn results_share_no_memory() {
    let text = r#"
func.func @twice(%a: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.add %a, %a : tensor<4xf32>
  return %0, %0 : tensor<4xf32>, tensor<4xf32>
}
func.func @zeros() -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.constant dense<0.0> : tensor<4xf32>
  return %0, %0 : tensor<4xf32>, tensor<4xf32>
}
func.func @table() -> tensor<4xf32> {
  %0 = stablehlo.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func @set(%a: tensor<4xf32>, %at: i32) -> tensor<4xf32> {
  %i = tensor.from_elements %at : tensor<i32>
  %v = stablehlo.constant dense<9.0> : tensor<1xf32>
  %0 = stablehlo.dynamic_update_slice %a, %v, %i : (tensor<4xf32>, tensor<1xf32>, tensor<i32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}"#;
    let runtime = local();
    let program = VmModule::load(&runtime, vmfb(text), &[]).unwrap();
    let buffers = |name: &str, arguments| -> Vec<Buffer> {
        let results = program.function(name).unwrap().call(arguments).unwrap();
        results.into_iter().filter_map(VmValue::buffer).collect()
    };
    for (mut pair, value) in
        [(buffers("twice", vec![tensor(&runtime, &[4], &[1.; 4])]), 2.), (buffers("zeros", vec![]), 0.)]
    {
        let (second, first) = (pair.pop().unwrap(), pair.pop().unwrap());
        let first = call(&program, "set", vec![first.into(), 2.into()]);
        assert_eq!(first, [value, value, 9., value]);
        assert_eq!(floats(&second.read().unwrap()), [value; 4]);
    }
    // A constant of the program stays what it is.
    for _ in 0..2 {
        let table = buffers("table", vec![]).pop().unwrap();
        assert_eq!(floats(&table.read().unwrap()), [1., 2., 3., 4.]);
        assert_eq!(call(&program, "set", vec![table.into(), 0.into()]), [9., 2., 3., 4.]);
    }
    // And it outlives the program.
    let table = buffers("table", vec![]).pop().unwrap();
    drop(program);
    assert_eq!(floats(&table.read().unwrap()), [1., 2., 3., 4.]);
}

/// The message of a call that has to fail.
fn refused(function: &VmFunction, arguments: Vec<VmValue>) -> String {
    function.call(arguments).unwrap_err().to_string()
}

#[test]
fn wrong_arguments_are_refused_and_the_program_goes_on() {
    let runtime = local();
    let program = VmModule::load(&runtime, vmfb(DOT), &[]).unwrap();
    let dot = program.function("dot").unwrap();

    let error = program.function("dto").err().unwrap();
    assert_eq!(error.to_string(), "the module has no function `dto`; the module has `dot`");

    let error = refused(&dot, vec![tensor(&runtime, &[2, 3], &[0.; 6])]);
    assert!(error.starts_with("function `dot` takes 2 arguments, found 1: `sync func @dot("), "{error}");

    let mut arguments = dot_arguments(&runtime);
    arguments[1] = tensor(&runtime, &[4, 3], &[0.; 12]);
    let error = refused(&dot, arguments);
    assert!(error.contains("call of `dot` failed: iree says InvalidArgument: input1 shape"), "{error}");

    let mut arguments = dot_arguments(&runtime);
    let ty = TensorType::new(ElementType::I32, [3, 4]);
    arguments[1] = Buffer::zeros(&runtime, &ty).unwrap().into();
    let error = refused(&dot, arguments);
    assert!(error.contains("input1") && error.contains("element type"), "{error}");

    let mut arguments = dot_arguments(&runtime);
    arguments[1] = 7.into();
    let error = dot.call(arguments).unwrap_err();
    assert!(matches!(error, RuntimeError::Call { .. }), "{error}");

    let mut arguments = dot_arguments(&runtime);
    arguments[1] = tensor(&local(), &[3, 4], &[0.; 12]);
    assert_eq!(refused(&dot, arguments), "argument 1 of function `dot` belongs to another runtime");

    assert_eq!(call(&program, "dot", dot_arguments(&runtime))[0], 32.);
}

#[test]
fn buffers_of_a_wrong_size_are_refused() {
    let runtime = local();
    let error = Buffer::from_bytes(&runtime, &f32s(&[2, 3]), &[0; 23]).unwrap_err();
    assert_eq!(error.to_string(), "a tensor of the type `f32[2,3]` takes 24 bytes, found 23");
    let buffer = Buffer::zeros(&runtime, &f32s(&[2, 3])).unwrap();
    assert!(matches!(buffer.read_into(&mut [0; 25]), Err(RuntimeError::Length { found: 25, .. })));
    let huge = Buffer::zeros(&runtime, &f32s(&[usize::MAX, 2])).unwrap_err();
    assert!(matches!(huge, RuntimeError::TooLarge(_)), "{huge}");
    let large = Buffer::zeros(&runtime, &f32s(&[1 << 50])).unwrap_err();
    assert!(matches!(large, RuntimeError::Buffer { action: "allocate", .. }), "{large}");
}

/// More calls than a device keeps account of at once.
#[test]
fn what_a_watched_device_executes_is_counted_and_timed() {
    const CALLS: u64 = 3000;
    let vmfb = vmfb(DOT);
    let runtime = Runtime::new(Device::Watched { workers: 2 }).unwrap();
    assert_eq!(runtime.executed().unwrap(), []);
    let program = VmModule::load(&runtime, &vmfb, &[]).unwrap();
    (0..CALLS).for_each(|_| drop(call(&program, "dot", dot_arguments(&runtime))));
    let executed = runtime.executed().unwrap();
    // Its operands are packed for the product.
    assert!(executed.iter().all(|one| one.calls == CALLS && !one.time.is_zero()), "{executed:?}");
    let products = executed.iter().filter(|one| one.name.starts_with("dot_dispatch"));
    assert_eq!(products.count(), 1, "{executed:?}");

    let other = Runtime::new(Device::LocalTask { workers: 2 }).unwrap();
    assert!(matches!(other.executed(), Err(RuntimeError::Watch(_))));
}
