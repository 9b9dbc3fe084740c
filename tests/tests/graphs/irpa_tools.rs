//! Archives against IREE's own tools: they read ours, and write the same bytes.

#![allow(clippy::unwrap_used, reason = "helpers of tests: a failure is the test's")]

use irpa::{
    Archive, ArchiveError, Checkpoint, ConvertOptions, Dtype, EntryData, NewEntry, WriteOptions,
    convert_checkpoint, write,
};
use ops::{ElementType, Reader, TensorType, Value};
use safetensors::{serialize_to_file, tensor::TensorView};
use std::{fs, ops::ControlFlow, path::Path, process::Command};
use trace::{Parameter, Recipe};
use tracewright::bake::{BakeOptions, bake};
use tracewright::files::FileKind;
use tracewright_tests::built::installed;

/// Runs one of IREE's parameter tools and returns what it printed.
fn tool(name: &str, arguments: &[String]) -> String {
    // The scripts in `bin` start Python first; the programs themselves are inside the package.
    let program = installed("venv", &format!("iree/_runtime_libs/{name}"));
    let program = program.unwrap_or_else(|| panic!("no `{name}` is installed: run `cargo xtask setup`"));
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{name} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The output of `iree-convert-parameters` for these parameters.
fn converted(parameters: &Path, output: &Path) -> Vec<u8> {
    let arguments =
        [format!("--parameters={}", parameters.display()), format!("--output={}", output.display())];
    tool("iree-convert-parameters", &arguments);
    fs::read(output).unwrap()
}

#[track_caller]
fn assert_same(ours: &[u8], theirs: &[u8]) {
    let difference = ours.iter().zip(theirs).position(|(a, b)| a != b);
    assert_eq!(
        (ours.len(), difference),
        (theirs.len(), None),
        "the first difference is at the second number"
    );
}

fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Finite values of both signs.
fn floats(element: ElementType, count: usize) -> Vec<u8> {
    let width = element.bits() / 8;
    let mut bytes = noise(width * count);
    bytes.iter_mut().skip(width - 1).step_by(width).for_each(|upper| *upper &= 0xbf);
    bytes
}

fn dtype(element: ElementType) -> Dtype {
    match element {
        ElementType::F32 => Dtype::F32,
        ElementType::F16 => Dtype::F16,
        ElementType::Bf16 => Dtype::BF16,
        other => panic!("a checkpoint in {other}"),
    }
}

/// A checkpoint of one element type, which the safetensors crate then stores sorted by name.
fn checkpoint(path: &Path, element: ElementType, tensors: &[(&str, &[usize])]) {
    let values = tensors.iter().map(|(name, shape)| {
        let ty = TensorType::new(element, *shape);
        let bytes = floats(element, ty.count());
        (name.to_string(), ty, bytes)
    });
    store(path, &values.collect::<Vec<_>>());
}

fn derived(key: String, recipe: &str) -> Parameter {
    Parameter::derived(key, Recipe::parse(&mut Reader::new(recipe)).unwrap()).unwrap()
}

/// A checkpoint of these tensors.
fn store(path: &Path, tensors: &[(String, TensorType, Vec<u8>)]) {
    let views = tensors.iter().map(|(name, ty, bytes)| {
        (name, TensorView::new(dtype(ty.element), ty.shape.clone(), bytes).unwrap())
    });
    serialize_to_file(views, None, path).unwrap();
}

const TENSORS: [(&str, &[usize]); 6] = [
    ("lm_head.weight", &[131, 60]),
    ("model.layers.0.norm.weight", &[60]),
    ("model.layers.0.q_proj.weight", &[84, 60]),
    ("model.layers.1.empty", &[0, 3]),
    ("model.scalar", &[]),
    ("z", &[1023, 33]),
];

#[test]
fn s25_archive_equals_irees_own_tool() {
    for element in [ElementType::F32, ElementType::F16, ElementType::Bf16] {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        checkpoint(&at("model.safetensors"), element, &TENSORS);
        let options = ConvertOptions { metadata: false, ..Default::default() };
        convert_checkpoint(&Checkpoint::open(folder.path()).unwrap(), at("ours.irpa"), options).unwrap();
        assert_same(
            &fs::read(at("ours.irpa")).unwrap(),
            &converted(&at("model.safetensors"), &at("theirs.irpa")),
        );
    }
}

/// Results of recipes have the same place as in the archive of IREE's tool, given the evaluator's tensors.
#[test]
fn s25_an_archive_made_by_recipes_equals_irees_own_tool() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    checkpoint(&at("model.safetensors"), ElementType::Bf16, &TENSORS);
    // The safetensors crate stores wider types first: in our order too, which is that of the names.
    let recipes = [
        (
            "b",
            r#"concatenate axis=0 ("model.layers.0.q_proj.weight" : bf16[84,60], "lm_head.weight" : bf16[131,60])"#,
        ),
        ("c", r#"permute order=[1,0] ("z" : bf16[1023,33])"#),
        (
            "a",
            r#"binary kind=add (convert to=f32 ("model.layers.0.norm.weight" : bf16[60]), constant value=f32[60] splat 1.0 ())"#,
        ),
    ];
    let recipe = |(key, text): &(&str, &str)| derived((*key).to_owned(), text);
    let mut parameters: Vec<Parameter> = recipes.iter().map(recipe).collect();
    parameters.push(Parameter::new("model.scalar", TensorType::new(ElementType::Bf16, [])));
    parameters.push(Parameter::new("model.layers.1.empty", TensorType::new(ElementType::Bf16, [0, 3])));

    let source = Checkpoint::open(folder.path()).unwrap();
    let options = BakeOptions { metadata: false, ..BakeOptions::default() };
    bake(&source, &parameters, &[], &at("ours.irpa"), options).unwrap();
    let value = |key: &str| {
        let (_, shape) = TENSORS.iter().find(|(name, _)| *name == key)?;
        Some(Value::from_bytes(TensorType::new(ElementType::Bf16, *shape), source.data(key).ok()?))
    };
    let made = parameters.iter().map(|parameter| {
        (parameter.key.clone(), parameter.ty.clone(), parameter.value(&value).unwrap().to_bytes())
    });
    store(&at("made.safetensors"), &made.collect::<Vec<_>>());
    assert_same(&fs::read(at("ours.irpa")).unwrap(), &converted(&at("made.safetensors"), &at("theirs.irpa")));
}

#[test]
fn s26_irees_own_tool_returns_our_bytes_metadata_included() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    checkpoint(&at("model.safetensors"), ElementType::Bf16, &TENSORS);
    let source = Checkpoint::open(folder.path()).unwrap();
    convert_checkpoint(&source, at("plain.irpa"), ConvertOptions::default()).unwrap();
    let i8s = |count| TensorType::new(ElementType::I8, [count]);
    let splat = |name, pattern: &[u8]| NewEntry::splat(name, TensorType::new(ElementType::I8, [48]), pattern);
    type Case = (&'static str, fn(&dyn Fn(&'static str, &[u8]) -> NewEntry) -> Vec<NewEntry>);
    let mixed: [Case; 4] = [
        ("empty.irpa", |_| vec![]),
        ("splats.irpa", |splat| vec![splat("b", &[1, 2, 3, 4]), splat("a", &[7])]),
        ("splat_last.irpa", |splat| vec![splat("z", &[9; 16]), NewEntry::raw("raw", 4097)]),
        ("splat_first.irpa", |splat| {
            vec![splat("a", &[1, 2]), NewEntry::raw("raw", 0), NewEntry::raw("y", 65)]
        }),
    ];
    for (name, entries) in mixed {
        let mut entries = entries(&splat);
        if name == "splat_last.irpa" {
            entries
                .push(NewEntry::tensor("with.recipe", i8s(5)).with_recipe("concat(a, b)", vec!["a".into()]));
        }
        let fill = |entry: &NewEntry, sink: &mut irpa::Sink<'_>| {
            let length = match entry.name() {
                "raw" if name == "splat_last.irpa" => 4097,
                "raw" => 0,
                "y" => 65,
                _ => 5,
            };
            sink.write(&noise(length))
        };
        write(at(name), entries, WriteOptions::default(), fill).unwrap();
    }
    for name in ["plain.irpa", "empty.irpa", "splats.irpa", "splat_last.irpa", "splat_first.irpa"] {
        println!("{name}");
        let archive = Archive::open(at(name)).unwrap();
        assert_same((*archive.bytes()).as_ref(), &converted(&at(name), &at("back.irpa")));
        let dump = tool("iree-dump-parameters", &[format!("--parameters={}", at(name).display())]);
        for entry in archive.entries() {
            assert!(dump.contains(&entry.name), "`{}` is not in\n{dump}", entry.name);
        }
    }
}

