//! Files stay whole if a run is killed at any moment, if the disk is full at any write, or if many runs write in
//! parallel. Each file is absent, unchanged, or complete and right.
#![cfg(unix)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::schemas::SIZES;
use crate::support::*;

/// Kills of each command in every run.
const SHORT: usize = 12;
/// Kills of each of the four when there is time.
const LONG: usize = 250;

/// The files of a folder and what is in them.
type Content = BTreeMap<PathBuf, Vec<u8>>;

/// The content of a folder without the leftovers of killed runs, which the next run removes.
fn content(folder: &Path) -> Content {
    let files = listing(folder).into_iter().map(|(path, _)| path.strip_prefix(folder).unwrap().to_owned());
    let is_left = |path: &Path| text(path).contains(".partial") || path.ends_with(".tracewright-lock");
    files
        .filter(|path| !is_left(path))
        .map(|path| (path.clone(), fs::read(folder.join(path)).unwrap()))
        .collect()
}

/// Whether a run is writing into a folder.
fn is_writing(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| {
        let (path, name) = (entry.path(), entry.file_name());
        name.to_string_lossy().ends_with(".partial") || path.is_dir() && is_writing(&path)
    })
}

/// Moments at which to kill: as long after a start as whole runs take, and, every other time, a little after a run begins
/// to write, where it publishes.
struct Moments {
    whole: Duration,
    writing: Duration,
    drawn: u64,
}

impl Moments {
    /// Those of runs like this one, which writes into `folder`.
    fn of(mut command: Command, folder: &Path) -> Self {
        let start = Instant::now();
        let mut child = spawn(&mut command);
        let mut wrote = Duration::ZERO;
        while child.try_wait().unwrap().is_none() {
            let since = Instant::now();
            sleep(Duration::from_micros(200));
            if is_writing(folder) {
                wrote += since.elapsed();
            }
        }
        assert!(child.wait().unwrap().success(), "{command:?}");
        Self { whole: start.elapsed(), writing: wrote.max(Duration::from_millis(1)), drawn: 0 }
    }

    /// A share of a duration: evenly spread, and never in step with what happens.
    fn share(&mut self, of: Duration) -> Duration {
        self.drawn += 1;
        of.mul_f64((self.drawn as f64 * 0.618_033_988_749_895).fract())
    }

    /// Kills a run at the next moment; whether it was still there.
    fn kill(&mut self, child: &mut Child, folder: &Path) -> bool {
        let start = Instant::now();
        if self.drawn.is_multiple_of(2) {
            sleep(self.share(self.whole));
        } else {
            while !is_writing(folder) && start.elapsed() < 2 * self.whole {
                std::hint::spin_loop();
            }
            sleep(self.share(self.writing));
        }
        let was_there = child.try_wait().unwrap().is_none();
        let _ = child.kill();
        child.wait().unwrap();
        was_there
    }
}

/// Kills `count` runs of what `command` makes of a folder, each after `prepare` made there what the first of them found,
/// and has `check` look at what they left.
fn killed(
    count: usize,
    folder: &Path,
    prepare: impl FnMut(),
    command: impl Fn() -> Command,
    check: impl FnMut(),
) {
    killed_like(command(), count, folder, prepare, command, check);
}

/// The same at moments of another command, which ends.
fn killed_like(
    first: Command,
    count: usize,
    folder: &Path,
    mut prepare: impl FnMut(),
    command: impl Fn() -> Command,
    mut check: impl FnMut(),
) {
    prepare();
    let mut moments = Moments::of(first, folder);
    let mut early = 0;
    for _ in 0..count {
        prepare();
        let mut child = spawn(&mut command());
        early += usize::from(moments.kill(&mut child, folder));
        check();
    }
    println!("{early} of {count} runs were killed before their end");
    assert!(early * 4 >= count, "{early} of {count} runs were killed before their end");
}

fn bake(archive: &Path) -> Command {
    let model = fixture("llama-untied");
    let mut command = bare(&["bake", text(&model), "-o", text(archive)]);
    command.args(SMALL);
    command
}

