//! The compiler as a child process, and the cache of what it made.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use errors::FileError;
use support::*;
use targets::Target;
use tempfile::TempDir;
use tracewright_runtime::*;

const DOUBLE: &str = "func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %a, %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}";

fn attempt(compiler: &Compiler, options: &CompileOptions) -> Result<Compiled, CompileError> {
    let (_folder, cache) = cache();
    compile(compiler, &module(DOUBLE), options, &cache)
}

fn target(triple: Option<&str>, processor: &str, changes: Option<&str>) -> CompileOptions {
    let owned = |text: Option<&str>| text.map(str::to_owned);
    let target = Target { triple: owned(triple), changes: owned(changes), ..Target::processor(processor) };
    CompileOptions::new(target, true)
}

#[test]
fn the_second_time_comes_from_the_cache() {
    let (_folder, cache) = cache();
    let compile = |text: &str, key: &str, options: &CompileOptions| {
        compile(&compiler(), &ModuleText { text, text_without_locs: key }, options, &cache).unwrap()
    };
    let options = CompileOptions::default();
    let first = compile(DOUBLE, DOUBLE, &options);
    assert!(!first.from_cache && first.log.is_empty(), "{}", first.log);
    let moved = DOUBLE.replace(": tensor<4xf32>\n", ": tensor<4xf32> loc(\"double.rs\":7:1)\n");
    let second = compile(&moved, DOUBLE, &options);
    assert!(second.from_cache && second.vmfb == first.vmfb, "locations are not part of the key");

    // Whatever changes what the module computes, or where it runs, is.
    assert!(
        !compile(&DOUBLE.replace("add", "multiply"), &DOUBLE.replace("add", "multiply"), &options).from_cache
    );
    assert!(!compile(DOUBLE, DOUBLE, &CompileOptions { flags: vec![], ..options.clone() }).from_cache);
    assert!(!compile(DOUBLE, DOUBLE, &target(None, "generic", None)).from_cache);

    // A damaged entry is compiled again, a good one never.
    let entries: Vec<PathBuf> =
        fs::read_dir(&cache.dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(entries.len(), 4, "one file per module, and nothing else: {entries:?}");
    // The last of them is what a broken compiler wrote, with the right hash; the first is in what is executed, at which a load does
    // not look.
    let damages: [fn(&mut Vec<u8>); 5] = [
        |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        },
        |bytes| bytes[100] ^= 1,
        |bytes| bytes.truncate(1000),
        Vec::clear,
        |bytes| *bytes = [blake3::hash(b"garbage").as_bytes(), &b"garbage"[..]].concat(),
    ];
    for damage in damages {
        for entry in &entries {
            let mut bytes = fs::read(entry).unwrap();
            damage(&mut bytes);
            fs::write(entry, bytes).unwrap();
        }
        let again = compile(DOUBLE, DOUBLE, &options);
        assert!(!again.from_cache && again.vmfb == first.vmfb);
        assert!(compile(DOUBLE, DOUBLE, &options).from_cache);
    }
}

#[test]
fn a_bad_module_is_refused_with_the_compiler_s_words() {
    let (_folder, cache) = cache();
    let text = DOUBLE.replace("-> tensor<4xf32>", "-> tensor<5xf32>");
    let error = compile(&compiler(), &module(&text), &CompileOptions::default(), &cache).unwrap_err();
    let CompileError::Failed { log, diagnostics, place } = &error else { panic!("{error:?}") };
    assert!(diagnostics.contains("error: type of return operand 0"), "{diagnostics}");
    assert_eq!(*place, None, "the module's text is no place in a declaration");
    assert!(fs::read_to_string(log).unwrap().contains(diagnostics.lines().next().unwrap()));
    assert_eq!(fs::read_to_string(log.with_extension("mlir")).unwrap(), text);
    assert!(error.to_string().contains(log.to_str().unwrap()));
}

#[test]
fn a_refused_operation_is_placed_where_it_was_declared() {
    let (_folder, cache) = cache();
    let text = r#"module {
  func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.abs %a : tensor<4xf32> loc("model/norm"("net/src/lib.rs":7:0))
    %1 = stablehlo.custom_call @nothing(%0) : (tensor<4xf32>) -> tensor<4xf32> loc("model/layers.*/mlp"("net/src/lib.rs":41:0))
    return %1 : tensor<4xf32> loc("model"("net/src/lib.rs":42:0))
  }
}
"#;
    let error = compile(&compiler(), &module(text), &CompileOptions::default(), &cache).unwrap_err();
    let CompileError::Failed { place: Some(place), .. } = &error else { panic!("{error:?}") };
    assert_eq!((&*place.path, &*place.file, place.line), ("model.layers.*.mlp", "net/src/lib.rs", 41));
}

