//! Files of a crate do not depend on each other in a circle, so each can be read after its dependencies.
//!
//! A `use` or a path that begins with `crate` or `super` leads to the declaring file, through the `pub use`s on the
//! way. Unit tests do not count, and neither does the root of a crate, which names all its files.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Item, ItemMod, ItemUse, UseTree, Visibility};

use crate::repository;

/// Modules that declare an interface and list its implementations, each in a file of the module's folder. Such a list
/// is no circle, although the implementations use the interface.
const LISTS: &[&str] = &[
    "attention",
    "bench",
    "commands::export",
    "constraint::schema",
    "device",
    "formats",
    "gguf",
    "idiom",
    "isa",
    "legalize",
    "matmul",
    "rules",
    "storage",
];

/// The path of a module within its crate: `["nn", "state"]`.
type Module = Vec<String>;

#[derive(Default)]
struct Uses {
    module: Module,
    /// Paths from the crate's root that the file names.
    paths: Vec<Module>,
    /// Paths that begin with a name of the file's own scope, which can be one of its modules.
    relative: Vec<Module>,
    /// Names that the file re-exports, with their paths.
    offers: HashMap<String, Module>,
}

impl Uses {
    /// A written path as a path from the crate's root; `None` if it leads to another crate.
    fn absolute(&self, path: &[String]) -> Option<Module> {
        let mut base = match path.first()?.as_str() {
            "crate" => return Some(path[1..].to_vec()),
            "self" => return Some([&self.module[..], &path[1..]].concat()),
            "super" => self.module.clone(),
            _ => return None,
        };
        let up = path.iter().take_while(|word| *word == "super").count();
        base.truncate(base.len().saturating_sub(up));
        base.extend_from_slice(&path[up..]);
        Some(base)
    }

    fn name(&mut self, path: Vec<String>) {
        match self.absolute(&path) {
            Some(path) => self.paths.push(path),
            // A single name in code is rather a variable.
            None if path.len() > 1 => self.relative.push([&self.module[..], &path[..]].concat()),
            None => {}
        }
    }

    fn tree(&mut self, tree: &UseTree, before: &[String], offers: bool) {
        let mut joined = before.to_vec();
        match tree {
            UseTree::Path(path) => {
                joined.push(path.ident.to_string());
                self.tree(&path.tree, &joined, offers);
            }
            UseTree::Group(group) => group.items.iter().for_each(|item| self.tree(item, before, offers)),
            UseTree::Glob(_) => self.name(joined),
            UseTree::Name(_) | UseTree::Rename(_) => {
                let (name, known_as) = match tree {
                    UseTree::Rename(rename) => (rename.ident.to_string(), rename.rename.to_string()),
                    UseTree::Name(name) => (name.ident.to_string(), name.ident.to_string()),
                    _ => unreachable!("matched"),
                };
                if name != "self" {
                    joined.push(name);
                }
                // `pub use state::Kv` in a module names its own child.
                let own = || Some([&self.module[..], &joined[..]].concat());
                if offers {
                    _ = self.absolute(&joined).or_else(own).map(|path| self.offers.insert(known_as, path))
                } else {
                    self.name(joined)
                }
            }
        }
    }
}

impl Visit<'_> for Uses {
    fn visit_item_mod(&mut self, item: &ItemMod) {
        // Unit tests.
        if item.content.is_none() || item.ident != "tests" {
            visit::visit_item_mod(self, item);
        }
    }
    fn visit_item_use(&mut self, item: &ItemUse) {
        self.tree(&item.tree, &[], !matches!(item.vis, Visibility::Inherited));
    }
    /// `pub(super)` uses nothing.
    fn visit_vis_restricted(&mut self, _: &syn::VisRestricted) {}
    fn visit_path(&mut self, path: &syn::Path) {
        let words: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.name(words);
        visit::visit_path(self, path);
    }
}

/// Every file of a source folder, by its module.
fn files(folder: &Path, module: &[String], found: &mut BTreeMap<Module, Uses>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            if stem != "bin" {
                files(&path, &[module, &[stem]].concat(), found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let is_root = ["mod", "lib", "main"].contains(&stem.as_str());
            let module = if is_root { module.to_vec() } else { [module, &[stem]].concat() };
            let mut uses = Uses { module: module.clone(), ..Uses::default() };
            let file = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
            let items = file.items.iter().filter(|item| !matches!(item, Item::Macro(_)));
            items.for_each(|item| uses.visit_item(item));
            found.insert(module, uses);
        }
    }
}

