//! Numbers that are not finite, on every path that converts numbers.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use irpa::{Archive, ArchiveError, BlockFormat, Checkpoint, NotFinite, NumberPlace};
use ops::ops::{Pack, Permute, Quantize};
use ops::{ElementType, TensorType, WeightFormat};
use safetensors::tensor::{Dtype, TensorView};
use trace::{Parameter, Recipe};
use tracewright_bake::{BakeError, BakeOptions, Importance, QuantizeError, Quantizer, bake};

#[path = "../../../tests/support/gguf_parts.rs"]
mod gguf_parts;

use gguf_parts::GgufParts;

const ROWS: usize = 40;
/// No multiple of a group.
const INPUTS: usize = 70;
const FLOATS: [ElementType; 3] = [ElementType::F32, ElementType::F16, ElementType::Bf16];

fn numbers(count: usize) -> Vec<f32> {
    (0..count as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0).collect()
}

fn stored(numbers: &[f32], element: ElementType) -> (Dtype, Vec<u8>) {
    match element {
        ElementType::F16 => {
            (Dtype::F16, numbers.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect())
        }
        ElementType::Bf16 => {
            (Dtype::BF16, numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect())
        }
        _ => (Dtype::F32, numbers.iter().flat_map(|x| x.to_le_bytes()).collect()),
    }
}

/// A checkpoint with the matrix `w`.
fn checkpoint(folder: &Path, numbers: &[f32], inputs: usize, element: ElementType) -> Checkpoint {
    let (dtype, bytes) = stored(numbers, element);
    let view = TensorView::new(dtype, vec![numbers.len() / inputs, inputs], &bytes).unwrap();
    let file = folder.join("model.safetensors");
    safetensors::serialize_to_file([("w", view)], None, &file).unwrap();
    Checkpoint::open(file).unwrap()
}

/// The ways to read the matrix `w` with `rows` rows as a parameter, each with a name.
fn ways(rows: usize, inputs: usize) -> Vec<(String, Parameter)> {
    let source = |element| Recipe::Source("w".into(), TensorType::new(element, [rows, inputs]));
    let turned = || Recipe::Op(Permute { order: vec![1, 0] }.into(), vec![source(ElementType::F32)]);
    let mut ways = Vec::new();
    let mut add = |name: String, recipe: Recipe| {
        ways.push((name, Parameter::derived("made", recipe).unwrap()));
    };
    for element in FLOATS {
        add(format!("{element} packed"), {
            let format = WeightFormat::dense(element).unwrap();
            Recipe::Op(Pack { format }.into(), vec![source(element)])
        });
        add(format!("{element} turned"), {
            Recipe::Op(Permute { order: vec![1, 0] }.into(), vec![source(element)])
        });
    }
    for format in WeightFormat::grouped_formats() {
        add(format!("{format:?} packed"), Recipe::Op(Pack { format }.into(), vec![source(ElementType::F32)]));
        add(format!("{format:?} turned"), Recipe::Op(Pack { format }.into(), vec![turned()]));
        for &part in format.parts() {
            let quantize = Quantize { format, part };
            add(format!("{format:?} {part:?}"), Recipe::Op(quantize.into(), vec![source(ElementType::F32)]));
        }
    }
    ways.extend(FLOATS.map(|element| {
        (format!("{element} plain"), Parameter::new("w", TensorType::new(element, [rows, inputs])))
    }));
    ways
}

