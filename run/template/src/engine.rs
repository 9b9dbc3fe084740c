//! Configures minijinja, the template engine. The configuration sets limits, and otherwise follows
//! Jinja in HF transformers.

use files::limits;
use minijinja::functions::Function;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{FunctionArgs, FunctionResult, Kwargs, Rest, ValueOrKwargs, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value, filters};

use crate::arguments::Takes;
use crate::budget::{self, Budget};
use crate::generator::Generator;
use crate::{
    collection_methods, format, globals, invalid, jinja, markup, number_filters, operate, repr_json, rewrite,
    sorted,
};

/// The name of the counter that contains the number of bytes in a rendering's output.
const WRITES: &str = "written";

/// Creates an environment that only parses templates. The environment has no filters and no functions.
pub fn plain() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    Ok(environment)
}

/// Creates an environment with all filters and functions, but without templates. `budget` limits
/// the size of named values, and `steps` limits the run time.
pub fn environment(budget: Budget, steps: u64) -> Result<Environment<'static>, Error> {
    let mut environment = plain()?;
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(steps));
    environment.set_formatter(move |out, state, value| {
        let escaped = match state.auto_escape() {
            AutoEscape::None => None,
            _ => Some(jinja::escape_filter(value)?),
        };
        let text = repr_json::str(escaped.as_ref().unwrap_or(value))?;
        let before = state.get_temp(WRITES).and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0);
        let written = before + text.len() as u64;
        if written > limits::TEMPLATE_WRITTEN {
            let what = format!("more than {} bytes are written", limits::TEMPLATE_WRITTEN);
            return Err(invalid(what));
        }
        state.set_temp(WRITES, Value::from(written));
        Ok(out.write_str(&text)?)
    });
    environment.set_unknown_method_callback(move |state, value, method, args| match method {
        rewrite::SLICE => jinja::slice(value, args),
        rewrite::CYCLE => match args {
            [] => Err(invalid("no items for cycling given")),
            _ => value.call_method(state, "cycle", args),
        },
        rewrite::ATTRIBUTE => {
            let (name,): (&str,) = from_args(args)?;
            collection_methods::attribute(value, name)
        }
        _ => match value.as_str() {
            Some(_) => markup::call(budget, value, method, args),
            None if collection_methods::is_dict(value) => {
                collection_methods::call_of_dict(value, method, args)
            }
            None if collection_methods::is_list(value) => {
                collection_methods::call_of_list(value, method, args)
            }
            None => Err(Error::from(ErrorKind::UnknownMethod)),
        },
    });
    add_filters(&mut environment, budget);
    number_filters::add_tests(&mut environment);
    operate::add_tests(&mut environment);
    environment.add_test("sequence", jinja::is_sequence);
    environment.add_test("iterable", jinja::is_iterable);
    environment.add_test("mapping", collection_methods::is_dict);
    // minijinja has these filters, but Jinja does not.
    for name in ["bool", "chain", "lines", "pprint", "split", "zip"] {
        environment.remove_filter(name);
    }
    for name in ["endingwith", "int", "safe", "startingwith"] {
        environment.remove_test(name);
    }
    environment.remove_global("debug");
    environment.add_function("cycler", globals::cycler);
    environment.add_function("dict", collection_methods::dict);
    environment.add_function("joiner", globals::joiner);
    Ok(environment)
}

