//! The rooms of packages, and things that must be absent: forbidden dependencies and forbidden words in sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use cargo_metadata::{CargoOpt, DependencyKind, MetadataCommand, Node, NodeDep, PackageId};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::repository;

/// The rooms in which packages stand, and the rooms that each may use. A room is a folder of the root, and `src` is the
/// package of the root. Every room uses only rooms above it in this list.
const ROOMS: &[(&str, &[&str])] = &[
    ("trace", &[]),
    ("dsl", &["trace"]),
    ("lower", &["trace"]),
    ("irpa", &["trace"]),
    ("models", &["trace", "dsl", "irpa"]),
    ("run", &["trace", "dsl", "lower", "irpa", "models"]),
    ("src", &["trace", "dsl", "lower", "irpa", "models", "run"]),
    ("tools", &["trace", "dsl", "lower", "irpa", "models", "run", "src"]),
    ("examples", &["src", "tools"]),
    ("tests", &["trace", "dsl", "lower", "irpa", "models", "run", "src", "tools"]),
];

/// The most packages of the workspace, and the most folders of its root.
const MOST: (usize, usize) = (36, 14);

/// Packages that a crate must not depend on, directly or through other members.
const ABSENT: &[(&str, &[&str], &str)] = &[
    ("tracewright-runtime", &["tracewright-trace", "petgraph"], "the runtime never sees a graph"),
    ("tracewright-pjrt", &["tracewright-trace", "petgraph"], "a plugin never sees a graph"),
    ("tracewright-irpa", &["tracewright-trace", "tracewright-models"], "an archive never sees a model"),
    ("tracewright-dsl", &["tracewright-irpa", "safetensors", "memmap2"], "tracing reads no weight"),
    ("tracewright-models", &["tracewright-bake", "tracewright-lower"], "a declaration sees no back end"),
    (
        "tracewright-simplify",
        &["tracewright-dsl", "tracewright-lower"],
        "stages know the trace, not each other",
    ),
    (
        "tracewright-lower",
        &["tracewright-dsl", "tracewright-simplify"],
        "stages know the trace, not each other",
    ),
    ("tracewright-lower", &["tracewright-irpa", "safetensors", "memmap2"], "lowering reads no weight"),
    ("xtask", &["tracewright-ops", "tracewright"], "chores build without the house"),
];

/// Packages for command lines, which libraries must not need.
const FOR_PROGRAMS: &[&str] = &["clap", "indicatif", "signal-hook", "tracing-subscriber"];

/// The places of `unsafe`, and how often it may occur: the foreign functions of IREE and of PJRT, the mapping of
/// archives.
const UNSAFE: &[(&str, usize)] =
    &[("run/runtime/src/", usize::MAX), ("run/pjrt/src/ffi/", usize::MAX), ("irpa/src/", 1)];

/// Crates that are programs, or tests of programs. All others are libraries.
const PROGRAMS: &[&str] = &[
    "tools/cli/",
    "tools/console/",
    "examples/",
    "tests/fuzz/",
    "tools/inspect/",
    "tools/python/",
    "tests/",
    "tools/xtask/",
];

/// A member of the workspace.
struct Member {
    name: String,
    room: String,
    /// The names of its dependencies, and whether the product needs them: true for normal and build
    /// dependencies, false for tests.
    needs: Vec<(String, bool)>,
}

#[test]
fn every_room_uses_only_the_rooms_that_it_may() {
    assert_eq!(violations(ROOMS, &workspace()), Vec::<String>::new());
}

#[test]
fn the_rooms_are_few() {
    let members = workspace();
    assert!(members.len() <= MOST.0, "{} packages, expected at most {}", members.len(), MOST.0);
    let folders = tracked().into_iter().filter_map(|path| Some(path.split_once('/')?.0.to_owned()));
    let folders: BTreeSet<String> = folders.filter(|folder| !folder.starts_with('.')).collect();
    assert!(folders.len() <= MOST.1, "{folders:?}, expected at most {} folders", MOST.1);
}

