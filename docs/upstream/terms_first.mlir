// iree-compile 3.13 gives wrong numbers for a product of batches whose left operand lies in memory with the contracted axis in front,
// then the batch, then what is kept, where it tiles the data for AVX2.
//
//     iree-compile docs/upstream/terms_first.mlir -o OUT.vmfb --iree-input-type=stablehlo --iree-hal-target-device=local \
//         --iree-hal-local-target-device-backends=llvm-cpu --iree-llvmcpu-target-cpu=x86-64-v3 --iree-opt-level=O1 --iree-opt-data-tiling=true
//     iree-run-module --module=OUT.vmfb --device=local-sync --function=main --input=4x2x6xf32=1 --input=2x5x4xf32=1
//
// gives …[4 4 4 4 4][0 0 0 0 0][0 0 0 0 0]] in the second batch; right is 4 everywhere. Every batch but the first is read at a wrong
// offset, and past the end. Whatever the order of the right operand; no other order of the left one is read wrong, and no extents that are
// whole tiles. With --iree-opt-data-tiling=false, or for x86-64-v2, it is right. A transposition in front does not help, it is joined
// with the product; one behind an `optimization_barrier` does: the way round (lower/src/legalize/product_of_terms_first.rs).
func.func @main(%x: tensor<4x2x6xf32>, %y: tensor<2x5x4xf32>) -> tensor<2x6x5xf32> {
  %r = stablehlo.dot_general %x, %y, batching_dims = [1] x [0], contracting_dims = [0] x [2] : (tensor<4x2x6xf32>, tensor<2x5x4xf32>) -> tensor<2x6x5xf32>
  return %r : tensor<2x6x5xf32>
}
