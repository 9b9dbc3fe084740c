//! The engine, as transformers sets Jinja up, within the limits.

use files::limits;
use minijinja::functions::Function;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{FunctionArgs, FunctionResult, Rest, ValueOrKwargs, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value, filters};

use super::generator::Generator;
use super::room::{self, Room};
use super::{jinja, python, rewrite, text, values};

/// Under which a rendering remembers how much it has written.
const WRITES: &str = "written";

/// An environment that reads templates, and knows nothing of what is in them.
pub fn plain() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    Ok(environment)
}

/// An environment without templates, in which what a template keeps has so much room, and which ends after so many steps.
pub fn environment(room: Room, steps: u64) -> Result<Environment<'static>, Error> {
    let mut environment = plain()?;
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(steps));
    environment.set_formatter(move |out, state, value| {
        let escaped = match state.auto_escape() {
            AutoEscape::None => None,
            _ => Some(jinja::escape(room, value)?),
        };
        let text = python::str(escaped.as_ref().unwrap_or(value))?;
        let before = state.get_temp(WRITES).and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0);
        let written = before + text.len() as u64;
        if written > limits::TEMPLATE_WRITTEN {
            let what = format!("more than {} bytes are written", limits::TEMPLATE_WRITTEN);
            return Err(Error::new(ErrorKind::InvalidOperation, what));
        }
        state.set_temp(WRITES, Value::from(written));
        Ok(out.write_str(&text)?)
    });
    environment.set_unknown_method_callback(move |state, value, method, args| match method {
        rewrite::SLICE => jinja::slice(value, args),
        rewrite::PERCENT => jinja::percent(state, value, args),
        rewrite::CYCLE => match args {
            [] => Err(Error::new(ErrorKind::InvalidOperation, "no items for cycling given")),
            _ => value.call_method(state, "cycle", args),
        },
        rewrite::ATTRIBUTE => {
            let (name,): (&str,) = from_args(args)?;
            values::attribute(value, name)
        }
        _ => match value.as_str() {
            Some(text) => text::call(room, text, method, args),
            None if values::is_dict(value) => values::call_of_dict(value, method, args),
            None if values::is_list(value) => values::call_of_list(value, method, args),
            None => Err(Error::from(ErrorKind::UnknownMethod)),
        },
    });
    add_filters(&mut environment, room);
    environment.add_test("divisibleby", jinja::is_divisible);
    environment.add_test("sequence", jinja::is_sequence);
    environment.add_test("iterable", jinja::is_iterable);
    environment.add_test("mapping", values::is_dict);
    // What the engine has and Jinja has not.
    for name in ["bool", "chain", "lines", "pprint", "split", "zip"] {
        environment.remove_filter(name);
    }
    for name in ["endingwith", "int", "safe", "startingwith"] {
        environment.remove_test(name);
    }
    environment.remove_global("debug");
    Ok(environment)
}

fn add_filters(environment: &mut Environment<'static>, room: Room) {
    environment.add_filter(rewrite::BOUNDED, move |value: Value| room.bounded(value));
    checked(
        environment,
        "join",
        filters::join,
        move |arguments| match arguments {
            [list, rest @ ..] => room.check_join(list, room::joiner(rest)?),
            [] => Ok(()),
        },
        Ok,
    );
    checked(
        environment,
        "replace",
        filters::replace,
        move |arguments| match arguments {
            [text, from, to, ..] => {
                room.check_replace(&room::as_text(text)?, &room::as_text(from)?, &room::as_text(to)?)
            }
            _ => Ok(()),
        },
        Ok,
    );
    // Items that come one by one.
    let items = |made: Value| Generator::of(&made);
    checked(environment, "slice", filters::slice, room::check_count, items);
    checked(environment, "batch", filters::batch, room::check_count, items);
    checked(environment, "map", filters::map, |_| Ok(()), items);
    checked(environment, "reject", filters::reject, |_| Ok(()), items);
    checked(environment, "rejectattr", filters::rejectattr, |_| Ok(()), items);
    checked(environment, "select", filters::select, |_| Ok(()), items);
    checked(environment, "selectattr", filters::selectattr, |_| Ok(()), items);
    checked(environment, "unique", filters::unique, |_| Ok(()), items);
    environment.add_filter("attr", jinja::attr);
    environment.add_filter("capitalize", jinja::capitalize);
    environment.add_filter("center", jinja::center);
    environment.add_filter("count", jinja::length);
    environment.add_filter("e", move |value: &Value| jinja::escape(room, value));
    environment.add_filter("escape", move |value: &Value| jinja::escape(room, value));
    environment.add_filter("first", jinja::first);
    environment.add_filter("float", jinja::float);
    environment.add_filter("forceescape", move |value: &Value| jinja::force_escape(room, value));
    environment
        .add_filter("format", move |text: &str, values: Rest<Value>| jinja::format(room, text, values));
    environment.add_filter("indent", jinja::indent);
    environment.add_filter("int", jinja::int);
    environment.add_filter("items", jinja::items);
    environment.add_filter("last", jinja::last);
    environment.add_filter("length", jinja::length);
    environment.add_filter("lower", |value: &Value| python::str(value).map(|text| text.to_lowercase()));
    environment.add_filter("reverse", jinja::reverse);
    environment.add_filter("safe", |value: &Value| {
        python::str(value).map(|text| Value::from_safe_string(text.into()))
    });
    environment.add_filter("string", move |value: &Value| jinja::string(room, value));
    environment.add_filter("title", jinja::title);
    environment.add_filter("tojson", python::tojson);
    environment.add_filter("trim", jinja::trim);
    environment.add_filter("truncate", jinja::truncate);
    environment.add_filter("upper", |value: &Value| python::str(value).map(|text| text.to_uppercase()));
    environment.add_filter("wordcount", jinja::wordcount);
}

/// Has a filter of the engine refuse what is too much for it, and give what Jinja's does of what it makes.
fn checked<F, Rv, Args>(
    environment: &mut Environment<'static>,
    name: &'static str,
    filter: F,
    check: impl Fn(&[Value]) -> Result<(), Error> + Send + Sync + 'static,
    give: fn(Value) -> Result<Value, Error>,
) where
    F: Function<Rv, Args>,
    Rv: FunctionResult,
    Args: for<'a> FunctionArgs<'a>,
{
    let filter = Value::from_function(filter);
    environment.add_filter(name, move |state: &mut State, arguments: Rest<ValueOrKwargs>| {
        let arguments = arguments.into_values();
        check(&arguments)?;
        give(filter.call(state, &arguments)?)
    });
}
