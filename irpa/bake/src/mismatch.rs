//! Finds the differences between a checkpoint and a network, and formats error messages about these
//! differences.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;

use errors::Listed;
use ops::{ElementType, TensorType};
use trace::{AxisName, NodeKind, Provenance, Trace, key_pattern};

/// The key of a language model's output matrix in Hugging Face checkpoints.
const HEAD: &str = "lm_head.weight";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The keys in the checkpoint begin with another prefix than the keys of the parameters.
    Beginning {
        /// The prefix of the keys of the model's parameters.
        declared: String,
        found: String,
        key: String,
        count: usize,
    },
    /// The model needs a parameter that the checkpoint does not contain.
    Missing {
        key: String,
        ty: TensorType,
        /// The most similar key that the model does not read.
        nearest: Option<String>,
    },
    /// The checkpoint contains a tensor that the model does not read.
    Extra {
        key: String,
        file: PathBuf,
    },
    /// A tensor should be a copy of another tensor, but the contents of the two tensors differ.
    NotEqual {
        key: String,
        other: String,
    },
    Shape {
        key: String,
        file: PathBuf,
        expected: Vec<usize>,
        found: Vec<usize>,
        declared: Option<Declared>,
    },
    Element {
        key: String,
        file: PathBuf,
        expected: ElementType,
        found: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Empty for a recipe's source.
    pub axes: Vec<AxisName>,
    pub provenance: Provenance,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Beginning { declared, found, key, count } => {
                let rest = key.strip_prefix(declared.as_str()).unwrap_or(key);
                write!(f, "{count} parameters have {} in the checkpoint", begin(found))?;
                write!(f, ", but {} in the network: `{found}{rest}` for `{key}`", begin(declared))
            }
            Self::Missing { key, ty, nearest } => {
                write!(f, "missing `{key}`: `{ty}`")?;
                if key == HEAD {
                    write!(
                        f,
                        "; the checkpoint contains a base model without a head, and config.json does not \
                         tie the head to the embedding: use the checkpoint of the language model"
                    )?;
                }
                nearest.iter().try_for_each(|nearest| write!(f, "; the checkpoint has `{nearest}`"))
            }
            Self::Extra { key, file } => {
                write!(f, "extra `{key}` in `{}`: the model does not read this tensor", file.display())
            }
            Self::NotEqual { key, other } => write!(
                f,
                "`{key}` differs from `{other}`, although config.json ties the two tensors; \
                 set `tie_word_embeddings` to false, or remove `{key}`"
            ),
            Self::Shape { key, file, expected, found, declared } => {
                write!(f, "`{key}` in `{}` has shape {found:?}, expected {expected:?}", file.display())?;
                if let Some(Declared { axes, .. }) = declared
                    && !axes.is_empty()
                {
                    write!(f, " = [{}]", axes.join(", "))?;
                }
                if found.len() > 1 && found.iter().eq(expected.iter().rev()) {
                    write!(
                        f,
                        "; if the checkpoint stores the tensor transposed, write `(transposed)` after the field"
                    )?;
                }
                declared.iter().try_for_each(|Declared { provenance, .. }| {
                    write!(f, "; declared at {}:{}", provenance.file, provenance.line)
                })
            }
            Self::Element { key, file, expected, found } => write!(
                f,
                "`{key}` in `{}` has elements `{found}`, which do not convert to `{expected}`",
                file.display()
            ),
        }
    }
}

fn begin(prefix: &str) -> String {
    match prefix {
        "" => "no prefix".into(),
        _ => format!("the prefix `{prefix}`"),
    }
}

impl Problem {
    /// With `*` for layer numbers, so that layers with the same problem have equal ones.
    fn of_all_layers(&self) -> Self {
        let pattern = |key: &String| key_pattern(key);
        let mut problem = self.clone();
        match &mut problem {
            Self::Beginning { .. } => {}
            Self::Missing { key, nearest, .. } => {
                *key = pattern(key);
                *nearest = nearest.as_ref().map(pattern);
            }
            Self::NotEqual { key, other } => (*key, *other) = (pattern(key), pattern(other)),
            Self::Extra { key, .. } | Self::Shape { key, .. } | Self::Element { key, .. } => {
                *key = pattern(key)
            }
        }
        problem
    }
}