/// The error of a bake, if there is one, and whether a file remains.
fn lost(checkpoint: &Checkpoint, parameter: &Parameter, folder: &Path) -> Option<NotFinite> {
    let out = folder.join("out.irpa");
    let _ = std::fs::remove_file(&out);
    let baked = bake(checkpoint, std::slice::from_ref(parameter), &[], &out, BakeOptions::default());
    match baked {
        Ok(_) => None,
        Err(BakeError::Archive(ArchiveError::NotFinite(lost))) => {
            assert!(!out.exists());
            Some(*lost)
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_number_that_is_not_finite_is_named_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    for element in FLOATS {
        for (special, row, column) in
            [(f32::NAN, 0, 0), (f32::INFINITY, 17, 69), (f32::NEG_INFINITY, 39, 31), (-f32::NAN, 16, 64)]
        {
            let mut all = numbers(ROWS * INPUTS);
            all[row * INPUTS + column] = special;
            // A later one is not named.
            *all.last_mut().unwrap() = f32::NAN;
            let checkpoint = checkpoint(folder.path(), &all, INPUTS, element);
            for (way, parameter) in ways(ROWS, INPUTS) {
                // A parameter of the stored type is only moved, and keeps its NaN.
                let moved = way.starts_with(&element.to_string());
                let found = lost(&checkpoint, &parameter, folder.path());
                assert_eq!(found.is_none(), moved, "{element} {way}: {found:?}");
                let Some(found) = found else { continue };
                let place = NumberPlace::Stored { row, column, block: None };
                assert_eq!((found.place, found.tensor.as_str()), (place, "w"), "{element} {way}");
                assert_eq!(found.found.is_nan(), special.is_nan(), "{element} {way}");
                let said = found.to_string();
                assert!(
                    said.contains(&format!("the number [{row}, {column}] of the tensor `w` is ")),
                    "{said}"
                );
                assert!(said.contains("expected a finite number"), "{said}");
            }
        }
    }
}

#[test]
fn a_number_that_is_only_moved_keeps_its_bits() {
    let folder = tempfile::tempdir().unwrap();
    let mut all = numbers(ROWS * INPUTS);
    (all[5], all[700]) = (f32::NAN, f32::NEG_INFINITY);
    let checkpoint = checkpoint(folder.path(), &all, INPUTS, ElementType::F32);
    let parameter = Parameter::new("w", TensorType::new(ElementType::F32, [ROWS, INPUTS]));
    assert!(lost(&checkpoint, &parameter, folder.path()).is_none());
    let archive = Archive::open(folder.path().join("out.irpa")).unwrap();
    assert_eq!(archive.data("w").unwrap(), checkpoint.data("w").unwrap());
}

/// A finite number that the new type cannot represent would become an infinity.
#[test]
fn a_number_beyond_the_range_of_the_type_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (row, column) = (3, 7);
    // All formats with scales in f16 have the range of f16 times their integers. Scales of e4m3 end at 448.
    for (large, lost_in) in [
        (65_519.0, &["Nvfp4"][..]),
        (65_520.0, &["f16", "Nvfp4"]),
        (-1e9, &["f16", "scales", "Nvfp4"]),
        (f32::MAX, &["f16", "bf16", "scales", "Nvfp4"]),
    ] {
        let mut all = numbers(ROWS * INPUTS);
        all[row * INPUTS + column] = large;
        let checkpoint = checkpoint(folder.path(), &all, INPUTS, ElementType::F32);
        for (way, parameter) in ways(ROWS, INPUTS) {
            let to = way.split(' ').next().unwrap();
            let to = if to.starts_with(['Q', 'I', 'U']) { "scales" } else { to };
            let found = lost(&checkpoint, &parameter, folder.path());
            assert_eq!(found.is_some(), lost_in.contains(&to), "{large} {way}");
            let Some(found) = found else { continue };
            let place = NumberPlace::Stored { row, column, block: None };
            assert_eq!((found.found, found.place), (large, place), "{large} {way}");
            let said = found.to_string();
            assert!(said.contains(&format!("expected a number in the range of {}", found.to)), "{said}");
        }
    }
}

/// With many rows, several threads find numbers; the first number of the tensor is named.
#[test]
fn the_first_of_many_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut all = numbers(5000 * 64);
    for row in [4999, 4000, 1500, 1311] {
        all[row * 64 + 9] = f32::NAN;
    }
    let checkpoint = checkpoint(folder.path(), &all, 64, ElementType::F32);
    for (way, parameter) in ways(5000, 64).into_iter().filter(|(way, _)| way.starts_with('Q')) {
        let found = lost(&checkpoint, &parameter, folder.path()).unwrap();
        assert_eq!(found.place, NumberPlace::Stored { row: 1311, column: 9, block: None }, "{way}");
    }
}

/// The offsets of the f16 scales in a block, or of the exponent or scales of a byte for MXFP4 and NVFP4.
fn scales(format: BlockFormat) -> &'static [usize] {
    match format {
        BlockFormat::Q4_1 | BlockFormat::Q5_1 | BlockFormat::Q4K | BlockFormat::Q5K => &[0, 2],
        BlockFormat::Q6K => &[208],
        BlockFormat::Q2K => &[80, 82],
        BlockFormat::Q3K => &[108],
        BlockFormat::Nvfp4 => &[0, 1, 2, 3],
        BlockFormat::Iq1M => &[],
        BlockFormat::Tq1_0 => &[52],
        BlockFormat::Tq2_0 => &[64],
        _ => &[0],
    }
}

