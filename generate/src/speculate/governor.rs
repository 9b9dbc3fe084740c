//! Whether drafting pays.

use super::Certainty;

/// Allows drafts as long as those before paid for them.
///
/// It counts in calls of one token. A token without a draft earns a little, and each accepted token earns a call. So a text in
/// which no draft is right loses at most [`DEBT`](Self::DEBT) calls and [`INCOME`](Self::INCOME) of its tokens. It counts no time: the same text has the same
/// drafts on any machine.
#[derive(Clone, Debug)]
pub(crate) struct Governor {
    credit: f64,
}

impl Governor {
    /// How much longer a call takes that verifies a draft.
    const COST: f64 = 1.0;
    /// The calls that a token without a draft earns.
    const INCOME: f64 = 0.01;
    /// The most that right drafts save up for wrong ones.
    const MOST: f64 = 8.0;
    /// The most that wrong drafts may cost.
    const DEBT: f64 = 3.0;

    pub fn new() -> Self {
        Self { credit: 0.0 }
    }

    /// How certain the next draft must be; `None` where no draft is allowed.
    pub fn allows(&self) -> Option<Certainty> {
        match self.credit {
            credit if credit >= 0.0 => Some(Certainty::Likely),
            credit if credit > Self::COST - Self::DEBT => Some(Certainty::NearlyCertain),
            _ => None,
        }
    }

    /// Counts a call that verified a draft of which this many tokens were accepted.
    pub fn verified(&mut self, accepted: usize) {
        self.credit = (self.credit - Self::COST + accepted as f64).min(Self::MOST);
    }

    /// Counts a token without a draft.
    pub fn passed(&mut self) {
        self.credit = (self.credit + Self::INCOME).min(Self::MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The calls that a text of this many tokens loses, if this share of drafts is right in full.
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
        assert!(loss(1000, |_| 7) < -700.0);
        // One of two is wrong.
        assert!(loss(1000, |draft| [7, 0][draft % 2]) < -500.0);
    }
}
