//! Narrow element types: how far our logits are from those of f32, beside how far transformers' own run in the same
//! type is from them.

use std::fmt;

use tracewright::generate::Session;

use crate::built::Result;
use crate::golden::{self, Golden, Subject, best, lead, max_error};

/// How many times transformers' own error ours may be.
pub const FACTOR: f64 = 1.1;

/// How far logits are from the exact ones, over all positions and the vocabulary.
#[derive(Clone, Copy, Debug, Default)]
pub struct Distance {
    squares: f64,
    numbers: usize,
    divergence: f64,
    rows: usize,
}

impl Distance {
    fn row(&mut self, exact: &[f32], found: &[f32]) {
        assert_eq!(exact.len(), found.len(), "rows of different vocabularies");
        let apart = exact.iter().zip(found).map(|(a, b)| f64::from(*a) - f64::from(*b));
        self.squares += apart.map(|d| d * d).sum::<f64>();
        self.numbers += exact.len();
        let (p, q) = (log_softmax(exact), log_softmax(found));
        self.divergence += p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
        self.rows += 1;
    }

    /// The root of the mean square.
    pub fn error(&self) -> f64 {
        (self.squares / self.numbers as f64).sqrt()
    }

    /// The mean over positions of the Kullback-Leibler divergence from the exact distribution, in nats.
    pub fn divergence(&self) -> f64 {
        self.divergence / self.rows as f64
    }
}

fn log_softmax(row: &[f32]) -> Vec<f64> {
    let largest = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = row.iter().map(|x| (f64::from(*x) - largest).exp()).sum();
    row.iter().map(|x| f64::from(*x) - largest - sum.ln()).collect()
}

/// How a network in a narrow type compares with transformers' own run in that type.
#[derive(Debug, Default)]
pub struct Precision {
    /// Ours, many tokens at once.
    pub scored: Distance,
    /// Ours, token by token.
    pub decoded: Distance,
    pub theirs: Distance,
    /// Ours, many tokens at once, from transformers' own.
    pub between: Distance,
    /// Σ ours · theirs and Σ theirs²: many tokens at once.
    along: [f64; 2],
    /// Tokens that were judged: those whose logit leads by more than twice the largest error of transformers' own run.
    pub judged: usize,
    /// Wrong tokens: prompt and position.
    pub wrong: Vec<(usize, usize)>,
}

impl Precision {
    pub fn positions(&self) -> usize {
        self.theirs.rows
    }

    /// Our error in units of transformers' own: the worse of both ways.
    pub fn ratio(&self) -> f64 {
        self.scored.error().max(self.decoded.error()) / self.theirs.error()
    }

    /// The factor of transformers' own logits that is nearest to ours. It is far from 1 if a common factor of
    /// all logits is rounded differently, which single logits do not show.
    pub fn factor(&self) -> f64 {
        let [product, square] = self.along;
        product / square
    }

    /// Whether no error is too large, and no token another one where that can be said.
    pub fn passes(&self) -> bool {
        self.wrong.is_empty() && self.decoded.error() > 0.0 && self.ratio() <= FACTOR
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scored, decoded, theirs, between, judged, wrong, .. } = self;
        let of_theirs = |distance: &Distance| distance.error() / theirs.error();
        write!(
            f,
            "{} rows, error {:.3} of theirs ({:.3} token by token), {:.3} from theirs and {:.5} \
             times them; KL {:.1e} ({:.1e}), theirs {:.1e}; \
             {judged} tokens judged, {} wrong{}",
            theirs.rows,
            of_theirs(scored),
            of_theirs(decoded),
            of_theirs(between),
            self.factor(),
            scored.divergence(),
            decoded.divergence(),
            theirs.divergence(),
            wrong.len(),
            wrong.first().map_or(String::new(), |(p, at)| format!(" (prompt {p} position {at})")),
        )
    }
}

/// What an [`Average`] shows.
pub const COLUMNS: &str = "cases | positions | error ratio | token by token | from theirs | KL | KL of theirs | tokens judged | wrong";

