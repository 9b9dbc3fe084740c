//! Groups of options that several commands share.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use console::{ConsoleError, ModelArguments, NumericsArguments, usage};
use tracewright::files::limits;
use tracewright::models::LoraFile;
use tracewright::targets::{DeviceName, Mesh, MeshRules, ShardRule, Target};

/// Options that pass data to a chat template in addition to the messages.
#[derive(Args, Clone)]
pub struct TemplateArguments {
    /// File with the functions that the model may call, as a JSON list in OpenAI's format; the chat
    /// template receives this list
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// File with the documents that the model uses for its answer, as a JSON list of objects such
    /// as `{"title": …, "text": …}`; the chat template receives this list
    #[arg(long, value_name = "FILE")]
    pub documents: Option<PathBuf>,
    /// Turn the model's thinking before an answer on or off, with the variable `enable_thinking` of
    /// the chat template [default: the chat template decides]
    #[arg(long, value_name = "on|off")]
    pub thinking: Option<Thinking>,
    /// Set a variable of the chat template, such as `reasoning_effort="low"`; may be repeated
    #[arg(long, value_name = "NAME=JSON")]
    pub template_var: Vec<TemplateVariable>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Thinking {
    On,
    Off,
}

#[derive(Clone, Debug)]
pub struct TemplateVariable {
    pub name: String,
    pub value: serde_json::Value,
}

impl FromStr for TemplateVariable {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((name, value)) = text.split_once('=') else {
            return Err("expected NAME=JSON, as `reasoning_effort=\"low\"`".into());
        };
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        if !name.chars().all(is_part) || name.is_empty() || name.starts_with(|c: char| c.is_numeric()) {
            return Err(format!("`{name}` is not a variable name, expected letters, digits and `_`"));
        }
        match name {
            "tools" | "documents" => return Err(format!("`--{name} FILE` sets `{name}`")),
            "messages" | "add_generation_prompt" | "strftime_now" => {
                return Err(format!("`{name}` is set by this program"));
            }
            _ => {}
        }
        let value = tracewright::files::parse_exact(value).map_err(|error| {
            format!("the value is not JSON ({error}); write a text in quotes, as `{name}=\"low\"`")
        })?;
        Ok(Self { name: name.to_owned(), value })
    }
}

/// Options for running a model.
#[derive(Args, Clone)]
pub struct RunArguments {
    /// Number of worker threads; 0 uses all cores
    #[arg(short, long, default_value_t = 0)]
    pub threads: usize,
    #[command(flatten)]
    pub device: DeviceArguments,
    #[command(flatten)]
    pub engine: EngineArguments,
    #[command(flatten)]
    pub mesh: MeshArguments,
    /// Before the model runs, compare all weights with the hashes in the archive
    #[arg(long)]
    pub verify: bool,
    #[command(flatten)]
    pub build: BuildArguments,
}

/// Options for building a language model.
#[derive(Args, Clone)]
pub struct BuildArguments {
    #[command(flatten)]
    pub model_arguments: ModelArguments,
    #[command(flatten)]
    pub lora: LoraArguments,
    #[command(flatten)]
    pub tuning: TuningArguments,
    #[command(flatten)]
    pub compile: CompileArguments,
}

/// Adapters for a model.
#[derive(Args, Clone)]
pub struct LoraArguments {
    /// Add a LoRA adapter to the weights: a folder that PEFT wrote, or a GGUF file. `=SCALE` multiplies all
    /// that the adapter adds; may be repeated
    #[arg(long, value_name = "PATH[=SCALE]")]
    pub lora: Vec<LoraFile>,
}

/// The device that runs a model.
#[derive(Args, Clone)]
pub struct DeviceArguments {
    /// Device that runs the model, such as `cuda`, or `vulkan:1` for the second Vulkan device;
    /// `tracewright devices` lists the devices [default: cpu, or the device of the export]
    #[arg(long, value_name = "cpu|vulkan|cuda[:N]")]
    pub device: Option<DeviceName>,
    /// With --device: target to compile for, such as `vulkan:rdna3` or `cuda:sm_86` [default: the target that
    /// the device reports]
    #[arg(long, value_name = "DEVICE:PROCESSOR[:FEATURES]", requires = "device")]
    pub target: Option<Target>,
    #[command(flatten)]
    pub numerics: NumericsArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    Iree,
    Xla,
}

/// The engine that runs a model.
#[derive(Args, Clone)]
pub struct EngineArguments {
    /// Engine that runs the model: IREE, or XLA through a PJRT plugin
    #[arg(long, value_enum, default_value = "iree")]
    pub engine: Engine,
    /// With --engine xla: path of the PJRT plugin [default: the plugin in an installed Python
    /// package for the device]
    #[arg(long, value_name = "PATH", env = "TRACEWRIGHT_PLUGIN")]
    pub plugin: Option<PathBuf>,
}

