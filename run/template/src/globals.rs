//! Jinja's global functions `joiner` and `cycler`, which minijinja does not have.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use minijinja::value::{Kwargs, Object, ObjectRepr, Rest, Tuple, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use crate::invalid;

/// Jinja's function `joiner`, which returns a callable object. The object returns an empty text at
/// the first call, and the separator at later calls.
pub fn joiner(separator: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let separator = separator.or(options.get("sep")?).unwrap_or_else(|| Value::from(", "));
    options.assert_all_used()?;
    Ok(Value::from_object(Joiner { separator, used: AtomicBool::new(false) }))
}

/// Jinja's function `cycler`, which returns an object that returns its values one after another.
/// After the last value, the object begins again with the first value.
pub fn cycler(items: Rest<Value>) -> Result<Value, Error> {
    match items.0.as_slice() {
        [] => Err(invalid("`cycler` has no items to give")),
        [.., last] if last.is_kwargs() => Err(Error::from(ErrorKind::TooManyArguments)),
        _ => Ok(Value::from_object(Cycler { items: items.0, at: AtomicUsize::new(0) })),
    }
}

/// The values that a `joiner` or a `cycler` contains.
pub fn inside(value: &Value) -> Option<Vec<Value>> {
    if let Some(joiner) = value.downcast_object_ref::<Joiner>() {
        return Some(vec![joiner.separator.clone()]);
    }
    value.downcast_object_ref::<Cycler>().map(|cycler| cycler.items.clone())
}

#[derive(Debug)]
struct Joiner {
    separator: Value,
    used: AtomicBool,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str()? {
            "sep" => Some(self.separator.clone()),
            "used" => Some(Value::from(self.used.load(Ordering::Relaxed))),
            _ => None,
        }
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let () = from_args(args)?;
        let used = self.used.swap(true, Ordering::Relaxed);
        Ok(if used { self.separator.clone() } else { Value::from("") })
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<joiner>")
    }
}

#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let at = self.at.load(Ordering::Relaxed);
        match key.as_str()? {
            "current" => self.items.get(at).cloned(),
            "items" => Some(Value::from(Tuple::from(self.items.clone()))),
            "pos" => Some(Value::from(at)),
            _ => None,
        }
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        let at = self.at.load(Ordering::Relaxed);
        let (given, next) = match method {
            "next" => (self.items[at].clone(), (at + 1) % self.items.len()),
            "reset" => (Value::from(()), 0),
            _ => return Err(Error::from(ErrorKind::UnknownMethod)),
        };
        let () = from_args(args)?;
        self.at.store(next, Ordering::Relaxed);
        Ok(given)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<cycler>")
    }
}
