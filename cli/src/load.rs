//! From the arguments of a command to a model that is open.

use std::fs;
use std::path::Path;

use console::{KernelUse, Layout, ModelArguments, NetworkArguments, Quant, usage, warn_of_head};
use tracewright::build::LoadError;
use tracewright::errors::WithPath as _;
use tracewright::export::{self, IreeManifest};
use tracewright::files::{FileKind, NewFile};
use tracewright::generate::{GenerateError, check_tokens};
use tracewright::lower::Quantization;
use tracewright::model::{BuildInfo, OpenWarning, Opening, TemplateProgram, TuningSource, WatchOpen};
use tracewright::models::ReadModel;
use tracewright::runtime::Compiler;
use tracewright::targets::Tuning;
use tracewright::tuning::read_tuning;
use tracewright::{GenerateOptions, Model, ModelError, OpenOptions};

use crate::arguments::{self, CompileArguments, DeviceArguments, RunArguments, TuningArguments};
use crate::checkpoint::report_baked;
use crate::commands::VARIABLES;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::limit::{Limit, SetBy};
use crate::{build, iree_tools, progress};

/// Reads the files of a model: what is wrong with them is said before anything slow begins.
pub fn read(
    model: &Path,
    arguments: &RunArguments,
    read: ReadModel,
    interrupt: &Interrupt,
) -> Result<Opening, Error> {
    let ModelArguments { network, context, chunk, kv } = &arguments.model_arguments;
    let options = OpenOptions {
        context: *context,
        chunk: *chunk,
        kv: *kv,
        kernels: network.kernels.map(|kernels| kernels == KernelUse::On),
        device: arguments.device.device,
        target: arguments.device.target.clone(),
        ..network_options(network, &arguments.tuning)?
    };
    let options = OpenOptions {
        threads: arguments.threads,
        verify: arguments.verify,
        read,
        template_program: Some(template_program()?),
        watch: Some(watch(interrupt)),
        ..options
    };
    let path = model.to_owned();
    let mut opening = interrupt.or(move || Opening::read(path, options))??;
    match opening.manifest() {
        Some(manifest) => check_as_exported(manifest, arguments)?,
        None => choose(&mut opening.options, network, &arguments.device)?,
    }
    if opening.sentence().is_some()
        && let Err(embeds) = read(model, &arguments.model_arguments.network.allow_config_key)
    {
        return Err(embeds.into());
    }
    opening.warnings().iter().for_each(warn);
    Ok(opening)
}

/// What `prepare` makes of a model's files and the arguments, unless Ctrl-C comes first.
pub fn prepared<A: Clone + Send + 'static, T: Send + 'static>(
    opening: Opening,
    arguments: &A,
    interrupt: &Interrupt,
    prepare: fn(&Opening, &A) -> Result<T, Error>,
) -> Result<(Opening, T), Error> {
    let arguments = arguments.clone();
    let (opening, prepared) = interrupt.or(move || {
        let prepared = prepare(&opening, &arguments);
        (opening, prepared)
    })?;
    Ok((opening, prepared?))
}

/// Builds the network of a model, with the compiler and the cache that the arguments name.
pub fn open(
    mut opening: Opening,
    arguments: &CompileArguments,
    interrupt: &Interrupt,
) -> Result<Model, Error> {
    let tools = Tools::find(&mut opening, arguments, interrupt)?;
    let model = opening.build().map_err(|error| tools.error(error))?;
    report_build(model.info().build.as_ref());
    interrupt.check()?;
    Ok(model)
}

/// What builds a model. That there is no compiler is told where one is needed: after all that is wrong with the model, and not for
/// an export.
pub struct Tools {
    missing: Option<Error>,
}

impl Tools {
    /// Finds the compiler and the cache that the arguments name.
    pub fn find(
        opening: &mut Opening,
        arguments: &CompileArguments,
        interrupt: &Interrupt,
    ) -> Result<Self, Error> {
        if opening.is_export() {
            return Ok(Self { missing: None });
        }
        opening.options.cache = Some(build::cache_folder(arguments)?);
        match build::compiler(arguments, interrupt) {
            Ok(compiler) => {
                opening.options.compiler = Some(compiler);
                Ok(Self { missing: None })
            }
            Err(error) => {
                // No program has an empty name.
                opening.options.compiler = Some(Compiler::new(""));
                Ok(Self { missing: Some(error) })
            }
        }
    }

    /// Why a model was not built.
    pub fn error(self, error: ModelError) -> Error {
        match (error, self.missing) {
            (ModelError::Load(LoadError::Compile(_)), Some(missing)) => missing,
            (error, _) => error.into(),
        }
    }
}

/// Says what was done to the checkpoint, and which records of the tuner are damaged.
pub fn report_build(build: Option<&BuildInfo>) {
    if let Some(build) = build {
        build::report_damage(&build.damaged);
        build.baked.iter().for_each(report_baked);
    }
}

