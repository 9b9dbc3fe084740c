// iree-compile 3.13 gives wrong numbers for a product of batches with an operand that is computed with a broadcast, where it tiles the
// data and the last tile of that operand is more than half full.
//
//     iree-compile docs/upstream/padded_tile.mlir -o OUT.vmfb --iree-input-type=stablehlo --iree-hal-target-device=local \
//         --iree-hal-local-target-device-backends=llvm-cpu --iree-llvmcpu-target-cpu=x86-64-v3 --iree-opt-level=O1 --iree-opt-data-tiling=true
//     iree-run-module --module=OUT.vmfb --device=local-sync --function=main --input=1x2x1x4xf32=1 --input=1x2x7x4xf32=1 \
//         --input=1x2x7xf32="1 2 3 4 5 6 7 8 9 10 11 12 13 14"
//
// gives …[[36 40 44 48 52 56 0]]] in the second batch; right is [[32 36 40 44 48 52 56]]. The first batch is right. Tiles have 4 rows for
// x86-64-v2, 8 for x86-64-v3, 16 with AVX-512: 7 rows are wrong in tiles of 4 and of 8, 13 in tiles of 8 and of 16, and 8, 9 or 17 rows
// in none. Broadcasts of a scalar do no harm. With --iree-opt-data-tiling=false it is right. An `optimization_barrier` between operand and
// product helps: the way round (lower/src/legalize/product_of_broadcast.rs).
func.func @main(%q: tensor<1x2x1x4xf32>, %k: tensor<1x2x7x4xf32>, %s: tensor<1x2x7xf32>) -> tensor<1x2x1x7xf32> {
  %b = stablehlo.broadcast_in_dim %s, dims = [0, 1, 2] : (tensor<1x2x7xf32>) -> tensor<1x2x7x4xf32>
  %m = stablehlo.multiply %k, %b : tensor<1x2x7x4xf32>
  %r = stablehlo.dot_general %q, %m, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (tensor<1x2x1x4xf32>, tensor<1x2x7x4xf32>) -> tensor<1x2x1x7xf32>
  return %r : tensor<1x2x1x7xf32>
}
