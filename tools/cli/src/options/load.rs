//! Opens a model from the arguments of a command.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use console::{ModelArguments, NetworkArguments, warn};
use tracewright::build::LoadError;
use tracewright::errors::WithPath as _;
use tracewright::export::{self, commands};
use tracewright::files::{FileKind, NewFile};
use tracewright::generate::{ConstraintProgram, GenerateError, Generated, SavedSequence, check_tokens};
use tracewright::model::{BuildInfo, Opening, TemplateProgram, WatchOpen};
use tracewright::models::check_generates;
use tracewright::output_guard::check_output;
use tracewright::runtime::Compiler;
use tracewright::{GenerateOptions, Model, ModelError, OpenOptions, PlanError};

use super::arguments::{CompileArguments, DeviceArguments, RunArguments, TuningArguments, TuningOption};
use super::checkpoint::report_baked;
use super::error::Error;
use super::interrupt::Interrupt;
use super::limit::{Limit, SetBy};
use super::{VARIABLES, build, plugins, progress};
use crate::Invocation;

/// Reads the files of a model, but builds no network. Tracewright reports errors in the model's
/// files before the slow compilation begins.
pub fn read(model: &Path, arguments: &RunArguments, invocation: &Invocation) -> Result<Opening, Error> {
    let opening = read_any(model, arguments, invocation, Some(template_program(invocation)?))?;
    opening.network().map_or(Ok(()), |network| check_generates(&network.kind, model))?;
    Ok(opening)
}

/// Reads the files of a model that continues text or computes embeddings. `program` is the command
/// that renders the model's chat template.
pub fn read_any(
    model: &Path,
    arguments: &RunArguments,
    invocation: &Invocation,
    program: Option<TemplateProgram>,
) -> Result<Opening, Error> {
    read_with(model, arguments, invocation, program, |options| options)
}

/// Like [`read_any`], with options that are no [`RunArguments`].
pub fn read_with(
    model: &Path,
    arguments: &RunArguments,
    invocation: &Invocation,
    program: Option<TemplateProgram>,
    with: impl FnOnce(OpenOptions) -> OpenOptions,
) -> Result<Opening, Error> {
    let (path, options) = (model.to_owned(), with(options(arguments, invocation, program)?));
    let opening = invocation.interrupt.or(move || Opening::read(path, options))??;
    warn(opening.warnings());
    chosen(opening, arguments)
}

/// Opens a model with other arguments, without reading its files again.
pub fn again(opening: &Opening, arguments: &RunArguments, invocation: &Invocation) -> Result<Opening, Error> {
    let mut opening = opening.clone();
    opening.options = options(arguments, invocation, opening.options.template_program)?;
    chosen(opening, arguments)
}

/// Selects the device for a model that this command compiles.
fn chosen(mut opening: Opening, arguments: &RunArguments) -> Result<Opening, Error> {
    if !opening.is_export() && opening.options.plugin.is_none() {
        choose(&mut opening.options, &arguments.device)?;
    }
    Ok(opening)
}

fn options(
    arguments: &RunArguments,
    invocation: &Invocation,
    program: Option<TemplateProgram>,
) -> Result<OpenOptions, Error> {
    let &Invocation { read, ref interrupt, .. } = invocation;
    let ModelArguments { network, context, chunk, text } = &arguments.build.model_arguments;
    let options = network_options(network, &arguments.device, &arguments.build.tuning)?;
    Ok(OpenOptions {
        // The numbers of an export are fixed, so opening one compares them.
        numeric: options.numeric.clone().or(text),
        plugin: plugins::selected(arguments)?,
        xla_flags: plugins::flags(),
        lora: arguments.build.lora.lora.clone(),
        mesh: arguments.mesh.mesh.clone(),
        shard: arguments.mesh.sharding(),
        context: *context,
        chunk: *chunk,
        device: arguments.device.device,
        target: arguments.device.target.clone(),
        threads: arguments.threads,
        verify: arguments.verify,
        read,
        template_program: program,
        constraint_program: Some(constraint_program(invocation)?),
        watch: Some(watch(interrupt)),
        ..options
    })
}

