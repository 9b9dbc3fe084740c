//! The rules: three tables that hold bit for bit, and one that must be asked for.

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

/// Which rules may be applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rules {
    /// None.
    Off,
    /// Those that hold bit for bit.
    #[default]
    Exact,
    /// Also those that change how a result is rounded.
    Approximate,
}

/// A word that names no rules.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` names no rules; expected off, exact or approximate")]
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

/// What the rule of this name says; `None` if there is none.
pub fn equation(name: &str) -> Option<String> {
    let rule = Table::ALL.iter().flat_map(|table| table.rules()).find(|rule| rule.name == name);
    rule.map(Rule::equation).or_else(|| (name == FOLDING.0).then(|| FOLDING.1.to_owned()))
}

#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Its name, in reports and explanations.
    pub name: &'static str,
    /// How it is found and applied.
    pub how: RuleKind,
}

/// How a rule is found and applied.
#[derive(Clone, Copy, Debug)]
pub enum RuleKind {
    /// Two patterns; variables of the first that must be constants.
    Text {
        left: &'static str,
        /// By what.
        right: &'static str,
        /// Variables all of whose elements are this number.
        splats: &'static [(&'static str, f64)],
    },
    /// An operation, its attributes and its operands: what else equals it.
    Attribute {
        equation: &'static str,
        op: &'static str,
        /// Every other form of one of its uses.
        forms: fn(&Site<'_>) -> Vec<Tree>,
    },
}

/// The rules of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    Algebra,
    Shape,
    /// What moves to where the archive is written.
    Parameters,
    /// What holds up to rounding.
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
    /// The rules that may be applied, in order.
    pub fn all(self) -> Vec<Rule> {
        let tables: &[Table] = match self {
            Self::Off => &[],
            Self::Exact => &Table::ALL[..3],
            Self::Approximate => &Table::ALL,
        };
        tables.iter().flat_map(|table| table.rules()).copied().collect()
    }

    /// [`all`](Self::all) of them as egg takes them: read once, since that takes as long as a small function's
    /// simplification.
    pub(crate) fn rewrites(self) -> &'static [Rewrite<Term, Context>] {
        static EXACT: Rewrites = LazyLock::new(|| rewrites(Rules::Exact.all()));
        static APPROXIMATE: Rewrites = LazyLock::new(|| rewrites(Rules::Approximate.all()));
        match self {
            Self::Off => &[],
            Self::Exact => &EXACT,
            Self::Approximate => &APPROXIMATE,
        }
    }

    /// The same without what moves work to where an archive is written: where none is, it would be done in every call.
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

/// A condition on the class that a variable stands for.
type Condition = Box<dyn Fn(&mut Graph, egg::Id, &egg::Subst) -> bool + Send + Sync>;

impl Rule {
    /// What it says: `(add ?x ?c) = ?x, ?c = -0`.
    pub fn equation(&self) -> String {
        match self.how {
            RuleKind::Text { left, right, splats } => {
                let splats = splats.iter().map(|(variable, value)| format!(", {variable} = {value}"));
                format!("{left} = {right}{}", splats.collect::<String>())
            }
            RuleKind::Attribute { equation, .. } => equation.to_owned(),
        }
    }

    /// The rule as egg takes it.
    ///
    /// # Panics
    /// If a pattern of the tables does not read: a bug, seen by every test.
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
                        // −0 is another number than 0, but no integer has both.
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