#[test]
fn nothing_reaches_what_it_must_not_know() {
    let members = workspace();
    for &(from, absent, why) in ABSENT {
        let reached = reach(from, &members);
        let found: Vec<_> = absent.iter().filter(|name| reached.contains(**name)).collect();
        assert!(found.is_empty(), "`{from}` reaches {found:?}, but {why}");
    }
}

#[test]
fn the_library_brings_nothing_of_a_command_line() {
    let graph = resolved();
    let brought = closure(&graph, "tracewright");
    assert!(brought.contains("tokenizers"), "the feature `iree` is not looked at");
    let found: Vec<_> = FOR_PROGRAMS.iter().filter(|name| brought.contains(**name)).collect();
    assert!(found.is_empty(), "who depends on `tracewright` gets {found:?}");
    let program = closure(&graph, "tracewright-cli");
    assert!(FOR_PROGRAMS.iter().all(|name| program.contains(*name)), "the list is out of date");
}

#[test]
fn a_bad_graph_is_found() {
    let rooms: &[(&str, &[&str])] =
        &[("base", &[]), ("left", &["base"]), ("right", &["base"]), ("top", &["left"])];
    let member = |room: &str, needs: &[(&str, bool)]| Member {
        name: format!("in-{room}"),
        room: room.to_owned(),
        needs: needs.iter().map(|&(name, product)| (name.to_owned(), product)).collect(),
    };
    let with = |bad: Member| {
        let others = ["base", "left", "right", "top"].into_iter().filter(|room| **room != bad.room);
        let mut members: Vec<_> = others.map(|room| member(room, &[])).collect();
        members.push(bad);
        violations(rooms, &members)
    };
    assert!(with(member("top", &[("in-left", true), ("serde", true)])).is_empty());
    assert_eq!(
        with(member("base", &[("in-top", true)])),
        ["`in-base`, in room `base`, uses `in-top` of room `top`"]
    );
    assert_eq!(
        with(member("left", &[("in-right", true)])),
        ["`in-left`, in room `left`, uses `in-right` of room `right`"]
    );
    // Tests may use any room that comes before their own.
    assert!(with(member("right", &[("in-left", false)])).is_empty());
    assert_eq!(
        with(member("left", &[("in-top", false)])),
        ["`in-left`, in room `left`, uses `in-top` of room `top` in its tests"]
    );
    assert_eq!(with(member("cellar", &[])), ["`in-cellar` stands in `cellar`, which is no room of `ROOMS`"]);

    let reached = reach("in-top", &[member("top", &[("in-left", true)]), member("left", &[("serde", true)])]);
    assert!(reached.contains("serde") && reached.contains("in-left") && !reached.contains("in-right"));
}

/// Dependencies that lead to a room that the crate's own room may not use.
fn violations(rooms: &[(&str, &[&str])], members: &[Member]) -> Vec<String> {
    let place = |room: &str| rooms.iter().position(|(known, _)| *known == room);
    let mut found = Vec::new();
    for Member { name, room, needs } in members {
        let Some(from) = place(room) else {
            found.push(format!("`{name}` stands in `{room}`, which is no room of `ROOMS`"));
            continue;
        };
        for (needed, product) in needs {
            let Some(to) = members.iter().find(|member| member.name == *needed).map(|member| &*member.room)
            else {
                continue;
            };
            let may = to == room || rooms[from].1.contains(&to) || !product && place(to) < Some(from);
            if !may {
                let tests = if *product { "" } else { " in its tests" };
                found.push(format!("`{name}`, in room `{room}`, uses `{needed}` of room `{to}`{tests}"));
            }
        }
    }
    found
}

/// All packages that the product `from` needs, through members of the workspace.
fn reach(from: &str, members: &[Member]) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from.to_string()];
    while let Some(name) = open.pop() {
        let needs = members.iter().filter(|member| member.name == name).flat_map(|member| &member.needs);
        for (needed, _) in needs.filter(|(_, product)| *product) {
            if reached.insert(needed.clone()) {
                open.push(needed.clone());
            }
        }
    }
    reached
}

