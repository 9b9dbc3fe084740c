//! Compilers that are missing, broken, slow or asked for the impossible; and the cache of what they made.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::*;

fn generate(cache: &Path) -> std::process::Command {
    let mut command =
        tracewright(&["generate", text(&fixture("llama-untied")), "--tokens", "5,17", "-n", "2"]);
    command.args(SMALL).args(["--json", "--cache", text(cache)]);
    command
}

/// A script in place of `iree-compile`.
#[cfg(unix)]
fn script(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("iree-compile");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    path
}

/// A script that answers as `iree-compile` of a version does, and then does something else.
#[cfg(unix)]
fn of_version(version: &str, folder: &Path, then: &str) -> PathBuf {
    let answer = format!("echo 'IREE compiler version {version}'; exit");
    script(folder, &format!("if [ \"$1\" = --version ]; then {answer}; fi\n{then}"))
}

#[cfg(unix)]
fn pretender(folder: &Path, then: &str) -> PathBuf {
    of_version("3.13.0", folder, then)
}

/// A failed compilation leaves only the archive that was baked before, and the files in its message.
#[track_caller]
fn assert_no_module(cache: &Path) {
    for (path, _) in listing(cache) {
        let kind = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        assert!(["irpa", "log", "mlir"].contains(&kind), "{} stays behind", path.display());
    }
}

#[test]
fn no_compiler() {
    let cache = folder();
    let words = [
        "no compiler `iree-compile`",
        "cargo xtask setup",
        "pip install iree-base-compiler==3.13.0",
        "--iree-compile",
    ];
    refused(generate(cache.path()).env_remove("TRACEWRIGHT_IREE_COMPILE"), 1, &words);
    refused(
        generate(cache.path()).args(["--iree-compile", "/nowhere/iree-compile"]),
        1,
        &["/nowhere/iree-compile"],
    );
    assert_no_module(cache.path());
    let out = cache.path().join("out");
    let model = fixture("llama-untied");
    let mut export = bare(&["export", text(&model), "-o", text(&out), "--cache", text(cache.path())]);
    refused(export.args(SMALL), 1, &words);
    assert!(!out.exists());
}

#[cfg(unix)]
#[test]
fn a_compiler_that_is_none_is_killed_or_fails() {
    let cases: &[(&str, &[&str])] = &[
        ("kill -9 $$", &["`iree-compile` was killed by signal 9", ".log`"]),
        (
            "echo 'x.mlir:3:1: error: bad op' >&2; exit 1",
            &["`iree-compile` failed", "bad op", ".log`, and the module is in the same folder"],
        ),
        ("exit 0", &["module.vmfb", "No such file"]),
    ];
    for (then, words) in cases {
        let (cache, bin) = (folder(), folder());
        let compiler = pretender(bin.path(), then);
        let ran = refused(generate(cache.path()).args(["--iree-compile", text(&compiler)]), 1, words);
        assert_no_module(cache.path());
        // The log that is named is there.
        if let Some((_, rest)) = ran.err.split_once("its log is `") {
            let log = Path::new(rest.split('`').next().unwrap());
            assert!(log.exists() && log.with_extension("mlir").exists(), "{}", log.display());
        }
    }
    let cache = folder();
    refused(
        generate(cache.path()).args(["--iree-compile", "/bin/echo"]),
        1,
        &["`/bin/echo` is not `iree-compile`"],
    );
}

#[cfg(unix)]
#[test]
fn a_compiler_that_hangs_is_stopped_with_all_it_started() {
    let (cache, bin) = (folder(), folder());
    let pid = bin.path().join("pid");
    let compiler = pretender(bin.path(), &format!("sleep 600 & echo $! > '{}'; wait", pid.display()));
    let words = ["did not end within 1 s and was stopped", ".log`", "--compile-timeout"];
    refused(
        generate(cache.path()).args(["--iree-compile", text(&compiler), "--compile-timeout", "1"]),
        1,
        &words,
    );
    assert_no_module(cache.path());
    let child = fs::read_to_string(pid).unwrap();
    wait_until("the end of the compiler's child", || !alive(child.trim()));
}

