//! Installs pinned Python packages into a separate folder. The installation uses pip, and does not
//! need root permissions.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use errors::WithPath as _;
use indicatif::{ProgressBar, ProgressStyle};

use crate::error::Error;
use crate::step::{check, human, start_error};

/// A copy of the requirements, removed first and written last: if it is missing, the installation was not
/// finished; if it differs, it is out of date.
const STAMP: &str = "installed.txt";

const HOW_PYTHON: &str =
    "`apt install python3 python3-venv python3-pip`, `dnf install python3 python3-pip` or the like";

pub struct Python {
    dir: PathBuf,
    packages: PathBuf,
}

impl Python {
    /// Run executables from here: the scripts in `bin` start Python, and contain the checkout's absolute
    /// path.
    pub fn packages(&self) -> &Path {
        &self.packages
    }

    pub fn bin(&self) -> [PathBuf; 2] {
        [self.dir.join("bin"), self.packages.join("bin")]
    }

    pub fn command(&self) -> Command {
        let own = self.dir.join("bin/python3");
        let mut python = Command::new(if own.exists() { own } else { "python3".into() });
        python.env("PYTHONPATH", &self.packages);
        python
    }
}

/// With the pinned `requirements`, unless all are there. `size` of the download is shown.
pub fn install(dir: &Path, requirements: &Path, size: &str) -> Result<Python, Error> {
    install_for(None, dir, requirements, size)
}

/// In pip's notation; `None` for this machine.
pub fn install_for(
    platform: Option<&str>,
    dir: &Path,
    requirements: &Path,
    size: &str,
) -> Result<Python, Error> {
    let pins = fs::read_to_string(requirements).with_path("read", requirements)?;
    let names = parse(requirements, &pins)?;
    let stamp = dir.join(STAMP);
    if let Some(python) = current(dir, &pins) {
        return Ok(python);
    }
    let lock = lock(dir)?;
    if let Some(python) = current(dir, &pins) {
        return Ok(python); // by another xtask, while we waited
    }
    // An environment that somebody made by hand with the same pins is as good as ours.
    if let Some(python) = complete(dir, &names).ok().filter(|_| dir.join("bin/python3").exists()) {
        fs::write(&stamp, &pins).with_path("write", &stamp)?;
        return Ok(python);
    }
    // The search happens before the removal: this Python must not be a part of the folder.
    let installer = Installer::find(platform, dir, &env::var_os("PATH").unwrap_or_default())?;
    if stamp.exists() {
        fs::remove_file(&stamp).with_path("remove", &stamp)?;
    }
    if dir.exists() {
        fs::remove_dir_all(dir).with_path("remove", dir)?;
    }
    installer.install(platform, dir, requirements, size, &lock)?;
    let python = complete(dir, &names)?;
    fs::write(&stamp, &pins).with_path("write", &stamp)?;
    Ok(python)
}

pub fn is_installed(dir: &Path, requirements: &Path) -> bool {
    fs::read_to_string(requirements).is_ok_and(|pins| current(dir, &pins).is_some())
}

/// Returns the installed packages if the folder's copy of the requirements is equal to `pins`.
fn current(dir: &Path, pins: &str) -> Option<Python> {
    let stamp = fs::read_to_string(dir.join(STAMP)).ok()?;
    (stamp == pins).then(|| find(dir)).flatten()
}

/// If every pinned package has `INSTALLER`, which pip writes last.
fn complete(dir: &Path, pins: &[Pin]) -> Result<Python, Error> {
    let missing = |pin: &Pin| Error::Incomplete { pin: pin.to_string(), dir: dir.to_path_buf() };
    let [first, ..] = pins else {
        return Err(Error::Incomplete { pin: String::new(), dir: dir.to_path_buf() });
    };
    let python = find(dir).ok_or_else(|| missing(first))?;
    let installed = |pin: &Pin| python.packages.join(pin.dist_info()).join("INSTALLER").exists();
    match pins.iter().find(|pin| !installed(pin)) {
        Some(pin) => Err(missing(pin)),
        None => Ok(python),
    }
}

/// `lib/python3*/site-packages`, with and without a virtual environment.
fn find(dir: &Path) -> Option<Python> {
    let versions = fs::read_dir(dir.join("lib")).ok()?;
    let mut packages = versions.filter_map(|entry| Some(entry.ok()?.path().join("site-packages")));
    let packages = packages.find(|path| path.is_dir())?;
    Some(Python { dir: dir.to_path_buf(), packages })
}

/// Only of a finished installation.
pub fn find_packages(dir: &Path) -> Result<PathBuf, Error> {
    let pin = || Error::Incomplete { pin: "site-packages".into(), dir: dir.to_path_buf() };
    find(dir).map(|python| python.packages).ok_or_else(pin)
}

