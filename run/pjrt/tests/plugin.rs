//! Calls modules through the CPU plugin that `cargo xtask setup --xla` installs. Without it, the tests that need it pass
//! unseen, unless `TRACEWRIGHT_TEST_XLA` is set.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ops::{ElementType, TensorType};
use targets::Mesh;
use tracewright_pjrt::{
    Client, PjrtArgument, PjrtBuffer, PjrtError, Placement, Plugin, XlaOptions, find_plugin,
};

/// A client takes all cores; one at a time is enough.
static ONE: Mutex<()> = Mutex::new(());

fn plugin_path() -> Option<PathBuf> {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tracewright/xla-cpu/lib");
    let pythons = fs::read_dir(&installed).into_iter().flatten().flatten();
    let folders: Vec<PathBuf> = pythons.map(|python| python.path().join("site-packages")).collect();
    let found = find_plugin("cpu", &folders);
    assert!(
        found.is_ok() || env::var_os("TRACEWRIGHT_TEST_XLA").is_none(),
        "no plugin in `{}`; `cargo xtask setup --xla` installs it",
        installed.display()
    );
    found.ok()
}

fn cpu() -> Option<(Client, MutexGuard<'static, ()>)> {
    let (plugin, guard) = plugin()?;
    let client = plugin.client().unwrap();
    assert_eq!(client.platform(), "cpu");
    Some((client, guard))
}

fn plugin() -> Option<(Plugin, MutexGuard<'static, ()>)> {
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let plugin = Plugin::load(&plugin_path()?).unwrap();
    assert!(plugin.version() >= (0, tracewright_pjrt::OLDEST_MINOR));
    Some((plugin, guard))
}

fn floats(buffer: &PjrtBuffer) -> Vec<f32> {
    buffer.read().unwrap().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn upload(client: &Client, numbers: &[f32]) -> PjrtBuffer {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    client.upload(&Placement::on(0), &TensorType::new(ElementType::F32, [numbers.len()]), &bytes).unwrap()
}

const ADD: &str = "func.func @main(
    %a: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<4xf32>
) -> (tensor<4xf32>, tensor<2x2xi32>) {
  %0 = stablehlo.add %a, %b : tensor<4xf32>
  %1 = stablehlo.convert %b : (tensor<4xf32>) -> tensor<4xi32>
  %2 = stablehlo.reshape %1 : (tensor<4xi32>) -> tensor<2x2xi32>
  return %0, %2 : tensor<4xf32>, tensor<2x2xi32>
}";

#[test]
fn a_module_computes() {
    let Some((client, _guard)) = cpu() else { return };
    let device = client.devices().next().unwrap();
    assert_eq!(device.ordinal, 0);
    let add = client.compile(ADD, 0..1, &XlaOptions::default()).unwrap();
    let shown: Vec<String> = add.results().map(TensorType::to_string).collect();
    assert_eq!(shown, ["f32[4]", "i32[2,2]"]);
    let b = upload(&client, &[10.0, 20.0, 30.0, 40.0]);
    let mut a = upload(&client, &[1.0, 2.0, 3.0, 4.0]);
    for round in 1..=3 {
        let mut results =
            add.execute(vec![PjrtArgument::Donated(a), PjrtArgument::Kept(&b)]).unwrap().into_iter();
        a = results.next().unwrap();
        let of = |start: f32, step: f32| start + step * round as f32;
        assert_eq!(floats(&a), [of(1.0, 10.0), of(2.0, 20.0), of(3.0, 30.0), of(4.0, 40.0)]);
        let converted = results.next().unwrap();
        assert_eq!(converted.read_element(2).unwrap(), 30i32.to_le_bytes());
        assert_eq!(converted.ty().to_string(), "i32[2,2]");
    }
    assert!(matches!(a.read_element(4), Err(PjrtError::Range { .. })));
    // Two tensors of four numbers up; three times four numbers and one down.
    assert_eq!(client.transferred(), (32, 3 * 20));
}

