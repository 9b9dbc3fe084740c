//! What Jinja's filters give piece by piece.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::vec::IntoIter;

use minijinja::value::{Enumerator, Object, ObjectRepr};
use minijinja::{Error, Value};

/// It is taken only once, has no length, and is true even where nothing is in it.
#[derive(Debug)]
pub struct Generator(Mutex<IntoIter<Value>>);

impl Generator {
    /// One that gives the items of a list.
    pub fn of(list: &Value) -> Result<Value, Error> {
        let items: Vec<Value> = list.try_iter()?.collect();
        Ok(Value::from_object(Self(Mutex::new(items.into_iter()))))
    }

    /// What it will give, if a value is one.
    pub fn rest(value: &Value) -> Option<Vec<Value>> {
        let Self(items) = value.downcast_object_ref()?;
        Some(items.lock().unwrap_or_else(PoisonError::into_inner).as_slice().to_vec())
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    /// The engine would take items to get at one of them; Jinja finds none.
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

/// Takes the items of a generator.
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
