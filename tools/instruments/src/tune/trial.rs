//! Compares the speed of a kernel with different tilings. A trial first checks the results of the
//! kernel, and then measures the time of the kernel.

use std::cell::Cell;
use std::iter::zip;
use std::time::Instant;

use files::Scratch;
use lower::{Module, Tunable};
use ops::{ElementType, TensorType, Value};
use runtime::{
    Buffer, CompileError, Compiler, ModuleCache, ModuleText, Runtime, RuntimeError, VmFunction, VmModule,
    VmValue,
};
use targets::{Target, Tiling};
use tracewright::tuning::Verdict;

use super::TuneError;
use super::attention::AttentionSample;
use super::experts::ExpertsSample;
use super::matmul::MatmulSample;
use super::sample::{ALL, ONE, Sample};
use crate::bench::Distribution;

/// The number of pairs of measurements from which a trial computes the first estimate.
const SCREENED: usize = 2;
const PAIRS: usize = 9;

/// Seconds.
const SAMPLE: f64 = 4e-3;

pub struct Workbench<'a> {
    pub compiler: &'a Compiler,
    pub runtime: &'a Runtime,
    /// The target for which the compiler generates code, including all features of the processor.
    pub target: &'a Target,
    /// For inputs and weights.
    pub seed: u64,
}

/// The program with the default tiling, with which others are compared.
pub struct Trials<'a> {
    bench: &'a Workbench<'a>,
    name: String,
    sample: Box<dyn Sample>,
    usual: Loaded,
    /// Contains the values that the evaluator computes for some elements of the operation's result.
    expected: Value,
    uploads: Uploads,
    tried: Cell<u64>,
}

type Uploads = Vec<(TensorType, Vec<u8>)>;

struct Loaded {
    one: VmFunction,
    all: VmFunction,
}

impl<'a> Trials<'a> {
    /// Loads the program with the default tiling, and compares the results of the program with the evaluator.
    pub fn new(
        work: &Tunable,
        name: &str,
        usual: Tiling,
        bench: &'a Workbench<'a>,
    ) -> Result<Self, TuneError> {
        let sample = sample(work, bench.seed);
        let module = sample.lowered(bench.target, name, usual)?;
        let usual = bench.load(&module, &*sample)?;
        let (expected, uploads) = (sample.expected()?, uploads(&sample.arguments(0)));
        let tried = Cell::new(0);
        let trials = Self { bench, name: name.into(), sample, usual, expected, uploads, tried };
        match trials.differs_from_the_evaluator(&trials.usual)? {
            Some(how) => Err(TuneError::Wrong { work: name.into(), how }),
            None => Ok(trials),
        }
    }

    pub fn module(&self, tiling: Tiling) -> Result<Module, TuneError> {
        self.sample.lowered(self.bench.target, &self.name, tiling)
    }

    /// Compares some elements with the evaluator, all with the default tiling, and then measures.
    pub fn of(&self, module: &Module) -> Result<Verdict, TuneError> {
        let loaded = match self.bench.load(module, &*self.sample) {
            Err(TuneError::Compile(error)) if is_refusal(&error) => {
                return Ok(Verdict::Refused(error.to_string()));
            }
            loaded => loaded?,
        };
        let elsewhere = self.differs_from_the_usual(&loaded)?;
        if let Some(how) = self.differs_from_the_evaluator(&loaded)?.or(elsewhere) {
            return Ok(Verdict::Wrong(how));
        }
        // The first calls cause page faults, so the trial does not count them. The time of the second call
        // determines the number of calls per measurement.
        self.bench.seconds(&loaded.all, &self.uploads, 1)?;
        let once = self.bench.seconds(&self.usual.all, &self.uploads, 1)?;
        let calls = (SAMPLE / once).ceil().clamp(1.0, 1e3) as usize;
        let seconds = |loaded: &Loaded| self.bench.seconds(&loaded.all, &self.uploads, calls);
        in_turn(&mut || seconds(&self.usual), &mut || seconds(&loaded))
    }

    fn differs_from_the_evaluator(&self, loaded: &Loaded) -> Result<Option<String>, TuneError> {
        let found = self.sample.sample(&self.bench.call(&loaded.one, &self.uploads)?);
        Ok(self.sample.bound_of_sample().first_violation(&self.expected, &found).map(said))
    }

    /// With new arguments: a program that writes nothing could seem correct by the memory of a previous call.
    fn differs_from_the_usual(&self, loaded: &Loaded) -> Result<Option<String>, TuneError> {
        self.tried.set(self.tried.get() + 1);
        let others = uploads(&self.sample.arguments(self.tried.get()));
        let found = self.bench.call(&loaded.one, &others)?;
        let expected = self.bench.call(&self.usual.one, &others)?;
        Ok(self.sample.bound().first_violation(&expected, &found).map(said))
    }
}

