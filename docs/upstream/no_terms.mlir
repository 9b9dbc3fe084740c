// iree-compile 3.13 ends with a signal (SIGFPE, a division by zero) where a product sums nothing.
//
//     iree-compile docs/upstream/no_terms.mlir -o OUT.vmfb --iree-input-type=stablehlo --iree-hal-target-device=local \
//         --iree-hal-local-target-device-backends=llvm-cpu --iree-llvmcpu-target-cpu=x86-64-v3
//
// Right is a tensor of zeros. The reference interpreter of jaxlib 0.10.2 ends in the same way.
func.func @main(%x: tensor<2x0xf32>, %y: tensor<3x0xf32>) -> tensor<2x3xf32> {
  %zeros = stablehlo.dot_general %x, %y, contracting_dims = [1] x [1] : (tensor<2x0xf32>, tensor<3x0xf32>) -> tensor<2x3xf32>
  return %zeros : tensor<2x3xf32>
}