/// Calls `prepare` with a model's files and the arguments, and returns the result of `prepare`. If
/// you press Ctrl-C before `prepare` ends, the function returns an error.
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

/// The compiler and the cache folder with which a command builds a network. If the compiler is
/// missing, Tracewright first reports all errors in the model's files. An exported model needs no
/// compiler, because the network in the export is already compiled.
pub struct Tools {
    missing: Option<Error>,
}

impl Tools {
    pub fn find(
        opening: &mut Opening,
        arguments: &CompileArguments,
        interrupt: &Interrupt,
    ) -> Result<Self, Error> {
        if opening.is_export() {
            return Ok(Self { missing: None });
        }
        opening.options.cache = Some(build::cache_folder(arguments)?);
        if opening.options.plugin.is_some() {
            return Ok(Self { missing: None });
        }
        match build::compiler(arguments, interrupt) {
            Ok(compiler) => {
                opening.options.compiler = Some(compiler);
                Ok(Self { missing: None })
            }
            Err(error) => {
                // The build cannot find this compiler either, but first reports the model's errors.
                let asked = arguments.iree_compile.clone();
                opening.options.compiler =
                    Some(Compiler::new(asked.unwrap_or_else(|| "iree-compile".into())));
                Ok(Self { missing: Some(error) })
            }
        }
    }

    /// Returns the error that the command reports if the network of a model could not be built. If
    /// the compiler is missing, the function returns the error about the missing compiler instead
    /// of the compilation's error.
    pub fn error(self, error: ModelError) -> Error {
        match (error, self.missing) {
            (ModelError::Load(LoadError::Compile(_)), Some(missing)) => missing,
            (error, _) => error.into(),
        }
    }
}

pub fn report_build(build: Option<&BuildInfo>) {
    if let Some(build) = build {
        build::report_damage(&build.damaged);
        build.baked.iter().for_each(report_baked);
        build.shards.iter().flat_map(|shards| &shards.notes).for_each(|note| say!("{note}"));
    }
}

/// Converts all options that determine how a network is built, except the device and its target.
pub fn network_options(
    network: &NetworkArguments,
    device: &DeviceArguments,
    tuning: &TuningArguments,
) -> Result<OpenOptions, Error> {
    Ok(OpenOptions {
        numeric: network.numeric().map_err(PlanError::from)?.or(&device.numerics),
        tuning: tuning.source.as_ref().map(TuningOption::resolved).transpose()?,
        allow_config_keys: network.allow_config_key.clone(),
        ..OpenOptions::default()
    })
}

/// Selects the device for a model that this command compiles.
pub fn choose(options: &mut OpenOptions, device: &DeviceArguments) -> Result<(), Error> {
    let (name, target) = device.choose_target()?;
    (options.device, options.target) = (Some(name), Some(target));
    Ok(())
}

/// Returns the command that runs Tracewright's command line in a second process, which renders chat
/// templates. The second process has limits on time and memory, and does not get Tracewright's
/// environment variables.
pub fn template_program(invocation: &Invocation) -> Result<TemplateProgram, Error> {
    let (program, arguments) = own(invocation, &["apply-template"])?;
    Ok(TemplateProgram { program, arguments, without: own_variables().collect() })
}

/// Returns the command that runs Tracewright's command line in another process, which follows JSON
/// schemas and grammars. The process has limits on memory, and gets none of Tracewright's environment
/// variables except the one of tests for faults. With this variable, a schema that this process reads can
/// end it, so that tests notice.
fn constraint_program(invocation: &Invocation) -> Result<ConstraintProgram, Error> {
    if std::env::var_os(CRASHES).is_some() {
        tracewright::generate::allow_crashes();
    }
    let (program, arguments) = own(invocation, &["constrain"])?;
    let without = own_variables().filter(|name| name != CRASHES).collect();
    Ok(ConstraintProgram { program, arguments, without })
}

