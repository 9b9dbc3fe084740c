//! Installs a Vulkan driver that needs no graphics processor. The program downloads Mesa's driver
//! from Debian's packages, and unpacks the packages into a folder. The installation does not need
//! root permissions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use errors::WithPath as _;

use crate::error::Error;
use crate::python::{lock, run};

/// With everything that it depends on.
const DRIVER: &str = "mesa-vulkan-drivers";

const HOW: &str = "`dnf install mesa-vulkan-drivers vulkan-loader`, `pacman -S vulkan-swrast vulkan-icd-loader` or the like";

/// Written last: without it, the installation was not finished.
const STAMP: &str = "installed.txt";

/// Empty if the system's loader finds a driver.
pub type Variables = Vec<(&'static str, PathBuf)>;

/// The system's, or one installed into the checkout.
pub fn install(root: &Path) -> Result<Variables, Error> {
    if system_has_one() {
        return Ok(Variables::new());
    }
    let dir = root.join(".tracewright/vulkan");
    if !dir.join(STAMP).exists() {
        let lock = lock(&dir)?;
        if !dir.join(STAMP).exists() {
            if dir.exists() {
                fs::remove_dir_all(&dir).with_path("remove", &dir)?;
            }
            unpack(&dir, &lock)?;
        }
    }
    let libraries = libraries(&dir.join("root"))?;
    Ok(vec![("LD_LIBRARY_PATH", libraries), ("VK_ICD_FILENAMES", dir.join("driver.json"))])
}

fn system_has_one() -> bool {
    let known = Command::new("ldconfig").arg("-p").stderr(Stdio::null()).output();
    known.is_ok_and(|known| String::from_utf8_lossy(&known.stdout).contains("libvulkan.so.1"))
}

fn unpack(dir: &Path, held: &fs::File) -> Result<(), Error> {
    let packages = dir.join("packages");
    fs::create_dir_all(&packages).with_path("create", &packages)?;
    let names = missing_packages()?;
    let log = dir.with_extension("log");
    let what = format!("downloading {DRIVER} (8 MB, 60 MB where LLVM is missing too)");
    run(Command::new("apt-get").arg("download").args(&names).current_dir(&packages), &what, &log, held)?;
    let root = dir.join("root");
    for entry in fs::read_dir(&packages).with_path("read", &packages)? {
        let package = entry.with_path("read", &packages)?.path();
        let what = format!("unpacking {}", package.file_name().unwrap_or_default().to_string_lossy());
        run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&root), &what, &log, held)?;
    }
    // The driver's own manifest has a path from the system's root.
    let folder = libraries(&root)?;
    let library = folder.join("libvulkan_lvp.so");
    let library = library.strip_prefix(dir).unwrap_or(&library).display().to_string();
    let manifest = format!(
        "{{\"file_format_version\": \"1.0.0\", \"ICD\": {{\"api_version\": \"1.3.0\", \"library_path\": \"./{library}\"}}}}\n"
    );
    let path = dir.join("driver.json");
    fs::write(&path, manifest).with_path("write", &path)?;
    let stamp = dir.join(STAMP);
    fs::write(&stamp, names.join("\n") + "\n").with_path("write", &stamp)?;
    Ok(())
}

/// Its name contains the architecture.
fn libraries(root: &Path) -> Result<PathBuf, Error> {
    let lib = root.join("usr/lib");
    let folders = fs::read_dir(&lib).with_path("read", &lib)?.flatten().map(|entry| entry.path());
    folders.into_iter().find(|folder| folder.join("libvulkan_lvp.so").exists()).ok_or_else(|| {
        Error::Missing {
            what: "the driver `libvulkan_lvp.so`",
            tried: format!("it is not in the package {DRIVER}"),
            how: HOW,
        }
    })
}

/// Driver, loader, and libraries that the system lacks.
fn missing_packages() -> Result<Vec<String>, Error> {
    let none = |tried: &str| Error::Missing { what: "a driver for Vulkan", tried: tried.into(), how: HOW };
    let mut ask = Command::new("apt-cache");
    ask.args(["depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks"]);
    ask.args(["--no-replaces", "--no-enhances", DRIVER]).stderr(Stdio::null());
    let known = ask.output().map_err(|_| none("there is no `apt-cache`"))?;
    let known = String::from_utf8_lossy(&known.stdout).into_owned();
    // A line that is not indented is a package; its dependencies follow.
    let all = known.lines().filter(|line| !line.starts_with([' ', '<', '|']));
    let mut names: Vec<String> =
        all.filter(|name| *name == DRIVER || name.starts_with("lib")).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    if !names.iter().any(|name| name == DRIVER) {
        return Err(none(&format!(
            "`apt-cache` knows no package {DRIVER}; `apt-get update` brings the lists"
        )));
    }
    names.retain(|name| !is_installed(name));
    Ok(names)
}

fn is_installed(package: &str) -> bool {
    let mut ask = Command::new("dpkg-query");
    ask.args(["--show", "--showformat=${Status}", package]).stderr(Stdio::null());
    ask.output().is_ok_and(|answer| answer.stdout == b"install ok installed")
}