#[test]
fn an_unknown_target_is_refused() {
    for (options, words) in [
        (target(None, "pentium-ninety", None), "`pentium-ninety` on this platform"),
        (target(None, "generic", Some("+warp-drive")), "warp-drive"),
        (target(Some("vax-dec-vms"), "generic", None), "vax"),
        (target(Some("vax-dec-vms"), "host", None), "`host` is this machine's"),
    ] {
        let error = attempt(&compiler(), &options).unwrap_err();
        assert!(matches!(error, CompileError::UnknownTarget { .. }), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn s21_cross_compiles_for_aarch64_with_neon() {
    let options = target(Some("aarch64-linux-gnu"), "cortex-a76", Some("+neon"));
    let compiled = attempt(&compiler(), &options).unwrap();
    assert_eq!(compiled.log, "");
    // An ELF file for machine 183, which is aarch64, lies in the module.
    let elf = compiled.vmfb.windows(4).position(|window| window == b"\x7fELF").expect("machine code");
    assert_eq!(compiled.vmfb[elf + 18..][..2], [183, 0]);
}

#[test]
fn features_of_a_target_and_of_this_machine() {
    let features = compiler().features(&target(Some("aarch64-linux-gnu"), "cortex-a76", None).target);
    let features = features.unwrap();
    assert!(features.contains(&"neon".into()) && features.contains(&"dotprod".into()), "{features:?}");

    // A processor whose system, or whose user, keeps a part of it from programs.
    let target = target(Some("x86_64-linux-gnu"), "sapphirerapids", Some("-amx-tile,+avx512f"));
    let features = compiler().features(&target.target).unwrap();
    assert!(features.contains(&"avx512f".into()) && !features.contains(&"amx-tile".into()), "{features:?}");

    let here = host_cpu_features();
    let compiled = compiler().features(&Target::host()).unwrap();
    assert_eq!(missing_cpu_features(&compiled), [""; 0], "the compiler's idea of this machine");
    assert!(here.is_sorted() && !here.is_empty());
    // What code for this machine may use, and we can ask about, this machine has.
    if cfg!(target_arch = "x86_64") {
        assert!(here.contains(&"sse2".into()) && compiled.contains(&"sse2".into()));
        let best: Vec<String> = ["sse2", "xop", "amx-tile", "no-such-feature"].map(String::from).into();
        let missing = missing_cpu_features(&best);
        assert!(!missing.contains(&"sse2".into()) && !missing.contains(&"no-such-feature".into()));
        assert_eq!(missing.contains(&"xop".into()), !here.contains(&"xop".into()));
    }
}

#[test]
fn a_missing_compiler_is_named_with_the_way_to_get_it() {
    let folder = tempfile::tempdir().unwrap();
    let hint = folder.path().join("iree-compile");
    for error in [
        Compiler::find(Some(&hint), &[]).unwrap_err(),
        Compiler::find(None, &[folder.path().to_owned()]).unwrap_err(),
        attempt(&Compiler::new(&hint), &CompileOptions::default()).unwrap_err(),
    ] {
        assert!(matches!(error, CompileError::NotFound { .. }), "{error:?}");
        let message = error.to_string();
        for words in [WHEEL, "name its path", folder.path().to_str().unwrap()] {
            assert!(message.contains(words), "{message}");
        }
    }
}

#[test]
fn the_compiler_is_found_by_hint_and_in_an_environment() {
    let folder = tempfile::tempdir().unwrap();
    let programs = folder.path().join("bin");
    let package = folder.path().join("lib/python3.11/site-packages/iree/compiler/_mlir_libs");
    let name = Path::new("iree-compile").with_extension(std::env::consts::EXE_EXTENSION);
    let find = |hint| Compiler::find(hint, std::slice::from_ref(&programs)).unwrap().path;
    fs::create_dir_all(&programs).unwrap();
    fs::create_dir_all(&package).unwrap();
    fs::write(programs.join(&name), "").unwrap();
    assert_eq!(find(None), programs.join(&name));
    fs::write(package.join(&name), "").unwrap();
    assert_eq!(find(None), package.join(&name));
    assert_eq!(find(Some(&programs.join(&name))), programs.join(&name));
}

/// A stand-in that gives a version and then does as the script says.
#[cfg(unix)]
fn stand_in(script: &str) -> (TempDir, Compiler) {
    program(&format!("[ \"$1\" = --version ] && echo '  IREE compiler version 0' && exit 0\n{script}"))
}

/// A program that does as the script says.
///
/// Written by another process: a file that this one has open for writing cannot be run, and a child of
/// another test may hold it open a moment longer.
#[cfg(unix)]
fn program(script: &str) -> (TempDir, Compiler) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("iree-compile");
    let write = "printf '%s\n' '#!/bin/sh' \"$1\" > \"$0\" && chmod +x \"$0\"";
    let written = Command::new("sh").args(["-c", write]).arg(&path).arg(script).status();
    assert!(written.unwrap().success());
    (folder, Compiler::new(path))
}

#[cfg(unix)]
#[test]
fn a_hung_compiler_is_stopped_with_its_children() {
    let (folder, mut compiler) = stand_in("sleep 60 & echo $! > \"${0%/*}/child\"; echo busy; wait");
    compiler.timeout = Duration::from_millis(500);
    let (_cache_folder, cache) = cache();
    let start = Instant::now();
    let error = compile(&compiler, &module(DOUBLE), &CompileOptions::default(), &cache).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(20));
    let CompileError::TimedOut { log, .. } = &error else { panic!("{error:?}") };
    assert_eq!(fs::read_to_string(log).unwrap(), "busy\n");
    assert!(error.to_string().contains("did not end within 0.5 s"), "{error}");
    let child = fs::read_to_string(folder.path().join("child")).unwrap();
    let gone = || {
        let alive = Command::new("kill").args(["-0", child.trim()]).output().unwrap().status.success();
        let state = fs::read_to_string(format!("/proc/{}/stat", child.trim())).unwrap_or_default();
        !alive || state.contains(" Z ")
    };
    while !gone() {
        assert!(start.elapsed() < Duration::from_secs(20), "the compiler's child is still there");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(unix)]
#[test]
fn an_interrupted_compilation_ends_and_leaves_nothing() {
    let (_folder, mut compiler) = stand_in("sleep 60");
    let flag = Arc::new(AtomicBool::new(false));
    compiler.interrupt = Some(Arc::clone(&flag));
    let setter = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        flag.store(true, Ordering::Relaxed);
    });
    let (_cache_folder, cache) = cache();
    let start = Instant::now();
    let error = compile(&compiler, &module(DOUBLE), &CompileOptions::default(), &cache).unwrap_err();
    setter.join().unwrap();
    assert!(matches!(error, CompileError::Interrupted), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(20));
    assert_eq!(fs::read_dir(&cache.dir).unwrap().count(), 0);
}

