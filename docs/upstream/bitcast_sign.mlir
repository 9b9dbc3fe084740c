// iree-compile 3.13 widens bytes without their sign where they are a number of 32 bits that was taken apart.
//
//     iree-compile docs/upstream/bitcast_sign.mlir -o OUT.vmfb --iree-hal-target-device=local --iree-hal-local-target-device-backends=llvm-cpu \
//         --iree-llvmcpu-target-cpu=x86-64-v3
//     iree-run-module --module=OUT.vmfb --device=local-sync --function=main --input=1xi32=129
//
// gives 4xi32=129 0 0 0; right is -127 0 0 0. Of bytes that are loaded as such the sign is kept, and so it is by shifts.
stream.executable private @kernels {
  stream.executable.export public @widen workgroups() -> (index, index, index) {
    %one = arith.constant 1 : index
    stream.return %one, %one, %one : index, index, index
  }
  builtin.module {
    func.func @widen(%b0: !stream.binding, %b1: !stream.binding) {
      %zero = arith.constant 0 : index
      %x = stream.binding.subspan %b0[%zero] : !stream.binding -> memref<1xi32>
      %y = stream.binding.subspan %b1[%zero] : !stream.binding -> memref<4xi32>
      %word = memref.load %x[%zero] : memref<1xi32>
      %words = vector.broadcast %word : i32 to vector<1xi32>
      %bytes = vector.bitcast %words : vector<1xi32> to vector<4xi8>
      %wide = arith.extsi %bytes : vector<4xi8> to vector<4xi32>
      vector.store %wide, %y[%zero] : memref<4xi32>, vector<4xi32>
      return
    }
  }
}
func.func @main(%x: tensor<1xi32>) -> tensor<4xi32> {
  %y = flow.dispatch @kernels::@widen(%x) : (tensor<1xi32>) -> tensor<4xi32>
  return %y : tensor<4xi32>
}
