//! Compares the evaluator, IREE, the StableHLO reference interpreter and XLA. The cases are examples of all
//! operations, cases that failed once, and random graphs, each with and without simplification.
//!
//! Run `differential GRAPHS FOLDER PYTHON tests/oracle/answers.py`. Failing cases are shrunk, and their traces are
//! written to FOLDER. First, each of the four must notice a planted fault.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize_to_file};
use tracewright::errors::{WithCauses, WithPath as _};
use tracewright::lower;
use tracewright::ops::ops::{Binary, BinaryKind};
use tracewright::ops::{ElementType, Op, TensorType, Value};
use tracewright::targets::Target;
use tracewright_tests::built::Result;
use tracewright_tests::calls::{Calls, GRAPHS, examples, found, graphs};
use tracewright_tests::case::GraphCase;
use tracewright_tests::in_iree::try_built;
use tracewright_tests::rewrite::rewrite;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = || {
        eprintln!("usage: differential GRAPHS FOLDER PYTHON SCRIPT");
        ExitCode::from(2)
    };
    let [count, folder, python @ ..] = &arguments[..] else { return usage() };
    let (Ok(count), [program, script]) = (count.parse::<usize>(), python) else { return usage() };
    let folder = PathBuf::from(folder);
    let python = |form| Judge::of(Way::Python { program, script, form, folder: folder.join(form) });
    let judges = [Judge::of(Way::Iree), python("interpreter"), python("xla")];
    let blind = judges.iter().map(|judge| Ok(usize::from(!sees_a_fault(judge)?))).sum::<Result<usize>>();
    match blind.and_then(|blind| Ok(blind + compare(count, &folder, &judges)?)) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {}", WithCauses(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Whether this judge notices a fault that is planted into what it computes, and its operation is what is left of the
/// graph.
fn sees_a_fault(judge: &Judge<'_>) -> Result<bool> {
    let judge = Judge { way: judge.way.clone(), planted: true };
    let calls = graphs(0);
    let mut found = Vec::new();
    for (number, _) in judge.wrong(&[&calls])?.into_iter().flatten() {
        let case = calls.case(number);
        if judge.fails(&case)?.is_some() {
            let least = case.shrunk(&mut |case| judge.fails(case).is_ok_and(|why| why.is_some()));
            found = least.operations();
            break;
        }
    }
    let sees = found == [Op::from(SPOILT)];
    let verdict = if sees { "pass" } else { "FAIL" };
    println!("{verdict} {}: a planted fault, shrunk to {found:?}", judge.name());
    Ok(sees)
}

/// The fault to plant: one operation in place of another.
const SPOILT: Binary = Binary { kind: BinaryKind::Maximum };

/// The calls with a fault in what is computed, not in what is expected.
fn spoilt(calls: &Calls) -> Calls {
    let minimum = Op::from(Binary { kind: BinaryKind::Minimum });
    let trace = rewrite(&calls.trace, |b, op, operands| {
        let is_spoilt = *op == Op::from(SPOILT);
        is_spoilt.then(|| b.op(minimum.clone(), operands)).transpose()
    });
    let mut calls = calls.part(0..calls.calls.len());
    // Both have the same types.
    calls.trace = trace.unwrap_or_default();
    calls
}

/// How many calls are wrong.
fn compare(count: usize, folder: &Path, judges: &[Judge<'_>]) -> Result<usize> {
    std::fs::create_dir_all(folder)?;
    let modules = count.div_ceil(GRAPHS) as u64;
    let others = [("examples".to_owned(), examples()), ("found".to_owned(), found())];
    let random = (0..modules).map(|module| (format!("graphs-{module:03}"), graphs(module)));
    let programs: Vec<(String, Calls)> = others.into_iter().chain(random).collect();
    let calls: Vec<&Calls> = programs.iter().map(|(_, calls)| calls).collect();
    let changed: usize = calls.iter().map(|calls| calls.changed).sum();
    let (held, all) = calls.iter().flat_map(|calls| calls.held()).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    println!(
        "{} graphs, {changed} changed by simplification; {held} of {all} numbers are held to 1 %",
        modules as usize * GRAPHS
    );
    let mut failures = 0;
    for judge in judges {
        for ((name, calls), wrong) in programs.iter().zip(judge.wrong(&calls)?) {
            let mut found = Vec::new();
            for (number, _) in wrong {
                // What the bound of an example refuses, the choices that it leaves may allow.
                let case = calls.case(number);
                if judge.fails(&case)?.is_some() {
                    found.push((&calls.calls[number].name, case));
                }
            }
            let verdict = if found.is_empty() { "pass" } else { "FAIL" };
            println!("{verdict} {} {name}: {} calls", judge.name(), calls.calls.len());
            failures += found.len();
            for (call, case) in found {
                let least = case.shrunk(&mut |case| judge.fails(case).is_ok_and(|why| why.is_some()));
                let why = judge.fails(&least)?.unwrap_or_default();
                let why = why.lines().next().unwrap_or_default();
                let file = folder.join(format!("{}-{call}.txt", judge.name()));
                let text = format!("# {}: {why}\n{least}", judge.name());
                std::fs::write(&file, &text).with_path("write", &file)?;
                println!("  {}\n{text}", file.display());
            }
        }
    }
    Ok(failures)
}

/// Somebody else's idea of what a program computes.
struct Judge<'a> {
    way: Way<'a>,
    /// Whether the program that it is given has a fault.
    planted: bool,
}

