//! One noun has one meaning: no two crates of the workspace offer types, traits or blocks of the same name. In the product, no
//! two crates have types of one name that several of their files can use.
//!
//! The test reads the sources: items that the root of a crate declares or re-exports by `pub use`, and the same in
//! every `pub mod`. It does not see items from macros other than `model!`.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{MetadataCommand, TargetKind};
use proc_macro2::{TokenStream, TokenTree};
use syn::{Ident, Item, UseTree, Visibility};

use crate::repository;

/// One module of a crate.
#[derive(Default)]
struct Module {
    /// The public types, traits and blocks that it declares.
    declared: BTreeSet<String>,
    /// Its re-exports by `pub use`: a path, and the new name of the path's last word.
    offered: Vec<(Vec<String>, String)>,
    /// Its own modules, and whether they are public.
    children: BTreeMap<String, (bool, Module)>,
}

impl Module {
    fn read(items: &[Item], folder: &Path) -> Self {
        let mut module = Self::default();
        for item in items {
            module.declared.extend(declared(item).iter().map(Ident::to_string));
            match item {
                Item::Macro(item) if item.mac.path.is_ident("model") => {
                    module.declared.extend(blocks(item.mac.tokens.clone()));
                }
                Item::Use(item) if is_public(&item.vis) => module.offer(&item.tree, &[]),
                // What lies elsewhere is another crate's, and looked at there.
                Item::Mod(item) if item.attrs.iter().any(|attribute| attribute.path().is_ident("path")) => {}
                Item::Mod(item) if item.ident != "tests" => {
                    let name = item.ident.to_string();
                    let child = match &item.content {
                        Some((_, items)) => Self::read(items, &folder.join(&name)),
                        None => Self::open(&file(folder, &name), &folder.join(&name)),
                    };
                    module.children.insert(name, (is_public(&item.vis), child));
                }
                _ => {}
            }
        }
        module
    }

    /// The module of a file, whose own modules are in `folder`.
    fn open(file: &Path, folder: &Path) -> Self {
        Self::read(&syn::parse_file(&fs::read_to_string(file).unwrap()).unwrap().items, folder)
    }

