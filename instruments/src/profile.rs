//! The measured time of each dispatch in a call, and the nodes of the network that the dispatch computes.
//!
//! `tracewright bench decode --trace FILE` writes a file with a list of trace events, which Chrome and
//! [Perfetto](https://ui.perfetto.dev) draw, and with the [`Profile`] itself. [`Profile::read`] reads the file.
//! docs/reference/json.md describes the fields.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use errors::FileError;
use files::limits;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use targets::Tuning;
use trace::Trace;

use tracewright::Plan;

/// The version of the format.
const SCHEMA: u64 = 1;

/// The key of the profile itself in a file of trace events.
const KEY: &str = "tracewright";

/// The measured time of a call of an entry point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// The version of this format.
    pub schema: u64,
    /// The version of Tracewright that measured the profile.
    pub version: String,
    pub model: String,
    /// The name of the case: `decode` or `prefill`.
    pub case: String,
    /// The entry point that was called.
    pub entry: String,
    /// The options with which the network was built and measured, as words. The keys are the same as in a
    /// benchmark.
    pub variant: BTreeMap<String, String>,
    /// The hash of the recorded entry point.
    pub recorded: String,
    /// The seconds of a call: the median of calls on a device that does not count functions.
    pub seconds: f64,
    /// The dispatches of a call, in the order of the program.
    pub dispatches: Vec<ProfiledDispatch>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfiledDispatch {
    /// The executed function, by its name in the module.
    pub function: String,
    /// The layer that the dispatch belongs to, as the prefix of its keys: `model.layers.3`.
    pub layer: Option<String>,
    /// The number of executions per call. If several dispatches execute the same function, each dispatch gets
    /// an equal part of the function's executions.
    pub calls: f64,
    /// The seconds of all executions of the dispatch.
    pub seconds: f64,
    /// The bytes that the operations of the dispatch read and write, from the cost model. The number is
    /// unknown if another dispatch computes a part of these operations.
    pub bytes: Option<f64>,
    /// The number of multiplications and additions, as far as it is known.
    pub flops: Option<f64>,
    /// The places in the network where the dispatch's operations are declared.
    pub places: Vec<ProfiledPlace>,
}

/// A place in the network from which a dispatch's operations come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfiledPlace {
    /// The field path, with `*` for the layer: `model.layers.*.mlp`.
    pub path: String,
    pub file: String,
    pub line: u32,
    /// The most expensive recorded operation at this place; `None` if there is no operation.
    pub operation: Option<String>,
    /// The part of the dispatch's cost that this place causes, from the cost model. The times of fused
    /// operations cannot be measured separately.
    pub share: f64,
}

