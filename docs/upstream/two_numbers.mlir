// iree-compile 3.13 does not compile a choice behind which both of two numbers of the host are read as tensors, one of them in its
// branches, too.
//
//     iree-compile docs/upstream/two_numbers.mlir -o OUT.vmfb --iree-input-type=stablehlo --iree-hal-target-device=local \
//         --iree-hal-local-target-device-backends=llvm-cpu --iree-llvmcpu-target-cpu=x86-64-v3
//
// error: 'stream.async.dispatch' op : streamable op expected to be in an execution region
//
// One dispatch makes tensors of both numbers, and is left where it stands, in front of the `scf.if`. Way round: no choice in functions
// with chunks of queries, which get where a chunk begins and how many of its tokens count (lower/src/bounded_sdpa.rs), and none in networks
// with rings, which read both (lower/src/expand.rs).
func.func @main(%a: i32, %b: i32, %x: tensor<27xi32>) -> tensor<27xi32> {
  %ta = tensor.from_elements %a : tensor<i32>
  %tb = tensor.from_elements %b : tensor<i32>
  %as = stablehlo.broadcast_in_dim %ta, dims = [] : (tensor<i32>) -> tensor<27xi32>
  %bs = stablehlo.broadcast_in_dim %tb, dims = [] : (tensor<i32>) -> tensor<27xi32>
  %y = stablehlo.multiply %x, %bs : tensor<27xi32>
  %i = arith.index_cast %a : i32 to index
  %c = arith.constant 5 : index
  %short = arith.cmpi ule, %i, %c : index
  %d = scf.if %short -> (tensor<27xi32>) {
    %m = stablehlo.multiply %y, %as : tensor<27xi32>
    scf.yield %m : tensor<27xi32>
  } else {
    %m = stablehlo.subtract %y, %as : tensor<27xi32>
    scf.yield %m : tensor<27xi32>
  }
  %f = stablehlo.add %d, %bs : tensor<27xi32>
  return %f : tensor<27xi32>
}
