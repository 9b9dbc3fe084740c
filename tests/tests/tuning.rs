//! The tuner: whether it finds out what is wrong, and what it calls faster.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::collections::BTreeMap;

use lower::FusedProduct;
use ops::ops::{PackedLinear, RmsNorm, WeightStyle};
use ops::{ElementType, Real, TensorType, WeightFormat};
use runtime::{Device, Runtime};
use support::{compiler, one_round_less};
use targets::{Target, Tuning};
use tracewright::tune::{Record, Trials, Tried, Verdict, Workbench};

/// Products of all kinds: of one row with a norm, of several; gate and up; a last panel that is not full.
fn products() -> Vec<FusedProduct> {
    let norm = RmsNorm { epsilon: Real(1e-5), style: WeightStyle::Scale };
    [
        (WeightFormat::F32, ElementType::F32, [1, 136], false),
        (WeightFormat::Bf16, ElementType::Bf16, [19, 256], true),
        (WeightFormat::Q8, ElementType::F32, [1, 256], true),
        (WeightFormat::Q4, ElementType::Bf16, [19, 136], false),
    ]
    .map(|(format, element, [rows, outputs], halves)| FusedProduct {
        op: PackedLinear { format, outputs, element },
        x: TensorType::new(element, [rows, 96]),
        norm: (rows == 1).then(|| norm.clone()),
        halves,
    })
    .into()
}

/// What a tuning for this machine may say of products, if it has kernels.
fn host() -> Option<Target> {
    let target = compiler().resolve(&Target::host()).unwrap();
    products()[0].tilings(&target).map(|_| target)
}

#[test]
fn a_wrong_candidate_is_rejected_and_a_right_one_is_not() {
    let Some(target) = host() else { return };
    let (compiler, runtime) = (compiler(), Runtime::new(Device::LocalTask { workers: 2 }).unwrap());
    let bench = Workbench { compiler: &compiler, runtime: &runtime, target: &target, seed: 3 };
    for product in products() {
        let tilings = product.tilings(&target).unwrap();
        let trials = Trials::new(&product, &tilings.product, tilings.usual, &bench).unwrap();
        let other = tilings.beside(tilings.usual).max_by_key(|tiling| tiling.parts).unwrap();
        assert!(other.parts.get() > 1);
        let module = trials.module(other).unwrap();
        assert!(matches!(trials.of(&module).unwrap(), Verdict::Ratio { .. }), "{product:?} {other}");

        // A sum that lacks its last terms; and a part of the work that nobody does.
        let less = one_round_less(module.text.clone());
        let undone = module.text.replacen("stream.return %n,", "stream.return %one,", usize::MAX);
        for text in [less, undone].into_iter().filter(|text| *text != module.text) {
            let wrong = lower::Module { text_without_locs: text.clone(), text, ..module.clone() };
            let verdict = trials.of(&wrong).unwrap();
            assert!(matches!(verdict, Verdict::Wrong(_)), "{product:?} {other}: {verdict:?}");
            let mut record = Record::new(&tilings.product, tilings.usual);
            record.tried.push(Tried { tiling: other, verdict });
            assert_eq!(record.best(), None);
        }
    }
}

/// A module follows the tuning that is named for its products, says which, and follows no other.
#[test]
fn text_follows_the_tuning() {
    let Some(target) = host() else { return };
    let compiler = compiler();
    let runtime = Runtime::new(Device::LocalSync).unwrap();
    let bench = Workbench { compiler: &compiler, runtime: &runtime, target: &target, seed: 3 };
    let product = &products()[3];
    let tilings = product.tilings(&target).unwrap();
    let trials = Trials::new(product, &tilings.product, tilings.usual, &bench).unwrap();
    let usual = trials.module(tilings.usual).unwrap();
    let mut texts = BTreeMap::from([(usual.text.clone(), tilings.usual)]);
    for other in tilings.beside(tilings.usual) {
        let module = trials.module(other).unwrap();
        let tuned = Tuning { products: BTreeMap::from([(tilings.product.clone(), other)]) };
        assert_eq!(module.tuned, tuned);
        assert_eq!(texts.insert(module.text, other), None, "{other} is written as another one");
    }
    assert!(texts.len() > 3);
    let foreign = Trials::new(product, "product_of_another_machine", tilings.usual, &bench).unwrap();
    let untuned = foreign.module(tilings.beside(tilings.usual).next().unwrap()).unwrap();
    assert_eq!((untuned.text, untuned.tuned), (usual.text, Tuning::default()));
}