const NUMBER: [(BlockFormat, u32); 24] = [
    (BlockFormat::Q4_0, 2),
    (BlockFormat::Q4_1, 3),
    (BlockFormat::Q5_0, 6),
    (BlockFormat::Q5_1, 7),
    (BlockFormat::Q8_0, 8),
    (BlockFormat::Q2K, 10),
    (BlockFormat::Q3K, 11),
    (BlockFormat::Q4K, 12),
    (BlockFormat::Q5K, 13),
    (BlockFormat::Q6K, 14),
    (BlockFormat::Iq4Nl, 20),
    (BlockFormat::Iq4Xs, 23),
    (BlockFormat::Iq2Xxs, 16),
    (BlockFormat::Iq2Xs, 17),
    (BlockFormat::Iq3Xxs, 18),
    (BlockFormat::Iq1S, 19),
    (BlockFormat::Iq3S, 21),
    (BlockFormat::Iq2S, 22),
    (BlockFormat::Iq1M, 29),
    (BlockFormat::Tq1_0, 34),
    (BlockFormat::Tq2_0, 35),
    (BlockFormat::Mxfp4, 39),
    (BlockFormat::Nvfp4, 40),
    (BlockFormat::Q1_0, 41),
];

/// A GGUF file with a matrix of 18 rows and 512 columns. The block `damaged` has the bytes `bytes` at `offset`.
fn in_blocks(
    folder: &Path,
    format: BlockFormat,
    kind: u32,
    damage: Option<(usize, usize, &[u8])>,
) -> PathBuf {
    let (rows, columns) = (18, 512);
    let blocks = rows * columns / format.numbers();
    let mut data: Vec<u8> =
        numbers(blocks * format.bytes()).iter().map(|x| (x * 127.0) as i8 as u8).collect();
    for block in data.chunks_mut(format.bytes()) {
        if format == BlockFormat::Iq1M {
            // The bits of a scale of 0.01 are in four words.
            let bits = [15, 1, 1, 2].into_iter().enumerate();
            bits.for_each(|(part, bits)| block[49 + 2 * part] = block[49 + 2 * part] & 15 | bits << 4);
        }
        for &scale in scales(format) {
            match format {
                BlockFormat::Mxfp4 => block[scale] = 120,
                BlockFormat::Nvfp4 => block[scale] = 40,
                _ => block[scale..scale + 2].copy_from_slice(&f16::from_f32(0.01).to_le_bytes()),
            }
        }
    }
    if let Some((block, offset, bytes)) = damage {
        data[block * format.bytes() + offset..][..bytes.len()].copy_from_slice(bytes);
    }
    let mut parts = GgufParts::default();
    parts.add("w", &[columns as u64, rows as u64], kind, data);
    let path = folder.join(format!("{format}.gguf"));
    parts.write(&path);
    path
}

#[test]
fn blocks_come_back_from_an_archive() {
    let folder = tempfile::tempdir().unwrap();
    for (format, kind) in NUMBER {
        let checkpoint = Checkpoint::open(in_blocks(folder.path(), format, kind, None)).unwrap();
        let mut expected = vec![0.0; 18 * 512];
        checkpoint.numbers("w").unwrap().read(0, &mut expected);
        let stored = format.ours().unwrap();
        let source = Recipe::Source("w".to_owned(), TensorType::new(ElementType::F32, [18, 512]));
        let pack = Recipe::Op(Pack { format: stored }.into(), vec![source]);
        let parameter = Parameter::derived("packed", pack).unwrap();
        assert!(lost(&checkpoint, &parameter, folder.path()).is_none(), "{format}");
        let archive = Archive::open(folder.path().join("out.irpa")).unwrap();
        let panels = archive.data("packed").unwrap().chunks(stored.packed(16, 512).bytes());
        for (expected, panel) in expected.chunks(16 * 512).zip(panels) {
            let mut found = vec![0.0; expected.len()];
            stored.unpack_panel(panel, 512, &mut found);
            let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&found), bits(expected), "{format}");
        }
    }
}

