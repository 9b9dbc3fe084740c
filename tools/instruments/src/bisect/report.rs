//! Formats the result of `bisect` as text and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{Bisected, ComparedNode, Difference, Finding, TokenCall};

/// The result of comparing two variants of a network over several calls.
pub struct BisectReport<'a> {
    pub names: [&'a str; 2],
    pub calls: &'a [TokenCall],
    pub compared: &'a [Bisected],
}

impl BisectReport<'_> {
    /// The first node beyond the allowed difference, and its call.
    pub fn finding(&self) -> Option<(&TokenCall, &Finding)> {
        let calls = self.calls.iter().zip(self.compared);
        calls.into_iter().find_map(|(call, bisected)| Some((call, bisected.finding.as_ref()?)))
    }

    pub fn nodes(&self) -> usize {
        self.compared.iter().map(|bisected| bisected.compared).sum()
    }

    /// For `tracewright bisect --json`.
    pub fn json(&self) -> Value {
        let call = |(call, bisected): (&TokenCall, &Bisected)| {
            let results = bisected.results.iter().map(|(name, difference)| (name.clone(), json!(difference)));
            json!({
                "call": call,
                "nodes": bisected.compared,
                "finding": bisected.finding,
                "results": results.collect::<serde_json::Map<_, _>>(),
            })
        };
        json!({
            "subject": self.names[0],
            "reference": self.names[1],
            "nodes": self.nodes(),
            "differs": self.finding().is_some(),
            "calls": self.calls.iter().zip(self.compared).map(call).collect::<Value>(),
        })
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = match self.finding() {
            None => writeln!(text, "{} nodes are equal within their bounds", self.nodes()),
            Some((call, finding)) => self.explain(&mut text, call, finding),
        };
        for (call, bisected) in self.calls.iter().zip(self.compared) {
            let shares =
                bisected.results.iter().map(|(name, found)| format!("{name} {:.1e}", found.relative));
            let _ = writeln!(text, "{}: {}", call, shares.collect::<Vec<_>>().join(", "));
        }
        text
    }

    fn explain(&self, text: &mut String, call: &TokenCall, finding: &Finding) -> std::fmt::Result {
        let Finding { node: ComparedNode { place, difference }, operands, only_together, after } = finding;
        writeln!(text, "`{}` differs, at {}:{}, in {}", place.path, place.file, place.line, call)?;
        writeln!(text, "  {} : {}", place.op, place.ty)?;
        if let Some(Difference { at, subject, reference, relative, beyond, count }) = difference {
            let [own, other] = self.names;
            writeln!(text, "  at {at:?} {own} has {subject:e}, {other} {reference:e}")?;
            writeln!(
                text,
                "  that is {relative:.1e} of the largest; {beyond} of {count} numbers are beyond their bounds"
            )?;
        }
        if *only_together {
            writeln!(text, "  only if it is fused with its neighbours in one kernel or dispatch")?;
        }
        for ComparedNode { place, difference } in operands {
            let apart = difference.as_ref().map(|found| format!(": {:.1e} apart", found.relative));
            let apart = apart.unwrap_or_default();
            writeln!(text, "  of {} (`{}`, {}:{}){apart}", place.op, place.path, place.file, place.line)?;
        }
        writeln!(text, "  after it, {} of {} nodes exceed their own bounds", after[1], after[0])
    }
}
