//! Methods of Python's dictionaries, lists and generators that minijinja lacks.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Value};

use crate::generator::Generator;
use crate::{invalid, str_methods};

const OF_DICT: [&str; 11] =
    ["clear", "copy", "fromkeys", "get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"];

const OF_LIST: [&str; 11] =
    ["append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort"];

/// Whether a value has a Python method with this name. In Jinja, `x.items` is the method even if
/// the dictionary has a key `items`.
pub fn has_method(value: &Value, name: &str) -> bool {
    match value.kind() {
        ValueKind::String => str_methods::is_method(name),
        ValueKind::Map => is_dict(value) && OF_DICT.contains(&name),
        ValueKind::Seq | ValueKind::Iterable => is_list(value) && OF_LIST.contains(&name),
        _ => false,
    }
}

/// Whether any kind of value has a Python method with this name.
pub fn is_method(name: &str) -> bool {
    str_methods::is_method(name) || OF_DICT.contains(&name) || OF_LIST.contains(&name)
}

/// Jinja's function `dict`, which creates a dictionary from a dictionary or a list of pairs, and
/// from named arguments.
pub fn dict(from: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let mut pairs = Vec::new();
    match from {
        Some(dict) if is_dict(&dict) => {
            for key in dict.try_iter()? {
                let value = dict.get_item(&key)?;
                pairs.push((key, value));
            }
        }
        Some(list) => {
            for (index, pair) in list.try_iter()?.enumerate() {
                let parts: Vec<_> = pair.try_iter()?.collect();
                let [key, value] = <[Value; 2]>::try_from(parts).map_err(|parts| {
                    let message = format!("item {index} of `dict` has {} parts, expected 2", parts.len());
                    invalid(message)
                })?;
                pairs.push((key, value));
            }
        }
        None => {}
    }
    for name in options.args() {
        pairs.push((Value::from(name), options.get(name)?));
    }
    Ok(Value::from_pairs(pairs))
}

/// Whether a value is a dictionary. minijinja also treats namespaces, loops and macros like dictionaries.
pub fn is_dict(value: &Value) -> bool {
    let engines_own = |name: &str| name.starts_with("minijinja::vm::") || name.ends_with("::Namespace");
    value.kind() == ValueKind::Map && value.as_object().is_some_and(|object| !engines_own(object.type_name()))
}

/// Whether a value is the result of Jinja's function `namespace`.
pub fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

/// Whether a value is a list or a tuple. minijinja also treats iterators like lists.
pub fn is_list(value: &Value) -> bool {
    let iterates = value.downcast_object_ref::<Generator>().is_some() || View::of(value).is_some();
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) && !iterates
}

/// Whether a value is a tuple. Jinja's `groupby` returns a list of tuples, for which minijinja has
/// a special type.
pub fn is_tuple(value: &Value) -> bool {
    value.is_tuple() || value.as_object().is_some_and(|object| object.type_name().ends_with("::GroupTuple"))
}

/// Evaluates Jinja's `x.name` without a call of the result.
pub fn attribute(value: &Value, name: &str) -> Result<Value, Error> {
    if has_method(value, name) {
        Ok(Value::from_object(Method(name.to_owned())))
    } else {
        value.get_attr(name)
    }
}

/// The value of `x.name` for a method that the template does not call. The value of an uncalled
/// method is defined, but has no attributes.
#[derive(Debug)]
struct Method(String);

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<built-in method {}>", self.0)
    }
}

/// The error message for a value that has no text. Python would print the memory address of a value
/// without a text.
pub fn without_text(value: &Value) -> String {
    if let Some(Method(name)) = value.downcast_object_ref() {
        return format!("the method `{name}` is not called, as in `{name}()`, and has no text");
    }
    match Generator::rest(value) {
        Some(_) => "a generator has no text; the filter `list` makes a list of it".into(),
        None => format!("a {} has no text", value.kind()),
    }
}

/// The result of a dictionary's methods `keys()`, `values()` and `items()`. As in Python, the
/// result is not a list, and the printed text contains a name such as `dict_keys`.
#[derive(Debug)]
pub struct View {
    /// The name that Python prints for a dictionary view, such as `dict_keys`.
    pub name: &'static str,
    pub list: Value,
}

impl View {
    fn value(name: &'static str, items: impl Iterator<Item = Value>) -> Value {
        Value::from_object(Self { name, list: items.collect() })
    }

    /// The dictionary view in a value, or `None` if the value is not a view.
    pub fn of(value: &Value) -> Option<&Self> {
        value.downcast_object_ref()
    }
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    /// Returns an undefined value for every index, because in Jinja you cannot index a dictionary
    /// view. Without this method, minijinja would return an item of the view.
    fn get_value(self: &Arc<Self>, _: &Value) -> Option<Value> {
        Some(Value::UNDEFINED)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.list.try_iter().map_or(Enumerator::Empty, |items| Enumerator::Values(items.collect()))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.list.len()
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({:?})", self.name, self.list)
    }
}

/// Calls a method of a dictionary. As in Jinja's sandbox, templates cannot call methods that modify
/// the dictionary.
pub fn call_of_dict(dict: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let keys = || Ok::<_, Error>(dict.try_iter()?.collect::<Vec<_>>());
    match method {
        "get" => {
            let (key, default): (&Value, Option<Value>) = from_args(args)?;
            let found = dict.as_object().and_then(|dict| dict.get_value(key));
            Ok(found.or(default).unwrap_or(Value::from(())))
        }
        "keys" => {
            let () = from_args(args)?;
            Ok(View::value("dict_keys", keys()?.into_iter()))
        }
        "values" => {
            let () = from_args(args)?;
            let values = keys()?.iter().map(|key| dict.get_item(key)).collect::<Result<Vec<_>, _>>()?;
            Ok(View::value("dict_values", values.into_iter()))
        }
        "items" => {
            let () = from_args(args)?;
            let item = |key: Value| Ok(Value::from(Tuple::from([key.clone(), dict.get_item(&key)?])));
            let items = keys()?.into_iter().map(item).collect::<Result<Vec<_>, Error>>()?;
            Ok(View::value("dict_items", items.into_iter()))
        }
        "copy" => {
            let () = from_args(args)?;
            Ok(dict.clone())
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// Calls a method of a list or a tuple. As in Jinja's sandbox, templates cannot call methods that
/// modify the list.
pub fn call_of_list(list: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match method {
        "count" => {
            let (what,): (&Value,) = from_args(args)?;
            Ok(Value::from(list.try_iter()?.filter(|item| item == what).count()))
        }
        "index" => {
            let (what,): (&Value,) = from_args(args)?;
            let at = list.try_iter()?.position(|item| item == *what);
            at.map(Value::from).ok_or_else(|| invalid("it is not in the list"))
        }
        "copy" if !list.is_tuple() => {
            let () = from_args(args)?;
            Ok(list.clone())
        }
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}