/// For each package of a build without tests, by id, the packages that it needs, with all features.
fn resolved() -> BTreeMap<PackageId, (String, Vec<PackageId>)> {
    let mut command = MetadataCommand::new();
    command.manifest_path(repository().join("Cargo.toml")).features(CargoOpt::AllFeatures);
    // Packages for other platforms need not be on this machine.
    let host = Command::new(env!("CARGO")).arg("-vV").output().expect("cargo runs");
    let host = String::from_utf8_lossy(&host.stdout).into_owned();
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).expect("cargo says its host");
    command.other_options(["--filter-platform".into(), host.into()]);
    let metadata = command.exec().expect("cargo metadata runs");
    let named = |id: &PackageId| metadata[id].name.to_string();
    let needed = |node: &Node| {
        let product =
            |dep: &&NodeDep| dep.dep_kinds.iter().any(|kind| kind.kind != DependencyKind::Development);
        node.deps.iter().filter(product).map(|dep| dep.pkg.clone()).collect()
    };
    let nodes = metadata.resolve.iter().flat_map(|resolve| &resolve.nodes);
    nodes.map(|node| (node.id.clone(), (named(&node.id), needed(node)))).collect()
}

/// The names of all direct and indirect dependencies of a package.
fn closure(graph: &BTreeMap<PackageId, (String, Vec<PackageId>)>, name: &str) -> BTreeSet<String> {
    let mut open: Vec<&PackageId> =
        graph.iter().filter(|(_, (known, _))| known == name).map(|(id, _)| id).collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        if seen.insert(id) {
            open.extend(&graph[id].1);
        }
    }
    seen.into_iter().map(|id| graph[id].0.clone()).collect()
}

fn workspace() -> Vec<Member> {
    let manifest = repository().join("Cargo.toml");
    let metadata =
        MetadataCommand::new().manifest_path(manifest).no_deps().exec().expect("cargo metadata runs");
    let room = |package: &cargo_metadata::Package| {
        let folder = package
            .manifest_path
            .parent()
            .and_then(|folder| folder.strip_prefix(&metadata.workspace_root).ok());
        let first = folder.and_then(|folder| folder.components().next()).map(|first| first.to_string());
        first.unwrap_or_else(|| "src".to_owned())
    };
    let member = |package: &cargo_metadata::Package| Member {
        name: package.name.to_string(),
        room: room(package),
        needs: package
            .dependencies
            .iter()
            .map(|needed| (needed.name.clone(), needed.kind != DependencyKind::Development))
            .collect(),
    };
    metadata.packages.iter().map(member).collect()
}

#[test]
fn unsafe_stands_in_three_places() {
    for (path, tokens) in sources(|_| true) {
        let count = tokens.iter().filter(|token| *token == "unsafe").count();
        let allowed =
            UNSAFE.iter().find(|(prefix, _)| path.starts_with(prefix)).map_or(0, |&(_, allowed)| allowed);
        assert!(count <= allowed, "`{path}` says `unsafe` {count} times, {allowed} allowed");
    }
}

#[test]
fn libraries_read_no_environment() {
    let library =
        |path: &str| path.contains("src/") && !PROGRAMS.iter().any(|program| path.starts_with(program));
    for (path, tokens) in sources(library) {
        assert!(!reads_environment(&tokens), "`{path}` reads an environment variable: options are arguments");
    }
}

#[test]
fn messages_of_libraries_name_no_flag_and_no_message_repeats_its_cause() {
    for (path, tokens) in sources(|path| path.contains("src/")) {
        let library = !PROGRAMS.iter().any(|program| path.starts_with(program));
        for message in messages(&tokens) {
            assert!(!message.repeats, "`{path}`: the cause is printed behind {}", message.text);
            assert!(
                !library || !message.names_a_flag(),
                "`{path}`: who calls it has no flags: {}",
                message.text
            );
        }
    }
}

