//! Runs a model on the engine thread, which owns the runtime and the network. Requests arrive on a channel.

use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use generate::{
    Batch, Budgeted, DraftModel, Drafter, Executor, Finish, GenerateError, Generated, Lookup, MtpDrafter,
    Network, Reply, SavedSequence, Session, TokenLogprobs, Tokenizer, check_tokens,
};
use irpa::{Archive, ModelFiles};
use models::{LoraMatrices, ModelKind, Opened};
use program::{AdapterRoom, LoadedNetwork};
use runtime::Transfers;
use targets::DeviceName;

use super::adapters::{Adapters, LoadedAdapter};
use super::jobs::{
    AlignJob, Completion, EmbedJob, Embedded, GenerateJob, Job, Listener, ModelInfo, TextEvent,
};
use super::source::{BuildInfo, Ready, Source, build_checkpoint, open_export};
use super::tiles::{self, KnownTiles};
use super::{ModelError, OpenOptions, Speculation, words};
use crate::embed::{Embedder, check_texts, length_for};
use crate::xla::StartedPlugins;

pub(super) struct Unbuilt {
    pub files: ModelFiles,
    pub source: Source,
    pub tokenizer: Option<Arc<Tokenizer>>,
    pub options: OpenOptions,
    pub adapters: Option<Arc<Adapters>>,
    pub draft: Option<DraftSource>,
}

pub(super) struct DraftSource {
    pub files: ModelFiles,
    pub source: Source,
    pub options: OpenOptions,
}

/// Builds the network, tells the result, and processes jobs until all handles are dropped.
pub(super) fn run(network: Unbuilt, tell: &Sender<Result<ModelInfo, ModelError>>, jobs: &Receiver<Job>) {
    let Unbuilt { files, source, tokenizer, options, adapters, draft } = network;
    let room = adapters.as_deref().map(|adapters| &adapters.room);
    let plugins = StartedPlugins::default();
    let built = Engine::build(&files, &source, &options, &plugins, room);
    let built = built.and_then(|engine| Ok((engine, draft.map(|draft| draft.build(&plugins)).transpose()?)));
    let (engine, draft) = match built {
        Ok(built) => built,
        Err(error) => return drop(tell.send(Err(error))),
    };
    let from = Origin { files: &files, source: &source, options: &options, plugins: &plugins, room };
    match &engine {
        Engine::Embedding(model) => {
            let info = ModelInfo {
                context: model.max_context(),
                vocabulary: model.vocabulary(),
                slots: 1,
                build: None,
                warnings: Vec::new(),
            };
            if tell.send(Ok(info)).is_ok() {
                Embeddings { from, model, programs: BTreeMap::new() }.serve(jobs);
            }
        }
        Engine::Text(build, network) => {
            let (tokenizer, draft) = (tokenizer.as_deref(), draft.as_ref());
            match &**network {
                LoadedNetwork::Iree(network) => serve(from, (build, network), tokenizer, draft, (tell, jobs)),
                LoadedNetwork::Xla(network) => serve(from, (build, network), tokenizer, draft, (tell, jobs)),
            }
        }
    }
}

/// The inputs of a network that is built, for the programs that a later job needs.
#[derive(Clone, Copy)]
struct Origin<'a> {
    files: &'a ModelFiles,
    source: &'a Source,
    options: &'a OpenOptions,
    plugins: &'a StartedPlugins,
    /// For adapters.
    room: Option<&'a AdapterRoom>,
}

/// Continues sequences with a network until all handles of the model are dropped.
fn serve<'a, E: Executor>(
    from: Origin<'a>,
    (build, network): (&'a BuildInfo, &'a Network<E>),
    tokenizer: Option<&'a Tokenizer>,
    draft: Option<&'a LoadedNetwork>,
    (tell, jobs): (&Sender<Result<ModelInfo, ModelError>>, &Receiver<Job>),
) {
    let batch = match batch(network, from.options, draft) {
        Ok(batch) => batch,
        Err(error) => return drop(tell.send(Err(error.into()))),
    };
    let info = ModelInfo {
        context: network.context(),
        vocabulary: network.vocabulary(),
        slots: network.batch(),
        build: Some(build.clone()),
        warnings: Vec::new(),
    };
    if tell.send(Ok(info)).is_ok() {
        Sequences::new(from, (build, network), tokenizer, batch).serve(jobs);
    }
}

