//! Constrained generation: a JSON schema or a grammar decides which tokens the sampler can choose. llguidance
//! walks a trie of all tokens with an Earley parser. If the text can end, stop tokens are allowed. If no
//! further token is allowed, the text ends.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::{GenerateError, SchemaNote, Tokenizer};

pub(crate) mod crash;
mod grammars;
mod matching;
pub(crate) mod process;
mod refusal;
mod schema;
mod slots;
mod vocabulary;

use matching::{CompiledSource, GrammarCompiler, Matching, Source};
use process::{ConstraintProcesses, Fault, Remote};
use refusal::brief;
use vocabulary::encoder;

/// Stack size in bytes of a thread that compiles a schema, because llguidance recurses for nested schemas.
const STACK: usize = 256 << 20;

/// Builds constraints for the tokens of one model.
pub struct Constrainer {
    backend: Backend,
    whitespace_flexible: bool,
}

enum Backend {
    Here(Box<GrammarCompiler>),
    There(ConstraintProcesses, Arc<[u32]>),
}

impl Constrainer {
    /// Creates a builder whose constraints run in this process, so a schema from a stranger can end this
    /// process. [`within`](Self::within) uses other processes.
    pub fn new(tokenizer: &Tokenizer, stop_tokens: &[u32]) -> Result<Self, GenerateError> {
        let compiler = GrammarCompiler::new(&tokenizer.bytes()?, stop_tokens, encoder(tokenizer));
        let compiler = compiler.map_err(|why| GenerateError::NoBytes { source: why.into() })?;
        Ok(Self { backend: Backend::Here(Box::new(compiler)), whitespace_flexible: false })
    }

    /// Creates a builder whose constraints run in other processes.
    pub fn within(processes: &ConstraintProcesses, stop_tokens: &[u32]) -> Self {
        Self { backend: Backend::There(processes.clone(), stop_tokens.into()), whitespace_flexible: false }
    }

    /// Allows whitespace outside strings in JSON, which small models write endlessly. A schema can override
    /// this with `whitespace_flexible` or `whitespace_pattern` under `x-guidance`.
    #[must_use]
    pub fn whitespace_flexible(self, flexible: bool) -> Self {
        Self { whitespace_flexible: flexible, ..self }
    }

    /// Creates a constraint for JSON by a JSON Schema (draft 2020-12), with the properties in its order.
    pub fn json_schema(&self, schema: &str) -> Result<Constraint, GenerateError> {
        self.constraint(Source::Schema { text: schema.to_owned(), is_flexible: self.whitespace_flexible })
    }

    /// Creates a constraint from a grammar in llguidance's variant of Lark's notation, with a rule `start`.
    /// Rules have lower-case names, terminals upper-case names. `%json` and a JSON Schema match JSON by this
    /// schema.
    pub fn grammar(&self, grammar: &str) -> Result<Constraint, GenerateError> {
        if let Some((index, line)) = grammar.lines().enumerate().find(|(_, line)| line.contains("::=")) {
            let column = line.chars().take_while(|&c| c != ':').count() + 1;
            let why =
                "`::=` is of another notation (GBNF, BNF); expected Lark's, as `start: \"yes\" | \"no\"`";
            return Err(GenerateError::Grammar { at: Some((index + 1, column)), why: why.into() });
        }
        self.constraint(Source::Grammar { text: grammar.to_owned(), is_flexible: self.whitespace_flexible })
    }

    fn constraint(&self, source: Source) -> Result<Constraint, GenerateError> {
        let (followed, notes) = match &self.backend {
            Backend::Here(compiler) => {
                let compiled = with_room(|| compiler.compile(&source));
                let CompiledSource { matching, notes } =
                    compiled.unwrap_or_else(|why| Err(source.refused(&why)))?;
                (Followed::Here(Box::new(matching)), notes)
            }
            Backend::There(processes, stop_tokens) => {
                let checked = processes.check(&source, stop_tokens).map_err(|fault| match fault {
                    Fault::Refused(why) => source.refused(&why).into(),
                    Fault::Limit(limit) => GenerateError::ConstraintLimit { step: None, limit },
                    Fault::Program(source) => GenerateError::ConstraintProgram { source },
                });
                let notes = checked??;
                (Followed::There(processes.clone(), Arc::new((source, stop_tokens.clone()))), notes)
            }
        };
        Ok(Constraint { followed, notes: notes.into() })
    }
}

/// Runs `work` on a thread with a large stack.
fn with_room<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    thread::scope(|scope| {
        let worker = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work);
        let done = worker.map_err(|error| error.to_string())?.join();
        done.map_err(|_| "panic".into())
    })
}

/// A schema or grammar that a text must follow from its first token. [`Constrainer`] builds constraints.
#[derive(Clone)]
pub struct Constraint {
    followed: Followed,
    notes: Arc<[SchemaNote]>,
}

#[derive(Clone)]
enum Followed {
    Here(Box<Matching>),
    There(ConstraintProcesses, Arc<(Source, Arc<[u32]>)>),
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint").finish_non_exhaustive()
    }
}

