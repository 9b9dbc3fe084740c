//! The tuner: whether it finds out what is wrong, and what it calls faster.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::support;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::time::Duration;

use instruments::tune::{Trial, Trials, TuneError, TunedNetwork, Weighted, Workbench, tune};
use irpa::Checkpoint;
use lower::{FusedAttention, FusedExperts, FusedMatmul, Tunable};
use ops::format::ActivationBits;
use ops::ops::{MaskTerm, PackedExperts, PackedLinear, RmsNorm, Sdpa, WeightStyle};
use ops::{ElementType, Real, TensorType, WeightFormat};
use runtime::{Device, Runtime};
use support::{compiler, one_round_less};
use targets::{CompilerFlag, Target, Tuning};
use tracewright::Plan;
use tracewright::build::{ProgramOptions, build_program};
use tracewright::models::ModelConfig;
use tracewright::tuning::{BuildSettings, Record, TrialRecord, TuningCache, TuningDb, Verdict, network_name};
use tracewright_tests::built::repository;
use tracewright_tests::long;

/// Matmuls of all kinds: a row with a norm, several rows, gate and up, an incomplete last panel. Groups fill
/// their tiles, because padding of zeros would hide errors at the end of a loop.
fn products() -> Vec<Tunable> {
    let norm = RmsNorm { epsilon: Real(1e-5), style: WeightStyle::Scale };
    [
        (WeightFormat::F32, ElementType::F32, [1, 96, 136], false),
        (WeightFormat::Bf16, ElementType::Bf16, [19, 96, 256], true),
        (WeightFormat::Q8, ElementType::F32, [1, 96, 256], true),
        (WeightFormat::Q4, ElementType::Bf16, [19, 128, 136], false),
    ]
    .map(|(format, element, [rows, inputs, outputs], halves)| {
        Tunable::Matmul(FusedMatmul {
            op: PackedLinear { format, outputs, element, activations: ActivationBits::Eight },
            x: TensorType::new(element, [rows, inputs]),
            norm: (rows == 1).then(|| norm.clone()),
            halves,
        })
    })
    .into()
}

/// A matrix for each row: chosen ones, and all in turn.
fn experts() -> Vec<Tunable> {
    let ty = |element, shape: &[usize]| TensorType::new(element, shape);
    [
        (WeightFormat::Bf16, ElementType::Bf16, vec![5, 96], Some(vec![5, 2])),
        (WeightFormat::Q4, ElementType::F32, vec![7, 3, 96], None),
    ]
    .map(|(format, element, x, indices)| {
        let indices = indices.map(|shape: Vec<usize>| ty(ElementType::I32, &shape));
        let activations = ActivationBits::Eight;
        let op = PackedExperts { format, experts: 3, outputs: 64, element, activations };
        Tunable::Experts(FusedExperts { op, x: ty(element, &x), indices })
    })
    .into()
}

/// Attention of one query of each of grouped heads, and of many; over caches, rings and integers.
fn attention() -> Vec<Tunable> {
    use MaskTerm::{Causal, Ring, Window};
    [
        (ElementType::F32, vec![2, 3, 1, 40], [70, 40], vec![Causal], false),
        (ElementType::Bf16, vec![1, 2, 4, 9, 32], [80, 48], vec![Causal, Window(21)], false),
        (ElementType::F32, vec![3, 2, 2, 5, 32], [40, 32], vec![Causal, Window(24), Ring], false),
        (ElementType::Bf16, vec![1, 2, 3, 17, 32], [64, 32], vec![Causal], true),
    ]
    .map(|(element, q, [keys, values], mask, quantized)| {
        // Grouped heads of the query have an axis more.
        let heads = &q[..q.len() - 3];
        let stored = |features| TensorType::new(element, [heads, &[keys, features]].concat());
        let (k, v) = (stored(q[q.len() - 1]), stored(values));
        let offset = TensorType::new(ElementType::I32, []);
        let op = Sdpa { mask, scale: None, softcap: None, offset: true };
        let types = vec![TensorType::new(element, &q[..]), k, v, offset];
        Tunable::Attention(FusedAttention { op, types, quantized })
    })
    .into()
}