fn batch<'a, E: Executor>(
    network: &'a Network<E>,
    options: &OpenOptions,
    draft: Option<&'a LoadedNetwork>,
) -> Result<Batch<'a, E>, GenerateError> {
    let batch = Batch::new(network).schedule(Budgeted::default());
    let batch = if network.executor().is_in_host_memory() { batch.keep_prefixes() } else { batch };
    Ok(match (&options.speculate, draft) {
        (_, Some(draft)) => batch.speculate(|| -> Box<dyn Drafter + 'a> {
            match draft {
                LoadedNetwork::Iree(draft) => Box::new(DraftModel::new(draft)),
                LoadedNetwork::Xla(draft) => Box::new(DraftModel::new(draft)),
            }
        }),
        (Speculation::Lookup, None) => batch.speculate(|| Box::new(Lookup::default())),
        (Speculation::Mtp, None) => {
            let module = network.mtp()?;
            batch.speculate(|| Box::new(MtpDrafter::new(module)))
        }
        _ => batch,
    })
}

impl DraftSource {
    fn build(self, plugins: &StartedPlugins) -> Result<LoadedNetwork, ModelError> {
        match Engine::build(&self.files, &self.source, &self.options, plugins, None)? {
            Engine::Text(_, network) => Ok(*network),
            Engine::Embedding(_) => {
                let path = self.files.path().to_owned();
                Err(ModelError::Kind { path, does: "makes embeddings of texts", asked: "draft" })
            }
        }
    }
}

enum Engine<'a> {
    Text(Box<BuildInfo>, Box<LoadedNetwork>),
    /// An embedding network. Tracewright builds a separate embedding program for each padded length of texts.
    Embedding(&'a Opened),
}

impl<'a> Engine<'a> {
    fn build(
        files: &ModelFiles,
        source: &'a Source,
        options: &OpenOptions,
        plugins: &StartedPlugins,
        room: Option<&AdapterRoom>,
    ) -> Result<Self, ModelError> {
        let Ready { program, build } = match source {
            Source::Export(manifest, _) => open_export(files.path(), manifest, options)?,
            Source::Checkpoint(model) => match model.kind {
                ModelKind::Embedding(_) => return Ok(Self::Embedding(model)),
                ModelKind::Text | ModelKind::Tower(_) | ModelKind::Alignment | ModelKind::Speech(_) => {
                    build_checkpoint(files, model, options, options.score, plugins, room)?
                }
            },
        };
        Ok(Self::Text(Box::new(build), Box::new(program.into_network()?)))
    }
}

struct Sequences<'a, E: Executor> {
    from: Origin<'a>,
    build: &'a BuildInfo,
    network: &'a Network<E>,
    tokenizer: Option<&'a Tokenizer>,
    batch: Batch<'a, E>,
    /// The sequences that the model is generating, by their index in the batch.
    running: Vec<Option<Running<'a>>>,
    waiting: VecDeque<Box<GenerateJob>>,
    /// For each place, the matrices of the adapter.
    adapters: Vec<Option<LoraMatrices>>,
    /// A second network that computes scores, if the main network has no entry point for scores.
    scorer: Option<LoadedNetwork>,
    /// The vision tower, after it has read an image.
    tower: Option<Ready>,
    known: KnownTiles,
    /// The network that finds the times of words, after it has found some.
    aligner: Option<Ready>,
}

