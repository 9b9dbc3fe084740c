//! Opens the models, and runs the server.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serve::{AnswerDefaults, ApiKeys, ServeError, ServeOptions, ServedModel, Server, ServerEvent};
use tracewright::model::Opening;
use tracewright::{GenerateOptions, Model, OpenOptions};

use super::config::{self, ConfiguredModel};
use super::{Arguments, ByteCount, NamedModel};
use crate::Invocation;
use crate::commands::models::resolved;
use crate::error::Error;
use crate::load;

impl Arguments {
    pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
        let interrupt = &invocation.interrupt;
        if self.config.is_some() {
            interrupt.reload_on_hangup();
        }
        let keys = self.api_key_file.as_deref().map(ApiKeys::read).transpose()?;
        let configured = self.configured()?;
        // A port in use is reported before anything slow begins.
        let server = Server::bind(&self.host, self.port)?;
        let [first, others @ ..] = configured.as_slice() else { return Ok(()) };
        let opening = first.read(invocation)?;
        let (opening, defaults) = load::prepared(opening, &first.arguments, interrupt, prepare)?;
        let memory_limit = self.memory_limit.map(|ByteCount(bytes)| bytes);
        // The server would refuse the model, and reports this. Without a place, its memory would not be counted.
        let is_small = |limit: u64| opening.memory().is_ok_and(|bytes| bytes <= limit);
        let model = if memory_limit.is_none_or(is_small) {
            Some(load::open(opening, &first.arguments.run.build.compile, interrupt)?)
        } else {
            None
        };
        // The first request takes the model that is open. After the server has unloaded it, it is opened again.
        let opened = Mutex::new(model);
        let first = first.on_demand(invocation, &defaults);
        let take = move || opened.lock().unwrap_or_else(PoisonError::into_inner).take();
        let open = Box::new(move || take().map_or_else(&first.open, Ok));
        let first = ServedModel { open, ..first };
        let later = others.iter().map(|model| model.on_demand(invocation, &defaults));
        let models = [first].into_iter().chain(later).collect();
        let options = ServeOptions {
            keys,
            allowed_origins: self.allow_origin.clone(),
            allowed_hosts: self.allow_host.clone(),
            open_objects: self.open_objects,
            memory_limit,
            drain: Duration::from_secs(self.drain.into()),
            max_body: (self.max_body as usize) << 20,
            ..ServeOptions::default()
        };
        say!("listening on http://{}", server.address());
        let (stop, arguments, invocation) = (interrupt.clone(), self.clone(), invocation.clone());
        let next = move || {
            if stop.is_set() {
                return ServerEvent::Stop;
            }
            if !stop.take_hangup() {
                return ServerEvent::None;
            }
            match arguments.configured() {
                Ok(models) => {
                    say!("serving {} models of the changed file", models.len());
                    let served = models.iter().map(|model| model.on_demand(&invocation, &defaults));
                    ServerEvent::Models(served.collect())
                }
                Err(error) => {
                    tracing::warn!("the models stay as they are: {error}");
                    ServerEvent::None
                }
            }
        };
        server.run(models, options, next)?;
        // It was asked to end, and did.
        interrupt.clear();
        Ok(())
    }

    /// Returns the models of the command line or of the file.
    fn configured(&self) -> Result<Vec<ConfiguredModel>, ServeError> {
        let models = match &self.config {
            Some(path) => config::read(path, self)?,
            None => {
                let model = |named: &NamedModel| ConfiguredModel {
                    named: named.clone(),
                    aliases: Vec::new(),
                    settings: String::new(),
                    arguments: self.clone(),
                };
                self.models.iter().map(model).collect()
            }
        };
        let of_adapters = |model: &ConfiguredModel| {
            model.arguments.lora_adapter.iter().map(|adapter| adapter.name.clone()).collect::<Vec<_>>()
        };
        let names = models
            .iter()
            .flat_map(|model| [vec![model.named.name()], model.aliases.clone(), of_adapters(model)].concat());
        serve::check_names(&names.collect::<Vec<_>>())?;
        Ok(models)
    }
}