fn export(model: &str, out: &Path) -> Command {
    let mut command = tracewright(&["export", text(&fixture(model)), "-o", text(out)]);
    command.args(SMALL);
    command
}

fn generate(cache: &Path) -> Command {
    generate_of("llama-tied", cache)
}

fn generate_of(model: &str, cache: &Path) -> Command {
    let model = fixture(model);
    let mut command = tracewright(&["generate", text(&model), "--tokens", "5,17", "-n", "4", "--json"]);
    command.args(SMALL).args(["--cache", text(cache)]);
    command
}

fn tune(cache: &Path, more: &[&str]) -> Command {
    let mut command = tracewright(&["tune", text(&fixture("llama-untied")), "--json"]);
    command.args(SMALL).args(["--cache", text(cache)]).args(more);
    command
}

fn tokens(ran: &Ran) -> Value {
    serde_json::from_str::<Value>(&ran.out).unwrap()["tokens"].take()
}

fn killed_bakes(count: usize) {
    let out = folder();
    let archive = out.path().join("model.irpa");
    let old = b"an older one".to_vec();
    succeed(&mut bake(&archive));
    let new = fs::read(&archive).unwrap();
    let mut is_old = false;
    killed(
        count,
        out.path(),
        || {
            let _ = fs::remove_file(&archive);
            if is_old {
                fs::write(&archive, &old).unwrap();
            }
            is_old = !is_old;
        },
        || bake(&archive),
        || {
            let left = content(out.path());
            let expected = [Content::new(), [("model.irpa".into(), old.clone())].into()];
            let whole = [("model.irpa".into(), new.clone())].into();
            assert!(expected.contains(&left) || left == whole, "{:?}", listing(out.path()));
        },
    );
    // The next run sweeps away what the killed ones left.
    succeed(&mut bake(&archive));
    assert_eq!(listing(out.path()).len(), 1, "{:?}", listing(out.path()));
}

fn killed_exports(count: usize) {
    let out = folder();
    let [old, new, target] = ["old", "new", "target"].map(|name| out.path().join(name));
    succeed(&mut export("llama-tied", &old));
    succeed(&mut export("llama-untied", &new));
    let [old, new] = [content(&old), content(&new)];
    killed(
        count,
        &target,
        || {
            succeed(&mut export("llama-tied", &target));
            assert_eq!(listing(&target).len(), old.len(), "{:?}", listing(&target));
        },
        || export("llama-untied", &target),
        || {
            let left = content(&target);
            // Without a manifest it is no export, and says so.
            if left.contains_key(Path::new("manifest.json")) {
                assert!(left == old || left == new, "{:?}", listing(&target))
            } else {
                _ = refused(&mut bare(&["verify", text(&target)]), 1, &["is not an export directory"])
            }
        },
    );
}

fn killed_publications(count: usize) {
    let cache = folder();
    let expected = tokens(&succeed(&mut generate(cache.path())));
    let whole = content(cache.path());
    killed(
        count,
        cache.path(),
        || listing(cache.path()).iter().for_each(|(path, _)| fs::remove_file(path).unwrap()),
        || generate(cache.path()),
        || {
            for (path, bytes) in content(cache.path()) {
                let kind = path.extension().and_then(|extension| extension.to_str());
                match kind {
                    // What the compiler writes may lie in another order.
                    Some("module") => assert_eq!(bytes.len(), whole[&path].len(), "{}", path.display()),
                    _ => assert!(bytes == whole[&path], "{}", path.display()),
                }
            }
            assert_eq!(tokens(&succeed(&mut generate(cache.path()))), expected);
            assert!(content(cache.path()).keys().eq(whole.keys()), "{:?}", listing(cache.path()));
            assert!(!is_writing(cache.path()), "{:?}", listing(cache.path()));
        },
    );
}