/// A sequence of the batch.
struct Running<'a> {
    reply: Reply<'a>,
    listener: Listener,
    /// The number of tokens whose probabilities the listener has received.
    told: usize,
    cancelled: Arc<AtomicBool>,
    prompt_tokens: usize,
    start: Instant,
    first_token: Option<Duration>,
    before: Transfers,
    failed: Option<GenerateError>,
    _adapter: Option<Arc<LoadedAdapter>>,
}

impl<'a, E: Executor> Sequences<'a, E> {
    fn new(
        from: Origin<'a>,
        (build, network): (&'a BuildInfo, &'a Network<E>),
        tokenizer: Option<&'a Tokenizer>,
        batch: Batch<'a, E>,
    ) -> Self {
        let (running, waiting) = ((0..network.batch()).map(|_| None).collect(), VecDeque::new());
        let known = KnownTiles::default();
        let adapters = vec![None; from.room.map_or(0, |room| room.count)];
        Self {
            from,
            build,
            network,
            tokenizer,
            batch,
            running,
            waiting,
            adapters,
            scorer: None,
            tower: None,
            known,
            aligner: None,
        }
    }

    fn serve(mut self, jobs: &Receiver<Job>) {
        loop {
            let is_idle = self.waiting.is_empty() && self.running.iter().all(Option::is_none);
            if is_idle {
                match jobs.recv() {
                    Ok(job) => self.accept(job),
                    Err(_) => return,
                }
            }
            jobs.try_iter().for_each(|job| self.accept(job));
            while self.batch.free() > 0
                && let Some(job) = self.waiting.pop_front()
            {
                self.join(*job);
            }
            self.leave();
            if self.batch.free() < self.running.len() {
                self.step();
            }
        }
    }

    fn accept(&mut self, job: Job) {
        match job {
            Job::Generate(job) => self.waiting.push_back(job),
            Job::Score(tokens, answer) => drop(answer.send(self.score(&tokens))),
            Job::Save(tokens, answer) => drop(answer.send(self.save(&tokens))),
            Job::Load(saved, answer) => drop(answer.send(self.load(*saved))),
            Job::Embed(_, answer) => drop(answer.send(Err(generates_text(self.from.files.path())))),
            Job::Adapt(adapters, answer) => drop(answer.send(self.adapt(adapters))),
            Job::See(patches, answer) => drop(answer.send(self.see(&patches))),
            Job::Align(job, answer) => drop(answer.send(self.align(job))),
        }
    }

    /// No sequence has an adapter with one of these indices.
    fn adapt(&mut self, adapters: Vec<(u32, LoraMatrices)>) -> Result<(), ModelError> {
        let refuse = || generates_text(self.from.files.path());
        let room = self.from.room.ok_or_else(refuse)?;
        adapters.iter().try_for_each(|(_, one)| room.check(one, |name| self.network.has_low_rank(name)))?;
        let indices: Vec<u32> = adapters.iter().map(|(index, _)| *index).collect();
        for (index, matrices) in adapters {
            *self.adapters.get_mut(index as usize - 1).ok_or_else(refuse)? = Some(matrices);
        }
        let all: Vec<_> = self.adapters.iter().map(Option::as_ref).collect();
        let set = self.network.set_low_rank(|name, ty| room.bytes(name, ty, &all));
        for index in indices {
            self.batch.forget_adapter(index);
            if set.is_err() {
                self.adapters[index as usize - 1] = None;
            }
        }
        Ok(set?)
    }

    fn save(&self, tokens: &[u32]) -> Result<SavedSequence, ModelError> {
        Ok(self.batch.save(&self.fingerprint()?, tokens)?)
    }

    fn load(&mut self, saved: SavedSequence) -> Result<(), ModelError> {
        Ok(self.batch.load(&self.fingerprint()?, saved)?)
    }

    /// Returns a fingerprint of the weights in their storage format.
    fn fingerprint(&self) -> Result<String, ModelError> {
        match self.from.options.plugin {
            None => Ok(Archive::open(&self.build.archive)?.table_blake3()),
            Some(_) => self.fingerprint_of_files(),
        }
    }