/// Installs a wheel, and returns `python3`, which also finds `packages`.
pub fn environment_with(dir: &Path, wheel: &Path, packages: &Path) -> Result<PathBuf, Error> {
    let (lock, log) = (lock(dir)?, dir.with_extension("log"));
    let pythons = pythons(dir, &env::var_os("PATH").unwrap_or_default());
    let maker = pythons.iter().find(|python| asks(python, Way::OwnPip.needs()));
    let mut venv = Command::new(maker.ok_or_else(|| no_pip(&pythons))?);
    run(venv.args(["-m", "venv"]).arg(dir), "making a virtual environment", &log, &lock)?;
    let python = dir.join("bin/python3");
    let own = find_packages(dir)?.join("tools.pth");
    fs::write(&own, format!("{}\n", packages.display())).with_path("write", &own)?;
    let mut pip = pip_of(&python);
    pip.args(["install", "--no-index", "--no-deps"]).arg(wheel);
    run(&mut pip, "installing the wheel", &log, &lock)?;
    Ok(python)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// Into an environment without pip: a copy would take seconds to install.
    SharedPip,
    /// In an environment with a copy of pip.
    OwnPip,
    /// Into a plain folder, also on systems that manage their own Python.
    Folder,
}

impl Way {
    /// Succeeds if the Python can install this way.
    fn needs(self) -> &'static str {
        match self {
            // Older versions of pip cannot install into another environment.
            Self::SharedPip => {
                "import venv, pip; assert tuple(map(int, pip.__version__.split('.')[:2])) >= (22, 3)"
            }
            Self::OwnPip => "import venv, ensurepip",
            Self::Folder => "import pip",
        }
    }
}

#[derive(PartialEq, Eq, Debug)]
struct Installer {
    /// Absolute, because `python3` could become the new environment's, perhaps without pip.
    python: PathBuf,
    way: Way,
}

impl Installer {
    /// Finds the first `python3` in the folders of `path` that can install packages into `dir`.
    fn find(platform: Option<&str>, dir: &Path, path: &OsStr) -> Result<Self, Error> {
        let ways: &[Way] = match platform {
            None => &[Way::SharedPip, Way::OwnPip, Way::Folder],
            Some(_) => &[Way::Folder, Way::OwnPip],
        };
        let pythons = pythons(dir, path);
        for (at, python) in pythons.iter().enumerate() {
            // The first Python runs the packages of a plain folder (`Python::command`).
            let fits = |way: Way| way != Way::Folder || platform.is_some() || at == 0;
            if let Some(&way) = ways.iter().find(|way| fits(**way) && asks(python, way.needs())) {
                return Ok(Self { python: python.clone(), way });
            }
        }
        Err(no_pip(&pythons))
    }

    fn install(
        self,
        platform: Option<&str>,
        dir: &Path,
        requirements: &Path,
        size: &str,
        lock: &File,
    ) -> Result<(), Error> {
        let log = dir.with_extension("log");
        let environment = |flags: &[&str]| {
            let mut venv = Command::new(&self.python);
            venv.args(["-m", "venv"]).args(flags).arg(dir);
            run(&mut venv, "making a virtual environment", &log, lock)
        };
        let own = dir.join("bin/python3");
        let (mut pip, folder) = match self.way {
            Way::SharedPip => {
                environment(&["--without-pip"])?;
                let mut pip = pip_of(&self.python);
                pip.arg("--python").arg(own);
                (pip, None)
            }
            Way::OwnPip => {
                environment(&[])?;
                // For another platform pip wants to be told where to.
                (pip_of(own), platform.and_then(|_| find(dir)).map(|python| python.packages))
            }
            Way::Folder => (pip_of(&self.python), Some(dir.join("lib/python3/site-packages"))),
        };
        // Python compiles what it imports, which is little of it, when it does.
        pip.args(["install", "--no-compile", "--requirement"]).arg(requirements);
        if let Some(folder) = folder {
            pip.arg("--target").arg(folder);
        }
        if let Some(platform) = platform {
            pip.args(["--platform", platform, "--only-binary=:all:", "--no-deps"]);
        }
        run(&mut pip, &format!("installing {} ({size})", requirements.display()), &log, lock)
    }
}

/// In the folders of `path`, but not in `dir`.
fn pythons(dir: &Path, path: &OsStr) -> Vec<PathBuf> {
    let own = dir.join("bin").canonicalize().ok();
    let folders = env::split_paths(path)
        .filter_map(|folder| folder.canonicalize().ok())
        .filter(|folder| Some(folder) != own.as_ref());
    folders.map(|folder| folder.join("python3")).filter(|python| python.is_file()).collect()
}