/// If the compiler crashes without verification, it can report an error with it.
#[cfg(unix)]
#[test]
fn what_fails_is_compiled_again_with_all_checks() {
    let says = "echo '-:3:1: error: an operand of a third type'; exit 1";
    let script = format!("case \"$*\" in *--verify=true*) {says};; esac; kill -SEGV $$");
    let (_folder, compiler) = stand_in(&script);
    let error = attempt(&compiler, &CompileOptions::default()).unwrap_err();
    let CompileError::Failed { diagnostics, .. } = &error else { panic!("{error:?}") };
    assert_eq!(diagnostics, "-:3:1: error: an operand of a third type");
    // Where it does not either, and where it did already, the crash is the error.
    for (script, verified) in [("kill -SEGV $$", false), ("kill -SEGV $$", true)] {
        let (_folder, compiler) = stand_in(script);
        let error =
            attempt(&compiler, &CompileOptions { verified, ..CompileOptions::default() }).unwrap_err();
        assert!(matches!(error, CompileError::Killed { signal: 11, .. }), "{error:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_killed_or_odd_compiler_is_reported() {
    let (_folder, compiler) = stand_in("echo 'out of luck' >&2; kill -9 $$");
    let error = attempt(&compiler, &CompileOptions::default()).unwrap_err();
    let CompileError::Killed { signal: 9, diagnostics, .. } = &error else { panic!("{error:?}") };
    assert_eq!(diagnostics, "out of luck");

    let (_folder, compiler) = stand_in("exit 0");
    let error = attempt(&compiler, &CompileOptions::default()).unwrap_err();
    assert!(matches!(error, CompileError::File(FileError { action: "read", .. })), "{error:?}");

    for script in ["echo hello", "exit 1", "sleep 60"] {
        let (_folder, mut compiler) = program(script);
        compiler.timeout = Duration::from_millis(500);
        let error = attempt(&compiler, &CompileOptions::default()).unwrap_err();
        assert!(matches!(error, CompileError::NotACompiler { .. }), "{error:?}");
    }
}

#[test]
fn a_cache_that_cannot_be_written_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let cache = ModuleCache::new(file.join("cache"));
    let error = compile(&compiler(), &module(DOUBLE), &CompileOptions::default(), &cache).unwrap_err();
    assert!(matches!(error, CompileError::File(_)), "{error:?}");
    assert!(error.to_string().contains(file.to_str().unwrap()), "{error}");
}

/// Runs itself again where no file may be longer than 512 bytes: the module fits, its entry does not.
#[cfg(unix)]
#[test]
fn a_full_disk_is_reported_and_leaves_nothing() {
    const LIMITED: &str = "TRACEWRIGHT_TEST_FILES_ARE_LIMITED";
    if std::env::var_os(LIMITED).is_none() {
        let script =
            "trap '' XFSZ; ulimit -S -f 1; exec \"$0\" --exact a_full_disk_is_reported_and_leaves_nothing";
        let mut again = Command::new("sh");
        again.args(["-c", script]).arg(std::env::current_exe().unwrap()).env(LIMITED, "1");
        let output = again.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    // The limit is on us, and not on the compiler, which takes it back.
    let (_folder, compiler) =
        stand_in(&format!("ulimit -S -f unlimited; exec '{}' \"$@\"", compiler().path.display()));
    let (_cache_folder, cache) = cache();
    let error = compile(&compiler, &module(DOUBLE), &CompileOptions::default(), &cache).unwrap_err();
    assert!(matches!(error, CompileError::File(FileError { action: "write", .. })), "{error:?}");
    assert_eq!(fs::read_dir(&cache.dir).unwrap().count(), 0);
}
