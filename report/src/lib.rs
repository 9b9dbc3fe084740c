//! All that is known of a network before it runs, as JSON, DOT, a picture and a page.
//!
//! A [`NetworkReport`] is made of a plan and its trace, without weights and without a compiler: functions and nodes at
//! every stage, what they cost, where they come from and what they become, weights, rules, memory, masks. The JSON of
//! [`NetworkReport::json`] is all of it; [`html`](NetworkReport::html), [`svg`](NetworkReport::svg) and
//! [`dot`](NetworkReport::dot) show it.
//!
//! ```
//! use std::path::Path;
//!
//! use tracewright::Plan;
//! use tracewright::models::ModelConfig;
//! use tracewright_report::NetworkReport;
//!
//! let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo");
//! let plan = Plan::new(Box::new(ModelConfig::read(&config, &[])?), None, Some(64), None)?;
//! let report = NetworkReport::new("demo", &plan, &plan.trace()?.trace, &|_| None)?;
//! assert!(report.html(None).starts_with("<!doctype html>"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod dot;
mod drawing;
mod gather;
mod html;
mod model;
mod profile;
mod sketch;
mod svg;
mod words;

pub use gather::ReadSource;
pub use model::{
    AttributeFacts, CostFacts, EdgeFacts, FunctionGraph, FunctionTime, MaskFacts, MemoryFacts, NetworkFacts,
    NetworkReport, NodeClass, NodeFacts, OutputFacts, ParameterGroup, PathTime, ProfileFacts, ResultFacts,
    RotaryFacts, RuleFacts, Stage, StatementFacts, StoredFacts, TypeFacts,
};

pub use words::spans;

impl NetworkReport {
    /// The report as JSON, on one line.
    pub fn json(&self) -> String {
        match serde_json::to_string(self) {
            Ok(text) => text + "\n",
            // Every key is a string, and nothing refuses to be written.
            Err(error) => unreachable!("a report is JSON: {error}"),
        }
    }
}
