//! The memory of kernels: the stacks of workers, and reads behind the end of a weight.

use std::collections::BTreeMap;

use irpa::{Archive, EntryData, NewEntry, Sink, WriteOptions};
use ops::format::ActivationBits;
use ops::ops::PackedLinear;
use ops::{Bound, TensorType, WeightFormat};
use runtime::{Device, ParameterData, Parameters};
use targets::Target;
use tracewright_tests::calls::{Calls, random};
use tracewright_tests::{in_iree, long};

use super::fused::products_with_surroundings;
use super::{activations, as_it_is, built, levels, packed};
use crate::support::{compiler, parameter};

/// A worker's stack has room for the largest kernels and their callers. One normalizes and quantizes a row.
/// Another multiplies by tiles, with halves, and has more rows than are held.
#[test]
fn workers_have_room_for_what_kernels_keep() {
    let Some((target, _)) = levels().into_iter().next() else { return };
    // In the short form numbers and bytes: those of four bits keep what bytes do.
    let formats = [WeightFormat::Bf16, WeightFormat::Q8, WeightFormat::Q4, WeightFormat::Q4K];
    for format in long::first(formats, 2) {
        let cases: [([usize; 3], &[usize]); 3] =
            [([1, 5824, 32], &[1]), ([1, 9408, 32], &[0, 1, 2]), ([150, 96, 64], &[3])];
        let calls = products_with_surroundings(&cases, format);
        let built = built(&calls, &target, &as_it_is);
        let found = built.load_on(Device::LocalTask { workers: 2 }, in_iree::parameters(&calls.weights));
        let found = found.violations(&calls);
        assert!(found.is_empty(), "{target}: {}", found.join("\n"));
    }
}

/// A variable that tells the process of a test to plant a fault, which ends the process.
#[cfg(unix)]
const PLANTED: &str = "TRACEWRIGHT_TEST_PLANTED";

/// Behind a weight there may be nothing: kernels ask for memory ahead of its use, and do not read it. The weight ends where
/// its file does, and what is mapped behind it is missing.
#[cfg(unix)]
#[test]
fn nothing_is_read_behind_a_weight() {
    let planted = std::env::var_os(PLANTED).is_some();
    const PAGE: usize = 1 << 16;
    let [outputs, inputs] = [2048, 1024];
    for &format in WeightFormat::ALL {
        let weight = packed(format, outputs, inputs, 1);
        let element = activations(format)[0];
        let x = random(TensorType::new(element, [1, inputs]), 2);
        let mut all = Calls::default();
        all.weights.insert("weight".into(), weight.clone());
        let op = PackedLinear { format, outputs, element, activations: ActivationBits::Eight };
        all.graph(format!("{op:?}"), vec![x], Bound::UlpsOfLargest(16.0), |b, ids| {
            let weight = parameter(b, "weight", weight.ty.clone());
            b.op(op.clone(), &[ids[0], weight])
        });
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.irpa");
        // Something before it, so that it ends with a page; and behind it something that will be missing.
        let write = |before: usize| {
            let entries = [("a", before), ("b", weight.ty.bytes()), ("c", 1 << 17)];
            let entries = entries.map(|(name, length)| NewEntry::raw(name, length as u64)).to_vec();
            let fill = |entry: &NewEntry, sink: &mut Sink<'_>| match entry.name() {
                "a" => sink.write(&vec![0; before]),
                "b" => sink.write(&weight.to_bytes()),
                _ => sink.write(&[0; 1 << 17]),
            };
            irpa::write::<irpa::ArchiveError>(&path, entries, WriteOptions::default(), fill).unwrap();
            let archive = Archive::open(&path).unwrap();
            let EntryData::Range(range) = archive.get("b").unwrap().data.clone() else { unreachable!() };
            (archive, range)
        };
        let (_, first) = write(PAGE);
        let (archive, range) = write(2 * PAGE - first.end % PAGE);
        assert_eq!(range.end % PAGE, 0, "the weight does not end with a page");
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(range.end as u64).unwrap();
        let entries = BTreeMap::from([("weight".into(), ParameterData::Range(range))]);
        let parameters = Parameters { scope: "model".into(), bytes: archive.bytes(), entries };
        // A load that nobody uses would be left out.
        let load = |text: String| {
            let lines = text.lines().enumerate().map(|(number, line)| {
                let Some((before, rest)) = line.split_once("memref.prefetch ") else {
                    return format!("{line}\n");
                };
                let (buffer, _) = rest.split_once(", read").unwrap();
                let (_, ty) = rest.rsplit_once(" : ").unwrap();
                let element = ty.trim_end_matches('>').rsplit('x').next().unwrap();
                format!(
                    "{before}%read{number} = memref.load {buffer} : {ty}\n\
                     {before}llvm.inline_asm has_side_effects \"\", \"r\" %read{number} : ({element}) -> ()\n"
                )
            });
            lines.collect()
        };
        let target = compiler().resolve(&Target::host()).unwrap();
        let built = built(&all, &target, if planted { &load } else { &as_it_is });
        assert!(built.module.text.contains("memref.prefetch") != planted);
        let found = built.load_with(parameters).violations(&all);
        assert!(found.is_empty(), "{target}: {}", found.join("\n"));
    }
    if !planted {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "kernels::memory::nothing_is_read_behind_a_weight"]).env(PLANTED, "1");
        let ended = child.output().unwrap();
        assert_eq!(ended.status.code(), None, "a load in place of a prefetch does not end the process");
    }
}