    fn offer(&mut self, tree: &UseTree, before: &[String]) {
        let joined = |ident: &Ident| [before, &[ident.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.offer(&path.tree, &joined(&path.ident)),
            UseTree::Group(group) => group.items.iter().for_each(|item| self.offer(item, before)),
            UseTree::Name(name) => self.offered.push((joined(&name.ident), name.ident.to_string())),
            UseTree::Rename(name) => self.offered.push((joined(&name.ident), name.rename.to_string())),
            UseTree::Glob(_) => self.offered.push((before.to_vec(), String::new())),
        }
    }

    /// All names of types that a user of this module of the crate `root` can write.
    fn names(&self, root: &Self) -> BTreeSet<String> {
        let public = self.children.values().filter(|(is_public, _)| *is_public);
        let mut names: BTreeSet<_> = public.flat_map(|(_, child)| child.names(root)).collect();
        names.extend(self.declared.iter().cloned());
        for (path, name) in &self.offered {
            let (base, path) = match path[0].as_str() {
                "crate" => (root, &path[1..]),
                "self" => (self, &path[1..]),
                _ => (self, &path[..]),
            };
            let Some((last, before)) = path.split_last() else { continue };
            if let Some(module) = base.find(path) {
                names.extend(module.names(root));
            } else if !before.is_empty() // one word alone is another crate
                && base.find(before).is_some_and(|holder| holder.names(root).contains(last))
            {
                names.insert(name.clone());
            }
        }
        names
    }

    fn find(&self, path: &[String]) -> Option<&Self> {
        path.iter().try_fold(self, |module, name| module.children.get(name).map(|(_, child)| child))
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// The name of a public type or trait.
fn declared(item: &Item) -> Option<Ident> {
    let (visibility, name) = match item {
        Item::Struct(item) => (&item.vis, &item.ident),
        Item::Enum(item) => (&item.vis, &item.ident),
        Item::Union(item) => (&item.vis, &item.ident),
        Item::Type(item) => (&item.vis, &item.ident),
        Item::Trait(item) => (&item.vis, &item.ident),
        _ => return None,
    };
    is_public(visibility).then(|| name.clone())
}

/// The blocks of a `model!`: the names after `pub`.
fn blocks(tokens: TokenStream) -> Vec<String> {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    let pairs = trees.windows(2).filter(|pair| matches!(&pair[0], TokenTree::Ident(word) if word == "pub"));
    pairs.map(|pair| pair[1].to_string()).collect()
}

fn file(folder: &Path, name: &str) -> PathBuf {
    let own = folder.join(name).with_extension("rs");
    if own.exists() { own } else { folder.join(name).join("mod.rs") }
}

/// The names that the library with the root `file` offers.
fn offered(file: &Path) -> BTreeSet<String> {
    let root = Module::open(file, file.parent().unwrap());
    root.names(&root)
}

/// The names that several crates offer, with those crates.
fn ambiguous(crates: &BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let mut holders: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (package, names) in crates {
        names.iter().for_each(|name| holders.entry(name).or_default().push(package));
    }
    holders.retain(|_, packages| packages.len() > 1);
    holders.iter().map(|(name, packages)| format!("`{name}`: {}", packages.join(", "))).collect()
}

#[test]
fn no_two_crates_offer_a_type_of_one_name() {
    let manifest = repository().join("Cargo.toml");
    let metadata = MetadataCommand::new().manifest_path(manifest).no_deps().exec().unwrap();
    let mut crates = BTreeMap::new();
    for package in metadata.workspace_packages() {
        let library = package.targets.iter().find(|target| target.is_kind(TargetKind::Lib));
        if let Some(library) = library {
            crates.insert(package.name.to_string(), offered(library.src_path.as_std_path()));
        }
    }
    let count: usize = crates.values().map(BTreeSet::len).sum();
    assert!(count > 250, "{count} names are read");
    assert_eq!(ambiguous(&crates), Vec::<String>::new());
}

/// Nouns that two crates of the product share, and why.
const SHARED: &[(&str, &str)] = &[
    ("Buffer", "memory of IREE, and the memory that code of a kernel names"),
    ("Candidate", "a term or a token that may be chosen, each within one file's work"),
    ("Declared", "what a network declares: a state, a tensor, a path"),
    ("Element", "an element type, in the DSL's generics and in the language of kernels"),
    ("EntryPoint", "an entry point, as it is recorded and as a session binds its arguments"),
    ("Form", "the form in which something is computed: of a kernel's operand, of a network"),
    ("Matmul", "a matmul: the kernel, and the benchmark of one"),
    ("Origin", "where a node comes from: a line of Rust, a rule"),
    ("Place", "a place in a file: of Rust, of any other, of a drawing"),
    ("Program", "a compiled program, and the program that an idiom is chosen for"),
    ("Source", "the text or the files that something is read from"),
    ("Value", "a value: numbers, and a register in the language of kernels"),
    ("Entry", "an item of a table: an archive's, and a PJRT plugin's"),
    ("Function", "a function: of a trace, and of PJRT's API"),
    ("Header", "the beginning of a record: a saved sequence's, and a PJRT struct's"),
    ("Norm", "a norm: the layer of a network, and the prologue of a kernel"),
    ("Raw", "what is not checked yet: an operand, and a pointer of the foreign functions"),
];

/// The types that more than one file of a crate can name: those with a visibility, but for modules of tests.
fn visible(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "tests" && name != "bin") {
                visible(&path, names);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            let file = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
            let types = file.items.iter().filter_map(|item| match item {
                Item::Struct(item) => Some((&item.vis, &item.ident)),
                Item::Enum(item) => Some((&item.vis, &item.ident)),
                Item::Union(item) => Some((&item.vis, &item.ident)),
                Item::Type(item) => Some((&item.vis, &item.ident)),
                Item::Trait(item) => Some((&item.vis, &item.ident)),
                _ => None,
            });
            let visible = types.filter(|(visibility, _)| !matches!(visibility, Visibility::Inherited));
            names.extend(visible.map(|(_, name)| name.to_string()));
        }
    }
}

/// A type of one file is a word of that file. The macros' own types stand for what they parse: the DSL's nouns.
#[test]
fn no_two_crates_of_the_product_have_a_type_of_one_name() {
    let manifest = repository().join("Cargo.toml");
    let metadata = MetadataCommand::new().manifest_path(manifest).no_deps().exec().unwrap();
    let mut crates = BTreeMap::new();
    for package in metadata.workspace_packages() {
        let folder = package.manifest_path.parent().unwrap().join("src");
        let name = package.name.strip_prefix("tracewright-").unwrap_or(&package.name).to_string();
        let product = !["macros", "tests", "fuzz", "xtask", "benches"].contains(&name.as_str());
        if product && !package.manifest_path.as_str().contains("/examples/") && folder.exists() {
            visible(folder.as_std_path(), crates.entry(name).or_default());
        }
    }
    let count: usize = crates.values().map(BTreeSet::len).sum();
    assert!(count > 500, "{count} names are read");
    let known: BTreeSet<String> = SHARED.iter().map(|(name, _)| format!("`{name}`")).collect();
    let found = ambiguous(&crates);
    let noun = |line: &String| line.split(':').next().unwrap_or_default().to_owned();
    let new: Vec<&String> = found.iter().filter(|line| !known.contains(&noun(line))).collect();
    assert!(new.is_empty(), "give one of them another name: {new:#?}");
    let old: BTreeSet<String> = found.iter().map(noun).collect();
    assert_eq!(known.difference(&old).collect::<Vec<_>>(), Vec::<&String>::new(), "is shared no more");
}

/// Words that once were a sequence of a batch or the reuse of a state, and the files in which each means another thing.
const OTHER_MEANINGS: &[(&[&str], &[&str], &str)] = &[
    (&["adopt", "adopted", "continues", "seen"], &["text.rs"], "a panic that a test has seen"),
    (
        &["row", "rows"],
        &[
            "device_tensor.rs",
            "executor.rs",
            "network.rs",
            "entry.rs",
            "snapshot.rs",
            "xla.rs",
            "words.rs",
            "transcribe.rs",
        ],
        "of a tensor",
    ),
    (
        &["row", "rows"],
        &["generation.rs", "session.rs", "mtp.rs", "ahead.rs", "sequence.rs", "sequences.rs", "prefix.rs"],
        "of logits or state",
    ),
    (
        &["slot", "slots"],
        &["entry.rs", "network.rs", "saved.rs", "snapshot.rs", "ahead.rs"],
        "of the state, for one position",
    ),
    (
        &["slots"],
        &["engine.rs", "jobs.rs", "options.rs", "source.rs"],
        "the public option, as servers call it",
    ),
    (&["slots"], &["constraint.rs"], "places for threads"),
    (&["reply"], &["reply.rs", "engine.rs", "lib.rs"], "the text of an answer"),
];

/// In the engine, a member of a batch is a *sequence*, and to take over a state is *reuse*.
#[test]
fn the_engine_has_one_word_for_a_sequence_and_one_for_reuse() {
    let root = repository();
    let folders =
        ["run/generate/src", "run/generate/src/schedule", "run/generate/src/speculate", "src/model"];
    let mut found = Vec::new();
    for path in folders.iter().flat_map(|folder| fs::read_dir(root.join(folder)).unwrap()) {
        let path = path.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let words = words(fs::read_to_string(&path).unwrap().parse().unwrap());
            found.extend(
                words.into_iter().filter(|word| !has_meaning(word, &name)).map(|word| (name.clone(), word)),
            );
        }
    }
    assert_eq!(found, Vec::new(), "write `sequence` or `reuse`");
    assert_eq!(
        words("fn join_seen(a: KeptRow) {}".parse().unwrap()),
        ["a", "fn", "join", "kept", "row", "seen"].map(String::from).into()
    );
    assert!(
        !has_meaning("seen", "batch.rs") && !has_meaning("row", "batch.rs") && has_meaning("row", "xla.rs")
    );
}

