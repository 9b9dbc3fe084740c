//! `trace-dump presets` lists the published model sizes, and the repositories of their configurations.

use clap::Args;
use serde_json::{Value, json};
use tracewright::models::presets::Preset;

use crate::error::InspectError;

#[derive(Args)]
pub struct PresetsArguments {
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
}

impl PresetsArguments {
    pub fn run(&self) -> Result<(), InspectError> {
        let text = if self.json {
            let preset = |preset: &Preset| json!({ "name": preset.name, "repository": preset.repository });
            format!("{:#}\n", Value::Array(Preset::all().map(preset).collect()))
        } else {
            Preset::all().map(|preset| format!("{:<20} {}\n", preset.name, preset.repository)).collect()
        };
        Ok(console::print(&text)?)
    }
}
