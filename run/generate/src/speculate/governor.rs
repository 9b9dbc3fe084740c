//! Decides whether drafting saves time.

use super::Certainty;

/// Allows drafts as long as earlier drafts of the batch saved enough calls. The balance counts saved network
/// calls: a verifying call costs [`COST`](Self::COST), each accepted token adds one, and a call without a
/// draft adds [`INCOME`](Self::INCOME). If all drafts are wrong, drafting costs at most [`DEBT`](Self::DEBT)
/// calls, plus [`INCOME`](Self::INCOME) per token. No measured time counts, so every machine drafts the same.
#[derive(Clone, Debug)]
pub(crate) struct Governor {
    credit: f64,
}

impl Governor {
    /// The additional cost of verifying a draft, in calls that process one token.
    const COST: f64 = 1.5;
    /// The number of saved network calls that a call without a draft adds to the balance.
    const INCOME: f64 = 0.01;
    /// The largest possible balance of saved network calls.
    const MOST: f64 = 8.0;
    /// The largest negative balance that rejected drafts can cause.
    const DEBT: f64 = 3.0;

    pub fn new() -> Self {
        Self { credit: 0.0 }
    }

    /// Returns the certainty that the next draft must have, or `None` if the balance allows no draft.
    pub fn allows(&self) -> Option<Certainty> {
        match self.credit {
            credit if credit >= 0.0 => Some(Certainty::Likely),
            credit if credit > Self::COST - Self::DEBT => Some(Certainty::NearlyCertain),
            _ => None,
        }
    }

    /// Subtracts the cost of a verified draft from the balance, and adds a call per `accepted` draft token.
    pub fn verified(&mut self, accepted: usize) {
        self.credit = (self.credit - Self::COST + accepted as f64).min(Self::MOST);
    }

    /// Updates the balance after a call without a draft.
    pub fn passed(&mut self) {
        self.credit = (self.credit + Self::INCOME).min(Self::MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The calls that a sequence loses by rejected drafts; `right` gives the accepted tokens of a draft.
    fn loss(tokens: usize, right: impl Fn(usize) -> usize) -> f64 {
        let (mut governor, mut lost, mut drafts, mut done) = (Governor::new(), 0.0, 0, 0);
        while done < tokens {
            done += 1;
            if governor.allows().is_none() {
                governor.passed();
                continue;
            }
            let accepted = right(drafts);
            (drafts, done) = (drafts + 1, done + accepted);
            lost += Governor::COST - accepted as f64;
            governor.verified(accepted);
        }
        lost
    }

    #[test]
    fn wrong_drafts_cost_a_bounded_part_of_a_text() {
        for tokens in [10, 100, 1000, 100_000] {
            let lost = loss(tokens, |_| 0);
            assert!(lost <= Governor::DEBT + 1.0 + Governor::INCOME * tokens as f64, "{tokens}: {lost}");
        }
    }

    #[test]
    fn drafts_that_pay_go_on() {
        assert!(loss(1000, |_| 7) < -650.0);
        // Every second draft is wrong.
        assert!(loss(1000, |draft| [7, 0][draft % 2]) < -400.0);
    }
}