fn has_meaning(word: &str, file: &str) -> bool {
    let mut with = OTHER_MEANINGS.iter().filter(|(words, ..)| words.contains(&word)).peekable();
    with.peek().is_none() || with.any(|(_, files, _)| files.contains(&file))
}

/// The words of all names.
fn words(tokens: TokenStream) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    for tree in tokens {
        match tree {
            TokenTree::Group(group) => words.extend(self::words(group.stream())),
            TokenTree::Ident(name) => {
                let mut word = String::new();
                for letter in name.to_string().chars() {
                    if (letter == '_' || letter.is_uppercase()) && !word.is_empty() {
                        words.insert(std::mem::take(&mut word));
                    }
                    word.extend(letter.to_lowercase().filter(|letter| *letter != '_'));
                }
                words.insert(word);
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
    words
}

/// Each visibility counts, and private types do not.
#[test]
fn a_noun_that_files_of_two_crates_use_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let read = |text: &str| {
        fs::write(folder.path().join("lib.rs"), text).unwrap();
        let mut names = BTreeSet::new();
        visible(folder.path(), &mut names);
        names
    };
    let one = read("pub(crate) struct Kept; struct Own; pub enum Offered {}");
    let two = read("pub(super) trait Kept {} struct Own; enum Offered {}");
    assert_eq!(ambiguous(&[("one".into(), one), ("two".into(), two)].into()), ["`Kept`: one, two"]);
}

/// The test finds names through `pub use` and `pub mod`, and no others.
#[test]
fn a_noun_of_two_crates_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let offers = |lib: &str, inner: &str| {
        fs::write(folder.path().join("lib.rs"), lib).unwrap();
        fs::write(folder.path().join("inner.rs"), inner).unwrap();
        offered(&folder.path().join("lib.rs"))
    };
    let inner = "pub struct Offered; pub enum Kept {} struct Own; model! { pub Block(Config) {} Part {} }";
    let one = offers("mod inner; pub use inner::Offered; pub use elsewhere::Kept;", inner);
    assert_eq!(one, BTreeSet::from(["Offered".to_string()]));
    let two = offers("pub mod inner; pub trait Kept {}", inner);
    assert_eq!(two, ["Block", "Kept", "Offered"].map(String::from).into());
    assert_eq!(ambiguous(&[("one".into(), one), ("two".into(), two)].into()), ["`Offered`: one, two"]);
}