#[test]
fn s26_we_read_what_irees_own_tool_creates() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("created.irpa");
    // This tool puts splats first, and data of more than one byte per element make it fail.
    let arguments =
        ["--data=key2=4xi8=100", "--data=key3=5xi8=101", "--splat=key0=i8=102", "--splat=key1=6x5xi64=103"];
    let mut arguments: Vec<String> = arguments.map(String::from).into();
    arguments.push(format!("--output={}", path.display()));
    tool("iree-create-parameters", &arguments);
    let archive = Archive::open(&path).unwrap();
    assert_eq!(archive.data("key2").unwrap(), [100; 4]);
    assert_eq!(archive.data("key3").unwrap(), [101; 5]);
    let EntryData::Splat { pattern, length } = &archive.get("key1").unwrap().data else { panic!() };
    assert_eq!((pattern.as_slice(), *length), (&103u64.to_le_bytes()[..], 240));
}

#[test]
fn s2_float_conversion_happens_on_the_way_into_the_archive() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    checkpoint(&at("model.safetensors"), ElementType::Bf16, &TENSORS);
    let source = Checkpoint::open(folder.path()).unwrap();
    let wide = ConvertOptions { float: Some(ElementType::F32), ..Default::default() };
    let report = convert_checkpoint(&source, at("wide.irpa"), wide).unwrap();
    assert_eq!(report.len(), TENSORS.len());
    let archive = Archive::open(at("wide.irpa")).unwrap();
    for (name, shape) in TENSORS {
        let entry = archive.get(name).unwrap();
        assert_eq!(entry.ty, Some(TensorType::new(ElementType::F32, shape)));
        let upper: Vec<u8> = archive.data(name).unwrap().chunks(4).flat_map(|b| [b[2], b[3]]).collect();
        assert_same(&upper, source.data(name).unwrap());
    }
    assert_same((*archive.bytes()).as_ref(), &converted(&at("wide.irpa"), &at("back.irpa")));
    let integers = ConvertOptions { float: Some(ElementType::I8), ..Default::default() };
    let refused = convert_checkpoint(&source, at("never.irpa"), integers);
    assert!(matches!(refused, Err(ArchiveError::Conversion { .. })));
}

