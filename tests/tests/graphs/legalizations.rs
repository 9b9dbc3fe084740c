//! Each legalization is needed, and does what it is for: its examples fail in IREE without it and pass with it, and it
//! changes nothing that the evaluator sees.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use lower::legalize::{FaultExample, LEGALIZATIONS, Legalization, legalize};
use ops::{Bound, Op, Value};
use runtime::{CompileError, CompileOptions};
use support::{Built, try_compile};
use targets::{Backend, DeviceKind, Target, host_features};
use trace::{NodeKind, Role};
use tracewright_tests::arbitrary::{Dice, graph, same, tame_value};
use tracewright_tests::calls::{Calls, CheckedCall, WeightValues, entry, evaluate, op, operand};
use tracewright_tests::leeway::Leeway;

/// Examples as a program, each an entry point.
fn program<'a>(examples: impl IntoIterator<Item = &'a FaultExample>) -> Calls {
    let mut all = Calls::default();
    for (number, example) in examples.into_iter().enumerate() {
        let arguments: Vec<Value> = example.operands.iter().map(|text| operand(text, 0)).collect();
        let types: Vec<_> = arguments.iter().map(|value| value.ty.clone()).collect();
        let name = format!("example{number}");
        entry(&mut all.trace, &name, &types, |b, inputs| {
            let mut values = inputs.to_vec();
            for (text, operands) in example.operations {
                let operands: Vec<_> = operands.iter().map(|&number| values[number]).collect();
                values.push(b.op(op(text), &operands)?);
            }
            let is_result =
                |number: &usize| example.operations.iter().all(|(_, taken)| !taken.contains(number));
            Ok((inputs.len()..values.len()).filter(is_result).map(|number| values[number]).collect())
        });
        // What may be a number of the host is one.
        let function = &mut all.trace.functions[number];
        for id in function.ids() {
            if let NodeKind::Input { role, .. } = &mut function.node_mut(id).kind {
                *role = Role::Count;
            }
        }
        let expected = evaluate(&all.trace, &name, &arguments, &all.weights);
        let text = example.operations.iter().map(|(op, _)| *op).collect::<Vec<_>>().join(", ");
        let leeway = vec![Leeway::Within(Bound::Ulps(4.0)); expected.len()];
        all.calls.push(CheckedCall { name, text, arguments, expected, leeway });
    }
    all
}

/// The fault of IREE with these legalizations, on one of the processors.
fn fault(program: &Calls, legalizations: &[&Legalization]) -> Option<String> {
    processors().iter().find_map(|(target, runs)| match compiled(program, legalizations, target) {
        Ok((module, vmfb)) if *runs => {
            Built { module, vmfb }.load(&WeightValues::new()).violations(program).pop()
        }
        Ok(_) => None,
        Err(diagnostics) => Some(diagnostics),
    })
}

/// The processors to test, each with whether this machine runs its code. One has only common features, because some
/// faults need a processor without bf16. One has AVX2, and one bf16.
fn processors() -> Vec<(Target, bool)> {
    let has = |name: &str| host_features().iter().any(|&(known, has)| has && known == name);
    let names: &[(&str, bool)] = if cfg!(target_arch = "x86_64") {
        &[("x86-64-v2", true), ("x86-64-v3", has("avx2")), ("cooperlake", has("avx512bf16"))]
    } else {
        &[("generic", true)]
    };
    names.iter().map(|(name, runs)| (Target::processor(*name), *runs)).collect()
}

