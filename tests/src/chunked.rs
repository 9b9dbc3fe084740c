//! Networks with an entry point for each of several sizes of a step, called by hand: in any order, with any number of tokens of
//! each sequence.

use tracewright::dsl::{EntryPoint, LogitsMode};
use tracewright::irpa::Checkpoint;
use tracewright::lower::Weights;
use tracewright::models;
use tracewright::ops::format::ActivationBits;
use tracewright::ops::{ElementType, TensorType, WeightFormat};
use tracewright::runtime::{Buffer, Device, VmValue};
use tracewright::targets::{Numerics, Target};
use tracewright::trace::{Argument, KvFormat, Quantization, Role, Trace};
use tracewright::{Lowered, Plan};

use crate::built::{Built, Result, compiler, repository};
use crate::level;

/// A model of `tests/fixtures`, or a shipped one, and how it is stored.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    pub model: &'static str,
    pub element: ElementType,
    pub format: Option<WeightFormat>,
    pub kv: KvFormat,
    pub activations: ActivationBits,
    /// The processor that it is compiled for, if not that of [`level::target`].
    pub target: Option<&'static str>,
    pub numerics: Numerics,
}

/// The sequences of a step, and the tokens of each at most.
pub type StepSize = (usize, usize);

/// A variant with an entry point for each size of a step.
pub struct Chunked {
    built: Built,
    pub vocabulary: usize,
    pub context: usize,
}

/// The state of all layers for some sequences.
pub struct SequenceStates {
    batch: usize,
    buffers: Vec<Buffer>,
}

/// New tokens of a sequence, and the position of the first.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepTokens<'a> {
    pub start: usize,
    pub tokens: &'a [u32],
}

/// The name of the entry point for a size.
pub fn name((batch, chunk): StepSize) -> String {
    format!("step_{batch}x{chunk}")
}

/// A variant as a module that is not compiled yet.
pub struct LoweredVariant {
    pub lowered: Lowered,
    pub trace: Trace,
    pub checkpoint: Checkpoint,
    pub vocabulary: usize,
    pub context: usize,
}

impl LoweredVariant {
    /// Compiles and loads it for this machine.
    ///
    /// # Errors
    /// If a part of that fails.
    pub fn load(self, device: Device) -> Result<Chunked> {
        let Self { lowered, trace, checkpoint, vocabulary, context } = self;
        let built = Built::new(lowered, &trace, &checkpoint, device)?;
        Ok(Chunked { built, vocabulary, context })
    }
}

impl Variant {
    /// Compiles and loads it; `edit` may change the text of the module.
    ///
    /// # Errors
    /// If a part of that fails.
    pub fn build(self, sizes: &[StepSize], edit: impl Fn(String) -> String) -> Result<Chunked> {
        const CONTEXT: usize = 40;
        let target = self.target.map_or_else(level::target, Target::processor);
        self.lower(CONTEXT, sizes, &target, edit)?.load(Device::LocalSync)
    }

    /// Lowers it for a target instead of its own. Steps have at most as many tokens as the context, and this has at most
    /// as many as the model supports.
    ///
    /// # Errors
    /// If that fails.
    pub fn lower(
        self,
        context: usize,
        sizes: &[StepSize],
        target: &Target,
        edit: impl Fn(String) -> String,
    ) -> Result<LoweredVariant> {
        let fixture = repository().join("tests/fixtures").join(self.model);
        let folder = if fixture.is_dir() { fixture } else { repository().join(self.model) };
        let network = models::read(&folder, &[])?;
        let (vocabulary, context) = (network.vocabulary(), context.min(network.max_context()));
        let plan = Plan::new(network, Some(self.element), Some(context), None)?;
        let quantize = self.format.map_or(Quantization::Computed, Quantization::All);
        let weights = Weights { quantize, activations: self.activations, ..Weights::default() };
        let target = Target { numerics: self.numerics, ..target.clone() };
        let plan = Plan { weights, target: compiler()?.resolve(&target)?, ..plan };
        let entry = |&(batch, chunk): &StepSize| EntryPoint {
            kv: self.kv,
            ..EntryPoint::new(&name((batch, chunk)), batch, chunk.min(context), context, LogitsMode::All)
        };
        let trace = plan.record(&sizes.iter().map(entry).collect::<Vec<_>>())?.trace;
        let mut lowered = plan.lower(&trace)?;
        lowered.module.text = edit(lowered.module.text);
        lowered.module.text_without_locs = edit(lowered.module.text_without_locs);
        let checkpoint = plan.named(Checkpoint::open(&folder)?);
        Ok(LoweredVariant { lowered, trace, checkpoint, vocabulary, context })
    }
}

