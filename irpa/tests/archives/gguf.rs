//! Reading GGUF files, and the messages about invalid ones. `tests/tests/networks/gguf.rs` judges the decoded blocks.

use std::fs;
use std::path::PathBuf;

use tracewright_irpa::{
    ArchiveError, BlockFormat, Checkpoint, Gguf, GgufProblem, GgufValue, StoredNumbers, StoredOrder,
};

/// A file that is put together piece by piece.
#[derive(Clone, Default)]
struct File {
    keys: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: Vec<u8>,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

impl File {
    fn key(mut self, name: &str, kind: u32, value: &[u8]) -> Self {
        self.keys.push([&text(name)[..], &kind.to_le_bytes(), value].concat());
        self
    }

    /// A tensor with its extents innermost first.
    fn tensor(mut self, name: &str, extents: &[u64], kind: u32, offset: u64) -> Self {
        let extents: Vec<u8> = (extents.len() as u32)
            .to_le_bytes()
            .into_iter()
            .chain(extents.iter().flat_map(|e| e.to_le_bytes()))
            .collect();
        let place = [&kind.to_le_bytes()[..], &offset.to_le_bytes()].concat();
        self.tensors.push([text(name), extents, place].concat());
        self
    }

    fn data(mut self, bytes: usize) -> Self {
        self.data = (0..bytes).map(|byte| byte as u8).collect();
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let counts = [self.tensors.len() as u64, self.keys.len() as u64];
        let mut bytes = [&b"GGUF"[..], &3u32.to_le_bytes()].concat();
        bytes.extend(counts.iter().flat_map(|count| count.to_le_bytes()));
        bytes.extend(self.keys.concat());
        bytes.extend(self.tensors.concat());
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(&self.data);
        bytes
    }
}

fn written(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    fs::write(&path, bytes).expect("a file");
    (folder, path)
}

/// The problems of a file with these bytes.
fn problems(bytes: &[u8]) -> Vec<GgufProblem> {
    let (_folder, path) = written(bytes);
    match Gguf::open(&path) {
        Err(ArchiveError::Gguf { problems, .. }) => problems,
        other => panic!("{other:?}"),
    }
}

/// A matrix [2, 3] of F32 and a row of a Q8_0 block, with keys of every type.
fn whole() -> File {
    let array = [&8u32.to_le_bytes()[..], &2u64.to_le_bytes(), &text("a"), &text("▁b")].concat();
    let numbers = [&6u32.to_le_bytes()[..], &2u64.to_le_bytes(), &1f32.to_le_bytes(), &(-2f32).to_le_bytes()];
    File::default()
        .key("general.architecture", 8, &text("llama"))
        .key("u8", 0, &[200])
        .key("i8", 1, &[200])
        .key("u16", 2, &[1, 2])
        .key("i16", 3, &[0xff, 0xff])
        .key("u32", 4, &[1, 0, 0, 0x80])
        .key("i32", 5, &[1, 0, 0, 0x80])
        .key("f32", 6, &1.5f32.to_le_bytes())
        .key("bool", 7, &[1])
        .key("u64", 10, &u64::MAX.to_le_bytes())
        .key("i64", 11, &i64::MIN.to_le_bytes())
        .key("f64", 12, &0.1f64.to_le_bytes())
        .key("texts", 9, &array)
        .key("numbers", 9, &numbers.concat())
        .tensor("matrix", &[3, 2], 0, 0)
        .tensor("row", &[32], 8, 32)
        .data(32 + 34)
}

#[test]
fn keys_and_tensors_are_read() {
    let (_folder, path) = written(&whole().bytes());
    assert!(Gguf::is_at(&path));
    let file = Gguf::open(&path).unwrap();
    for (key, value) in [
        ("general.architecture", GgufValue::Text("llama")),
        ("u8", GgufValue::Integer(200)),
        ("i8", GgufValue::Integer(-56)),
        ("u16", GgufValue::Integer(513)),
        ("i16", GgufValue::Integer(-1)),
        ("u32", GgufValue::Integer(0x8000_0001)),
        ("i32", GgufValue::Integer(-0x7fff_ffff)),
        ("f32", GgufValue::Float(1.5)),
        ("bool", GgufValue::Bool(true)),
        ("u64", GgufValue::Integer(u64::MAX.into())),
        ("i64", GgufValue::Integer(i64::MIN.into())),
        ("f64", GgufValue::Float(0.1)),
    ] {
        assert_eq!(file.get(key), Some(value), "{key}");
    }
    let array = |key| match file.get(key) {
        Some(GgufValue::Array(array)) => array,
        other => panic!("{other:?}"),
    };
    assert_eq!(array("texts").texts().unwrap().collect::<Vec<_>>(), ["a", "▁b"]);
    assert_eq!(array("numbers").floats().unwrap().collect::<Vec<_>>(), [1.0, -2.0]);
    assert!(array("texts").floats().is_none() && array("numbers").integers().is_none());
    assert_eq!(file.keys().count(), 14);
    let [matrix, row] = file.tensors() else { panic!("two tensors") };
    assert_eq!((matrix.shape.as_slice(), file.data(matrix).len()), (&[2, 3][..], 24));
    assert_eq!((row.numbers, file.data(row).len()), (StoredNumbers::Blocks(BlockFormat::Q8_0), 34));
    assert_eq!(file.data(row)[0], 32);
}

#[test]
fn a_checkpoint_has_the_tensors_under_new_names() {
    let (_folder, path) = written(&whole().bytes());
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(checkpoint.ty("matrix").unwrap().to_string(), "f32[2,3]");
    let refused = checkpoint.ty("row").unwrap_err();
    assert!(refused.to_string().contains("quantized blocks of Q8_0"), "{refused}");
    let mut row = [0.0; 3];
    checkpoint.numbers("row").unwrap().read(29, &mut row);
    let scale = half::f16::from_le_bytes([32, 33]).to_f32();
    assert_eq!(row, [63.0, 64.0, 65.0].map(|integer| integer * scale));
    let revised = checkpoint.revised(|mut tensor| {
        if tensor.name == "row" {
            return None;
        }
        tensor.name = "other".into();
        tensor.shape.reverse();
        tensor.arranged = StoredOrder::Transposed;
        Some(tensor)
    });
    assert_eq!(revised.tensors().map(|tensor| tensor.name.as_str()).collect::<Vec<_>>(), ["other"]);
    assert_eq!(revised.get("other").unwrap().shape, [3, 2]);
}

#[test]
fn a_file_that_is_cut_off_anywhere_is_an_error() {
    let bytes = whole().bytes();
    for end in 0..bytes.len() {
        let problems = problems(&bytes[..end]);
        let cut = |problem: &GgufProblem| {
            matches!(problem, GgufProblem::CutOff { .. } | GgufProblem::Beyond { .. })
        };
        assert!(problems.iter().any(cut), "{end}: {problems:?}");
    }
}

#[test]
fn everything_that_is_wrong_is_said_at_once() {
    let file = whole()
        .key("general.alignment", 4, &5u32.to_le_bytes())
        .key("u8", 0, &[1])
        .tensor("matrix", &[3, 2], 0, 0)
        .tensor("unknown", &[32], 99, 0)
        .tensor("odd", &[33], 8, 0)
        .tensor("empty", &[0, 2], 0, 0)
        .tensor("huge", &[1 << 40, 1 << 40], 0, 0)
        .tensor("crooked", &[1], 0, 7)
        .tensor("far", &[1], 0, 1 << 40)
        .tensor("farther", &[1], 0, u64::MAX / 32 * 32);
    let said: Vec<String> = problems(&file.bytes()).iter().map(ToString::to_string).collect();
    for expected in [
        "the key `u8` occurs twice",
        "`general.alignment` is 5, expected a power of two from 8 to 1048576",
        "tensor `matrix` occurs twice",
        "the tensor `unknown` has the ggml type 99, expected F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ2_XXS, IQ2_XS, IQ3_XXS, IQ1_S, IQ4_NL, IQ3_S, IQ2_S, IQ4_XS, IQ1_M, TQ1_0, TQ2_0, MXFP4, NVFP4 or Q1_0; use a file with one of these types",
        "the tensor `odd` has the shape [33], expected extents of at least 1 and a row length that is a multiple of 32",
        "the tensor `empty` has the shape [2, 0], expected extents of at least 1 and a row length that is a multiple of 1",
        "the tensor `huge` has the shape [1099511627776, 1099511627776], expected extents of at least 1 and a row length that is a multiple of 1",
        "the data of tensor `crooked` begin at byte 7, expected a multiple of 32",
    ] {
        assert!(said.iter().any(|said| said == expected), "`{expected}` is not in {said:#?}");
    }
    for (tensor, end) in [("far", "at byte 109951162"), ("farther", "beyond the largest possible file")] {
        let about = format!("the data of the tensor `{tensor}` end {end}");
        assert!(said.iter().any(|said| said.starts_with(&about)), "`{about}` is not in {said:#?}");
    }
    assert_eq!(said.len(), 10, "{said:#?}");
}

/// Tensors with common bytes are an error that names both, wherever they are in the table. A gap is no error.
#[test]
fn data_do_not_overlap() {
    let file = |offsets: [u64; 3]| {
        let [a, b, c] = offsets;
        let file = File::default().tensor("a", &[16], 0, a).tensor("b", &[16], 0, b).tensor("c", &[8], 0, c);
        file.data(512).bytes()
    };
    let said =
        |offsets| -> Vec<String> { problems(&file(offsets)).iter().map(ToString::to_string).collect() };
    let start = file([0, 64, 128]).len() - 512;
    for sound in [[0, 64, 128], [128, 0, 64], [0, 128, 448]] {
        let (_folder, path) = written(&file(sound));
        Gguf::open(&path).unwrap();
    }
    let overlap = |first: &str, second: &str, at: usize| {
        format!(
            "the data of the tensors `{first}` and `{second}` overlap at byte {} of the file, expected separate data; \
            convert the model again",
            start + at
        )
    };
    assert_eq!(said([0, 32, 128]), [overlap("a", "b", 32)]);
    assert_eq!(said([96, 64, 256]), [overlap("b", "a", 96)]);
    assert_eq!(said([0, 0, 32]), [overlap("a", "b", 0), overlap("a", "c", 32)]);
    assert_eq!(said([0, 64, 96]), [overlap("b", "c", 96)]);
}

/// As in llama.cpp, a tensor has as many axes as it needs.
#[test]
fn extents_of_one_are_no_axes() {
    let shapes = [
        (&[3, 2, 1, 1][..], &[2, 3][..]),
        (&[6, 1, 1], &[6]),
        (&[1, 1], &[1]),
        (&[1, 6], &[6, 1]),
        (&[], &[]),
    ];
    for (extents, shape) in shapes {
        let (_folder, path) = written(&File::default().tensor("a", extents, 0, 0).data(32).bytes());
        assert_eq!(Gguf::open(&path).unwrap().tensors()[0].shape, shape, "{extents:?}");
        let checkpoint = Checkpoint::open(&path).unwrap();
        let tensor = checkpoint.get("a").unwrap();
        let long = [&[1, 1], shape].concat();
        assert!(tensor.has_shape(shape) && tensor.has_shape(&long), "{extents:?}");
        assert!(!tensor.has_shape(&[&long[..], &[2]].concat()));
    }
}

#[test]
fn what_keeps_the_rest_from_being_read_is_named() {
    let with = |at: usize, new: &[u8]| {
        let mut bytes = whole().bytes();
        bytes[at..at + new.len()].copy_from_slice(new);
        problems(&bytes).last().map(ToString::to_string).unwrap_or_default()
    };
    assert_eq!(with(0, b"GGML"), "the file does not begin with `GGUF`; download the file again");
    assert_eq!(with(4, &[1]), "the version of the file is 1, expected 2 or 3; convert the model again");
    assert!(
        with(4, &[0, 0, 0, 3]).starts_with("the numbers in the file are big-endian, expected little-endian")
    );
    assert_eq!(with(8, &[2, 0, 0, 0, 1]), "the file has 4294967298 tensors, expected at most 65536");
    assert_eq!(with(16, &[14, 0, 0, 0, 1]), "the file has 4294967310 keys, expected at most 4096");
    assert_eq!(with(32, &[0xff]), "a key at byte 32 is not UTF-8");
    let nested = File::default().key("nested", 9, &[&9u32.to_le_bytes()[..], &[0; 8]].concat());
    assert_eq!(
        problems(&nested.bytes())[0].to_string(),
        "the key `nested` has the value type 9, expected a type from 0 to 8 or from 10 to 12, or one array of these types"
    );
    let long = File::default().key("long", 9, &[&4u32.to_le_bytes()[..], &u64::MAX.to_le_bytes()].concat());
    assert!(matches!(problems(&long.bytes())[0], GgufProblem::CutOff { what: "an array", .. }));
    let deep = File::default().tensor("deep", &[1; 5], 0, 0);
    assert_eq!(problems(&deep.bytes())[0].to_string(), "tensor `deep` has 5 axes, expected at most 4");
}