/// The program compiled with these legalizations; or why it is not.
fn compiled(
    program: &Calls,
    legalizations: &[&Legalization],
    target: &Target,
) -> Result<(lower::Module, Vec<u8>), String> {
    let legal = legalize(&program.trace, legalizations).unwrap();
    let module = lower::write(&legal, Backend::Iree3_13.dialect()).unwrap();
    let tiled = target.device == DeviceKind::Cpu;
    // What the compiler's own checks find is a fault, too, although what it makes of it without them may run.
    let options = CompileOptions { verified: true, ..CompileOptions::new(target.clone(), tiled) };
    match try_compile(&module, &options) {
        Ok(vmfb) => Ok((module, vmfb)),
        Err(CompileError::Failed { diagnostics, .. } | CompileError::Killed { diagnostics, .. }) => {
            Err(diagnostics)
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn each_is_needed_and_is_enough() {
    let all = Legalization::needed(&processors()[0].0);
    let elsewhere = LEGALIZATIONS.iter().filter(|this| !this.devices.contains(&DeviceKind::Cpu));
    assert_eq!(all.len() + elsewhere.count(), LEGALIZATIONS.len());
    for this in &all {
        assert!(!this.examples.is_empty(), "{}", this.name);
        let others: Vec<&Legalization> = all.iter().copied().filter(|l| l.name != this.name).collect();
        for example in this.examples {
            let without = fault(&program([example]), &others);
            println!("{}: {example:?}: {without:?}", this.name);
            assert!(without.is_some(), "`{}` is not needed: {example:?}", this.name);
        }
    }
    assert_eq!(fault(&program(all.iter().flat_map(|this| this.examples)), &all), None);
}

/// Faults on other devices are visible because the program does not compile, or in its code.
#[test]
fn each_of_another_device_is_needed_and_is_enough() {
    for this in LEGALIZATIONS.iter().filter(|this| !this.devices.contains(&DeviceKind::Cpu)) {
        assert!(!this.examples.is_empty(), "{}", this.name);
        for kind in this.devices {
            let target = match kind {
                // The baseline, and what the suite's driver pretends to be, have another way.
                DeviceKind::Vulkan => "vulkan:ampere".parse().unwrap(),
                kind => Target::of_device(*kind),
            };
            let all = Legalization::needed(&target);
            let others: Vec<&Legalization> = all.iter().copied().filter(|l| l.name != this.name).collect();
            for example in this.examples {
                let program = program([example]);
                let fault = |legalizations: &[&Legalization]| match compiled(&program, legalizations, &target)
                {
                    Ok((_, code)) => wrong_start(&code),
                    Err(error) => Some(error),
                };
                let without = fault(&others);
                println!("{} on {kind}: {example:?}: {without:?}", this.name);
                // AMD's code is no text that shows the fault.
                let is_seen = *kind != DeviceKind::Hip;
                assert!(
                    without.is_some() || !is_seen,
                    "`{}` is not needed on {kind}: {example:?}",
                    this.name
                );
                assert_eq!(fault(&all), None, "{} on {kind}", this.name);
            }
        }
    }
}

/// A minimum of signed integers that starts at -1, in the text of code for NVIDIA's graphics processors.
fn wrong_start(code: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(code);
    text.lines().find(|line| line.contains("min.s32") && line.ends_with(", -1;")).map(str::to_owned)
}

/// To the evaluator, random graphs are the same before and after.
#[test]
fn nothing_changes_to_the_evaluator() {
    let all = Legalization::needed(&processors()[0].0);
    let mut changed = 0;
    for seed in 0..2_000 {
        let mut dice = Dice::new(seed);
        let before = lower::expand(&graph(&mut dice, 12)).unwrap();
        let after = legalize(&before, &all).unwrap();
        after.verify().unwrap_or_else(|error| panic!("{error}\n{after}"));
        changed += usize::from(*after != before);
        let function = &before.functions[0];
        let arguments: Vec<Value> =
            function.inputs().into_iter().map(|(_, ty)| tame_value(&mut dice, ty)).collect();
        let weights: WeightValues =
            function.parameters().map(|p| (p.key.clone(), tame_value(&mut dice, &p.ty))).collect();
        let expected = evaluate(&before, "main", &arguments, &weights);
        let found = evaluate(&after, "main", &arguments, &weights);
        let equal = expected.iter().zip(&found).all(|(a, b)| same(a, b));
        assert!(equal, "{expected:?}\n{found:?}\n{before}\n{after}");
    }
    println!("{changed} graphs changed");
    assert!(changed > 200, "{changed} graphs changed");
}

/// The interpreter has no faults, so nothing is rewritten for it.
#[test]
fn the_interpreter_gets_the_operations_as_they_are() {
    let others = LEGALIZATIONS.iter().filter(|l| !l.backends.contains(&Backend::Interpreter));
    for example in others.flat_map(|legalization| legalization.examples) {
        let trace = program([example]).trace;
        let count = trace.functions[0].ids().filter(|&id| {
            matches!(&trace.functions[0].node(id).kind, NodeKind::Op(op) if !matches!(op, Op::Constant(_)))
        });
        let module = lower::lower(&trace, &Target::interpreter()).unwrap();
        let spelled: usize =
            module.histogram().iter().filter(|(name, _)| *name != "constant").map(|(_, count)| count).sum();
        assert_eq!(spelled, count.count(), "{}", module.text);
    }
}

/// To the evaluator, the largest and the smallest of any integers are what they were.
#[test]
fn the_largest_integer_is_the_same_to_the_evaluator() {
    let all = Legalization::needed(&Target::of_device(DeviceKind::Cuda));
    for values in
        ["-2147483648,-1,-7", "2147483647,0,-1", "-2147483648,2147483647,3", "0,0,0", "5,9,7", "-1,-1,-1"]
    {
        for kind in ["minimum", "maximum"] {
            let operation = format!("reduce kind={kind} axes=[0]");
            let mut before = Calls::default();
            let argument = operand(&format!("i32[3] {values}"), 0);
            entry(&mut before.trace, "main", std::slice::from_ref(&argument.ty), |b, inputs| {
                Ok(vec![b.op(op(&operation), &[inputs[0]])?])
            });
            let after = legalize(&before.trace, &all).unwrap();
            assert_ne!(*after, before.trace);
            let [expected, found] = [&before.trace, &*after]
                .map(|trace| evaluate(trace, "main", std::slice::from_ref(&argument), &WeightValues::new()));
            assert!(same(&expected[0], &found[0]), "{operation} of {values}: {expected:?}, {found:?}");
        }
    }
}
