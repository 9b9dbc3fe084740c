// iree-compile 3.13 computes the minimum of signed integers from the initial value of unsigned ones on graphics processors of NVIDIA
// and AMD: it is never above -1, and the maximum never below 0.
//
//     iree-compile docs/upstream/smallest_integer.mlir --iree-hal-target-device=cuda --iree-cuda-target=sm_80 -o OUT.vmfb \
//         --iree-hal-dump-executable-binaries-to=FOLDER
//     grep -ho "min.s32.*, -1;" FOLDER/*.ptx
//
// prints `min.s32 %r13, %r12, -1;`, and the same once more for what the warps found. The result is -1 on an NVIDIA H200, expected
// the smallest number. Way round: the maximum of numbers that are not negative (lower/src/legalize/largest_integer.rs).
func.func @main(%x: tensor<1x1024xi32>) -> tensor<1xi32> {
  %i = stablehlo.constant dense<2147483647> : tensor<i32>
  %r = stablehlo.reduce(%x init: %i) applies stablehlo.minimum across dimensions = [1] : (tensor<1x1024xi32>, tensor<i32>) -> tensor<1xi32>
  return %r : tensor<1xi32>
}
