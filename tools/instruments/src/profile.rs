//! A profile contains the measured time of each dispatch in a call of the network. For each dispatch, the
//! profile lists the nodes of the network that the dispatch computes. `tracewright bench decode --trace FILE`
//! writes a profile to a file. Chrome and [Perfetto](https://ui.perfetto.dev) can draw the file, because the
//! file also contains a list of trace events. [`Profile::read`] reads the [`Profile`] from the file.
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

const SCHEMA: u64 = 1;

/// In a file of trace events.
const KEY: &str = "tracewright";

/// The measured time of one call of an entry point, and of each dispatch in this call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    pub schema: u64,
    pub version: String,
    pub model: String,
    /// `decode` or `prefill`.
    pub case: String,
    pub entry: String,
    /// Named as in the JSON of `tracewright bench`.
    pub variant: BTreeMap<String, String>,
    /// The hash of the profiled entry point.
    pub recorded: String,
    /// Per call: the median of several, without counters.
    pub seconds: f64,
    /// The dispatches of the call, in the order in which the program executes them.
    pub dispatches: Vec<ProfiledDispatch>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfiledDispatch {
    pub function: String,
    /// The prefix of its keys, such as `model.layers.3`.
    pub layer: Option<String>,
    /// Per call. Dispatches of one function share its executions equally.
    pub calls: f64,
    /// The sum of all executions.
    pub seconds: f64,
    /// By the cost model; `None` if another dispatch computes some of the operations.
    pub bytes: Option<f64>,
    /// If known.
    pub flops: Option<f64>,
    pub places: Vec<ProfiledPlace>,
}

/// A source location of operations that a dispatch computes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfiledPlace {
    /// The field path with `*` instead of the layer's number, such as `model.layers.*.mlp`.
    pub path: String,
    pub file: String,
    pub line: u32,
    /// The most expensive one; `None` if the trace has none there.
    pub operation: Option<String>,
    /// A part of the dispatch's cost, by the cost model, because fused operations cannot be timed apart.
    pub share: f64,
}

/// The reason why a profile does not belong to a network.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("`{}` is not a profile: {reason}; write a profile with `tracewright bench decode MODEL --trace \
        FILE`", .path.display())]
    Syntax { path: PathBuf, reason: String },
    #[error("the profile was recorded with other sizes of the network: {}", .differences.join("; "))]
    Variant {
        /// Option, value in the profile, value in the network.
        differences: Vec<String>,
    },
    #[error("the profile was recorded for `{entry}`, which is not an entry point of this network; its entry \
        points are {}", .found.join(", "))]
    Entry { entry: String, found: Vec<String> },
    #[error(
        "the profile belongs to another network, `{model}`, or the network's declaration has changed since: the \
        trace of `{entry}` has the blake3 hash {found}, but the profile contains the hash {expected}"
    )]
    Network { model: String, entry: String, expected: String, found: String },
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

    /// As written by [`text`](Self::text).
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

    /// The profile, and a call's dispatches on one track. The JSON Object Format of Google's "Trace Event
    /// Format", in microseconds.
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

    /// Measured for this plan and trace.
    pub fn check(&self, plan: &Plan, trace: &Trace) -> Result<(), ProfileError> {
        let entries = || trace.entries.iter().map(|&id| &trace.function(id).name);
        if !entries().any(|name| *name == self.entry) {
            let found = entries().map(|name| format!("`{name}`")).collect();
            return Err(ProfileError::Entry { entry: self.entry.clone(), found });
        }
        let here = variant(plan);
        let differs = |name: &&str| {
            let (there, here) = (self.variant.get(*name)?, here.get(*name)?);
            (there != here).then(|| format!("`{name}` is {there} in the profile and {here} in the network"))
        };
        let differences: Vec<String> = COMPARED.iter().filter_map(differs).collect();
        if !differences.is_empty() {
            return Err(ProfileError::Variant { differences });
        }
        let (expected, found) = (self.recorded.clone(), recorded(trace, &self.entry));
        if expected == found {
            Ok(())
        } else {
            let (model, entry) = (self.model.clone(), self.entry.clone());
            Err(ProfileError::Network { model, entry, expected, found })
        }
    }
}

impl ProfiledDispatch {
    /// Field path and operation of the costliest source line, or the compiled function.
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

    /// Returns additional properties of the dispatch, which Chrome and Perfetto show for the selected event.
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
    /// Returns the field path of the source location in the given layer, such as `model.layers.3.mlp`.
    pub fn path_in(&self, layer: Option<&str>) -> String {
        let Some(layer) = layer else { return self.path.clone() };
        let stem = layer.rsplit_once('.').map_or(layer, |(stem, _)| stem);
        match self.path.strip_prefix(stem).and_then(|rest| rest.strip_prefix(".*")) {
            Some(inside) => format!("{layer}{inside}"),
            None => self.path.clone(),
        }
    }
}

/// With a difference in one of these, the nodes don't correspond.
const COMPARED: [&str; 7] = ["dtype", "quant", "kv", "kernels", "simplify", "context", "batch"];

pub(crate) fn variant(plan: &Plan) -> BTreeMap<&'static str, String> {
    let kernels = if plan.weights.kernels { "on" } else { "off" };
    let quant = plan.weights.quantize.to_string();
    let tuning = if plan.target.tuning == Tuning::default() { "off" } else { "on" };
    BTreeMap::from([
        ("dtype", plan.element.to_string()),
        ("quant", quant),
        ("activations", plan.weights.activations.word().to_owned()),
        ("kv", plan.kv.word().to_owned()),
        ("kernels", kernels.to_owned()),
        ("tuning", tuning.to_owned()),
        ("simplify", plan.rules.to_string()),
        ("context", plan.context.to_string()),
        ("batch", plan.batch.to_string()),
        ("chunk", plan.chunk.to_string()),
    ])
}

/// Does not depend on other entry points.
fn recorded(trace: &Trace, entry: &str) -> String {
    let alone = trace.with_entries(&[entry]).inlined();
    blake3::hash(alone.to_string().as_bytes()).to_hex()[..32].to_owned()
}