#[test]
fn the_carrier_is_the_one_that_the_manifest_names() {
    let read = |path: &str| fs::read_to_string(repository().join(path)).expect("the file is there");
    let script = read("run/runtime/build.rs");
    let version = script.split("const CARRIER: &str = ").nth(1).and_then(|rest| rest.split(';').next());
    let version = version.expect("the build script names a version");
    assert!(
        read("run/runtime/Cargo.toml").contains(&format!("eerie-sys = {{ version = {version},")),
        "{version}"
    );
}

#[test]
fn no_module_can_contain_a_cosine() {
    let spelling = |path: &str| path.starts_with("trace/ops/src/") || path.starts_with("lower/src/");
    for (path, tokens) in sources(spelling) {
        assert_eq!(
            inexact(&tokens),
            None,
            "`{path}`: rope tables are constants, IREE's sine and cosine are inexact"
        );
    }
}

#[test]
fn the_scans_see_what_they_look_for() {
    let scan = |text: &str| tokens(text.parse().expect("the text is Rust"));
    assert!(reads_environment(&scan("fn f() { std::env::var_os(\"X\"); }")));
    assert!(reads_environment(&scan("use std::env::{self, var};")));
    assert!(!reads_environment(&scan("use std::env; fn f() { env::current_dir(); env!(\"X\"); }")));
    assert!(
        scan("fn f() { unsafe { g() } } // unsafe").iter().filter(|token| *token == "unsafe").count() == 1
    );
    assert_eq!(
        inexact(&scan("const S: &str = \"stablehlo.cosine\";")).as_deref(),
        Some("\"stablehlo.cosine\"")
    );
    let repeats = |text: &str| messages(&scan(text)).iter().map(|m| m.repeats).collect::<Vec<_>>();
    assert_eq!(repeats("enum E { #[error(\"a: {source}\")] A { source: io::Error } }"), [true]);
    assert_eq!(repeats("enum E { #[error(\"a: {0}\")] A(#[source] io::Error) }"), [true]);
    assert_eq!(
        repeats("enum E { #[error(\"a: {0}\")] A(String), #[error(\"b\")] B(#[from] F) }"),
        [false, false]
    );
    assert!(messages(&scan("#[error(\"raise `--limit`\")] struct E;"))[0].names_a_flag());
    assert!(!messages(&scan("#[error(\"it answers `--version` so\")] struct E;"))[0].names_a_flag());
    let fine =
        "//! No `stablehlo.cosine` here.\n#[cfg(test)] mod tests { const S: &str = \"sine\"; } fn f() {}";
    assert_eq!(inexact(&scan(fine)), None);
}

fn reads_environment(tokens: &[String]) -> bool {
    let reader = |token: &String| ["var", "var_os", "vars", "vars_os"].contains(&token.as_str());
    tokens.windows(4).enumerate().any(|(i, window)| {
        let path = window[0] == "env" && window[1] == ":" && window[2] == ":";
        let listed = || tokens[i + 4..].iter().take_while(|token| *token != "}").any(reader);
        path && (reader(&window[3]) || (window[3] == "{" && listed()))
    })
}

/// The message of an error type, from its attribute.
struct Message {
    text: String,
    /// Whether the message contains the error's source.
    repeats: bool,
}

impl Message {
    /// Whether the message names a flag. `--version` is allowed, because it is a question to another program.
    fn names_a_flag(&self) -> bool {
        self.text.replace("`--version`", "").contains("`--")
    }
}

fn messages(tokens: &[String]) -> Vec<Message> {
    let attribute = |(i, token): (usize, &String)| {
        let text = token.strip_prefix("error(")?.to_owned();
        // `A(#[source] …)`: a name, the parenthesis, `#`, the attribute.
        let cause = tokens.get(i + 4).is_some_and(|token| ["source", "from"].contains(&token.as_str()));
        let named = ["{source}", "{source:", "{error}"].iter().any(|name| text.contains(name));
        let repeats = named || cause && text.contains("{0");
        Some(Message { text, repeats })
    };
    tokens.iter().enumerate().filter_map(attribute).collect()
}