/// The cases of a family. Errors of one checkpoint have much in common; those of several have not.
#[derive(Debug, Default)]
pub struct Average {
    cases: Vec<Precision>,
}

impl Average {
    pub fn add(&mut self, case: Precision) {
        self.cases.push(case);
    }

    /// The geometric mean of an error in units of transformers' own.
    fn ratio(&self, of: impl Fn(&Precision) -> &Distance) -> f64 {
        mean(self.cases.iter().map(|case| (of(case).error() / case.theirs.error()).ln())).exp()
    }

    /// Whether the mean of neither way is too large, and no token is another one where that can be said.
    pub fn passes(&self) -> bool {
        let ratio = self.ratio(|case| &case.scored).max(self.ratio(|case| &case.decoded));
        ratio <= FACTOR && self.cases.iter().all(|case| case.wrong.is_empty())
    }
}

impl fmt::Display for Average {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |of: fn(&Precision) -> usize| self.cases.iter().map(of).sum::<usize>();
        write!(
            f,
            "{} | {} | {:.3} | {:.3} | {:.3} | {:.1e} | {:.1e} | {} | {}",
            self.cases.len(),
            sum(|case| case.theirs.rows),
            self.ratio(|case| &case.scored),
            self.ratio(|case| &case.decoded),
            self.ratio(|case| &case.between),
            mean(self.cases.iter().map(|case| case.scored.divergence())),
            mean(self.cases.iter().map(|case| case.theirs.divergence())),
            sum(|case| case.judged),
            sum(|case| case.wrong.len()),
        )
    }
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len();
    values.sum::<f64>() / count as f64
}

/// Compares the logits at all positions of a golden's sequences, and its greedy continuations, which the
/// module itself chooses. Prompts without all logits are left out. If no entry point scores, both comparisons
/// run token by token.
pub fn measure(golden: &Golden, subject: &Subject) -> Result<Precision> {
    let full = golden.prompts.iter().enumerate().filter(|(_, prompt)| prompt.full);
    let full: Vec<_> =
        full.map(|(i, prompt)| Ok((i, prompt, golden.reference(i)?))).collect::<Result<_>>()?;
    let mut found = Precision::default();
    let mut largest = 0.0;
    for (_, prompt, reference) in &full {
        for position in 0..prompt.fed().len() {
            let (exact, own) = reference.both(position)?;
            found.theirs.row(exact, own);
            largest = max_error(exact, own).max(largest);
        }
    }
    let decided = |exact: &[f32]| f64::from(lead(exact)) > 2.0 * largest;
    let scores = subject.module.signatures.iter().any(|signature| signature.name == "score");
    for &(i, prompt, ref reference) in &full {
        let fed = prompt.fed();
        let at_once = scores.then(|| Session::new(&subject.network).score(&fed)).transpose()?;
        let mut session = Session::new(&subject.network);
        for (position, token) in fed.iter().enumerate() {
            let (exact, own) = reference.both(position)?;
            let decoded = session.feed(&[*token])?;
            let scored = at_once.as_ref().map_or(&decoded, |rows| &rows[position]);
            found.scored.row(exact, scored);
            found.between.row(own, scored);
            for (ours, theirs) in scored.iter().zip(own) {
                found.along[0] += f64::from(*ours) * f64::from(*theirs);
                found.along[1] += f64::from(*theirs) * f64::from(*theirs);
            }
            found.decoded.row(exact, &decoded);
            if decided(exact) {
                found.judged += 1;
                if [scored, &decoded].iter().any(|row| best(row) != best(exact)) {
                    found.wrong.push((i, position));
                }
            }
        }
        let chosen =
            golden::greedy(&subject.network, &prompt.prompt_tokens, prompt.tokens.len(), false)?.tokens;
        let same = chosen.iter().zip(&prompt.tokens).take_while(|(a, b)| a == b).count();
        let position = prompt.prompt_tokens.len() - 1 + same;
        if same < prompt.tokens.len() && decided(reference.both(position)?.0) {
            found.wrong.push((i, position));
        }
    }
    Ok(found)
}
