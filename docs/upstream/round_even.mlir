// iree-compile 3.13 turns `math.roundeven` of a vector into some thirty-five instructions, where processors have one (`vrndscaleps` on
// x86-64, `frintn` on AArch64).
//
//     iree-compile docs/upstream/round_even.mlir -o OUT.vmfb --iree-hal-target-device=local --iree-hal-local-target-device-backends=llvm-cpu \
//         --iree-llvmcpu-target-cpu=x86-64-v4 --iree-hal-dump-executable-intermediates-to=FOLDER
//     grep -ho vpsrlvd FOLDER/*.s
//
// prints vpsrlvd twice, and should print nothing: the exponent is taken out and the bits behind the point are looked at, which is what
// MLIR's `expand-ops` of `math` does for machines without an instruction. The same by LLVM's own intrinsic, `llvm.roundeven`, is the
// instruction; kernels of Tracewright say it so.
func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
  %y = stablehlo.round_nearest_even %x : tensor<64xf32>
  return %y : tensor<64xf32>
}
