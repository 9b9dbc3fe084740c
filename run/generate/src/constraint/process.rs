//! Follows schemas in a process of its own, because a schema can exhaust llguidance's stack or memory.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use files::limits;

use super::matching::Source;
use super::refusal::Refusal;
use super::vocabulary::{Encode, encoder};
use crate::{ConstraintLimit, ConstraintProgram, GenerateError, SchemaNote, Tokenizer};

mod answers;
mod messages;

pub use answers::answer_constraints;
use messages::{ConstraintReply, ConstraintRequest, read_frame, words_frame, write_frame};

/// The number of schemas that are compiled at the same time. Further schemas wait.
const CHECKS: usize = 4;

/// The number of processes that wait for work.
const IDLE: usize = 8;

/// The largest number of texts that a process lets Tracewright encode for one reply.
const ENCODED: usize = 1000;

/// Processes for one model, one per generating text, so a schema that ends a process ends only its own text.
#[derive(Clone)]
pub struct ConstraintProcesses(Arc<Pool>);

struct Pool {
    program: ConstraintProgram,
    /// The bytes of all tokens, as the frame that a process reads first.
    words: Arc<Vec<u8>>,
    encode: Encode,
    idle: Mutex<Idle>,
    checked: Condvar,
}

#[derive(Default)]
struct Idle {
    processes: Vec<Process>,
    checks: usize,
}

impl fmt::Debug for ConstraintProcesses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConstraintProcesses").field("program", &self.0.program).finish_non_exhaustive()
    }
}

/// A reason why a process did not do its work.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The error message of llguidance.
    Refused(String),
    Limit(ConstraintLimit),
    /// The process does not run, or does not write replies.
    Program(Arc<io::Error>),
}

impl ConstraintProcesses {
    /// Prepares processes, but starts none.
    pub fn new(program: ConstraintProgram, tokenizer: &Tokenizer) -> Result<Self, GenerateError> {
        let words = Arc::new(words_frame(&tokenizer.bytes()?));
        let encode = encoder(tokenizer);
        let (idle, checked) = (Mutex::default(), Condvar::new());
        Ok(Self(Arc::new(Pool { program, words, encode, idle, checked })))
    }

    /// Compiles a schema or a grammar, and returns the parts that a text can violate.
    pub fn check(
        &self,
        source: &Source,
        stop_tokens: &[u32],
    ) -> Result<Result<Vec<SchemaNote>, Refusal>, Fault> {
        let _place = Place::wait(&self.0);
        let mut lease = Lease::of(&self.0, source)?;
        let process = lease.process()?;
        process
            .ask(&ConstraintRequest::Check { source: source.clone(), stop_tokens: stop_tokens.to_vec() })?;
        let late = Instant::now() + Duration::from_secs(2 * limits::GRAMMAR_SECONDS);
        process.is_ready(late, limits::GRAMMAR_SECONDS, &self.0.encode);
        match process.ready.take().unwrap_or_else(|| Err(strange()))? {
            ConstraintReply::Checked(checked) => Ok(checked.map_err(|refusal| *refusal)),
            _ => Err(strange()),
        }
    }

    /// Creates the state of a schema or a grammar at the beginning of a text.
    pub fn begin(&self, source: &Source, stop_tokens: &[u32]) -> Result<Remote, Fault> {
        let mut lease = Lease::of(&self.0, source)?;
        let process = lease.process()?;
        process
            .ask(&ConstraintRequest::Begin { source: source.clone(), stop_tokens: stop_tokens.to_vec() })?;
        process.ask(&ConstraintRequest::Mask)?;
        Ok(Remote { lease, is_complete: false, has_begun: false })
    }
}

/// The state of a schema or a grammar, in another process.
pub struct Remote {
    lease: Lease,
    is_complete: bool,
    /// Whether the process has compiled the schema.
    has_begun: bool,
}

impl Remote {
    /// See [`Matching::mask`](super::matching::Matching::mask).
    pub fn mask(&mut self) -> Result<Option<Vec<u32>>, Fault> {
        match self.reply()? {
            ConstraintReply::Mask(mask) => {
                self.has_begun = true;
                Ok(mask)
            }
            _ => Err(strange()),
        }
    }

    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Advances by a chosen token and at most `most` forced ones; computes the next mask during the call.
    pub fn advance(&mut self, token: u32, most: usize) -> Result<(), Fault> {
        let process = self.lease.process()?;
        process.ask(&ConstraintRequest::Advance { token, most })?;
        process.ask(&ConstraintRequest::Mask)
    }

