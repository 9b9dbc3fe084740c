// iree-compile 3.13 does not compile a product of matrices with an unknown extent that belong to no batch.
//
//     iree-compile docs/upstream/rank_two.mlir -o OUT.vmfb --iree-input-type=stablehlo --iree-hal-target-device=local \
//         --iree-hal-local-target-device-backends=llvm-cpu
//
// error: 'stablehlo.reshape' op result #0 must be statically shaped or single bounded dimension tensor …
//
// It brings the product into the form of a matrix product by reshapes, which must not have unknown extents. Of products with a
// batch axis it makes another form. Way round: `bounded_sdpa` is refused for keys without a batch (trace/ops/src/ops/bounded_sdpa.rs).
func.func @main(%q: tensor<1x64xf32>, %k: tensor<?x64xf32>) -> tensor<1x?xf32> {
  %scores = stablehlo.dot_general %q, %k, contracting_dims = [1] x [1] : (tensor<1x64xf32>, tensor<?x64xf32>) -> tensor<1x?xf32>
  return %scores : tensor<1x?xf32>
}
