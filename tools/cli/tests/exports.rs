//! Export directories: what is in them, who runs them, and what happens when they are damaged.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::*;

/// One export of `llama-untied`, made once.
fn exported() -> &'static Path {
    static EXPORT: OnceLock<TempDir> = OnceLock::new();
    EXPORT
        .get_or_init(|| {
            let folder = folder();
            // The same bytes for every processor.
            let plain = ["--kernels", "off"];
            succeed(&mut export(&fixture("llama-untied"), &folder.path().join("export"), &plain));
            folder
        })
        .path()
}

fn export(model: &Path, out: &Path, more: &[&str]) -> Command {
    let mut command = tracewright(&["export", text(model), "-o", text(out)]);
    command.args(CHUNKED).args(more);
    command
}

fn shared() -> PathBuf {
    exported().join("export")
}

/// A copy that a test may spoil.
fn own() -> TempDir {
    let own = folder();
    for (path, _) in listing(&shared()) {
        fs::copy(&path, own.path().join(path.file_name().unwrap())).unwrap();
    }
    own
}

/// Generates with an empty environment: no PATH, no home, no cache.
fn generate(export: &Path) -> Command {
    bare(&["generate", text(export), "--tokens", "5,17,3", "-n", "4", "--ignore-eos", "--json"])
}

fn edit_manifest(export: &Path, edit: impl FnOnce(&mut Value)) {
    let path = export.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(&mut manifest);
    fs::write(path, manifest.to_string()).unwrap();
}

/// Changes the compiled module, and the hash that the manifest has of it.
fn edit_module(export: &Path, edit: impl FnOnce(&mut Vec<u8>)) {
    let path = export.join("model.vmfb");
    let mut vmfb = fs::read(&path).unwrap();
    edit(&mut vmfb);
    fs::write(path, &vmfb).unwrap();
    edit_manifest(export, |manifest| manifest["module_blake3"] = json!(blake3::hash(&vmfb).to_string()));
}

/// Has the manifest name the archive that is there.
fn accept_archive(export: &Path) {
    let archive = fs::read(export.join("model.irpa")).unwrap();
    // Where the data begin: what is before names the archive.
    let front = u64::from_le_bytes(archive[72..80].try_into().unwrap()) as usize;
    edit_manifest(export, |manifest| {
        manifest["archive_blake3"] = json!(blake3::hash(&archive[..front]).to_string());
    });
}

#[test]
fn m10_an_export_runs_with_no_python_no_compiler_and_no_environment() {
    let export = shared();
    let names: Vec<_> =
        listing(&export).into_iter().map(|(path, _)| path.file_name().unwrap().to_owned()).collect();
    assert_eq!(names, ["config.json", "manifest.json", "model.irpa", "model.mlir", "model.vmfb"]);
    let before = listing(&export);
    let here: Value = serde_json::from_str(&succeed(&mut generate(&export)).out).unwrap();
    assert_eq!(listing(&export), before);
    let model = fixture("llama-untied");
    let mut there =
        tracewright(&["generate", text(&model), "--tokens", "5,17,3", "-n", "4", "--ignore-eos", "--json"]);
    let there: Value = serde_json::from_str(&succeed(there.args(CHUNKED)).out).unwrap();
    assert_eq!(here["tokens"], there["tokens"]);
    assert_eq!(here["timings"]["compile_ms"], 0.0);
}

#[test]
fn an_export_verifies_drafts() {
    let export = shared();
    let draft = format!("draft={}", text(&export));
    let answers = ["off", &draft].map(|speculate| {
        let mut command =
            bare(&["generate", text(&export), "--tokens", "5,17,3", "-n", "20", "--ignore-eos"]);
        let ran = succeed(command.args(["--json", "--speculate", speculate]));
        serde_json::from_str::<Value>(&ran.out).unwrap()
    });
    let [plain, drafted] = &answers;
    assert_eq!(drafted["tokens"], plain["tokens"]);
    let steps = |answer: &Value| answer["timings"]["decode_steps"].as_u64().unwrap();
    // The export drafts for itself.
    assert!(2 * steps(drafted) < steps(plain), "{drafted}");
}

