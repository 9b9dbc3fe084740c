// iree-compile 3.13: a reduction that counts its operand's places does not compile to SPIR-V for most processors.
//
//     iree-compile docs/upstream/iota_in_reduction.mlir --iree-hal-target-device=vulkan --iree-vulkan-target=ampere -o OUT.vmfb
//
// error: failed to legalize operation 'memref.alloc': … () -> memref<1024xindex, #spirv.storage_class<Workgroup>>
//
// It compiles for CUDA, for Vulkan's baseline (`vp_android_baseline_2022`) and for `llvmpipe`. Way round: an
// `optimization_barrier` in front of the reduction (lower/src/legalize/iota_in_reduction.rs).
func.func @main(%x: tensor<1024xi32>) -> tensor<i32> {
  %i = stablehlo.iota dim = 0 : tensor<1024xi32>
  %s = stablehlo.add %i, %x : tensor<1024xi32>
  %z = stablehlo.constant dense<2147483647> : tensor<i32>
  %r = stablehlo.reduce(%s init: %z) applies stablehlo.minimum across dimensions = [0] : (tensor<1024xi32>, tensor<i32>) -> tensor<i32>
  return %r : tensor<i32>
}
