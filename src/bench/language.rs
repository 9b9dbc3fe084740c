//! Language models: how fast they read a prompt and write an answer.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use dsl::Traced;
use generate::{Batch, GenerateOptions, Generated, Network, Session};
use irpa::Checkpoint;
use runtime::Runtime;

use super::paths::{Paths, paths};
use super::{BenchError, Case, Label, Watched, Work, flops};
use crate::footprint::Footprint;
use crate::load::{LoadError, LoadOptions, compile_options, load};
use crate::plan::PlanError;
use crate::{Expanded, Plan};

/// A language model that is loaded to be measured.
pub struct Language {
    network: Network,
    runtime: Runtime,
    paths: Paths,
    footprint: Footprint,
    expanded: Expanded,
    plan: Plan,
    flags: Vec<String>,
}

impl Language {
    /// Loads a plan's network. How it is built says the plan; the options' compiler, cache and device count.
    ///
    /// # Errors
    /// The first stage that fails.
    pub fn load(plan: Plan, checkpoint: &Checkpoint, options: LoadOptions<'_>) -> Result<Self, BenchError> {
        let traced = plan.trace()?;
        let traced = Traced { trace: traced.trace.with_entries(&["prefill", "decode"]), ..traced };
        let expanded = plan.expand(&traced.trace)?;
        let footprint = Footprint::of(&expanded, &plan.target).map_err(PlanError::from)?;
        let compiler = options.compiler;
        let (target, ignorable) = (plan.target.clone(), plan.model.ignorable());
        let options = LoadOptions { target, rules: plan.rules, weights: plan.weights, ignorable, ..options };
        let loaded = load(&traced, checkpoint, options)?;
        let module = &loaded.module;
        let compiled = compile_options(module, compiler, &plan.target).map_err(LoadError::from)?;
        let paths = paths(module, compiler, &compiled)?;
        Ok(Self {
            network: loaded.program.network()?,
            runtime: loaded.runtime,
            paths,
            footprint,
            expanded,
            plan,
            flags: compiled.all_flags(),
        })
    }

    /// The footprint that was planned.
    pub fn footprint(&self) -> &Footprint {
        &self.footprint
    }

    /// Tokens that one prefill takes.
    pub fn chunk(&self) -> usize {
        self.network.chunk()
    }

    /// Decoding: a unit is a step, which gives one token for each row; a run is `tokens` of them, behind `depth` others.
    ///
    /// # Errors
    /// If so many do not fit into the context.
    pub fn decode(&self, depth: usize, tokens: usize) -> Result<Case<'_>, BenchError> {
        self.check(depth, tokens)?;
        let (prompt, batch) = (self.prompt(depth + 1), self.network.batch());
        let options = GenerateOptions { max_tokens: tokens, ..GenerateOptions::default() };
        let run: Box<dyn FnMut() -> Result<f64, BenchError>> = match batch {
            1 => {
                let mut session = Session::new(&self.network);
                Box::new(move || {
                    session.truncate(depth);
                    let seen = session.tokens().len();
                    if seen < depth {
                        session.feed(&prompt[seen..depth])?;
                    }
                    let generated =
                        session.generate(&prompt[depth..], &options, |_| ControlFlow::Continue(()))?;
                    let seconds = (generated.prefill + generated.decode).as_secs_f64();
                    Ok(seconds / (1 + generated.decode_steps) as f64)
                })
            }
            _ => Box::new(move || {
                let prompts = vec![&prompt[..]; batch];
                let mut rows = Batch::new(&self.network);
                // One more, since the prompts' step gives the first.
                let options = GenerateOptions { max_tokens: options.max_tokens + 1, ..options.clone() };
                let generated = rows.generate(&prompts, &options, |_, _| ControlFlow::Continue(()))?;
                let seconds = |one: &Generated| one.decode.as_secs_f64() / one.decode_steps.max(1) as f64;
                Ok(generated.iter().map(seconds).fold(0.0, f64::max))
            }),
        };
        let work = Work {
            tokens: Some(batch as f64),
            flops: Some(flops(&self.expanded.trace, "decode", &self.plan.target)),
            bytes: Some(self.footprint.streamed as f64),
        };
        let sizes = [("depth", depth.to_string())];
        // A batch reads its prompts in the same run.
        let watched = (batch == 1).then_some(tokens);
        Ok(self.case("decode", sizes, work, run, watched))
    }

    /// Reading a prompt of `tokens` tokens: a unit is the whole of it, up to the first new token.
    ///
    /// # Errors
    /// If so many do not fit into the context.
    pub fn prefill(&self, tokens: usize) -> Result<Case<'_>, BenchError> {
        self.check(0, tokens)?;
        let prompt = self.prompt(tokens);
        let options = GenerateOptions { max_tokens: 1, ..GenerateOptions::default() };
        let run = Box::new(move || {
            let mut session = Session::new(&self.network);
            let generated = session.generate(&prompt, &options, |_| ControlFlow::Continue(()))?;
            Ok(generated.prefill.as_secs_f64())
        });
        let calls = tokens.div_ceil(self.network.chunk()) as f64;
        let work = Work {
            tokens: Some(tokens as f64),
            flops: Some(calls * flops(&self.expanded.trace, "prefill", &self.plan.target)),
            bytes: Some(calls * self.footprint.streamed as f64),
        };
        let sizes = [("tokens", tokens.to_string()), ("chunk", self.network.chunk().to_string())];
        Ok(self.case("prefill", sizes, work, run, Some(1)))
    }

    fn case<'a>(
        &'a self,
        case: &str,
        sizes: impl IntoIterator<Item = (&'static str, String)>,
        work: Work,
        run: Box<dyn FnMut() -> Result<f64, BenchError> + 'a>,
        units: Option<usize>,
    ) -> Case<'a> {
        let mut variant = plan_variant(&self.plan);
        variant.extend(sizes);
        Case {
            label: Label { case: case.into(), variant, flags: self.flags.clone() },
            work,
            run,
            watched: units.map(|units| Watched { runtime: &self.runtime, paths: &self.paths, units }),
        }
    }

    fn check(&self, depth: usize, tokens: usize) -> Result<(), BenchError> {
        let context = self.network.context();
        match depth + tokens < context && tokens > 0 {
            true => Ok(()),
            false => Err(BenchError::Depth { depth, tokens, context }),
        }
    }

    /// Tokens that are spread over the vocabulary.
    fn prompt(&self, tokens: usize) -> Vec<u32> {
        (0..tokens).map(|i| (i * 7919 % self.network.vocabulary()) as u32).collect()
    }
}

/// What tells plans apart.
pub(super) fn plan_variant(plan: &Plan) -> BTreeMap<&'static str, String> {
    let kernels = if plan.weights.kernels { "on" } else { "off" };
    let quant = plan.weights.quantize.map_or("none", |format| format.word());
    BTreeMap::from([
        ("dtype", plan.element.to_string()),
        ("quant", quant.to_owned()),
        ("kernels", kernels.to_owned()),
        ("simplify", plan.rules.to_string()),
        ("context", plan.context.to_string()),
        ("batch", plan.batch.to_string()),
    ])
}
