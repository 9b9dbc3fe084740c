//! Our programs in the StableHLO reference interpreter: `interpret write DIR MODULES` writes every example of every
//! operation and modules of random graphs, `tests/oracle/interpret.py DIR` runs them, and `interpret compare DIR
//! MODULES` compares the answers with the evaluator's.

use std::path::Path;
use std::process::ExitCode;

use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize_to_file};
use tracewright::errors::{WithCauses, WithPath as _};
use tracewright::lower;
use tracewright::ops::{ElementType, TensorType, Value};
use tracewright::targets::Target;
use tracewright_tests::built::Result;
use tracewright_tests::calls::{Calls, GRAPHS, examples, graphs};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [what @ ("write" | "compare"), folder, modules] => match modules.parse() {
            Ok(modules) if what == "write" => write(Path::new(folder), modules).map(|()| true),
            Ok(modules) => compare(Path::new(folder), modules),
            Err(error) => Err(format!("`{modules}` is no number of modules: {error}").into()),
        },
        _ => {
            eprintln!("usage: interpret write|compare DIR MODULES");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {}", WithCauses(&*error));
            ExitCode::FAILURE
        }
    }
}

/// The programs, by the names of their files.
fn programs(modules: u64) -> impl Iterator<Item = (String, Calls)> {
    let examples = std::iter::once_with(|| ("examples".to_string(), examples()));
    examples.chain((0..modules).map(|module| (format!("graphs-{module:03}"), graphs(module))))
}

fn write(folder: &Path, modules: u64) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    for (name, calls) in programs(modules) {
        let (trace, arguments) = calls.as_main()?;
        trace.verify()?;
        let module = lower::lower(&lower::expand(&trace)?, &Target::interpreter())?;
        std::fs::write(folder.join(format!("{name}.mlir")), module.text)?;
        let bytes: Vec<Vec<u8>> = arguments.iter().map(Value::to_bytes).collect();
        let view = |(i, (value, bytes)): (usize, (&Value, _))| {
            let dtype = if value.ty.element == ElementType::F32 { Dtype::F32 } else { Dtype::I32 };
            let bytes: &Vec<u8> = bytes;
            Ok((format!("{i:05}"), TensorView::new(dtype, value.ty.shape.clone(), bytes)?))
        };
        let views: Vec<_> = arguments.iter().zip(&bytes).enumerate().map(view).collect::<Result<_>>()?;
        serialize_to_file(views, None, &folder.join(format!("{name}.arguments.safetensors")))?;
    }
    Ok(())
}

fn compare(folder: &Path, modules: u64) -> Result<bool> {
    let mut passes = true;
    for (name, calls) in programs(modules) {
        let path = folder.join(format!("{name}.results.safetensors"));
        let bytes = std::fs::read(&path).with_path("read", &path)?;
        let tensors = SafeTensors::deserialize(&bytes)?;
        let value = |i: usize| -> Result<Value> {
            let view = tensors.tensor(&format!("{i:05}"))?;
            let element = if view.dtype() == Dtype::F32 { ElementType::F32 } else { ElementType::I32 };
            Ok(Value::from_bytes(TensorType::new(element, view.shape()), view.data()))
        };
        let results = (0..tensors.len()).map(value).collect::<Result<_>>()?;
        let violations = calls.violations(results);
        let what = match name.starts_with("graphs") {
            true => format!("{GRAPHS} graphs, {} changed by simplification", calls.changed),
            false => format!("{} examples", calls.calls.len()),
        };
        println!("{} {name}: {what}", if violations.is_empty() { "pass" } else { "FAIL" });
        violations.iter().for_each(|violation| println!("  {violation}"));
        passes &= violations.is_empty();
    }
    Ok(passes)
}
