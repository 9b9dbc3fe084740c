//! From a directory to a network that can be called: an export is loaded, a checkpoint is baked and compiled first.

use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io};

use tracewright::Plan;
use tracewright::errors::WithPath as _;
use tracewright::export::{self, Manifest};
use tracewright::files::{FileKind, NewFile};
use tracewright::generate::{GenerateError, Network, check_tokens};
use tracewright::irpa::{Checkpoint, Gguf};
use tracewright::load::{LoadOptions, load};
use tracewright::models::Architecture;
use tracewright::runtime::{Device, Runtime};
use tracewright::targets::DeviceName;
use tracewright::trace::Signature;

use crate::arguments::{Kernels, Quant, RunArguments};
use crate::build::Tunings;
use crate::error::Error;
use crate::limit::{Limit, SetBy};
use crate::{Interrupt, ReadModel, build, commands, open, verify};

/// What a model directory holds.
pub enum Source {
    /// What `export` wrote, and the longest context that its model was made for, if its configuration says so.
    Export(Box<Manifest>, Option<usize>),
    /// A Hugging Face checkpoint or a GGUF file.
    Checkpoint(Box<dyn Architecture>),
}

/// A network, where it runs, and how long it took to get.
pub struct Loaded {
    pub network: Network,
    pub runtime: Runtime,
    pub compile: Duration,
    pub load: Duration,
    pub limit: Limit,
}

/// What a network is loaded for.
pub struct Wanted<'a> {
    /// The tokens to begin with.
    pub prompt: &'a [u32],
    /// How many may follow.
    pub new_tokens: usize,
    /// Whether the logits after each token of the prompt are wanted.
    pub all_positions: bool,
    /// Whether the equal commands of IREE's own programs are.
    pub commands: bool,
}

impl Source {
    pub fn read(folder: &Path, arguments: &RunArguments, read: ReadModel) -> Result<Self, Error> {
        let model = &arguments.model_arguments;
        if !Gguf::is_at(folder) {
            is_folder(folder).with_path("open the model directory", folder)?;
        }
        if let Some(manifest) = Manifest::read(folder)? {
            check_as_exported(&manifest, arguments)?;
            let longest = read(folder, &[]).ok().map(|network| network.max_context());
            return Ok(Self::Export(Box::new(manifest), longest));
        }
        let (network, _) = open(read, folder, &model.network.allow_config_key)?;
        Ok(Self::Checkpoint(network))
    }

    pub fn load(
        self,
        folder: &Path,
        arguments: &RunArguments,
        wanted: &Wanted<'_>,
        interrupt: &Interrupt,
    ) -> Result<Loaded, Error> {
        let network = match self {
            Self::Export(manifest, longest) => {
                let start = Instant::now();
                let made_for = manifest.device()?;
                let name = arguments.device.device.unwrap_or(DeviceName { kind: made_for, ordinal: 0 });
                if name.kind != made_for {
                    let what = format!(
                        "`--device` is {name}, but the model was exported for {made_for}; leave the option out, or export again with \
                         `--target {}`",
                        name.kind
                    );
                    return Err(Error::Usage { what });
                }
                let runtime = Runtime::new(Device::of(name, arguments.threads))?;
                let (program, archive) = export::open(folder, &manifest, &runtime)?;
                if arguments.verify {
                    verify::content(&archive, interrupt)?;
                }
                let signatures = manifest.signatures(folder)?;
                if wanted.commands {
                    let [vmfb, archive] =
                        [export::names::MODULE, export::names::ARCHIVE].map(|name| folder.join(name));
                    print_calls(&vmfb, &archive, &signatures, wanted.prompt);
                }
                let network = Network::new(&runtime, &program, &signatures)?;
                let limit = Limit { tokens: network.context(), longest, set_by: SetBy::Export };
                check_prompt(wanted.prompt, limit, network.vocabulary())?;
                let compile = Duration::ZERO;
                return Ok(Loaded { network, runtime, compile, load: start.elapsed(), limit });
            }
            Self::Checkpoint(network) => network,
        };
        let model = &arguments.model_arguments;
        let needed =
            Plan::context_for(wanted.prompt.len().saturating_add(wanted.new_tokens), network.max_context());
        let (device, target) = arguments.device.choose(arguments.threads)?;
        let plan = Plan { target, ..model.plan(network, model.context.or(Some(needed)))? };
        let limit = Limit::of(&plan);
        check_prompt(wanted.prompt, limit, plan.model.vocabulary())?;
        let entries = |plan: &Plan| match wanted.all_positions {
            true => plan.entry_points(),
            false => plan.steps(),
        };
        let traced = plan.record(&entries(&plan))?;
        let checkpoint = plan.named(Checkpoint::open(folder)?);
        let ignorable = plan.model.ignorable();
        let tuning = arguments.tuning.source.as_ref();
        let mut compiler = None;
        let loaded = build::load(&arguments.compile, (device, plan.target.clone()), interrupt, |options| {
            compiler = Some(options.tools.compiler.clone());
            let tools = (options.tools.compiler, options.tools.cache);
            let tuning = Tunings::read(tuning, &plan.target, tools)?.of(Some(&plan))?;
            let chunk = plan.chunk;
            let plan = plan.tuned(tuning, model.chunk);
            let traced = if plan.chunk == chunk { traced } else { plan.record(&entries(&plan))? };
            let options = LoadOptions {
                target: plan.target,
                rules: plan.rules,
                weights: plan.weights,
                ignorable,
                ..options
            };
            Ok(load(&traced, &checkpoint, options)?)
        })?;
        if arguments.verify {
            verify::content(&loaded.archive, interrupt).map_err(Error::Cached)?;
        }
        if let Some(compiler) = compiler.filter(|_| wanted.commands) {
            let folder = build::cache_folder(&arguments.compile)?.join("commands");
            fs::create_dir_all(&folder).with_path("create", &folder)?;
            let module = &loaded.module;
            let named = folder.join(&blake3::hash(module.text.as_bytes()).to_hex()[..16]);
            let [text, vmfb] = ["mlir", "vmfb"].map(|extension| named.with_extension(extension));
            NewFile::write(&text, FileKind::CACHED, module.text.as_bytes())?;
            say!("{}", commands::compile(&compiler, &loaded.options, &text, &vmfb));
            print_calls(&vmfb, loaded.archive.path(), &module.signatures, wanted.prompt);
        }
        Ok(Loaded {
            network: loaded.program.network()?,
            runtime: loaded.runtime,
            compile: loaded.compile,
            load: loaded.load,
            limit,
        })
    }
}

