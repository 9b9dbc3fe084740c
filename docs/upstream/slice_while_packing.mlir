// iree-compile 3.13 does not compile a product with data tiling of batches that are cut to a length which is known when it runs.
//
//     iree-compile docs/upstream/slice_while_packing.mlir -o OUT.vmfb --iree-input-type=stablehlo --iree-hal-target-device=local \
//         --iree-hal-local-target-device-backends=llvm-cpu --iree-llvmcpu-target-cpu=x86-64-v3 --iree-opt-level=O1 --iree-opt-data-tiling=true
//
// error: 'func.func' op exceeded stack allocation limit of 32768 bytes for function. Got 33024 bytes
//
// (66560 for x86-64-v4.) The slice and the packing become one loop, whose lines of unknown length lie on the stack. With
// --iree-opt-data-tiling=false, or a length that is fixed, or the slice in a `flow.dispatch.region` of its own it compiles:
// the last is the way round (lower/src/bounded_sdpa.rs).
func.func @main(%q: tensor<2x1x64xf32>, %k: tensor<2x4096x64xf32>, %used: index) -> tensor<2x1x?xf32> {
  %keys = tensor.extract_slice %k[0, 0, 0] [2, %used, 64] [1, 1, 1] : tensor<2x4096x64xf32> to tensor<2x?x64xf32>
  %scores = stablehlo.dot_general %q, %keys, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<2x1x64xf32>, tensor<2x?x64xf32>) -> tensor<2x1x?xf32>
  return %scores : tensor<2x1x?xf32>
}