    /// Returns the forced tokens after the chosen token.
    pub fn forced(&mut self) -> Result<Vec<u32>, Fault> {
        match self.reply()? {
            ConstraintReply::Moved { tokens, is_complete } => {
                self.is_complete = is_complete;
                Ok(tokens)
            }
            _ => Err(strange()),
        }
    }

    /// Whether the next reply, or an error, is there after at most `patience`.
    pub fn is_ready(&mut self, patience: Duration) -> bool {
        let seconds = if self.has_begun { limits::GRAMMAR_STEP_SECONDS } else { limits::GRAMMAR_SECONDS };
        let Lease { pool, process } = &mut self.lease;
        process
            .as_mut()
            .is_none_or(|process| process.is_ready(Instant::now() + patience, seconds, &pool.encode))
    }

    fn reply(&mut self) -> Result<ConstraintReply, Fault> {
        while !self.is_ready(Duration::from_secs(1)) {}
        self.lease.process()?.ready.take().unwrap_or_else(|| Err(strange()))
    }
}

/// One of the places for schemas that are compiled at the same time.
struct Place<'a>(&'a Pool);

impl<'a> Place<'a> {
    fn wait(pool: &'a Pool) -> Self {
        let idle = pool.idle();
        let wait = pool.checked.wait_while(idle, |idle| idle.checks == CHECKS);
        wait.unwrap_or_else(PoisonError::into_inner).checks += 1;
        Self(pool)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.idle().checks -= 1;
        self.0.checked.notify_one();
    }
}

impl Pool {
    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A process that works for one text, and then waits for further work.
struct Lease {
    pool: Arc<Pool>,
    process: Option<Process>,
}

impl Lease {
    /// Takes a process, preferably one that has compiled `source`.
    fn of(pool: &Arc<Pool>, source: &Source) -> Result<Self, Fault> {
        let found = {
            let mut idle = pool.idle();
            idle.processes.retain_mut(|process| !process.is_lost());
            let compiled = |at: &usize| idle.processes[*at].compiled.as_ref() == Some(source);
            let free = || (0..idle.processes.len()).filter(|&at| idle.processes[at].owed.is_empty());
            let chosen = free().find(compiled).or_else(|| free().next());
            chosen.map(|at| idle.processes.swap_remove(at))
        };
        let mut process = found.map_or_else(|| Process::start(pool), Ok)?;
        process.compiled = Some(source.clone());
        Ok(Self { pool: pool.clone(), process: Some(process) })
    }

    fn process(&mut self) -> Result<&mut Process, Fault> {
        self.process.as_mut().ok_or_else(strange)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut idle = self.pool.idle();
        let process = self.process.take().filter(|process| !process.failed);
        if let Some(process) = process.filter(|_| idle.processes.len() < IDLE) {
            idle.processes.push(process);
        }
    }
}

/// A running process. The process ends when this value is dropped.
struct Process {
    child: Child,
    requests: Sender<Vec<u8>>,
    replies: Receiver<io::Result<ConstraintReply>>,
    /// The times of the requests to which the process has not replied yet.
    owed: VecDeque<Instant>,
    /// The reply to the oldest request, which nobody took yet.
    ready: Option<Result<ConstraintReply, Fault>>,
    /// The number of texts that the process let Tracewright encode since its last reply.
    encoded: usize,
    /// The schema or the grammar that the process has compiled last.
    compiled: Option<Source>,
    /// Whether the process has read the tokens.
    has_started: bool,
    failed: bool,
}

impl Process {
    fn start(pool: &Pool) -> Result<Self, Fault> {
        let ConstraintProgram { program, arguments, without } = &pool.program;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        for name in without {
            command.env_remove(name);
        }
        let failed = |error: io::Error| Fault::Program(Arc::new(error));
        let mut child = command.spawn().map_err(failed)?;
        let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(strange());
        };
        let (requests, written) = channel::<Vec<u8>>();
        let (read, replies) = channel();
        let words = pool.words.clone();
        // If the process ends, the reader reports the end, so the writer ignores its errors.
        let write = move || {
            let _ = write_frame(&mut stdin, &words);
            while let Ok(frame) = written.recv()
                && write_frame(&mut stdin, &frame).is_ok()
            {}
        };
        let read_all = move || {
            let mut stdout = io::BufReader::new(stdout);
            loop {
                let reply = read_frame(&mut stdout).and_then(|frame| ConstraintReply::of(&frame));
                let is_last = reply.is_err();
                if read.send(reply).is_err() || is_last {
                    return;
                }
            }
        };
        let thread =
            |work: Box<dyn FnOnce() + Send>| thread::Builder::new().name("grammar".into()).spawn(work);
        thread(Box::new(write)).and_then(|_| thread(Box::new(read_all))).map_err(failed)?;
        Ok(Self {
            child,
            requests,
            replies,
            owed: VecDeque::new(),
            ready: None,
            encoded: 0,
            compiled: None,
            has_started: false,
            failed: false,
        })
    }

