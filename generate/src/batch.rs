//! Several prompts of different lengths at once.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use runtime::Buffer;

use crate::network::{Positions, floats, ids};
use crate::session::{Finish, GenerateOptions, Generated, check_tokens};
use crate::{Error, Network, Sampler};

/// Sequences that a network continues at once: each step reads the weights once for all of them.
///
/// Prompts end together: a shorter one begins later, behind empty slots that no query sees, and its positions count
/// from its own first token. So each sequence gets the tokens that it would get alone, and shares the context with
/// the longest.
pub struct Batch<'a> {
    network: &'a Network,
}

/// What a step answers: for each sequence a token, or logits.
enum Answers {
    Tokens(Vec<u32>),
    Logits(Vec<f32>),
}

impl<'a> Batch<'a> {
    /// A batch on a network that takes one sequence or several.
    pub fn new(network: &'a Network) -> Self {
        Self { network }
    }

    /// Continues `prompts`, at most as many as the network takes. `on_token` gets each new token with the number of
    /// its prompt, and may break off all. The counts and times of prefill and decode in the answers are those of
    /// the whole batch.
    ///
    /// # Errors
    /// If there are more prompts than the network takes, one is empty or does not fit, a setting is out of range,
    /// or a call fails.
    pub fn generate(
        &self,
        prompts: &[&[u32]],
        options: &GenerateOptions,
        mut on_token: impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Vec<Generated>, Error> {
        let network = self.network;
        let batch = network.batch();
        if prompts.len() > batch {
            return Err(Error::Batch { found: prompts.len(), batch });
        }
        for prompt in prompts {
            if prompt.is_empty() {
                return Err(Error::EmptyPrompt);
            }
            check_tokens(prompt, 0, network.context(), network.vocabulary())?;
        }
        let Some(longest) = prompts.iter().map(|prompt| prompt.len()).max() else { return Ok(Vec::new()) };
        let mut samplers =
            prompts.iter().map(|_| Sampler::new(&options.sampling)).collect::<Result<Vec<_>, _>>()?;
        let greedy = options.sampling.temperature == 0.0 && !options.keep_logits;

        // A row that nobody asked for repeats the last prompt.
        let row = |i: usize| prompts[i.min(prompts.len() - 1)];
        let pad: Vec<u32> = (0..batch).map(|i| (longest - row(i).len()) as u32).collect();
        let at = |i: usize, slot: usize| {
            slot.checked_sub(pad[i] as usize).and_then(|at| row(i).get(at)).copied().unwrap_or(0)
        };
        let mut state = network.empty_state()?;
        let start = Instant::now();
        let mut seen = 0;
        let mut answers = Answers::Tokens(Vec::new());
        while seen < longest {
            // A padded chunk would not fit at the end of the context: what is left goes in slot by slot.
            let fits = seen + network.chunk <= network.context() && longest - seen > 1;
            let length = if fits { network.chunk } else { 1 };
            let mut tokens = Vec::with_capacity(batch * length);
            for i in 0..batch {
                tokens.extend((seen..seen + length).map(|slot| at(i, slot)));
            }
            let count = length.min(longest - seen);
            let positions = Positions { start: seen, count, pad: &pad };
            answers = self.step(fits, &tokens, positions, &mut state, greedy)?;
            seen += count;
        }
        let prefill = start.elapsed();
        let generated = || Generated {
            tokens: Vec::new(),
            finish: Finish::Length,
            logits: Vec::new(),
            prefill_tokens: prompts.iter().map(|prompt| prompt.len()).sum(),
            prefill,
            decode_steps: 0,
            decode: Duration::ZERO,
        };
        let mut all: Vec<Generated> = prompts.iter().map(|_| generated()).collect();
        let mut finish = vec![(options.max_tokens == 0).then_some(Finish::Length); prompts.len()];
        let (mut steps, mut decode) = (0, Duration::ZERO);
        let mut last = vec![0; batch];
        loop {
            for i in 0..prompts.len() {
                if finish[i].is_some() {
                    continue;
                }
                let token = match &answers {
                    Answers::Tokens(tokens) => tokens[i],
                    Answers::Logits(logits) => {
                        let logits = &logits[i * network.vocabulary()..][..network.vocabulary()];
                        let token = samplers[i].choose(logits)?;
                        if options.keep_logits {
                            all[i].logits.push(logits.to_vec());
                        }
                        token
                    }
                };
                if options.stop_tokens.contains(&token) {
                    finish[i] = Some(Finish::Stop);
                    continue;
                }
                last[i] = token;
                all[i].tokens.push(token);
                if on_token(i, token).is_break() {
                    finish
                        .iter_mut()
                        .filter(|finish| finish.is_none())
                        .for_each(|f| *f = Some(Finish::Cancelled));
                } else if all[i].tokens.len() == options.max_tokens {
                    finish[i] = Some(Finish::Length);
                }
            }
            if seen == network.context() {
                finish.iter_mut().filter(|finish| finish.is_none()).for_each(|f| *f = Some(Finish::Context));
            }
            if finish.iter().all(Option::is_some) {
                break;
            }
            let start = Instant::now();
            let positions = Positions { start: seen, count: 1, pad: &pad };
            answers = self.step(false, &last, positions, &mut state, greedy)?;
            decode += start.elapsed();
            steps += 1;
            seen += 1;
        }
        for (generated, finish) in all.iter_mut().zip(finish) {
            (generated.decode_steps, generated.decode) = (steps, decode);
            generated.finish = finish.unwrap_or(generated.finish);
        }
        Ok(all)
    }

    fn step(
        &self,
        chunk: bool,
        tokens: &[u32],
        positions: Positions<'_>,
        state: &mut Vec<Buffer>,
        greedy: bool,
    ) -> Result<Answers, Error> {
        let function = if chunk { &self.network.prefill } else { &self.network.decode };
        let values = self.network.call(function, tokens, positions, state, 2)?;
        Ok(match greedy {
            true => Answers::Tokens(ids(&values[1])?),
            false => Answers::Logits(floats(&values[0])?),
        })
    }
}