fn killed_tunings(count: usize) {
    let (cache, temporary) = (folder(), folder());
    let tune = |cache: &Path, more: &[&str]| {
        let mut command = tune(cache, more);
        command.env("TMPDIR", temporary.path());
        command
    };
    let shown = succeed(&mut tune(cache.path(), &["--show"]));
    if serde_json::from_str::<Value>(&shown.out).unwrap()["kernels"] == serde_json::json!([]) {
        return; // A processor without kernels.
    }
    // A run ends when its second is over, which may be sooner than the first one did.
    killed_like(
        tune(cache.path(), &["--budget", "1s"]),
        count,
        cache.path(),
        // Where all is measured, a run has nothing left to write.
        || listing(&cache.path().join("tuning")).iter().for_each(|(path, _)| fs::remove_file(path).unwrap()),
        || tune(cache.path(), &["--budget", "10m"]),
        || {
            let shown = succeed(&mut tune(cache.path(), &["--show"]));
            assert!(!shown.err.contains("not used"), "{}", shown.err);
        },
    );
    succeed(&mut tune(cache.path(), &["--budget", "1s"]));
    // Of ours; the compiler has files of its own there.
    assert!(!is_writing(temporary.path()), "{:?}", listing(temporary.path()));
}

#[test]
fn a_killed_bake_leaves_nothing_the_old_or_the_whole() {
    killed_bakes(SHORT);
}

#[test]
fn a_killed_export_leaves_none_the_old_or_the_whole() {
    killed_exports(SHORT);
}

#[test]
fn a_killed_publication_leaves_nothing_or_the_whole() {
    killed_publications(SHORT / 4);
}

#[test]
fn a_killed_tuning_leaves_whole_records() {
    killed_tunings(SHORT / 4);
}

/// `cargo test --workspace --all-features --test cli -- --ignored --nocapture a_thousand_kills`
mod a_thousand_kills {
    use super::*;

    #[test]
    #[ignore = "takes minutes; some tens always run"]
    fn of_bakes() {
        killed_bakes(LONG);
    }

    #[test]
    #[ignore = "takes minutes; some tens always run"]
    fn of_exports() {
        killed_exports(LONG);
    }

    #[test]
    #[ignore = "takes half an hour; some always run"]
    fn of_publications() {
        killed_publications(LONG);
    }

    #[test]
    #[ignore = "takes minutes; some tens always run"]
    fn of_tunings() {
        killed_tunings(LONG);
    }
}

/// Sizes in KiB at which files can grow no more: all small ones, then fewer.
fn sizes(largest: u64) -> impl Iterator<Item = u32> {
    let most = largest.div_ceil(1024) as u32;
    std::iter::successors(Some(0), |size| Some(size + 1 + size / 6)).take_while(move |size| *size < most)
}

/// A disk that is full at one write or another, in any of the files.
#[test]
fn a_disk_that_is_full_at_any_write() {
    let out = folder();
    let [whole, archive, target, cache] =
        ["whole", "model.irpa", "target", "cache"].map(|name| out.path().join(name));
    succeed(&mut export("llama-untied", &whole));
    let largest = listing(&whole).into_iter().map(|(_, size)| size).max().unwrap();
    let (mut full, mut compiled) = (0, 0);
    for kib in sizes(largest) {
        let ran = run(&mut limited(&bake(&archive), kib));
        // The module of the export may be larger than any archive.
        if ran.code == Some(0) {
            fs::remove_file(&archive).unwrap();
        } else {
            full += 1;
            assert_eq!(ran.code, Some(1), "{kib} KiB: {}", ran.err);
            assert!(
                !archive.exists()
                    && content(out.path())
                        .keys()
                        .all(|path| !path.ends_with("model.irpa") || path.starts_with("whole"))
            );
        }
        let ran = refused(&mut limited(&export("llama-untied", &target), kib), 1, &[]);
        assert!(!target.exists(), "{kib} KiB: {}", ran.err);
        if kib % 6 == 0 {
            let ran = run(&mut limited(&generate(&cache), kib));
            // What a short prompt needs is less than an export.
            if ran.code == Some(0) {
                fs::remove_dir_all(&cache).unwrap();
                continue;
            }
            assert_eq!(ran.code, Some(1), "{kib} KiB: {}", ran.err);
            compiled += 1;
            for (path, _) in content(&cache) {
                let kind = path.extension().and_then(|extension| extension.to_str()).unwrap();
                assert!(["irpa", "log", "mlir"].contains(&kind), "{} at {kib} KiB", path.display());
            }
        }
    }
    println!("{full} bakes, {compiled} publications");
    assert!(full > 10 && compiled > 3);
    succeed(&mut generate(&cache));
}

