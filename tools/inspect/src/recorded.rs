//! Records the network that a command inspects.

use std::path::Path;

use crate::report::NetworkReport;
use console::{ModelArguments, name_of, preset, read_network, read_source, resolved, warn};
use tracewright::Plan;
use tracewright::errors::escaped;
use tracewright::lower::Weights;
use tracewright::models::fit::OpenWarning;
use tracewright::models::{Opened, ReadModel};
use tracewright::targets::Target;
use tracewright::trace::Trace;

use crate::error::InspectError;

pub struct Recorded {
    pub name: String,
    pub plan: Plan,
    pub trace: Trace,
}

impl Recorded {
    pub fn new(model: &Path, asked: &ModelArguments, read: ReadModel) -> Result<Self, InspectError> {
        let (network, name) = named(model, &asked.network.allow_config_key, read)?;
        let mut plan = asked.plan(network, &resolved(model)?, asked.context)?;
        // Kernels differ between machines: they are shown to who asks for them. To others all machines show the same.
        let wants = asked.network.numeric.kernels == Some(true) || asked.network.numeric.quantize.is_some();
        let shown = plan.weights.kernels && wants;
        if !shown {
            plan.target = Target::processor("generic");
            plan.weights = Weights { kernels: false, ..plan.weights.clone() };
        }
        let trace = plan.trace()?.trace;
        Ok(Self { name, plan, trace })
    }

    pub fn report(&self) -> Result<NetworkReport, InspectError> {
        Ok(NetworkReport::new(&self.name, &self.plan, &self.trace, &read_source)?)
    }
}

/// At a path, or of a preset, with its name.
pub fn named(
    model: &Path,
    allowed_keys: &[String],
    read: ReadModel,
) -> Result<(Opened, String), InspectError> {
    let name = match preset(model) {
        Some(preset) => preset.name.to_owned(),
        // Of whatever characters.
        None => escaped(&name_of(model)),
    };
    let model = resolved(model)?;
    // Other commands refuse weights that do not fit; here the configuration is enough.
    let network = read_network(read, &model.into(), allowed_keys)?;
    warn(network.untied_head.clone().map(OpenWarning::UntiedHead).as_slice());
    Ok((network, name))
}