#[derive(Clone)]
enum Way<'a> {
    Iree,
    Python { program: &'a str, script: &'a str, form: &'static str, folder: PathBuf },
}

/// The numbers of the calls that are wrong, and in what.
type Wrong = Vec<(usize, String)>;

impl<'a> Judge<'a> {
    fn of(way: Way<'a>) -> Self {
        Self { way, planted: false }
    }

    fn name(&self) -> &'static str {
        match &self.way {
            Way::Iree => "iree",
            Way::Python { form, .. } => form,
        }
    }

    /// The problem of a case by itself, if it has one.
    fn fails(&self, case: &GraphCase) -> Result<Option<String>> {
        let wrong = self.wrong(&[&Calls::of(case.clone())])?;
        Ok(wrong.into_iter().flatten().next().map(|(_, why)| why))
    }

    /// The problem of each of several programs. If a batch of calls is rejected, each call is tried.
    fn wrong(&self, programs: &[&Calls]) -> Result<Vec<Wrong>> {
        let mut wrong = Vec::new();
        for (calls, answers) in programs.iter().zip(self.answers(programs)?) {
            let half = calls.calls.len() / 2;
            wrong.push(match answers {
                Ok(answers) => {
                    let found = calls.calls.iter().zip(answers).enumerate();
                    found.filter_map(|(i, (call, answer))| Some((i, call.violation(&answer)?))).collect()
                }
                Err(why) if half == 0 => vec![(0, why)],
                Err(_) => {
                    let halves = [calls.part(0..half), calls.part(half..calls.calls.len())];
                    let mut wrong = self.wrong(&[&halves[0], &halves[1]])?;
                    let behind = wrong.pop().unwrap_or_default();
                    let behind = behind.into_iter().map(|(number, why)| (half + number, why));
                    wrong.pop().unwrap_or_default().into_iter().chain(behind).collect()
                }
            });
        }
        Ok(wrong)
    }

    /// The results of each of several programs, call by call, or its error.
    fn answers(&self, programs: &[&Calls]) -> Result<Vec<std::result::Result<Vec<Vec<Value>>, String>>> {
        let spoilt: Vec<Calls> =
            programs.iter().filter(|_| self.planted).map(|calls| spoilt(calls)).collect();
        let programs = if self.planted { &spoilt.iter().collect::<Vec<_>>() } else { programs };
        match &self.way {
            Way::Iree => Ok(programs.iter().map(|calls| in_iree(calls)).collect()),
            Way::Python { program, script, form, folder } => {
                let _ = std::fs::remove_dir_all(folder);
                std::fs::create_dir_all(folder).with_path("create", folder)?;
                for (i, calls) in programs.iter().enumerate() {
                    write(&folder.join(format!("{i:04}.mlir")), calls)?;
                }
                // One that ends early leaves programs without results, which are looked at by themselves.
                Command::new(program).arg(script).arg(form).arg(folder).status()?;
                let read = |(i, calls): (usize, &&Calls)| read(&folder.join(format!("{i:04}.mlir")), calls);
                programs.iter().enumerate().map(read).collect()
            }
        }
    }
}

fn in_iree(calls: &Calls) -> std::result::Result<Vec<Vec<Value>>, String> {
    let built = try_built(&calls.trace).map_err(|error| WithCauses(&error).to_string())?;
    let loaded = built.load(&calls.weights);
    Ok(calls.calls.iter().map(|call| loaded.call(&call.name, &call.arguments)).collect())
}

fn write(path: &Path, calls: &Calls) -> Result<()> {
    let (trace, arguments) = calls.as_main()?;
    trace.verify()?;
    let module = lower::lower(&lower::expand(&trace)?, &Target::interpreter())?;
    std::fs::write(path, module.text).with_path("write", path)?;
    let bytes: Vec<Vec<u8>> = arguments.iter().map(Value::to_bytes).collect();
    let view = |(i, (value, bytes)): (usize, (&Value, _))| {
        let dtype = if value.ty.element == ElementType::F32 { Dtype::F32 } else { Dtype::I32 };
        let bytes: &Vec<u8> = bytes;
        Ok((format!("{i:05}"), TensorView::new(dtype, value.ty.shape.clone(), bytes)?))
    };
    let views: Vec<_> = arguments.iter().zip(&bytes).enumerate().map(view).collect::<Result<_>>()?;
    Ok(serialize_to_file(views, None, &path.with_extension("arguments.safetensors"))?)
}

fn read(path: &Path, calls: &Calls) -> Result<std::result::Result<Vec<Vec<Value>>, String>> {
    let Ok(bytes) = std::fs::read(path.with_extension("results.safetensors")) else {
        let why = std::fs::read_to_string(path.with_extension("error.txt"));
        return Ok(Err(why.unwrap_or_else(|_| "the process ended".into())));
    };
    let tensors = SafeTensors::deserialize(&bytes)?;
    let value = |i: usize| -> Result<Value> {
        let view = tensors.tensor(&format!("{i:05}"))?;
        let element = if view.dtype() == Dtype::F32 { ElementType::F32 } else { ElementType::I32 };
        Ok(Value::from_bytes(TensorType::new(element, view.shape()), view.data()))
    };
    let results = (0..tensors.len()).map(value).collect::<Result<_>>()?;
    Ok(Ok(calls.of_main(results)))
}
