//! Finds the field paths of the operations in each dispatch, and the order in which an entry point
//! executes the dispatches.

use std::collections::{BTreeMap, BTreeSet};

use files::Scratch;
use lower::Module;
use runtime::{CompileOptions, Compiler};

use tracewright::build::{LoadError, compile};

/// Source locations of dispatches, and their order in each entry point.
#[derive(Debug, Default)]
pub(super) struct Paths {
    /// Maps the name of each dispatched function to the source locations of the function's operations.
    pub places: BTreeMap<String, BTreeSet<Declared>>,
    /// In the order of execution.
    pub order: BTreeMap<String, Vec<Dispatched>>,
}

/// A source location in a declaration: the field path, the Rust file, and the line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Declared {
    pub path: String,
    pub file: String,
    pub line: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dispatched {
    pub name: String,
    /// The inlined call whose operations these are, such as `model.layers.3`.
    pub within: Option<String>,
    /// For a kernel, its call; empty for functions that the compiler generated.
    places: BTreeSet<Declared>,
}

/// Stop after fusing operations into dispatches, and print their source locations.
const FLAGS: [&str; 6] = [
    "--compile-to=flow",
    "--mlir-disable-threading",
    "--mlir-print-ir-module-scope",
    "--mlir-print-ir-after=iree-flow-annotate-dispatches",
    "--mlir-print-debuginfo",
    "--mlir-elide-elementsattrs-if-larger=16",
];

/// Runs the first half of the compilation again, so pass the same options.
pub(super) fn paths(
    module: &Module,
    compiler: &Compiler,
    options: &CompileOptions,
) -> Result<Paths, LoadError> {
    let folder = Scratch::new_in(&std::env::temp_dir())?;
    let mut options = options.clone();
    options.flags.extend(FLAGS.map(String::from));
    Ok(parse(&compile(module, compiler, &options, folder.path())?.log))
}

impl Paths {
    pub fn of(&self, function: &str) -> Vec<String> {
        let paths: BTreeSet<&String> =
            self.places.get(function).into_iter().flatten().map(|at| &at.path).collect();
        paths.into_iter().cloned().collect()
    }

    pub fn at(&self, dispatched: &Dispatched) -> BTreeSet<Declared> {
        if dispatched.places.is_empty() {
            self.places.get(&dispatched.name).cloned().unwrap_or_default()
        } else {
            dispatched.places.clone()
        }
    }
}

/// Parses the text of a module that the compiler printed with source locations.
fn parse(text: &str) -> Paths {
    let aliases: BTreeMap<&str, &str> = text
        .lines()
        .filter(|line| line.starts_with("#loc"))
        .filter_map(|line| line.split_once(" = loc("))
        .collect();
    let mut paths = Paths::default();
    // The function and the entry point whose body contains the current line.
    let (mut inside, mut entry) = (None, None);
    for line in text.lines() {
        let name = |before| line.split_once(before).and_then(|(_, rest)| rest.split([' ', '(', '[']).next());
        if let Some(exported) = name("flow.executable.export public @") {
            inside = Some(exported);
        } else if line.starts_with("  util.func ") {
            inside = None;
            entry = name("util.func public @").map(|name| name.trim_end_matches("$async"));
        }
        let dispatched = name("flow.dispatch @").and_then(|called| called.split_once("::@"));
        let mut found: Vec<(Declared, Option<String>)> = Vec::new();
        for location in line.split("loc(").skip(1) {
            Location::read(location).0.visit(&aliases, None, &mut |at, within| {
                found.push((at, within.map(str::to_owned)));
            });
        }
        // Locations inside a kernel's own text do not count, so the function uses the location of the
        // kernel's call.
        let kernel = dispatched.filter(|(executable, _)| *executable == "kernels").map(|(_, called)| called);
        if let (Some((_, called)), Some(entry)) = (dispatched, entry) {
            let within = found.iter().find_map(|(_, within)| within.clone());
            let own = if kernel.is_some() { &found[..] } else { &[] };
            let places = own.iter().map(|(at, _)| at.clone()).collect();
            let one = Dispatched { name: called.to_owned(), within, places };
            paths.order.entry(entry.to_owned()).or_default().push(one);
        }
        if let Some(name) = kernel.or(inside) {
            paths.places.entry(name.to_owned()).or_default().extend(found.into_iter().map(|(at, _)| at));
        }
    }
    paths
}

