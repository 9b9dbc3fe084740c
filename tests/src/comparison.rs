//! How the answers of a network compare with those of a golden.

use std::fmt;

use tracewright::generate::Generated;

use crate::golden::{GoldenPrompt, Reference, lead};

/// How our answers compare with a golden's.
#[derive(Debug, Default)]
pub struct Comparison {
    /// How far a logit may be from the reference's, in units of the row's largest magnitude.
    pub bound: f64,
    /// The rows of logits that were compared.
    pub rows: usize,
    /// The largest error in units of the row's largest magnitude, and at which prompt and position.
    pub worst: (f64, usize, usize),
    /// The first position at which an error is beyond the bound, and its prompt.
    pub first: Option<(usize, usize)>,
    /// The smallest distance between first and second logit where a token was chosen.
    pub gap: f32,
    /// Wrong tokens: prompt, step, expected, found.
    pub wrong: Vec<(usize, usize, Option<u32>, Option<u32>)>,
    pub prompts: usize,
}

impl Comparison {
    /// Whether all tokens are equal and all logits within the bound.
    pub fn passes(&self) -> bool {
        self.wrong.is_empty() && self.worst.0 <= self.bound && self.rows > 0
    }

    /// An empty comparison whose logits may be this far from the reference's.
    pub fn within(bound: f64) -> Self {
        Self { bound, gap: f32::INFINITY, ..Self::default() }
    }

    /// Compares the tokens that follow a prompt, and their logits if they were kept.
    pub fn continuation(
        &mut self,
        reference: &Reference,
        i: usize,
        prompt: &GoldenPrompt,
        found: &Generated,
    ) {
        for step in 0..prompt.tokens.len().max(found.tokens.len()) {
            let (expected, found) = (prompt.tokens.get(step).copied(), found.tokens.get(step).copied());
            if expected != found {
                self.wrong.push((i, step, expected, found));
            }
        }
        // Past a wrong token the rows are those of another text.
        let same = found.tokens.iter().zip(&prompt.tokens).take_while(|(a, b)| a == b).count();
        for (step, row) in found.logits.iter().enumerate().take(same + 1) {
            self.row(reference, i, prompt.prompt_tokens.len() - 1 + step, row);
            self.gap = self.gap.min(lead(row));
        }
    }

    pub(crate) fn row(&mut self, reference: &Reference, prompt: usize, position: usize, found: &[f32]) {
        self.rows += 1;
        let error = reference.error(position, found);
        if error > self.worst.0 {
            self.worst = (error, prompt, position);
        }
        let is_first = self.first.is_none_or(|first| (position, prompt) < first);
        if is_first && error > self.bound {
            self.first = Some((position, prompt));
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (error, prompt, position) = self.worst;
        write!(f, "{} prompts, {} rows: ", self.prompts, self.rows)?;
        match self.wrong.first() {
            None => f.write_str("tokens exact, ")?,
            Some((prompt, step, expected, found)) => {
                let show = |token: &Option<u32>| token.map_or("none".into(), |token| token.to_string());
                let (expected, found) = (show(expected), show(found));
                let count = self.wrong.len();
                write!(
                    f,
                    "{count} wrong tokens (prompt {prompt} step {step} is {found}, expected {expected}), "
                )?;
            }
        }
        write!(
            f,
            "worst error {error:.1e} (prompt {prompt} position {position}), smallest gap {:.1e}",
            self.gap
        )
    }
}
