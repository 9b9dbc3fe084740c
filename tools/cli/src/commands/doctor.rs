//! `tracewright doctor` checks the installation, and explains how to fix it.

use std::path::PathBuf;

use clap::Args;

use crate::arguments::CompileArguments;

#[derive(Args)]
pub struct Arguments {
    /// Print one JSON object on stdout instead of a line for each check
    #[arg(long)]
    pub json: bool,
    /// Folder of a model that comes with Tracewright, `demo` or `demo-gemma3`: `doctor` compares the bits of its logits
    /// with the stored fingerprint [default: `demo`, if the current folder has it]
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub compile: CompileArguments,
}

#[cfg(feature = "iree")]
mod run {
    use std::path::{Path, PathBuf};

    use console::{print, usage};
    use kernels::Kernels;
    use serde_json::{Value, json};
    use tracewright::errors::WithCauses;
    use tracewright::footprint::readable;
    use tracewright::model::{Fingerprint, FingerprintText, Opening};
    use tracewright::runtime::{Device, Runtime, WHEEL};
    use tracewright::targets::{Target, host_features};
    use tracewright::{Memory, OpenOptions};

    use super::Arguments;
    use crate::Invocation;
    use crate::build;
    use crate::error::Error;
    use crate::interrupt::Interrupt;
    use crate::load;

    struct Finding {
        what: &'static str,
        /// A description of what the check found: a working component (`Ok`), or a problem (`Err`).
        found: Result<String, String>,
        help: Option<String>,
        value: Value,
    }

    impl Finding {
        fn json(&self) -> Value {
            let Self { what, found, help, value } = self;
            let (good, found) = (found.is_ok(), found.as_ref().unwrap_or_else(|wrong| wrong));
            json!({ "what": what, "good": good, "found": found, "help": help, "value": value })
        }

        fn lines(&self) -> String {
            let (sign, found) = match &self.found {
                Ok(found) => ("ok", found),
                Err(wrong) => ("BAD", wrong),
            };
            let help = self.help.iter().map(|help| format!("{:14} help: {help}\n", ""));
            format!("{sign:3} {:10} {found}\n{}", self.what, help.collect::<String>())
        }
    }

    /// The number of bytes that a module and an archive of a small model need.
    const ROOM: u64 = 1 << 30;

