// iree-compile 3.13 does not compile a product with data tiling if its results and a slice of another tensor are the operands of an
// operation whose results another product reads.
//
//     iree-compile docs/upstream/product_beside_slice.mlir -o OUT.vmfb --iree-input-type=stablehlo --iree-hal-target-device=local \
//         --iree-hal-local-target-device-backends=llvm-cpu --iree-llvmcpu-target-cpu=x86-64-v3 --iree-opt-level=O1 \
//         --iree-opt-data-tiling=true --iree-opt-aggressively-propagate-transposes
//
// error: 'func.func' op exceeded stack allocation limit of 32768 bytes for function. Got 49152 bytes
//
// With other extents it compiles for minutes (32 features for x86-64-v4, in bf16), or the error is about large vector sizes (512 features).
// The slice is packed in the loop that unpacks the first product and packs the operand of the second one. Without data tiling, without
// the slice, or if the slice goes through an `optimization_barrier`, it compiles in a second: the last is the way round
// (lower/src/legalize/product_beside_slice.rs).
func.func @main(%x: tensor<48x24xf32>, %v: tensor<66x24xf32>, %both: tensor<48x132xf32>, %w: tensor<30x66xf32>) -> tensor<48x30xf32> {
  %a = stablehlo.exponential %x : tensor<48x24xf32>
  %y = stablehlo.dot_general %a, %v, contracting_dims = [1] x [1] : (tensor<48x24xf32>, tensor<66x24xf32>) -> tensor<48x66xf32>
  %gates = stablehlo.slice %both [0:48, 66:132] : (tensor<48x132xf32>) -> tensor<48x66xf32>
  %gated = stablehlo.multiply %y, %gates : tensor<48x66xf32>
  %z = stablehlo.dot_general %gated, %w, contracting_dims = [1] x [1] : (tensor<48x66xf32>, tensor<30x66xf32>) -> tensor<48x30xf32>
  return %z : tensor<48x30xf32>
}
