//! Measures a single operation, such as a matmul. Each operation is compiled as a separate program.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::time::Instant;

use bake::BakeOptions;
use errors::WithPath as _;
use files::Scratch;
use irpa::{Archive, Checkpoint};
use lower::LowerError;
use ops::ops::{Linear, MaskTerm, Sdpa};
use ops::{ElementType, InferError, TensorType};
use runtime::{Buffer, Runtime, VmFunction, VmModule, VmValue};
use trace::{Builder, Function, FunctionId, NodeKind, Output, Parameter, Provenance, Role, Trace};

use super::language::watched;
use super::paths::{Paths, paths};
use super::{BenchError, Case, Label, Run, Watched, Workload, flops};
use tracewright::build::{BuildTools, LoadError, ProgramOptions, compile, compile_options, instantiate};
use tracewright::random::write_random;
use tracewright::{Expanded, PlanError};

/// Calls of the operation per run.
const CALLS: usize = 8;

const ENTRY: &str = "run";

/// Input `[m, k]`, weight `[n, k]`, result `[m, n]`.
#[derive(Clone, Copy, Debug)]
pub struct Matmul {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub element: ElementType,
}

/// Causal, without a window: queries `[heads, groups, queries, features]`, keys and values `[heads, context,
/// features]`.
#[derive(Clone, Copy, Debug)]
pub struct AttentionSizes {
    pub queries: usize,
    pub heads: usize,
    /// Query heads per key head.
    pub groups: usize,
    pub features: usize,
    pub context: usize,
    pub depth: usize,
    pub element: ElementType,
}

pub struct Single {
    loaded: (Runtime, VmFunction),
    /// A copy of the operation on a second device that counts calls of each compiled function.
    watched: Option<((Runtime, VmFunction), Paths)>,
    /// A tensor with its bytes, or an integer in the host's memory.
    arguments: Vec<Result<(TensorType, Vec<u8>), i32>>,
    label: Label,
    work: Workload,
}

impl Matmul {
    /// The options select the storage format of the weight.
    pub fn load(self, seed: u64, options: ProgramOptions<'_>) -> Result<Single, BenchError> {
        let Self { m, n, k, element } = self;
        let weight = Parameter::new("layers.0.weight", TensorType::new(element, [n, k]));
        let x = TensorType::new(element, [m, k]);
        let trace = recorded("matmul", |b| {
            let ty = weight.ty.clone();
            let x = b.push(NodeKind::input(0, "x"), vec![x.clone()], &[]);
            let weight = b.push(NodeKind::Parameter(weight), vec![ty], &[]);
            b.op(Linear {}, &[x, weight])
        })?;
        let sizes = [("m", m), ("n", n), ("k", k)].map(|(name, size)| (name, size.to_string()));
        let arguments = vec![Ok(numbers(x))];
        Single::load("matmul", element, sizes, &trace, arguments, seed, options)
    }
}

impl AttentionSizes {
    pub fn load(self, seed: u64, options: ProgramOptions<'_>) -> Result<Single, BenchError> {
        let Self { queries, heads, groups, features, context, depth, element } = self;
        let q = TensorType::new(element, [1, heads, groups, queries, features]);
        let kv = TensorType::new(element, [1, heads, context, features]);
        let trace = recorded("attention", |b| {
            let types = [("q", &q), ("k", &kv), ("v", &kv)];
            let mut operands: Vec<_> = types
                .into_iter()
                .enumerate()
                .map(|(i, (name, ty))| b.push(NodeKind::input(i, name), vec![ty.clone()], &[]))
                .collect();
            let start = NodeKind::Input { index: 3, name: "start".into(), role: Role::Start { context } };
            operands.push(b.push(start, vec![TensorType::new(ElementType::I32, [])], &[]));
            let op = Sdpa { mask: vec![MaskTerm::Causal], scale: None, softcap: None, offset: true };
            b.op(op, &operands)
        })?;
        let sizes = [
            ("queries", queries),
            ("heads", heads),
            ("groups", groups),
            ("features", features),
            ("context", context),
            ("depth", depth),
        ];
        let sizes = sizes.map(|(name, size)| (name, size.to_string()));
        let arguments = vec![Ok(numbers(q)), Ok(numbers(kv.clone())), Ok(numbers(kv)), Err(depth as i32)];
        let mut single = Single::load("attention", element, sizes, &trace, arguments, seed, options)?;
        // Attention reads keys and values up to the last query, and multiplies queries and scores with these
        // keys and values.
        let seen = (depth + queries).min(context);
        let row = heads * features;
        single.work.bytes = Some((2 * seen * row * element.bits() / 8) as f64);
        single.work.flops = Some((4 * queries * seen * groups * row) as f64);
        Ok(single)
    }
}

