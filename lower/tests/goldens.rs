//! Compares the primitive operations that each converter, each function and each data movement
//! produces with golden texts. All extents differ, so that a swapped axis is visible.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use expect_test::{Expect, expect};
use ops::ops::{BinaryKind, ReduceKind};
use ops::{Attribute as _, InferError};
use support::*;
use targets::{ShardRule, Target};
use trace::{
    Builder, Function, FunctionId, NodeId, NodeKind, Output, Parameter, Provenance, Quantization, Trace,
    functions,
};
use tracewright_lower::{EntryShards, Implementations, Shards, Weights, expand, leaves_experts_whole, xla};

fn check_op(op: &str, operands: &[&str], expected: Expect) {
    expected.assert_eq(&body(&of_op(op, operands)));
}

type OfOne = fn(&mut Builder<'_>, NodeId) -> Result<NodeId, InferError>;

fn check_function(x: &str, function: OfOne, expected: Expect) {
    expected.assert_eq(&body(&entry(&[x], |b, x| Ok(vec![function(b, x[0])?]))));
}

#[test]
fn s5_permute() {
    let trace = of_op("permute order=[0,2,1]", &["f32[2,3,4]"]);
    assert!(body(&trace).contains("stablehlo.transpose %arg0, dims = [0, 2, 1]"));
    check_op(
        "permute order=[0,2,1]",
        &["f32[2,3,4]"],
        expect![[r#"
        func.func @main(%arg0: tensor<2x3x4xf32>) -> (tensor<2x4x3xf32>) {
          %0 = stablehlo.transpose %arg0, dims = [0, 2, 1] : (tensor<2x3x4xf32>) -> tensor<2x4x3xf32>
          return %0 : tensor<2x4x3xf32>
        }
    "#]],
    );
}

#[test]
fn s6_narrow() {
    check_op(
        "narrow axis=1 start=2 length=4",
        &["f32[2,8]"],
        expect![[r#"
        func.func @main(%arg0: tensor<2x8xf32>) -> (tensor<2x4xf32>) {
          %0 = stablehlo.slice %arg0 [0:2, 2:6] : (tensor<2x8xf32>) -> tensor<2x4xf32>
          return %0 : tensor<2x4xf32>
        }
    "#]],
    );
    check_op(
        "dynamic_slice axis=1 length=2",
        &["f32[3,5,4]", "i32[]"],
        expect![[r#"
            func.func @main(%arg0: tensor<3x5x4xf32>, %arg1: tensor<i32>) -> (tensor<3x2x4xf32>) {
              %0 = stablehlo.constant dense<0> : tensor<i32>
              %1 = stablehlo.dynamic_slice %arg0, %0, %arg1, %0, sizes = [3, 2, 4] : (tensor<3x5x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x2x4xf32>
              return %1 : tensor<3x2x4xf32>
            }
        "#]],
    );
    check_op(
        "dynamic_update_slice axis=1",
        &["f32[3,5,4]", "f32[3,2,4]", "i32[]"],
        expect![[r#"
            func.func @main(%arg0: tensor<3x5x4xf32>, %arg1: tensor<3x2x4xf32>, %arg2: tensor<i32>) -> (tensor<3x5x4xf32>) {
              %0 = stablehlo.constant dense<0> : tensor<i32>
              %1 = stablehlo.dynamic_update_slice %arg0, %arg1, %0, %arg2, %0 : (tensor<3x5x4xf32>, tensor<3x2x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<3x5x4xf32>
              return %1 : tensor<3x5x4xf32>
            }
        "#]],
    );
}

#[test]
fn s7_split_in_2_with_relu_on_chunk_1() {
    let trace = entry(&["f32[3,8]"], |b, x| {
        let chunks = functions::split(b, x[0], 1, &[3, 5])?;
        let relu = b.with_scalar(BinaryKind::Maximum, chunks[1], 0.0)?;
        Ok(vec![chunks[0], relu])
    });
    expect![[r#"
        func.func @main(%arg0: tensor<3x8xf32>) -> (tensor<3x3xf32>, tensor<3x5xf32>) {
          %0 = stablehlo.slice %arg0 [0:3, 0:3] : (tensor<3x8xf32>) -> tensor<3x3xf32>
          %1 = stablehlo.slice %arg0 [0:3, 3:8] : (tensor<3x8xf32>) -> tensor<3x5xf32>
          %2 = stablehlo.constant dense<0x00000000> : tensor<3x5xf32>
          %3 = stablehlo.maximum %1, %2 : tensor<3x5xf32>
          return %0, %3 : tensor<3x3xf32>, tensor<3x5xf32>
        }
    "#]]
    .assert_eq(&body(&trace));
}

#[test]
fn s14_gather_by_indices_of_rank_0_to_3() {
    check_op(
        "gather",
        &["f32[7,4]", "i32[1]"],
        expect![[r#"
        func.func @main(%arg0: tensor<7x4xf32>, %arg1: tensor<1xi32>) -> (tensor<1x4xf32>) {
          %0 = "stablehlo.gather"(%arg0, %arg1) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 4>, indices_are_sorted = false}> : (tensor<7x4xf32>, tensor<1xi32>) -> tensor<1x4xf32>
          return %0 : tensor<1x4xf32>
        }
    "#]],
    );
    let trace = entry(&["f32[7,4]", "i32[2,3]", "i32[2,3,5]"], |b, x| {
        let scalar = b.op(op("constant value=i32[] splat 3.0"), &[])?;
        [scalar, x[1], x[2]].iter().map(|index| b.op(op("gather"), &[x[0], *index])).collect()
    });
    expect![[r#"
        func.func @main(%arg0: tensor<7x4xf32>, %arg1: tensor<2x3xi32>, %arg2: tensor<2x3x5xi32>) -> (tensor<4xf32>, tensor<2x3x4xf32>, tensor<2x3x5x4xf32>) {
          %0 = stablehlo.constant dense<3> : tensor<i32>
          %1 = stablehlo.reshape %0 : (tensor<i32>) -> tensor<1xi32>
          %2 = "stablehlo.gather"(%arg0, %1) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 4>, indices_are_sorted = false}> : (tensor<7x4xf32>, tensor<1xi32>) -> tensor<1x4xf32>
          %3 = stablehlo.reshape %2 : (tensor<1x4xf32>) -> tensor<4xf32>
          %4 = "stablehlo.gather"(%arg0, %arg1) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, slice_sizes = array<i64: 1, 4>, indices_are_sorted = false}> : (tensor<7x4xf32>, tensor<2x3xi32>) -> tensor<2x3x4xf32>
          %5 = "stablehlo.gather"(%arg0, %arg2) <{dimension_numbers = #stablehlo.gather<offset_dims = [3], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 3>, slice_sizes = array<i64: 1, 4>, indices_are_sorted = false}> : (tensor<7x4xf32>, tensor<2x3x5xi32>) -> tensor<2x3x5x4xf32>
          return %3, %4, %5 : tensor<4xf32>, tensor<2x3x4xf32>, tensor<2x3x5x4xf32>
        }
    "#]].assert_eq(&body(&trace));
}

#[test]
fn s17_concatenate_has_the_full_type() {
    check_op(
        "concatenate axis=1",
        &["f32[2,3]", "f32[2,5]", "f32[2,1]"],
        expect![[r#"
        func.func @main(%arg0: tensor<2x3xf32>, %arg1: tensor<2x5xf32>, %arg2: tensor<2x1xf32>) -> (tensor<2x9xf32>) {
          %0 = stablehlo.concatenate %arg0, %arg1, %arg2, dim = 1 : (tensor<2x3xf32>, tensor<2x5xf32>, tensor<2x1xf32>) -> tensor<2x9xf32>
          return %0 : tensor<2x9xf32>
        }
    "#]],
    );
}

#[test]
fn s18_batched_product_with_shared_leading_axes() {
    check_op(
        "dot_general left_batch=[0,1] right_batch=[0,1] left_contract=[3] right_contract=[2] element=f32",
        &["f32[2,3,4,5]", "f32[2,3,5,6]"],
        expect![[r#"
            func.func @main(%arg0: tensor<2x3x4x5xf32>, %arg1: tensor<2x3x5x6xf32>) -> (tensor<2x3x4x6xf32>) {
              %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2] : (tensor<2x3x4x5xf32>, tensor<2x3x5x6xf32>) -> tensor<2x3x4x6xf32>
              return %0 : tensor<2x3x4x6xf32>
            }
        "#]],
    );
}

#[test]
fn reductions_and_comparisons() {
    check_op(
        "reduce kind=maximum axes=[0,2]",
        &["f32[2,3,4]"],
        expect![[r#"
        func.func @main(%arg0: tensor<2x3x4xf32>) -> (tensor<3xf32>) {
          %0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
          %1 = stablehlo.reduce(%arg0 init: %0) applies stablehlo.maximum across dimensions = [0, 2] : (tensor<2x3x4xf32>, tensor<f32>) -> tensor<3xf32>
          return %1 : tensor<3xf32>
        }
    "#]],
    );
    check_op(
        "reduce kind=minimum axes=[1]",
        &["i32[2,3]"],
        expect![[r#"
        func.func @main(%arg0: tensor<2x3xi32>) -> (tensor<2xi32>) {
          %0 = stablehlo.constant dense<2147483647> : tensor<i32>
          %1 = stablehlo.reduce(%arg0 init: %0) applies stablehlo.minimum across dimensions = [1] : (tensor<2x3xi32>, tensor<i32>) -> tensor<2xi32>
          return %1 : tensor<2xi32>
        }
    "#]],
    );
    check_op(
        "compare direction=LE",
        &["i8[2]", "i8[2]"],
        expect![[r#"
        func.func @main(%arg0: tensor<2xi8>, %arg1: tensor<2xi8>) -> (tensor<2xi1>) {
          %0 = stablehlo.compare LE, %arg0, %arg1, SIGNED : (tensor<2xi8>, tensor<2xi8>) -> tensor<2xi1>
          return %0 : tensor<2xi1>
        }
    "#]],
    );
    check_op(
        "reduce_precision to=bf16",
        &["f32[2]"],
        expect![[r#"
        func.func @main(%arg0: tensor<2xf32>) -> (tensor<2xf32>) {
          %0 = stablehlo.reduce_precision %arg0, format = e8m7 : tensor<2xf32>
          return %0 : tensor<2xf32>
        }
    "#]],
    );
    let reduced: OfOne = |b, x| b.reduced_along(ReduceKind::Add, x, 1);
    check_function(
        "f32[2,3,4]",
        reduced,
        expect![[r#"
        func.func @main(%arg0: tensor<2x3x4xf32>) -> (tensor<2x3x4xf32>) {
          %0 = stablehlo.constant dense<0x00000000> : tensor<f32>
          %1 = stablehlo.reduce(%arg0 init: %0) applies stablehlo.add across dimensions = [1] : (tensor<2x3x4xf32>, tensor<f32>) -> tensor<2x4xf32>
          %2 = stablehlo.broadcast_in_dim %1, dims = [0, 2] : (tensor<2x4xf32>) -> tensor<2x3x4xf32>
          return %2 : tensor<2x3x4xf32>
        }
    "#]],
    );
}

#[test]
fn constants() {
    let trace = entry(&[], |b, _| {
        [
            "constant value=f32[2,3] splat 1.5",
            "constant value=f32[2] splat bits 0x7fc01234",
            "constant value=bf16[2] dense 0x803f0040",
            "constant value=i1[2,1] dense 0x0100",
            "constant value=i4[3] dense 0xf107",
            "constant value=i8[2] dense 0x01ff",
            "constant value=f32[1,2] rope_table cos scaling=1.0 inv_freq=[1.0,0.5]",
            "constant value=f32[0,2] dense 0x",
        ]
        .iter()
        .map(|text| b.op(op(text), &[]))
        .collect()
    });
    expect![[r#"
        func.func @main() -> (tensor<2x3xf32>, tensor<2xf32>, tensor<2xbf16>, tensor<2x1xi1>, tensor<3xi4>, tensor<2xi8>, tensor<1x2xf32>, tensor<0x2xf32>) {
          %0 = stablehlo.constant dense<0x3FC00000> : tensor<2x3xf32>
          %1 = stablehlo.constant dense<0x7FC01234> : tensor<2xf32>
          %2 = stablehlo.constant dense<"0x803f0040"> : tensor<2xbf16>
          %3 = stablehlo.constant dense<[[true], [false]]> : tensor<2x1xi1>
          %4 = stablehlo.constant dense<[1, -1, 7]> : tensor<3xi4>
          %5 = stablehlo.constant dense<"0x01ff"> : tensor<2xi8>
          %6 = stablehlo.constant dense<"0x0000803f0000803f"> : tensor<1x2xf32>
          %7 = stablehlo.constant dense<> : tensor<0x2xf32>
          return %0, %1, %2, %3, %4, %5, %6, %7 : tensor<2x3xf32>, tensor<2xf32>, tensor<2xbf16>, tensor<2x1xi1>, tensor<3xi4>, tensor<2xi8>, tensor<1x2xf32>, tensor<0x2xf32>
        }
    "#]].assert_eq(&body(&trace));
}

#[test]
fn linear() {
    check_op(
        "linear",
        &["f32[2,3,4]", "f32[5,4]"],
        expect![[r#"
        func.func @main(%arg0: tensor<2x3x4xf32>, %arg1: tensor<5x4xf32>) -> (tensor<2x3x5xf32>) {
          %0 = stablehlo.reshape %arg0 : (tensor<2x3x4xf32>) -> tensor<6x4xf32>
          %1 = stablehlo.dot_general %0, %arg1, contracting_dims = [1] x [1] : (tensor<6x4xf32>, tensor<5x4xf32>) -> tensor<6x5xf32>
          %2 = stablehlo.reshape %1 : (tensor<6x5xf32>) -> tensor<2x3x5xf32>
          return %2 : tensor<2x3x5xf32>
        }
    "#]],
    );
    check_op(
        "linear",
        &["f32[3,4]", "f32[5,4]", "f32[5]"],
        expect![[r#"
        func.func @main(%arg0: tensor<3x4xf32>, %arg1: tensor<5x4xf32>, %arg2: tensor<5xf32>) -> (tensor<3x5xf32>) {
          %0 = stablehlo.reshape %arg0 : (tensor<3x4xf32>) -> tensor<3x4xf32>
          %1 = stablehlo.dot_general %0, %arg1, contracting_dims = [1] x [1] : (tensor<3x4xf32>, tensor<5x4xf32>) -> tensor<3x5xf32>
          %2 = stablehlo.broadcast_in_dim %arg2, dims = [1] : (tensor<5xf32>) -> tensor<3x5xf32>
          %3 = stablehlo.add %1, %2 : tensor<3x5xf32>
          %4 = stablehlo.reshape %3 : (tensor<3x5xf32>) -> tensor<3x5xf32>
          return %4 : tensor<3x5xf32>
        }
    "#]],
    );
    check_op(
        "linear",
        &["bf16[3,4]", "bf16[5,4]", "bf16[5]"],
        expect![[r#"
        func.func @main(%arg0: tensor<3x4xbf16>, %arg1: tensor<5x4xbf16>, %arg2: tensor<5xbf16>) -> (tensor<3x5xbf16>) {
          %0 = stablehlo.reshape %arg0 : (tensor<3x4xbf16>) -> tensor<3x4xbf16>
          %1 = stablehlo.dot_general %0, %arg1, contracting_dims = [1] x [1] : (tensor<3x4xbf16>, tensor<5x4xbf16>) -> tensor<3x5xf32>
          %2 = stablehlo.convert %arg2 : (tensor<5xbf16>) -> tensor<5xf32>
          %3 = stablehlo.broadcast_in_dim %2, dims = [1] : (tensor<5xf32>) -> tensor<3x5xf32>
          %4 = stablehlo.add %1, %3 : tensor<3x5xf32>
          %5 = stablehlo.convert %4 : (tensor<3x5xf32>) -> tensor<3x5xbf16>
          %6 = stablehlo.reshape %5 : (tensor<3x5xbf16>) -> tensor<3x5xbf16>
          return %6 : tensor<3x5xbf16>
        }
    "#]],
    );
}

#[test]
fn rms_norm() {
    check_op(
        "rms_norm epsilon=1e-5 style=scale",
        &["f32[3,4]", "f32[4]"],
        expect![[r#"
        func.func @main(%arg0: tensor<3x4xf32>, %arg1: tensor<4xf32>) -> (tensor<3x4xf32>) {
          %0 = stablehlo.multiply %arg0, %arg0 : tensor<3x4xf32>
          %1 = stablehlo.constant dense<0x00000000> : tensor<f32>
          %2 = stablehlo.reduce(%0 init: %1) applies stablehlo.add across dimensions = [1] : (tensor<3x4xf32>, tensor<f32>) -> tensor<3xf32>
          %3 = stablehlo.broadcast_in_dim %2, dims = [0] : (tensor<3xf32>) -> tensor<3x4xf32>
          %4 = stablehlo.constant dense<0x40800000> : tensor<3x4xf32>
          %5 = stablehlo.divide %3, %4 : tensor<3x4xf32>
          %6 = stablehlo.constant dense<0x3727C5AC> : tensor<3x4xf32>
          %7 = stablehlo.add %5, %6 : tensor<3x4xf32>
          %8 = stablehlo.rsqrt %7 : tensor<3x4xf32>
          %9 = stablehlo.multiply %arg0, %8 : tensor<3x4xf32>
          %10 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<4xf32>) -> tensor<3x4xf32>
          %11 = stablehlo.multiply %9, %10 : tensor<3x4xf32>
          return %11 : tensor<3x4xf32>
        }
    "#]],
    );
    check_op(
        "rms_norm epsilon=1e-5 style=scale",
        &["bf16[3,4]", "bf16[4]"],
        expect![[r#"
        func.func @main(%arg0: tensor<3x4xbf16>, %arg1: tensor<4xbf16>) -> (tensor<3x4xbf16>) {
          %0 = stablehlo.convert %arg0 : (tensor<3x4xbf16>) -> tensor<3x4xf32>
          %1 = stablehlo.multiply %0, %0 : tensor<3x4xf32>
          %2 = stablehlo.constant dense<0x00000000> : tensor<f32>
          %3 = stablehlo.reduce(%1 init: %2) applies stablehlo.add across dimensions = [1] : (tensor<3x4xf32>, tensor<f32>) -> tensor<3xf32>
          %4 = stablehlo.broadcast_in_dim %3, dims = [0] : (tensor<3xf32>) -> tensor<3x4xf32>
          %5 = stablehlo.constant dense<0x40800000> : tensor<3x4xf32>
          %6 = stablehlo.divide %4, %5 : tensor<3x4xf32>
          %7 = stablehlo.constant dense<0x3727C5AC> : tensor<3x4xf32>
          %8 = stablehlo.add %6, %7 : tensor<3x4xf32>
          %9 = stablehlo.rsqrt %8 : tensor<3x4xf32>
          %10 = stablehlo.multiply %0, %9 : tensor<3x4xf32>
          %11 = stablehlo.convert %10 : (tensor<3x4xf32>) -> tensor<3x4xbf16>
          %12 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<4xbf16>) -> tensor<3x4xbf16>
          %13 = stablehlo.multiply %11, %12 : tensor<3x4xbf16>
          return %13 : tensor<3x4xbf16>
        }
    "#]],
    );
    check_op(
        "rms_norm epsilon=1e-6 style=one_plus",
        &["bf16[3,4]", "bf16[4]"],
        expect![[r#"
        func.func @main(%arg0: tensor<3x4xbf16>, %arg1: tensor<4xbf16>) -> (tensor<3x4xbf16>) {
          %0 = stablehlo.convert %arg0 : (tensor<3x4xbf16>) -> tensor<3x4xf32>
          %1 = stablehlo.multiply %0, %0 : tensor<3x4xf32>
          %2 = stablehlo.constant dense<0x00000000> : tensor<f32>
          %3 = stablehlo.reduce(%1 init: %2) applies stablehlo.add across dimensions = [1] : (tensor<3x4xf32>, tensor<f32>) -> tensor<3xf32>
          %4 = stablehlo.broadcast_in_dim %3, dims = [0] : (tensor<3xf32>) -> tensor<3x4xf32>
          %5 = stablehlo.constant dense<0x40800000> : tensor<3x4xf32>
          %6 = stablehlo.divide %4, %5 : tensor<3x4xf32>
          %7 = stablehlo.constant dense<0x358637BD> : tensor<3x4xf32>
          %8 = stablehlo.add %6, %7 : tensor<3x4xf32>
          %9 = stablehlo.rsqrt %8 : tensor<3x4xf32>
          %10 = stablehlo.multiply %0, %9 : tensor<3x4xf32>
          %11 = stablehlo.convert %arg1 : (tensor<4xbf16>) -> tensor<4xf32>
          %12 = stablehlo.constant dense<0x3F800000> : tensor<4xf32>
          %13 = stablehlo.add %11, %12 : tensor<4xf32>
          %14 = stablehlo.broadcast_in_dim %13, dims = [1] : (tensor<4xf32>) -> tensor<3x4xf32>
          %15 = stablehlo.multiply %10, %14 : tensor<3x4xf32>
          %16 = stablehlo.convert %15 : (tensor<3x4xf32>) -> tensor<3x4xbf16>
          return %16 : tensor<3x4xbf16>
        }
    "#]],
    );
}

#[test]
fn rope() {
    check_op(
        "rope axis=1 layout=half_split",
        &["f32[2,3,5,8]", "f32[3,4]", "f32[3,4]"],
        expect![[r#"
        func.func @main(%arg0: tensor<2x3x5x8xf32>, %arg1: tensor<3x4xf32>, %arg2: tensor<3x4xf32>) -> (tensor<2x3x5x8xf32>) {
          %0 = stablehlo.slice %arg0 [0:2, 0:3, 0:5, 0:4] : (tensor<2x3x5x8xf32>) -> tensor<2x3x5x4xf32>
          %1 = stablehlo.slice %arg0 [0:2, 0:3, 0:5, 4:8] : (tensor<2x3x5x8xf32>) -> tensor<2x3x5x4xf32>
          %2 = stablehlo.broadcast_in_dim %arg1, dims = [1, 3] : (tensor<3x4xf32>) -> tensor<2x3x5x4xf32>
          %3 = stablehlo.broadcast_in_dim %arg2, dims = [1, 3] : (tensor<3x4xf32>) -> tensor<2x3x5x4xf32>
          %4 = stablehlo.multiply %0, %2 : tensor<2x3x5x4xf32>
          %5 = stablehlo.multiply %1, %3 : tensor<2x3x5x4xf32>
          %6 = stablehlo.subtract %4, %5 : tensor<2x3x5x4xf32>
          %7 = stablehlo.multiply %1, %2 : tensor<2x3x5x4xf32>
          %8 = stablehlo.multiply %0, %3 : tensor<2x3x5x4xf32>
          %9 = stablehlo.add %7, %8 : tensor<2x3x5x4xf32>
          %10 = stablehlo.concatenate %6, %9, dim = 3 : (tensor<2x3x5x4xf32>, tensor<2x3x5x4xf32>) -> tensor<2x3x5x8xf32>
          return %10 : tensor<2x3x5x8xf32>
        }
    "#]],
    );
    check_op(
        "rope axis=1 layout=interleaved",
        &["f32[2,3,5,8]", "f32[3,4]", "f32[3,4]"],
        expect![[r#"
        func.func @main(%arg0: tensor<2x3x5x8xf32>, %arg1: tensor<3x4xf32>, %arg2: tensor<3x4xf32>) -> (tensor<2x3x5x8xf32>) {
          %0 = stablehlo.reshape %arg0 : (tensor<2x3x5x8xf32>) -> tensor<2x3x5x4x2xf32>
          %1 = stablehlo.slice %0 [0:2, 0:3, 0:5, 0:4, 0:1] : (tensor<2x3x5x4x2xf32>) -> tensor<2x3x5x4x1xf32>
          %2 = stablehlo.slice %0 [0:2, 0:3, 0:5, 0:4, 1:2] : (tensor<2x3x5x4x2xf32>) -> tensor<2x3x5x4x1xf32>
          %3 = stablehlo.broadcast_in_dim %arg1, dims = [1, 3] : (tensor<3x4xf32>) -> tensor<2x3x5x4x1xf32>
          %4 = stablehlo.broadcast_in_dim %arg2, dims = [1, 3] : (tensor<3x4xf32>) -> tensor<2x3x5x4x1xf32>
          %5 = stablehlo.multiply %1, %3 : tensor<2x3x5x4x1xf32>
          %6 = stablehlo.multiply %2, %4 : tensor<2x3x5x4x1xf32>
          %7 = stablehlo.subtract %5, %6 : tensor<2x3x5x4x1xf32>
          %8 = stablehlo.multiply %2, %3 : tensor<2x3x5x4x1xf32>
          %9 = stablehlo.multiply %1, %4 : tensor<2x3x5x4x1xf32>
          %10 = stablehlo.add %8, %9 : tensor<2x3x5x4x1xf32>
          %11 = stablehlo.concatenate %7, %10, dim = 4 : (tensor<2x3x5x4x1xf32>, tensor<2x3x5x4x1xf32>) -> tensor<2x3x5x4x2xf32>
          %12 = stablehlo.reshape %11 : (tensor<2x3x5x4x2xf32>) -> tensor<2x3x5x8xf32>
          return %12 : tensor<2x3x5x8xf32>
        }
    "#]],
    );
    check_op(
        "rope axis=0 layout=half_split",
        &["bf16[3,7]", "bf16[3,2]", "bf16[3,2]"],
        expect![[r#"
        func.func @main(%arg0: tensor<3x7xbf16>, %arg1: tensor<3x2xbf16>, %arg2: tensor<3x2xbf16>) -> (tensor<3x7xbf16>) {
          %0 = stablehlo.slice %arg0 [0:3, 0:4] : (tensor<3x7xbf16>) -> tensor<3x4xbf16>
          %1 = stablehlo.slice %0 [0:3, 0:2] : (tensor<3x4xbf16>) -> tensor<3x2xbf16>
          %2 = stablehlo.slice %0 [0:3, 2:4] : (tensor<3x4xbf16>) -> tensor<3x2xbf16>
          %3 = stablehlo.broadcast_in_dim %arg1, dims = [0, 1] : (tensor<3x2xbf16>) -> tensor<3x2xbf16>
          %4 = stablehlo.broadcast_in_dim %arg2, dims = [0, 1] : (tensor<3x2xbf16>) -> tensor<3x2xbf16>
          %5 = stablehlo.multiply %1, %3 : tensor<3x2xbf16>
          %6 = stablehlo.multiply %2, %4 : tensor<3x2xbf16>
          %7 = stablehlo.subtract %5, %6 : tensor<3x2xbf16>
          %8 = stablehlo.multiply %2, %3 : tensor<3x2xbf16>
          %9 = stablehlo.multiply %1, %4 : tensor<3x2xbf16>
          %10 = stablehlo.add %8, %9 : tensor<3x2xbf16>
          %11 = stablehlo.concatenate %7, %10, dim = 1 : (tensor<3x2xbf16>, tensor<3x2xbf16>) -> tensor<3x4xbf16>
          %12 = stablehlo.slice %arg0 [0:3, 4:7] : (tensor<3x7xbf16>) -> tensor<3x3xbf16>
          %13 = stablehlo.concatenate %11, %12, dim = 1 : (tensor<3x4xbf16>, tensor<3x3xbf16>) -> tensor<3x7xbf16>
          return %13 : tensor<3x7xbf16>
        }
    "#]],
    );
    check_op(
        "rope axis=0 layout=interleaved",
        &["f32[3,7]", "f32[3,2]", "f32[3,2]"],
        expect![[r#"
        func.func @main(%arg0: tensor<3x7xf32>, %arg1: tensor<3x2xf32>, %arg2: tensor<3x2xf32>) -> (tensor<3x7xf32>) {
          %0 = stablehlo.slice %arg0 [0:3, 0:4] : (tensor<3x7xf32>) -> tensor<3x4xf32>
          %1 = stablehlo.reshape %0 : (tensor<3x4xf32>) -> tensor<3x2x2xf32>
          %2 = stablehlo.slice %1 [0:3, 0:2, 0:1] : (tensor<3x2x2xf32>) -> tensor<3x2x1xf32>
          %3 = stablehlo.slice %1 [0:3, 0:2, 1:2] : (tensor<3x2x2xf32>) -> tensor<3x2x1xf32>
          %4 = stablehlo.broadcast_in_dim %arg1, dims = [0, 1] : (tensor<3x2xf32>) -> tensor<3x2x1xf32>
          %5 = stablehlo.broadcast_in_dim %arg2, dims = [0, 1] : (tensor<3x2xf32>) -> tensor<3x2x1xf32>
          %6 = stablehlo.multiply %2, %4 : tensor<3x2x1xf32>
          %7 = stablehlo.multiply %3, %5 : tensor<3x2x1xf32>
          %8 = stablehlo.subtract %6, %7 : tensor<3x2x1xf32>
          %9 = stablehlo.multiply %3, %4 : tensor<3x2x1xf32>
          %10 = stablehlo.multiply %2, %5 : tensor<3x2x1xf32>
          %11 = stablehlo.add %9, %10 : tensor<3x2x1xf32>
          %12 = stablehlo.concatenate %8, %11, dim = 2 : (tensor<3x2x1xf32>, tensor<3x2x1xf32>) -> tensor<3x2x2xf32>
          %13 = stablehlo.reshape %12 : (tensor<3x2x2xf32>) -> tensor<3x4xf32>
          %14 = stablehlo.slice %arg0 [0:3, 4:7] : (tensor<3x7xf32>) -> tensor<3x3xf32>
          %15 = stablehlo.concatenate %13, %14, dim = 1 : (tensor<3x4xf32>, tensor<3x3xf32>) -> tensor<3x7xf32>
          return %15 : tensor<3x7xf32>
        }
    "#]],
    );
}

#[test]
fn s9_sdpa() {
    check_op(
        "sdpa mask=[] scale=none softcap=none offset=false",
        &["f32[2,3,4]", "f32[2,5,4]", "f32[2,5,6]"],
        expect![[r#"
            func.func @main(%arg0: tensor<2x3x4xf32>, %arg1: tensor<2x5x4xf32>, %arg2: tensor<2x5x6xf32>) -> (tensor<2x3x6xf32>) {
              %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<2x3x4xf32>, tensor<2x5x4xf32>) -> tensor<2x3x5xf32>
              %1 = stablehlo.constant dense<0x3F000000> : tensor<2x3x5xf32>
              %2 = stablehlo.multiply %0, %1 : tensor<2x3x5xf32>
              %3 = stablehlo.constant dense<0xFF800000> : tensor<f32>
              %4 = stablehlo.reduce(%2 init: %3) applies stablehlo.maximum across dimensions = [2] : (tensor<2x3x5xf32>, tensor<f32>) -> tensor<2x3xf32>
              %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<2x3xf32>) -> tensor<2x3x5xf32>
              %6 = stablehlo.subtract %2, %5 : tensor<2x3x5xf32>
              %7 = stablehlo.exponential %6 : tensor<2x3x5xf32>
              %8 = stablehlo.constant dense<0x00000000> : tensor<f32>
              %9 = stablehlo.reduce(%7 init: %8) applies stablehlo.add across dimensions = [2] : (tensor<2x3x5xf32>, tensor<f32>) -> tensor<2x3xf32>
              %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1] : (tensor<2x3xf32>) -> tensor<2x3x5xf32>
              %11 = stablehlo.divide %7, %10 : tensor<2x3x5xf32>
              %12 = stablehlo.optimization_barrier %11 : tensor<2x3x5xf32>
              %13 = stablehlo.dot_general %12, %arg2, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<2x3x5xf32>, tensor<2x5x6xf32>) -> tensor<2x3x6xf32>
              return %13 : tensor<2x3x6xf32>
            }
        "#]],
    );
}

#[test]
fn s11_sdpa_causal_with_an_offset_and_grouped_heads() {
    check_op(
        "sdpa mask=[causal] scale=0.5 softcap=none offset=true",
        &["bf16[2,3,5,4]", "bf16[2,7,4]", "bf16[2,7,4]", "i32[]"],
        expect![[r#"
            func.func @main(%arg0: tensor<2x3x5x4xbf16>, %arg1: tensor<2x7x4xbf16>, %arg2: tensor<2x7x4xbf16>, %arg3: tensor<i32>) -> (tensor<2x3x5x4xbf16>) {
              %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0] x [0], contracting_dims = [3] x [2] : (tensor<2x3x5x4xbf16>, tensor<2x7x4xbf16>) -> tensor<2x3x5x7xf32>
              %1 = stablehlo.constant dense<0x3F000000> : tensor<2x3x5x7xf32>
              %2 = stablehlo.multiply %0, %1 : tensor<2x3x5x7xf32>
              %3 = stablehlo.iota dim = 0 : tensor<5x7xi32>
              %4 = stablehlo.broadcast_in_dim %arg3, dims = [] : (tensor<i32>) -> tensor<5x7xi32>
              %5 = stablehlo.add %3, %4 : tensor<5x7xi32>
              %6 = stablehlo.iota dim = 1 : tensor<5x7xi32>
              %7 = stablehlo.compare LE, %6, %5, SIGNED : (tensor<5x7xi32>, tensor<5x7xi32>) -> tensor<5x7xi1>
              %8 = stablehlo.broadcast_in_dim %7, dims = [2, 3] : (tensor<5x7xi1>) -> tensor<2x3x5x7xi1>
              %9 = stablehlo.constant dense<0xFF7FFFFF> : tensor<2x3x5x7xf32>
              %10 = stablehlo.select %8, %2, %9 : tensor<2x3x5x7xi1>, tensor<2x3x5x7xf32>
              %11 = stablehlo.constant dense<0xFF800000> : tensor<f32>
              %12 = stablehlo.reduce(%10 init: %11) applies stablehlo.maximum across dimensions = [3] : (tensor<2x3x5x7xf32>, tensor<f32>) -> tensor<2x3x5xf32>
              %13 = stablehlo.broadcast_in_dim %12, dims = [0, 1, 2] : (tensor<2x3x5xf32>) -> tensor<2x3x5x7xf32>
              %14 = stablehlo.subtract %10, %13 : tensor<2x3x5x7xf32>
              %15 = stablehlo.exponential %14 : tensor<2x3x5x7xf32>
              %16 = stablehlo.constant dense<0x00000000> : tensor<f32>
              %17 = stablehlo.reduce(%15 init: %16) applies stablehlo.add across dimensions = [3] : (tensor<2x3x5x7xf32>, tensor<f32>) -> tensor<2x3x5xf32>
              %18 = stablehlo.broadcast_in_dim %17, dims = [0, 1, 2] : (tensor<2x3x5xf32>) -> tensor<2x3x5x7xf32>
              %19 = stablehlo.divide %15, %18 : tensor<2x3x5x7xf32>
              %20 = stablehlo.convert %19 : (tensor<2x3x5x7xf32>) -> tensor<2x3x5x7xbf16>
              %21 = stablehlo.optimization_barrier %20 : tensor<2x3x5x7xbf16>
              %22 = stablehlo.dot_general %21, %arg2, batching_dims = [0] x [0], contracting_dims = [3] x [1] : (tensor<2x3x5x7xbf16>, tensor<2x7x4xbf16>) -> tensor<2x3x5x4xf32>
              %23 = stablehlo.convert %22 : (tensor<2x3x5x4xf32>) -> tensor<2x3x5x4xbf16>
              return %23 : tensor<2x3x5x4xbf16>
            }
        "#]],
    );
}

#[test]
fn s12_sdpa_with_an_explicit_mask() {
    check_op(
        "sdpa mask=[additive] scale=none softcap=none offset=false",
        &["f32[2,3,4]", "f32[2,5,4]", "f32[2,5,4]", "f32[3,1]"],
        expect![[r#"
            func.func @main(%arg0: tensor<2x3x4xf32>, %arg1: tensor<2x5x4xf32>, %arg2: tensor<2x5x4xf32>, %arg3: tensor<3x1xf32>) -> (tensor<2x3x4xf32>) {
              %0 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<2x3x4xf32>, tensor<2x5x4xf32>) -> tensor<2x3x5xf32>
              %1 = stablehlo.constant dense<0x3F000000> : tensor<2x3x5xf32>
              %2 = stablehlo.multiply %0, %1 : tensor<2x3x5xf32>
              %3 = stablehlo.broadcast_in_dim %arg3, dims = [1, 2] : (tensor<3x1xf32>) -> tensor<2x3x5xf32>
              %4 = stablehlo.add %2, %3 : tensor<2x3x5xf32>
              %5 = stablehlo.constant dense<0xFF800000> : tensor<f32>
              %6 = stablehlo.reduce(%4 init: %5) applies stablehlo.maximum across dimensions = [2] : (tensor<2x3x5xf32>, tensor<f32>) -> tensor<2x3xf32>
              %7 = stablehlo.broadcast_in_dim %6, dims = [0, 1] : (tensor<2x3xf32>) -> tensor<2x3x5xf32>
              %8 = stablehlo.subtract %4, %7 : tensor<2x3x5xf32>
              %9 = stablehlo.exponential %8 : tensor<2x3x5xf32>
              %10 = stablehlo.constant dense<0x00000000> : tensor<f32>
              %11 = stablehlo.reduce(%9 init: %10) applies stablehlo.add across dimensions = [2] : (tensor<2x3x5xf32>, tensor<f32>) -> tensor<2x3xf32>
              %12 = stablehlo.broadcast_in_dim %11, dims = [0, 1] : (tensor<2x3xf32>) -> tensor<2x3x5xf32>
              %13 = stablehlo.divide %9, %12 : tensor<2x3x5xf32>
              %14 = stablehlo.optimization_barrier %13 : tensor<2x3x5xf32>
              %15 = stablehlo.dot_general %14, %arg2, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<2x3x5xf32>, tensor<2x5x4xf32>) -> tensor<2x3x4xf32>
              return %15 : tensor<2x3x4xf32>
            }
        "#]],
    );
}

#[test]
fn s13_sdpa_with_a_sliding_window_and_softcap() {
    check_op(
        "sdpa mask=[causal,window(3)] scale=1.0 softcap=2.0 offset=false",
        &["f32[5,4]", "f32[7,4]", "f32[7,4]"],
        expect![[r#"
            func.func @main(%arg0: tensor<5x4xf32>, %arg1: tensor<7x4xf32>, %arg2: tensor<7x4xf32>) -> (tensor<5x4xf32>) {
              %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [1] : (tensor<5x4xf32>, tensor<7x4xf32>) -> tensor<5x7xf32>
              %1 = stablehlo.constant dense<0x3F800000> : tensor<5x7xf32>
              %2 = stablehlo.multiply %0, %1 : tensor<5x7xf32>
              %3 = stablehlo.constant dense<0x40000000> : tensor<5x7xf32>
              %4 = stablehlo.divide %2, %3 : tensor<5x7xf32>
              %5 = stablehlo.tanh %4 : tensor<5x7xf32>
              %6 = stablehlo.constant dense<0x40000000> : tensor<5x7xf32>
              %7 = stablehlo.multiply %5, %6 : tensor<5x7xf32>
              %8 = stablehlo.iota dim = 0 : tensor<5x7xi32>
              %9 = stablehlo.iota dim = 1 : tensor<5x7xi32>
              %10 = stablehlo.compare LE, %9, %8, SIGNED : (tensor<5x7xi32>, tensor<5x7xi32>) -> tensor<5x7xi1>
              %11 = stablehlo.constant dense<3> : tensor<5x7xi32>
              %12 = stablehlo.subtract %8, %11 : tensor<5x7xi32>
              %13 = stablehlo.compare LT, %12, %9, SIGNED : (tensor<5x7xi32>, tensor<5x7xi32>) -> tensor<5x7xi1>
              %14 = stablehlo.and %10, %13 : tensor<5x7xi1>
              %15 = stablehlo.broadcast_in_dim %14, dims = [0, 1] : (tensor<5x7xi1>) -> tensor<5x7xi1>
              %16 = stablehlo.constant dense<0xFF7FFFFF> : tensor<5x7xf32>
              %17 = stablehlo.select %15, %7, %16 : tensor<5x7xi1>, tensor<5x7xf32>
              %18 = stablehlo.constant dense<0xFF800000> : tensor<f32>
              %19 = stablehlo.reduce(%17 init: %18) applies stablehlo.maximum across dimensions = [1] : (tensor<5x7xf32>, tensor<f32>) -> tensor<5xf32>
              %20 = stablehlo.broadcast_in_dim %19, dims = [0] : (tensor<5xf32>) -> tensor<5x7xf32>
              %21 = stablehlo.subtract %17, %20 : tensor<5x7xf32>
              %22 = stablehlo.exponential %21 : tensor<5x7xf32>
              %23 = stablehlo.constant dense<0x00000000> : tensor<f32>
              %24 = stablehlo.reduce(%22 init: %23) applies stablehlo.add across dimensions = [1] : (tensor<5x7xf32>, tensor<f32>) -> tensor<5xf32>
              %25 = stablehlo.broadcast_in_dim %24, dims = [0] : (tensor<5xf32>) -> tensor<5x7xf32>
              %26 = stablehlo.divide %22, %25 : tensor<5x7xf32>
              %27 = stablehlo.dot_general %26, %arg2, contracting_dims = [1] x [0] : (tensor<5x7xf32>, tensor<7x4xf32>) -> tensor<5x4xf32>
              return %27 : tensor<5x4xf32>
            }
        "#]],
    );
}

#[test]
fn softmax() {
    check_function(
        "f32[2,3,4]",
        |b, x| functions::softmax(b, x, 1),
        expect![[r#"
        func.func @main(%arg0: tensor<2x3x4xf32>) -> (tensor<2x3x4xf32>) {
          %0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
          %1 = stablehlo.reduce(%arg0 init: %0) applies stablehlo.maximum across dimensions = [1] : (tensor<2x3x4xf32>, tensor<f32>) -> tensor<2x4xf32>
          %2 = stablehlo.broadcast_in_dim %1, dims = [0, 2] : (tensor<2x4xf32>) -> tensor<2x3x4xf32>
          %3 = stablehlo.subtract %arg0, %2 : tensor<2x3x4xf32>
          %4 = stablehlo.exponential %3 : tensor<2x3x4xf32>
          %5 = stablehlo.constant dense<0x00000000> : tensor<f32>
          %6 = stablehlo.reduce(%4 init: %5) applies stablehlo.add across dimensions = [1] : (tensor<2x3x4xf32>, tensor<f32>) -> tensor<2x4xf32>
          %7 = stablehlo.broadcast_in_dim %6, dims = [0, 2] : (tensor<2x4xf32>) -> tensor<2x3x4xf32>
          %8 = stablehlo.divide %4, %7 : tensor<2x3x4xf32>
          return %8 : tensor<2x3x4xf32>
        }
    "#]],
    );
}

#[test]
fn silu() {
    check_function(
        "f32[2,3]",
        functions::silu,
        expect![[r#"
        func.func @main(%arg0: tensor<2x3xf32>) -> (tensor<2x3xf32>) {
          %0 = stablehlo.logistic %arg0 : tensor<2x3xf32>
          %1 = stablehlo.multiply %arg0, %0 : tensor<2x3xf32>
          return %1 : tensor<2x3xf32>
        }
    "#]],
    );
    check_function(
        "bf16[2,3]",
        functions::silu,
        expect![[r#"
        func.func @main(%arg0: tensor<2x3xbf16>) -> (tensor<2x3xbf16>) {
          %0 = stablehlo.convert %arg0 : (tensor<2x3xbf16>) -> tensor<2x3xf32>
          %1 = stablehlo.logistic %0 : tensor<2x3xf32>
          %2 = stablehlo.multiply %0, %1 : tensor<2x3xf32>
          %3 = stablehlo.convert %2 : (tensor<2x3xf32>) -> tensor<2x3xbf16>
          return %3 : tensor<2x3xbf16>
        }
    "#]],
    );
}

#[test]
fn gelu_tanh() {
    check_function(
        "bf16[2,3]",
        functions::gelu_tanh,
        expect![[r#"
        func.func @main(%arg0: tensor<2x3xbf16>) -> (tensor<2x3xbf16>) {
          %0 = stablehlo.convert %arg0 : (tensor<2x3xbf16>) -> tensor<2x3xf32>
          %1 = stablehlo.multiply %0, %0 : tensor<2x3xf32>
          %2 = stablehlo.multiply %1, %0 : tensor<2x3xf32>
          %3 = stablehlo.constant dense<0x3D372713> : tensor<2x3xf32>
          %4 = stablehlo.multiply %2, %3 : tensor<2x3xf32>
          %5 = stablehlo.add %0, %4 : tensor<2x3xf32>
          %6 = stablehlo.constant dense<0x3F4C422A> : tensor<2x3xf32>
          %7 = stablehlo.multiply %5, %6 : tensor<2x3xf32>
          %8 = stablehlo.tanh %7 : tensor<2x3xf32>
          %9 = stablehlo.constant dense<0x3F800000> : tensor<2x3xf32>
          %10 = stablehlo.add %8, %9 : tensor<2x3xf32>
          %11 = stablehlo.constant dense<0x3F000000> : tensor<2x3xf32>
          %12 = stablehlo.multiply %0, %11 : tensor<2x3xf32>
          %13 = stablehlo.multiply %12, %10 : tensor<2x3xf32>
          %14 = stablehlo.convert %13 : (tensor<2x3xf32>) -> tensor<2x3xbf16>
          return %14 : tensor<2x3xbf16>
        }
    "#]],
    );
}

#[test]
fn softplus() {
    check_op(
        "softplus",
        &["f16[2,3]"],
        expect![[r#"
        func.func @main(%arg0: tensor<2x3xf16>) -> (tensor<2x3xf16>) {
          %0 = stablehlo.convert %arg0 : (tensor<2x3xf16>) -> tensor<2x3xf32>
          %1 = stablehlo.abs %0 : tensor<2x3xf32>
          %2 = stablehlo.negate %1 : tensor<2x3xf32>
          %3 = stablehlo.exponential %2 : tensor<2x3xf32>
          %4 = stablehlo.constant dense<0x3F800000> : tensor<2x3xf32>
          %5 = stablehlo.add %3, %4 : tensor<2x3xf32>
          %6 = stablehlo.log %5 : tensor<2x3xf32>
          %7 = stablehlo.subtract %5, %4 : tensor<2x3xf32>
          %8 = stablehlo.divide %6, %7 : tensor<2x3xf32>
          %9 = stablehlo.multiply %3, %8 : tensor<2x3xf32>
          %10 = stablehlo.compare EQ, %5, %4, FLOAT : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>
          %11 = stablehlo.select %10, %3, %9 : tensor<2x3xi1>, tensor<2x3xf32>
          %12 = stablehlo.constant dense<0x00000000> : tensor<2x3xf32>
          %13 = stablehlo.maximum %0, %12 : tensor<2x3xf32>
          %14 = stablehlo.add %13, %11 : tensor<2x3xf32>
          %15 = stablehlo.convert %14 : (tensor<2x3xf32>) -> tensor<2x3xf16>
          return %15 : tensor<2x3xf16>
        }
    "#]],
    );
}

#[test]
fn erf() {
    check_op(
        "erf",
        &["bf16[2,3]"],
        expect![[r#"
        func.func @main(%arg0: tensor<2x3xbf16>) -> (tensor<2x3xbf16>) {
          %0 = stablehlo.convert %arg0 : (tensor<2x3xbf16>) -> tensor<2x3xf32>
          %1 = stablehlo.abs %0 : tensor<2x3xf32>
          %2 = stablehlo.constant dense<0x40800000> : tensor<2x3xf32>
          %3 = stablehlo.minimum %1, %2 : tensor<2x3xf32>
          %4 = stablehlo.multiply %3, %3 : tensor<2x3xf32>
          %5 = stablehlo.constant dense<0x38A4B518> : tensor<2x3xf32>
          %6 = stablehlo.multiply %5, %4 : tensor<2x3xf32>
          %7 = stablehlo.constant dense<0xBA51FB80> : tensor<2x3xf32>
          %8 = stablehlo.add %6, %7 : tensor<2x3xf32>
          %9 = stablehlo.multiply %8, %4 : tensor<2x3xf32>
          %10 = stablehlo.constant dense<0x3BAA02D9> : tensor<2x3xf32>
          %11 = stablehlo.add %9, %10 : tensor<2x3xf32>
          %12 = stablehlo.multiply %11, %4 : tensor<2x3xf32>
          %13 = stablehlo.constant dense<0xBCDBFC87> : tensor<2x3xf32>
          %14 = stablehlo.add %12, %13 : tensor<2x3xf32>
          %15 = stablehlo.multiply %14, %4 : tensor<2x3xf32>
          %16 = stablehlo.constant dense<0x3DE7167C> : tensor<2x3xf32>
          %17 = stablehlo.add %15, %16 : tensor<2x3xf32>
          %18 = stablehlo.multiply %17, %4 : tensor<2x3xf32>
          %19 = stablehlo.constant dense<0xBEC0939F> : tensor<2x3xf32>
          %20 = stablehlo.add %18, %19 : tensor<2x3xf32>
          %21 = stablehlo.multiply %20, %4 : tensor<2x3xf32>
          %22 = stablehlo.constant dense<0x3E0375D4> : tensor<2x3xf32>
          %23 = stablehlo.add %21, %22 : tensor<2x3xf32>
          %24 = stablehlo.multiply %0, %23 : tensor<2x3xf32>
          %25 = stablehlo.add %0, %24 : tensor<2x3xf32>
          %26 = stablehlo.constant dense<0xB94296A9> : tensor<2x3xf32>
          %27 = stablehlo.multiply %26, %3 : tensor<2x3xf32>
          %28 = stablehlo.constant dense<0x3B40A670> : tensor<2x3xf32>
          %29 = stablehlo.add %27, %28 : tensor<2x3xf32>
          %30 = stablehlo.multiply %29, %3 : tensor<2x3xf32>
          %31 = stablehlo.constant dense<0xBCB2A112> : tensor<2x3xf32>
          %32 = stablehlo.add %30, %31 : tensor<2x3xf32>
          %33 = stablehlo.multiply %32, %3 : tensor<2x3xf32>
          %34 = stablehlo.constant dense<0x3DD30542> : tensor<2x3xf32>
          %35 = stablehlo.add %33, %34 : tensor<2x3xf32>
          %36 = stablehlo.multiply %35, %3 : tensor<2x3xf32>
          %37 = stablehlo.constant dense<0x3F2362C2> : tensor<2x3xf32>
          %38 = stablehlo.add %36, %37 : tensor<2x3xf32>
          %39 = stablehlo.multiply %38, %3 : tensor<2x3xf32>
          %40 = stablehlo.constant dense<0x3F9042D9> : tensor<2x3xf32>
          %41 = stablehlo.add %39, %40 : tensor<2x3xf32>
          %42 = stablehlo.multiply %41, %3 : tensor<2x3xf32>
          %43 = stablehlo.constant dense<0x39B97354> : tensor<2x3xf32>
          %44 = stablehlo.add %42, %43 : tensor<2x3xf32>
          %45 = stablehlo.negate %44 : tensor<2x3xf32>
          %46 = stablehlo.exponential %45 : tensor<2x3xf32>
          %47 = stablehlo.constant dense<0x3F800000> : tensor<2x3xf32>
          %48 = stablehlo.subtract %47, %46 : tensor<2x3xf32>
          %49 = stablehlo.negate %48 : tensor<2x3xf32>
          %50 = stablehlo.compare LT, %3, %47, FLOAT : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>
          %51 = stablehlo.constant dense<0x00000000> : tensor<2x3xf32>
          %52 = stablehlo.compare LT, %0, %51, FLOAT : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>
          %53 = stablehlo.select %52, %49, %48 : tensor<2x3xi1>, tensor<2x3xf32>
          %54 = stablehlo.select %50, %25, %53 : tensor<2x3xi1>, tensor<2x3xf32>
          %55 = stablehlo.convert %54 : (tensor<2x3xf32>) -> tensor<2x3xbf16>
          return %55 : tensor<2x3xbf16>
        }
    "#]],
    );
}

#[test]
fn s29_dequantize() {
    check_op(
        "dequantize element=bf16",
        &["i8[3,2,5]", "f32[3,2]"],
        expect![[r#"
        func.func @main(%arg0: tensor<3x2x5xi8>, %arg1: tensor<3x2xf32>) -> (tensor<3x2x5xbf16>) {
          %0 = stablehlo.convert %arg0 : (tensor<3x2x5xi8>) -> tensor<3x2x5xf32>
          %1 = stablehlo.broadcast_in_dim %arg1, dims = [0, 1] : (tensor<3x2xf32>) -> tensor<3x2x5xf32>
          %2 = stablehlo.multiply %0, %1 : tensor<3x2x5xf32>
          %3 = stablehlo.convert %2 : (tensor<3x2x5xf32>) -> tensor<3x2x5xbf16>
          return %3 : tensor<3x2x5xbf16>
        }
    "#]],
    );
}

#[test]
fn s29_append() {
    check_op(
        "append axis=2 ring=true",
        &["f32[3,2,7,4]", "f32[3,2,5,4]", "i32[3]", "i32[3]"],
        expect![[r#"
        func.func @main(%arg0: tensor<3x2x7x4xf32>, %arg1: tensor<3x2x5x4xf32>, %arg2: tensor<3xi32>, %arg3: tensor<3xi32>) -> (tensor<3x2x7x4xf32>) {
          %0 = stablehlo.iota dim = 1 : tensor<3x7xi32>
          %1 = stablehlo.broadcast_in_dim %arg2, dims = [0] : (tensor<3xi32>) -> tensor<3x7xi32>
          %2 = stablehlo.broadcast_in_dim %arg3, dims = [0] : (tensor<3xi32>) -> tensor<3x7xi32>
          %3 = stablehlo.subtract %0, %1 : tensor<3x7xi32>
          %4 = stablehlo.constant dense<1073741823> : tensor<3x7xi32>
          %5 = stablehlo.add %3, %4 : tensor<3x7xi32>
          %6 = stablehlo.constant dense<7> : tensor<3x7xi32>
          %7 = stablehlo.divide %5, %6 : tensor<3x7xi32>
          %8 = stablehlo.constant dense<7> : tensor<3x7xi32>
          %9 = stablehlo.multiply %7, %8 : tensor<3x7xi32>
          %10 = stablehlo.subtract %5, %9 : tensor<3x7xi32>
          %11 = stablehlo.constant dense<0> : tensor<3x7xi32>
          %12 = stablehlo.compare LE, %11, %10, SIGNED : (tensor<3x7xi32>, tensor<3x7xi32>) -> tensor<3x7xi1>
          %13 = stablehlo.compare LT, %10, %2, SIGNED : (tensor<3x7xi32>, tensor<3x7xi32>) -> tensor<3x7xi1>
          %14 = stablehlo.and %12, %13 : tensor<3x7xi1>
          %15 = stablehlo.broadcast_in_dim %14, dims = [0, 2] : (tensor<3x7xi1>) -> tensor<3x2x7x4xi1>
          %16 = stablehlo.transpose %arg1, dims = [0, 2, 1, 3] : (tensor<3x2x5x4xf32>) -> tensor<3x5x2x4xf32>
          %17 = stablehlo.reshape %16 : (tensor<3x5x2x4xf32>) -> tensor<15x2x4xf32>
          %18 = stablehlo.iota dim = 0 : tensor<3x7xi32>
          %19 = stablehlo.constant dense<5> : tensor<3x7xi32>
          %20 = stablehlo.multiply %18, %19 : tensor<3x7xi32>
          %21 = stablehlo.constant dense<4> : tensor<3x7xi32>
          %22 = stablehlo.minimum %10, %21 : tensor<3x7xi32>
          %23 = stablehlo.constant dense<0> : tensor<3x7xi32>
          %24 = stablehlo.maximum %22, %23 : tensor<3x7xi32>
          %25 = stablehlo.add %24, %20 : tensor<3x7xi32>
          %26 = "stablehlo.gather"(%17, %25) <{dimension_numbers = #stablehlo.gather<offset_dims = [2, 3], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, slice_sizes = array<i64: 1, 2, 4>, indices_are_sorted = false}> : (tensor<15x2x4xf32>, tensor<3x7xi32>) -> tensor<3x7x2x4xf32>
          %27 = stablehlo.transpose %26, dims = [0, 2, 1, 3] : (tensor<3x7x2x4xf32>) -> tensor<3x2x7x4xf32>
          %28 = stablehlo.select %15, %27, %arg0 : tensor<3x2x7x4xi1>, tensor<3x2x7x4xf32>
          return %28 : tensor<3x2x7x4xf32>
        }
    "#]],
    );
    check_op(
        "append axis=1 ring=false",
        &["f32[3,7,4]", "f32[3,1,4]", "i32[]", "i32[]"],
        expect![[r#"
        func.func @main(%arg0: tensor<3x7x4xf32>, %arg1: tensor<3x1x4xf32>, %arg2: tensor<i32>, %arg3: tensor<i32>) -> (tensor<3x7x4xf32>) {
          %0 = stablehlo.iota dim = 0 : tensor<7xi32>
          %1 = stablehlo.broadcast_in_dim %arg2, dims = [] : (tensor<i32>) -> tensor<7xi32>
          %2 = stablehlo.broadcast_in_dim %arg3, dims = [] : (tensor<i32>) -> tensor<7xi32>
          %3 = stablehlo.subtract %0, %1 : tensor<7xi32>
          %4 = stablehlo.constant dense<0> : tensor<7xi32>
          %5 = stablehlo.compare LE, %4, %3, SIGNED : (tensor<7xi32>, tensor<7xi32>) -> tensor<7xi1>
          %6 = stablehlo.compare LT, %3, %2, SIGNED : (tensor<7xi32>, tensor<7xi32>) -> tensor<7xi1>
          %7 = stablehlo.and %5, %6 : tensor<7xi1>
          %8 = stablehlo.broadcast_in_dim %7, dims = [1] : (tensor<7xi1>) -> tensor<3x7x4xi1>
          %9 = stablehlo.broadcast_in_dim %arg1, dims = [0, 1, 2] : (tensor<3x1x4xf32>) -> tensor<3x7x4xf32>
          %10 = stablehlo.select %8, %9, %arg0 : tensor<3x7x4xi1>, tensor<3x7x4xf32>
          return %10 : tensor<3x7x4xf32>
        }
    "#]],
    );
}

/// Checks the statements of the idiom for IREE, which updates the cache in place.
#[test]
fn s29_sliced_append() {
    let trace = of_op("sliced_append axis=1", &["f32[3,7,4]", "f32[3,2,4]", "i32[]", "i32[]"]);
    let text = tracewright_lower::lower(&trace, &Target::host()).unwrap().text_without_locs;
    expect![[r#"
        module @tracewright {
          func.func @main(%arg0: tensor<3x7x4xf32>, %arg1: tensor<3x2x4xf32>, %arg2: tensor<i32>, %arg3: tensor<i32>) -> (tensor<3x7x4xf32>) {
            %0 = arith.constant 0 : index
            %1 = arith.constant 7 : index
            %2 = arith.constant 2 : index
            %3 = tensor.extract %arg2[] : tensor<i32>
            %4 = arith.index_cast %3 : i32 to index
            %5 = arith.maxsi %4, %0 : index
            %6 = arith.minui %5, %1 : index
            %7 = tensor.extract %arg3[] : tensor<i32>
            %8 = arith.index_cast %7 : i32 to index
            %9 = arith.maxsi %8, %0 : index
            %10 = arith.minui %9, %2 : index
            %11 = arith.subi %1, %6 : index
            %12 = arith.minui %10, %11 : index
            %13 = tensor.extract_slice %arg1[0, %0, 0] [3, %12, 4] [1, 1, 1] : tensor<3x2x4xf32> to tensor<3x?x4xf32>
            %14 = tensor.insert_slice %13 into %arg0[0, %6, 0] [3, %12, 4] [1, 1, 1] : tensor<3x?x4xf32> into tensor<3x7x4xf32>
            return %14 : tensor<3x7x4xf32>
          }
        }
    "#]].assert_eq(&text);
}

/// Checks the statements of the idiom for IREE. For other compilers, the operation is `sdpa`.
#[test]
fn s29_bounded_sdpa() {
    let trace = of_op(
        "bounded_sdpa mask=[causal,window(9)] scale=none softcap=2.0",
        &["bf16[2,3,1,16]", "bf16[2,700,16]", "bf16[2,700,20]", "i32[]"],
    );
    let text = tracewright_lower::lower(&trace, &Target::host()).unwrap().text_without_locs;
    expect![[r#"
        module @tracewright {
          func.func @main(%arg0: tensor<2x3x1x16xbf16>, %arg1: tensor<2x700x16xbf16>, %arg2: tensor<2x700x20xbf16>, %arg3: tensor<i32>) -> (tensor<2x3x1x20xbf16>) {
            %0 = tensor.extract %arg3[] : tensor<i32>
            %1 = arith.index_cast %0 : i32 to index
            %2 = arith.constant 64 : index
            %3 = arith.constant 64 : index
            %4 = arith.constant 350 : index
            %5 = arith.addi %1, %2 : index
            %6 = arith.divui %5, %3 : index
            %7 = arith.muli %6, %3 : index
            %8 = arith.cmpi ule, %7, %4 : index
            %9 = scf.if %8 -> (tensor<2x3x1x20xbf16>) {
              %part8_0 = flow.dispatch.region -> (tensor<2x?x16xbf16>{%7}) {
                %keys7 = tensor.extract_slice %arg1[0, 0, 0] [2, %7, 16] [1, 1, 1] : tensor<2x700x16xbf16> to tensor<2x?x16xbf16>
                flow.return %keys7 : tensor<2x?x16xbf16>
              }
              %part8_1 = flow.dispatch.region -> (tensor<2x?x20xbf16>{%7}) {
                %values7 = tensor.extract_slice %arg2[0, 0, 0] [2, %7, 20] [1, 1, 1] : tensor<2x700x20xbf16> to tensor<2x?x20xbf16>
                flow.return %values7 : tensor<2x?x20xbf16>
              }
              %part8_2 = arith.constant 2 : i32
              %part8_3 = arith.constant 3 : i32
              %part8_4 = arith.constant 1 : i32
              %part8_5 = arith.index_cast %7 : index to i32
              %part8_6 = tensor.from_elements %part8_2, %part8_3, %part8_4, %part8_5 : tensor<4xi32>
              %part8_7 = stablehlo.dot_general %arg0, %part8_0, batching_dims = [0] x [0], contracting_dims = [3] x [2] : (tensor<2x3x1x16xbf16>, tensor<2x?x16xbf16>) -> tensor<2x3x1x?xf32>
              %part8_8 = stablehlo.constant dense<0x3E800000> : tensor<f32>
              %part8_9 = stablehlo.dynamic_broadcast_in_dim %part8_8, %part8_6, dims = []  : (tensor<f32>, tensor<4xi32>) -> tensor<2x3x1x?xf32>
              %part8_10 = stablehlo.multiply %part8_7, %part8_9 : tensor<2x3x1x?xf32>
              %part8_11 = stablehlo.constant dense<0x40000000> : tensor<f32>
              %part8_12 = stablehlo.dynamic_broadcast_in_dim %part8_11, %part8_6, dims = []  : (tensor<f32>, tensor<4xi32>) -> tensor<2x3x1x?xf32>
              %part8_13 = stablehlo.divide %part8_10, %part8_12 : tensor<2x3x1x?xf32>
              %part8_14 = stablehlo.tanh %part8_13 : tensor<2x3x1x?xf32>
              %part8_15 = stablehlo.multiply %part8_14, %part8_12 : tensor<2x3x1x?xf32>
              %part8_16 = stablehlo.dynamic_broadcast_in_dim %arg3, %part8_6, dims = []  : (tensor<i32>, tensor<4xi32>) -> tensor<2x3x1x?xi32>
              %part8_17 = stablehlo.dynamic_iota %part8_6, dim = 3 : (tensor<4xi32>) -> tensor<2x3x1x?xi32>
              %part8_18 = stablehlo.dynamic_iota %part8_6, dim = 2 : (tensor<4xi32>) -> tensor<2x3x1x?xi32>
              %part8_19 = stablehlo.add %part8_18, %part8_16 : tensor<2x3x1x?xi32>
              %part8_20 = stablehlo.constant dense<0xFF7FFFFF> : tensor<f32>
              %part8_21 = stablehlo.dynamic_broadcast_in_dim %part8_20, %part8_6, dims = []  : (tensor<f32>, tensor<4xi32>) -> tensor<2x3x1x?xf32>
              %part8_22 = stablehlo.compare LE, %part8_17, %part8_19, SIGNED : (tensor<2x3x1x?xi32>, tensor<2x3x1x?xi32>) -> tensor<2x3x1x?xi1>
              %part8_23 = stablehlo.select %part8_22, %part8_15, %part8_21 : tensor<2x3x1x?xi1>, tensor<2x3x1x?xf32>
              %part8_24 = stablehlo.constant dense<9> : tensor<i32>
              %part8_25 = stablehlo.dynamic_broadcast_in_dim %part8_24, %part8_6, dims = []  : (tensor<i32>, tensor<4xi32>) -> tensor<2x3x1x?xi32>
              %part8_26 = stablehlo.subtract %part8_19, %part8_25 : tensor<2x3x1x?xi32>
              %part8_27 = stablehlo.compare LT, %part8_26, %part8_17, SIGNED : (tensor<2x3x1x?xi32>, tensor<2x3x1x?xi32>) -> tensor<2x3x1x?xi1>
              %part8_28 = stablehlo.select %part8_27, %part8_23, %part8_21 : tensor<2x3x1x?xi1>, tensor<2x3x1x?xf32>
              %part8_29 = stablehlo.constant dense<0xFF800000> : tensor<f32>
              %part8_30 = stablehlo.reduce(%part8_28 init: %part8_29) applies stablehlo.maximum across dimensions = [3] : (tensor<2x3x1x?xf32>, tensor<f32>) -> tensor<2x3x1xf32>
              %part8_31 = stablehlo.dynamic_broadcast_in_dim %part8_30, %part8_6, dims = [0, 1, 2] {known_nonexpanding_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>, tensor<4xi32>) -> tensor<2x3x1x?xf32>
              %part8_32 = stablehlo.subtract %part8_28, %part8_31 : tensor<2x3x1x?xf32>
              %part8_33 = stablehlo.exponential %part8_32 : tensor<2x3x1x?xf32>
              %part8_34 = stablehlo.constant dense<0x00000000> : tensor<f32>
              %part8_35 = stablehlo.reduce(%part8_33 init: %part8_34) applies stablehlo.add across dimensions = [3] : (tensor<2x3x1x?xf32>, tensor<f32>) -> tensor<2x3x1xf32>
              %part8_36 = stablehlo.dynamic_broadcast_in_dim %part8_35, %part8_6, dims = [0, 1, 2] {known_nonexpanding_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>, tensor<4xi32>) -> tensor<2x3x1x?xf32>
              %part8_37 = stablehlo.divide %part8_33, %part8_36 : tensor<2x3x1x?xf32>
              %part8_38 = stablehlo.convert %part8_37 : (tensor<2x3x1x?xf32>) -> tensor<2x3x1x?xbf16>
              %part8_39 = stablehlo.dot_general %part8_38, %part8_1, batching_dims = [0] x [0], contracting_dims = [3] x [1] : (tensor<2x3x1x?xbf16>, tensor<2x?x20xbf16>) -> tensor<2x3x1x20xf32>
              %part8_40 = stablehlo.convert %part8_39 : (tensor<2x3x1x20xf32>) -> tensor<2x3x1x20xbf16>
              scf.yield %part8_40 : tensor<2x3x1x20xbf16>
            } else {
              %all8_0 = arith.constant 2 : i32
              %all8_1 = arith.constant 3 : i32
              %all8_2 = arith.constant 1 : i32
              %all8_3 = arith.constant 700 : i32
              %all8_4 = tensor.from_elements %all8_0, %all8_1, %all8_2, %all8_3 : tensor<4xi32>
              %all8_5 = stablehlo.dot_general %arg0, %arg1, batching_dims = [0] x [0], contracting_dims = [3] x [2] : (tensor<2x3x1x16xbf16>, tensor<2x700x16xbf16>) -> tensor<2x3x1x700xf32>
              %all8_6 = stablehlo.constant dense<0x3E800000> : tensor<f32>
              %all8_7 = stablehlo.dynamic_broadcast_in_dim %all8_6, %all8_4, dims = []  : (tensor<f32>, tensor<4xi32>) -> tensor<2x3x1x700xf32>
              %all8_8 = stablehlo.multiply %all8_5, %all8_7 : tensor<2x3x1x700xf32>
              %all8_9 = stablehlo.constant dense<0x40000000> : tensor<f32>
              %all8_10 = stablehlo.dynamic_broadcast_in_dim %all8_9, %all8_4, dims = []  : (tensor<f32>, tensor<4xi32>) -> tensor<2x3x1x700xf32>
              %all8_11 = stablehlo.divide %all8_8, %all8_10 : tensor<2x3x1x700xf32>
              %all8_12 = stablehlo.tanh %all8_11 : tensor<2x3x1x700xf32>
              %all8_13 = stablehlo.multiply %all8_12, %all8_10 : tensor<2x3x1x700xf32>
              %all8_14 = stablehlo.dynamic_broadcast_in_dim %arg3, %all8_4, dims = []  : (tensor<i32>, tensor<4xi32>) -> tensor<2x3x1x700xi32>
              %all8_15 = stablehlo.dynamic_iota %all8_4, dim = 3 : (tensor<4xi32>) -> tensor<2x3x1x700xi32>
              %all8_16 = stablehlo.dynamic_iota %all8_4, dim = 2 : (tensor<4xi32>) -> tensor<2x3x1x700xi32>
              %all8_17 = stablehlo.add %all8_16, %all8_14 : tensor<2x3x1x700xi32>
              %all8_18 = stablehlo.constant dense<0xFF7FFFFF> : tensor<f32>
              %all8_19 = stablehlo.dynamic_broadcast_in_dim %all8_18, %all8_4, dims = []  : (tensor<f32>, tensor<4xi32>) -> tensor<2x3x1x700xf32>
              %all8_20 = stablehlo.compare LE, %all8_15, %all8_17, SIGNED : (tensor<2x3x1x700xi32>, tensor<2x3x1x700xi32>) -> tensor<2x3x1x700xi1>
              %all8_21 = stablehlo.select %all8_20, %all8_13, %all8_19 : tensor<2x3x1x700xi1>, tensor<2x3x1x700xf32>
              %all8_22 = stablehlo.constant dense<9> : tensor<i32>
              %all8_23 = stablehlo.dynamic_broadcast_in_dim %all8_22, %all8_4, dims = []  : (tensor<i32>, tensor<4xi32>) -> tensor<2x3x1x700xi32>
              %all8_24 = stablehlo.subtract %all8_17, %all8_23 : tensor<2x3x1x700xi32>
              %all8_25 = stablehlo.compare LT, %all8_24, %all8_15, SIGNED : (tensor<2x3x1x700xi32>, tensor<2x3x1x700xi32>) -> tensor<2x3x1x700xi1>
              %all8_26 = stablehlo.select %all8_25, %all8_21, %all8_19 : tensor<2x3x1x700xi1>, tensor<2x3x1x700xf32>
              %all8_27 = stablehlo.constant dense<0xFF800000> : tensor<f32>
              %all8_28 = stablehlo.reduce(%all8_26 init: %all8_27) applies stablehlo.maximum across dimensions = [3] : (tensor<2x3x1x700xf32>, tensor<f32>) -> tensor<2x3x1xf32>
              %all8_29 = stablehlo.dynamic_broadcast_in_dim %all8_28, %all8_4, dims = [0, 1, 2] {known_nonexpanding_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>, tensor<4xi32>) -> tensor<2x3x1x700xf32>
              %all8_30 = stablehlo.subtract %all8_26, %all8_29 : tensor<2x3x1x700xf32>
              %all8_31 = stablehlo.exponential %all8_30 : tensor<2x3x1x700xf32>
              %all8_32 = stablehlo.constant dense<0x00000000> : tensor<f32>
              %all8_33 = stablehlo.reduce(%all8_31 init: %all8_32) applies stablehlo.add across dimensions = [3] : (tensor<2x3x1x700xf32>, tensor<f32>) -> tensor<2x3x1xf32>
              %all8_34 = stablehlo.dynamic_broadcast_in_dim %all8_33, %all8_4, dims = [0, 1, 2] {known_nonexpanding_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>, tensor<4xi32>) -> tensor<2x3x1x700xf32>
              %all8_35 = stablehlo.divide %all8_31, %all8_34 : tensor<2x3x1x700xf32>
              %all8_36 = stablehlo.convert %all8_35 : (tensor<2x3x1x700xf32>) -> tensor<2x3x1x700xbf16>
              %all8_37 = stablehlo.dot_general %all8_36, %arg2, batching_dims = [0] x [0], contracting_dims = [3] x [1] : (tensor<2x3x1x700xbf16>, tensor<2x700x20xbf16>) -> tensor<2x3x1x20xf32>
              %all8_38 = stablehlo.convert %all8_37 : (tensor<2x3x1x20xf32>) -> tensor<2x3x1x20xbf16>
              scf.yield %all8_38 : tensor<2x3x1x20xbf16>
            }
            return %9 : tensor<2x3x1x20xbf16>
          }
        }
    "#]].assert_eq(&text);
}

#[test]
fn s29_grouped_linear_of_few_rows() {
    check_op(
        "grouped_linear format=q4 element=bf16 activations=8",
        &["bf16[2,37]", "i8[5,2,16]", "f16[5,2]"],
        expect![[r#"
        func.func @main(%arg0: tensor<2x37xbf16>, %arg1: tensor<5x2x16xi8>, %arg2: tensor<5x2xf16>) -> (tensor<2x5xbf16>) {
          %0 = stablehlo.reshape %arg0 : (tensor<2x37xbf16>) -> tensor<2x37xbf16>
          %1 = stablehlo.convert %0 : (tensor<2x37xbf16>) -> tensor<2x37xf32>
          %2 = stablehlo.constant dense<0x00000000> : tensor<2x27xf32>
          %3 = stablehlo.concatenate %1, %2, dim = 1 : (tensor<2x37xf32>, tensor<2x27xf32>) -> tensor<2x64xf32>
          %4 = stablehlo.reshape %3 : (tensor<2x64xf32>) -> tensor<2x2x32xf32>
          %5 = stablehlo.abs %4 : tensor<2x2x32xf32>
          %6 = stablehlo.constant dense<0xFF800000> : tensor<f32>
          %7 = stablehlo.reduce(%5 init: %6) applies stablehlo.maximum across dimensions = [2] : (tensor<2x2x32xf32>, tensor<f32>) -> tensor<2x2xf32>
          %8 = stablehlo.constant dense<0x00000000> : tensor<2x2xf32>
          %9 = stablehlo.constant dense<0x42FE0000> : tensor<2x2xf32>
          %10 = stablehlo.divide %9, %7 : tensor<2x2xf32>
          %11 = stablehlo.compare LT, %8, %7, FLOAT : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xi1>
          %12 = stablehlo.select %11, %10, %8 : tensor<2x2xi1>, tensor<2x2xf32>
          %13 = stablehlo.broadcast_in_dim %12, dims = [0, 1] : (tensor<2x2xf32>) -> tensor<2x2x32xf32>
          %14 = stablehlo.multiply %4, %13 : tensor<2x2x32xf32>
          %15 = stablehlo.round_nearest_even %14 : tensor<2x2x32xf32>
          %16 = stablehlo.divide %7, %9 : tensor<2x2xf32>
          %17 = stablehlo.convert %arg2 : (tensor<5x2xf16>) -> tensor<5x2xf32>
          %18 = stablehlo.convert %15 : (tensor<2x2x32xf32>) -> tensor<2x2x32xi8>
          %19 = stablehlo.constant dense<16> : tensor<5x2x16xi8>
          %20 = stablehlo.multiply %arg1, %19 : tensor<5x2x16xi8>
          %21 = stablehlo.constant dense<16> : tensor<5x2x16xi8>
          %22 = stablehlo.divide %20, %21 : tensor<5x2x16xi8>
          %23 = stablehlo.subtract %arg1, %22 : tensor<5x2x16xi8>
          %24 = stablehlo.constant dense<16> : tensor<5x2x16xi8>
          %25 = stablehlo.divide %23, %24 : tensor<5x2x16xi8>
          %26 = stablehlo.slice %18 [0:2, 0:2, 0:16] : (tensor<2x2x32xi8>) -> tensor<2x2x16xi8>
          %27 = stablehlo.dot_general %26, %22, batching_dims = [1] x [1], contracting_dims = [2] x [2] : (tensor<2x2x16xi8>, tensor<5x2x16xi8>) -> tensor<2x2x5xi32>
          %28 = stablehlo.slice %18 [0:2, 0:2, 16:32] : (tensor<2x2x32xi8>) -> tensor<2x2x16xi8>
          %29 = stablehlo.dot_general %28, %25, batching_dims = [1] x [1], contracting_dims = [2] x [2] : (tensor<2x2x16xi8>, tensor<5x2x16xi8>) -> tensor<2x2x5xi32>
          %30 = stablehlo.add %27, %29 : tensor<2x2x5xi32>
          %31 = stablehlo.convert %30 : (tensor<2x2x5xi32>) -> tensor<2x2x5xf32>
          %32 = stablehlo.transpose %17, dims = [1, 0] : (tensor<5x2xf32>) -> tensor<2x5xf32>
          %33 = stablehlo.broadcast_in_dim %32, dims = [0, 2] : (tensor<2x5xf32>) -> tensor<2x2x5xf32>
          %34 = stablehlo.multiply %31, %33 : tensor<2x2x5xf32>
          %35 = stablehlo.transpose %16, dims = [1, 0] : (tensor<2x2xf32>) -> tensor<2x2xf32>
          %36 = stablehlo.broadcast_in_dim %35, dims = [0, 1] : (tensor<2x2xf32>) -> tensor<2x2x5xf32>
          %37 = stablehlo.multiply %34, %36 : tensor<2x2x5xf32>
          %38 = stablehlo.constant dense<0x00000000> : tensor<f32>
          %39 = stablehlo.reduce(%37 init: %38) applies stablehlo.add across dimensions = [0] : (tensor<2x2x5xf32>, tensor<f32>) -> tensor<2x5xf32>
          %40 = stablehlo.convert %39 : (tensor<2x5xf32>) -> tensor<2x5xbf16>
          %41 = stablehlo.reshape %40 : (tensor<2x5xbf16>) -> tensor<2x5xbf16>
          return %41 : tensor<2x5xbf16>
        }
    "#]],
    );
}

#[test]
fn s29_grouped_linear_of_many_rows() {
    check_op(
        "grouped_linear format=q8 element=f32 activations=8",
        &["f32[33,64]", "i8[5,2,32]", "f16[5,2]"],
        expect![[r#"
        func.func @main(%arg0: tensor<33x64xf32>, %arg1: tensor<5x2x32xi8>, %arg2: tensor<5x2xf16>) -> (tensor<33x5xf32>) {
          %0 = stablehlo.reshape %arg0 : (tensor<33x64xf32>) -> tensor<33x64xf32>
          %1 = stablehlo.reshape %0 : (tensor<33x64xf32>) -> tensor<33x2x32xf32>
          %2 = stablehlo.abs %1 : tensor<33x2x32xf32>
          %3 = stablehlo.constant dense<0xFF800000> : tensor<f32>
          %4 = stablehlo.reduce(%2 init: %3) applies stablehlo.maximum across dimensions = [2] : (tensor<33x2x32xf32>, tensor<f32>) -> tensor<33x2xf32>
          %5 = stablehlo.constant dense<0x00000000> : tensor<33x2xf32>
          %6 = stablehlo.constant dense<0x42FE0000> : tensor<33x2xf32>
          %7 = stablehlo.divide %6, %4 : tensor<33x2xf32>
          %8 = stablehlo.compare LT, %5, %4, FLOAT : (tensor<33x2xf32>, tensor<33x2xf32>) -> tensor<33x2xi1>
          %9 = stablehlo.select %8, %7, %5 : tensor<33x2xi1>, tensor<33x2xf32>
          %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1] : (tensor<33x2xf32>) -> tensor<33x2x32xf32>
          %11 = stablehlo.multiply %1, %10 : tensor<33x2x32xf32>
          %12 = stablehlo.round_nearest_even %11 : tensor<33x2x32xf32>
          %13 = stablehlo.divide %4, %6 : tensor<33x2xf32>
          %14 = stablehlo.convert %arg2 : (tensor<5x2xf16>) -> tensor<5x2xf32>
          %15 = stablehlo.broadcast_in_dim %13, dims = [0, 1] : (tensor<33x2xf32>) -> tensor<33x2x32xf32>
          %16 = stablehlo.multiply %12, %15 : tensor<33x2x32xf32>
          %17 = stablehlo.reshape %16 : (tensor<33x2x32xf32>) -> tensor<33x64xf32>
          %18 = stablehlo.optimization_barrier %17 : tensor<33x64xf32>
          %19 = stablehlo.convert %arg1 : (tensor<5x2x32xi8>) -> tensor<5x2x32xf32>
          %20 = stablehlo.broadcast_in_dim %14, dims = [0, 1] : (tensor<5x2xf32>) -> tensor<5x2x32xf32>
          %21 = stablehlo.multiply %19, %20 : tensor<5x2x32xf32>
          %22 = stablehlo.reshape %21 : (tensor<5x2x32xf32>) -> tensor<5x64xf32>
          %23 = stablehlo.optimization_barrier %22 : tensor<5x64xf32>
          %24 = stablehlo.dot_general %18, %23, contracting_dims = [1] x [1] : (tensor<33x64xf32>, tensor<5x64xf32>) -> tensor<33x5xf32>
          %25 = stablehlo.reshape %24 : (tensor<33x5xf32>) -> tensor<33x5xf32>
          return %25 : tensor<33x5xf32>
        }
    "#]],
    );
}

#[test]
fn s29_grouped_rows() {
    check_op(
        "grouped_rows format=q4 inputs=37 element=bf16",
        &["i8[5,2,16]", "f16[5,2]", "i32[3]"],
        expect![[r#"
            func.func @main(%arg0: tensor<5x2x16xi8>, %arg1: tensor<5x2xf16>, %arg2: tensor<3xi32>) -> (tensor<3x37xbf16>) {
              %0 = "stablehlo.gather"(%arg0, %arg2) <{dimension_numbers = #stablehlo.gather<offset_dims = [1, 2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 2, 16>, indices_are_sorted = false}> : (tensor<5x2x16xi8>, tensor<3xi32>) -> tensor<3x2x16xi8>
              %1 = "stablehlo.gather"(%arg1, %arg2) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 2>, indices_are_sorted = false}> : (tensor<5x2xf16>, tensor<3xi32>) -> tensor<3x2xf16>
              %2 = stablehlo.convert %1 : (tensor<3x2xf16>) -> tensor<3x2xf32>
              %3 = stablehlo.constant dense<16> : tensor<3x2x16xi8>
              %4 = stablehlo.multiply %0, %3 : tensor<3x2x16xi8>
              %5 = stablehlo.constant dense<16> : tensor<3x2x16xi8>
              %6 = stablehlo.divide %4, %5 : tensor<3x2x16xi8>
              %7 = stablehlo.subtract %0, %6 : tensor<3x2x16xi8>
              %8 = stablehlo.constant dense<16> : tensor<3x2x16xi8>
              %9 = stablehlo.divide %7, %8 : tensor<3x2x16xi8>
              %10 = stablehlo.concatenate %6, %9, dim = 2 : (tensor<3x2x16xi8>, tensor<3x2x16xi8>) -> tensor<3x2x32xi8>
              %11 = stablehlo.convert %10 : (tensor<3x2x32xi8>) -> tensor<3x2x32xf32>
              %12 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : (tensor<3x2xf32>) -> tensor<3x2x32xf32>
              %13 = stablehlo.multiply %11, %12 : tensor<3x2x32xf32>
              %14 = stablehlo.reshape %13 : (tensor<3x2x32xf32>) -> tensor<3x64xf32>
              %15 = stablehlo.optimization_barrier %14 : tensor<3x64xf32>
              %16 = stablehlo.slice %15 [0:3, 0:37] : (tensor<3x64xf32>) -> tensor<3x37xf32>
              %17 = stablehlo.convert %16 : (tensor<3x37xf32>) -> tensor<3x37xbf16>
              return %17 : tensor<3x37xbf16>
            }
        "#]],
    );
}

/// Checks matmuls with a stack of matrices. Each row is multiplied by all matrices, by its own
/// matrix, or by a selected matrix.
#[test]
fn s29_experts() {
    let trace = entry(&["bf16[2,5]", "bf16[2,3,6]", "i32[2,2]"], |b, x| {
        let stack = |b: &mut Builder<'_>, key: &str, ty: &str| {
            let ty = ops::TensorType::parse(&mut ops::Reader::new(ty)).unwrap();
            b.push(NodeKind::Parameter(Parameter::new(key, ty.clone())), vec![ty], &[])
        };
        let [up, down] = [stack(b, "up", "bf16[3,16,5]"), stack(b, "down", "bf16[3,16,6]")];
        let dot = |b: &mut Builder<'_>, text: &str, x, weights| {
            b.op(op(&format!("dot_general {text} element=f32")), &[x, weights])
        };
        let all = dot(b, "left_batch=[] right_batch=[] left_contract=[1] right_contract=[2]", x[0], up)?;
        let own = dot(b, "left_batch=[1] right_batch=[0] left_contract=[2] right_contract=[2]", x[1], down)?;
        let taken = b.op(op("gather"), &[up, x[2]])?;
        let chosen =
            dot(b, "left_batch=[0] right_batch=[0] left_contract=[1] right_contract=[3]", x[0], taken)?;
        Ok(vec![all, own, chosen])
    });
    let features = ["avx2", "f16c", "fma"].map(str::to_owned).to_vec();
    let target = Target { features: Some(features), ..Target::processor("x86-64-v3") };
    expect![[r#"
        entry @main {
          %0 = input 0 "x0" () : bf16[2,5] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %1 = input 1 "x1" () : bf16[2,3,6] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %2 = input 2 "x2" () : i32[2,2] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %3 = parameter "up" = pack format=bf16 (reshape shape=[48,5] ("up" : bf16[3,16,5])) () : bf16[3,3,16,2] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %4 = packed_linear format=bf16 outputs=48 element=f32 activations=mixed (%0, %3) : f32[2,48] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %5 = reshape shape=[2,3,16] (%4) : f32[2,3,16] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %6 = parameter "down" = pack format=bf16 (reshape shape=[48,6] ("down" : bf16[3,16,6])) () : bf16[3,3,16,2] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %7 = packed_experts format=bf16 experts=3 outputs=16 element=f32 activations=mixed (%1, %6) : f32[2,3,16] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %8 = permute order=[1,0,2] (%7) : f32[3,2,16] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %9 = parameter "up" = pack format=bf16 (reshape shape=[48,5] ("up" : bf16[3,16,5])) () : bf16[3,3,16,2] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %10 = packed_experts format=bf16 experts=3 outputs=16 element=f32 activations=mixed (%0, %9, %2) : f32[2,2,16] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          return %5 "y"
          return %8 "y"
          return %10 "y"
        }
    "#]].assert_eq(&stored(&trace, &Weights::default(), &target));
}

/// The expanded trace, with the layouts in which the archive stores the weights.
fn stored(trace: &Trace, weights: &Weights, target: &Target) -> String {
    Implementations::of(trace, weights, target).unwrap().expand().unwrap().to_string()
}

/// The archive packs a weight that only matmuls read. A tied weight is packed once for its two
/// uses, and a weight with other readers is not packed.
#[test]
fn m9_s29_stored_weights() {
    let parameter = |b: &mut Builder<'_>, key: &str, ty: &str| {
        let ty = ops::TensorType::parse(&mut ops::Reader::new(ty)).unwrap();
        b.push(NodeKind::Parameter(Parameter::new(key, ty.clone())), vec![ty], &[])
    };
    let trace = entry(&["bf16[2,5]", "i32[3]"], |b, x| {
        let [weight, table, other] = ["weight", "table", "other"].map(|key| parameter(b, key, "bf16[17,5]"));
        let bias = parameter(b, "bias", "bf16[17]");
        // This weight has too few outputs, so its numbers stay unquantized.
        let router = parameter(b, "router", "bf16[7,5]");
        let chosen = b.op(op("linear"), &[x[0], router])?;
        let biased = b.op(op("linear"), &[x[0], weight, bias])?;
        let tied = b.op(op("linear"), &[x[0], table])?;
        let rows = b.op(op("gather"), &[table, x[1]])?;
        let kept = b.op(op("linear"), &[x[0], other])?;
        let sum = b.binary(BinaryKind::Add, other, other)?;
        Ok(vec![chosen, biased, tied, rows, kept, sum])
    });
    let features = ["avx2", "f16c", "fma"].map(str::to_owned).to_vec();
    let target = Target { features: Some(features), ..Target::processor("x86-64-v3") };
    let packed =
        |quantize, kernels| stored(&trace, &Weights { quantize, kernels, ..Weights::default() }, &target);
    expect![[r#"
        entry @main {
          %0 = input 0 "x0" () : bf16[2,5] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %1 = input 1 "x1" () : i32[3] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %2 = parameter "other" () : bf16[17,5] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %3 = parameter "bias" () : bf16[17] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %4 = parameter "router" = pack format=bf16 ("router" : bf16[7,5]) () : bf16[1,3,16,2] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %5 = packed_linear format=bf16 outputs=7 element=bf16 activations=mixed (%0, %4) : bf16[2,7] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %6 = parameter "weight" = pack format=q4 ("weight" : bf16[17,5]) () : i8[2,1,576] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %7 = packed_linear format=q4 outputs=17 element=f32 activations=mixed (%0, %6) : f32[2,17] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %8 = convert to=f32 (%3) : f32[17] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %9 = broadcast_in_dim shape=[2,17] axes=[1] (%8) : f32[2,17] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %10 = binary kind=add (%7, %9) : f32[2,17] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %11 = convert to=bf16 (%10) : bf16[2,17] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %12 = parameter "table" = pack format=q4 ("table" : bf16[17,5]) () : i8[2,1,576] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %13 = packed_linear format=q4 outputs=17 element=bf16 activations=mixed (%0, %12) : bf16[2,17] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %14 = parameter "table" = pack format=q4 ("table" : bf16[17,5]) () : i8[2,1,576] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %15 = packed_rows format=q4 outputs=17 inputs=5 element=bf16 (%14, %1) : bf16[3,5] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %16 = reshape shape=[2,5] (%0) : bf16[2,5] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %17 = dot_general left_batch=[] right_batch=[] left_contract=[1] right_contract=[1] element=f32 (%16, %2) : f32[2,17] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %18 = convert to=bf16 (%17) : bf16[2,17] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %19 = reshape shape=[2,17] (%18) : bf16[2,17] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          %20 = binary kind=add (%2, %2) : bf16[17,5] from "model.layers.*.self_attn" at "models/src/toy.rs":7
          return %5 "y"
          return %11 "y"
          return %13 "y"
          return %15 "y"
          return %19 "y"
          return %20 "y"
        }
    "#]].assert_eq(&packed(Quantization::All(ops::WeightFormat::Q4), true));
    let dense = packed(Quantization::Computed, true);
    assert_eq!(dense.matches("pack format=bf16").count(), 4);
    assert_eq!(packed(Quantization::Computed, false).matches("pack").count(), 0);
    // Without kernels, the archive stores the same weights, each as two tensors.
    let [off, none] = [(false, target), (true, Target::processor("x86-64-v2"))].map(|(kernels, target)| {
        let weights =
            Weights { quantize: Quantization::All(ops::WeightFormat::Q4), kernels, ..Weights::default() };
        stored(&trace, &weights, &target)
    });
    assert_eq!(off, none);
    for (text, count) in [
        ("\"weight\" = quantize format=q4 part=integers (\"weight\" : bf16[17,5]) () : i8[17,1,16]", 1),
        ("\"table.scales\" = quantize format=q4 part=scales (\"table\" : bf16[17,5]) () : f16[17,1]", 2),
        ("pack", 0),
    ] {
        assert_eq!(off.matches(text).count(), count, "{text} in\n{off}");
    }
}

/// Checks the matmuls that kernels compute in each entry point. A matmul in a called function
/// counts once per call.
#[test]
fn products_are_counted_with_what_is_around_them() {
    let parameter = |b: &mut Builder<'_>, key: &str, ty: &str| {
        let ty = ops::TensorType::parse(&mut ops::Reader::new(ty)).unwrap();
        b.push(NodeKind::Parameter(Parameter::new(key, ty.clone())), vec![ty], &[])
    };
    // The layer computes gate and up from the normalized input.
    let layer = entry(&["bf16[1,64]", "bf16[64]"], |b, x| {
        let weight = parameter(b, "layer", "bf16[4,32,16,2]");
        let x = b.op(op("rms_norm epsilon=1e-5 style=scale"), x)?;
        let both =
            b.op(op("packed_linear format=bf16 outputs=64 element=bf16 activations=8"), &[x, weight])?;
        let gate = b.op(op("narrow axis=1 start=0 length=32"), &[both])?;
        let up = b.op(op("narrow axis=1 start=32 length=32"), &[both])?;
        Ok(vec![b.binary(BinaryKind::Multiply, gate, up)?])
    });
    let mut trace = layer;
    trace.functions[0].name = "layer".into();
    let mut main = Function::new("main", "");
    let mut b = Builder { function: &mut main, provenance: Provenance::new("model", "models/src/toy.rs", 7) };
    let types = trace.functions[0].inputs().into_iter().map(|(_, ty)| ty.clone());
    let inputs = types.enumerate().map(|(i, ty)| b.push(NodeKind::input(i, "x"), vec![ty], &[]));
    let inputs: Vec<NodeId> = inputs.collect();
    let called = [(); 2].map(|()| {
        let layer = NodeKind::Call { function: FunctionId(0), prefix: String::new() };
        let ty = ops::TensorType::new(ops::ElementType::Bf16, [1, 32]);
        let call = b.push(layer, vec![ty.clone()], &inputs);
        b.push(NodeKind::Result { index: 0 }, vec![ty], &[call])
    });
    let sum = b.binary(BinaryKind::Add, called[0], called[1]).unwrap();
    let head = parameter(&mut b, "head", "bf16[3,16,16,2]");
    let logits =
        b.op(op("packed_linear format=bf16 outputs=40 element=f32 activations=8"), &[sum, head]).unwrap();
    main.outputs = vec![Output::new("logits", logits)];
    trace.functions.push(main);
    trace.entries = vec![FunctionId(1)];
    trace.verify().unwrap();
    let features = ["avx2", "f16c", "fma"].map(str::to_owned).to_vec();
    let target = Target { features: Some(features), ..Target::processor("x86-64-v3") };
    let mut text = String::new();
    for (entry, works) in tracewright_lower::tunable(&trace, &target).unwrap() {
        for (work, count) in works {
            let tilings = work.tilings(&target).unwrap();
            text += &format!("{entry}: {count} × {}: {}\n", tilings.work, tilings.usual);
        }
    }
    expect![[r#"
        main: 1 × product_bf16_1x32x40_bf16_f32_avx2: parts 1, rows 1, panels 1, ahead 4096
        main: 2 × product_bf16_1x64x64_bf16_bf16_normed_scale_3ee4f8b588e368f1_avx2_halves: parts 1, rows 1, panels 2, ahead 4096
    "#]].assert_eq(&text);
    assert_eq!(tracewright_lower::tunable(&trace, &Target::processor("x86-64-v2")).unwrap()["main"].len(), 0);
}

/// Attention with two key heads and `groups` query heads per key head, cached keys, and a norm of
/// the keys.
fn attention(groups: usize) -> Trace {
    let rows = 8 * groups;
    let text = format!(
        r#"entry @decode {{
  %0 = input 0 "x" () : f32[5,8] {{S,D}} from "model" at "toy.rs":1
  %1 = input 1 "keys0" role=state(kv.keys, layer 0) () : f32[2,5,4] {{K,N,E}} from "model" at "toy.rs":1
  %2 = parameter "q" () : f32[{rows},8] {{K=2*G={groups}*E=4,D}} from "model" at "toy.rs":1
  %3 = parameter "norm" () : f32[{rows}] {{K=2*G={groups}*E=4}} from "model" at "toy.rs":1
  %4 = parameter "plain" () : f32[8] {{D}} from "model" at "toy.rs":1
  %5 = dot_general left_batch=[] right_batch=[] left_contract=[1] right_contract=[1] element=f32 (%0, %2) : f32[5,{rows}] from "model" at "toy.rs":1
  %6 = reshape shape=[5,2,{groups},4] (%5) : f32[5,2,{groups},4] {{S,K,G,E}} from "model" at "toy.rs":1
  %7 = permute order=[1,2,0,3] (%6) : f32[2,{groups},5,4] {{K,G,S,E}} from "model" at "toy.rs":1
  %8 = sdpa mask=[] scale=none softcap=none offset=false (%7, %1, %1) : f32[2,{groups},5,4] {{K,G,S,E}} from "model" at "toy.rs":1
  %9 = binary kind=add (%1, %1) : f32[2,5,4] {{K,N,E}} from "model" at "toy.rs":1
  return %8 "y"
  return %9 "keys0" role=state(kv.keys, layer 0)
}}
"#
    );
    text.parse().unwrap()
}

/// Checks how Tracewright partitions all tensors of `attention`, or the error.
fn check_shards(groups: usize, mesh: &str, rules: &[&str], expected: Expect) {
    let rules: Vec<ShardRule> = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    let text = match Shards::new(&attention(groups), &mesh.parse().unwrap(), &rules) {
        Err(error) => format!("{error}\n"),
        Ok(shards) => {
            let EntryShards { arguments, results } = &shards.entries["decode"];
            let mut text = format!("mesh {}\n", shards.mesh);
            shards.weights.iter().for_each(|(key, sharding)| text += &format!("{key} {sharding}\n"));
            arguments.iter().for_each(|sharding| text += &format!("takes {sharding}\n"));
            results.iter().for_each(|sharding| text += &format!("gives {sharding}\n"));
            shards.notes.iter().for_each(|note| text += &format!("{note}\n"));
            text
        }
    };
    expected.assert_eq(&text);
}

#[test]
fn shard_by_the_names_of_axes() {
    // Tracewright partitions a weight over a whole mesh axis, by the outermost axis of the weight's
    // rows.
    check_shards(
        3,
        "data=5,model=2",
        &["K=model", "S=data"],
        expect![[r#"
        mesh data=5,model=2
        norm [{"model"}]
        plain [{}]
        q [{"model"}, {}]
        takes [{"data"}, {}]
        takes [{"model"}, {}, {}]
        gives [{"model"}, {}, {"data"}, {}]
        gives [{"model"}, {}, {}]
    "#]],
    );
    // If a mesh axis has more devices than the model has key heads, the rest of the mesh axis
    // divides the query heads.
    check_shards(
        4,
        "model=4",
        &["K=model"],
        expect![[r#"
        mesh model.0=2,model.1=2
        norm [{"model.0", "model.1"}]
        plain [{}]
        q [{"model.0", "model.1"}, {}]
        takes [{}, {}]
        takes [{"model.0"}, {}, {}]
        gives [{"model.0"}, {"model.1"}, {}, {}]
        gives [{"model.0"}, {}, {}]
        K has 2 for the 4 devices along `model`: each part is held by 2 of them
        G of 4 is divided by 2 instead, along the rest of `model`
    "#]],
    );
    // If the number of query heads per key head is not divisible by the rest, the query heads stay
    // whole.
    check_shards(
        3,
        "model=4",
        &["K=model"],
        expect![[r#"
        mesh model.0=2,model.1=2
        norm [{"model.0"}]
        plain [{}]
        q [{"model.0"}, {}]
        takes [{}, {}]
        takes [{"model.0"}, {}, {}]
        gives [{"model.0"}, {}, {}, {}]
        gives [{"model.0"}, {}, {}]
        K has 2 for the 4 devices along `model`: each part is held by 2 of them
        G of 3 is not divisible by the 2 devices that are left along `model`: they compute the same
    "#]],
    );
    // If only a part of the rest divides the query heads, Tracewright uses this part.
    check_shards(
        2,
        "model=8",
        &["K=model"],
        expect![[r#"
        mesh model.0=2,model.1=2,model.2=2
        norm [{"model.0", "model.1"}]
        plain [{}]
        q [{"model.0", "model.1"}, {}]
        takes [{}, {}]
        takes [{"model.0"}, {}, {}]
        gives [{"model.0"}, {"model.1"}, {}, {}]
        gives [{"model.0"}, {}, {}]
        K has 2 for the 8 devices along `model`: each part is held by 4 of them
        G of 2 is divided by 2 instead, along the rest of `model`
    "#]],
    );
}

#[test]
fn shard_refuses_what_does_not_divide() {
    check_shards(
        3,
        "model=3",
        &["N=model"],
        expect![[r#"
        the tensor `keys0`: the axis `N` of extent 5 is not divisible by the 3 devices along `model`
    "#]],
    );
    check_shards(
        3,
        "model=2",
        &["F=model"],
        expect![[r#"
        no weight, argument or result has the axis `F`; the existing axes are D, E, G, K, N, S
    "#]],
    );
    check_shards(
        3,
        "model=2",
        &["K=data"],
        expect![[r#"
        the sharding rule `K=data` divides along the axis `data`, which the mesh `model=2` does not have
    "#]],
    );
    check_shards(
        3,
        "model=2",
        &["K=model", "K,N=model"],
        expect![[r#"
        two rules divide the axis `K`, expected one rule
    "#]],
    );
    check_shards(
        3,
        "model=2",
        &["E=model"],
        expect![[r#"
        the tensor `norm`: the axis `E` is not the outermost axis in the combined axis `K=2*G=3*E=4`; divide the outermost axis, or none of the combined axes
    "#]],
    );
    check_shards(
        3,
        "model=20",
        &["K,S=model"],
        expect![[r#"
        along the mesh axis `model` of 20 devices, one tensor axis needs 2 parts and another tensor axis needs 5 parts
    "#]],
    );
}

/// A layer with `experts` experts of the same size. A router weights the outputs of the experts.
fn mixture(experts: usize) -> Trace {
    let text = format!(
        r#"entry @decode {{
  %0 = input 0 "x" () : f32[5,8] {{S,D}} from "model" at "toy.rs":1
  %1 = parameter "router" () : f32[{experts},8] {{X,D}} from "model" at "toy.rs":1
  %2 = parameter "experts.up" () : f32[{experts},12,8] {{X,F,D}} from "model" at "toy.rs":1
  %3 = parameter "experts.down" () : f32[{experts},8,12] {{X,D,F}} from "model" at "toy.rs":1
  %4 = dot_general left_batch=[] right_batch=[] left_contract=[1] right_contract=[1] element=f32 (%0, %1) : f32[5,{experts}] {{S,X}} from "model" at "toy.rs":1
  %5 = dot_general left_batch=[] right_batch=[] left_contract=[1] right_contract=[2] element=f32 (%0, %2) : f32[5,{experts},12] {{S,X,F}} from "model" at "toy.rs":1
  %6 = dot_general left_batch=[1] right_batch=[0] left_contract=[2] right_contract=[2] element=f32 (%5, %3) : f32[{experts},5,8] {{X,S,D}} from "model" at "toy.rs":1
  %7 = dot_general left_batch=[0] right_batch=[1] left_contract=[1] right_contract=[0] element=f32 (%4, %6) : f32[5,8] {{S,D}} from "model" at "toy.rs":1
  return %7 "y"
}}
"#
    );
    text.parse().unwrap()
}

/// Checks expert parallelism with a first rule that applies only to even parts. `whole` is whether
/// each device has the weights of all experts without the first rule.
fn check_experts(experts: usize, rules: &[&str], whole: bool, expected: &Expect) {
    let rules = rules.iter().map(|rule| ShardRule { if_even: rule.contains('X'), ..rule.parse().unwrap() });
    let (trace, rules) = (mixture(experts), rules.collect::<Vec<_>>());
    assert_eq!(leaves_experts_whole(&trace, &rules[1..]), whole, "{rules:?}");
    let shards = Shards::new(&trace, &"model=4".parse().unwrap(), &rules).unwrap();
    let module = xla(&expand(&trace).unwrap(), "decode", &Target::xla(), Some(&shards)).unwrap();
    let mut text = String::new();
    shards.notes.iter().for_each(|note| text += &format!("{note}\n"));
    for one in shards.collectives(&trace.functions[0]).collectives {
        text += &format!("{} of {} among {}\n", one.kind, one.ty, one.devices);
    }
    let frame = |line: &&str| !line.starts_with("    ");
    module.text_without_locs.lines().filter(frame).for_each(|line| text += &format!("{line}\n"));
    expected.assert_eq(&text);
}

#[test]
fn shard_whole_experts_where_their_number_allows() {
    let even = expect![[r#"
        all-reduce of f32[5,8] among 4
        module @decode attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
          sdy.mesh @mesh = <["model"=4]>
          func.func @main(%arg0: tensor<5x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %weight0: tensor<8x8x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}, {}]>}, %weight1: tensor<8x12x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model"}, {}, {}]>}, %weight2: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<5x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
          }
        }
    "#]];
    // The rule for F has no effect, because the devices divide the number of experts.
    for (rules, whole) in [(&["X=model", "F=model"][..], false), (&["X=model"], true)] {
        check_experts(8, rules, whole, &even);
    }
    check_experts(
        6,
        &["X=model", "F=model"],
        false,
        &expect![[r#"
        X of 6 experts is not divisible by the 4 devices along `model`: F of each expert is divided instead
        all-reduce of f32[6,5,8] among 4
        module @decode attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
          sdy.mesh @mesh = <["model"=4]>
          func.func @main(%arg0: tensor<5x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %weight0: tensor<6x8x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {"model"}]>}, %weight1: tensor<6x12x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"model"}, {}]>}, %weight2: tensor<6x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<5x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
          }
        }
    "#]],
    );
    check_experts(
        6,
        &["X=model"],
        true,
        &expect![[r#"
        X of 6 experts is not divisible by the 4 devices along `model`: each device holds all of `experts.down`
        X of 6 experts is not divisible by the 4 devices along `model`: each device holds all of `experts.up`
        module @decode attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
          sdy.mesh @mesh = <["model"=4]>
          func.func @main(%arg0: tensor<5x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %weight0: tensor<6x8x12xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}]>}, %weight1: tensor<6x12x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}, {}]>}, %weight2: tensor<6x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) -> (tensor<5x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
          }
        }
    "#]],
    );
}

/// Compares the same program for one device and for four devices.
#[test]
fn xla_has_weights_behind_arguments_and_says_how_all_are_divided() {
    let trace = attention(4);
    let primitives = expand(&trace).unwrap();
    let text = |shards: Option<&Shards>| {
        let text = xla(&primitives, "decode", &Target::xla(), shards).unwrap().text_without_locs;
        let frame = |line: &&str| !line.starts_with("    ") || line.starts_with("    return");
        text.lines().filter(frame).map(|line| format!("{line}\n")).collect::<String>()
    };
    expect![[r#"
        module @decode {
          func.func @main(%arg0: tensor<5x8xf32>, %arg1: tensor<2x5x4xf32> {tf.aliasing_output = 1 : i32}, %weight0: tensor<32x8xf32>) -> (tensor<2x4x5x4xf32>, tensor<2x5x4xf32>) {
            return %15, %16 : tensor<2x4x5x4xf32>, tensor<2x5x4xf32>
          }
        }
    "#]].assert_eq(&text(None));
    let shards = Shards::new(&trace, &"model=4".parse().unwrap(), &["K=model".parse().unwrap()]).unwrap();
    expect![[r#"
        module @decode attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
          sdy.mesh @mesh = <["model.0"=2, "model.1"=2]>
          func.func @main(%arg0: tensor<5x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}, %arg1: tensor<2x5x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model.0"}, {}, {}]>, tf.aliasing_output = 1 : i32}, %weight0: tensor<32x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model.0", "model.1"}, {}]>}) -> (tensor<2x4x5x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model.0"}, {"model.1"}, {}, {}]>}, tensor<2x5x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"model.0"}, {}, {}]>}) {
            return %15, %16 : tensor<2x4x5x4xf32>, tensor<2x5x4xf32>
          }
        }
    "#]].assert_eq(&text(Some(&shards)));
    let error = xla(&primitives, "prefill", &Target::xla(), None).unwrap_err().to_string();
    assert_eq!(error, "the network has no entry point `prefill`");
}

/// Accelerators round the operands of f32 matmuls unless the module requests f32 precision.
#[test]
fn xla_multiplies_f32_in_f32() {
    let module = xla(&expand(&attention(4)).unwrap(), "decode", &Target::xla(), None).unwrap();
    let matmuls: Vec<&str> = module.text.lines().filter(|line| line.contains("dot_general")).collect();
    assert!(!matmuls.is_empty());
    for line in matmuls {
        assert!(line.contains("precision = [HIGHEST, HIGHEST] : (tensor<"), "{line}");
    }
}

/// Checks a single token. The tests in `tests/composites.rs` compare several tokens with
/// transformers.
#[test]
fn linear_attention_of_one_token() {
    check_op(
        "linear_attention delta=true",
        &[
            "f32[2,1,3,5]",
            "f32[2,1,3,5]",
            "f32[2,1,3,4,6]",
            "f32[2,1,3,4]",
            "f32[2,1,3,4]",
            "f32[2,3,4,5,6]",
            "i32[]",
            "i32[]",
        ],
        expect![[r#"
            func.func @main(%arg0: tensor<2x1x3x5xf32>, %arg1: tensor<2x1x3x5xf32>, %arg2: tensor<2x1x3x4x6xf32>, %arg3: tensor<2x1x3x4xf32>, %arg4: tensor<2x1x3x4xf32>, %arg5: tensor<2x3x4x5x6xf32>, %arg6: tensor<i32>, %arg7: tensor<i32>) -> (tensor<2x3x4x6x6xf32>) {
              %0 = stablehlo.iota dim = 0 : tensor<1xi32>
              %1 = stablehlo.broadcast_in_dim %arg7, dims = [] : (tensor<i32>) -> tensor<1xi32>
              %2 = stablehlo.compare LT, %0, %1, SIGNED : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi1>
              %3 = stablehlo.broadcast_in_dim %2, dims = [1] : (tensor<1xi1>) -> tensor<2x1x3x5xi1>
              %4 = stablehlo.constant dense<0x00000000> : tensor<2x1x3x5xf32>
              %5 = stablehlo.select %3, %arg0, %4 : tensor<2x1x3x5xi1>, tensor<2x1x3x5xf32>
              %6 = stablehlo.broadcast_in_dim %2, dims = [1] : (tensor<1xi1>) -> tensor<2x1x3x5xi1>
              %7 = stablehlo.constant dense<0x00000000> : tensor<2x1x3x5xf32>
              %8 = stablehlo.select %6, %arg1, %7 : tensor<2x1x3x5xi1>, tensor<2x1x3x5xf32>
              %9 = stablehlo.broadcast_in_dim %2, dims = [1] : (tensor<1xi1>) -> tensor<2x1x3x4x6xi1>
              %10 = stablehlo.constant dense<0x00000000> : tensor<2x1x3x4x6xf32>
              %11 = stablehlo.select %9, %arg2, %10 : tensor<2x1x3x4x6xi1>, tensor<2x1x3x4x6xf32>
              %12 = stablehlo.broadcast_in_dim %2, dims = [1] : (tensor<1xi1>) -> tensor<2x1x3x4xi1>
              %13 = stablehlo.constant dense<0x00000000> : tensor<2x1x3x4xf32>
              %14 = stablehlo.select %12, %arg3, %13 : tensor<2x1x3x4xi1>, tensor<2x1x3x4xf32>
              %15 = stablehlo.broadcast_in_dim %2, dims = [1] : (tensor<1xi1>) -> tensor<2x1x3x4xi1>
              %16 = stablehlo.constant dense<0x00000000> : tensor<2x1x3x4xf32>
              %17 = stablehlo.select %15, %arg4, %16 : tensor<2x1x3x4xi1>, tensor<2x1x3x4xf32>
              %18 = stablehlo.transpose %5, dims = [0, 2, 1, 3] : (tensor<2x1x3x5xf32>) -> tensor<2x3x1x5xf32>
              %19 = stablehlo.broadcast_in_dim %18, dims = [0, 1, 3, 4] : (tensor<2x3x1x5xf32>) -> tensor<2x3x4x1x5xf32>
              %20 = stablehlo.transpose %8, dims = [0, 2, 1, 3] : (tensor<2x1x3x5xf32>) -> tensor<2x3x1x5xf32>
              %21 = stablehlo.broadcast_in_dim %20, dims = [0, 1, 3, 4] : (tensor<2x3x1x5xf32>) -> tensor<2x3x4x1x5xf32>
              %22 = stablehlo.transpose %11, dims = [0, 2, 3, 1, 4] : (tensor<2x1x3x4x6xf32>) -> tensor<2x3x4x1x6xf32>
              %23 = stablehlo.transpose %14, dims = [0, 2, 3, 1] : (tensor<2x1x3x4xf32>) -> tensor<2x3x4x1xf32>
              %24 = stablehlo.transpose %17, dims = [0, 2, 3, 1] : (tensor<2x1x3x4xf32>) -> tensor<2x3x4x1xf32>
              %25 = stablehlo.constant dense<0> : tensor<i32>
              %26 = stablehlo.compare EQ, %arg6, %25, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
              %27 = stablehlo.broadcast_in_dim %26, dims = [] : (tensor<i1>) -> tensor<2x3x4x5x6xi1>
              %28 = stablehlo.constant dense<0x00000000> : tensor<2x3x4x5x6xf32>
              %29 = stablehlo.select %27, %28, %arg5 : tensor<2x3x4x5x6xi1>, tensor<2x3x4x5x6xf32>
              %30 = stablehlo.reshape %19 : (tensor<2x3x4x1x5xf32>) -> tensor<2x3x4x5xf32>
              %31 = stablehlo.reshape %21 : (tensor<2x3x4x1x5xf32>) -> tensor<2x3x4x5xf32>
              %32 = stablehlo.reshape %22 : (tensor<2x3x4x1x6xf32>) -> tensor<2x3x4x6xf32>
              %33 = stablehlo.reshape %23 : (tensor<2x3x4x1xf32>) -> tensor<2x3x4xf32>
              %34 = stablehlo.reshape %24 : (tensor<2x3x4x1xf32>) -> tensor<2x3x4xf32>
              %35 = stablehlo.exponential %33 : tensor<2x3x4xf32>
              %36 = stablehlo.broadcast_in_dim %35, dims = [0, 1, 2] : (tensor<2x3x4xf32>) -> tensor<2x3x4x5x6xf32>
              %37 = stablehlo.multiply %29, %36 : tensor<2x3x4x5x6xf32>
              %38 = stablehlo.broadcast_in_dim %31, dims = [0, 1, 2, 3] : (tensor<2x3x4x5xf32>) -> tensor<2x3x4x5x6xf32>
              %39 = stablehlo.multiply %37, %38 : tensor<2x3x4x5x6xf32>
              %40 = stablehlo.constant dense<0x00000000> : tensor<f32>
              %41 = stablehlo.reduce(%39 init: %40) applies stablehlo.add across dimensions = [3] : (tensor<2x3x4x5x6xf32>, tensor<f32>) -> tensor<2x3x4x6xf32>
              %42 = stablehlo.subtract %32, %41 : tensor<2x3x4x6xf32>
              %43 = stablehlo.broadcast_in_dim %34, dims = [0, 1, 2] : (tensor<2x3x4xf32>) -> tensor<2x3x4x6xf32>
              %44 = stablehlo.multiply %42, %43 : tensor<2x3x4x6xf32>
              %45 = stablehlo.broadcast_in_dim %31, dims = [0, 1, 2, 3] : (tensor<2x3x4x5xf32>) -> tensor<2x3x4x5x6xf32>
              %46 = stablehlo.broadcast_in_dim %44, dims = [0, 1, 2, 4] : (tensor<2x3x4x6xf32>) -> tensor<2x3x4x5x6xf32>
              %47 = stablehlo.multiply %45, %46 : tensor<2x3x4x5x6xf32>
              %48 = stablehlo.add %37, %47 : tensor<2x3x4x5x6xf32>
              %49 = stablehlo.broadcast_in_dim %30, dims = [0, 1, 2, 3] : (tensor<2x3x4x5xf32>) -> tensor<2x3x4x5x6xf32>
              %50 = stablehlo.multiply %48, %49 : tensor<2x3x4x5x6xf32>
              %51 = stablehlo.constant dense<0x00000000> : tensor<f32>
              %52 = stablehlo.reduce(%50 init: %51) applies stablehlo.add across dimensions = [3] : (tensor<2x3x4x5x6xf32>, tensor<f32>) -> tensor<2x3x4x6xf32>
              %53 = stablehlo.reshape %52 : (tensor<2x3x4x6xf32>) -> tensor<2x3x4x1x6xf32>
              %54 = stablehlo.concatenate %48, %53, dim = 3 : (tensor<2x3x4x5x6xf32>, tensor<2x3x4x1x6xf32>) -> tensor<2x3x4x6x6xf32>
              return %54 : tensor<2x3x4x6x6xf32>
            }
        "#]],
    );
}
