//! Where the network says what a dispatch computes.

use std::collections::{BTreeMap, BTreeSet};

use errors::WithPath as _;
use lower::Module;
use runtime::{CompileOptions, Compiler};

use crate::build::compile;
use crate::load::LoadError;

/// Of each function that a compiled module dispatches, by its name: the field paths of the operations that it computes.
pub(super) type Paths = BTreeMap<String, BTreeSet<String>>;

/// What makes iree-compile say where operations came from, when it has decided which are fused.
const FLAGS: [&str; 6] = [
    "--compile-to=flow",
    "--mlir-disable-threading",
    "--mlir-print-ir-module-scope",
    "--mlir-print-ir-after=iree-flow-annotate-dispatches",
    "--mlir-print-debuginfo",
    "--mlir-elide-elementsattrs-if-larger=16",
];

/// The paths of a module's dispatches, compiled with these options. The compiler goes half of its way again.
pub(super) fn paths(
    module: &Module,
    compiler: &Compiler,
    options: &CompileOptions,
) -> Result<Paths, LoadError> {
    let folder = tempfile::tempdir().with_path("create a folder in", &std::env::temp_dir())?;
    let mut options = options.clone();
    options.flags.extend(FLAGS.map(String::from));
    Ok(parse(&compile(module, compiler, &options, folder.path())?.log))
}

/// The paths in a module that was printed with its locations.
fn parse(text: &str) -> Paths {
    let aliases: BTreeMap<&str, &str> = text
        .lines()
        .filter(|line| line.starts_with("#loc"))
        .filter_map(|line| line.split_once(" = loc("))
        .collect();
    let mut paths = Paths::new();
    // The function whose body the lines are.
    let mut inside: Option<&str> = None;
    for line in text.lines() {
        let name = |before| line.split_once(before).and_then(|(_, rest)| rest.split([' ', '(']).next());
        if let Some(exported) = name("flow.executable.export public @") {
            inside = Some(exported);
        } else if line.starts_with("  util.func ") {
            inside = None;
        }
        // A kernel's own text is nobody's operation: what calls it is.
        let called = name("flow.dispatch @kernels::@");
        if let Some(name) = called.or(inside) {
            let found = paths.entry(name.to_owned()).or_default();
            line.split("loc(").skip(1).for_each(|location| resolve(location, &aliases, found));
        }
    }
    paths
}

/// Adds the names in a location: `#loc7`, `"path"(#loc3)`, `callsite(#loc1 at #loc2)`, `fused[#loc4, #loc5]`. That of a file
/// is none.
fn resolve(location: &str, aliases: &BTreeMap<&str, &str>, found: &mut BTreeSet<String>) {
    if let Some(quoted) = location.strip_prefix('"') {
        // A slash stands for the dot between levels.
        if let Some((path, rest)) = quoted.split_once('"')
            && rest.starts_with('(')
            && !path.is_empty()
        {
            found.insert(path.replace('/', "."));
        }
        return;
    }
    let names = location.split(['(', ')', '[', ']', ',', ' ']).filter(|word| word.starts_with("#loc"));
    // Where an inlined operation stands, and not where its function is called.
    let count = if location.starts_with("callsite") { 1 } else { usize::MAX };
    for alias in names.take(count) {
        if let Some(location) = aliases.get(alias) {
            resolve(location, aliases, found);
        }
    }
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
#loc4 = loc(callsite(#loc2 at #loc3))
#loc5 = loc(fused[#loc4, #loc3])
  flow.executable private @decode_dispatch_0 {
    flow.executable.export public @decode_dispatch_0_mul workgroups() -> (index) {
    } loc(#loc5)
  }
  flow.executable private @decode_dispatch_1 {
    flow.executable.export public @decode_dispatch_1 workgroups() -> (index) {
      %0 = arith.addf %a, %b : f32 loc(callsite(#loc2 at #loc3))
  }
  util.func public @decode(%arg0: i32) {
    %0 = flow.dispatch @kernels::@norm(%1) : (tensor<4xf32>) -> tensor<4xf32> loc(#loc3)
    %1 = flow.dispatch @decode_dispatch_1::@decode_dispatch_1(%0) : () -> () loc(#loc3)
"#;
        let found = parse(text);
        let paths = |name: &str| found[name].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(paths("decode_dispatch_0_mul"), ["model.layers.*.mlp", "model.norm"]);
        assert_eq!(paths("decode_dispatch_1"), ["model.layers.*.mlp"]);
        assert_eq!(paths("norm"), ["model.norm"]);
    }
}