/// All of them, or a product of one row, experts, and attention.
fn works() -> Vec<Tunable> {
    let all = [products(), experts(), attention()].concat();
    if long::is_wanted() { all } else { [0, 4, 9].map(|place| all[place].clone()).into() }
}

/// The target for tunings of kernels on this machine, if it has kernels.
fn host() -> Option<Target> {
    let target = compiler().resolve(&Target::host()).unwrap();
    products()[0].tilings(&target).map(|_| target)
}

/// K3: of ways to cut each kind of work.
#[test]
fn k3_a_wrong_candidate_is_rejected_and_a_right_one_is_not() {
    let Some(target) = host() else { return };
    let (compiler, runtime) = (compiler(), Runtime::new(Device::LocalTask { workers: 2 }).unwrap());
    let bench = Workbench { compiler: &compiler, runtime: &runtime, target: &target, seed: 3 };
    for work in works() {
        let tilings = work.tilings(&target).unwrap();
        let trials = Trials::new(&work, &tilings.work, tilings.usual, &bench).unwrap();
        let other = tilings.beside(tilings.usual).max_by_key(|tiling| tiling.parts).unwrap();
        assert!(other.parts.get() > 1, "{work:?}");
        let module = trials.module(other).unwrap();
        assert!(matches!(trials.of(&module).unwrap(), Verdict::Ratio { .. }), "{work:?} {other}");

        // A sum that lacks its last terms; and a part of the work that nobody does.
        let less = one_round_less(module.text.clone());
        let undone = module.text.replacen("stream.return %n,", "stream.return %one,", usize::MAX);
        assert_ne!(undone, module.text, "{work:?}");
        for text in [less, undone].into_iter().filter(|text| *text != module.text) {
            let wrong = lower::Module { text_without_locs: text.clone(), text, ..module.clone() };
            let verdict = trials.of(&wrong).unwrap();
            assert!(matches!(verdict, Verdict::Wrong(_)), "{work:?} {other}: {verdict:?}");
            let mut record = Record::new(&tilings.work, tilings.usual);
            record.tried.push(TrialRecord { way: other, verdict });
            assert_eq!(record.best(), None);
        }
    }
}

/// A module follows the tuning that is named for its works, says which, and follows no other.
#[test]
fn text_follows_the_tuning() {
    let Some(target) = host() else { return };
    let compiler = compiler();
    let runtime = Runtime::new(Device::LocalSync).unwrap();
    let bench = Workbench { compiler: &compiler, runtime: &runtime, target: &target, seed: 3 };
    for work in [&products()[3], &attention()[1]] {
        let tilings = work.tilings(&target).unwrap();
        let trials = Trials::new(work, &tilings.work, tilings.usual, &bench).unwrap();
        let usual = trials.module(tilings.usual).unwrap();
        let mut texts = BTreeMap::from([(usual.text.clone(), tilings.usual)]);
        for other in tilings.beside(tilings.usual) {
            let module = trials.module(other).unwrap();
            assert_eq!(module.tuned, BTreeMap::from([(tilings.work.clone(), other)]));
            assert_eq!(texts.insert(module.text, other), None, "{other} is written as another one");
        }
        assert!(texts.len() > 3, "{work:?}");
        let foreign = Trials::new(work, "work_of_another_machine", tilings.usual, &bench).unwrap();
        let untuned = foreign.module(tilings.beside(tilings.usual).next().unwrap()).unwrap();
        assert_eq!((untuned.text, untuned.tuned), (usual.text, BTreeMap::new()));
    }
}