fn add_filters(environment: &mut Environment<'static>, budget: Budget) {
    environment.add_filter(rewrite::BOUNDED, move |value: Value| budget.bounded(value));
    environment.add_filter(rewrite::LOOPED, jinja::looped);
    operate::add_filters(environment, budget);
    let join = move |state: &mut State, list: &Value, between: &Value, attribute: &Value| {
        jinja::join(budget, state, list, between, attribute)
    };
    taking(environment, ("join", Takes::Places(&["d", "attribute"])), join);
    let replace = move |state: &mut State, text: &Value, old: &Value, new: &Value, count: Option<i64>| {
        jinja::replace(budget, state, text, old, new, count)
    };
    taking(environment, ("replace", Takes::Places(&["old", "new", "count"])), replace);
    let sum = move |state: &mut State, list: &Value, attribute: &Value, start: &Value| {
        number_filters::sum(budget, state, list, attribute, start)
    };
    taking(environment, ("sum", Takes::Places(&["attribute", "start"])), sum);
    // These filters return generators.
    let items = |made: Value| Generator::of(&made);
    let batch = Takes::Places(&["linecount", "fill_with"]);
    let slice = Takes::Places(&["slices", "fill_with"]);
    checked(environment, ("slice", slice), filters::slice, budget::check_count, items);
    checked(environment, ("batch", batch), filters::batch, budget::check_count, items);
    checked(environment, ("reject", Takes::Any), filters::reject, |_| Ok(()), items);
    checked(environment, ("rejectattr", Takes::Any), filters::rejectattr, |_| Ok(()), items);
    checked(environment, ("select", Takes::Any), filters::select, |_| Ok(()), items);
    checked(environment, ("selectattr", Takes::Any), filters::selectattr, |_| Ok(()), items);
    let unique = Takes::Names(&["case_sensitive", "attribute"]);
    checked(environment, ("unique", unique), filters::unique, |_| Ok(()), items);
    let attributes = Value::from_function(filters::map);
    environment.add_filter("map", move |state: &mut State, arguments: Rest<ValueOrKwargs>| {
        jinja::map(state, &attributes, &arguments.into_values())
    });
    let default = Takes::Places(&["default_value", "boolean"]);
    taking(environment, ("d", default), filters::default);
    taking(environment, ("default", default), filters::default);
    let dictsort = Takes::Names(&["case_sensitive", "by", "reverse"]);
    taking(environment, ("dictsort", dictsort), filters::dictsort);
    let groupby = Takes::Names(&["attribute", "default", "case_sensitive"]);
    taking(environment, ("groupby", groupby), filters::groupby);
    let extreme = Takes::Places(&["case_sensitive", "attribute"]);
    let sort = Takes::Places(&["reverse", "case_sensitive", "attribute"]);
    taking(environment, ("max", extreme), sorted::max);
    taking(environment, ("min", extreme), sorted::min);
    taking(environment, ("sort", sort), sorted::sort);
    let tojson = Takes::Names(&["ensure_ascii", "indent", "separators", "sort_keys"]);
    taking(environment, ("tojson", tojson), repr_json::tojson);
    let truncate = Takes::Places(&["length", "killwords", "end", "leeway"]);
    let shorten =
        move |text: &Value,
              length: Option<usize>,
              kill: Option<bool>,
              end: Option<&Value>,
              leeway: Option<usize>| { jinja::truncate(budget, text, length, kill, end, leeway) };
    taking(environment, ("truncate", truncate), shorten);
    taking(environment, ("attr", Takes::Places(&["name"])), jinja::attr);
    taking(environment, ("center", Takes::Places(&["width"])), jinja::center);
    taking(environment, ("trim", Takes::Places(&["chars"])), jinja::trim);
    environment.add_filter("capitalize", jinja::capitalize);
    environment.add_filter("count", jinja::length);
    environment.add_filter("abs", number_filters::abs);
    environment.add_filter("e", jinja::escape_filter);
    environment.add_filter("escape", jinja::escape_filter);
    environment.add_filter("first", jinja::first);
    taking(environment, ("float", Takes::Places(&["default"])), number_filters::float);
    environment.add_filter("forceescape", jinja::force_escape);
    environment.add_filter("format", move |text: &Value, values: Rest<Value>, named: Kwargs| {
        format::filter(budget, text, values, &named)
    });
    taking(environment, ("indent", Takes::Places(&["width", "first", "blank"])), jinja::indent);
    taking(environment, ("int", Takes::Places(&["default", "base"])), number_filters::int);
    environment.add_filter("items", jinja::items);
    environment.add_filter("last", jinja::last);
    environment.add_filter("length", jinja::length);
    environment.add_filter("lower", jinja::lower);
    environment.add_filter("reverse", jinja::reverse);
    let round = Takes::Places(&["precision", "method"]);
    taking(environment, ("round", round), number_filters::round);
    environment.add_filter("safe", |value: &Value| {
        repr_json::str(value).map(|text| Value::from_safe_string(text.into()))
    });
    environment.add_filter("string", move |value: &Value| jinja::string(budget, value));
    environment.add_filter("striptags", markup::striptags);
    environment.add_filter("title", jinja::title);
    environment.add_filter("upper", jinja::upper);
    environment.add_filter("wordcount", jinja::wordcount);
}

/// Adds a filter that takes its arguments by Jinja's rules.
fn taking<F, Rv, Args>(environment: &mut Environment<'static>, named: (&'static str, Takes), filter: F)
where
    F: Function<Rv, Args>,
    Rv: FunctionResult,
    Args: for<'a> FunctionArgs<'a>,
{
    checked(environment, named, filter, |_| Ok(()), Ok);
}

/// Adds a filter that rejects values beyond the limits. For values within the limits, the filter
/// returns the results of Jinja's filter.
fn checked<F, Rv, Args>(
    environment: &mut Environment<'static>,
    (name, takes): (&'static str, Takes),
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
        let arguments = takes.arrange(arguments.into_values())?;
        check(&arguments)?;
        give(filter.call(state, &arguments)?)
    });
}
