//! Modules that are none, or not whole.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use support::*;
use tracewright_runtime::*;

const IDENTITY: &str = "func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %a, %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}";

#[test]
fn garbage_is_refused() {
    let runtime = local();
    let garbage: Vec<u8> = (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for bytes in [&[][..], &garbage[..1], &garbage[..64], &garbage, &[0; 4096]] {
        let error = VmModule::load(&runtime, bytes, &[]).err().unwrap();
        assert!(matches!(error, RuntimeError::NotAModule(_)), "{} bytes: {error:?}", bytes.len());
    }
}

#[test]
fn a_truncated_module_is_refused_wherever_it_ends() {
    let vmfb = vmfb(IDENTITY);
    let runtime = local();
    VmModule::load(&runtime, &vmfb, &[]).unwrap();
    let cuts = (0..vmfb.len()).step_by(vmfb.len() / 40 + 1).chain([vmfb.len() - 1]);
    for cut in cuts {
        let error = VmModule::load(&runtime, &vmfb[..cut], &[]).err().map(|e| (cut, vmfb.len(), e));
        let (_, _, error) = error.unwrap_or_else(|| panic!("{cut} of {} bytes load", vmfb.len()));
        assert!(matches!(error, RuntimeError::NotAModule(_)), "{cut} of {} bytes: {error:?}", vmfb.len());
    }
}

#[test]
fn a_module_of_another_version_is_refused() {
    let mut vmfb = vmfb(IDENTITY);
    // The bytecode version of IREE 3.13, major and minor, as the module's header has it.
    let at = vmfb.windows(4).position(|window| window == [0, 0, 17, 0]).expect("a version");
    vmfb[at + 2] -= 1;
    let error = VmModule::load(&local(), &vmfb, &[]).err().unwrap();
    assert!(matches!(error, RuntimeError::OtherVersion(_)), "{error:?}");
    let message = error.to_string();
    assert!(message.contains("has 16.0") && message.contains(WHEEL), "{message}");
}

#[test]
fn a_module_for_another_processor_is_refused() {
    let (_folder, cache) = cache();
    let triple = if cfg!(target_arch = "aarch64") { "x86_64-linux-gnu" } else { "aarch64-linux-gnu" };
    let options = CompileOptions::new(format!("{triple}:generic").parse().unwrap(), true);
    let compiled = compile(&compiler(), &module(IDENTITY), &options, &cache).unwrap();
    let error = VmModule::load(&local(), &compiled.vmfb, &[]).err().unwrap();
    assert!(matches!(error, RuntimeError::OtherVersion(_)), "{error:?}");
}

/// Loads with a byte changed may fail or not; they never end the process. The changes stay inside the
/// headers and tables, which IREE verifies; what is behind them is machine code.
#[test]
fn a_module_with_a_wrong_byte_in_its_header_is_survived() {
    let vmfb = vmfb(IDENTITY);
    let runtime = local();
    for at in 0..200 {
        let mut damaged = vmfb.clone();
        damaged[at] ^= 0x55;
        let _ = VmModule::load(&runtime, &damaged, &[]);
    }
    VmModule::load(&runtime, &vmfb, &[]).unwrap();
}
