//! Groups of options that several commands have.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use console::{ConsoleError, ModelArguments, usage};
use tracewright::files::limits;
use tracewright::targets::{DeviceName, Mesh, ShardRule, Target};

/// What a chat template sees beside the messages.
#[derive(Args, Clone)]
pub struct TemplateArguments {
    /// File with a JSON list of functions that the model may call, in OpenAI's form, for the chat template
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// File with a JSON list of texts that the model answers from, such as `{"title": …, "text": …}`, for the chat template
    #[arg(long, value_name = "FILE")]
    pub documents: Option<PathBuf>,
    /// Turn the model's thinking before an answer on or off: sets `enable_thinking` of the chat template [default: the
    /// template's]
    #[arg(long, value_name = "on|off")]
    pub thinking: Option<Thinking>,
    /// Set a variable of the chat template, such as `reasoning_effort="low"`; may be repeated
    #[arg(long, value_name = "NAME=JSON")]
    pub template_var: Vec<TemplateVariable>,
}

/// Whether a model thinks before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Thinking {
    On,
    Off,
}

/// A variable of a chat template.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "iree"), allow(dead_code, reason = "no template is rendered"))]
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
            return Err(format!("`{name}` is no name of a variable, expected letters, digits and `_`"));
        }
        match name {
            "tools" | "documents" => return Err(format!("`--{name} FILE` sets `{name}`")),
            "messages" | "add_generation_prompt" | "strftime_now" => {
                return Err(format!("`{name}` is set by this program"));
            }
            _ => {}
        }
        let value = serde_json::from_str(value).map_err(|error| {
            format!("the value is not JSON ({error}); write a text in quotes, as `{name}=\"low\"`")
        })?;
        Ok(Self { name: name.to_owned(), value })
    }
}

/// How a model is made ready to be called.
#[derive(Args, Clone)]
pub struct RunArguments {
    /// Worker threads; 0 uses all cores
    #[arg(short, long, default_value_t = 0)]
    pub threads: usize,
    #[command(flatten)]
    pub device: DeviceArguments,
    /// First compare all weights with the hashes in their archive
    #[arg(long)]
    pub verify: bool,
    #[command(flatten)]
    pub build: BuildArguments,
}

/// How a language model is built.
#[derive(Args, Clone)]
pub struct BuildArguments {
    #[command(flatten)]
    pub model_arguments: ModelArguments,
    #[command(flatten)]
    pub tuning: TuningArguments,
    #[command(flatten)]
    pub compile: CompileArguments,
}

/// Where a model runs.
#[derive(Args, Clone)]
pub struct DeviceArguments {
    /// Device to run on, with a number if it is not the first, such as `vulkan:1`; `devices` lists them [default: cpu, or
    /// the device of the export]
    #[arg(long, value_name = "cpu|vulkan|cuda[:N]")]
    pub device: Option<DeviceName>,
    /// With --device: target to compile for, such as `vulkan:rdna3` or `cuda:sm_86` [default: as the device reports]
    #[arg(long, value_name = "DEVICE:PROCESSOR[:FEATURES]", requires = "device")]
    pub target: Option<Target>,
}

/// Devices, and what is divided among them.
#[derive(Args, Clone)]
pub struct MeshArguments {
    /// For XLA: grid of devices with named axes, such as `model=4,data=2` [default: one device]
    #[arg(long, value_name = "AXIS=DEVICES,…")]
    pub mesh: Option<Mesh>,
    /// For XLA: divide axes of the network along an axis of the mesh, such as `K,F,V=model`, or along none, such as
    /// `V=none`; overrides or extends the network's declaration; may be repeated
    #[arg(long, value_name = "AXES=MESH_AXIS")]
    pub shard: Vec<ShardRule>,
}

impl MeshArguments {
    /// Whether something is said of devices.
    pub fn is_said(&self) -> bool {
        self.mesh.is_some() || !self.shard.is_empty()
    }

    /// The mesh, and what is divided otherwise than the network declares.
    pub fn rules(&self) -> Result<Option<(&Mesh, &[ShardRule])>, ConsoleError> {
        for axis in self.shard.iter().flat_map(|rule| &rule.axes) {
            let of_axis = self.shard.iter().filter(|rule| rule.axes.contains(axis));
            let (whole, divided): (Vec<_>, Vec<_>) = of_axis.partition(|rule| rule.over == "none");
            if !whole.is_empty() && !divided.is_empty() {
                let what = format!("`--shard` says of `{axis}` that it is divided, and that it is not");
                return Err(usage(what));
            }
        }
        match &self.mesh {
            Some(mesh) => Ok(Some((mesh, &self.shard))),
            None if self.shard.is_empty() => Ok(None),
            None => Err(usage(
                "`--shard` says what is divided among the devices of a mesh; name it with `--mesh`",
            )),
        }
    }
}

/// How what is compiled cuts its work.
#[derive(Args, Clone)]
pub struct TuningArguments {
    /// Use the kernel settings that `tune` measured on this machine, the defaults, or those of a JSON file in the form of a
    /// manifest's `tuning` [default: on]
    #[arg(long = "tuning", value_name = "on|off|FILE")]
    pub source: Option<TuningSource>,
}

/// What says how kernels cut their work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TuningSource {
    Measured,
    Usual,
    File(PathBuf),
}

impl From<&str> for TuningSource {
    fn from(text: &str) -> Self {
        match text {
            "on" => Self::Measured,
            "off" => Self::Usual,
            path => Self::File(path.into()),
        }
    }
}

/// How it is compiled.
#[derive(Args, Clone)]
pub struct CompileArguments {
    /// iree-compile to use [default: the one on PATH]
    #[arg(long, value_name = "PATH", env = "TRACEWRIGHT_IREE_COMPILE")]
    pub iree_compile: Option<PathBuf>,
    /// Stop a compilation after this time
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    pub compile_timeout: u64,
    /// Folder that keeps compiled modules and baked archives [default: the user's cache folder]
    #[arg(long, value_name = "DIR", env = "TRACEWRIGHT_CACHE")]
    pub cache: Option<PathBuf>,
}

/// Sequences at once, as many as there is any use for.
pub fn batch(text: &str) -> Result<NonZeroUsize, String> {
    let count = text.parse().ok().filter(|count: &NonZeroUsize| count.get() <= limits::BATCH);
    count.ok_or_else(|| format!("expected a number from 1 to {}", limits::BATCH))
}