#[test]
fn the_manifest_says_what_can_be_called() {
    let manifest = manifest(&shared());
    let entries = manifest["entry_points"].as_array().unwrap();
    let names: Vec<_> = entries.iter().map(|e| e["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["prefill", "decode", "score", "verify"]);
    let types = |list: &Value| {
        list.as_array()
            .unwrap()
            .iter()
            .map(|v| format!("{}: {}", v["name"].as_str().unwrap(), v["type"].as_str().unwrap()))
            .collect::<Vec<_>>()
    };
    let state = ["keys0", "values0", "keys1", "values1"].map(|name| format!("{name}: f32[1,2,40,14]"));
    let with_state =
        |first: &[&str]| [first.iter().map(ToString::to_string).collect(), state.to_vec()].concat();
    assert_eq!(
        types(&entries[1]["arguments"]),
        with_state(&["tokens: i32[1,1]", "start: i32[]", "count: i32[]"])
    );
    assert_eq!(types(&entries[1]["results"]), with_state(&["logits: f32[1,515]", "token: i32[1]"]));
    let roles: Vec<&str> = entries[1]["arguments"]
        .as_array()
        .unwrap()
        .iter()
        .map(|argument| argument["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles[..3], ["tokens", "start(context 40)", "count"]);
    assert_eq!(roles[3..5], ["state(kv.keys, layer 0)", "state(kv.values, layer 0)"]);
    assert_eq!(entries[1]["arguments"][6]["axes"], json!(["B", "K", "N", "E"]));
    assert_eq!(manifest["parameters"].as_object().unwrap().len(), 15);
    let merged = "model.layers.0.self_attn.q_proj.weight+k_proj.weight+v_proj.weight";
    assert_eq!(manifest["parameters"][merged], "f32[140,60]");
    assert_eq!(manifest["parameters"]["lm_head.weight"], "f32[515,60]");
    assert_eq!(
        (&manifest["dtype"], &manifest["context"], &manifest["chunk"]),
        (&json!("f32"), &json!(40), &json!(8))
    );
    assert_eq!(manifest["architecture"], std::env::consts::ARCH);
    assert!(manifest["iree_compiler"].as_str().unwrap().starts_with("3.13.0"));
}

/// K10, K11: the shipped model, end to end with no download. Its tokenizer goes along, so its export takes text.
#[test]
fn k10_k11_the_shipped_model_is_exported_and_tells_a_story() {
    let out = folder();
    let target = out.path().join("deep/export");
    let mut command = tracewright(&["export", text(&demo()), "-o", text(&target), "--json"]);
    let said: Value =
        serde_json::from_str(&succeed(command.args(["--context", "64", "--chunk", "16"])).out).unwrap();
    assert!(said["bytes"].as_u64().unwrap() > 1_000_000, "{said}");
    let ran = succeed(&mut bare(&[
        "generate",
        text(&target),
        "--chat",
        "Tell me a story about a brave owl.",
        "-n",
        "8",
    ]));
    assert!(ran.out.len() > 10, "{}", ran.out);
    #[cfg(unix)]
    for (path, _) in listing(&target) {
        use std::os::unix::fs::PermissionsExt as _;
        let (mode, ordinary) = (
            fs::metadata(&path).unwrap().permissions().mode(),
            fs::metadata(demo().join("config.json")).unwrap().permissions().mode(),
        );
        assert_eq!(
            mode & 0o444,
            ordinary & 0o444,
            "{} is read by others as an ordinary file is",
            path.display()
        );
    }
}

#[test]
fn text_for_an_export_without_a_tokenizer() {
    let export = shared();
    refused(
        &mut bare(&["generate", text(&export), "-p", "Once"]),
        2,
        &["has no tokenizer.json", "`--tokens`"],
    );
}

/// S26, M10: IREE's own program runs the export, by the commands of docs/guides/export.md. Its logits and token equal ours.
#[test]
fn s26_iree_run_module_runs_an_export_without_us() {
    let (export, out) = (shared(), folder());
    let npy = out.path().join("logits.npy");
    let cache = "--input=1x2x40x14xf32=0";
    let mut command = Command::new(in_packages("iree/_runtime_libs/iree-run-module"));
    command.args([
        "--device=local-task",
        "--module=model.vmfb",
        "--parameters=model=model.irpa",
        "--function=decode",
    ]);
    command.args(["--input=1x1xi32=5", "--input=0", "--input=1", cache, cache, cache, cache]);
    command.args([&format!("--output=@{}", npy.display()), "--output=-"]).args(["--output="; 4]);
    let theirs = succeed(command.current_dir(&export));
    let file = out.path().join("logits.safetensors");
    let mut ours = bare(&["generate", text(&export), "--tokens", "5", "-n", "1", "--ignore-eos", "--json"]);
    let ours: Value = serde_json::from_str(&succeed(ours.args(["--save-logits", text(&file)])).out).unwrap();
    assert!(theirs.out.contains(&format!("1xi32={}", ours["tokens"][0])), "{} {ours}", theirs.out);
    let npy = fs::read(npy).unwrap();
    let logits = &tensors(&file)["logits"].2;
    assert_eq!(&npy[npy.len() - logits.len()..], logits, "bit for bit");
    let guide = fs::read_to_string(root().join("docs/guides/export.md")).unwrap();
    for argument in
        ["--module=model.vmfb", "--parameters=model=model.irpa", "--function=decode", "--input=1x1xi32="]
    {
        assert!(guide.contains(argument), "docs/guides/export.md does not show `{argument}`");
    }
}

/// The lines of stderr that are commands.
fn commands(err: &str) -> Vec<&str> {
    err.lines().filter(|line| line.split(' ').next().is_some_and(|word| word.contains("iree-"))).collect()
}

/// Runs a line as a shell does, where IREE's programs are found.
#[track_caller]
fn in_shell(line: &str, folder: &Path) -> Ran {
    let tools = in_packages("iree/_runtime_libs/iree-run-module");
    let mut shell = Command::new("/bin/sh");
    succeed(shell.args(["-c", line]).env("PATH", tools.parent().unwrap()).current_dir(folder))
}

/// The printed commands compile the written module to the same bytes, and give the same token.
#[test]
fn printed_commands_do_the_same() {
    let folder = folder();
    let out = folder.path().join("an export");
    let sizes = ["--context", "64", "--chunk", "16", "--print-commands"];
    // With a cache of its own: a module that was compiled before has the lines of then.
    let mut export = tracewright(&["export", text(&demo()), "-o", text(&out)]);
    let said = succeed(export.args(sizes).env("TRACEWRIGHT_CACHE", folder.path())).err;
    let [compile, calls @ ..] = &commands(&said)[..] else { panic!("{said}") };
    assert_eq!(calls.len(), 4, "{said}");
    let vmfb = out.join("model.vmfb");
    let before = fs::read(&vmfb).unwrap();
    fs::remove_file(&vmfb).unwrap();
    in_shell(compile, folder.path());
    assert!(fs::read(&vmfb).unwrap() == before, "other bytes");

    // A prompt of one token, and one that a chunk takes, from a checkpoint and from the export.
    let mut typed = BTreeSet::new();
    for model in [demo(), out] {
        for (tokens, entry) in [("7", "decode"), ("7,12,3", "prefill")] {
            let mut command =
                tracewright(&["generate", text(&model), "--tokens", tokens, "-n", "1", "--ignore-eos"]);
            let ran =
                succeed(command.args(["--json", "--context", "64", "--chunk", "16", "--print-commands"]));
            let ours: Value = serde_json::from_str(&ran.out).unwrap();
            let lines = commands(&ran.err);
            // Both prompts are of one module.
            let compiles = lines.iter().filter(|line| line.contains("iree-compile"));
            compiles.filter(|line| typed.insert(line.to_string())).for_each(|line| {
                in_shell(line, folder.path());
            });
            let call = lines.iter().find(|line| line.contains(&format!("--function={entry}"))).unwrap();
            let theirs = in_shell(call, folder.path()).out;
            assert!(theirs.contains(&format!("1xi32={}", ours["tokens"][0])), "{theirs} {ours}");
        }
    }
}

/// A checkpoint that is written as it is: IREE's own tool gives the same bytes.
#[test]
fn the_printed_command_bakes_the_same() {
    let folder = folder();
    let [ours, theirs] = ["ours.irpa", "theirs.irpa"].map(|name| folder.path().join(name));
    let model = fixture("llama-untied").join("model.safetensors");
    let mut command = bare(&["bake", text(&model), "-o", text(&ours), "--no-metadata", "--print-commands"]);
    let said = succeed(&mut command).err;
    let [line] = commands(&said)[..] else { panic!("{said}") };
    in_shell(&line.replace("ours.irpa", "theirs.irpa"), folder.path());
    assert!(fs::read(ours).unwrap() == fs::read(theirs).unwrap(), "other bytes");
}

#[test]
fn s26_iree_dump_parameters_reads_an_export() {
    let mut command = Command::new(in_packages("iree/_runtime_libs/iree-dump-parameters"));
    let dump =
        succeed(command.arg(format!("--parameters=model={}", shared().join("model.irpa").display()))).out;
    assert!(dump.contains("15 entries, 485520 total bytes") && dump.contains("`lm_head.weight`"), "{dump}");
}

/// S22: every weight is a named parameter, and arguments are tokens, position and state only.
#[test]
fn s22_the_module_text_reads_every_weight_by_name() {
    let text = fs::read_to_string(shared().join("model.mlir")).unwrap();
    let manifest: Value = serde_json::from_slice(&fs::read(shared().join("manifest.json")).unwrap()).unwrap();
    let keys: Vec<_> = manifest["parameters"].as_object().unwrap().keys().collect();
    for key in &keys {
        assert!(text.contains(&format!("#flow.parameter.named<\"model\"::\"{key}\">")), "`{key}`");
    }
    assert_eq!(text.matches("#flow.parameter.named").count(), keys.len());
}

#[test]
fn a_module_that_was_changed() {
    let own = own();
    let path = own.path().join("model.vmfb");
    let mut vmfb = fs::read(&path).unwrap();
    let middle = vmfb.len() / 2;
    vmfb[middle] ^= 1;
    fs::write(&path, &vmfb).unwrap();
    refused(
        &mut generate(own.path()),
        1,
        &["model.vmfb` is not the module that the manifest names", "blake3", "export the model again"],
    );
    fs::remove_file(&path).unwrap();
    refused(&mut generate(own.path()), 1, &["cannot read", "model.vmfb", "No such file"]);
}

#[test]
fn a_module_of_another_version_or_no_module() {
    let own = own();
    edit_module(own.path(), |vmfb| {
        // The bytecode version of IREE 3.13, major and minor, as the module's header has it.
        let at = vmfb.windows(4).position(|window| window == [0, 0, 17, 0]).expect("a version");
        vmfb[at + 2] = 99;
    });
    refused(
        &mut generate(own.path()),
        1,
        &["another version of IREE", "compile the model again with iree-base-compiler==3.13.0"],
    );
    edit_module(own.path(), |vmfb| vmfb.truncate(5000));
    refused(&mut generate(own.path()), 1, &["compile the model again"]);
    edit_module(own.path(), |vmfb| *vmfb = b"no module".to_vec());
    refused(&mut generate(own.path()), 1, &["compile the model again"]);
}

#[test]
fn a_module_for_another_processor() {
    let own = own();
    let lacking = match std::env::consts::ARCH {
        "aarch64" => "sve2-sm4",
        _ => "avx512fp16",
    };
    edit_manifest(own.path(), |manifest| {
        manifest["cpu_features"].as_array_mut().unwrap().push(json!(lacking))
    });
    if generate(own.path()).output().unwrap().status.success() {
        println!("this processor has {lacking}: nothing is missing here");
    } else {
        refused(
            &mut generate(own.path()),
            1,
            &[
                "needs the processor features",
                lacking,
                "which this machine lacks",
                "export the model again for this machine",
            ],
        );
    }
    edit_manifest(own.path(), |manifest| manifest["architecture"] = json!("vax"));
    refused(&mut generate(own.path()), 1, &["compiled for vax, but this machine is", "`--target`"]);
    // The same without the manifest's help.
    let out = folder();
    let other = if std::env::consts::ARCH == "aarch64" { "x86_64" } else { "aarch64" };
    let target = out.path().join("out");
    succeed(&mut export(
        &fixture("llama-untied"),
        &target,
        &["--target", &format!("{other}-linux-gnu:generic")],
    ));
    refused(&mut generate(&target), 1, &[&format!("compiled for {other}, but this machine is")]);
    edit_manifest(&target, |manifest| {
        manifest["architecture"] = json!(std::env::consts::ARCH);
        manifest["cpu_features"] = json!([]);
    });
    refused(&mut generate(&target), 1, &["another processor", "compile the model again"]);
}

#[test]
fn an_archive_that_does_not_fit() {
    let own = own();
    let path = own.path().join("model.irpa");
    let archive = fs::read(&path).unwrap();
    fs::write(&path, &archive[..archive.len() - 4096]).unwrap();
    refused(
        &mut generate(own.path()),
        1,
        &["model.irpa` is not a valid parameter archive: at byte", "expected"],
    );
    fs::write(&path, &archive[..50]).unwrap();
    refused(&mut generate(own.path()), 1, &["model.irpa", "at byte"]);
    // The same model in another type, or another model.
    for (model, dtype, word) in [("llama-untied", "bf16", "`bf16["), ("llama-tied", "f32", "missing")] {
        succeed(bare(&["bake", text(&fixture(model)), "-o", text(&path), "--dtype", dtype]).args(SMALL));
        let words = ["model.irpa` is not the archive that the manifest lists", "export the model again"];
        refused(&mut generate(own.path()), 1, &words);
        refused(&mut bare(&["verify", text(own.path())]), 1, &words);
        accept_archive(own.path());
        refused(
            &mut generate(own.path()),
            1,
            &["model.irpa` does not fit the module: the parameter `", word, "expected `f32["],
        );
    }
    fs::remove_file(&path).unwrap();
    refused(&mut generate(own.path()), 1, &["model.irpa", "No such file"]);
}

#[test]
fn a_manifest_that_is_none() {
    let own = own();
    fs::write(own.path().join("manifest.json"), "{ \"context\": 40 }").unwrap();
    refused(
        &mut generate(own.path()),
        1,
        &["manifest.json` is not a manifest", "missing field", "export the model again"],
    );
    fs::remove_file(own.path().join("manifest.json")).unwrap();
    refused(&mut generate(own.path()), 1, &["no checkpoint in"]);
}

/// A file in place of the output folder is an error before anything is compiled.
#[test]
fn a_file_is_no_folder_for_an_export() {
    let out = folder();
    let file = out.path().join("model.vmfb");
    fs::write(&file, "somebody's").unwrap();
    let mut command = bare(&["export", text(&fixture("llama-untied")), "-o", text(&file), "--iree-compile"]);
    refused(command.arg(&file), 1, &["model.vmfb", "not a directory"]);
    refused(&mut export_xla(&fixture("llama-untied"), &file), 1, &["model.vmfb", "not a directory"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "somebody's");
}

#[test]
fn an_export_is_what_it_is() {
    let export = shared();
    for (option, value, is) in [("--dtype", "bf16", "f32"), ("--context", "64", "40"), ("--chunk", "4", "8")]
    {
        let words =
            [&*format!("`{option}` is {value}"), &format!("exported with {is}"), "export the model again"];
        refused(generate(&export).args([option, value]), 2, &words);
    }
    succeed(generate(&export).args(["--context", "40", "--dtype", "f32"]));
    refused(generate(&export).args(["--tuning", "off"]), 2, &["`--tuning`", "export the model again"]);
    // Nothing is compiled there.
    for command in ["bake", "plan", "random"] {
        let model = fixture("llama-untied");
        refused(&mut bare(&[command, text(&model), "--tuning", "off"]), 2, &["--tuning"]);
    }
    let tokens = (0..41).map(|i| i.to_string()).collect::<Vec<_>>().join(",");
    refused(
        &mut bare(&["generate", text(&export), "--tokens", &tokens]),
        1,
        &["41 tokens, expected at most 40, the context of the export"],
    );
    refused(
        &mut bare(&["generate", text(&export), "--tokens", "515"]),
        1,
        &["token 0", "expected an id below 515"],
    );
}

/// A failed export leaves nothing; a failed export over an old one leaves no manifest that would vouch for a mixture.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_no_export() {
    let (out, model) = (folder(), fixture("llama-untied"));
    let target = out.path().join("out");
    succeed(&mut export(&model, &target, &[])); // The module is in the cache now.
    let failing =
        |target: &Path| refused(&mut limited(&export(&model, target, &[]), 200), 1, &["model.irpa"]);
    failing(&target);
    assert_eq!(listing(&target), []);
    failing(&out.path().join("new/of/many"));
    assert!(!out.path().join("new").exists());
    succeed(&mut export(&model, &target, &[]));
    succeed(&mut generate(&target));
}

#[test]
fn a_context_that_is_not_the_length_of_the_caches() {
    let own = own();
    edit_manifest(own.path(), |manifest| {
        manifest["context"] = json!(64);
        for entry in manifest["entry_points"].as_array_mut().unwrap() {
            entry["arguments"][1]["role"] = json!("start(context 64)");
        }
    });
    refused(&mut generate(own.path()), 1, &["keys0", "f32[1,2,40,14]", "the context of 64"]);
    edit_manifest(own.path(), |manifest| manifest["context"] = json!(40));
    refused(&mut generate(own.path()), 1, &["the context of `start` is 64, expected 40"]);
    edit_manifest(own.path(), |manifest| {
        manifest["context"] = json!(24);
        for entry in manifest["entry_points"].as_array_mut().unwrap() {
            entry["arguments"][1]["role"] = json!("start(context 24)");
        }
    });
    refused(&mut generate(own.path()), 1, &["keys0", "f32[1,2,40,14]", "the context of 24"]);
}

#[test]
fn a_type_or_a_role_with_something_behind_it() {
    for (key, value) in [("type", "f32[1,515]x"), ("role", "logits 7")] {
        let own = own();
        edit_manifest(own.path(), |manifest| manifest["entry_points"][0]["results"][0][key] = json!(value));
        refused(&mut generate(own.path()), 1, &["is not a manifest", key, "`logits`", "expected the end"]);
    }
}

#[test]
fn an_export_that_lost_a_file() {
    let (out, lost) = (folder(), folder());
    let mut command = tracewright(&["export", text(&demo()), "-o", text(out.path())]);
    succeed(command.args(["--context", "64", "--chunk", "16"]));
    for name in ["tokenizer.json", "generation_config.json", "config.json", "tokenizer_config.json"] {
        let (file, away) = (out.path().join(name), lost.path().join(name));
        if !file.exists() {
            continue;
        }
        fs::rename(&file, &away).unwrap();
        let mut command = bare(&["generate", text(out.path()), "--tokens", "5", "-n", "1"]);
        refused(&mut command, 1, &[name, "but this file is missing", "export the model again"]);
        fs::rename(&away, &file).unwrap();
    }
    succeed(&mut bare(&["generate", text(out.path()), "--tokens", "5", "-n", "1"]));
}