impl ConfiguredModel {
    fn read(&self, invocation: &Invocation) -> Result<Opening, Error> {
        let arguments = &self.arguments;
        let path = resolved(&self.named.path, &invocation.interrupt)?;
        let program = arguments.isolate_templates.then(|| load::template_program(invocation)).transpose()?;
        let mut opening =
            load::read_with(&path, &arguments.run, invocation, program, |options| OpenOptions {
                lora_adapters: arguments.lora_adapter.clone(),
                max_loras: arguments.max_loras.map(NonZeroUsize::get),
                max_lora_rank: arguments.max_lora_rank.map(NonZeroUsize::get),
                ..options
            })?;
        if opening.sentence().is_some() {
            // Both are for models that continue text. An embedding model has its own limit of a text.
            (opening.options.context, opening.options.chunk) = (None, None);
        }
        opening.options.images = opening.network().is_some_and(|network| network.vision.is_some());
        if opening.transcribes() {
            opening.options.context = None;
        }
        // The encoder of a speech model computes the windows of all slots, also of empty ones.
        opening.options.slots = if opening.transcribes() { 1 } else { arguments.slots.get() };
        opening.options.speculate = arguments.sampling.speculate.clone();
        Ok(opening)
    }

    /// The options of the model's answers. `first` are the options of the first model, for which the flags were checked.
    fn defaults(&self, first: &GenerateOptions) -> AnswerDefaults {
        let (flags, first) = (self.arguments.sampling.clone(), first.clone());
        Arc::new(move |model| GenerateOptions {
            follow: first.follow.clone(),
            dry_breakers: flags.given_breakers(),
            whitespace_flexible: first.whitespace_flexible,
            ..flags.over(model).unwrap_or_else(|_| first.clone())
        })
    }

    /// Opened when a request names the model.
    fn on_demand(&self, invocation: &Invocation, first: &GenerateOptions) -> ServedModel {
        let (model, of_memory) = (self.clone(), (self.clone(), invocation.clone()));
        let invocation = invocation.clone();
        let open = move || -> Result<Model, Error> {
            let opening = model.read(&invocation)?;
            say!("loading {}", model.named.path.display());
            load::open(opening, &model.arguments.run.build.compile, &invocation.interrupt)
        };
        let memory = move || -> Result<u64, Error> {
            let (model, invocation) = &of_memory;
            Ok(model.read(invocation)?.memory()?)
        };
        let keep_alive = self.arguments.keep_alive.map(|seconds| Duration::from_secs(seconds.into()));
        ServedModel {
            name: self.named.name(),
            aliases: self.aliases.clone(),
            settings: self.settings.clone(),
            defaults: self.defaults(first),
            adapters: self.arguments.lora_adapter.clone(),
            keep_alive,
            open: Box::new(move || open().map_err(|error| Box::new(error).into())),
            memory: Box::new(move || memory().map_err(|error| Box::new(error).into())),
        }
    }
}

impl NamedModel {
    fn name(&self) -> String {
        if let Some(name) = &self.name {
            return name.clone();
        }
        let given = self.path.to_string_lossy();
        if !self.path.exists() {
            return given.into_owned();
        }
        let whole = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        let name = if whole.is_dir() { whole.file_name() } else { whole.file_stem() };
        name.map_or(given.clone(), |name| name.to_string_lossy()).into_owned()
    }
}

/// Checked before the slow compilation begins.
fn prepare(opening: &Opening, arguments: &Arguments) -> Result<GenerateOptions, Error> {
    let model: &Path = arguments.models.first().map_or(Path::new(""), |model| &model.path);
    let options = arguments.sampling.options(model, opening)?;
    arguments.sampling.check(opening, &options)?;
    Ok(options)
}