/// What decides how any network is built, but for kernels and the device.
pub fn network_options(network: &NetworkArguments, tuning: &TuningArguments) -> Result<OpenOptions, Error> {
    Ok(OpenOptions {
        dtype: network.dtype,
        quantize: network.quant.map(|Quant(format)| Quantization::from(format)),
        activations: network.activations,
        rules: network.simplify,
        tuning: match &tuning.source {
            None => None,
            Some(arguments::TuningSource::Measured) => Some(TuningSource::Measured),
            Some(arguments::TuningSource::Usual) => Some(TuningSource::Given(Tuning::default())),
            Some(arguments::TuningSource::File(path)) => Some(TuningSource::Given(read_tuning(path)?)),
        },
        allow_config_keys: network.allow_config_key.clone(),
        ..OpenOptions::default()
    })
}

/// Chooses kernels and the device for what is compiled now.
pub fn choose(
    options: &mut OpenOptions,
    network: &NetworkArguments,
    device: &DeviceArguments,
) -> Result<(), Error> {
    let (device, target) = device.choose_target()?;
    (options.device, options.target) = (Some(device), Some(target));
    options.kernels = Some(network.kernels != Some(KernelUse::Off) && network.layout != Some(Layout::Plain));
    Ok(())
}

/// This program once more, under limits of the system, without what the environment says to this process.
pub fn template_program() -> Result<TemplateProgram, Error> {
    let names = std::env::vars_os().map(|(name, _)| name);
    Ok(TemplateProgram {
        program: std::env::current_exe().map_err(Error::Program)?,
        arguments: ["prompt", "--limited", "--messages=-"].map(Into::into).into(),
        without: names.filter(|name| name.to_string_lossy().starts_with(VARIABLES)).collect(),
    })
}

/// Shows what is being done, and stops on Ctrl-C.
pub fn watch(interrupt: &Interrupt) -> WatchOpen {
    let mut steps = progress::Steps::new(interrupt);
    WatchOpen::new(move |step| steps.watch(step))
}

pub fn warn(warning: &OpenWarning) {
    match warning {
        OpenWarning::UntiedHead(head) => warn_of_head(Some(head)),
        OpenWarning::PassedOver(other) => say!("warning: {other}"),
    }
}

/// How many tokens a model will take, and what decides that.
pub fn limit(opening: &Opening) -> Limit {
    let set_by = if opening.is_export() { SetBy::Export } else { SetBy::Flag("--context") };
    Limit { tokens: opening.context(), longest: opening.max_context(), set_by }
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

/// Says which commands of IREE's own programs compile the module, and call each entry point once with the tokens of the prompt.
pub fn print_commands(
    model: &Path,
    build: &BuildInfo,
    compile: &CompileArguments,
    prompt: &[u32],
    interrupt: &Interrupt,
) -> Result<(), Error> {
    let vmfb = match (&build.module, &build.options) {
        (Some(module), Some(options)) => {
            let folder = build::cache_folder(compile)?.join("commands");
            fs::create_dir_all(&folder).with_path("create", &folder)?;
            let named = folder.join(&blake3::hash(module.text.as_bytes()).to_hex()[..16]);
            let [text, vmfb] = ["mlir", "vmfb"].map(|extension| named.with_extension(extension));
            NewFile::write(&text, FileKind::CACHED, module.text.as_bytes())?;
            let compiler = build::compiler(compile, interrupt)?;
            say!("{}", iree_tools::compile(&compiler, options, &text, &vmfb));
            vmfb
        }
        _ => model.join(export::names::MODULE),
    };
    for entry in &build.signatures {
        say!("{}", iree_tools::call(&vmfb, &build.archive, entry, prompt));
    }
    Ok(())
}

/// Compares with an export what only the command line knows of it. The library compares all other options.
fn check_as_exported(manifest: &IreeManifest, asked: &RunArguments) -> Result<(), Error> {
    let made_for = manifest.device()?;
    if let Some(name) = asked.device.device.filter(|name| name.kind != made_for) {
        let what = format!(
            "`--device` is {name}, but the model was exported for {made_for}; leave the option out, or export again with \
             `--target {}`",
            name.kind
        );
        return Err(usage(what).into());
    }
    match asked.model_arguments.network.layout {
        Some(layout) if layout.to_string() != manifest.layout => Err(ModelError::AsExported {
            option: "layout",
            asked: layout.to_string(),
            exported: manifest.layout.clone(),
        }
        .into()),
        _ => Ok(()),
    }
}

/// Says which tokens would end an answer if they were ones of the network.
pub fn say_ends(options: &GenerateOptions, model: &Model) {
    let count = model.info().vocabulary;
    let ends = model.stop_tokens().iter().filter(|end| !options.ignore_eos && **end as usize >= count);
    ends.for_each(|end| {
        say!("no answer ends at token {end}, which `eos_token_id` names: the network has {count} tokens");
    });
}