#[cfg(unix)]
fn alive(pid: &str) -> bool {
    // Who waits for orphans may take its time: a zombie is dead.
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    match state.rsplit(") ").next() {
        Some(state) if !state.is_empty() => !state.starts_with('Z'),
        _ => std::process::Command::new("kill").args(["-0", pid]).output().unwrap().status.success(),
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_while_compiling_ends_the_compiler_too() {
    let (cache, bin) = (folder(), folder());
    let pid = bin.path().join("pid");
    let compiler = pretender(bin.path(), &format!("sleep 600 & echo $! > '{}'; wait", pid.display()));
    let mut child = spawn(generate(cache.path()).args(["--iree-compile", text(&compiler)]));
    let started = || fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n'));
    wait_while_runs(&mut child, "the compiler", started);
    interrupt(&child);
    interrupted(child);
    assert_no_module(cache.path());
    let child = fs::read_to_string(pid).unwrap();
    wait_until("the end of the compiler's child", || !alive(child.trim()));
}

/// A compiler that says that all is well and writes no module: nothing of it is kept.
#[cfg(unix)]
#[test]
fn a_compiler_that_writes_garbage_leaves_none_behind() {
    let (cache, bin) = (folder(), folder());
    let (real, mended) = (iree_compile(), bin.path().join("mended"));
    let answers = format!(
        "case \"$*\" in --version|*preprocessing*) exec '{0}' \"$@\";; esac\n\
         [ -e '{1}' ] && exec '{0}' \"$@\"\necho garbage > \"$3\"",
        real.display(),
        mended.display()
    );
    let compiler = script(bin.path(), &answers);
    let run = || {
        let mut command = generate(cache.path());
        command.args(["--iree-compile", text(&compiler)]);
        command
    };
    refused(&mut run(), 1, &["did not write a valid module", ".log`"]);
    assert_no_module(cache.path());
    fs::write(&mended, "").unwrap();
    succeed(&mut run());
}

/// kill -9 ends what it started too, and what it left is swept away by the next run.
#[cfg(unix)]
#[test]
fn a_killed_run_takes_its_compiler_along_and_its_leftovers_are_swept() {
    let (cache, bin) = (folder(), folder());
    let pid = bin.path().join("pid");
    let then = format!(
        "case \"$*\" in *preprocessing*) exit;; esac; sleep 600 & echo $! > '{}'; wait",
        pid.display()
    );
    let compiler = pretender(bin.path(), &then);
    let mut child = spawn(generate(cache.path()).args(["--iree-compile", text(&compiler)]));
    let started = || fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n'));
    wait_while_runs(&mut child, "the compiler", started);
    child.kill().unwrap();
    child.wait().unwrap();
    let orphan = fs::read_to_string(&pid).unwrap();
    wait_until("the end of the compiler's child", || !alive(orphan.trim()));
    assert!(listing(cache.path()).iter().any(|(path, _)| text(path).contains("partial")), "nothing was left");
    // As a killed bake leaves one, without an archive. The killed run may have written its archive while the compiler ran.
    let archives = cache.path().join("archives");
    let _ = fs::remove_dir_all(&archives);
    fs::create_dir_all(archives.join(".tracewright-left.partial")).unwrap();
    fs::write(archives.join(".tracewright-left.partial/file"), "half").unwrap();
    succeed(&mut generate(cache.path()));
    for (path, _) in listing(cache.path()) {
        let kind = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        assert!(["irpa", "module"].contains(&kind), "{} stays behind", path.display());
    }
}

#[test]
fn no_time_to_compile_is_no_limit() {
    let cache = folder();
    refused(generate(cache.path()).args(["--compile-timeout", "0"]), 2, &["--compile-timeout"]);
}

#[test]
fn a_target_that_is_none() {
    let (out, model) = (folder(), fixture("llama-untied"));
    let target = out.path().join("out");
    let cases = [
        ("pentium9", "`pentium9`"),
        ("x86_64-linux-gnu:generic:+warp9", "warp9"),
        ("vax-dec-ultrix:generic", "vax-dec-ultrix"),
    ];
    for (name, word) in cases {
        let mut export = tracewright(&["export", text(&model), "-o", text(&target), "--target", name]);
        refused(
            export.args(SMALL),
            1,
            &["unknown target", word, "name a processor and features that LLVM knows, or `host`"],
        );
        assert!(!target.exists());
    }
    for (name, word) in
        [("", "the target is empty"), (" ", "the target is empty"), (":generic", "has no platform")]
    {
        let mut export = tracewright(&["export", text(&model), "-o", text(&target), "--target", name]);
        refused(&mut export, 2, &["--target", word, "a processor that LLVM knows"]);
    }
}

/// M17: compiled once; a damaged entry is compiled again.
#[test]
fn m17_a_module_is_compiled_once_and_a_damaged_entry_again() {
    let cache = folder();
    let generated = || -> (f64, serde_json::Value) {
        let json: serde_json::Value =
            serde_json::from_str(&succeed(&mut generate(cache.path())).out).unwrap();
        (json["timings"]["compile_ms"].as_f64().unwrap(), json["tokens"].clone())
    };
    let (first, tokens) = generated();
    let modules = || -> Vec<(PathBuf, u64)> {
        listing(cache.path())
            .into_iter()
            .filter(|(path, _)| path.extension().is_some_and(|e| e == "module"))
            .collect()
    };
    let [(entry, size)] = &modules()[..] else { panic!("{:?}", listing(cache.path())) };
    let changed = || entry.metadata().unwrap().modified().unwrap();
    let written = changed();
    let (second, again) = generated();
    assert_eq!((changed(), &again), (written, &tokens), "the entry is used");
    println!("compiled in {first:.0} ms, taken from the cache in {second:.0} ms");

    let whole = fs::read(entry).unwrap();
    let mut damaged = whole.clone();
    damaged[*size as usize / 2] ^= 1;
    fs::write(entry, damaged).unwrap();
    let (_, again) = generated();
    assert_eq!(again, tokens);
    assert!(fs::read(entry).unwrap() == whole);
    let repaired = changed();
    generated();
    assert_eq!(changed(), repaired, "the new entry is used");

    // Another element type is another module.
    succeed(generate(cache.path()).args(["--dtype", "bf16"]));
    assert_eq!(modules().len(), 2);
}

/// Which version compiled it is a part of what a module is found by, and nothing else is needed to tell two apart.
#[cfg(unix)]
#[test]
fn m17_another_version_of_the_compiler_makes_another_module() {
    let (cache, bin) = (folder(), folder());
    let real = iree_compile();
    let modules = |version| {
        let compiler = of_version(version, bin.path(), &format!("exec '{}' \"$@\"", real.display()));
        succeed(generate(cache.path()).args(["--iree-compile", text(&compiler)]));
        let files = listing(cache.path()).into_iter();
        files.filter(|(path, _)| path.extension().is_some_and(|e| e == "module")).count()
    };
    assert_eq!(["3.13.0", "3.13.0", "3.13.1", "3.13.0"].map(modules), [1, 1, 2, 2]);
}

/// A cache on a full disk, and one that is a file.
#[cfg(unix)]
#[test]
fn a_cache_that_cannot_be_written() {
    let cache = folder();
    refused(&mut limited(&generate(cache.path()), 100), 1, &[text(cache.path())]);
    assert_no_module(cache.path());
    let file = cache.path().join("file");
    fs::write(&file, "").unwrap();
    // The module and the archive are written at the same time, and either error may be the first.
    refused(&mut generate(&file), 1, &["error[TW0006]: cannot ", text(&file), "Not a directory"]);
}