/// Whether the tokens of a prompt fit into a network, and each is one of its vocabulary.
pub fn check_prompt(prompt: &[u32], limit: Limit, vocabulary: usize) -> Result<(), Error> {
    check_tokens(prompt, 0, limit.tokens, vocabulary).map_err(|error| match error {
        GenerateError::TooLong { length, .. } => {
            Error::TooLong { what: "the prompt".into(), found: length, limit }
        }
        error => error.into(),
    })
}

/// Whether a model can be in there.
fn is_folder(path: &Path) -> io::Result<()> {
    if path.is_file() {
        let what = "it is a file; name the folder of the model, or a GGUF file";
        return Err(io::Error::new(io::ErrorKind::NotADirectory, what));
    }
    fs::read_dir(path).map(drop)
}

/// Says what calls each entry point once, with the tokens of the prompt.
fn print_calls(vmfb: &Path, archive: &Path, entries: &[Signature], prompt: &[u32]) {
    entries.iter().for_each(|entry| say!("{}", commands::call(vmfb, archive, entry, prompt)));
}

/// An export is what it is: asking for something else is a mistake, not a wish.
fn check_as_exported(manifest: &Manifest, asked: &RunArguments) -> Result<(), Error> {
    if asked.device.target.is_some() {
        let what = "`--target` is for what is compiled now; leave the option out, or export again with it";
        return Err(Error::Usage { what: what.into() });
    }
    if asked.tuning.source.is_some() {
        let what = "`--tuning` is for what is compiled now; leave the option out, or export again with it";
        return Err(Error::Usage { what: what.into() });
    }
    let asked = &asked.model_arguments;
    let quant = manifest.quant.as_deref().unwrap_or("no rounding");
    let kernels = if manifest.kernels { Kernels::On } else { Kernels::Off };
    let options = [
        ("dtype", asked.network.dtype.map(|dtype| dtype.to_string()), manifest.dtype.clone()),
        ("context", asked.context.map(|n| n.to_string()), manifest.context.to_string()),
        ("chunk", asked.chunk.map(|n| n.to_string()), manifest.chunk.to_string()),
        ("simplify", asked.network.simplify.map(|rules| rules.to_string()), manifest.simplify.clone()),
        (
            "quant",
            asked.network.quant.map(|Quant(format)| format.map_or("no rounding", |f| f.word()).to_owned()),
            quant.to_owned(),
        ),
        ("kernels", asked.network.kernels.map(|kernels| kernels.to_string()), kernels.to_string()),
        ("layout", asked.network.layout.map(|layout| layout.to_string()), manifest.layout.clone()),
    ];
    for (name, asked, exported) in options {
        if let Some(asked) = asked.filter(|asked| *asked != exported) {
            let what = format!(
                "`--{name}` is {asked}, but the model was exported with {exported}; leave the option out, or export again"
            );
            return Err(Error::Usage { what });
        }
    }
    Ok(())
}
