//! Reports everything that Tracewright knows about a network before you run the network: as JSON,
//! DOT, SVG and an HTML page.
//!
//! Tracewright creates a [`NetworkReport`] from the plan of a network and the plan's trace. You need neither
//! weights nor a compiler to create a report. The report contains the functions and nodes at every
//! compilation stage, with their cost, source code and StableHLO. The report also contains the weights,
//! rewrite rules, memory and attention masks of the network. The method [`NetworkReport::json`] returns the
//! whole report as JSON. The methods [`html`](NetworkReport::html), [`svg`](NetworkReport::svg) and
//! [`dot`](NetworkReport::dot) draw the network.
//!
//! ```
//! use std::path::Path;
//!
//! use tracewright::Plan;
//! use tracewright::models::ModelConfig;
//! use tracewright_inspect::report::NetworkReport;
//!
//! let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo");
//! let plan = Plan::new(ModelConfig::read(&config, &[])?, None, Some(64), None)?;
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
    pub fn json(&self) -> String {
        match serde_json::to_string(self) {
            Ok(text) => text + "\n",
            // All keys of a report are strings, and no type of a report rejects serialization.
            Err(error) => unreachable!("a report is JSON: {error}"),
        }
    }
}