/// The reason why a profile does not belong to a network.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is not a profile.
    #[error("`{}` is not a profile: {reason}; write a profile with `tracewright bench decode MODEL --trace \
        FILE`", .path.display())]
    Syntax { path: PathBuf, reason: String },
    /// The network was built with other options.
    #[error("the profile was recorded with other sizes of the network: {}", .differences.join("; "))]
    Variant {
        /// The options that differ, with the values of the profile and of the network.
        differences: Vec<String>,
    },
    /// The network has no such entry point.
    #[error("the profile was recorded for `{entry}`, which is not an entry point of this network; its entry \
        points are {}", .found.join(", "))]
    Entry {
        /// The entry point that was measured.
        entry: String,
        found: Vec<String>,
    },
    #[error(
        "the profile belongs to another network, `{model}`, or the network's declaration has changed since: the \
        trace of `{entry}` has the blake3 hash {found} in the profile, expected {expected}"
    )]
    Network {
        model: String,
        entry: String,
        /// The network that was measured.
        expected: String,
        found: String,
    },
}

impl Profile {
    pub fn new(model: &str, plan: &Plan, trace: &Trace, entry: &str) -> Self {
        Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            model: model.to_owned(),
            case: entry.to_owned(),
            entry: entry.to_owned(),
            variant: variant(plan).into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            recorded: recorded(trace, entry),
            seconds: 0.0,
            dispatches: Vec::new(),
        }
    }

    /// Reads the output of [`text`](Self::text).
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is not a profile.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        let text = files::read_text(path, limits::PROFILE)?;
        let wrong = |reason: String| ProfileError::Syntax { path: path.to_owned(), reason };
        let mut file: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        let own = file.get_mut(KEY).map(Value::take);
        let own = own.ok_or_else(|| wrong(format!("it has no key `{KEY}`")))?;
        match own["schema"].as_u64() {
            Some(SCHEMA) => {}
            found => {
                let found = found.map_or_else(|| "none".to_owned(), |found| found.to_string());
                return Err(wrong(format!("its `schema` is {found}, expected {SCHEMA}")));
            }
        }
        let profile: Self = serde_json::from_value(own).map_err(|error| wrong(error.to_string()))?;
        let dispatched = || profile.dispatches.iter();
        let own = |one: &ProfiledDispatch| [Some(one.seconds), Some(one.calls), one.bytes, one.flops];
        let numbers = dispatched().flat_map(own).flatten().chain([profile.seconds]);
        let shares = dispatched().flat_map(|one| &one.places).map(|place| place.share);
        match numbers.chain(shares).find(|number| !number.is_finite() || *number < 0.0) {
            Some(number) => Err(wrong(format!("it has a time, a count or a share of {number}"))),
            None => Ok(profile),
        }
    }

    /// The content of the file: trace events with a track of the dispatches of a call in order, and the
    /// profile itself.
    ///
    /// The format is the JSON Object Format of Google's "Trace Event Format"; times are in microseconds.
    pub fn text(&self) -> String {
        let named = |what: &str, name: String| json!({ "name": what, "ph": "M", "pid": 1, "tid": 1, "args": { "name": name } });
        let mut events = vec![
            named("process_name", format!("tracewright {} {}", self.case, self.model)),
            named("thread_name", format!("a call of {}", self.entry)),
        ];
        let mut begin = 0.0;
        for one in &self.dispatches {
            let duration = one.seconds * 1e6;
            events.push(json!({
                "name": one.name(), "cat": "dispatch", "ph": "X", "pid": 1, "tid": 1, "ts": begin, "dur": duration,
                "args": one.arguments(),
            }));
            begin += duration;
        }
        let file = json!({ "displayTimeUnit": "ms", "traceEvents": events, KEY: self });
        format!("{file}\n")
    }

    pub fn dispatched(&self) -> f64 {
        self.dispatches.iter().map(|one| one.seconds).sum()
    }

    /// Checks that the profile belongs to this plan and its trace.
    ///
    /// # Errors
    /// Returns an error if the profile does not belong to the plan and the trace. The error contains the
    /// differences.
    pub fn check(&self, plan: &Plan, trace: &Trace) -> Result<(), ProfileError> {
        let entries = || trace.entries.iter().map(|&id| &trace.function(id).name);
        if !entries().any(|name| *name == self.entry) {
            let found = entries().map(|name| format!("`{name}`")).collect();
            return Err(ProfileError::Entry { entry: self.entry.clone(), found });
        }
        let here = variant(plan);
        let differs = |name: &&str| {
            let (there, here) = (self.variant.get(*name)?, here.get(*name)?);
            (there != here).then(|| format!("`{name}` is {there} in it, and {here} here"))
        };
        let differences: Vec<String> = COMPARED.iter().filter_map(differs).collect();
        if !differences.is_empty() {
            return Err(ProfileError::Variant { differences });
        }
        let (expected, found) = (self.recorded.clone(), recorded(trace, &self.entry));
        match expected == found {
            true => Ok(()),
            false => {
                let (model, entry) = (self.model.clone(), self.entry.clone());
                Err(ProfileError::Network { model, entry, expected, found })
            }
        }
    }
}

impl ProfiledDispatch {
    /// The field path and the operation of the place with the largest share, or the function's name if no
    /// place is known.
    fn name(&self) -> String {
        let most = self.places.iter().max_by(|a, b| a.share.total_cmp(&b.share));
        most.map_or_else(
            || self.function.clone(),
            |place| {
                let path = place.path_in(self.layer.as_deref());
                let more = self.places.len() - 1;
                let operation = place.operation.iter().map(|operation| format!(" {operation}"));
                let rest = if more > 0 { format!(" + {more}") } else { String::new() };
                let path = if path.is_empty() { self.function.clone() } else { path };
                [path].into_iter().chain(operation).chain([rest]).collect()
            },
        )
    }

    /// Further facts about the dispatch that viewers show.
    fn arguments(&self) -> Value {
        let mut arguments = json!({ "function": self.function, "calls": self.calls });
        let rate = |amount: f64| if self.seconds > 0.0 { Some(amount / self.seconds / 1e9) } else { None };
        if let Some(bytes) = self.bytes {
            arguments["bytes"] = bytes.into();
            arguments["gb_per_s"] = rate(bytes).into();
        }
        if let Some(flops) = self.flops {
            arguments["gflop"] = (flops / 1e9).into();
            arguments["gflop_per_s"] = rate(flops).into();
        }
        let places = self.places.iter().map(|place| {
            let ProfiledPlace { file, line, operation, share, .. } = place;
            json!({
                "path": place.path_in(self.layer.as_deref()), "operation": operation,
                "rust": format!("{file}:{line}"), "share": share,
            })
        });
        arguments["places"] = places.collect();
        arguments
    }
}

impl ProfiledPlace {
    /// The field path of the place in a layer: `model.layers.3.mlp`.
    pub fn path_in(&self, layer: Option<&str>) -> String {
        let Some(layer) = layer else { return self.path.clone() };
        let stem = layer.rsplit_once('.').map_or(layer, |(stem, _)| stem);
        match self.path.strip_prefix(stem).and_then(|rest| rest.strip_prefix(".*")) {
            Some(inside) => format!("{layer}{inside}"),
            None => self.path.clone(),
        }
    }
}

/// The options that must be equal, so that the nodes of one network correspond to the nodes of the other
/// network.
const COMPARED: [&str; 7] = ["dtype", "quant", "kv", "kernels", "simplify", "context", "batch"];

pub(crate) fn variant(plan: &Plan) -> BTreeMap<&'static str, String> {
    let kernels = if plan.weights.kernels { "on" } else { "off" };
    let quant = plan.weights.quantize.to_string();
    let tuning = if plan.target.tuning == Tuning::default() { "off" } else { "on" };
    BTreeMap::from([
        ("dtype", plan.element.to_string()),
        ("quant", quant),
        ("kv", plan.kv.word().to_owned()),
        ("kernels", kernels.to_owned()),
        ("tuning", tuning.to_owned()),
        ("simplify", plan.rules.to_string()),
        ("context", plan.context.to_string()),
        ("batch", plan.batch.to_string()),
        ("chunk", plan.chunk.to_string()),
    ])
}

/// The hash of a recorded entry point, which does not depend on other entry points.
fn recorded(trace: &Trace, entry: &str) -> String {
    let alone = trace.with_entries(&[entry]).inlined();
    blake3::hash(alone.to_string().as_bytes()).to_hex()[..32].to_owned()
}