/// Anonymous memory of this process, in bytes.
#[cfg(target_os = "linux")]
fn anonymous() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// How often this thread wrote, how many bytes, and how many it read, as the system counts: what is mapped is not read.
#[cfg(target_os = "linux")]
fn written_and_read() -> Option<[u64; 3]> {
    // Not every kernel counts.
    let counters = fs::read_to_string("/proc/thread-self/io").ok()?;
    Some(["syscw: ", "wchar: ", "rchar: "].map(|name| {
        let line = counters.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().parse().unwrap()
    }))
}

#[cfg(target_os = "linux")]
#[test]
fn s23_s24_baking_takes_large_steps_and_little_memory() {
    const LIMIT: u64 = 128 << 20;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    {
        // One tensor is larger than the limit alone.
        let mut noise = noise(1 << 20);
        // Without the highest bit of its exponent, an f32 is finite.
        noise.iter_mut().skip(3).step_by(4).for_each(|byte| *byte &= 0xbf);
        let data = noise.repeat(256);
        let small = TensorView::new(Dtype::F32, vec![1 << 20], &data[..4 << 20]).unwrap();
        let large = TensorView::new(Dtype::F32, vec![64, 1 << 20], &data).unwrap();
        let names = (0..16).map(|i| format!("layers.{i:02}"));
        let tensors = names.map(|name| (name, &small)).chain([("embedding".to_string(), &large)]);
        serialize_to_file(tensors, None, &file).unwrap();
    }
    let source = Checkpoint::open(&file).unwrap();
    let total = source.tensors().map(|tensor| tensor.range.len() as u64).sum::<u64>();
    assert!(total > 2 * LIMIT);
    for float in [None, Some(ElementType::Bf16)] {
        let (mut peak, mut steps) = (0, 0);
        let mut watch = |_: irpa::Progress| {
            peak = peak.max(anonymous());
            steps += 1;
            ControlFlow::Continue(())
        };
        let options = ConvertOptions { float, watch: Some(&mut watch), ..Default::default() };
        let before = written_and_read();
        let archive = folder.path().join("out.irpa");
        convert_checkpoint(&source, &archive, options).unwrap();
        println!("{total} bytes in {steps} steps, at most {peak} bytes of anonymous memory");
        assert!(peak <= LIMIT, "{peak}");
        assert!(steps <= (2 * total) >> 20, "{steps}");
        if let (Some(before), Some(after)) = (before, written_and_read()) {
            let [writes, written, read] = std::array::from_fn(|i| after[i] - before[i]);
            println!("{writes} writes of {written} bytes, {read} bytes read");
            let length = fs::metadata(&archive).unwrap().len();
            assert!(written >= length && writes <= (2 * total) >> 20, "{writes} writes of {written} bytes");
            // What the watch reads of /proc, and twice the head that tells the kind of the file to replace; no tensor.
            assert!(read < 2 * FileKind::HEAD + (1 << 20), "{read} bytes read");
        }
    }

    // By recipes that put tensors together, turn them and compute with them: none of which is ever held whole, each being larger
    // than what may be held.
    const OF_RECIPES: u64 = 16 << 20;
    let row = |i: usize| format!(r#"reshape shape=[1,1048576] ("layers.{i:02}" : f32[1048576])"#);
    let rows = (0..16).map(row).collect::<Vec<_>>().join(", ");
    let rows = format!("concatenate axis=0 ({rows})");
    let narrow = format!("convert to=bf16 ({rows})");
    let recipes = [
        format!("permute order=[1,0] ({narrow})"),
        format!("binary kind=add ({narrow}, constant value=bf16[16,1048576] splat 1.0 ())"),
        rows,
        "convert to=bf16 (\"embedding\" : f32[64,1048576])".to_owned(),
    ];
    let recipe = |(i, text): (usize, &String)| derived(format!("made.{i}"), text);
    let parameters: Vec<Parameter> = recipes.iter().enumerate().map(recipe).collect();
    assert!(parameters.iter().all(|parameter| parameter.ty.bytes() as u64 >= 2 * OF_RECIPES));
    let mut peak = 0;
    let mut watch = |_: irpa::Progress| {
        peak = peak.max(anonymous());
        ControlFlow::Continue(())
    };
    let options = BakeOptions { watch: Some(&mut watch), ..BakeOptions::default() };
    bake(&source, &parameters, &[], &folder.path().join("made.irpa"), options).unwrap();
    println!("recipes: at most {peak} bytes of anonymous memory");
    assert!(peak <= OF_RECIPES, "{peak}");
}