fn no_pip(pythons: &[PathBuf]) -> Error {
    let paths: Vec<String> = pythons.iter().map(|python| format!("`{}`", python.display())).collect();
    let (what, tried) = if paths.is_empty() {
        ("Python 3", "no `python3` on PATH".to_owned())
    } else {
        let needs = [Way::Folder.needs(), Way::OwnPip.needs()];
        let tried = format!("neither `{}` nor `{}` works in {}", needs[0], needs[1], paths.join(", "));
        ("pip for Python 3", tried)
    };
    Error::Missing { what, tried, how: HOW_PYTHON }
}

fn pip_of(python: impl AsRef<OsStr>) -> Command {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "--disable-pip-version-check"]);
    pip
}

fn asks(python: &Path, statement: &str) -> bool {
    let mut python = Command::new(python);
    python.args(["-c", statement]).stdout(Stdio::null()).stderr(Stdio::null());
    python.status().is_ok_and(|status| status.success())
}

/// Output goes to `log`; a terminal shows a spinner. The child has the lock as its stdin, and so holds it
/// until its end, even if this program is killed.
pub fn run(command: &mut Command, what: &str, log: &Path, lock: &File) -> Result<(), Error> {
    let output = File::create(log).with_path("create", log)?;
    let errors = output.try_clone().with_path("open", log)?;
    let spinner = ProgressBar::new_spinner().with_message(what.to_string());
    if io::stderr().is_terminal() {
        spinner.set_style(
            ProgressStyle::default_spinner().template("{spinner} {msg} … {elapsed}").unwrap_or_else(
                |_| ProgressStyle::default_spinner(), // the template is a constant; the fallback is never taken
            ),
        );
        spinner.enable_steady_tick(Duration::from_millis(120));
    } else {
        eprintln!("==> {what}; log: {}", log.display());
    }
    let start = Instant::now();
    let lock = lock.try_clone().with_path("share the lock for", log)?;
    let status = command.stdin(lock).stdout(output).stderr(errors).status();
    spinner.finish_and_clear();
    let status = status.map_err(|source| start_error(command, source))?;
    check(status)?;
    if !status.success() {
        let text = fs::read_to_string(log).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(12)..].join("\n");
        return Err(Error::Quiet { what: what.to_string(), status, log: log.to_path_buf(), tail });
    }
    eprintln!("<== {what}: {}", human(start.elapsed()));
    Ok(())
}

pub fn is_locked(dir: &Path) -> bool {
    File::open(dir.with_extension("lock")).is_ok_and(|lock| lock.try_lock_shared().is_err())
}

/// Released by the system when all holders have ended.
pub fn lock(dir: &Path) -> Result<File, Error> {
    let path = dir.with_extension("lock");
    let parent = path.parent().unwrap_or(dir);
    fs::create_dir_all(parent).with_path("create", parent)?;
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
    let file = file.with_path("create", &path)?;
    if file.try_lock().is_err() {
        eprintln!("another `cargo xtask` is installing into {}; waiting for it", dir.display());
        file.lock().with_path("lock", &path)?;
    }
    Ok(file)
}

/// `NAME==VERSION`; with a `--hash`, pip accepts only that wheel.
struct Pin {
    name: String,
    version: String,
}

impl Pin {
    /// `_` replaces `-` and `.`.
    fn dist_info(&self) -> String {
        format!("{}-{}.dist-info", self.name.to_lowercase().replace(['-', '.'], "_"), self.version)
    }
}

impl std::fmt::Display for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}=={}", self.name, self.version)
    }
}

