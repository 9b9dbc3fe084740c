//! `tracewright serve` answers requests over HTTP, with the interfaces of OpenAI, Anthropic and Ollama.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use crate::arguments::{RunArguments, batch};
use crate::sampling::SamplingArguments;

#[derive(Args, Clone)]
pub struct Arguments {
    /// Hugging Face model directory, GGUF file, export, or name of a model on the Hugging Face hub.
    /// The server loads the first model when the server starts, and each other model when a request
    /// names the model. `NAME=` before a model sets the name that requests use
    #[arg(required = true, value_name = "[NAME=]MODEL")]
    pub models: Vec<NamedModel>,
    /// Address to listen on; 0.0.0.0 selects all addresses of this machine
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 selects any free port
    #[arg(long, default_value_t = 8080)]
    pub port: u16,
    /// Number of answers that each model generates in parallel; further requests wait
    #[arg(long, visible_alias = "parallel", value_name = "N", value_parser = batch, default_value = "4")]
    pub slots: NonZeroUsize,
    /// File with one API key on each line; the server rejects requests without one of these keys
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Allow web pages of this origin to use the server, such as `http://localhost:5173`, or `*`
    /// for all origins; may be repeated
    #[arg(long, value_name = "ORIGIN")]
    pub allow_origin: Vec<String>,
    /// Accept requests to this host name, such as the name that a proxy in front of the server keeps, or `*` for all
    /// names; may be repeated
    #[arg(long, value_name = "NAME")]
    pub allow_host: Vec<String>,
    /// Time in seconds without requests after which the server unloads a model; the next request loads it again
    #[arg(long, value_name = "SECONDS")]
    pub keep_alive: Option<u32>,
    /// Time in seconds that running answers have after Ctrl-C or SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub drain: u32,
    /// Let answers have keys that a JSON schema does not declare, unless the schema or `strict` forbids them
    #[arg(long)]
    pub open_objects: bool,
    /// Maximum size of the body of a request, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub max_body: u32,
    /// Render each chat template in a separate process, for models that you do not trust
    #[arg(long)]
    pub isolate_templates: bool,
    #[command(flatten)]
    pub sampling: SamplingArguments,
    #[command(flatten)]
    pub run: RunArguments,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedModel {
    name: Option<String>,
    path: PathBuf,
}

impl FromStr for NamedModel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = text.split_once('=').filter(|(name, _)| !name.contains('/'));
        match named {
            Some(("", _)) => Err("expected a name in front of `=`".into()),
            Some((_, "")) => Err("expected a model behind `=`".into()),
            Some((name, path)) => Ok(Self { name: Some(name.into()), path: path.into() }),
            None => Ok(Self { name: None, path: text.into() }),
        }
    }
}

#[cfg(feature = "iree")]
mod run {
    use std::path::Path;
    use std::sync::{Arc, Mutex, PoisonError};
    use std::time::Duration;

    use serve::{ApiKeys, ServeOptions, ServedModel, Server};
    use tracewright::model::Opening;
    use tracewright::{GenerateOptions, Model};

    use super::{Arguments, NamedModel};
    use crate::Invocation;
    use crate::commands::models::resolved;
    use crate::error::Error;
    use crate::load;

    impl Arguments {
        pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
            let interrupt = &invocation.interrupt;
            let keys = self.api_key_file.as_deref().map(ApiKeys::read).transpose()?;
            serve::check_names(&self.models.iter().map(NamedModel::name).collect::<Vec<_>>())?;
            // A port in use is reported before anything slow begins.
            let server = Server::bind(&self.host, self.port)?;
            let [first, others @ ..] = self.models.as_slice() else { return Ok(()) };
            let opening = self.read(first, invocation)?;
            let (opening, defaults) = load::prepared(opening, self, interrupt, prepare)?;
            let model = load::open(opening, &self.run.build.compile, interrupt)?;
            // The first request takes the model that is open. After the server has unloaded it, it is opened again.
            let opened = Mutex::new(Some(model));
            let ServedModel { name, open } = self.on_demand(first, invocation);
            let take = move || opened.lock().unwrap_or_else(PoisonError::into_inner).take();
            let first = ServedModel { name, open: Box::new(move || take().map_or_else(&open, Ok)) };
            let later = others.iter().map(|model| self.on_demand(model, invocation));
            let models = [first].into_iter().chain(later).collect();
            let flags = self.sampling.clone();
            let options = ServeOptions {
                // The flags were checked for the first model.
                defaults: Arc::new(move |model| GenerateOptions {
                    follow: defaults.follow.clone(),
                    dry_breakers: defaults.dry_breakers.clone(),
                    whitespace_flexible: defaults.whitespace_flexible,
                    ..flags.over(model).unwrap_or_else(|_| defaults.clone())
                }),
                keys,
                allowed_origins: self.allow_origin.clone(),
                allowed_hosts: self.allow_host.clone(),
                open_objects: self.open_objects,
                keep_alive: self.keep_alive.map(|seconds| Duration::from_secs(seconds.into())),
                drain: Duration::from_secs(self.drain.into()),
                max_body: (self.max_body as usize) << 20,
                ..ServeOptions::default()
            };
            say!("listening on http://{}", server.address());
            let stop = interrupt.clone();
            server.run(models, options, move || stop.is_set())?;
            // It was asked to end, and did.
            interrupt.clear();
            Ok(())
        }

        fn read(&self, model: &NamedModel, invocation: &Invocation) -> Result<Opening, Error> {
            let path = resolved(&model.path, &invocation.interrupt)?;
            let program = self.isolate_templates.then(|| load::template_program(invocation)).transpose()?;
            let mut opening = load::read_any(&path, &self.run, invocation, program)?;
            if opening.sentence().is_some() {
                // Both are for models that continue text. An embedding model has its own limit of a text.
                (opening.options.context, opening.options.chunk) = (None, None);
            }
            opening.options.images = opening.network().is_some_and(|network| network.vision.is_some());
            if opening.transcribes() {
                opening.options.context = None;
            }
            // The encoder of a speech model computes the windows of all slots, also of empty ones.
            opening.options.slots = if opening.transcribes() { 1 } else { self.slots.get() };
            opening.options.speculate = self.sampling.speculate.clone();
            Ok(opening)
        }

        /// Opened when a request names the model.
        fn on_demand(&self, model: &NamedModel, invocation: &Invocation) -> ServedModel {
            let (arguments, named) = (self.clone(), model.clone());
            let invocation = invocation.clone();
            let open = move || -> Result<Model, Error> {
                let opening = arguments.read(&named, &invocation)?;
                say!("loading {}", named.path.display());
                load::open(opening, &arguments.run.build.compile, &invocation.interrupt)
            };
            let open = move || open().map_err(|error| Box::new(error).into());
            ServedModel { name: model.name(), open: Box::new(open) }
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
        let model: &Path = &arguments.models[0].path;
        let options = arguments.sampling.options(model, opening)?;
        arguments.sampling.check(opening, &options)?;
        Ok(options)
    }
}
