//! Measures the time of the stages that build a program, such as recording, compiling and baking.

use std::path::Path;
use std::time::Instant;

use bake::BakeOptions;
use files::Scratch;
use irpa::Checkpoint;
use runtime::Compiler;

use super::{BenchError, Case, Label, Workload};
use crate::profile::variant;
use tracewright::build::{LoadError, compile, compile_options};
use tracewright::{Expanded, Lowered, Plan, PlanError};

/// Contains a plan for a program, and the results of the stages that build the planned program.
pub struct Stages {
    plan: Plan,
    recorded: trace::Trace,
    expanded: Expanded,
    lowered: Lowered,
}

impl Stages {
    /// Lowers the plan once, and stores the text of the MLIR module for the benchmark cases.
    pub fn new(plan: Plan) -> Result<Self, BenchError> {
        let recorded = plan.record(&plan.steps())?.trace;
        let expanded = plan.expand(&recorded)?;
        let lowered = expanded.lower(plan.model.ignorable.clone()).map_err(PlanError::from)?;
        Ok(Self { plan, recorded, expanded, lowered })
    }

    /// The stages before compilation: record, then simplify and expand, then write the module's text.
    pub fn trace(&self) -> [Case<'_>; 3] {
        [
            self.case("record", Workload::default(), || {
                self.plan.trace()?;
                Ok(())
            }),
            self.case("expand", Workload::default(), || {
                self.plan.expand(&self.recorded)?;
                Ok(())
            }),
            self.case("lower", Workload::default(), || {
                let lowered = self.expanded.lower(self.plan.model.ignorable.clone());
                lowered.map_err(PlanError::from)?;
                Ok(())
            }),
        ]
    }

    /// With an empty cache.
    pub fn compile<'a>(&'a self, compiler: &'a Compiler) -> Case<'a> {
        self.case("compile", Workload::default(), move || {
            let cache = Scratch::new_in(&std::env::temp_dir())?;
            let module = &self.lowered.module;
            let options = compile_options(&self.lowered, compiler).map_err(LoadError::from)?;
            compile(module, compiler, &options, cache.path()).map_err(LoadError::from)?;
            Ok(())
        })
    }

    /// Reports bytes per second.
    pub fn bake<'a>(&'a self, checkpoint: &'a Checkpoint, folder: &'a Path) -> Case<'a> {
        let bytes: usize = self.lowered.module.parameters.iter().map(|p| p.ty.bytes()).sum();
        self.case("bake", Workload { bytes: Some(bytes as f64), ..Workload::default() }, move || {
            let out = Scratch::new_in(folder)?;
            let out = out.path().join("bench.irpa");
            self.lowered.bake(checkpoint, &out, BakeOptions::default()).map_err(LoadError::from)?;
            Ok(())
        })
    }

    fn case<'a>(
        &self,
        case: &str,
        work: Workload,
        mut stage: impl FnMut() -> Result<(), BenchError> + 'a,
    ) -> Case<'a> {
        let label = Label { case: case.into(), variant: variant(&self.plan), flags: Vec::new() };
        let run = move || {
            let start = Instant::now();
            stage()?;
            Ok(start.elapsed().as_secs_f64())
        };
        Case { label, work, run: Box::new(run), watched: None }
    }
}