/// Exact versions, so that an installation is the same on any day.
fn parse(path: &Path, text: &str) -> Result<Vec<Pin>, Error> {
    let lines =
        text.lines().enumerate().map(|(i, line)| (i + 1, line.split('#').next().unwrap_or("").trim()));
    let pins = lines.filter(|(_, line)| !line.is_empty()).map(|(number, line)| {
        let (pin, hash) =
            line.split_once(" --hash=sha256:").map_or((line, None), |(pin, hash)| (pin, Some(hash)));
        let is_hash = |hash: &str| hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        match pin.split_once("==") {
            Some((name, version))
                if !name.is_empty()
                    && !version.is_empty()
                    && !version.contains(' ')
                    && hash.is_none_or(is_hash) =>
            {
                Ok(Pin { name: name.trim().to_string(), version: version.trim().to_string() })
            }
            _ => Err(Error::Pin { path: path.to_path_buf(), line: number, found: line.to_string() }),
        }
    });
    pins.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requirements(dir: &Path, text: &str) -> PathBuf {
        let path = dir.join("requirements.txt");
        fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn only_pins_are_taken() {
        let pins = parse(Path::new("r.txt"), "# why\n\nA.b-C==1.0 # note\n").unwrap();
        assert_eq!(pins[0].dist_info(), "a_b_c-1.0.dist-info");
        let error = parse(Path::new("r.txt"), "torch>=2").err().unwrap().to_string();
        assert_eq!(error, "line 1 of `r.txt` is `torch>=2`, expected `NAME==VERSION [--hash=sha256:HEX]`");
        let hash = "0123456789abcdef".repeat(4);
        let pins = parse(Path::new("r.txt"), &format!("a-b==1.0 --hash=sha256:{hash}\n")).unwrap();
        assert_eq!(pins[0].dist_info(), "a_b-1.0.dist-info");
        for odd in [
            "a==1 --hash=sha256:12",
            "a==1 --hash=md5:12",
            "a==1 b==2",
            &format!("a==1 --hash=sha256:{hash} ; x"),
        ] {
            assert!(matches!(parse(Path::new("r.txt"), odd), Err(Error::Pin { .. })), "{odd}");
        }
    }

    #[test]
    fn a_stamp_with_the_same_pins_needs_no_install() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, path) = (temp.path().join("venv"), requirements(temp.path(), "a==1\n"));
        fs::create_dir_all(dir.join("lib/python3/site-packages")).unwrap();
        assert!(current(&dir, "a==1\n").is_none());
        fs::write(dir.join(STAMP), "a==1\n").unwrap();
        assert_eq!(install(&dir, &path, "").unwrap().packages(), dir.join("lib/python3/site-packages"));
        assert!(current(&dir, "a==2\n").is_none());
    }

    #[test]
    fn an_environment_made_by_hand_is_accepted_when_it_holds_every_pin() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, path) = (temp.path().join("venv"), requirements(temp.path(), "a-b==1\n"));
        let info = dir.join("lib/python3.11/site-packages/a_b-1.dist-info");
        fs::create_dir_all(&info).unwrap();
        fs::create_dir_all(dir.join("bin")).unwrap();
        fs::write(dir.join("bin/python3"), "").unwrap();
        let pins = parse(&path, "a-b==1\n").unwrap();
        assert!(complete(&dir, &pins).is_err());
        fs::write(info.join("INSTALLER"), "pip").unwrap();
        assert!(install(&dir, &path, "").is_ok());
        assert_eq!(fs::read_to_string(dir.join(STAMP)).unwrap(), "a-b==1\n");
    }

    /// Each folder of PATH has a `python3` that runs every statement (`true`) or none (`false`).
    fn check_installer(folders: &[(&str, &str)], expected: Result<&str, &str>) {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap();
        for (folder, program) in folders {
            fs::create_dir_all(root.join(folder)).unwrap();
            std::os::unix::fs::symlink(Path::new("/bin").join(program), root.join(folder).join("python3"))
                .unwrap();
        }
        let path = env::join_paths(folders.iter().map(|(folder, _)| root.join(folder))).unwrap();
        let found = Installer::find(None, &root.join("own"), &path);
        let found = found.map_err(|error| error.to_string().replace(root.to_str().unwrap(), "ROOT"));
        let expected = expected.map(|python| Installer { python: root.join(python), way: Way::SharedPip });
        assert_eq!(found, expected.map_err(|text| format!("{text}; install it: {HOW_PYTHON}")));
    }

    #[test]
    fn the_first_python_that_can_installs() {
        check_installer(&[("a", "true"), ("b", "true")], Ok("a/python3"));
        check_installer(&[("a", "false"), ("b", "true")], Ok("b/python3"));
        // The installation replaces this folder.
        check_installer(&[("own/bin", "true"), ("b", "true")], Ok("b/python3"));
        let lacks = "pip for Python 3 is missing (neither `import pip` nor `import venv, ensurepip` works in \
            `ROOT/a/python3`, `ROOT/b/python3`)";
        check_installer(&[("a", "false"), ("b", "false")], Err(lacks));
        let lacks = "Python 3 is missing (no `python3` on PATH)";
        check_installer(&[("own/bin", "true")], Err(lacks));
    }

    #[test]
    fn the_lock_keeps_a_second_install_out() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("venv");
        let held = lock(&dir).unwrap();
        let other = File::open(dir.with_extension("lock")).unwrap();
        assert!(other.try_lock().is_err());
        drop(held);
        // A process that another test begins has a copy of what is open until it is the other program.
        let free = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            other.try_lock().is_ok()
        });
        assert!(free);
    }
}