#[test]
fn a_scale_that_is_not_finite_is_named_with_its_block() {
    let folder = tempfile::tempdir().unwrap();
    for (format, kind) in NUMBER {
        // The format that keeps the blocks, one that rounds them again, and plain numbers.
        let own = format!("{:?}", format.ours().unwrap());
        let is_used =
            |way: &str| [&own, "Q8", "f32", "f16", "bf16"].contains(&way.split(' ').next().unwrap());
        let ways = || ways(18, 512).into_iter().filter(|(way, _)| is_used(way));
        let sound = Checkpoint::open(in_blocks(folder.path(), format, kind, None)).unwrap();
        for (way, parameter) in ways() {
            assert!(lost(&sound, &parameter, folder.path()).is_none(), "{format} {way}");
        }
        let specials: &[[u8; 2]] = match format {
            BlockFormat::Mxfp4 => &[[255, 0]],
            BlockFormat::Nvfp4 => &[[127, 0]],
            _ => &[[1, 0xfe], [0, 0xfc]],
        };
        let last = 18 * 512 / format.numbers() - 1;
        for (&scale, special) in scales(format).iter().flat_map(|at| specials.iter().map(move |x| (at, x))) {
            for damaged in [0, last] {
                let is_byte = matches!(format, BlockFormat::Mxfp4 | BlockFormat::Nvfp4);
                let bytes = if is_byte { &special[..1] } else { &special[..] };
                let path = in_blocks(folder.path(), format, kind, Some((damaged, scale, bytes)));
                let checkpoint = Checkpoint::open(&path).unwrap();
                for (way, parameter) in ways() {
                    let found = lost(&checkpoint, &parameter, folder.path());
                    let found = found.unwrap_or_else(|| panic!("{format} {way} {special:?} at {damaged}"));
                    let NumberPlace::Stored { row, column, block } = found.place else { panic!("{found}") };
                    assert_eq!(block, Some((format, damaged)), "{format} {way}");
                    assert_eq!((row * 512 + column) / format.numbers(), damaged, "{format} {way}");
                    assert_eq!(found.path, path);
                    let said = found.to_string();
                    assert!(said.contains(&format!(" in block {damaged} of {format} is ")), "{said}");
                }
            }
        }
    }
}

/// The paths of `tracewright quantize`: rounding with and without statistics, and the weights that it does not round.
#[test]
fn a_quantized_checkpoint_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let matrix = TensorType::new(ElementType::F32, [ROWS, INPUTS]);
    for element in FLOATS {
        let mut all = numbers(ROWS * INPUTS);
        all[12 * INPUTS + 34] = f32::NAN;
        let checkpoint = checkpoint(folder.path(), &all, INPUTS, element);
        for format in WeightFormat::grouped_formats() {
            let formats = BTreeMap::from([("w".to_owned(), format)]);
            let parameters = [Parameter::new("w", matrix.clone())];
            let mut quantizer = Quantizer::new(&checkpoint, &parameters, &formats);
            let place = NumberPlace::Stored { row: 12, column: 34, block: None };
            match quantizer.round("w", &Importance::Squares(vec![1.0; INPUTS])) {
                Err(ArchiveError::NotFinite(lost)) => assert_eq!(lost.place, place),
                other => panic!("{format:?}: {other:?}"),
            }
            let out = folder.path().join("quantized");
            match quantizer.write(&out) {
                Err(QuantizeError::Archive(ArchiveError::NotFinite(lost))) => assert_eq!(lost.place, place),
                other => panic!("{format:?}: {other:?}"),
            }
            assert!(!out.exists());
        }
    }
    // A matrix in blocks becomes f32, because the network does not quantize it.
    let damage = Some((3, 208, &[0, 0x7e][..]));
    let checkpoint = Checkpoint::open(in_blocks(folder.path(), BlockFormat::Q6K, 14, damage)).unwrap();
    let parameters = [Parameter::new("w", TensorType::new(ElementType::F32, [18, 512]))];
    let out = folder.path().join("quantized");
    match Quantizer::new(&checkpoint, &parameters, &BTreeMap::new()).write(&out) {
        Err(QuantizeError::Archive(ArchiveError::NotFinite(lost))) => {
            let block = Some((BlockFormat::Q6K, 3));
            assert_eq!(lost.place, NumberPlace::Stored { row: 1, column: 256, block });
        }
        other => panic!("{other:?}"),
    }
    assert!(!out.exists());
}
