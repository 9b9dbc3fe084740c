//! Outside of `ops`, no match that names two or more operations may have an arm for all others. A new operation
//! would silently fall into that arm. Such a decision is a fact of the operation, and belongs in its file.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::Visit;
use syn::{ExprMacro, ExprMatch, Pat, PatTupleStruct};

use crate::repository;

/// The matches that may have such an arm, by file, with their number and the reason.
const EXCEPTIONS: &[(&str, usize, &str)] = &[
    ("irpa/bake/src/pieces.rs", 2, "`Operation::bakes` admits no others but elementwise ones"),
    ("tools/inspect/src/lint.rs", 2, "advice about the operations that kernels are for"),
    ("lower/kernels/src/lib.rs", 1, "the list of kernels: what none serves is StableHLO"),
    ("lower/src/fusion.rs", 4, "what kernels fuse: anything else ends a prologue or an epilogue"),
    ("lower/src/tunable.rs", 1, "the kernels that have tilings"),
    ("lower/simplify/src/recipes.rs", 1, "short words in keys; any other operation is printed whole"),
];

/// The operations that a file's matches with a wildcard arm name, in order.
#[derive(Default)]
struct Matches(Vec<BTreeSet<String>>);

/// The operations in a pattern.
#[derive(Default)]
struct Named(BTreeSet<String>);

impl<'ast> Visit<'ast> for Named {
    fn visit_pat_tuple_struct(&mut self, pattern: &'ast PatTupleStruct) {
        let words: Vec<String> = pattern.path.segments.iter().map(|part| part.ident.to_string()).collect();
        if let [.., list, operation] = &words[..]
            && ["Op", "Composite", "Idiom"].contains(&list.as_str())
        {
            // `NodeKind::Op` and `Recipe::Op` hold an operation and are none.
            self.0.insert(operation.clone());
        }
        syn::visit::visit_pat_tuple_struct(self, pattern);
    }
}

impl<'ast> Visit<'ast> for Matches {
    fn visit_expr_match(&mut self, found: &'ast ExprMatch) {
        let mut named = Named::default();
        found.arms.iter().for_each(|arm| named.visit_pat(&arm.pat));
        let wild = found.arms.iter().any(|arm| is_wild(&arm.pat));
        if wild && named.0.len() > 1 {
            self.0.push(named.0);
        }
        syn::visit::visit_expr_match(self, found);
    }

    /// `matches!(op, A | B)` has an implicit arm for all others.
    fn visit_expr_macro(&mut self, found: &'ast ExprMacro) {
        if found.mac.path.is_ident("matches") {
            let named = in_tokens(found.mac.tokens.clone());
            if named.len() > 1 {
                self.0.push(named);
            }
        }
    }
}

/// The operations in tokens, which have the form `Op :: Name (`.
fn in_tokens(tokens: TokenStream) -> BTreeSet<String> {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut named: BTreeSet<String> = BTreeSet::new();
    for (at, token) in tokens.iter().enumerate() {
        if let TokenTree::Group(group) = token {
            named.extend(in_tokens(group.stream()));
        }
        let text = |offset: usize| tokens.get(at + offset).map(ToString::to_string).unwrap_or_default();
        if ["Op", "Composite", "Idiom"].contains(&text(0).as_str()) && text(1) == ":" && text(2) == ":" {
            named.insert(text(3));
        }
    }
    named
}

/// Whether a pattern matches all remaining operations.
fn is_wild(pattern: &Pat) -> bool {
    match pattern {
        Pat::Wild(_) => true,
        Pat::Ident(name) => name.subpat.is_none(),
        Pat::Tuple(tuple) => tuple.elems.iter().all(is_wild),
        Pat::TupleStruct(inner) => {
            inner.path.segments.last().is_some_and(|last| last.ident == "Op")
                && inner.elems.iter().all(is_wild)
        }
        Pat::Or(or) => or.cases.iter().any(is_wild),
        Pat::Paren(inner) => is_wild(&inner.pat),
        _ => false,
    }
}

/// The Rust files of the product outside of `ops`.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let elsewhere = ["target", "tests", "ops", "fuzz", "examples", "xtask"].contains(&name.as_str());
        if path.is_dir() && !name.starts_with('.') && !elsewhere {
            sources(&path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            found.push(path);
        }
    }
}

#[test]
fn no_match_forgets_operations() {
    let root = repository();
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut found: BTreeMap<String, Vec<BTreeSet<String>>> = BTreeMap::new();
    for path in files {
        let mut matches = Matches::default();
        matches.visit_file(&syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap());
        if !matches.0.is_empty() {
            let name = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
            found.insert(name, matches.0);
        }
    }
    let allowed: BTreeMap<&str, usize> = EXCEPTIONS.iter().map(|&(file, count, _)| (file, count)).collect();
    let wrong: Vec<String> = found
        .iter()
        .filter(|(file, matches)| allowed.get(file.as_str()) != Some(&matches.len()))
        .map(|(file, matches)| format!("{file}: {matches:?}"))
        .collect();
    assert!(wrong.is_empty(), "matches over operations with an arm for all others:\n{}", wrong.join("\n"));
    let stale: Vec<&&str> = allowed.keys().filter(|file| !found.contains_key(**file)).collect();
    assert!(stale.is_empty(), "exceptions without such a match: {stale:?}");
}