fn recorded(
    name: &str,
    body: impl FnOnce(&mut Builder<'_>) -> Result<trace::NodeId, InferError>,
) -> Result<Trace, BenchError> {
    let function = entry(ENTRY, name, body).map_err(PlanError::from)?;
    Ok(Trace { functions: vec![function], entries: vec![FunctionId(0)] })
}

pub(crate) fn entry(
    function: &str,
    path: &str,
    body: impl FnOnce(&mut Builder<'_>) -> Result<trace::NodeId, InferError>,
) -> Result<Function, LowerError> {
    let mut made = Function::new(function, "");
    let provenance = Provenance::new(path, file!(), line!());
    let result = body(&mut Builder { function: &mut made, provenance: provenance.clone() });
    let result = result.map_err(|source| LowerError::Infer {
        function: function.into(),
        node: 0,
        provenance,
        source: Box::new(source),
    })?;
    made.outputs = vec![Output::new("result", result)];
    Ok(made)
}

/// Creates a tensor whose elements are different numbers between −1 and 1.
fn numbers(ty: TensorType) -> (TensorType, Vec<u8>) {
    let mut bytes = vec![0; ty.bytes()];
    for i in 0..ty.count() {
        let number = f64::from((i as u32).wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 23) - 1.0;
        ty.element.store(&mut bytes, i, ty.element.encode(number));
    }
    (ty, bytes)
}

impl Single {
    fn load(
        case: &str,
        element: ElementType,
        sizes: impl IntoIterator<Item = (&'static str, String)>,
        trace: &Trace,
        arguments: Vec<Result<(TensorType, Vec<u8>), i32>>,
        seed: u64,
        options: ProgramOptions<'_>,
    ) -> Result<Self, BenchError> {
        let ProgramOptions { tools, target, rules, weights, device, .. } = options;
        let BuildTools { compiler, cache, .. } = tools;
        let target = compiler.resolve(&target).map_err(LoadError::from)?;
        let expanded = Expanded::new(trace, rules, target, weights.clone()).map_err(LoadError::from)?;
        let lowered = expanded.lower(Vec::new()).map_err(LoadError::from)?;
        let options = compile_options(&lowered, compiler).map_err(LoadError::from)?;
        let vmfb = compile(&lowered.module, compiler, &options, cache).map_err(LoadError::from)?.vmfb;
        let parameters = trace.parameters().map_err(PlanError::from)?;
        let archive = if parameters.is_empty() {
            None
        } else {
            fs::create_dir_all(cache).with_path("create", cache)?;
            let folder = Scratch::new_in(cache)?;
            let config = folder.path().join("none.json");
            fs::write(&config, "{}").with_path("write", &config)?;
            let model = folder.path().join("weights");
            write_random(&config, &parameters, seed, &model, &|_| ControlFlow::Continue(()))?;
            let archive = folder.path().join("weights.irpa");
            let checkpoint = Checkpoint::open(&model)?;
            lowered.bake(&checkpoint, &archive, BakeOptions::default()).map_err(LoadError::from)?;
            // The archive is mapped into memory, so the data stays available after the folder is deleted.
            Some(Archive::open(&archive)?)
        };
        let on = |device| -> Result<(Runtime, VmFunction), BenchError> {
            let runtime = Runtime::new(device)?;
            let program = match &archive {
                Some(archive) => instantiate(&lowered.module, &runtime, &vmfb, archive)?,
                None => VmModule::load(&runtime, &vmfb, &[])?,
            };
            let function = program.function(ENTRY)?;
            Ok((runtime, function))
        };
        let loaded = on(device)?;
        let watched = match watched(device) {
            Some(device) => Some((on(device)?, paths(&lowered.module, compiler, &options)?)),
            None => None,
        };
        let kernels = if weights.kernels { "on" } else { "off" };
        let (quant, activations) = (weights.quantize.to_string(), weights.activations.word().to_owned());
        let mut variant: BTreeMap<&'static str, String> = sizes.into_iter().collect();
        variant.extend([("dtype", element.to_string()), ("kernels", kernels.into()), ("quant", quant)]);
        variant.insert("activations", activations);
        let stored: usize = lowered.module.parameters.iter().map(|p| p.ty.bytes()).sum();
        let work = Workload {
            tokens: None,
            flops: Some(flops(&expanded.trace, ENTRY, &expanded.target)),
            bytes: Some(stored as f64),
        };
        Ok(Self {
            loaded,
            watched,
            arguments,
            label: Label { case: case.into(), variant, flags: options.all_flags() },
            work,
        })
    }

    /// Uploads the arguments before the measurement begins.
    pub fn case(&self) -> Case<'_> {
        let watched = self.watched.as_ref().map(|(called, paths)| {
            let (runtime, _) = called;
            Watched { runtime, run: self.calls(called), before: None, units: CALLS, paths }
        });
        Case { label: self.label.clone(), work: self.work, run: self.calls(&self.loaded), watched }
    }

    fn calls<'a>(&'a self, (runtime, function): &'a (Runtime, VmFunction)) -> Run<'a> {
        Box::new(move || {
            let mut seconds = 0.0;
            for _ in 0..CALLS {
                let mut arguments: Vec<VmValue> = Vec::with_capacity(self.arguments.len());
                for argument in &self.arguments {
                    arguments.push(match argument {
                        Ok((ty, bytes)) => Buffer::from_bytes(runtime, ty, bytes)?.into(),
                        Err(number) => (*number).into(),
                    });
                }
                let start = Instant::now();
                function.call(arguments)?;
                seconds += start.elapsed().as_secs_f64();
            }
            Ok(seconds / CALLS as f64)
        })
    }
}
