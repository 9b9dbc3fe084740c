//! Prints the text form of a trace. The parser [`Trace::from_str`](std::str::FromStr) turns the
//! text form into an equal trace.

use std::fmt::{self, Write as _};

use ops::{Attribute, print_string};

use crate::{Function, NodeId, NodeKind, Role, Trace};

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::new();
        for (i, function) in self.functions.iter().enumerate() {
            if i > 0 {
                out.push('\n');
            }
            let is_entry = self.entries.iter().any(|id| id.0 as usize == i);
            out.push_str(if is_entry { "entry @" } else { "function @" });
            out.push_str(&function.name);
            if !function.prefix.is_empty() {
                out.push_str(" prefix=");
                print_string(&function.prefix, &mut out);
            }
            out.push_str(" {\n");
            for id in function.ids() {
                self.print_node(function, id, &mut out);
            }
            for output in &function.outputs {
                let _ = write!(out, "  return %{} ", output.node.index());
                print_string(&output.name, &mut out);
                print_role(output.role, &mut out);
                out.push('\n');
            }
            out.push_str("}\n");
        }
        f.write_str(&out)
    }
}

impl Trace {
    /// For example `  %7 = linear (%5, %6) : bf16[1,1,64] {B,S,D} from "model.layers.*.mlp.up_proj" at
    /// "models/src/llama.rs":61`.
    fn print_node(&self, function: &Function, id: NodeId, out: &mut String) {
        let node = function.node(id);
        let _ = write!(out, "  %{} = ", id.index());
        match &node.kind {
            NodeKind::Input { index, name, role } => {
                let _ = write!(out, "input {index} ");
                print_string(name, out);
                print_role(*role, out);
            }
            NodeKind::Parameter(parameter) => {
                out.push_str("parameter ");
                print_string(&parameter.key, out);
                if let Some(recipe) = &parameter.recipe {
                    out.push_str(" = ");
                    recipe.print(out);
                }
            }
            NodeKind::Op(op) => op.print(out),
            NodeKind::Call { function, prefix } => {
                let _ = write!(out, "call @{} prefix=", self.function(*function).name);
                print_string(prefix, out);
            }
            NodeKind::Result { index } => {
                let _ = write!(out, "result {index}");
            }
        }
        let operands: Vec<String> = function.operands(id).iter().map(|o| format!("%{}", o.index())).collect();
        let _ = write!(out, " ({}) : ", operands.join(", "));
        match &node.kind {
            NodeKind::Call { .. } => node.types.print(out),
            _ => node.ty().print(out),
        }
        if !node.axes.is_empty() {
            let _ = write!(out, " {{{}}}", node.axes.join(","));
        }
        out.push_str(" from ");
        print_string(&node.provenance.path, out);
        out.push_str(" at ");
        print_string(&node.provenance.file, out);
        let _ = writeln!(out, ":{}", node.provenance.line);
    }
}

fn print_role(role: Role, out: &mut String) {
    if role != Role::Plain {
        let _ = write!(out, " role={role}");
    }
}