/// In alternation; stops early if the tested tiling is not faster at first.
pub(super) fn in_turn(
    usual: &mut dyn FnMut() -> Result<f64, TuneError>,
    other: &mut dyn FnMut() -> Result<f64, TuneError>,
) -> Result<Verdict, TuneError> {
    match pairs(usual, other, SCREENED)? {
        Verdict::Ratio { median, shortest, .. } if median.min(shortest) < 1.0 => {}
        slower => return Ok(slower),
    }
    let first = pairs(usual, other, PAIRS)?;
    if first.faster().is_none() {
        return Ok(first);
    }
    // Among many tilings, some look faster by chance. So a faster tiling must also be faster in a second
    // measurement.
    let again = pairs(usual, other, PAIRS)?;
    Ok(if again.faster() > first.faster() || again.faster().is_none() { again } else { first })
}

/// Seconds of the default tiling and the tested one.
fn pairs(
    usual: &mut dyn FnMut() -> Result<f64, TuneError>,
    other: &mut dyn FnMut() -> Result<f64, TuneError>,
    count: usize,
) -> Result<Verdict, TuneError> {
    let mut times = [Vec::new(), Vec::new()];
    for pair in 0..count {
        // Each program runs first in every second pair.
        for which in [pair % 2, 1 - pair % 2] {
            times[which].push(if which == 0 { usual()? } else { other()? });
        }
    }
    let [usual, other] = &times;
    let ratios: Vec<f64> = zip(other, usual).map(|(other, usual)| other / usual).collect();
    let Distribution { median, upper_quartile, .. } = Distribution::of(&ratios);
    let [usual, other] = [usual, other].map(|times| Distribution::of(times).min);
    Ok(Verdict::Ratio { median, upper_quartile, shortest: other / usual })
}

impl Workbench<'_> {
    fn load(&self, module: &Module, sample: &dyn Sample) -> Result<Loaded, TuneError> {
        let folder = Scratch::new_in(&std::env::temp_dir())?;
        let options = self.compiler.options(self.target, ElementType::F32, true)?;
        let text = ModuleText { text: &module.text, text_without_locs: &module.text_without_locs };
        let compiled = runtime::compile(self.compiler, &text, &options, &ModuleCache::new(folder.path()))?;
        let program = VmModule::load(self.runtime, compiled.vmfb, &[sample.parameters()])?;
        Ok(Loaded { one: program.function(ONE)?, all: program.function(ALL)? })
    }

    fn arguments(&self, uploads: &Uploads) -> Result<Vec<VmValue>, RuntimeError> {
        let upload = |(ty, bytes): &(TensorType, Vec<u8>)| Buffer::from_bytes(self.runtime, ty, bytes);
        uploads.iter().map(|argument| Ok(upload(argument)?.into())).collect()
    }

    fn call(&self, function: &VmFunction, uploads: &Uploads) -> Result<Value, TuneError> {
        let results = function.call(self.arguments(uploads)?)?;
        let Some(result) = results.into_iter().next().and_then(VmValue::buffer) else {
            unreachable!("the function returns a tensor")
        };
        Ok(Value::from_bytes(result.ty().clone(), &result.read()?))
    }

    fn seconds(&self, function: &VmFunction, uploads: &Uploads, calls: usize) -> Result<f64, TuneError> {
        let mut seconds = 0.0;
        for _ in 0..calls {
            let arguments = self.arguments(uploads)?;
            let start = Instant::now();
            function.call(arguments)?;
            seconds += start.elapsed().as_secs_f64();
        }
        Ok(seconds / calls as f64)
    }
}

/// Creates a test program for a fused operation, with random inputs.
fn sample(work: &Tunable, seed: u64) -> Box<dyn Sample> {
    match work {
        Tunable::Matmul(product) => Box::new(MatmulSample::new(product, seed)),
        Tunable::Experts(experts) => Box::new(ExpertsSample::new(experts, seed)),
        Tunable::Attention(attention) => Box::new(AttentionSample::new(attention, seed)),
    }
}

pub(super) fn is_refusal(error: &CompileError) -> bool {
    use CompileError::{Failed, Killed, TimedOut};
    matches!(error, Failed { .. } | Killed { .. } | TimedOut { .. })
}

fn uploads(values: &[Value]) -> Uploads {
    values.iter().map(|value| (value.ty.clone(), value.to_bytes())).collect()
}

pub(super) fn said((index, expected, found): (usize, f64, f64)) -> String {
    format!("number {index} is {found}, expected {expected}")
}
