//! Chooses one expression for each class of equal expressions, so that the total cost is low. The total cost
//! includes the cost of an expression only once, even if several operations use the expression.
//!
//! The extractor of the crate `egg` computes the cost of each expression as a tree. For example, the cost of
//! a layer counts twice if two operations use its result, so the cost doubles with each layer. Tracewright's
//! search starts from the original function, and changes its choice only if the total cost becomes lower.
//! Therefore the result never costs more than the original function. The total cost is the sum of the costs
//! of all needed classes, where a class is a set of equal expressions. A class is needed if it contains a
//! result of the function, or if the chosen expression of another needed class reads the class. The method of
//! counting references comes from logic synthesis, where it has the name *maximum fanout-free cone*
//! (Mishchenko, Chatterjee, Brayton, "DAG-Aware AIG Rewriting", 2006). The search makes changes of two kinds.
//! A change of the first kind replaces the expression of one class. A change of the second kind replaces the
//! expressions of all classes that could read the same class. Changing several classes together is necessary,
//! because several changes together can lower the total cost although each single change would increase the
//! cost.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use egg::Id;
use trace::NodeKind;

/// A class of equal expressions. Their operands are indices in a list of classes.
pub(crate) struct Class {
    pub id: Id,
    /// In the order of the e-graph, followed by those that could be computed once and stored in the archive.
    pub terms: Vec<Candidate>,
}

pub(crate) struct Candidate {
    pub kind: Arc<NodeKind>,
    /// The indices of the operands' classes.
    pub operands: Vec<usize>,
    pub cost: f64,
}

/// An expression for each class.
pub(crate) struct Extraction<'a> {
    pub classes: &'a [Class],
    pub chosen: Vec<usize>,
    references: Vec<u32>,
    total: f64,
}

/// A class of equal expressions, and the expression that a change selects for the class.
type Move = (usize, usize);

impl<'a> Extraction<'a> {
    /// Searches for the lowest cost from the choice `start`, which has no cycles. `roots` are the function's
    /// results.
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
        // For each class, the expressions of other classes that have this class as an operand.
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
            // After a change, a change of a neighbouring class can also lower the cost.
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

    /// Makes the changes `moves` if the changes together lower the total cost and create no cycle.
    fn accept(&mut self, moves: &[Move]) -> bool {
        let before = (self.chosen.clone(), self.references.clone(), self.total);
        self.take(moves);
        // A smaller difference could be a rounding error of the sum.
        let better = self.total < before.2 * (1.0 - 1e-12) && !self.cyclic(moves);
        if !better {
            (self.chosen, self.references, self.total) = before;
        }
        better
    }

    fn take(&mut self, moves: &[Move]) {
        // The function acquires the new operands before it releases the old operands, so that
        // common operands stay in use. The function `accept` undoes a cycle, which would keep
        // itself in use.
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

    /// Whether any class would depend on itself after the changes `moves`.
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
