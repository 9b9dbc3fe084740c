//! Weights that a program reads where they lie.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::*;
use tracewright_runtime::*;

const WEIGHTS: &str = r#"
util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<4xf32>
util.global private @b = #flow.parameter.named<"model"::"b"> : tensor<4xf32>
func.func @apply(%x: tensor<4xf32>) -> tensor<4xf32> {
  %w = util.global.load @w : tensor<4xf32>
  %b = util.global.load @b : tensor<4xf32>
  %0 = stablehlo.multiply %x, %w : tensor<4xf32>
  %1 = stablehlo.add %0, %b : tensor<4xf32>
  return %1 : tensor<4xf32>
}
func.func @weight() -> tensor<4xf32> { %w = util.global.load @w : tensor<4xf32>  return %w : tensor<4xf32> }
func.func @hoisted() -> tensor<4xf32> {
  %w = util.global.load @w : tensor<4xf32>
  %0 = stablehlo.negate %w : tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func @set(%a: tensor<4xf32>, %at: i32) -> tensor<4xf32> {
  %i = tensor.from_elements %at : tensor<i32>
  %v = stablehlo.constant dense<9.0> : tensor<1xf32>
  %0 = stablehlo.dynamic_update_slice %a, %v, %i : (tensor<4xf32>, tensor<1xf32>, tensor<i32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}"#;

/// Stands for a mapped file: aligned, and it counts how many are left.
#[repr(C, align(64))]
struct Mapping([u8; 256], Arc<AtomicUsize>);

impl Mapping {
    /// `w` is 1, 2, 3, 4 at byte 64, and `b` is 10, 20, 30, 40 at byte 128.
    fn shared(alive: &Arc<AtomicUsize>) -> SharedBytes {
        alive.fetch_add(1, Ordering::SeqCst);
        let mut bytes = [0xff; 256];
        bytes[64..80].copy_from_slice(&support::bytes(&[1., 2., 3., 4.]));
        bytes[128..144].copy_from_slice(&support::bytes(&[10., 20., 30., 40.]));
        Arc::new(Self(bytes, Arc::clone(alive)))
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

fn parameters(scope: &str, entries: &[(&str, ParameterData)]) -> Parameters {
    let entries = entries.iter().map(|(name, entry)| ((*name).to_owned(), entry.clone())).collect();
    Parameters { scope: scope.into(), bytes: Mapping::shared(&Arc::default()), entries }
}

fn good() -> [(&'static str, ParameterData); 2] {
    [("w", ParameterData::Range(64..80)), ("b", ParameterData::Range(128..144))]
}

#[test]
fn parameters_are_read_where_they_lie() {
    let alive = Arc::default();
    let runtime = local();
    let parameters = Parameters { bytes: Mapping::shared(&alive), ..parameters("model", &good()) };
    assert_eq!(parameters.misaligned().count(), 0);
    let program = VmModule::load(&runtime, vmfb(WEIGHTS), &[parameters]).unwrap();
    assert_eq!(alive.load(Ordering::SeqCst), 1, "the program keeps the bytes");
    let result = call(&program, "apply", vec![tensor(&runtime, &[4], &[1., 1., 2., 2.])]);
    assert_eq!(result, [11., 22., 36., 48.]);

    // A weight that is returned is a copy: neither the mapping nor the program is at the caller's mercy.
    let mut weight = program.function("weight").unwrap().call(vec![]).unwrap();
    let weight = weight.pop().unwrap().buffer().unwrap();
    assert_eq!(call(&program, "set", vec![weight.into(), 1.into()]), [1., 9., 3., 4.]);
    // So is what the program computed from it when it was loaded.
    for _ in 0..2 {
        let mut hoisted = program.function("hoisted").unwrap().call(vec![]).unwrap();
        let hoisted = hoisted.pop().unwrap().buffer().unwrap();
        assert_eq!(call(&program, "set", vec![hoisted.into(), 1.into()]), [-1., 9., -3., -4.]);
        assert_eq!(call(&program, "hoisted", vec![]), [-1., -2., -3., -4.]);
    }
    let mut weight = program.function("weight").unwrap().call(vec![]).unwrap();
    drop(program);
    assert_eq!(alive.load(Ordering::SeqCst), 0, "nobody needs the bytes any more");
    assert_eq!(floats(&weight.pop().unwrap().buffer().unwrap().read().unwrap()), [1., 2., 3., 4.]);
    assert_eq!(runtime.transfers(), Transfers { host_to_device: 16, device_to_host: 16 * 7 });
}

#[test]
fn a_misaligned_parameter_is_copied_and_a_splat_is_made() {
    let runtime = local();
    let splat = ParameterData::Splat { length: 16, pattern: 0.5f32.to_le_bytes().into() };
    let parameters = parameters("model", &[("w", ParameterData::Range(68..84)), ("b", splat)]);
    assert_eq!(parameters.misaligned().collect::<Vec<_>>(), ["w"]);
    let program = VmModule::load(&runtime, vmfb(WEIGHTS), &[parameters]).unwrap();
    let result = call(&program, "apply", vec![tensor(&runtime, &[4], &[1., 1., 2., 0.])]);
    assert_eq!(result[..3], [2.5, 3.5, 8.5]);
}

#[test]
fn wrong_parameters_are_refused() {
    let vmfb = vmfb(WEIGHTS);
    let runtime = local();
    let load = |parameters: &[Parameters]| VmModule::load(&runtime, &vmfb, parameters).err().unwrap();

    for given in [&[][..], &[parameters("other", &good())], &[parameters("model", &good()[..1])]] {
        let error = load(given);
        assert!(matches!(error, RuntimeError::MissingParameter(_)), "{error:?}");
    }
    let error = load(&[parameters("model", &good()[..1])]).to_string();
    assert!(error.contains("key 'b'"), "{error}");

    let short = [("w", ParameterData::Range(64..76)), ("b", ParameterData::Range(128..144))];
    let error = load(&[parameters("model", &short)]);
    assert!(matches!(error, RuntimeError::ShortParameter(_)), "{error:?}");

    #[allow(clippy::reversed_empty_ranges, reason = "that is the mistake")]
    for range in [248..264, 1 << 40..(1 << 40) + 16, usize::MAX - 8..usize::MAX, 80..64] {
        let error = load(&[parameters("model", &[("w", ParameterData::Range(range.clone()))])]);
        assert!(matches!(&error, RuntimeError::ParameterRange { range: r, .. } if *r == range), "{error:?}");
    }
    let error = load(&[parameters("model", &[("w", ParameterData::Range(248..264))])]).to_string();
    let expected = "the parameter `w` of the scope `model` is at bytes 248 to 264 of an archive of 256 bytes; the archive may be cut off";
    assert_eq!(error, expected);

    let splat = ParameterData::Splat { length: 16, pattern: vec![0; 17] };
    let error = load(&[parameters("model", &[("w", splat)])]);
    assert!(matches!(error, RuntimeError::Parameters { .. }), "{error:?}");

    // The runtime is none the worse.
    VmModule::load(&runtime, &vmfb, &[parameters("model", &good())]).unwrap();
}