/// The options for a device mesh and for the axes that are partitioned over the mesh.
#[derive(Args, Clone)]
pub struct MeshArguments {
    /// For XLA: mesh of devices with named axes, such as `model=4,data=2` for 4 × 2 devices
    /// [default: one device]
    #[arg(long, value_name = "AXIS=DEVICES,…")]
    pub mesh: Option<Mesh>,
    /// For XLA: partition axes of the network along an axis of the mesh, such as `K,F,V=model`, or
    /// don't partition an axis, such as `V=none`. The option overrides or extends the partitioning
    /// rules in the network's declaration; may be repeated
    #[arg(long, value_name = "AXES=MESH_AXIS")]
    pub shard: Vec<ShardRule>,
    /// For XLA: give each device along the mesh axis `model` whole experts instead of a part of each
    /// expert, if the devices divide the number of experts. A mesh axis `expert` divides the experts
    /// without this option
    #[arg(long)]
    pub expert_parallel: bool,
}

impl MeshArguments {
    /// Whether any of the options is set.
    pub fn is_said(&self) -> bool {
        self.mesh.is_some() || !self.shard.is_empty() || self.expert_parallel
    }

    /// Returns the rules of `--shard` and `--expert-parallel`.
    pub fn sharding(&self) -> Vec<ShardRule> {
        let experts = ShardRule {
            axes: vec![ShardRule::EXPERTS.to_owned()],
            over: Mesh::MODEL.to_owned(),
            if_even: true,
        };
        self.shard.iter().cloned().chain(self.expert_parallel.then_some(experts)).collect()
    }

    /// Returns the mesh of `--mesh` and the rules of the other options, or `None` if no option is set.
    pub fn rules(&self) -> Result<Option<MeshRules>, ConsoleError> {
        for axis in self.shard.iter().flat_map(|rule| &rule.axes) {
            let of_axis = self.shard.iter().filter(|rule| rule.axes.contains(axis));
            let (whole, divided): (Vec<_>, Vec<_>) = of_axis.partition(|rule| rule.over == "none");
            if !whole.is_empty() && !divided.is_empty() {
                let what = format!("`--shard` both divides `{axis}` and leaves it whole");
                return Err(usage(what));
            }
        }
        match &self.mesh {
            Some(mesh) => Ok(Some(MeshRules { mesh: mesh.clone(), rules: self.sharding() })),
            None if !self.is_said() => Ok(None),
            None => {
                let option = if self.expert_parallel { "--expert-parallel" } else { "--shard" };
                Err(usage(format!(
                    "`{option}` divides axes among the devices of a mesh; name the mesh with `--mesh`"
                )))
            }
        }
    }
}

#[derive(Args, Clone)]
pub struct TuningArguments {
    /// Use the kernel settings that `tune` measured on this machine (on), the default settings (off), or the
    /// settings in a JSON file. The JSON file has the format of the key `tuning` in a manifest [default: on]
    #[arg(long = "tuning", value_name = "on|off|FILE")]
    pub source: Option<TuningOption>,
}

/// The source from which Tracewright takes the kernel settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TuningOption {
    Measured,
    Usual,
    File(PathBuf),
}

impl From<&str> for TuningOption {
    fn from(text: &str) -> Self {
        match text {
            "on" => Self::Measured,
            "off" => Self::Usual,
            path => Self::File(path.into()),
        }
    }
}

#[derive(Args, Clone)]
pub struct CompileArguments {
    /// Path of the compiler iree-compile [default: the iree-compile on PATH]
    #[arg(long, value_name = "PATH", env = "TRACEWRIGHT_IREE_COMPILE")]
    pub iree_compile: Option<PathBuf>,
    /// Stop a compilation that takes longer than this number of seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    pub compile_timeout: u64,
    /// Folder in which Tracewright stores compiled modules and archives of weights [default: the
    /// user's cache folder]
    #[arg(long, value_name = "DIR", env = "TRACEWRIGHT_CACHE")]
    pub cache: Option<PathBuf>,
}

/// The number of new tokens without a limit, which `-n -1` requests.
pub const UNLIMITED: usize = usize::MAX;

/// Parses a maximum number of new tokens. As in llama.cpp, `-1` sets no limit.
pub fn max_tokens(text: &str) -> Result<usize, &'static str> {
    match text {
        "-1" => Ok(UNLIMITED),
        text => text.parse().map_err(|_| "expected a number of tokens, or -1 for no limit"),
    }
}

/// Parses a batch size, and rejects a size above `limits::BATCH`.
pub fn batch(text: &str) -> Result<NonZeroUsize, String> {
    let count = text.parse().ok().filter(|count: &NonZeroUsize| count.get() <= limits::BATCH);
    count.ok_or_else(|| format!("expected a number from 1 to {}", limits::BATCH))
}
