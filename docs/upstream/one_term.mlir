// iree-compile 3.13 does not compile a product that sums one term each, of a reshaped operand, in a type wider than its own.
//
//     iree-compile docs/upstream/one_term.mlir -o OUT.vmfb --iree-input-type=stablehlo --iree-hal-target-device=local \
//         --iree-hal-local-target-device-backends=llvm-cpu --iree-llvmcpu-target-cpu=x86-64-v3
//
// error: failed to legalize unresolved source materialization from ('tensor<3x3x2x1xf16>') to ('tensor<3x3x2x1xf32>') that remained live
// after conversion. The product becomes a multiplication whose operands are to be f32, and the reshape stays f16. With operands converted
// to f32 before it compiles, unless another product reads the reshaped tensor too.
func.func @main(%x: tensor<18x1xf16>) -> tensor<3x3x2x2xf32> {
  %rows = stablehlo.reshape %x : (tensor<18x1xf16>) -> tensor<3x3x2x1xf16>
  %products = stablehlo.dot_general %rows, %rows, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [3] : (tensor<3x3x2x1xf16>, tensor<3x3x2x1xf16>) -> tensor<3x3x2x2xf32>
  return %products : tensor<3x3x2x2xf32>
}
