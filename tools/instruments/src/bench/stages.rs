//! Measures the time of the stages that build a program, such as recording, compiling and baking.

use std::path::Path;
use std::time::Instant;

use bake::BakeOptions;
use files::Scratch;
use irpa::Checkpoint;
use lower::Module;
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
    /// The module with which a model starts, if it has fewer entry points.
    first: Option<Module>,
}

/// The phases of `iree-compile` in their order, by the names of its option `--compile-to`: StableHLO is read,
/// dispatches are formed, memory is planned, and the code of executables is generated.
const PHASES: [&str; 4] = ["input", "flow", "executable-sources", "executable-targets"];

impl Stages {
    /// Lowers the plan once, and stores the text of the MLIR module for the benchmark cases.
    pub fn new(plan: Plan) -> Result<Self, BenchError> {
        let recorded = plan.record(&plan.steps())?.trace;
        let expanded = plan.expand(&recorded)?;
        let lowered = expanded.lower(plan.model.ignorable.clone()).map_err(PlanError::from)?;
        let first = expanded.apart().map_err(PlanError::from)?.map(|mut modules| modules.swap_remove(0));
        Ok(Self { plan, recorded, expanded, lowered, first })
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

    /// The compilation of all entry points with an empty cache.
    pub fn compile<'a>(&'a self, compiler: &'a Compiler) -> Case<'a> {
        self.compilation("compile".into(), compiler, &self.lowered.module, None)
    }

    /// The compilation up to each phase of `iree-compile`, and of the module with which a model starts. Each row
    /// includes the rows before it.
    pub fn compile_phases<'a>(&'a self, compiler: &'a Compiler) -> Vec<Case<'a>> {
        let module = self.first.as_ref().unwrap_or(&self.lowered.module);
        let to = |phase: &'static str| {
            self.compilation(format!("first module to {phase}"), compiler, module, Some(phase))
        };
        let mut cases: Vec<Case<'a>> = PHASES.into_iter().map(to).collect();
        cases.push(self.compilation("first module".into(), compiler, module, None));
        cases.push(self.compile(compiler));
        cases
    }

    fn compilation<'a>(
        &'a self,
        case: String,
        compiler: &'a Compiler,
        module: &'a Module,
        phase: Option<&'static str>,
    ) -> Case<'a> {
        self.case(&case, Workload::default(), move || {
            let cache = Scratch::new_in(&std::env::temp_dir())?;
            let mut options = compile_options(&self.lowered, compiler).map_err(LoadError::from)?;
            options.flags.extend(phase.map(|phase| format!("--compile-to={phase}")));
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
