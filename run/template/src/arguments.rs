//! Arranges the arguments of Jinja's filters. Templates can pass arguments by position or by name.

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};

/// How a minijinja filter takes its arguments.
#[derive(Clone, Copy)]
pub enum Takes {
    /// The filter takes arguments by position or by name, as the template passes them.
    Any,
    /// The filter takes all arguments by position. The list contains the names of the arguments.
    Places(&'static [&'static str]),
    /// The filter takes all arguments by name. The list contains the names of the arguments.
    Names(&'static [&'static str]),
}

impl Takes {
    /// Arranges the arguments in the order that the filter expects. The first argument is the value
    /// that the filter processes.
    pub fn arrange(self, arguments: Vec<Value>) -> Result<Vec<Value>, Error> {
        let (Self::Places(names) | Self::Names(names)) = self else { return Ok(arguments) };
        let mut places = arguments;
        let named = places.pop_if(|last| last.is_kwargs()).map(Kwargs::try_from).transpose()?;
        if places.len() > names.len() + 1 {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        let mut given: Vec<Option<Value>> = places.drain(1.min(places.len())..).map(Some).collect();
        given.resize(names.len(), None);
        if let Some(named) = named {
            for (name, given) in names.iter().zip(&mut given).filter(|(name, _)| named.has(name)) {
                if given.replace(named.get(name)?).is_some() {
                    let message = format!("the argument `{name}` is given twice");
                    return Err(Error::new(ErrorKind::TooManyArguments, message));
                }
            }
            named.assert_all_used()?;
        }
        match self {
            Self::Names(_) => {
                let given = names.iter().zip(given).filter_map(|(name, given)| Some((*name, given?)));
                let given: Vec<_> = given.collect();
                if !given.is_empty() {
                    places.push(Kwargs::from_iter(given).into());
                }
            }
            // A missing argument becomes undefined. The filter then uses its default or reports an
            // error.
            _ => places.extend(given.into_iter().map(Option::unwrap_or_default)),
        }
        Ok(places)
    }
}
