// iree-compile 3.13 does not compile a product with data tiling of rows that were the results of another one, heads put side by side.
//
//     iree-compile docs/upstream/heads_side_by_side.mlir -o OUT.vmfb --iree-input-type=stablehlo --iree-hal-target-device=local \
//         --iree-hal-local-target-device-backends=llvm-cpu --iree-llvmcpu-target-cpu=x86-64-v3 --iree-opt-level=O1 \
//         --iree-opt-data-tiling=true --iree-opt-aggressively-propagate-transposes
//
// error: One or more operations with large vector sizes (16384 bytes) were found:
//
// The transposition and the reshape become part of the packing, which is one vector of all eight rows, `vector<8x2x4x64xf32>`. Without
// either of the two flags, or for x86-64-v4, it compiles. Way round: compiled once more without data tiling
// (`CompileOptions::instead_after`, run/runtime/src/compiler.rs).
func.func @main(%p: tensor<2x4x8x512xf32>, %v: tensor<2x512x64xf32>, %w: tensor<512x512xf32>) -> tensor<8x512xf32> {
  %x = stablehlo.dot_general %p, %v, batching_dims = [0] x [0], contracting_dims = [3] x [1] : (tensor<2x4x8x512xf32>, tensor<2x512x64xf32>) -> tensor<2x4x8x64xf32>
  %tokens = stablehlo.transpose %x, dims = [2, 0, 1, 3] : (tensor<2x4x8x64xf32>) -> tensor<8x2x4x64xf32>
  %rows = stablehlo.reshape %tokens : (tensor<8x2x4x64xf32>) -> tensor<8x512xf32>
  %y = stablehlo.dot_general %rows, %w, contracting_dims = [1] x [1] : (tensor<8x512xf32>, tensor<512x512xf32>) -> tensor<8x512xf32>
  return %y : tensor<8x512xf32>
}
