//! Divides a decode step into network calls: one per sequence with an unprocessed prompt, one for all others.

use crate::GenerateError;
use crate::entry::{EntryCall, EntryKind, EntryPoint};
use crate::executor::Executor;
use crate::generation::StepRequest;
use crate::sequences::Sequences;

impl<'a, E: Executor> Sequences<'a, E> {
    /// Returns the calls of a decode step, each with the planned tokens that fit into one call.
    pub(crate) fn calls(
        &self,
        want: StepRequest,
        planned: &[usize],
        of_features: bool,
    ) -> Result<Vec<EntryCall<'a>>, GenerateError> {
        let network = self.network;
        let has_draft = |index: usize| self.all[index].draft.length > 0;
        let some: Vec<usize> = (0..planned.len()).filter(|&index| planned[index] > 0).collect();
        let kind = match want {
            StepRequest::All => Some(EntryKind::Scorer),
            StepRequest::Each => Some(EntryKind::Each),
            StepRequest::Nothing | StepRequest::Token | StepRequest::Logits => None,
        };
        if let Some(kind) = kind {
            let entry = network.only(kind)?;
            let alone = entry.sequences == 1;
            let groups = some.chunks(if alone { 1 } else { some.len().max(1) });
            let entry = if alone { entry } else { self.covering(kind, &some)? };
            return Ok(groups.map(|group| self.call_of(entry, group, planned)).collect());
        }
        let (mut calls, mut together) = (Vec::new(), some.clone());
        if network.serves_parts() {
            let reads = |&index: &usize| planned[index] > 1 && !has_draft(index);
            for index in some.into_iter().filter(reads) {
                let entry = network.step(1, planned[index], of_features)?;
                calls.push(self.call_of(entry, &[index], planned));
            }
            together.retain(|index| !reads(index));
        }
        if !together.is_empty() {
            calls.extend(self.shared(&together, planned, of_features)?);
        }
        Ok(calls)
    }

    /// Returns the network calls for sequences that process one token or a draft: one call for all, or one
    /// per draft and one for the rest, whichever costs less.
    fn shared(
        &self,
        indices: &[usize],
        planned: &[usize],
        of_features: bool,
    ) -> Result<Vec<EntryCall<'a>>, GenerateError> {
        let network = self.network;
        let longest = indices.iter().map(|&index| planned[index]).max().unwrap_or_default();
        let plain = |indices: &[usize]| -> Result<EntryCall<'a>, GenerateError> {
            let entry = network.step(span(indices), longest, of_features)?;
            Ok(self.call_of(entry, indices, planned))
        };
        let (drafts, others): (Vec<usize>, Vec<usize>) =
            indices.iter().partition(|&&index| self.all[index].draft.length > 0);
        if drafts.is_empty() {
            return Ok(vec![plain(indices)?]);
        }
        let verifies = |indices: &[usize]| -> Result<EntryCall<'a>, GenerateError> {
            let entry = self.covering(EntryKind::Verifier, indices)?;
            Ok(self.call_of(entry, indices, planned))
        };
        let together = vec![verifies(indices)?];
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
    fn covering(&self, kind: EntryKind, indices: &[usize]) -> Result<&'a EntryPoint, GenerateError> {
        self.network.of_kind(kind, span(indices)).map_or_else(|| self.network.only(kind), Ok)
    }

    /// Returns the network call that processes the tokens that are planned for the given sequences.
    fn call_of(&self, entry: &'a EntryPoint, indices: &[usize], planned: &[usize]) -> EntryCall<'a> {
        let lowest = indices.first().copied().unwrap_or_default();
        let first = lowest.min(planned.len() - entry.sequences);
        let ranges = (first..first + entry.sequences).map(|index| {
            let start = self.all[index].prefix.length;
            let count = if indices.contains(&index) { planned[index].min(entry.chunk) } else { 0 };
            start..start + count
        });
        EntryCall { entry, first, ranges: ranges.collect() }
    }
}

/// Returns the number of consecutive sequences that span the given indices, which are in ascending order.
fn span(indices: &[usize]) -> usize {
    match indices {
        [first, .., last] => last - first + 1,
        _ => indices.len(),
    }
}