/// A kept argument keeps its numbers, also where the module would let a result reuse its memory.
#[test]
fn a_kept_argument_survives() {
    let Some((client, _guard)) = cpu() else { return };
    let add = client.compile(ADD, 0..1, &XlaOptions::default()).unwrap();
    let [a, b] = [[1.0; 4], [2.0; 4]].map(|numbers| upload(&client, &numbers));
    for _ in 0..2 {
        let results = add.execute(vec![PjrtArgument::Kept(&a), PjrtArgument::Kept(&b)]).unwrap();
        assert_eq!(floats(&results[0]), [3.0; 4]);
        assert_eq!(floats(&a), [1.0; 4]);
    }
}

/// Another client loads the bytes of an executable, and computes the same numbers with donated arguments.
#[test]
fn an_executable_is_stored_and_loaded() {
    let Some((client, _guard)) = cpu() else { return };
    let compiled = client.compile(ADD, 0..1, &XlaOptions::default()).unwrap();
    let bytes = compiled.serialize().unwrap();
    drop((compiled, client));
    let plugin = Plugin::load(&plugin_path().unwrap()).unwrap();
    let client = plugin.client().unwrap();
    let add = client.deserialize(&bytes, 0..1).unwrap();
    assert_eq!(add.results().map(TensorType::to_string).collect::<Vec<_>>(), ["f32[4]", "i32[2,2]"]);
    let [a, b] = [[1.0; 4], [2.0; 4]].map(|numbers| upload(&client, &numbers));
    let results = add.execute(vec![PjrtArgument::Donated(a), PjrtArgument::Kept(&b)]).unwrap();
    assert_eq!(floats(&results[0]), [3.0; 4]);
    for damaged in [&bytes[..bytes.len() / 2], &[][..], &b"no executable"[..]] {
        assert!(client.deserialize(damaged, 0..1).is_err(), "{} of {} bytes", damaged.len(), bytes.len());
    }
}

/// `state + a · b`, whose sum over 4 is an all-reduce between devices, and a copy of `b`.
const MATMUL: &str = r#"module attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func @main(
      %state: tensor<2x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>, tf.aliasing_output = 0 : i32},
      %a: tensor<2x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>},
      %b: tensor<4x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>}
  ) -> (
      tensor<2x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
      tensor<4x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}
  ) {
    %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
    %1 = stablehlo.add %state, %0 : tensor<2x3xf32>
    return %1, %b : tensor<2x3xf32>, tensor<4x3xf32>
  }
}"#;

