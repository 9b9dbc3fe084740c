//! A [`Trace`] represents a whole program.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ops::TensorType;

use crate::{Function, FunctionId, NodeKind, Parameter};

/// A program: a list of functions, some of which are entry points. In the list, a function comes
/// before the functions that call it.
///
/// ```
/// use tracewright_trace::Trace;
///
/// let text = r#"entry @main {
///   %0 = input 0 "x" () : f32[2] {D} from "" at "f.rs":1
///   %1 = parameter "scale" () : f32[2] {D} from "scale" at "f.rs":2
///   %2 = binary kind=multiply (%0, %1) : f32[2] {D} from "" at "f.rs":3
///   return %2 "y"
/// }
/// "#;
/// let trace: Trace = text.parse()?;
/// trace.verify()?;
/// assert_eq!(trace.parameters()?[0].key, "scale");
/// assert_eq!(trace.entry("main").map(|main| main.len()), Some(3));
/// // The text reads back.
/// assert_eq!(trace.to_string(), text);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// All functions of the program. A function can call only functions that come earlier in the list.
    pub functions: Vec<Function>,
    /// The functions that the host can call.
    pub entries: Vec<FunctionId>,
}

/// The error for a parameter key that the trace declares with two different types.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the parameter `{key}` is declared as `{first}` and as `{second}`, or with two different recipes")]
pub struct ParameterConflict {
    pub key: String,
    pub first: TensorType,
    pub second: TensorType,
    /// The keys in the declaring functions, before calls replace their prefix.
    pub origins: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    pub parameter: Parameter,
    /// The keys in the declaring functions, before calls replace their prefix.
    pub origins: Arc<BTreeSet<String>>,
}

/// The parameters that a trace reads, by key. Each call replaces the prefix of its parameters' keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reads {
    pub functions: Vec<BTreeMap<String, Read>>,
    pub entries: BTreeMap<String, Read>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub functions: usize,
    /// Each function counts once, however often it is called.
    pub nodes: usize,
    pub parameters: usize,
    pub parameter_elements: usize,
    pub parameter_bytes: usize,
}

impl Trace {
    pub fn function(&self, id: FunctionId) -> &Function {
        &self.functions[id.0 as usize]
    }

    pub fn entry(&self, name: &str) -> Option<&Function> {
        self.entries.iter().map(|&id| self.function(id)).find(|f| f.name == name)
    }

    /// Returns a trace with only the named entry points and the functions that these entry points call.
    pub fn with_entries(&self, names: &[&str]) -> Self {
        let keep = |id: &&FunctionId| names.contains(&self.function(**id).name.as_str());
        let entries: Vec<FunctionId> = self.entries.iter().filter(keep).copied().collect();
        let mut needed = vec![false; self.functions.len()];
        entries.iter().for_each(|id| needed[id.0 as usize] = true);
        for (i, function) in self.functions.iter().enumerate().rev() {
            if needed[i] {
                callees(function).for_each(|id| needed[id.0 as usize] = true);
            }
        }
        let mut renumbered = Vec::new();
        let mut functions = Vec::new();
        for (function, needed) in self.functions.iter().zip(needed) {
            renumbered.push(FunctionId(functions.len() as u32));
            if needed {
                functions.push(function.clone());
            }
        }
        for function in &mut functions {
            for id in function.ids() {
                if let NodeKind::Call { function: callee, .. } = &mut function.node_mut(id).kind {
                    *callee = renumbered[callee.0 as usize];
                }
            }
        }
        let entries = entries.iter().map(|id| renumbered[id.0 as usize]).collect();
        Self { functions, entries }
    }

    pub fn reads(&self) -> Result<Reads, ParameterConflict> {
        // The loop resolves the parameters of each function once. Each caller then renames them.
        let mut of: Vec<BTreeMap<String, Read>> = Vec::with_capacity(self.functions.len());
        for function in &self.functions {
            let mut own = BTreeMap::new();
            for parameter in function.parameters() {
                insert(&mut own, Cow::Borrowed(parameter), &Arc::new([parameter.key.clone()].into()))?;
            }
            for id in function.ids() {
                if let NodeKind::Call { function: callee, prefix } = &function.node(id).kind {
                    let pattern = &self.function(*callee).prefix;
                    for Read { parameter, origins } in of[callee.0 as usize].values() {
                        insert(&mut own, Cow::Owned(parameter.resolved(pattern, prefix)), origins)?;
                    }
                }
            }
            of.push(own);
        }
        let mut entries = BTreeMap::new();
        for id in &self.entries {
            for Read { parameter, origins } in of[id.0 as usize].values() {
                insert(&mut entries, Cow::Borrowed(parameter), origins)?;
            }
        }
        Ok(Reads { functions: of, entries })
    }

    /// Sorted by key, with the prefixes that calls set.
    pub fn parameters(&self) -> Result<Vec<Parameter>, ParameterConflict> {
        Ok(self.reads()?.entries.into_values().map(|read| read.parameter).collect())
    }

    pub fn counts(&self) -> Result<Counts, ParameterConflict> {
        let parameters = self.parameters()?;
        Ok(Counts {
            functions: self.functions.len(),
            nodes: self.functions.iter().map(Function::len).sum(),
            parameters: parameters.len(),
            parameter_elements: parameters.iter().map(|p| p.ty.count()).sum(),
            parameter_bytes: parameters.iter().map(|p| p.ty.bytes()).sum(),
        })
    }
}

fn callees(function: &Function) -> impl Iterator<Item = FunctionId> {
    function.ids().filter_map(|id| match function.node(id).kind {
        NodeKind::Call { function, .. } => Some(function),
        _ => None,
    })
}

fn insert(
    into: &mut BTreeMap<String, Read>,
    parameter: Cow<'_, Parameter>,
    origins: &Arc<BTreeSet<String>>,
) -> Result<(), ParameterConflict> {
    match into.get_mut(&parameter.key) {
        Some(known) => {
            // Most entry points read the same weights through the same functions.
            if !Arc::ptr_eq(&known.origins, origins) && !known.origins.is_superset(origins) {
                Arc::make_mut(&mut known.origins).extend(origins.iter().cloned());
            }
            if known.parameter != *parameter {
                return Err(ParameterConflict {
                    key: parameter.key.clone(),
                    first: known.parameter.ty.clone(),
                    second: parameter.ty.clone(),
                    origins: (*known.origins).clone(),
                });
            }
        }
        None => {
            let read = Read { parameter: parameter.into_owned(), origins: origins.clone() };
            into.insert(read.parameter.key.clone(), read);
        }
    }
    Ok(())
}