impl Chunked {
    fn arguments(&self, size: StepSize) -> Result<&[Argument]> {
        let name = name(size);
        let signature = self.built.module.signatures.iter().find(|signature| signature.name == name);
        Ok(&signature.ok_or_else(|| format!("there is no `{name}`"))?.arguments)
    }

    /// Whether a sequence can go back to position `to` after positions below `written` were written.
    pub fn rewinds(&self, written: usize, to: usize) -> bool {
        let arguments = self.built.module.signatures.iter().flat_map(|signature| &signature.arguments);
        arguments.into_iter().all(|argument| match argument.role {
            Role::State { part, .. } => part.kind.rewinds(written, to),
            _ => true,
        })
    }

    /// The empty state, for a number of sequences that some step takes.
    ///
    /// # Errors
    /// If no step does.
    pub fn empty(&self, size: StepSize) -> Result<SequenceStates> {
        let kept = self.arguments(size)?.iter().filter(|a| matches!(a.role, Role::State { .. }));
        let buffers = kept.map(|a| Buffer::zeros(&self.built.runtime, &a.ty));
        Ok(SequenceStates { batch: size.0, buffers: buffers.collect::<std::result::Result<_, _>>()? })
    }

    /// The logits after each token of a step of the sequences from `first` on.
    ///
    /// # Errors
    /// If the call fails.
    pub fn step(
        &self,
        size: StepSize,
        first: usize,
        runs: &[StepTokens<'_>],
        state: &mut SequenceStates,
    ) -> Result<Vec<Vec<Vec<f32>>>> {
        let (batch, chunk) = (size.0, size.1.min(self.context));
        assert!(runs.len() == batch && first + batch <= state.batch, "a run for each sequence");
        let parts = state.buffers.iter_mut().map(|buffer| buffer.rows(first, batch));
        let parts = parts.collect::<std::result::Result<Vec<_>, _>>()?;
        let (mut kept, mut arguments) = (parts.into_iter(), Vec::<VmValue>::new());
        for argument in self.arguments(size)? {
            let numbers: Vec<u32> = match argument.role {
                Role::Tokens => {
                    let padded = |run: &StepTokens<'_>| {
                        let padding = std::iter::repeat_n(0, chunk - run.tokens.len());
                        run.tokens.iter().copied().chain(padding).collect::<Vec<_>>()
                    };
                    runs.iter().flat_map(padded).collect()
                }
                Role::Start { .. } => runs.iter().map(|run| run.start as u32).collect(),
                Role::Count => runs.iter().map(|run| run.tokens.len() as u32).collect(),
                Role::State { .. } => {
                    arguments.extend(kept.next().map(VmValue::Buffer));
                    continue;
                }
                role => return Err(format!("an argument is {role:?}").into()),
            };
            arguments.push(if argument.is_host_scalar() {
                (numbers[0] as i32).into()
            } else {
                let bytes: Vec<u8> = numbers.into_iter().flat_map(u32::to_le_bytes).collect();
                Buffer::from_bytes(&self.built.runtime, &argument.ty, &bytes)?.into()
            });
        }
        let mut results = self.built.program.function(&name(size))?.call(arguments)?.into_iter();
        let logits = results.next().and_then(VmValue::buffer).ok_or("there are no logits")?;
        assert_eq!(logits.ty(), &TensorType::new(ElementType::F32, [batch, chunk, self.vocabulary]));
        for (buffer, part) in state.buffers.iter_mut().zip(results.filter_map(VmValue::buffer)) {
            buffer.put_rows(first, part)?;
        }
        let bytes = logits.read()?;
        let logits: Vec<f32> = bytes.as_chunks().0.iter().copied().map(f32::from_le_bytes).collect();
        let rows: Vec<Vec<f32>> = logits.chunks(self.vocabulary).map(<[f32]>::to_vec).collect();
        let run = |(run, rows): (&StepTokens<'_>, &[Vec<f32>])| rows[..run.tokens.len()].to_vec();
        Ok(runs.iter().zip(rows.chunks(chunk)).map(run).collect())
    }
}
