//! `tracewright verify` compares the content of archives and exports with the stored hashes, and the numbers of an
//! archive with those of a model.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use console::{CommandError as _, print, usage};
use error_codes::AnyCoded;
use serde_json::{Value, json};
use tracewright::bake::{Compared, Equal};
use tracewright::errors::WithCauses;
use tracewright::export::names;
use tracewright::export::xla;
use tracewright::irpa::{Archive, ArchiveError, Damage, Gguf, ModelFiles, Verified, Watch};

use crate::arguments::LoraArguments;
use crate::checkpoint::open;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::{Invocation, progress};

#[derive(Args)]
pub struct Arguments {
    /// Archive file or export directory
    #[arg(value_name = "FILE.irpa|EXPORT_DIR")]
    pub path: PathBuf,
    /// Compare the archive's numbers with the numbers of this GGUF file or model directory, bit by bit
    #[arg(long, value_name = "MODEL")]
    pub against: Option<PathBuf>,
    #[command(flatten)]
    pub lora: LoraArguments,
    /// Ignore a key of the model's config.json that Tracewright does not know; may be repeated
    #[arg(long, value_name = "KEY", requires = "against")]
    pub allow_config_key: Vec<String>,
    /// Print one JSON object on stdout instead of a line of text
    #[arg(long)]
    pub json: bool,
}

/// The maximum number of tensors without a hash whose names `verify` prints.
const NAMED: usize = 3;

impl Arguments {
    pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
        if self.against.is_none() && !self.lora.lora.is_empty() {
            return Err(usage("`--lora` changes the model of `--against`; name a model").into());
        }
        let interrupt = &invocation.interrupt;
        let start = Instant::now();
        let verified = compare(self, interrupt);
        let seconds = start.elapsed().as_secs_f64();
        let (verified, against) = match (verified, &self.against) {
            (Ok(verified), Some(model)) => match self.numbers(invocation, model) {
                Ok(compared) => (Ok(verified), Some(compared)),
                Err(error) => (Err(error), None),
            },
            (verified, _) => (verified, None),
        };
        // Of an export the program was compared at least.
        let compared = |verified: &Verified| self.path.is_dir() || verified.entries > 0;
        let said = match (self.json, &verified) {
            (true, Ok(verified)) => Some(json(self, Ok(verified), against.as_ref(), seconds).to_string()),
            (false, Ok(verified)) if compared(verified) => {
                Some(line(self, verified, seconds) + &against.as_ref().map_or_else(String::new, lines))
            }
            (true, Err(Error::Interrupted)) => None,
            (true, Err(error)) => Some(json(self, Err(error), None, seconds).to_string()),
            _ => None,
        };
        let written = said.map_or(Ok(()), |said| print(&format!("{said}\n")));
        if compared(&verified?) {
            Ok(written?)
        } else {
            Err(Error::WithoutHashes { path: self.path.clone() })
        }
    }
}

impl Arguments {
    /// Compares the numbers of the archive with those of the model.
    fn numbers(&self, invocation: &Invocation, model: &Path) -> Result<Compared, Error> {
        let path = if self.path.is_dir() { self.path.join(names::ARCHIVE) } else { self.path.clone() };
        let archive = Archive::open(&path)?;
        let (_, checkpoint) = open(invocation.read, model, &self.allow_config_key, &self.lora)?;
        let bar = progress::bytes("comparing", 0);
        let mut watch = progress::watch(&bar, &invocation.interrupt);
        let compared = tracewright::bake::compare(&archive, &checkpoint, Some(&mut watch));
        bar.finish_and_clear();
        Ok(compared?)
    }
}

/// `Q4_K as q4_k: 45 tensors, 23592960 numbers: equal bit by bit`.
fn lines(compared: &Compared) -> String {
    let mut lines = String::new();
    for ((from, to), Equal { entries, numbers, rounded }) in &compared.types {
        let equal = if *rounded { "equal after rounding" } else { "equal bit by bit" };
        lines += &format!("\n{from} as {to}: {entries} tensors, {numbers} numbers: {equal}");
    }
    if !compared.unread.is_empty() {
        let count = compared.unread.len();
        lines += &format!(
            "\nnot in the archive: {count} tensors of the model: `{}`",
            compared.unread.join("`, `")
        );
    }
    lines
}

