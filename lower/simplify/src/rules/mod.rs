//! The rewrite rules: three tables of exact rules, and one table of approximate rules. Tracewright
//! applies the approximate rules only if you select the set `approximate`.

mod algebra;
mod approximate;
mod attribute;
mod parameters;
mod shape;

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use egg::{ConditionalApplier, Pattern, Rewrite, Var};

pub use attribute::{Site, Tree};

use crate::Term;
use crate::facts::{Context, FOLDING, Graph};

/// The set of rewrite rules that Tracewright applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rules {
    Off,
    /// The set contains the rules that do not change any bit of the results.
    #[default]
    Exact,
    /// The set contains the exact rules, and also the rules that change the rounding of results.
    Approximate,
}

/// The error for a word that is not the name of a set of rewrite rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a set of rewrite rules; expected off, exact or approximate")]
pub struct UnknownRules(pub String);

impl Rules {
    const NAMES: [(&str, Self); 3] =
        [("off", Self::Off), ("exact", Self::Exact), ("approximate", Self::Approximate)];
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Self::NAMES.iter().filter(|(_, rules)| rules == self).try_for_each(|(name, _)| f.write_str(name))
    }
}

impl FromStr for Rules {
    type Err = UnknownRules;
    fn from_str(text: &str) -> Result<Self, UnknownRules> {
        let known = Self::NAMES.iter().find(|(name, _)| *name == text);
        known.map(|(_, rules)| *rules).ok_or_else(|| UnknownRules(text.into()))
    }
}

/// Returns the equation of the rewrite rule with this name; `None` if no rule has this name.
pub fn equation(name: &str) -> Option<String> {
    let rule = Table::ALL.iter().flat_map(|table| table.rules()).find(|rule| rule.name == name);
    rule.map(Rule::equation).or_else(|| (name == FOLDING.0).then(|| FOLDING.1.to_owned()))
}

#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The name of the rewrite rule in reports and in explanations.
    pub name: &'static str,
    /// How Tracewright matches and applies the rewrite rule.
    pub how: RuleKind,
}

/// How Tracewright matches and applies a rewrite rule.
#[derive(Clone, Copy, Debug)]
pub enum RuleKind {
    /// A rule whose equation has a pattern for the left side and a pattern for the right side. Some
    /// variables of the left-hand pattern must be constants.
    Text {
        left: &'static str,
        right: &'static str,
        /// The variables that must be constants, and the number that every element of each such
        /// constant must have.
        splats: &'static [(&'static str, f64)],
    },
    /// A rule that depends on the attributes of an operation. A function in Rust computes the
    /// expressions that are equal to the operation.
    Attribute {
        equation: &'static str,
        op: &'static str,
        /// Returns the expressions that are equal to a use of the operation.
        forms: fn(&Site<'_>) -> Vec<Tree>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    Algebra,
    Shape,
    /// Rules that move a computation from the program to `bake`, which runs the computation once
    /// when it writes the archive.
    Parameters,
    /// Rules that are exact except for rounding errors.
    Approximate,
}

impl Table {
    pub const ALL: [Self; 4] = [Self::Algebra, Self::Shape, Self::Parameters, Self::Approximate];

    pub fn rules(self) -> &'static [Rule] {
        match self {
            Self::Algebra => algebra::RULES,
            Self::Shape => shape::RULES,
            Self::Parameters => parameters::RULES,
            Self::Approximate => approximate::RULES,
        }
    }
}

impl Rules {
    /// Returns all rewrite rules of this set, in their order.
    pub fn all(self) -> Vec<Rule> {
        let tables: &[Table] = match self {
            Self::Off => &[],
            Self::Exact => &Table::ALL[..3],
            Self::Approximate => &Table::ALL,
        };
        tables.iter().flat_map(|table| table.rules()).copied().collect()
    }

