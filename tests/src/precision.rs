//! Narrow element types: how far our logits are from those of f32, beside how far transformers' own run in the same
//! type is from them.

use std::fmt;

use serde::Serialize;
use tracewright::generate::{Executor, Network, Session};

use crate::built::Result;
use crate::golden::{self, Golden, best, lead, max_error};

/// How many times transformers' own error ours may be.
pub const FACTOR: f64 = 1.1;

/// A row of logits is far off if its error is more than this many times the median error of transformers' own
/// rows. One rounding can do that where two experts are nearly as good, so that the token goes to the other one.
/// Single rows would then decide a mean of squares. So errors are those of all other rows, and the rows that are far
/// off are counted. In transformers' own runs, 0.4 % of the rows are far off without experts, and up to 3.4 % with them.
const FAR: f64 = 5.0;

/// How far logits are from the exact ones, over all positions and the vocabulary.
#[derive(Clone, Debug, Default)]
pub struct Distance {
    /// The mean square of each row's error.
    squares: Vec<f64>,
    divergence: f64,
}

impl Distance {
    fn row(&mut self, exact: &[f32], found: &[f32]) {
        assert_eq!(exact.len(), found.len(), "rows of different vocabularies");
        let apart = exact.iter().zip(found).map(|(a, b)| f64::from(*a) - f64::from(*b));
        self.squares.push(apart.map(|d| d * d).sum::<f64>() / exact.len() as f64);
        let (p, q) = (log_softmax(exact), log_softmax(found));
        self.divergence += p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
    }

    /// The root of the mean square over the rows that `near` contains.
    fn error(&self, near: &[bool]) -> f64 {
        let kept = self.squares.iter().zip(near).filter(|(_, near)| **near).map(|(square, _)| *square);
        let kept: Vec<f64> = kept.collect();
        mean(kept.into_iter()).sqrt()
    }

    /// For each row, whether its error is more than the given one.
    fn beyond(&self, error: f64) -> Vec<bool> {
        self.squares.iter().map(|square| square.sqrt() > error).collect()
    }

    /// The median of the rows' errors; not a number if there are no rows.
    fn median(&self) -> f64 {
        let mut sorted = self.squares.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).map_or(f64::NAN, |square| square.sqrt())
    }

    /// The mean over positions of the Kullback-Leibler divergence from the exact distribution, in nats.
    pub fn divergence(&self) -> f64 {
        self.divergence / self.squares.len() as f64
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
    /// Tokens that were judged: those whose logit leads by more than twice the largest error of transformers' own run,
    /// but for its rows that are far off.
    pub judged: usize,
    /// Wrong tokens: prompt and position. Those of rows that are far off do not count.
    pub wrong: Vec<(usize, usize)>,
}

impl Precision {
    pub fn positions(&self) -> usize {
        self.theirs.squares.len()
    }

    /// An error in units of transformers' own, over the rows that are far off for nobody.
    pub fn ratio(&self, of: impl Fn(&Self) -> &Distance) -> f64 {
        let limit = FAR * self.theirs.median();
        let mut near = vec![true; self.positions()];
        for distance in [&self.scored, &self.decoded, &self.theirs] {
            near.iter_mut().zip(distance.beyond(limit)).for_each(|(near, far)| *near &= !far);
        }
        of(self).error(&near) / self.theirs.error(&near)
    }

    /// The number of rows that are far off.
    pub fn far(&self) -> Far {
        let limit = FAR * self.theirs.median();
        let count = |distance: &Distance| distance.beyond(limit).into_iter().filter(|far| *far).count();
        Far { ours: count(&self.scored).max(count(&self.decoded)), theirs: count(&self.theirs) }
    }

    /// The factor of transformers' own logits that is nearest to ours. It is far from 1 if a common factor of
    /// all logits is rounded differently, which single logits do not show.
    pub fn factor(&self) -> f64 {
        let [product, square] = self.along;
        product / square
    }

    /// Whether no error is too large, and no token another one where that can be said.
    pub fn passes(&self) -> bool {
        let [scored, decoded] = [self.ratio(|case| &case.scored), self.ratio(|case| &case.decoded)];
        self.wrong.is_empty() && self.far().passes() && decoded > 0.0 && scored.max(decoded) <= FACTOR
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scored, decoded, theirs, judged, wrong, .. } = self;
        write!(
            f,
            "{} rows, error {:.3} of theirs ({:.3} token by token), {:.3} from theirs and {:.5} \
             times them; {}; KL {:.1e} ({:.1e}), theirs {:.1e}; \
             {judged} tokens judged, {} wrong{}",
            self.positions(),
            self.ratio(|case| &case.scored),
            self.ratio(|case| &case.decoded),
            self.ratio(|case| &case.between),
            self.factor(),
            self.far(),
            scored.divergence(),
            decoded.divergence(),
            theirs.divergence(),
            wrong.len(),
            wrong.first().map_or(String::new(), |(p, at)| format!(" (prompt {p} position {at})")),
        )
    }
}

/// The numbers of rows that are far off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Far {
    pub ours: usize,
    pub theirs: usize,
}

impl Far {
    /// By how many ours are more than theirs.
    fn excess(self) -> f64 {
        self.ours as f64 - self.theirs as f64
    }

    /// Whether ours are no more than theirs, but for two standard deviations of the difference of two counts.
    pub fn passes(self) -> bool {
        self.excess() <= 2.0 * self.variance().sqrt()
    }

    /// The variance of the difference, if the rows are independent.
    fn variance(self) -> f64 {
        (self.ours + self.theirs) as f64
    }
}

impl fmt::Display for Far {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows far off, theirs {}", self.ours, self.theirs)
    }
}