/// One line per problem. Layers with the same problem share a line.
pub(crate) fn list(problems: &[Problem]) -> String {
    let mut count: HashMap<String, usize> = HashMap::new();
    let patterns: Vec<String> = problems.iter().map(|problem| problem.of_all_layers().to_string()).collect();
    patterns.iter().for_each(|pattern| *count.entry(pattern.clone()).or_insert(0) += 1);
    let line = |(problem, pattern): (&Problem, &String)| match count.remove(pattern)? {
        1 => Some(problem.to_string()),
        times => Some(format!("{pattern} ({times} times)")),
    };
    let lines: Vec<String> = problems.iter().zip(&patterns).filter_map(line).collect();
    Listed(&lines).to_string()
}

/// The missing keys for which the checkpoint contains a key with another prefix.
pub(crate) struct Moved<'a> {
    declared: &'a str,
    found: &'a str,
    /// Maps each missing key to the key in the checkpoint that differs only in the prefix.
    pub(crate) keys: BTreeMap<&'a str, &'a str>,
}

impl<'a> Moved<'a> {
    /// Finds the prefix of missing keys and of the checkpoint's whose exchange turns most missing keys (at
    /// least two) into unread ones. Only the first two components can change, because the rest identifies the
    /// parameter.
    pub(crate) fn find(missing: &[&'a str], unread: &[&'a str]) -> Option<Self> {
        let cuts = |key: &str| {
            let dots = key.match_indices('.').map(|(at, _)| at + 1);
            std::iter::once(0).chain(dots).collect::<Vec<_>>()
        };
        let mut by_rest: HashMap<&str, Vec<&'a str>> = HashMap::new();
        for key in unread {
            cuts(key).into_iter().for_each(|at| by_rest.entry(&key[at..]).or_default().push(key));
        }
        let mut explained: BTreeMap<(&'a str, &'a str), BTreeMap<&'a str, &'a str>> = BTreeMap::new();
        for key in missing {
            for at in cuts(key).into_iter().take(3) {
                let (declared, rest) = key.split_at(at);
                for twin in by_rest.get(rest).into_iter().flatten() {
                    let found = &twin[..twin.len() - rest.len()];
                    explained.entry((declared, found)).or_default().insert(key, twin);
                }
            }
        }
        let moved = explained.into_iter().map(|((declared, found), keys)| Self { declared, found, keys });
        let several = moved.filter(|moved| moved.keys.len() > 1);
        several.max_by_key(|moved| (moved.keys.len(), Reverse(moved.declared.len() + moved.found.len())))
    }

    pub(crate) fn problem(&self) -> Problem {
        Problem::Beginning {
            declared: self.declared.to_owned(),
            found: self.found.to_owned(),
            key: self.keys.keys().next().copied().unwrap_or_default().to_owned(),
            count: self.keys.len(),
        }
    }
}

/// By the key of the tensor.
pub(crate) fn declarations(trace: &Trace) -> BTreeMap<String, Declared> {
    // An earlier check rejects a trace that declares a key with two types.
    let Ok(reads) = trace.reads() else { return BTreeMap::new() };
    let mut nodes = HashMap::new();
    for function in &trace.functions {
        for node in function.ids().map(|id| function.node(id)) {
            if let NodeKind::Parameter(parameter) = &node.kind {
                nodes.entry(parameter.key.as_str()).or_insert(node);
            }
        }
    }
    let mut declared = BTreeMap::new();
    for read in reads.entries.values() {
        let origin = read.origins.first().and_then(|key| nodes.get(key.as_str()));
        let Some(node) = origin else { continue };
        let axes = if read.parameter.recipe.is_none() { node.axes.clone() } else { Vec::new() };
        for (key, _) in read.parameter.sources() {
            let of_key = Declared { axes: axes.clone(), provenance: node.provenance.clone() };
            declared.insert(key.to_owned(), of_key);
        }
    }
    declared
}