impl Constraint {
    /// The parts of the schemas that an answer can violate, because generation cannot enforce them.
    pub fn notes(&self) -> &[SchemaNote] {
        &self.notes
    }

    /// Returns how many of these tokens are allowed in turn, and whether no further token can follow.
    pub fn allowed_tokens(&self, tokens: &[u32]) -> Result<(usize, bool), GenerateError> {
        let mut guide = self.begin();
        for (count, &token) in tokens.iter().enumerate() {
            let is_allowed = match guide.allowed() {
                Err(GenerateError::NothingAllowed { .. }) | Ok(None) => false,
                allowed => allowed?.is_some_and(|allowed| allowed.has(token)),
            };
            if !is_allowed {
                return Ok((count, guide.is_complete()));
            }
            guide.advance(token, 0)?;
        }
        Ok((tokens.len(), guide.is_complete()))
    }

    /// Creates the state of the constraint at the beginning of a text.
    pub(crate) fn begin(&self) -> Guide {
        let state = match &self.followed {
            Followed::Here(matching) => State::Here(Box::new(matching.copied())),
            Followed::There(processes, begin) => State::There(processes.begin(&begin.0, &begin.1)),
        };
        Guide { state, step: 0, forced: None }
    }
}

/// The state of a constraint at a position of one text.
pub(crate) struct Guide {
    state: State,
    step: u64,
    /// The forced tokens until the caller takes them. The inner value is `None` while another process works.
    forced: Option<Option<Vec<u32>>>,
}

enum State {
    Here(Box<Matching>),
    There(Result<Remote, Fault>),
}

impl fmt::Debug for Guide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guide").field("step", &self.step).finish_non_exhaustive()
    }
}

impl Guide {
    /// Returns the tokens that may come next, or `None` if the text is complete.
    pub fn allowed(&mut self) -> Result<Option<Allowed>, GenerateError> {
        let step = self.step;
        let mask = self.run(Matching::mask, Remote::mask);
        let mask = mask.map_err(|fault| match fault {
            Fault::Refused(why) if why.contains("NoExtension") => GenerateError::NothingAllowed { step },
            fault => failed_at(step, fault),
        })?;
        Ok(mask.map(|mask| Allowed { mask }))
    }

    /// Whether the text is complete, and no further token can follow.
    pub fn is_complete(&self) -> bool {
        match &self.state {
            State::Here(matching) => matching.is_complete(),
            State::There(remote) => remote.as_ref().is_ok_and(Remote::is_complete),
        }
    }

    /// Advances by a chosen token, and by at most `most` tokens that are then the only continuation.
    pub fn advance(&mut self, token: u32, most: usize) -> Result<(), GenerateError> {
        let step = self.step;
        self.step += 1;
        let here = |here: &mut Matching| {
            here.take(token)?;
            here.force(most)
        };
        let advanced =
            self.run(|matching| here(matching).map(Some), |there| there.advance(token, most).map(|()| None));
        self.forced = Some(advanced.map_err(|fault| failed_at(step, fault))?);
        Ok(())
    }

    /// Returns the tokens that follow the last chosen token as the only possible continuation, once.
    pub fn forced(&mut self) -> Result<Vec<u32>, GenerateError> {
        let forced = match self.forced.take() {
            None => return Ok(Vec::new()),
            Some(Some(forced)) => forced,
            Some(None) => {
                let forced = self.run(|_| Ok(Vec::new()), Remote::forced);
                forced.map_err(|fault| failed_at(self.step - 1, fault))?
            }
        };
        self.step += forced.len() as u64;
        Ok(forced)
    }

    /// Whether [`allowed`](Self::allowed) or [`forced`](Self::forced) needs no wait after `patience`.
    pub fn is_ready(&mut self, patience: Duration) -> bool {
        match &mut self.state {
            State::Here(_) | State::There(Err(_)) => true,
            State::There(Ok(remote)) => remote.is_ready(patience),
        }
    }

    fn run<T>(
        &mut self,
        here: impl FnOnce(&mut Matching) -> Result<T, String>,
        there: impl FnOnce(&mut Remote) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        match &mut self.state {
            State::Here(matching) => matching::caught(|| here(matching)).map_err(Fault::Refused),
            State::There(Ok(remote)) => there(remote),
            State::There(Err(fault)) => Err(fault.clone()),
        }
    }
}

/// Creates the error for a text that cannot continue after `step` tokens.
fn failed_at(step: u64, fault: Fault) -> GenerateError {
    match fault {
        Fault::Refused(why) => GenerateError::Constraint { step, why: brief(&why) },
        Fault::Limit(limit) => GenerateError::ConstraintLimit { step: Some(step), limit },
        Fault::Program(source) => GenerateError::ConstraintProgram { source },
    }
}

/// The tokens that a constraint allows at the next position, with one bit per token.
pub(crate) struct Allowed {
    mask: Vec<u32>,
}

impl Allowed {
    pub fn has(&self, token: u32) -> bool {
        self.mask.get((token / u32::BITS) as usize).is_some_and(|word| word >> (token % u32::BITS) & 1 == 1)
    }
}