/// Other chunks and flags of the compiler are tried on all of a network; one that gives other logits is rejected.
#[test]
fn a_network_that_answers_otherwise_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let model = repository().join("tests/fixtures/llama-untied");
    let config = |text: String| -> ModelConfig {
        let path = folder.path().join("config.json");
        std::fs::write(&path, text).unwrap();
        ModelConfig::read(&path, &[]).unwrap()
    };
    let text = std::fs::read_to_string(model.join("config.json")).unwrap();
    let mut spoiled: serde_json::Value = serde_json::from_str(&text).unwrap();
    let theta = ["/rope_theta", "/rope_parameters/rope_theta"]
        .into_iter()
        .find(|place| spoiled.pointer(place).is_some())
        .unwrap();
    *spoiled.pointer_mut(theta).unwrap() = 5000.0.into();
    let plan = |config: ModelConfig| Plan::new(config, None, Some(64), Some(16)).unwrap();
    let (sound, spoiled) = (plan(config(text.clone())), plan(config(spoiled.to_string())));
    assert_ne!(network_name(&sound).unwrap(), network_name(&spoiled).unwrap());
    let longer = Plan { context: 48, chunk: 8, ..plan(config(text)) };
    assert_eq!(network_name(&sound).unwrap(), network_name(&longer).unwrap());

    let checkpoint = sound.named(Checkpoint::open(&model).unwrap());
    let compiler = compiler();
    let options = || ProgramOptions::new(&compiler, folder.path());
    let weights = Weighted { checkpoint: &checkpoint, options: &options };
    let mut tuned = TunedNetwork::new(&sound, &TuningDb::default()).unwrap();
    let trials = tuned.trials(&weights, &Default::default()).unwrap();
    let left = tuned.left();
    let chunks: Vec<usize> = left.iter().map(|way| way.chunk.get()).filter(|&chunk| chunk != 16).collect();
    assert_eq!(chunks, [32, 64]);
    for flag in CompilerFlag::ALL {
        assert!(left.iter().any(|way| way.flags == [flag]), "{flag:?}");
    }
    let way = BuildSettings { chunk: NonZeroUsize::new(32).unwrap(), flags: CompilerFlag::ALL.into() };
    let verdict = trials.of(&way).unwrap();
    assert!(matches!(verdict, Verdict::Ratio { .. }), "{verdict:?}");

    let traced = spoiled.record(&spoiled.steps()).unwrap();
    let wrong = build_program(&traced, &checkpoint, options()).unwrap();
    let verdict = trials.of_network(&wrong.program.network().unwrap()).unwrap();
    assert!(matches!(verdict, Verdict::Wrong(_)), "{verdict:?}");
    tuned.record.tried.push(TrialRecord { way, verdict });
    assert_eq!(tuned.record.best(), None);

    // A search goes on where another one was stopped, and what it found is found for this network alone.
    let cache = TuningCache::new(folder.path(), &sound.target, "3.13");
    let target = compiler.resolve(&sound.target).unwrap();
    let runtime = Runtime::new(Device::LocalSync).unwrap();
    let bench = Workbench { compiler: &compiler, runtime: &runtime, target: &target, seed: 3 };
    let known = || cache.read().unwrap();
    for done in 1..3 {
        let mut tuned = TunedNetwork::new(&sound, &known()).unwrap();
        let before = tuned.left().len();
        let mut stop = |trial: Trial<'_>| match trial.tried {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        };
        let network = Some((&mut tuned, &weights));
        let stopped = tune(&mut [], network, &cache, &bench, Duration::from_secs(3600), &mut stop);
        assert!(matches!(stopped, Err(TuneError::Stopped)));
        assert_eq!((tuned.record.tried.len(), tuned.left().len()), (done, before - 1));
    }
    let mut record = known().networks.remove(&network_name(&sound).unwrap()).unwrap();
    let ratio = Verdict::Ratio { median: 0.5, upper_quartile: 0.5, shortest: 0.5 };
    let way =
        BuildSettings { chunk: NonZeroUsize::new(32).unwrap(), flags: vec![CompilerFlag::LoopUnrolling] };
    record.tried.push(TrialRecord { way, verdict: ratio });
    cache.write(&record).unwrap();
    let tuning = |plan: &Plan| known().tuning(Some(&network_name(plan).unwrap()));
    assert_eq!(tuning(&spoiled), Tuning::default());
    let found = tuning(&sound);
    assert_eq!(found.flags, [CompilerFlag::LoopUnrolling]);
    assert_eq!(found.chunk, NonZeroUsize::new(32));
    let longer = longer.tuned(found.clone(), None);
    assert_eq!((longer.chunk, &longer.target.tuning), (32, &found));
    // What was asked for stands above it, and is not said to be measured.
    let asked = sound.tuned(found, Some(16));
    assert_eq!((asked.chunk, asked.target.tuning.chunk), (16, None));
}