/// A source location in MLIR's notation, without the surrounding `loc(…)`.
enum Location<'a> {
    /// A reference to another source location, such as `#loc7`.
    Alias(&'a str),
    /// A Rust file and a line in this file, such as `"models/src/llama.rs":7:0`.
    File(&'a str, u32),
    /// Such as `"path"(#loc3)`.
    Name(&'a str, Box<Self>),
    /// `callsite(#loc1 at #loc2)`: the inlined operation and its call.
    CallSite(Box<[Self; 2]>),
    /// `fused[#loc4, #loc5]`.
    Fused(Vec<Self>),
    Unknown,
}

impl<'a> Location<'a> {
    /// Returns the remaining text, too.
    fn read(text: &'a str) -> (Self, &'a str) {
        if let Some(number) = text.strip_prefix("#loc") {
            let rest = number.trim_start_matches(|c: char| c.is_ascii_digit());
            return (Self::Alias(&text[..text.len() - rest.len()]), rest);
        }
        if let Some((quoted, rest)) = text.strip_prefix('"').and_then(|quoted| quoted.split_once('"')) {
            if let Some(child) = rest.strip_prefix('(') {
                let (child, rest) = Self::read(child);
                return (Self::Name(quoted, Box::new(child)), rest.strip_prefix(')').unwrap_or(rest));
            }
            let place = rest.strip_prefix(':').unwrap_or(rest);
            let end = place.find(|c: char| !c.is_ascii_digit()).unwrap_or(place.len());
            let line = place[..end].parse().unwrap_or_default();
            let rest = place[end..].trim_start_matches(|c: char| c == ':' || c.is_ascii_digit());
            return (Self::File(quoted, line), rest);
        }
        if let Some(callee) = text.strip_prefix("callsite(") {
            let (callee, rest) = Self::read(callee);
            let (caller, rest) = Self::read(rest.strip_prefix(" at ").unwrap_or(rest));
            return (Self::CallSite(Box::new([callee, caller])), rest.strip_prefix(')').unwrap_or(rest));
        }
        if text.starts_with("fused")
            && let Some((_, mut rest)) = text.split_once('[')
        {
            let mut parts = Vec::new();
            loop {
                let (part, after) = Self::read(rest);
                parts.push(part);
                match after.strip_prefix(", ") {
                    Some(next) => rest = next,
                    None => return (Self::Fused(parts), after.strip_prefix(']').unwrap_or(after)),
                }
            }
        }
        (Self::Unknown, text.trim_start_matches(|c: char| c.is_alphanumeric()))
    }

    /// Each named location, with the inlined call that it belongs to.
    fn visit(
        &self,
        aliases: &BTreeMap<&str, &str>,
        within: Option<&str>,
        tell: &mut dyn FnMut(Declared, Option<&str>),
    ) {
        match self {
            Self::Alias(name) => {
                if let Some(location) = aliases.get(name) {
                    Location::read(location).0.visit(aliases, within, tell);
                }
            }
            // Operations that the compiler itself adds have an empty name.
            Self::Name("", _) | Self::File(..) | Self::Unknown => {}
            Self::Name(path, child) => {
                let (file, line) = child.file(aliases).unwrap_or_default();
                tell(Declared { path: field(path), file, line }, within);
            }
            Self::CallSite(sites) => {
                let [callee, caller] = &**sites;
                let mut name = None;
                caller.visit(aliases, None, &mut |at, _| _ = name.get_or_insert(at.path));
                callee.visit(aliases, name.as_deref().or(within), tell);
            }
            Self::Fused(parts) => parts.iter().for_each(|part| part.visit(aliases, within, tell)),
        }
    }

    fn file(&self, aliases: &BTreeMap<&str, &str>) -> Option<(String, u32)> {
        match self {
            Self::File(file, line) => Some(((*file).to_owned(), *line)),
            Self::Alias(name) => Location::read(aliases.get(name)?).0.file(aliases),
            _ => None,
        }
    }
}

/// `/` becomes `.`.
fn field(name: &str) -> String {
    name.replace('/', ".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_followed_to_their_names() {
        let text = r#"
#loc1 = loc("models/src/llama.rs":7:0)
#loc2 = loc("model/layers.*/mlp"(#loc1))
#loc3 = loc("model/norm"(#loc1))
#loc4 = loc("model/layers.3"("models/src/decoder.rs":12:0))
#loc5 = loc(callsite(#loc2 at #loc4))
#loc6 = loc(fused[#loc5, #loc3])
#loc7 = loc(fused<"tag">[#loc3, "-":1:2])
  flow.executable private @decode_dispatch_0 {
    flow.executable.export public @decode_dispatch_0_mul workgroups() -> (index) {
    } loc(#loc6)
  }
  flow.executable private @decode_dispatch_1 {
    flow.executable.export public @decode_dispatch_1 workgroups() -> (index) {
      %0 = arith.addf %a, %b : f32 loc(callsite(#loc2 at #loc3))
  }
  util.func public @decode$async(%arg0: i32) {
    %0 = flow.dispatch @kernels::@norm(%1) : (tensor<4xf32>) -> tensor<4xf32> loc(#loc7)
    %1 = flow.dispatch @decode_dispatch_1::@decode_dispatch_1(%0) : () -> () loc(#loc6)
    %2 = flow.dispatch @kernels::@norm(%1) : () -> () loc(callsite(callsite(#loc2 at #loc4) at "-":3:1))
"#;
        let found = parse(text);
        assert_eq!(found.of("decode_dispatch_0_mul"), ["model.layers.*.mlp", "model.norm"]);
        assert_eq!(found.of("decode_dispatch_1"), ["model.layers.*.mlp"]);
        assert_eq!(found.of("norm"), ["model.layers.*.mlp", "model.norm"]);
        let at = |path: &str| Declared { path: path.into(), file: "models/src/llama.rs".into(), line: 7 };
        let norm: Vec<_> = found.places["norm"].iter().cloned().collect();
        assert_eq!(norm, [at("model.layers.*.mlp"), at("model.norm")]);
        let order: Vec<_> =
            found.order["decode"].iter().map(|one| (one.name.as_str(), one.within.as_deref())).collect();
        let places: Vec<usize> = found.order["decode"].iter().map(|one| found.at(one).len()).collect();
        assert_eq!(places, [1, 1, 1]);
        let within = Some("model.layers.3");
        assert_eq!(order, [("norm", None), ("decode_dispatch_1", within), ("norm", within)]);
    }
}
