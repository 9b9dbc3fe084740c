//! Divides a decode step of the batch into calls of the network. Each sequence whose prompt is not
//! processed yet gets its own call, and all other sequences share one call.

use crate::GenerateError;
use crate::entry::{EntryCall, EntryKind, EntryPoint};
use crate::executor::Executor;
use crate::generation::StepRequest;
use crate::sequences::Sequences;

impl<'a, E: Executor> Sequences<'a, E> {
    /// Returns the network calls of a decode step. For each sequence, a call processes the tokens
    /// that the schedule has planned, but at most as many tokens as fit into one call.
    pub(crate) fn calls(
        &self,
        want: StepRequest,
        planned: &[usize],
        of_features: bool,
    ) -> Result<Vec<EntryCall<'a>>, GenerateError> {
        let network = self.network;
        let has_draft = |row: usize| self.rows[row].drafted > 0;
        let some: Vec<usize> = (0..planned.len()).filter(|&row| planned[row] > 0).collect();
        let kind = match want {
            StepRequest::All => Some(EntryKind::Scorer),
            StepRequest::Each => Some(EntryKind::Each),
            StepRequest::Nothing | StepRequest::Token | StepRequest::Logits => None,
        };
        if let Some(kind) = kind {
            let entry = network.only(kind)?;
            let alone = entry.rows == 1;
            let groups = some.chunks(if alone { 1 } else { some.len().max(1) });
            let entry = if alone { entry } else { self.covering(kind, &some)? };
            return Ok(groups.map(|group| self.call_of(entry, group, planned)).collect());
        }
        let (mut calls, mut together) = (Vec::new(), some.clone());
        if network.serves_parts() {
            let reads = |&row: &usize| planned[row] > 1 && !has_draft(row);
            for row in some.into_iter().filter(|row| reads(row)) {
                let entry = network.step(1, planned[row], of_features)?;
                calls.push(self.call_of(entry, &[row], planned));
            }
            together.retain(|row| !reads(row));
        }
        if !together.is_empty() {
            calls.extend(self.shared(&together, planned, of_features)?);
        }
        Ok(calls)
    }

    /// Returns the network calls for sequences that process one token or a draft. The function
    /// returns one call for all sequences, or one call for each draft and one call for all
    /// sequences without a draft. The function chooses the calls with the lower total cost.
    fn shared(
        &self,
        rows: &[usize],
        planned: &[usize],
        of_features: bool,
    ) -> Result<Vec<EntryCall<'a>>, GenerateError> {
        let network = self.network;
        let longest = rows.iter().map(|&row| planned[row]).max().unwrap_or_default();
        let plain = |rows: &[usize]| -> Result<EntryCall<'a>, GenerateError> {
            let entry = network.step(span(rows), longest, of_features)?;
            Ok(self.call_of(entry, rows, planned))
        };
        let (drafts, others): (Vec<usize>, Vec<usize>) =
            rows.iter().partition(|&&row| self.rows[row].drafted > 0);
        if drafts.is_empty() {
            return Ok(vec![plain(rows)?]);
        }
        let verifies = |rows: &[usize]| -> Result<EntryCall<'a>, GenerateError> {
            let entry = self.covering(EntryKind::Verifier, rows)?;
            Ok(self.call_of(entry, rows, planned))
        };
        let together = vec![verifies(rows)?];
        if !network.serves_parts() {
            return Ok(together);
        }
        let mut apart: Vec<EntryCall<'a>> = drafts.chunks(1).map(verifies).collect::<Result<_, _>>()?;
        if !others.is_empty() {
            let entry = network.step(span(&others), 1, of_features)?;
            apart.push(self.call_of(entry, &others, planned));
        }
        let cost = |calls: &[EntryCall<'_>]| calls.iter().map(|call| call.entry.cost()).sum::<usize>();
        Ok(if cost(&apart) < cost(&together) { apart } else { together })
    }

    /// Returns an entry point of the given kind that processes all given sequences in one call.
    fn covering(&self, kind: EntryKind, rows: &[usize]) -> Result<&'a EntryPoint, GenerateError> {
        self.network.of_kind(kind, span(rows)).map_or_else(|| self.network.only(kind), Ok)
    }

    /// Returns the network call that processes the tokens that are planned for the given sequences.
    fn call_of(&self, entry: &'a EntryPoint, rows: &[usize], planned: &[usize]) -> EntryCall<'a> {
        let lowest = rows.first().copied().unwrap_or_default();
        let first = lowest.min(planned.len() - entry.rows);
        let ranges = (first..first + entry.rows).map(|row| {
            let start = self.rows[row].seen;
            let count = if rows.contains(&row) { planned[row].min(entry.chunk) } else { 0 };
            start..start + count
        });
        EntryCall { entry, first, ranges: ranges.collect() }
    }
}

/// Returns the number of consecutive rows of the batch, from the first to the last given row. The
/// given rows are in ascending order.
fn span(rows: &[usize]) -> usize {
    match rows {
        [first, .., last] => last - first + 1,
        _ => rows.len(),
    }
}
