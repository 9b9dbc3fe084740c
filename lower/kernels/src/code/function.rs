//! Functions that kernels share. A module compiles a function once, for kernels of all sizes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{Buffer, Code, Type, Value};

/// The texts of functions, by name.
pub(crate) type Functions = BTreeMap<String, String>;

impl Code {
    /// Calls a function. Kernels of one module share the functions with the same `name`, so the body may depend
    /// on nothing that is neither in the name nor an operand.
    pub(crate) fn call<'k>(
        &'k self,
        name: &str,
        (buffers, values): (&[Buffer<'k>], &[Value<'k>]),
        results: &[Type],
        body: impl for<'f> FnOnce(&'f Code, &[Buffer<'f>], &[Value<'f>]) -> Vec<Value<'f>>,
    ) -> Vec<Value<'k>> {
        if cfg!(debug_assertions) || !self.functions.borrow().contains_key(name) {
            let text = function(name, (buffers, values), results, body, &self.functions);
            let before = self.functions.borrow_mut().insert(name.to_owned(), text.clone());
            debug_assert!(before.is_none_or(|before| before == text), "{name} has two meanings");
        }
        let (mut names, mut types) = (Vec::new(), Vec::new());
        for buffer in buffers {
            let any = Buffer { length: None, ..*buffer };
            names.push(match buffer.length {
                None => format!("{buffer}"),
                Some(_) => {
                    let name = self.fresh();
                    self.line(format_args!(
                        "%{name} = memref.cast {buffer} : {} to {}",
                        buffer.ty(),
                        any.ty()
                    ));
                    format!("%{name}")
                }
            });
            types.push(any.ty());
        }
        names.extend(values.iter().map(Value::to_string));
        types.extend(values.iter().map(|value| value.ty.to_string()));
        let group = self.fresh();
        let left = match results.len() {
            0 => String::new(),
            count => format!("%{group}:{count} = "),
        };
        let (names, types) = (names.join(", "), types.join(", "));
        self.line(format_args!("{left}func.call @{name}({names}) : ({types}) -> ({})", listed(results)));
        let result = |(i, &ty): (usize, &Type)| Value { code: self, name: (group, Some(i)), ty };
        results.iter().enumerate().map(result).collect()
    }
}

/// Returns the text of a function, and adds the functions that it calls to `others`.
fn function(
    name: &str,
    (buffers, values): (&[Buffer<'_>], &[Value<'_>]),
    results: &[Type],
    body: impl for<'f> FnOnce(&'f Code, &[Buffer<'f>], &[Value<'f>]) -> Vec<Value<'f>>,
    others: &RefCell<Functions>,
) -> String {
    let code = Code::new();
    let own = |buffer: &Buffer<'_>| {
        let &Buffer { element, .. } = buffer;
        Buffer { code: &code, name: code.fresh(), length: None, element }
    };
    let buffers: Vec<Buffer<'_>> = buffers.iter().map(own).collect();
    let own = |value: &Value<'_>| Value { code: &code, name: (code.fresh(), None), ty: value.ty };
    let values: Vec<Value<'_>> = values.iter().map(own).collect();
    let found = body(&code, &buffers, &values);
    assert!(found.iter().map(|value| value.ty).eq(results.iter().copied()), "{name} returns other types");
    let buffers = buffers.iter().map(|buffer| format!("{buffer}: {}", buffer.ty()));
    let arguments = buffers.chain(values.iter().map(|value| format!("{value}: {}", value.ty)));
    let arguments = arguments.collect::<Vec<_>>().join(", ");
    let (types, found) = (listed(results), found.iter().map(Value::to_string).collect::<Vec<_>>().join(", "));
    let (body, functions) = code.into_text();
    others.borrow_mut().extend(functions);
    // Without this attribute, the compiler would copy the function into each kernel at once.
    let mut text = format!(
        "      func.func private @{name}({arguments}) -> ({types}) attributes {{no_inline}} {{\n{body}"
    );
    // Writing to a string cannot fail.
    let _ = match results {
        [] => writeln!(text, "        return\n      }}"),
        _ => writeln!(text, "        return {found} : {types}\n      }}"),
    };
    text
}

fn listed(types: &[Type]) -> String {
    types.iter().map(Type::to_string).collect::<Vec<_>>().join(", ")
}