    impl Arguments {
        pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
            let interrupt = &invocation.interrupt;
            let (compiler, target) = compiler(self, interrupt)?;
            let mut all = vec![compiler, processor(target), runtime(), cache(self), memory()];
            let model =
                self.model.clone().or_else(|| Some(PathBuf::from("demo")).filter(|demo| demo.is_dir()));
            if let Some(model) = model.filter(|_| all.iter().all(|finding| finding.found.is_ok())) {
                all.push(bits(self, &model, invocation)?);
            }
            let missing = all.iter().filter(|finding| finding.found.is_err()).count();
            let written = print(&if self.json {
                let findings: Vec<Value> = all.iter().map(Finding::json).collect();
                format!("{}\n", json!({ "good": missing == 0, "findings": findings }))
            } else {
                all.iter().map(Finding::lines).collect()
            });
            match missing {
                0 => Ok(written?),
                missing => Err(Error::Missing { missing, looked_at: all.len() }),
            }
        }
    }

    /// Also the processor that the compiler detects.
    fn compiler(arguments: &Arguments, interrupt: &Interrupt) -> Result<(Finding, Option<Target>), Error> {
        let what = "compiler";
        let expected = WHEEL.split_once("==").map_or(WHEEL, |(_, version)| version);
        let install = format!(
            "`cargo xtask setup` installs it into a checkout, `pip install {WHEEL}` elsewhere; then put its folder on PATH"
        );
        let asked = build::compiler(&arguments.compile, interrupt).and_then(|compiler| {
            let version = compiler.version()?;
            Ok((compiler, version))
        });
        let (compiler, version) = match asked {
            Ok(found) => found,
            Err(_) if interrupt.is_set() => return Err(Error::Interrupted),
            Err(error) => {
                let wrong = WithCauses(&error).to_string().lines().next().unwrap_or_default().to_owned();
                return Ok((
                    Finding { what, found: Err(wrong), help: Some(install), value: Value::Null },
                    None,
                ));
            }
        };
        let value =
            json!({ "path": compiler.path.to_string_lossy(), "version": version, "expected": expected });
        let found = format!("iree-compile {version} at `{}`", compiler.path.display());
        let is_pinned = version.starts_with(expected);
        let found = if is_pinned { Ok(found) } else { Err(format!("{found}, expected {expected}")) };
        let target = compiler.resolve(&Target::host()).ok();
        Ok((Finding { what, found, help: (!is_pinned).then_some(install), value }, target))
    }

    /// Reports the features of this machine's processor, and the kernels that use these features.
    fn processor(target: Option<Target>) -> Finding {
        let detected =
            || host_features().into_iter().filter(|(_, has)| *has).map(|(name, _)| name.to_owned());
        let target =
            target.unwrap_or_else(|| Target { features: Some(detected().collect()), ..Target::host() });
        let features = target.features.clone().unwrap_or_default();
        let has_kernels = !Kernels::of(&target).is_empty();
        // Those that kernels differ by.
        let told = |name: &&String| {
            ["avx2", "fma", "avx512", "amx", "neon", "dotprod", "i8mm", "bf16"]
                .iter()
                .any(|of| name.contains(of))
        };
        let told: Vec<&str> = features.iter().filter(told).map(String::as_str).collect();
        let kernels =
            if has_kernels { "Tracewright's kernels" } else { "no kernels: the compiler generates all code" };
        Finding {
            what: "processor",
            found: Ok(format!("{kernels}; {} ({})", target.architecture(), told.join(", "))),
            help: (!has_kernels).then(|| {
                "kernels need AVX2, FMA and F16C, or NEON; `--quant` works without them, more slowly".into()
            }),
            value: json!({ "architecture": target.architecture(), "features": features, "kernels": has_kernels }),
        }
    }

    fn runtime() -> Finding {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let started = Runtime::new(Device::LocalTask { workers: 0 });
        Finding {
            what: "runtime",
            found: match &started {
                Ok(_) => Ok(format!("IREE's runtime starts, on {cores} cores")),
                Err(error) => Err(WithCauses(error).to_string()),
            },
            help: started.is_err().then(|| "try `--threads 1`, which needs the fewest resources".into()),
            value: json!({ "cores": cores }),
        }
    }

    /// Checks that the cache folder is writable, and reports the free space on its disk.
    fn cache(arguments: &Arguments) -> Finding {
        let what = "cache";
        let other = Some("`--cache DIR` or TRACEWRIGHT_CACHE names another folder".to_owned());
        let folder = match build::cache_folder(&arguments.compile) {
            Ok(folder) => folder,
            Err(error) => {
                return Finding { what, found: Err(error.to_string()), help: other, value: Value::Null };
            }
        };
        let room = room(&folder);
        let value = json!({ "folder": folder.to_string_lossy(), "free_bytes": room });
        let tried = std::fs::create_dir_all(&folder).and_then(|()| tempfile::tempfile_in(&folder));
        let found = match (tried, room) {
            (Err(error), _) => Err(format!("cannot write to `{}`: {error}", folder.display())),
            (Ok(_), Some(room)) if room < ROOM => {
                Err(format!("`{}` has only {} left", folder.display(), readable(room)))
            }
            (Ok(_), Some(room)) => Ok(format!("`{}`, {} free", folder.display(), readable(room))),
            (Ok(_), None) => Ok(format!("`{}`", folder.display())),
        };
        Finding { what, help: if found.is_err() { other } else { None }, found, value }
    }

    /// Compares the bits of a shipped model's logits with the stored ones, which every processor with kernels computes.
    fn bits(arguments: &Arguments, model: &Path, invocation: &Invocation) -> Result<Finding, Error> {
        let name = model.file_name().unwrap_or_default();
        let stored = Fingerprint::SHIPPED.iter().find(|(shipped, _)| *shipped == name);
        let Some((_, expected)) = stored else {
            return Err(usage(format!(
                "`--model` is `{}`, expected the folder of a model that comes with Tracewright: {}",
                model.display(),
                Fingerprint::SHIPPED.map(|(name, _)| format!("`{name}`")).join(" or ")
            ))
            .into());
        };
        let options = OpenOptions { read: invocation.read, ..OpenOptions::default() };
        let mut opening = Opening::read(model, options)?;
        let text = FingerprintText::new(&mut opening, None)?;
        let found = text.of(&load::open(opening, &arguments.compile, &invocation.interrupt)?)?.to_string();
        let is_same = found == *expected;
        let value = json!({ "fingerprint": found, "expected": expected });
        let help =
            "this machine computes other bits than others; please report the output of `doctor --json`";
        Ok(Finding {
            what: "bits",
            found: if is_same { Ok(found) } else { Err(format!("{found}, expected {expected}")) },
            help: (!is_same).then(|| help.to_owned()),
            value,
        })
    }

    /// Uses the nearest parent folder that exists.
    fn room(folder: &Path) -> Option<u64> {
        #[cfg(unix)]
        {
            let there = folder.ancestors().map(PathBuf::from).find(|folder| folder.exists())?;
            let disk = rustix::fs::statvfs(&there).ok()?;
            Some(disk.f_bavail * disk.f_frsize)
        }
        #[cfg(not(unix))]
        {
            let _ = folder;
            None
        }
    }

    fn memory() -> Finding {
        let memory = Memory::of_machine();
        Finding {
            what: "memory",
            found: Ok(memory.as_ref().map_or("the system does not report it".into(), |memory| {
                format!("{}, of which {} are free", readable(memory.total), readable(memory.available))
            })),
            help: Some("`tracewright plan MODEL_DIR` reports the memory that a model needs".into()),
            value: memory.map_or(
                Value::Null,
                |memory| json!({ "total_bytes": memory.total, "available_bytes": memory.available }),
            ),
        }
    }
}