    /// Returns a fingerprint of the files of checkpoint and adapters, and of the archive with computed weights.
    fn fingerprint_of_files(&self) -> Result<String, ModelError> {
        let mut hasher = blake3::Hasher::new();
        let checkpoint = match self.from.source {
            Source::Checkpoint(model) => &model.weights(self.from.files)?,
            Source::Export(..) => self.from.files.checkpoint()?,
        };
        hasher.update(checkpoint.content_blake3().as_bytes());
        hasher.update(checkpoint.changes().as_bytes());
        if self.build.archive != self.from.files.path() {
            hasher.update(Archive::open(&self.build.archive)?.table_blake3().as_bytes());
        }
        Ok(hasher.finalize().to_string())
    }

    fn join(&mut self, job: GenerateJob) {
        let GenerateJob { prompt, adapter, options, stop, cancelled, shown, mut listener } = job;
        let prompt_tokens = prompt.tokens().len();
        match self.batch.join(prompt, &options) {
            Err(error) => drop(listener(TextEvent::Failed(error.into()))),
            Ok(index) => {
                self.running[index] = Some(Running {
                    reply: Reply::new(self.tokenizer, &stop).showing(&shown),
                    listener,
                    told: 0,
                    cancelled,
                    prompt_tokens,
                    start: Instant::now(),
                    first_token: None,
                    before: self.network.executor().transfers(),
                    failed: None,
                    _adapter: adapter,
                });
            }
        }
    }

    /// Ends sequences cancelled before their first token. Others end at their next token.
    fn leave(&mut self) {
        for index in 0..self.running.len() {
            let leaves = |one: &Running| one.first_token.is_none() && one.is_cancelled();
            if let Some(one) = self.running[index].take_if(|one| leaves(one))
                && let Some(generated) = self.batch.leave(index)
            {
                one.end(generated, self.network.executor().transfers());
            }
        }
    }

    fn step(&mut self) {
        let running = &mut self.running;
        let ended = self.batch.step_each(|index, token| match &mut running[index] {
            Some(one) => one.push(token),
            None => ControlFlow::Break(()),
        });
        match ended {
            Ok(ended) => {
                for (index, generated) in ended {
                    let Some(mut one) = self.running[index].take() else { continue };
                    match generated {
                        Ok(generated) => one.end(generated, self.network.executor().transfers()),
                        Err(error) => drop((one.listener)(TextEvent::Failed(error.into()))),
                    }
                }
                for (index, one) in self.running.iter_mut().enumerate() {
                    if let Some(one) = one {
                        one.tell_logprobs(self.batch.logprobs(index));
                    }
                }
            }
            Err(error) => {
                let error = Arc::new(error);
                for mut one in self.running.iter_mut().filter_map(Option::take) {
                    (one.listener)(TextEvent::Failed(ModelError::Failed(error.clone())));
                }
                self.batch.clear();
            }
        }
    }

    /// The vectors of a tile, and their width.
    fn see(&mut self, patches: &[f32]) -> Result<(Vec<f32>, usize), ModelError> {
        let from = self.from;
        let refuse = || reads_text(from.files.path());
        let Source::Checkpoint(model) = from.source else { return Err(refuse()) };
        let Some((vision, tower)) = model.vision.as_ref().zip(model.tower()) else { return Err(refuse()) };
        let build = || from.program(&tower, &from.options.of_tower(), false);
        let ready = held_or(&mut self.tower, build)?;
        let vectors = self.known.get_or(patches, || tiles::see(&ready.program, vision, patches))?;
        Ok((vectors, vision.features))
    }

    /// The attention of the heads, `[heads, context, positions]`.
    fn align(&mut self, job: AlignJob) -> Result<Vec<f32>, ModelError> {
        let from = self.from;
        let AlignJob { heads, tokens, mel } = job;
        let build = || {
            let refuse = || generates_text(from.files.path());
            let Source::Checkpoint(model) = from.source else { return Err(refuse()) };
            let aligner = model.aligner(heads).ok_or_else(refuse)?;
            from.program(&aligner, &from.options.of_aligner(), false)
        };
        let ready = held_or(&mut self.aligner, build)?;
        if tokens.is_empty() { Ok(Vec::new()) } else { words::align(&ready.program, &tokens, &mel) }
    }