#[test]
fn a_module_is_partitioned_over_devices() {
    let Some((plugin, _guard)) = plugin() else { return };
    let client = plugin.client_with(4).unwrap();
    let mesh: Mesh = "x=2,y=2".parse().unwrap();
    let [x, y] = ["x", "y"].map(|name| vec![mesh.axis(name).unwrap().clone()]);
    let rows = Placement::new(&mesh, &[x.clone(), vec![]]);
    let put = |placement: &Placement, shape: [usize; 2], numbers: &[f32]| {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        client.upload(placement, &TensorType::new(ElementType::F32, shape), &bytes).unwrap()
    };
    let matmul = client.compile(MATMUL, 0..4, &XlaOptions::default()).unwrap();
    let matmul = matmul.returning(vec![rows.clone(), Placement::copies(0..4)]).unwrap();
    let shown: Vec<String> = matmul.results().map(TensorType::to_string).collect();
    assert_eq!(shown, ["f32[2,3]", "f32[4,3]"]);

    let a = put(&Placement::new(&mesh, &[x, y.clone()]), [2, 4], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let b: Vec<f32> = (0..12).map(|number| number as f32).collect();
    let b = put(&Placement::new(&mesh, &[y, vec![]]), [4, 3], &b);
    let mut state = client.zeros(&rows, &TensorType::new(ElementType::F32, [2, 3])).unwrap();
    // Half of `b` is on each of four devices, and a quarter of `a`. The zeros were not copied.
    assert_eq!(client.transferred(), (4 * (8 + 24), 0));
    for round in 1..=3u8 {
        let arguments = vec![PjrtArgument::Donated(state), PjrtArgument::Kept(&a), PjrtArgument::Kept(&b)];
        let mut results = matmul.execute(arguments).unwrap().into_iter();
        state = results.next().unwrap();
        let product = [60.0, 70.0, 80.0, 132.0, 158.0, 184.0].map(|number| number * f32::from(round));
        assert_eq!(floats(&state), product);
        assert_eq!(state.read_element(5).unwrap(), product[5].to_le_bytes());
        assert_eq!(floats(&results.next().unwrap()), floats(&b));
    }
    // Each round reads the state once, one of its elements, and `b` twice.
    assert_eq!(client.transferred().1, 3 * (24 + 4 + 2 * 48));

    let error = matmul.execute(vec![PjrtArgument::Kept(&upload(&client, &[1.0]))]).err().unwrap();
    assert_eq!(error.to_string(), "the tensor 0 is on the devices 0..1, expected 0..4");
}

/// Two faults of XLA's CPU backend: a maximum ignores NaN unless a setting forbids this, and an all-reduce of a maximum
/// always ignores NaN. `with_nan_as_infinity` in `lower/src/xla.rs` avoids both.
#[test]
fn a_maximum_ignores_nan() {
    let Some((client, _guard)) = cpu() else { return };
    const MAXIMUM: &str = r#"module attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
      sdy.mesh @mesh = <["x"=2]>
      func.func @main(%a: tensor<64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<f32> {
        %0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
        %1 = stablehlo.reduce(%a init: %0) applies stablehlo.maximum across dimensions = [0]
          : (tensor<64xf32>, tensor<f32>) -> tensor<f32>
        return %1 : tensor<f32>
      }
    }"#;
    let whole = MAXIMUM.replace("num_partitions = 2", "num_partitions = 1").replace("\"x\"=2", "\"x\"=1");
    let axes: Vec<Mesh> = ["x=1", "x=2"].map(|mesh| mesh.parse().unwrap()).into();
    let exact = XlaOptions { settings: vec![("xla_cpu_enable_fast_min_max".into(), "False".into())] };
    let ty = TensorType::new(ElementType::F32, [64]);
    let numbers = (0..64u8).map(|at| if at == 40 { f32::NAN } else { f32::from(at % 7) });
    let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
    for (module, mesh, options, expected) in [
        (whole.as_str(), &axes[0], XlaOptions::default(), 6.0),
        (whole.as_str(), &axes[0], exact.clone(), f32::NAN),
        (MAXIMUM, &axes[1], exact, 6.0),
    ] {
        let maximum = client.compile(module, 0..mesh.devices(), &options).unwrap();
        let a = client.upload(&Placement::new(mesh, std::slice::from_ref(&mesh.axes)), &ty, &bytes).unwrap();
        let found = floats(&maximum.execute(vec![PjrtArgument::Kept(&a)]).unwrap()[0])[0];
        assert_eq!(found.to_string(), expected.to_string(), "{mesh}");
    }
}

/// The plugin for the CPU has four devices, unless more are needed.
#[test]
fn the_processor_is_as_many_devices_as_needed() {
    let Some((plugin, _guard)) = plugin() else { return };
    assert_eq!(plugin.client_with(2).unwrap().devices().count(), 4);
    let client = plugin.client_with(8).unwrap();
    assert_eq!(client.devices().map(|device| device.ordinal).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
    let add = client.compile(ADD, 7..8, &XlaOptions::default()).unwrap();
    let ty = TensorType::new(ElementType::F32, [4]);
    let [a, b] = [0, 1].map(|_| client.zeros(&Placement::on(7), &ty).unwrap());
    let results = add.execute(vec![PjrtArgument::Donated(a), PjrtArgument::Kept(&b)]).unwrap();
    assert_eq!(floats(&results[0]), [0.0; 4]);
    let error = plugin.client_with(1 << 20).err().unwrap();
    let expected = "the platform `cpu` has 2048 device(s), expected at least 1048576";
    assert_eq!(error.to_string(), expected);
}

/// Rows are copied and replaced on the devices: no number passes through the host, except the index of a row.
#[test]
fn tensors_move_on_their_devices() {
    let Some((plugin, _guard)) = plugin() else { return };
    let client = plugin.client_with(2).unwrap();
    let mesh: Mesh = "x=2".parse().unwrap();
    let axis = vec![mesh.axis("x").unwrap().clone()];
    for placement in [Placement::on(0), Placement::new(&mesh, &[vec![], axis.clone()])] {
        for element in ElementType::ALL.into_iter().filter(|&element| element != ElementType::I4) {
            let ty = TensorType::new(element, [3, 4]);
            let bytes: Vec<u8> = (0..ty.bytes()).map(|at| (at % 2) as u8).collect();
            let tensor = client.upload(&placement, &ty, &bytes).unwrap();
            let before = client.transferred();
            let zeros = client.zeros(&placement, &ty).unwrap();
            let copy = tensor.copied().unwrap();
            let row = tensor.rows(1, 1).unwrap();
            let changed = zeros.put_rows(2, &row).unwrap();
            let indices = 2 * 4 * placement.devices().len() as u64;
            assert_eq!(client.transferred(), (before.0 + indices, before.1));
            let line = ty.bytes() / 3;
            assert_eq!(row.ty().to_string(), format!("{element}[1,4]"));
            assert_eq!(row.read().unwrap(), bytes[line..2 * line]);
            assert_eq!(changed.read().unwrap(), [&vec![0; 2 * line][..], &bytes[line..2 * line]].concat());
            // A copy has its own memory.
            let changed = tensor.put_rows(0, &client.zeros(&placement, row.ty()).unwrap()).unwrap();
            assert_eq!(changed.read().unwrap(), [&vec![0; line][..], &bytes[line..]].concat());
            assert_eq!(copy.read().unwrap(), bytes);
            assert!(matches!(copy.rows(2, 2), Err(PjrtError::Range { .. })));
            assert!(matches!(copy.put_rows(3, &row), Err(PjrtError::Range { .. })));
        }
    }
    let divided = Placement::new(&mesh, &[axis, vec![]]);
    let tensor = client.zeros(&divided, &TensorType::new(ElementType::F32, [4, 1])).unwrap();
    assert!(matches!(tensor.rows(0, 1), Err(PjrtError::DividedRows { .. })));
}

#[test]
fn every_type_goes_up_and_comes_back() {
    let Some((client, _guard)) = cpu() else { return };
    for element in ElementType::ALL {
        let ty = TensorType::new(element, [3, 8]);
        // The bytes of i1 are 0 and 1.
        let bytes: Vec<u8> = (0..ty.bytes()).map(|at| (at % 2) as u8).collect();
        match client.upload(&Placement::on(0), &ty, &bytes) {
            Ok(buffer) => assert_eq!(buffer.read().unwrap(), bytes, "{element}"),
            Err(error) => {
                assert_eq!(element, ElementType::I4);
                assert!(matches!(error, PjrtError::Element(ElementType::I4)), "{error}");
            }
        }
    }
    let empty = TensorType::new(ElementType::F32, [0, 4]);
    assert_eq!(client.upload(&Placement::on(0), &empty, &[]).unwrap().read().unwrap(), Vec::<u8>::new());
}

#[test]
fn mistakes_are_errors_with_the_plugins_message() {
    let Some((client, _guard)) = cpu() else { return };
    let refused = |module: &str| client.compile(module, 0..1, &XlaOptions::default()).err().unwrap();
    let error = refused("func.func @main() -> tensor<2xf32> { return }");
    assert!(matches!(error, PjrtError::Compile(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("func.return") && text.len() < 2500, "{text}");
    let error = refused("func.func @main(%a: tensor<2xf64>) -> tensor<2xf64> { return %a : tensor<2xf64> }");
    assert!(matches!(error, PjrtError::ResultType { index: 0 }), "{error}");
    let error = client.compile(ADD, 9..10, &XlaOptions::default()).err().unwrap();
    assert!(error.to_string().starts_with("there is no device 9: the platform `cpu` has"), "{error}");
    let setting = XlaOptions { settings: vec![("xla_no_such_flag".into(), "1".into())] };
    let error = client.compile(ADD, 0..1, &setting).err().unwrap();
    assert!(error.to_string().contains("xla_no_such_flag"), "{error}");

    let add = client.compile(ADD, 0..1, &XlaOptions::default()).unwrap();
    let a = upload(&client, &[1.0; 4]);
    let error = add.execute(vec![PjrtArgument::Kept(&a)]).err().unwrap();
    assert!(matches!(error, PjrtError::Failed { .. }), "{error}");
    let short = upload(&client, &[1.0; 3]);
    let called = add.execute(vec![PjrtArgument::Kept(&a), PjrtArgument::Kept(&short)]);
    let failed = called.and_then(|results| results[0].read());
    assert!(failed.is_err(), "a tensor of another size is accepted");
    // The client works on.
    let results = add.execute(vec![PjrtArgument::Kept(&a), PjrtArgument::Kept(&a)]).unwrap();
    assert_eq!(floats(&results[0]), [2.0; 4]);

    let error =
        client.upload(&Placement::on(0), &TensorType::new(ElementType::F32, [4]), &[0; 15]).err().unwrap();
    assert_eq!(error.to_string(), "a tensor of the type `f32[4]` takes 16 bytes, found 15");
    let huge = "func.func @main() -> tensor<1152921504606846976xf32> {
      %0 = stablehlo.constant dense<1.0> : tensor<f32>
      %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<1152921504606846976xf32>
      return %1 : tensor<1152921504606846976xf32>
    }";
    let called = client.compile(huge, 0..1, &XlaOptions::default()).and_then(|huge| {
        let results = huge.execute(vec![])?;
        results[0].read_element(0)
    });
    assert!(called.is_err(), "4 exabytes are allocated");
}

#[test]
fn what_is_no_plugin_is_an_error() {
    let error = find_plugin("cuda", &[PathBuf::from("no_such_folder")]).err().unwrap();
    assert_eq!(
        error.to_string(),
        "Tracewright found no PJRT plugin for `cuda` in 1 folders of Python packages; install the package `jax-cuda13-pjrt`"
    );
    let missing = Path::new("no_such_folder/libpjrt.so");
    let error = Plugin::load(missing).err().unwrap();
    assert!(matches!(error, PjrtError::Library { .. }), "{error}");
    assert_eq!(error.to_string(), "the plugin `no_such_folder/libpjrt.so` cannot be loaded");
    let damaged = env::temp_dir().join(format!("tracewright-pjrt-{}.so", std::process::id()));
    fs::write(&damaged, b"\x7fELF and no more").unwrap();
    let error = Plugin::load(&damaged).err().unwrap();
    fs::remove_file(&damaged).unwrap();
    assert!(matches!(error, PjrtError::Library { .. }), "{error}");
    if cfg!(target_os = "linux") {
        let libc =
            ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6", "/lib/aarch64-linux-gnu/libm.so.6"];
        if let Some(libc) = libc.map(Path::new).into_iter().find(|path| path.exists()) {
            let error = Plugin::load(libc).err().unwrap();
            assert!(matches!(error, PjrtError::NoApi { .. }), "{error}");
        }
    }
}