    /// Returns the rules of [`all`](Self::all) as rewrites of the crate `egg`. Tracewright parses the rewrite
    /// rules only once, because the parser takes as long as the simplification of a small function.
    pub(crate) fn rewrites(self) -> &'static [Rewrite<Term, Context>] {
        static EXACT: Rewrites = LazyLock::new(|| rewrites(Rules::Exact.all()));
        static APPROXIMATE: Rewrites = LazyLock::new(|| rewrites(Rules::Approximate.all()));
        match self {
            Self::Off => &[],
            Self::Exact => &EXACT,
            Self::Approximate => &APPROXIMATE,
        }
    }

    /// All rewrite rules except the rules that move computations from the program to the crate
    /// `bake`. Without an archive, every call of the program would repeat the computations that
    /// `bake` otherwise runs only once.
    pub(crate) fn rewrites_without_archive(self) -> &'static [Rewrite<Term, Context>] {
        static EXACT: Rewrites = LazyLock::new(|| rewrites(without_archive(Rules::Exact)));
        static APPROXIMATE: Rewrites = LazyLock::new(|| rewrites(without_archive(Rules::Approximate)));
        match self {
            Self::Off => &[],
            Self::Exact => &EXACT,
            Self::Approximate => &APPROXIMATE,
        }
    }
}

type Rewrites = LazyLock<Vec<Rewrite<Term, Context>>>;

fn rewrites(rules: Vec<Rule>) -> Vec<Rewrite<Term, Context>> {
    rules.iter().map(Rule::rewrite).collect()
}

fn without_archive(rules: Rules) -> Vec<Rule> {
    let mut rules = rules.all();
    rules.retain(|rule| parameters::RULES.iter().all(|moved| moved.name != rule.name));
    rules
}

/// A condition that a rewrite rule sets for the class of a variable.
type Condition = Box<dyn Fn(&mut Graph, egg::Id, &egg::Subst) -> bool + Send + Sync>;

impl Rule {
    /// Returns the equation of the rewrite rule as text: `(add ?x ?c) = ?x, ?c = -0`.
    pub fn equation(&self) -> String {
        match self.how {
            RuleKind::Text { left, right, splats } => {
                let splats = splats.iter().map(|(variable, value)| format!(", {variable} = {value}"));
                format!("{left} = {right}{}", splats.collect::<String>())
            }
            RuleKind::Attribute { equation, .. } => equation.to_owned(),
        }
    }

    /// Converts the rewrite rule to a rewrite of the crate `egg`.
    ///
    /// # Panics
    /// Panics if the parser rejects a pattern in the tables of rewrite rules. Any test of the
    /// rewrite rules would find a pattern that the parser rejects.
    pub fn rewrite(&self) -> Rewrite<Term, Context> {
        let made = match self.how {
            RuleKind::Text { left, right, splats } => {
                let pattern = |text: &str| -> Pattern<Term> {
                    text.parse().unwrap_or_else(|error| unreachable!("rule `{}`: {error}", self.name))
                };
                let splats: Vec<(Var, f64)> = splats
                    .iter()
                    .map(|(name, value)| match name.parse() {
                        Ok(variable) => (variable, *value),
                        Err(error) => unreachable!("rule `{}`: {error}", self.name),
                    })
                    .collect();
                let condition: Condition = Box::new(move |graph, _, found| {
                    let room = Context::has_room(graph);
                    room && splats.iter().all(|(variable, value)| {
                        let facts = &graph[found[*variable]].data;
                        // For floats, −0 differs from 0; integers have only one zero.
                        let rounded = facts.ty().element.round(*value);
                        facts.splat().is_some_and(|splat| splat.to_bits() == rounded.to_bits())
                    })
                });
                let applier = ConditionalApplier { condition, applier: pattern(right) };
                Rewrite::new(self.name, pattern(left), applier)
            }
            RuleKind::Attribute { op, forms, .. } => {
                let searcher = attribute::Uses { op };
                Rewrite::new(self.name, searcher, attribute::Forms { op, forms })
            }
        };
        made.unwrap_or_else(|error| unreachable!("rule `{}`: {error}", self.name))
    }
}

const fn text(
    name: &'static str,
    left: &'static str,
    right: &'static str,
    splats: &'static [(&'static str, f64)],
) -> Rule {
    Rule { name, how: RuleKind::Text { left, right, splats } }
}

const fn attribute(
    name: &'static str,
    equation: &'static str,
    op: &'static str,
    forms: fn(&Site<'_>) -> Vec<Tree>,
) -> Rule {
    Rule { name, how: RuleKind::Attribute { equation, op, forms } }
}
