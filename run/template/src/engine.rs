//! Configures minijinja, the template engine. The configuration sets limits, and otherwise follows
//! Jinja in HF transformers.

use files::limits;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, ValueOrKwargs, from_args};
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
    use Takes::{Any, Names, Places};
    environment.add_filter(rewrite::BOUNDED, move |value: Value| budget.bounded(value));
    environment.add_filter(rewrite::LOOPED, jinja::looped);
    operate::add_filters(environment, budget);
    let attributes = Value::from_function(filters::map);
    environment.add_filter("map", move |state: &mut State, arguments: Rest<ValueOrKwargs>| {
        jinja::map(state, &attributes, &arguments.into_values())
    });
    // These filters return generators.
    for (name, takes, filter) in [
        ("batch", Places(&["linecount", "fill_with"]), Value::from_function(filters::batch)),
        ("reject", Any, Value::from_function(filters::reject)),
        ("rejectattr", Any, Value::from_function(filters::rejectattr)),
        ("select", Any, Value::from_function(filters::select)),
        ("selectattr", Any, Value::from_function(filters::selectattr)),
        ("slice", Places(&["slices", "fill_with"]), Value::from_function(filters::slice)),
        ("unique", Names(&["case_sensitive", "attribute"]), Value::from_function(filters::unique)),
    ] {
        environment.add_filter(name, move |state: &mut State, arguments: Rest<ValueOrKwargs>| {
            let arguments = takes.arrange(arguments.into_values())?;
            budget::check_count(&arguments)?;
            Generator::of(&filter.call(state, &arguments)?)
        });
    }
    for (name, takes, filter) in limited_filters(budget).into_iter().chain(filters()) {
        environment.add_filter(name, move |state: &mut State, arguments: Rest<ValueOrKwargs>| {
            filter.call(state, &takes.arrange(arguments.into_values())?)
        });
    }
}

/// A filter with its name and arguments in Jinja.
type Filter = (&'static str, Takes, Value);

/// The filters that compare the sizes of their results with the limits.
fn limited_filters(budget: Budget) -> Vec<Filter> {
    use Takes::{Any, Places};
    let format =
        move |text: &Value, values: Rest<Value>, named: Kwargs| format::filter(budget, text, values, &named);
    let join = move |state: &mut State, list: &Value, between: &Value, attribute: &Value| {
        jinja::join(budget, state, list, between, attribute)
    };
    let replace = move |state: &mut State, text: &Value, old: &Value, new: &Value, count: Option<i64>| {
        jinja::replace(budget, state, text, old, new, count)
    };
    let sum = move |state: &mut State, list: &Value, attribute: &Value, start: &Value| {
        number_filters::sum(budget, state, list, attribute, start)
    };
    let truncate =
        move |text: &Value,
              length: Option<usize>,
              kill: Option<bool>,
              end: Option<&Value>,
              leeway: Option<usize>| { jinja::truncate(budget, text, length, kill, end, leeway) };
    vec![
        ("format", Any, Value::from_function(format)),
        ("join", Places(&["d", "attribute"]), Value::from_function(join)),
        ("replace", Places(&["old", "new", "count"]), Value::from_function(replace)),
        ("string", Any, Value::from_function(move |value: &Value| jinja::string(budget, value))),
        ("sum", Places(&["attribute", "start"]), Value::from_function(sum)),
        ("truncate", Places(&["length", "killwords", "end", "leeway"]), Value::from_function(truncate)),
    ]
}

fn filters() -> Vec<Filter> {
    use Takes::{Any, Names, Places};
    let safe = |value: &Value| repr_json::str(value).map(|text| Value::from_safe_string(text.into()));
    let default = Places(&["default_value", "boolean"]);
    let dictsort = Names(&["case_sensitive", "by", "reverse"]);
    let extreme = Places(&["case_sensitive", "attribute"]);
    let groupby = Names(&["attribute", "default", "case_sensitive"]);
    let sort = Places(&["reverse", "case_sensitive", "attribute"]);
    let tojson = Names(&["ensure_ascii", "indent", "separators", "sort_keys"]);
    vec![
        ("abs", Any, Value::from_function(number_filters::abs)),
        ("attr", Places(&["name"]), Value::from_function(jinja::attr)),
        ("capitalize", Any, Value::from_function(jinja::capitalize)),
        ("center", Places(&["width"]), Value::from_function(jinja::center)),
        ("count", Any, Value::from_function(jinja::length)),
        ("d", default, Value::from_function(filters::default)),
        ("default", default, Value::from_function(filters::default)),
        ("dictsort", dictsort, Value::from_function(filters::dictsort)),
        ("e", Any, Value::from_function(jinja::escape_filter)),
        ("escape", Any, Value::from_function(jinja::escape_filter)),
        ("first", Any, Value::from_function(jinja::first)),
        ("float", Places(&["default"]), Value::from_function(number_filters::float)),
        ("forceescape", Any, Value::from_function(jinja::force_escape)),
        ("groupby", groupby, Value::from_function(filters::groupby)),
        ("indent", Places(&["width", "first", "blank"]), Value::from_function(jinja::indent)),
        ("int", Places(&["default", "base"]), Value::from_function(number_filters::int)),
        ("items", Any, Value::from_function(jinja::items)),
        ("last", Any, Value::from_function(jinja::last)),
        ("length", Any, Value::from_function(jinja::length)),
        ("lower", Any, Value::from_function(jinja::lower)),
        ("max", extreme, Value::from_function(sorted::max)),
        ("min", extreme, Value::from_function(sorted::min)),
        ("reverse", Any, Value::from_function(jinja::reverse)),
        ("round", Places(&["precision", "method"]), Value::from_function(number_filters::round)),
        ("safe", Any, Value::from_function(safe)),
        ("sort", sort, Value::from_function(sorted::sort)),
        ("striptags", Any, Value::from_function(markup::striptags)),
        ("title", Any, Value::from_function(jinja::title)),
        ("tojson", tojson, Value::from_function(repr_json::tojson)),
        ("trim", Places(&["chars"]), Value::from_function(jinja::trim)),
        ("upper", Any, Value::from_function(jinja::upper)),
        ("wordcount", Any, Value::from_function(jinja::wordcount)),
    ]
}
