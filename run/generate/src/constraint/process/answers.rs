//! The work of a process that follows schemas and grammars.

use std::collections::VecDeque;
use std::io::{self, BufReader, Read, Write};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use files::limits;

use super::messages::{ConstraintReply, ConstraintRequest, read_frame, words_of, write_frame};
use crate::constraint::crash;
use crate::constraint::matching::{CompiledSource, GrammarCompiler, Matching, Source, caught};
use crate::constraint::refusal::Refusal;
use crate::constraint::vocabulary::Encode;

/// Stack size in bytes of the thread that calls llguidance, which recurses for nested schemas.
const STACK: usize = 256 << 20;

/// Answers the requests of [`ConstraintProcesses`](crate::ConstraintProcesses) until the input ends.
pub fn answer_constraints(
    input: impl Read + Send + 'static,
    output: impl Write + Send + 'static,
) -> io::Result<()> {
    let (input, output) = (Box::new(BufReader::new(input)), Box::new(output));
    let pipes = Pipes(Arc::new(Mutex::new(Ends { input, output, early: VecDeque::new() })));
    let since = Arc::new(AtomicU64::new(0));
    watch(since.clone())?;
    let work = thread::Builder::new().stack_size(STACK).spawn(move || {
        let words = pipes.words()?;
        pipes.send(&ConstraintReply::Ready)?;
        let encode = {
            let (pipes, since) = (pipes.clone(), since.clone());
            move |text: &str| {
                since.store(0, Ordering::Relaxed);
                let tokens = pipes.encoded(text);
                since.store(now(), Ordering::Relaxed);
                tokens.ok().flatten()
            }
        };
        let mut worker = Worker {
            words,
            encode: Arc::new(encode),
            compiler: None,
            compiled: None,
            text: Err(String::new()),
        };
        while let Some(request) = pipes.request()? {
            since.store(now(), Ordering::Relaxed);
            if let Some(reply) = worker.answer(request) {
                pipes.send(&reply)?;
            }
            since.store(0, Ordering::Relaxed);
        }
        Ok(())
    })?;
    work.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}

/// The ends of the pipes to Tracewright.
struct Ends {
    input: Box<dyn Read + Send>,
    output: Box<dyn Write + Send>,
    /// Requests that arrived before the tokens of a text.
    early: VecDeque<ConstraintRequest>,
}

/// The pipes, which the thread with llguidance and the tokenizer use by turns.
#[derive(Clone)]
struct Pipes(Arc<Mutex<Ends>>);

impl Pipes {
    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn words(&self) -> io::Result<Vec<Vec<u8>>> {
        let frame = read_frame(&mut self.ends().input)?;
        words_of(&frame).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Receives the next request, or `None` at the end of the input.
    fn request(&self) -> io::Result<Option<ConstraintRequest>> {
        let mut ends = self.ends();
        if let Some(early) = ends.early.pop_front() {
            return Ok(Some(early));
        }
        match read_frame(&mut ends.input) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            frame => Ok(Some(serde_json::from_slice(&frame?)?)),
        }
    }

    fn send(&self, reply: &ConstraintReply) -> io::Result<()> {
        write_frame(&mut self.ends().output, &reply.frame()?)
    }

    /// Encodes a text in the process that has the tokenizer.
    fn encoded(&self, text: &str) -> io::Result<Option<Vec<u32>>> {
        self.send(&ConstraintReply::Encode(text.to_owned()))?;
        let mut ends = self.ends();
        loop {
            match serde_json::from_slice(&read_frame(&mut ends.input)?)? {
                ConstraintRequest::Encoded(tokens) => return Ok(tokens),
                early => ends.early.push_back(early),
            }
        }
    }
}

/// Returns the milliseconds since the process first called the function, plus one.
fn now() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_millis() as u64 + 1
}

/// Ends this process if a request takes much longer than Tracewright waits, as Tracewright may have ended.
fn watch(since: Arc<AtomicU64>) -> io::Result<()> {
    let most = 2000 * limits::GRAMMAR_SECONDS;
    let watch = move || loop {
        thread::sleep(Duration::from_secs(1));
        let since = since.load(Ordering::Relaxed);
        if since != 0 && now().saturating_sub(since) > most {
            process::abort();
        }
    };
    thread::Builder::new().spawn(watch).map(drop)
}

struct Worker {
    words: Vec<Vec<u8>>,
    encode: Encode,
    /// The compiler for these stop tokens.
    compiler: Option<(Vec<u32>, GrammarCompiler)>,
    /// The result of the last compilation for the stop tokens of `compiler`.
    compiled: Option<(Source, Result<CompiledSource, Refusal>)>,
    /// The state of the current text.
    text: Result<Matching, String>,
}

impl Worker {
    fn answer(&mut self, request: ConstraintRequest) -> Option<ConstraintReply> {
        let done = caught(|| self.done(request));
        done.unwrap_or_else(|why| Some(ConstraintReply::Failed(why)))
    }

    fn done(&mut self, request: ConstraintRequest) -> Result<Option<ConstraintReply>, String> {
        let is_step = matches!(request, ConstraintRequest::Advance { .. });
        if let Some((source, _)) = self.compiled.as_ref().filter(|_| is_step) {
            crash::as_told(source.text(), "step");
        }
        let text = self.text.as_mut().map_err(|why| why.clone());
        match request {
            ConstraintRequest::Check { source, stop_tokens } => {
                let checked = self.compile(source, stop_tokens)?;
                let checked = checked.map(|compiled| compiled.notes.clone());
                Ok(Some(ConstraintReply::Checked(checked.map_err(|refusal| Box::new(refusal.clone())))))
            }
            ConstraintRequest::Begin { source, stop_tokens } => {
                self.text = Err("panic: the text did not begin".into());
                self.text = caught(|| match self.compile(source, stop_tokens)? {
                    Ok(compiled) => Ok(compiled.matching.copied()),
                    Err(refusal) => Err(refusal.to_string()),
                });
                Ok(None)
            }
            ConstraintRequest::Mask => text?.mask().map(|mask| Some(ConstraintReply::Mask(mask))),
            ConstraintRequest::Advance { token, most } => {
                let text = text?;
                text.take(token)?;
                let tokens = text.force(most)?;
                Ok(Some(ConstraintReply::Moved { tokens, is_complete: text.is_complete() }))
            }
            ConstraintRequest::Encoded(_) => Ok(None),
        }
    }

    fn compile(
        &mut self,
        source: Source,
        stop_tokens: Vec<u32>,
    ) -> Result<Result<&CompiledSource, &Refusal>, String> {
        let compiler = match self.compiler.take().filter(|(known, _)| *known == stop_tokens) {
            Some(known) => &self.compiler.insert(known).1,
            None => {
                self.compiled = None;
                let compiler = GrammarCompiler::new(&self.words, &stop_tokens, self.encode.clone())?;
                &self.compiler.insert((stop_tokens, compiler)).1
            }
        };
        if !self.compiled.as_ref().is_some_and(|(known, _)| *known == source) {
            self.compiled = None;
            crash::as_told(source.text(), "compile");
            let compiled = compiler.compile(&source);
            self.compiled = Some((source, compiled));
        }
        let compiled = self.compiled.as_ref().ok_or("panic: nothing was compiled")?;
        Ok(compiled.1.as_ref())
    }
}
