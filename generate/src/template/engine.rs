//! The engine, as transformers sets Jinja up, within the limits.

use files::limits;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{FunctionArgs, FunctionResult, Rest, ValueKind, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value, escape_formatter, filters};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::room::{self, Room};
use super::{jinja, python, rewrite};

/// Under which a rendering remembers how much it has written.
const WRITES: &str = "written";

/// An environment without templates, in which what a template keeps has so much room, and which ends after so many steps.
pub fn environment(room: Room, steps: u64) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(steps));
    environment.set_formatter(|out, state, value| {
        let text = match value.kind() {
            ValueKind::Number | ValueKind::Seq | ValueKind::Map => Some(python::repr(value)?),
            _ => None,
        };
        let bytes = text.as_deref().or(value.as_str()).map_or(0, str::len) as u64;
        let before = state.get_temp(WRITES).and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0);
        if before + bytes > limits::TEMPLATE_WRITTEN {
            let what = format!("more than {} bytes are written", limits::TEMPLATE_WRITTEN);
            return Err(Error::new(ErrorKind::InvalidOperation, what));
        }
        state.set_temp(WRITES, Value::from(before + bytes));
        match text {
            Some(text) => Ok(out.write_str(&text)?),
            None => escape_formatter(out, state, value),
        }
    });
    environment.set_unknown_method_callback(move |state, value, method, args| match (method, args) {
        (rewrite::SLICE, _) => jinja::slice(value, args),
        (rewrite::PERCENT, _) => jinja::percent(state, value, args),
        _ => {
            let text = value.as_str().unwrap_or_default();
            match (method, args) {
                ("format", _) => room::check_format(text, args)?,
                ("join", [list, ..]) => room.check_join(list, text.len())?,
                ("replace", [from, to, ..]) => {
                    room.check_replace(text, &room::as_text(from)?, &room::as_text(to)?)?;
                }
                _ => {}
            }
            unknown_method_callback(state, value, method, args)
        }
    });
    add_filters(&mut environment, room);
    environment.add_test("divisibleby", jinja::is_divisible);
    Ok(environment)
}

fn add_filters(environment: &mut Environment<'static>, room: Room) {
    environment.add_filter(rewrite::BOUNDED, move |value: Value| room.bounded(value));
    checked(environment, "join", filters::join, move |arguments| match arguments {
        [list, rest @ ..] => room.check_join(list, room::joiner(rest)?),
        [] => Ok(()),
    });
    checked(environment, "replace", filters::replace, move |arguments| match arguments {
        [text, from, to, ..] => {
            room.check_replace(&room::as_text(text)?, &room::as_text(from)?, &room::as_text(to)?)
        }
        _ => Ok(()),
    });
    checked(environment, "string", filters::string, move |arguments| {
        arguments.iter().try_for_each(|value| room.bounded(value.clone()).map(drop))
    });
    checked(environment, "slice", filters::slice, room::check_count);
    checked(environment, "batch", filters::batch, room::check_count);
    environment.add_filter("tojson", python::tojson);
    environment.add_filter("format", jinja::format);
    environment.add_filter("center", jinja::center);
    environment.add_filter("indent", jinja::indent);
    environment.add_filter("truncate", jinja::truncate);
    environment.add_filter("wordcount", jinja::wordcount);
}

/// Has a filter of the engine refuse what is too much for it.
fn checked<F, Rv, Args>(
    environment: &mut Environment<'static>,
    name: &'static str,
    filter: F,
    check: impl Fn(&[Value]) -> Result<(), Error> + Send + Sync + 'static,
) where
    F: minijinja::functions::Function<Rv, Args>,
    Rv: FunctionResult,
    Args: for<'a> FunctionArgs<'a>,
{
    let filter = Value::from_function(filter);
    environment.add_filter(name, move |state: &mut State, arguments: Rest<ValueOrKwargs>| {
        let arguments = arguments.into_values();
        check(&arguments)?;
        filter.call(state, &arguments)
    });
}
