//! `tracewright models` lists the models of the Hugging Face cache, and downloads models into this cache.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use clap::Args;
use console::{ConsoleError, hub, print, usage};
use hub::{CachedModel, CachedSnapshot, Fetched, HubError, ModelName};
use serde_json::{Value, json};
use tracewright::footprint::readable;

use crate::Invocation;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::progress;

#[derive(Args)]
pub struct Arguments {
    /// Download the newest commit of these models: `ORG/NAME`, `ORG/NAME:FILE.gguf` or `ORG/NAME@REVISION`
    #[arg(long, value_name = "NAME", num_args = 1..)]
    fetch: Vec<String>,
    /// Print one JSON object on stdout instead of a line for each model
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// Downloads the named models and prints their paths, or lists the models in the cache.
    pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
        let hub = hub()?;
        if self.fetch.is_empty() {
            let models = hub.models()?;
            let text = if self.json {
                format!("{}\n", json(&hub.cache, &models))
            } else {
                table(&hub.cache, &models)
            };
            return Ok(print(&text)?);
        }
        let name = |text: &String| {
            let expected = "expected `ORG/NAME`, `ORG/NAME@REVISION` or `ORG/NAME:FILE`";
            ModelName::parse(text).ok_or_else(|| usage(format!("`{text}` is not a model name, {expected}")))
        };
        let names = self.fetch.iter().map(name).collect::<Result<Vec<_>, _>>()?;
        let fetched = |name| Ok(download(&name, true, &invocation.interrupt)?.display().to_string());
        let paths = names.into_iter().map(fetched).collect::<Result<Vec<_>, Error>>()?;
        let text = if self.json { json!({ "paths": paths }).to_string() } else { paths.join("\n") };
        Ok(print(&format!("{text}\n"))?)
    }
}

/// A name on the hub that is not in the cache is downloaded.
pub fn resolved(model: &Path, interrupt: &Interrupt) -> Result<PathBuf, Error> {
    match console::resolved(model) {
        Err(ConsoleError::NotDownloaded { name }) => download(&name, false, interrupt),
        resolved => Ok(resolved?),
    }
}

/// The next run continues an interrupted download.
fn download(name: &ModelName, newest: bool, interrupt: &Interrupt) -> Result<PathBuf, Error> {
    let hub = hub()?;
    let bar = progress::bytes("downloading", 0);
    let (shown, name) = (bar.clone(), name.clone());
    let work = move || -> Result<PathBuf, HubError> {
        let mut begins = true;
        let mut watch = |at: Fetched<'_>| {
            if std::mem::take(&mut begins) {
                shown.suspend(|| {
                    say!("downloading {name} from {} into {}", hub.endpoint, hub.cache.display())
                });
            }
            shown.set_length(at.total);
            shown.set_position(at.done);
            ControlFlow::Continue(())
        };
        if newest { hub.update(&name, &mut watch) } else { hub.fetch(&name, &mut watch) }
    };
    let path = interrupt.or(work);
    bar.finish_and_clear();
    Ok(path??)
}

fn format(snapshot: &CachedSnapshot) -> &'static str {
    let has = |end: &str| snapshot.files.iter().any(|file| file.ends_with(end));
    match (has(".safetensors"), has(".gguf")) {
        (true, true) => "safetensors, gguf",
        (true, false) => "safetensors",
        (false, true) => "gguf",
        (false, false) => "no weights",
    }
}

fn table(cache: &Path, models: &[CachedModel]) -> String {
    let mut text = String::new();
    for model in models {
        for snapshot in &model.snapshots {
            let revision = match snapshot.revisions.first() {
                Some(revision) => revision.clone(),
                None => snapshot.commit.chars().take(7).collect(),
            };
            let size = readable(snapshot.bytes);
            text += &format!("{:44} {revision:10} {size:>10}  {}\n", model.repository, format(snapshot));
        }
    }
    if text.is_empty() {
        text = format!("no models in {}\n", cache.display());
    }
    text
}

fn json(cache: &Path, models: &[CachedModel]) -> Value {
    let snapshot = |one: &CachedSnapshot| {
        json!({
            "commit": one.commit,
            "revisions": one.revisions,
            "path": one.path.display().to_string(),
            "files": one.files,
            "bytes": one.bytes,
        })
    };
    let model = |one: &CachedModel| {
        let snapshots: Vec<Value> = one.snapshots.iter().map(snapshot).collect();
        json!({ "name": one.repository, "snapshots": snapshots })
    };
    json!({ "cache": cache.display().to_string(), "models": models.iter().map(model).collect::<Value>() })
}
