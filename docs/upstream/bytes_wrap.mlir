// iree-compile 3.13: a product of several rows whose operand is made of i8 by a chain of operations gives other numbers on a Vulkan
// device than on a processor (Mesa 22.3's llvmpipe): what is between the operations is not cut to 8 bits. With one row, or with
// a smaller operand, the numbers are equal.
//
//     iree-compile docs/upstream/bytes_wrap.mlir --iree-hal-target-device=vulkan --iree-vulkan-target=llvmpipe --iree-opt-level=O1 \
//         --iree-opt-aggressively-propagate-transposes -o OUT.vmfb
//     iree-run-module --device=vulkan --module=OUT.vmfb --function=main --input=@w.npy --input=@x.npy
//
// Way round: none; such programs are refused (lower/targets/src/device/vulkan.rs).
func.func @main(%w: tensor<64x5x16xi8>, %x: tensor<8x5x16xi8>) -> tensor<5x8x64xi32> {
  %c = stablehlo.constant dense<16> : tensor<64x5x16xi8>
  %m = stablehlo.multiply %w, %c : tensor<64x5x16xi8>
  %d = stablehlo.divide %m, %c : tensor<64x5x16xi8>
  %s = stablehlo.subtract %w, %d : tensor<64x5x16xi8>
  %u = stablehlo.divide %s, %c : tensor<64x5x16xi8>
  %r = stablehlo.dot_general %x, %u, batching_dims = [1] x [1], contracting_dims = [2] x [2] : (tensor<8x5x16xi8>, tensor<64x5x16xi8>) -> tensor<5x8x64xi32>
  return %r : tensor<5x8x64xi32>
}
