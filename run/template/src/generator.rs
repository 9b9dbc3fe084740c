//! Generators, which are the results of Jinja filters such as `map`. A generator produces its items
//! one by one.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::vec::IntoIter;

use minijinja::value::{Enumerator, Object, ObjectRepr};
use minijinja::{Error, Value};

/// A generator, which a template can read only once, as in Python. A generator has no length, and
/// is true even if it has no items.
#[derive(Debug)]
pub struct Generator(Mutex<IntoIter<Value>>);

impl Generator {
    /// Creates a generator that produces the items of a list.
    pub fn of(list: &Value) -> Result<Value, Error> {
        let items: Vec<Value> = list.try_iter()?.collect();
        Ok(Value::from_object(Self(Mutex::new(items.into_iter()))))
    }

    /// The remaining items of a generator, or `None` if the value is not a generator.
    pub fn rest(value: &Value) -> Option<Vec<Value>> {
        let Self(items) = value.downcast_object_ref()?;
        Some(items.lock().unwrap_or_else(PoisonError::into_inner).as_slice().to_vec())
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    /// Returns an undefined value for every index, because in Jinja you cannot index a generator.
    /// Without this method, minijinja would consume items of the generator.
    fn get_value(self: &Arc<Self>, _: &Value) -> Option<Value> {
        Some(Value::UNDEFINED)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Iter(Box::new(Taken(Arc::clone(self))))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<generator object>")
    }
}

/// An iterator that consumes the items of a generator.
struct Taken(Arc<Generator>);

impl Iterator for Taken {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).size_hint()
    }
}