/// What an [`Average`] shows.
pub const COLUMNS: &str = "cases | positions | error ratio | token by token | from theirs | far off | theirs | KL | KL of theirs | tokens judged | wrong";

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
        mean(self.cases.iter().map(|case| case.ratio(&of).ln())).exp()
    }

    fn far(&self) -> Far {
        let sum = |of: fn(&Far) -> usize| self.cases.iter().map(|case| of(&case.far())).sum();
        Far { ours: sum(|far| far.ours), theirs: sum(|far| far.theirs) }
    }

    /// Whether our rows that are far off are no more than theirs, but for two standard deviations. The rows of a case
    /// are not independent: attention reads the first one from all later positions. So the variance is that between
    /// cases, if it is the larger one.
    fn has_no_more_far_rows(&self) -> bool {
        let between: f64 = self.cases.iter().map(|case| case.far().excess().powi(2)).sum();
        self.far().excess() <= 2.0 * self.far().variance().max(between).sqrt()
    }

    /// Whether the mean of neither way is too large, no more rows are far off than of theirs, and no token is
    /// another one where that can be said.
    pub fn passes(&self) -> bool {
        let ratio = self.ratio(|case| &case.scored).max(self.ratio(|case| &case.decoded));
        ratio <= FACTOR && self.has_no_more_far_rows() && self.cases.iter().all(|case| case.wrong.is_empty())
    }
}

impl fmt::Display for Average {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |of: fn(&Precision) -> usize| self.cases.iter().map(of).sum::<usize>();
        write!(
            f,
            "{} | {} | {:.3} | {:.3} | {:.3} | {} | {} | {:.1e} | {:.1e} | {} | {}",
            self.cases.len(),
            sum(Precision::positions),
            self.ratio(|case| &case.scored),
            self.ratio(|case| &case.decoded),
            self.ratio(|case| &case.between),
            self.far().ours,
            self.far().theirs,
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
pub fn measure<E: Executor>(golden: &Golden, network: &Network<E>) -> Result<Precision> {
    let full = golden.prompts.iter().enumerate().filter(|(_, prompt)| prompt.full);
    let full: Vec<_> =
        full.map(|(i, prompt)| Ok((i, prompt, golden.reference(i)?))).collect::<Result<_>>()?;
    let mut found = Precision::default();
    for (_, prompt, reference) in &full {
        for position in 0..prompt.fed().len() {
            let (exact, own) = reference.both(position)?;
            found.theirs.row(exact, own);
        }
    }
    let limit = FAR * found.theirs.median();
    let mut far = found.theirs.beyond(limit).into_iter();
    let mut largest = 0.0;
    for (_, prompt, reference) in &full {
        for (position, far) in (0..prompt.fed().len()).zip(&mut far) {
            let (exact, own) = reference.both(position)?;
            if !far {
                largest = max_error(exact, own).max(largest);
            }
        }
    }
    let decided = |exact: &[f32]| f64::from(lead(exact)) > 2.0 * largest;
    let scores = network.has_scorer();
    for &(i, prompt, ref reference) in &full {
        let fed = prompt.fed();
        let at_once = scores.then(|| Session::new(network).score(&fed)).transpose()?;
        let mut session = Session::new(network);
        let start = found.decoded.squares.len();
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
            let row = start + position;
            let ways = [(&found.scored, scored), (&found.decoded, &decoded)];
            let near = ways.map(|(distance, logits)| (distance.squares[row].sqrt() <= limit, logits));
            if decided(exact) {
                found.judged += 1;
                if near.iter().any(|(near, logits)| *near && best(logits) != best(exact)) {
                    found.wrong.push((i, position));
                }
            }
        }
        let chosen = golden::greedy(network, &prompt.prompt_tokens, prompt.tokens.len(), false)?.tokens;
        let same = chosen.iter().zip(&prompt.tokens).take_while(|(a, b)| a == b).count();
        let position = prompt.prompt_tokens.len() - 1 + same;
        if same < prompt.tokens.len()
            && decided(reference.both(position)?.0)
            && found.decoded.squares[start + position].sqrt() <= limit
        {
            found.wrong.push((i, position));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A case in which each row of transformers' own errs by 1, and each of ours by the given number.
    fn case(ours: &[f32]) -> Precision {
        let mut case = Precision::default();
        for error in ours {
            for distance in [&mut case.scored, &mut case.decoded] {
                distance.row(&[0.0], &[*error]);
            }
            case.theirs.row(&[0.0], &[1.0]);
        }
        case
    }

    #[test]
    fn a_case_passes_only_if_no_row_but_a_few_errs_more_than_transformers_own() {
        let with_far = |far: usize| case(&[vec![0.9; 100 - far], vec![50.0; far]].concat());
        assert!((with_far(3).ratio(|case| &case.scored) - 0.9).abs() < 1e-6);
        assert!(with_far(4).passes());
        assert!(!with_far(5).passes());
        assert!(!case(&[1.2; 100]).passes());
        assert!(!case(&[50.0; 100]).passes());
        assert!(!case(&[0.0; 100]).passes(), "nothing was computed in the narrow type");
    }

    #[test]
    fn a_family_may_have_many_far_rows_in_one_case_but_not_in_each() {
        let with_far = |far: usize| case(&[vec![0.9; 100 - far], vec![50.0; far]].concat());
        let family = |far: &[usize]| Average { cases: far.iter().map(|far| with_far(*far)).collect() };
        assert!(family(&[0, 20, 0, 0, 0]).passes());
        assert!(!family(&[20, 20, 20, 20, 20]).passes());
    }
}