/// With this environment variable, tests make schemas cause faults.
const CRASHES: &str = "TRACEWRIGHT_CRASHES";

fn own(invocation: &Invocation, words: &[&str]) -> Result<(PathBuf, Vec<OsString>), Error> {
    let (program, first) = match invocation.again.split_first() {
        Some((program, rest)) => (program.into(), rest),
        None => (std::env::current_exe().map_err(Error::Program)?, &[][..]),
    };
    Ok((program, first.iter().cloned().chain(words.iter().map(OsString::from)).collect()))
}

fn own_variables() -> impl Iterator<Item = OsString> {
    let names = std::env::vars_os().map(|(name, _)| name);
    names.filter(|name| name.to_string_lossy().starts_with(VARIABLES))
}

/// Creates a callback that shows the progress of a build. Ctrl-C stops the build.
pub fn watch(interrupt: &Interrupt) -> WatchOpen {
    let mut steps = progress::Steps::new(interrupt);
    WatchOpen::new(move |step| steps.watch(step))
}

/// The largest number of tokens that a model can take, and the cause of this limit.
pub fn limit(opening: &Opening) -> Limit {
    let set_by = if opening.is_export() { SetBy::Export } else { SetBy::Flag("--context") };
    Limit { tokens: opening.context(), longest: opening.max_context(), set_by }
}

/// Checks that the tokens of a prompt fit into a network, and that each token is in the network's vocabulary.
pub fn check_prompt(prompt: &[u32], limit: Limit, vocabulary: usize) -> Result<(), Error> {
    check_tokens(prompt, 0, limit.tokens, vocabulary).map_err(|error| match error {
        GenerateError::TooLong { length, .. } => {
            Error::TooLong { what: "the prompt".into(), found: length, limit }
        }
        error => error.into(),
    })
}

/// Prints commands for IREE's tools; the commands compile the module and call each entry point once
/// with the prompt's tokens.
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
            say!("{}", commands::compile(&compiler, options, &text, &vmfb));
            vmfb
        }
        _ => model.join(export::names::MODULE),
    };
    for entry in &build.signatures {
        say!("{}", commands::call(&vmfb, &build.archive, entry, prompt));
    }
    Ok(())
}

pub fn say_ends(options: &GenerateOptions, model: &Model) {
    let count = model.info().vocabulary;
    let ends = model.stop_tokens().iter().filter(|end| !options.ignore_eos && **end as usize >= count);
    ends.for_each(|end| {
        say!("no answer can end at token {end} of `eos_token_id`: the network has {count} tokens");
    });
}

/// A file in which one run stores a sequence of tokens for the next run.
pub struct SequenceFile {
    pub saved: Option<SavedSequence>,
    file: NewFile,
}

impl SequenceFile {
    /// Reads the saved token sequence, if the file exists and is not empty. Before the slow
    /// compilation begins, the function checks whether the file of saved tokens may be replaced.
    pub fn open(model: &Path, path: &Path) -> Result<Self, Error> {
        check_output(model, path)?;
        let file = NewFile::begin(path, FileKind::SEQUENCE)?;
        let has_content = fs::metadata(path).is_ok_and(|metadata| metadata.len() > 0);
        let saved = has_content.then(|| SavedSequence::read(path)).transpose()?;
        Ok(Self { saved, file })
    }

    /// Returns the number of tokens in the saved sequence. The context must have room for the saved tokens.
    pub fn tokens(file: Option<&Self>) -> usize {
        file.and_then(|file| file.saved.as_ref()).map_or(0, |saved| saved.tokens().len())
    }

    pub fn publish(self, saved: &SavedSequence) -> Result<(), Error> {
        Ok(self.file.publish_as(&saved.to_bytes())?)
    }
}

pub fn drafts(generated: &Generated) -> String {
    let &Generated { decode_steps, drafted, accepted, .. } = generated;
    match drafted {
        0 => String::new(),
        _ => format!(" in {decode_steps} steps, {accepted} of {drafted} drafted tokens accepted"),
    }
}
