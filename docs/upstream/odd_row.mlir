// iree-compile 3.13 does not compile a norm of one row of bf16 whose features are odd in number, in front of a product with data tiling.
//
//     iree-compile docs/upstream/odd_row.mlir -o OUT.vmfb --iree-hal-target-device=local --iree-hal-local-target-device-backends=llvm-cpu \
//         --iree-llvmcpu-target-cpu=sapphirerapids --iree-opt-level=O1 --iree-opt-data-tiling=true
//
// error: 'iree_linalg_ext.map_store' op write affecting operations on global resources are restricted to workgroup distributed contexts.
//
// The row is stored padded to [31, 2], the layout of `vdpbf16ps`, by a loop that is not distributed. With 60 features, or with
// --iree-opt-data-tiling=false, or for a processor without instructions for bf16, it compiles. Also if the row goes through an
// `optimization_barrier`: the way round (lower/src/legalize/odd_row.rs).
util.global private @norm = #flow.parameter.named<"model"::"norm"> : tensor<61xf32>
util.global private @head = #flow.parameter.named<"model"::"head"> : tensor<69x61xbf16>

func.func @main(%x: tensor<1x61xbf16>) -> tensor<1x69xf32> {
  %norm = util.global.load @norm : tensor<61xf32>
  %head = util.global.load @head : tensor<69x61xbf16>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %features = stablehlo.constant dense<61.0> : tensor<1xf32>
  %wide = stablehlo.convert %x : (tensor<1x61xbf16>) -> tensor<1x61xf32>
  %square = stablehlo.multiply %wide, %wide : tensor<1x61xf32>
  %sum = stablehlo.reduce(%square init: %zero) applies stablehlo.add across dimensions = [1] : (tensor<1x61xf32>, tensor<f32>) -> tensor<1xf32>
  %mean = stablehlo.divide %sum, %features : tensor<1xf32>
  %factor = stablehlo.rsqrt %mean : tensor<1xf32>
  %factors = stablehlo.broadcast_in_dim %factor, dims = [0] : (tensor<1xf32>) -> tensor<1x61xf32>
  %normalized = stablehlo.multiply %wide, %factors : tensor<1x61xf32>
  %weights = stablehlo.broadcast_in_dim %norm, dims = [1] : (tensor<61xf32>) -> tensor<1x61xf32>
  %scaled = stablehlo.multiply %normalized, %weights : tensor<1x61xf32>
  %narrow = stablehlo.convert %scaled : (tensor<1x61xf32>) -> tensor<1x61xbf16>
  %logits = stablehlo.dot_general %narrow, %head, contracting_dims = [1] x [1] : (tensor<1x61xbf16>, tensor<69x61xbf16>) -> tensor<1x69xf32>
  return %logits : tensor<1x69xf32>
}