/// The same of what else is written: logits over older ones, an export for XLA.
#[test]
fn a_disk_that_is_full_of_what_else_is_written() {
    let (out, model) = (folder(), fixture("llama-untied"));
    let [logits, target] = ["logits", "target"].map(|name| out.path().join(name));
    let save = || {
        let mut command = tracewright(&["generate", text(&model), "--tokens", "5,17,3", "-n", "4"]);
        command.args(SMALL).args(["--save-logits", text(&logits)]);
        command
    };
    succeed(&mut save());
    let whole = fs::read(&logits).unwrap();
    let mut full = 0;
    for kib in sizes(whole.len() as u64) {
        fs::write(&logits, "old").unwrap();
        refused(&mut limited(&save(), kib), 1, &[]);
        assert_eq!(content(out.path()), Content::from([("logits".into(), b"old".to_vec())]), "{kib} KiB");
        full += 1;
    }
    fs::remove_file(&logits).unwrap();
    succeed(&mut export_xla(&model, &target));
    let largest = listing(&target).into_iter().map(|(_, size)| size).max().unwrap();
    fs::remove_dir_all(&target).unwrap();
    for kib in sizes(largest) {
        refused(&mut limited(&export_xla(&model, &target), kib), 1, &[]);
        assert!(!target.exists(), "{kib} KiB");
        full += 1;
    }
    assert!(full > 8, "{full}");
    // Over an older one, with room for a configuration and for no module: nothing is left of either.
    succeed(&mut export_xla(&model, &target));
    refused(&mut limited(&export_xla(&model, &target), 4), 1, &[]);
    assert_eq!(listing(&target), []);
}

/// The result of a command in which the folder `disk` is a disk of `kib` KiB, with a file of size `taken` on
/// it. `None` if this process may not create such a disk.
#[cfg(target_os = "linux")]
fn on_disk_of(kib: usize, taken: usize, disk: &Path, command: &mut Command) -> Option<(Ran, Content)> {
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", &format!("size={kib}k"), "tmpfs"])
        .arg(disk)
        .output();
    if !mounted.is_ok_and(|mounted| mounted.status.success()) {
        println!("skipped: this process may not mount a file system");
        return None;
    }
    let other = disk.join("other");
    fs::write(&other, vec![0; taken << 10]).unwrap();
    let ran = run(command);
    fs::remove_file(&other).unwrap();
    let left = content(disk);
    assert!(Command::new("umount").arg(disk).status().unwrap().success());
    Some((ran, left))
}

/// A tuning whose records have no room: what it measures with lies elsewhere.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_no_record_of_a_tuning() {
    let disk = folder();
    let shown = succeed(&mut tune(disk.path(), &["--show"]));
    if serde_json::from_str::<Value>(&shown.out).unwrap()["kernels"] == serde_json::json!([]) {
        return; // A processor without kernels.
    }
    let mut tune = tune(disk.path(), &["--budget", "10m"]);
    let Some((ran, left)) = on_disk_of(64, 64, disk.path(), &mut tune) else { return };
    assert_eq!((ran.code, left), (Some(1), Content::new()), "{}", ran.err);
    assert!(ran.err.contains("No space left on device") && ran.err.contains(".tuning`"), "{}", ran.err);
}