/// The file that declares the item of a path.
fn declared(files: &BTreeMap<Module, Uses>, path: &[String], steps: usize) -> Option<Module> {
    let module = (0..=path.len()).rev().map(|n| &path[..n]).find(|module| files.contains_key(*module))?;
    let offered = path.get(module.len()).and_then(|name| files[module].offers.get(name));
    match offered {
        Some(offered) if steps > 0 => {
            declared(files, &[offered, &path[module.len() + 1..]].concat(), steps - 1)
        }
        _ => Some(module.to_vec()),
    }
}

/// A circle of files, if there is one, where a module of `lists` may use its own files.
fn circle(files: &BTreeMap<Module, Uses>, lists: &[&str]) -> Option<Vec<String>> {
    let mut uses: BTreeMap<&Module, BTreeSet<Module>> = BTreeMap::new();
    for (module, found) in files {
        let is_list = lists.contains(&&*module.join("::"));
        let is_module = |path: &&Module| !is_list && files.contains_key(&path[..=module.len()]);
        let paths = found.paths.iter().chain(found.relative.iter().filter(is_module));
        let leads = paths.filter_map(|path| declared(files, path, 8));
        uses.insert(
            module,
            leads.filter(|to| to != module && !to.is_empty() && !module.is_empty()).collect(),
        );
    }
    // Takes away what uses nothing that is left, until nothing is left or only circles are.
    loop {
        let free: Vec<Module> =
            uses.iter().filter(|(_, uses)| uses.is_empty()).map(|(module, _)| (*module).clone()).collect();
        if free.is_empty() {
            break;
        }
        uses.retain(|module, _| !free.contains(module));
        uses.values_mut().for_each(|uses| uses.retain(|to| !free.contains(to)));
    }
    let mut way = vec![(*uses.keys().next()?).clone()];
    loop {
        let next = uses[way.last()?].first()?.clone();
        if let Some(begin) = way.iter().position(|module| *module == next) {
            return Some(way[begin..].iter().map(|module| module.join("::")).collect());
        }
        way.push(next);
    }
}

#[test]
fn no_crate_has_a_circle_of_files() {
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(repository().join("Cargo.toml"))
        .no_deps()
        .exec()
        .unwrap();
    let (mut read, mut needed) = (0, BTreeSet::new());
    for package in metadata.workspace_packages() {
        let folder = package.manifest_path.parent().unwrap().as_std_path().join("src");
        let mut found = BTreeMap::new();
        if folder.exists() {
            files(&folder, &[], &mut found);
        }
        read += found.len();
        assert_eq!(circle(&found, LISTS), None, "files of `{}` that need each other", package.name);
        let without = |list: &str| LISTS.iter().copied().filter(|other| *other != list).collect::<Vec<_>>();
        needed.extend(LISTS.iter().copied().filter(|list| circle(&found, &without(list)).is_some()));
    }
    assert!(read > 100, "{read} files");
    assert!(needed.iter().eq(LISTS), "only these lists are needed: {needed:?}");
}

/// The test finds a circle through a `pub use`, and ignores one that only unit tests close.
#[test]
fn a_circle_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let circle_of = |texts: &[(&str, &str)]| {
        for (name, text) in texts {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let mut found = BTreeMap::new();
        files(folder.path(), &[], &mut found);
        circle(&found, &[])
    };
    let lib = ("lib.rs", "mod a; mod b; pub use a::One; pub use b::Two;");
    let straight = ("b.rs", "pub struct Two; #[cfg(test)] mod tests { use crate::One; }");
    assert_eq!(circle_of(&[lib, ("a.rs", "use crate::Two; pub struct One(Two);"), straight]), None);
    let bent = ("b.rs", "pub struct Two; fn f() { let _ = crate::One(Two); }");
    assert_eq!(circle_of(&[bent]), Some(vec!["a".into(), "b".into()]));
    let folder_of = ("c/mod.rs", "mod d; pub struct C; pub fn f() { d::f(C) }");
    fs::create_dir(folder.path().join("c")).unwrap();
    let inside = ("c/d.rs", "use super::C; pub fn f(_: C) {}");
    assert_eq!(circle_of(&[straight, folder_of, inside]), Some(vec!["c".into(), "c::d".into()]));
}