    fn score(&mut self, tokens: &[u32]) -> Result<Vec<Vec<f32>>, ModelError> {
        let network = self.network;
        check_tokens(tokens, 0, network.context(), network.vocabulary())?;
        if network.has_scorer() {
            return Ok(Session::new(network).score(tokens)?);
        }
        let scorer = match self.scorer.take() {
            Some(scorer) => scorer,
            None => match self.from.source {
                Source::Checkpoint(model) => {
                    self.from.program(model, self.from.options, true)?.program.into_network()?
                }
                // An export contains a fixed list of entry points, so the function cannot build an
                // additional entry point.
                Source::Export(..) => return Ok(Session::new(network).score(tokens)?),
            },
        };
        let scored = match &scorer {
            LoadedNetwork::Iree(scorer) => Session::new(scorer).score(tokens),
            LoadedNetwork::Xla(scorer) => Session::new(scorer).score(tokens),
        };
        self.scorer = Some(scorer);
        Ok(scored?)
    }
}

/// Returns the program that is held, or builds it first.
fn held_or(
    held: &mut Option<Ready>,
    build: impl FnOnce() -> Result<Ready, ModelError>,
) -> Result<&Ready, ModelError> {
    let ready = match held.take() {
        Some(ready) => ready,
        None => build()?,
    };
    Ok(held.insert(ready))
}

impl Origin<'_> {
    fn program(&self, model: &Opened, options: &OpenOptions, score: bool) -> Result<Ready, ModelError> {
        build_checkpoint(self.files, model, options, score, self.plugins, None)
    }
}

pub(super) fn reads_text(path: &Path) -> ModelError {
    ModelError::Kind { path: path.into(), does: "reads only text", asked: "read images" }
}

pub(super) fn generates_text(path: &Path) -> ModelError {
    ModelError::Kind { path: path.into(), does: "continues text", asked: "embed it" }
}