/// A small disk of its own that fills up, file after file, where this process may make one.
#[cfg(target_os = "linux")]
#[test]
fn a_small_disk_that_fills_up() {
    let out = folder();
    let [whole, disk] = ["whole", "disk"].map(|name| out.path().join(name));
    succeed(&mut export("llama-untied", &whole));
    fs::create_dir(&disk).unwrap();
    let whole = content(&whole);
    let needed = whole.values().map(|bytes| bytes.len().div_ceil(4096) * 4).sum::<usize>();
    let (mut failed, mut free) = (0, 8);
    loop {
        let Some((ran, left)) = on_disk_of(free, 0, &disk, &mut export("llama-untied", &disk.join("target")))
        else {
            return;
        };
        if ran.code == Some(0) {
            let made: Content =
                whole.iter().map(|(path, bytes)| (Path::new("target").join(path), bytes.clone())).collect();
            assert!(left == made);
            break;
        }
        failed += 1;
        assert_eq!((ran.code, left), (Some(1), Content::new()), "{free} KiB: {}", ran.err);
        assert!(free < 2 * needed, "{free} KiB and still full: {}", ran.err);
        // In small steps where only the last files have no room.
        free += if free + 64 < needed { needed / 8 } else { 4 };
    }
    assert!(failed > 4, "{failed}");
}

/// Eight runs that all find the cache empty, of two networks.
#[test]
fn eight_runs_at_once_on_one_cache() {
    let cache = folder();
    let models = ["llama-tied", "llama-untied"];
    let shared = root().join(".tracewright/cache");
    let alone = models.map(|model| tokens(&succeed(&mut generate_of(model, &shared))));
    for _ in 0..2 {
        let children: Vec<_> =
            (0..8).map(|number| spawn(&mut generate_of(models[number % 2], cache.path()))).collect();
        for (number, child) in children.into_iter().enumerate() {
            let output = child.wait_with_output().unwrap();
            let err = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{err}");
            let found = serde_json::from_slice::<Value>(&output.stdout).unwrap()["tokens"].take();
            assert_eq!(found, alone[number % 2], "run {number}");
        }
        let mut kinds: Vec<_> =
            listing(cache.path()).into_iter().map(|(path, _)| path.extension().unwrap().to_owned()).collect();
        kinds.sort();
        assert_eq!(kinds, ["irpa", "irpa", "module", "module"], "{:?}", listing(cache.path()));
    }
}

/// A file that is truncated before it is mapped is an error. If it is truncated while it is mapped, the
/// process ends. No missing number is ever computed with.
#[cfg(target_os = "linux")]
#[test]
fn a_file_that_is_cut_off_while_it_is_mapped() {
    use std::io::Read as _;
    use std::os::unix::process::ExitStatusExt as _;

    const SIGBUS: i32 = 7;
    let out = folder();
    succeed(tracewright(&["export", text(&demo()), "-o", text(out.path())]).args(SIZES));
    let archive = out.path().join("model.irpa");
    let bytes = fs::read(&archive).unwrap();
    let cut = |length: usize| {
        fs::File::options().write(true).open(&archive).unwrap().set_len(length as u64).unwrap()
    };
    let generate = || bare(&["generate", text(out.path()), "-p", "Once", "-n", "500", "--ignore-eos"]);
    let whole = succeed(&mut generate()).out;
    for length in [0, 1, 87, bytes.len() / 2, bytes.len() - 4096, bytes.len() - 1] {
        cut(length);
        refused(&mut generate(), 1, &["model.irpa"]);
        fs::write(&archive, &bytes).unwrap();
    }
    let mut child = spawn(&mut generate());
    let mut said = vec![0];
    let stdout = child.stdout.as_mut().unwrap();
    stdout.read_exact(&mut said).unwrap();
    cut(4096);
    stdout.read_to_end(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(SIGBUS), "{}", String::from_utf8_lossy(&said));
    assert!(whole.as_bytes().starts_with(&said), "{}", String::from_utf8_lossy(&said));
}