    fn ask(&mut self, request: &ConstraintRequest) -> Result<(), Fault> {
        let frame = serde_json::to_vec(request).map_err(|error| Fault::Program(Arc::new(error.into())))?;
        if !matches!(request, ConstraintRequest::Begin { .. } | ConstraintRequest::Encoded(_)) {
            self.owed.push_back(Instant::now());
        }
        // If the process has ended, the next reply is an error.
        let _ = self.requests.send(frame);
        Ok(())
    }

    /// Waits for the oldest request's reply, which may take `seconds`, and returns whether it came.
    fn is_ready(&mut self, until: Instant, seconds: u64, encode: &Encode) -> bool {
        while self.ready.is_none() {
            let Some(asked) = self.owed.front_mut() else { return true };
            let end = *asked + Duration::from_secs(seconds);
            let left = end.min(until).saturating_duration_since(Instant::now());
            let fault = match self.replies.recv_timeout(left) {
                Ok(Ok(ConstraintReply::Encode(text))) if self.encoded < ENCODED => {
                    // The process does not answer for the time until now.
                    *asked = Instant::now();
                    self.encoded += 1;
                    let _ = self.ask(&ConstraintRequest::Encoded(encode(&text)));
                    continue;
                }
                Ok(Ok(ConstraintReply::Ready)) => {
                    // The time for the start of a process is not the schema's.
                    *asked = Instant::now();
                    self.has_started = true;
                    continue;
                }
                Ok(Ok(reply)) => {
                    self.owed.pop_front();
                    self.encoded = 0;
                    let failed = |why| Err(Fault::Refused(why));
                    self.ready = Some(match reply {
                        ConstraintReply::Failed(why) => failed(why),
                        reply => Ok(reply),
                    });
                    continue;
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < end => return false,
                Err(RecvTimeoutError::Timeout) => Fault::Limit(ConstraintLimit::Time { seconds }),
                Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    Fault::Program(Arc::new(error))
                }
                Ok(Err(error)) if !self.has_started => Fault::Program(Arc::new(error)),
                Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => Fault::Limit(ConstraintLimit::Ended),
            };
            self.failed = true;
            let _ = self.child.kill();
            self.ready = Some(Err(fault));
        }
        true
    }

    /// Receives replies that nobody waits for. Returns whether the process has ended or is overdue.
    fn is_lost(&mut self) -> bool {
        self.ready = None;
        loop {
            match self.replies.try_recv() {
                Ok(Ok(ConstraintReply::Encode(_)) | Err(_)) | Err(TryRecvError::Disconnected) => return true,
                Ok(Ok(ConstraintReply::Ready)) => self.has_started = true,
                Ok(Ok(_)) => drop(self.owed.pop_front()),
                Err(TryRecvError::Empty) => break,
            }
        }
        let most = Duration::from_secs(limits::GRAMMAR_SECONDS);
        self.owed.front().is_some_and(|asked| asked.elapsed() > most)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn strange() -> Fault {
    let why = "the program for schemas and grammars wrote an unexpected reply";
    Fault::Program(Arc::new(io::Error::new(io::ErrorKind::InvalidData, why)))
}