/// A literal with an operation that IREE computes inexactly.
fn inexact(tokens: &[String]) -> Option<String> {
    let spells = |token: &&String| {
        let text = token.trim_matches('"');
        token.starts_with('"') && ["sine", "cosine"].contains(&text.rsplit('.').next().unwrap_or(text))
    };
    tokens.iter().find(spells).cloned()
}

#[test]
fn no_file_names_a_machine_or_a_registry_host() {
    // Written in halves, so that this file does not find itself.
    let names = [
        ["/wo", "rk/"],
        ["/ro", "ot/"],
        ["/ho", "me/"],
        ["/Us", "ers/"],
        ["py", "pi.org"],
        ["python", "hosted.org"],
        ["index.", "crates.io"],
        ["static.", "crates.io"],
    ];
    for path in tracked().into_iter().filter(|path| path != "Cargo.lock") {
        let Ok(bytes) = fs::read(repository().join(&path)) else { continue }; // deleted, not committed yet
        let text = String::from_utf8_lossy(&bytes);
        for name in names.map(|halves| halves.concat()) {
            let inside =
                |at: usize| text[..at].ends_with(|before: char| before.is_alphanumeric() || before == '.');
            let found = text.match_indices(&name).find(|&(at, _)| !name.starts_with('/') || !inside(at));
            assert_eq!(found, None, "`{path}` names `{name}`");
        }
    }
}

/// The tracked Rust files that `wanted` accepts, as tokens.
fn sources(wanted: impl Fn(&str) -> bool) -> Vec<(String, Vec<String>)> {
    let rust = tracked().into_iter().filter(|path| path.ends_with(".rs") && wanted(path));
    let read = |path: String| {
        let text = fs::read_to_string(repository().join(&path)).ok()?;
        let stream: TokenStream =
            text.parse().unwrap_or_else(|error| panic!("`{path}` is not Rust: {error}"));
        Some((path, tokens(stream)))
    };
    rust.filter_map(read).collect()
}

/// The tokens without comments, documentation and unit tests.
fn tokens(stream: TokenStream) -> Vec<String> {
    let mut out = Vec::new();
    let mut trees = stream.into_iter().peekable();
    let mut hash = false;
    while let Some(tree) = trees.next() {
        match tree {
            TokenTree::Group(group) if hash && group.delimiter() == Delimiter::Bracket => {
                let attribute: String = tokens(group.stream()).concat();
                if attribute == "cfg(test)" {
                    let item = |tree: &TokenTree| matches!(tree, TokenTree::Group(g) if g.delimiter() == Delimiter::Brace);
                    while trees.next_if(|tree| !item(tree)).is_some() {}
                    trees.next();
                } else if !attribute.starts_with("doc=") {
                    out.push(attribute);
                }
                hash = false;
            }
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::None => ("", ""),
                };
                out.push(open.to_string());
                out.extend(tokens(group.stream()));
                out.push(close.to_string());
                hash = false;
            }
            TokenTree::Punct(punct) if punct.as_char() == '!' && hash => {} // the inner attribute `#![…]`
            tree => {
                hash = matches!(&tree, TokenTree::Punct(punct) if punct.as_char() == '#');
                out.push(tree.to_string());
            }
        }
    }
    out
}

/// The files that git tracks.
fn tracked() -> Vec<String> {
    let listed =
        Command::new("git").args(["ls-files", "-z"]).current_dir(repository()).output().expect("git runs");
    assert!(listed.status.success(), "`git ls-files` failed: {}", String::from_utf8_lossy(&listed.stderr));
    let names = String::from_utf8_lossy(&listed.stdout).into_owned();
    names.split_terminator('\0').map(String::from).collect()
}