fn compare(arguments: &Arguments, interrupt: &Interrupt) -> Result<Verified, Error> {
    let path = &arguments.path;
    Ok(match path.is_dir() {
        true if xla::is_export(path) => shown(interrupt, |watch| xla::verify(path, Some(watch)))?,
        true => export(arguments, interrupt)?,
        // Whether it is whole is all that it can say of itself.
        false if Gguf::is_at(path) => ModelFiles::from(path).gguf().map(|_| Verified::default())?,
        false => content(&Archive::open(path)?, interrupt)?,
    })
}

pub fn content(archive: &Archive, interrupt: &Interrupt) -> Result<Verified, ArchiveError> {
    shown(interrupt, |watch| archive.verify_content(Some(watch)))
}

fn export(arguments: &Arguments, interrupt: &Interrupt) -> Result<Verified, Error> {
    let _ = (arguments, interrupt);
    with_iree!(
        "verify EXPORT_DIR",
        Ok(shown(interrupt, |watch| tracewright::export::verify(&arguments.path, Some(watch)))?)
    )
}

fn shown<T>(interrupt: &Interrupt, verify: impl FnOnce(Watch<'_>) -> T) -> T {
    let bar = progress::bytes("verifying", 0);
    let verified = verify(&mut progress::watch(&bar, interrupt));
    bar.finish_and_clear();
    verified
}

/// `the program and 15 tensors, 485520 bytes: as they were written (3.1 GB/s)`.
fn line(arguments: &Arguments, verified: &Verified, seconds: f64) -> String {
    let Verified { entries, bytes, without_hash } = verified;
    let program = if arguments.path.is_dir() { "the program and " } else { "" };
    let speed = *bytes as f64 / seconds / 1e9;
    let mut line =
        format!("{program}{entries} tensors, {bytes} bytes: as they were written ({speed:.1} GB/s)");
    if !without_hash.is_empty() {
        let more = if without_hash.len() > NAMED { ", …" } else { "" };
        let named = without_hash[..without_hash.len().min(NAMED)].join("`, `");
        line += &format!("; {} carry no hash and were not compared: `{named}`{more}", without_hash.len());
    }
    line
}

/// After an error, the number of verified bytes is unknown, and null.
fn json(
    arguments: &Arguments,
    verified: Result<&Verified, &Error>,
    against: Option<&Compared>,
    seconds: f64,
) -> Value {
    let (verified, error) = (verified.ok(), verified.err());
    let damage = |damage: &Damage| {
        let Damage { name, offset, expected, found } = damage;
        json!({ "name": name, "offset": offset, "expected": expected, "found": found })
    };
    json!({
        "path": arguments.path.to_string_lossy(),
        "tensors": verified.map(|verified| verified.entries),
        "bytes": verified.map(|verified| verified.bytes),
        "without_hash": verified.map(|verified| &verified.without_hash),
        "damaged": error.map_or(&[][..], damaged).iter().map(damage).collect::<Value>(),
        "against": against.map(|Compared { types, unread }| json!({
            "types": types.iter().map(|((from, to), counted)| json!({
                "from": from, "to": to, "tensors": counted.entries, "numbers": counted.numbers, "rounded": counted.rounded,
            })).collect::<Value>(),
            "unread": unread,
        })),
        "error": error.map(|error| json!({
            "code": error.code().name(), "message": WithCauses(error).to_string(),
        })),
        "seconds": seconds,
    })
}

fn damaged(error: &Error) -> &[Damage] {
    match error.library().and_then(AnyCoded::find) {
        Some(ArchiveError::Content { damaged, .. }) => damaged,
        _ => &[],
    }
}
