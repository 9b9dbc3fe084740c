//! `tracewright plan` computes the memory of a model from its configuration.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use console::{FootprintReport, ModelArguments, PartitionReport, print, read_network, warn};
use tracewright::export::xla::{self, check_model, planned};
use tracewright::footprint::{Footprint, Memory};
use tracewright::irpa::ModelFiles;
use tracewright::models::fit::fit_beside;
use tracewright::targets::NamedMachine;
use tracewright::{Plan, PlanError};

use crate::Invocation;
use crate::arguments::{MeshArguments, batch};
use crate::error::Error;

#[derive(Args)]
pub struct Arguments {
    /// Hugging Face model directory, config.json, GGUF file, or the name of a published model size;
    /// `trace-dump presets` lists the names
    pub model: PathBuf,
    #[command(flatten)]
    pub mesh: MeshArguments,
    /// For XLA: speed of each device, from which `plan` estimates the time of a call: a name, or
    /// memory bytes/s, FLOP/s and link bytes/s, such as 3e12:200e12:300e9
    #[arg(long, value_name = NamedMachine::FORMS)]
    pub machine: Option<NamedMachine>,
    /// Number of sequences that a call computes in parallel
    #[arg(long, value_name = "N", value_parser = batch, default_value = "1")]
    pub batch: NonZeroUsize,
    /// Print one JSON object on stdout instead of a table
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model_arguments: ModelArguments,
}

impl Arguments {
    pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
        let read = invocation.read;
        let model = &self.model_arguments;
        let files = ModelFiles::at(&self.model);
        let network = read_network(read, &files, &model.network.allow_config_key)?;
        warn(&fit_beside(&network, files)?);
        let plan = model.plan(network, &self.model, model.context)?;
        let plan = Plan { batch: self.batch.get(), ..plan };
        if self.mesh.is_said() || self.machine.is_some() {
            return partitioned(self, plan);
        }
        let expanded = plan.expand(&plan.record(&plan.steps())?.trace)?;
        let footprint = Footprint::of(&expanded).map_err(PlanError::from)?;
        let memory = Memory::of_machine();
        let report = FootprintReport { plan: &plan, footprint: &footprint, memory };
        let text = if self.json { format!("{}\n", report.json()) } else { report.table() };
        let written = print(&text);
        memory.map_or(Ok(()), |memory| footprint.check(memory))?;
        Ok(written?)
    }
}

fn partitioned(arguments: &Arguments, plan: Plan) -> Result<(), Error> {
    let mesh = arguments.mesh.rules()?;
    check_model(&arguments.model)?;
    let plan = planned(plan);
    let partition = xla::partition(&plan, mesh.as_ref())?;
    let mesh = mesh.as_ref().map(|mesh| &mesh.mesh);
    let machine = arguments.machine.as_ref();
    let report = PartitionReport { plan: &plan, mesh, machine, partition: &partition };
    let text = if arguments.json { format!("{}\n", report.json()) } else { report.table() };
    let written = print(&text);
    machine.map_or(Ok(()), |machine| partition.check(machine))?;
    Ok(written?)
}
