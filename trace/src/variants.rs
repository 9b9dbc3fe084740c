//! Layers of one structure whose weights have different formats.

use std::collections::BTreeMap;

use ops::WeightFormat;

use crate::quantization::format_of;
use crate::{Function, FunctionId, Node, NodeKind, Provenance, Quantization, Trace, resolve_key};

/// The formats of all weights that a call reads, in the order of the functions' nodes.
type Formats = Vec<Option<WeightFormat>>;

impl Trace {
    /// Returns a trace in which each function has one format for each of its weights. Layers whose
    /// weights have other formats than their tensor-name patterns call functions of their own; the
    /// prefix of such a function is that of its first layer.
    #[must_use]
    pub fn with_formats(self, quantization: &Quantization) -> Self {
        let formats = quantization.formats();
        if formats.keys().all(|key| crate::key_pattern(key) == *key) {
            return self;
        }
        let mut variants =
            Variants { trace: &self, formats: &formats, made: Vec::new(), known: BTreeMap::new() };
        for (index, function) in self.functions.iter().enumerate() {
            variants.of(FunctionId(index as u32), &function.prefix);
        }
        let entries = self.entries.iter().map(|&id| variants.of(id, &self.function(id).prefix));
        let entries = entries.collect::<Vec<_>>();
        Self { functions: variants.made, entries }
    }
}

struct Variants<'t> {
    trace: &'t Trace,
    formats: &'t BTreeMap<String, WeightFormat>,
    made: Vec<Function>,
    known: BTreeMap<(FunctionId, Formats), FunctionId>,
}

impl Variants<'_> {
    fn formats(&self, id: FunctionId, prefix: &str) -> Formats {
        let function = self.trace.function(id);
        let mut formats = Vec::new();
        for node in function.ids().map(|id| function.node(id)) {
            match &node.kind {
                NodeKind::Parameter(parameter) => {
                    let own = parameter.resolved(&function.prefix, prefix);
                    formats.extend(own.sources().into_iter().map(|(key, _)| format_of(self.formats, key)));
                }
                NodeKind::Call { function: callee, prefix: inner } => {
                    formats.extend(self.formats(*callee, &resolve_key(inner, &function.prefix, prefix)));
                }
                NodeKind::Input { .. } | NodeKind::Op(_) | NodeKind::Result { .. } => {}
            }
        }
        formats
    }

    /// Returns the function for a call with the given prefix.
    fn of(&mut self, id: FunctionId, prefix: &str) -> FunctionId {
        let formats = self.formats(id, prefix);
        if let Some(known) = self.known.get(&(id, formats.clone())) {
            return *known;
        }
        let function = self.trace.function(id);
        let (mut name, mut own) = (function.name.clone(), function.prefix.as_str());
        if self.formats(id, own) != formats {
            own = prefix;
            let taken = |name: &str| self.trace.functions.iter().chain(&self.made).any(|f| f.name == name);
            let free = (1..).map(|count| format!("{}_{count}", function.name)).find(|name| !taken(name));
            name = free.unwrap_or_default();
        }
        let mut made = Function::new(name, own);
        for id in function.ids() {
            let Node { kind, types, axes, provenance } = function.node(id).clone();
            let kind = match kind {
                NodeKind::Parameter(parameter) => {
                    NodeKind::Parameter(parameter.resolved(&function.prefix, own))
                }
                NodeKind::Call { function: callee, prefix: inner } => {
                    let inner = resolve_key(&inner, &function.prefix, own);
                    NodeKind::Call { function: self.of(callee, &inner), prefix: inner }
                }
                kind => kind,
            };
            let path = resolve_key(&provenance.path, &function.prefix, own).into();
            let node = Node { kind, types, axes, provenance: Provenance { path, ..provenance } };
            made.push(node, &function.operands(id));
        }
        made.outputs.clone_from(&function.outputs);
        self.made.push(made);
        let new = FunctionId((self.made.len() - 1) as u32);
        self.known.insert((id, formats), new);
        new
    }
}
