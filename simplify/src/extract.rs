//! Chooses one term for each class of equal terms, with a low total cost. The cost of a term counts once,
//! even if the term is used twice.
//!
//! egg's own extractor computes the cost of a tree: a layer that is used twice counts twice, and the cost
//! doubles with each layer. This search starts from the original function and makes only moves that lower the
//! total cost, so the result is never worse. A class costs something while it is in use, and it is in use
//! while another class in use refers to it. Logic synthesis calls this counting of references the maximum
//! fanout-free cone (Mishchenko, Chatterjee, Brayton, "DAG-Aware AIG Rewriting", 2006). The search has two
//! kinds of moves. Either one class changes to another of its terms, or all classes that could refer to a
//! class change together. Sharing may pay off only if several classes take part.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use egg::Id;
use trace::NodeKind;

/// A class of equal terms in the e-graph. The operands of a term are indices into a list of classes.
pub(crate) struct Class {
    /// The class's id in the e-graph.
    pub id: Id,
    /// The terms in the e-graph's order, followed by terms that the archive could store.
    pub terms: Vec<Candidate>,
}

/// A term that can be chosen for a class.
pub(crate) struct Candidate {
    pub kind: Arc<NodeKind>,
    /// The class indices of the term's operands.
    pub operands: Vec<usize>,
    pub cost: f64,
}

/// The chosen term of each class.
pub(crate) struct Extraction<'a> {
    pub classes: &'a [Class],
    pub chosen: Vec<usize>,
    references: Vec<u32>,
    total: f64,
}

/// A class, and the term that is chosen for this class.
type Move = (usize, usize);

impl<'a> Extraction<'a> {
    /// Searches for the cheapest choice, starting from the choice `start`, which has no cycles. The classes
    /// in `roots` are always in use.
    pub fn search(classes: &'a [Class], start: Vec<usize>, roots: &[usize]) -> Self {
        let references = vec![0; classes.len()];
        let mut extraction = Self { classes, chosen: start, references, total: 0.0 };
        roots.iter().for_each(|&root| extraction.acquire(root));
        extraction.improve();
        extraction
    }

    pub fn in_use(&self, class: usize) -> bool {
        self.references[class] > 0
    }

    fn improve(&mut self) {
        // Who may refer to whom.
        let mut users: Vec<Vec<Move>> = vec![Vec::new(); self.classes.len()];
        for (class, of) in self.classes.iter().enumerate() {
            for (at, candidate) in of.terms.iter().enumerate() {
                let mut operands = candidate.operands.clone();
                operands.sort_unstable();
                operands.dedup();
                operands.iter().for_each(|&operand| users[operand].push((class, at)));
            }
        }
        let mut queue: VecDeque<usize> = (0..self.classes.len()).collect();
        let mut queued = vec![true; self.classes.len()];
        while let Some(class) = queue.pop_front() {
            queued[class] = false;
            let mut improved = Vec::new();
            if self.in_use(class) {
                for at in 0..self.classes[class].terms.len() {
                    if at != self.chosen[class] && self.accept(&[(class, at)]) {
                        improved.push(class);
                    }
                }
            } else {
                let mut together: BTreeMap<usize, usize> = BTreeMap::new();
                for &(user, at) in &users[class] {
                    if self.in_use(user) && user != class {
                        together.entry(user).or_insert(at);
                    }
                }
                let moves: Vec<Move> = together.into_iter().collect();
                if moves.len() > 1 && self.accept(&moves) {
                    improved.extend(moves.iter().map(|(user, _)| *user));
                }
            }
            // What is around a change may have become worth changing.
            for changed in improved {
                let around = users[changed].iter().map(|(user, _)| *user);
                let below = self.classes[changed].terms.iter().flat_map(|term| term.operands.iter().copied());
                for near in around.chain(below).chain([changed]) {
                    if !queued[near] {
                        queued[near] = true;
                        queue.push_back(near);
                    }
                }
            }
        }
    }

    /// Makes the moves if they lower the total cost together and create no cycle.
    fn accept(&mut self, moves: &[Move]) -> bool {
        let before = (self.chosen.clone(), self.references.clone(), self.total);
        self.take(moves);
        // Below the sum's own rounding nothing is gained.
        let better = self.total < before.2 * (1.0 - 1e-12) && !self.cyclic(moves);
        if !better {
            (self.chosen, self.references, self.total) = before;
        }
        better
    }

    fn take(&mut self, moves: &[Move]) {
        // New operands first, so that what both need stays in use. A cycle keeps itself in use; it is undone.
        let old: Vec<Move> = moves.iter().map(|&(class, _)| (class, self.chosen[class])).collect();
        for &(class, at) in moves {
            self.chosen[class] = at;
            self.total += self.classes[class].terms[at].cost;
            self.classes[class].terms[at].operands.iter().for_each(|&operand| self.acquire(operand));
        }
        for (class, at) in old {
            self.total -= self.classes[class].terms[at].cost;
            self.classes[class].terms[at].operands.iter().for_each(|&operand| self.release(operand));
        }
    }

    fn acquire(&mut self, class: usize) {
        let mut pending = vec![class];
        while let Some(class) = pending.pop() {
            self.references[class] += 1;
            if self.references[class] == 1 {
                let candidate = &self.classes[class].terms[self.chosen[class]];
                self.total += candidate.cost;
                pending.extend(&candidate.operands);
            }
        }
    }

    fn release(&mut self, class: usize) {
        let mut pending = vec![class];
        while let Some(class) = pending.pop() {
            self.references[class] -= 1;
            if self.references[class] == 0 {
                let candidate = &self.classes[class].terms[self.chosen[class]];
                self.total -= candidate.cost;
                pending.extend(&candidate.operands);
            }
        }
    }

    /// Whether a class would depend on itself after the moves.
    fn cyclic(&self, moves: &[Move]) -> bool {
        let mut seen = vec![0u32; self.classes.len()];
        moves.iter().enumerate().any(|(mark, &(start, at))| {
            let mark = mark as u32 + 1;
            let mut pending = self.classes[start].terms[at].operands.clone();
            while let Some(class) = pending.pop() {
                if class == start {
                    return true;
                }
                if seen[class] != mark {
                    seen[class] = mark;
                    pending.extend(&self.classes[class].terms[self.chosen[class]].operands);
                }
            }
            false
        })
    }
}