impl Running<'_> {
    /// Adds a token, and sends new text to the listener as soon as no later token can change this text.
    /// Returns `Break` if the listener ends the generation, or if the text contains a stop string.
    fn push(&mut self, token: u32) -> ControlFlow<()> {
        self.first_token.get_or_insert_with(|| self.start.elapsed());
        let told = self.reply.push(token).map(|piece| (self.listener)(TextEvent::Piece(piece)));
        match told {
            Ok(false) => ControlFlow::Break(()),
            Ok(_) if self.reply.is_stopped() || self.is_cancelled() => ControlFlow::Break(()),
            Ok(_) => ControlFlow::Continue(()),
            Err(error) => {
                self.failed = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    fn tell_logprobs(&mut self, all: &[TokenLogprobs]) {
        if let Some(new) = all.get(self.told..).filter(|new| !new.is_empty()) {
            self.told = all.len();
            (self.listener)(TextEvent::Logprobs(new.to_vec()));
        }
    }

    fn end(mut self, generated: Generated, after: Transfers) {
        self.tell_logprobs(&generated.logprobs);
        let rest = match self.failed.take() {
            Some(error) => Err(error),
            None if generated.finish == Finish::Cancelled && !self.reply.is_stopped() => Ok(String::new()),
            None if matches!(generated.finish, Finish::Length | Finish::Context) => self.reply.finish_cut(),
            None => self.reply.finish(),
        };
        let _ = match rest {
            Err(error) => (self.listener)(TextEvent::Failed(error.into())),
            Ok(rest) => {
                let completion = Completion {
                    text: self.reply.text().to_owned(),
                    is_cut: self.reply.is_stopped(),
                    generated: self.reply.finished(generated),
                    prompt_tokens: self.prompt_tokens,
                    first_token: self.first_token,
                    transfers: Transfers {
                        host_to_device: after.host_to_device - self.before.host_to_device,
                        device_to_host: after.device_to_host - self.before.device_to_host,
                    },
                };
                (self.listener)(TextEvent::Piece(rest));
                (self.listener)(TextEvent::Done(Box::new(completion)))
            }
        };
    }
}

/// Below so many tokens per call, reading the weights takes more time than multiplying them.
const ROWS: usize = 128;

struct Embeddings<'a> {
    from: Origin<'a>,
    model: &'a Opened,
    /// The programs that were built so far, by the most tokens per text and the texts per call.
    programs: BTreeMap<(usize, usize), Ready>,
}

impl Embeddings<'_> {
    fn serve(mut self, jobs: &Receiver<Job>) {
        for job in jobs {
            let does = "makes embeddings of texts";
            let kind = |asked| ModelError::Kind { path: self.from.files.path().into(), does, asked };
            match job {
                Job::Generate(mut job) => drop((job.listener)(TextEvent::Failed(kind("continue text")))),
                Job::Score(_, answer) => drop(answer.send(Err(kind("score tokens")))),
                Job::Save(_, answer) => drop(answer.send(Err(kind("save a text")))),
                Job::Load(_, answer) => drop(answer.send(Err(kind("load a text")))),
                Job::Embed(job, answer) => drop(answer.send(self.embed(job))),
                Job::Adapt(_, answer) => drop(answer.send(Err(kind("choose adapters")))),
                Job::See(_, answer) => drop(answer.send(Err(kind("read images")))),
                Job::Align(_, answer) => drop(answer.send(Err(kind("transcribe speech")))),
            }
        }
    }

    /// The length of a text's program depends on the text alone. The texts per call change no bits of an
    /// embedding.
    fn embed(&mut self, job: EmbedJob) -> Result<Embedded, ModelError> {
        let EmbedJob { mut tokens, first } = job;
        let (most, vocabulary) = (self.model.max_context(), self.model.vocabulary());
        let context = self.from.options.context;
        check_texts(&tokens, context.unwrap_or(most), vocabulary)?;
        let mut lengths: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (text, tokens) in tokens.iter().enumerate() {
            let length = context.unwrap_or_else(|| length_for(tokens.len(), most));
            lengths.entry(length).or_default().push(text);
        }
        let mut all = Embedded { embeddings: vec![Vec::new(); tokens.len()], ..Embedded::default() };
        for (length, texts) in lengths {
            let batch = self.batch(length, texts.len());
            let ready = match self.programs.entry((length, batch)) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(entry) => {
                    let options =
                        OpenOptions { context: Some(length), slots: batch, ..self.from.options.clone() };
                    entry.insert(self.from.program(self.model, &options, false)?)
                }
            };
            let embedder = Embedder::new(&ready.program, vocabulary)?;
            let chosen: Vec<Vec<u32>> = texts.iter().map(|&text| std::mem::take(&mut tokens[text])).collect();
            let first: Vec<usize> = texts.iter().filter_map(|&text| first.get(text).copied()).collect();
            let start = Instant::now();
            let embeddings = embedder.embed_pairs(&chosen, &first)?;
            all.time += start.elapsed();
            texts.into_iter().zip(embeddings).for_each(|(text, numbers)| all.embeddings[text] = numbers);
            all.build = Some(ready.build.clone());
        }
        Ok(all)
    }

    /// So many short texts per call that a matrix is read for some [`ROWS`] tokens at once, if there are as many
    /// texts. Without Tracewright's kernels, the bits may depend on the texts per call, so one text stays one.
    fn batch(&self, length: usize, texts: usize) -> usize {
        let options = &self.from.options;
        let joined = (ROWS / length).max(1);
        let is_invariant = options.numeric.kernels != Some(false) && options.plugin.is_none();
        let is_cpu = options.device.is_none_or(|device| device == DeviceName::CPU);
        if options.slots <= 1 && is_invariant && is_cpu && texts >= joined { joined } else { options.slots }
    }
}
