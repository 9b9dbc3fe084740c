//! Tests of whole templates, which compare the result or the error message.

use jiff::Zoned;
use serde_json::{Map, Value as Json, json};

use crate::chat::prepared;
use crate::{Chat, ChatTemplate, TemplateError};

mod bounds;

fn render(source: &str, variables: Json) -> Result<String, TemplateError> {
    let Json::Object(variables) = variables else { panic!("variables are an object") };
    let chat =
        Chat { messages: vec![json!({"role": "user", "content": "hi"})], variables, ..Chat::default() };
    ChatTemplate::from_source(source, Map::new())?.render(&chat)
}

#[track_caller]
fn check(source: &str, variables: Json, expected: &str) {
    assert_eq!(render(source, variables).unwrap(), expected);
}

#[test]
fn what_divides_is_not_zero() {
    check(
        "{{ 6 is divisibleby 3 }} {{ 7 is divisibleby(2) }} {{ 5 is divisibleby -1 }}",
        json!({}),
        "True False True",
    );
    for by in ["0", "0.0", "x"] {
        let error = render(&format!("{{{{ 5 is divisibleby {by} }}}}"), json!({"x": 0})).unwrap_err();
        assert!(errors::WithCauses(&error).to_string().contains("division by zero"), "{error:?}");
    }
}

/// minijinja 3.0.5 divides by the number of arguments, which must not be zero.
#[test]
fn what_cycles_is_something() {
    let source =
        |items: &str| format!("{{% for i in [1, 2, 3] %}}{{{{ loop.cycle({items}) }}}}{{% endfor %}}");
    check(&source("'a', 'b'"), json!({}), "aba");
    for nothing in ["", "*[]", " "] {
        let error = render(&source(nothing), json!({})).unwrap_err();
        assert!(errors::WithCauses(&error).to_string().contains("no items for cycling"), "{error:?}");
    }
}

#[test]
fn keys_in_a_format_are_any_text() {
    check("{{ 'é %(a)s %%(é) %(é)s' % {'a': 'ü', 'é': 1} }}", json!({}), "é ü %(é) 1");
    let error = render("{{ 'wor%(999\u{1d3}' % 1 }}", json!({})).unwrap_err();
    assert!(errors::WithCauses(&error).to_string().contains("has no end"), "{error:?}");
}

#[test]
fn tojson_is_json_dumps() {
    let x = json!({"b": [1, 2.0, "<a & 'é'>"], "a": {}, "n": null, "t": true, "e": []});
    check(
        "{{ x|tojson }}",
        json!({"x": x}),
        r#"{"b": [1, 2.0, "<a & 'é'>"], "a": {}, "n": null, "t": true, "e": []}"#,
    );
    check(
        "{{ x|tojson(indent=2) }}",
        json!({"x": {"a": [1, {}], "b": 2}}),
        "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": 2\n}",
    );
    check("{{ x|tojson(separators=(',', ':')) }}", json!({"x": {"a": [1, 2]}}), r#"{"a":[1,2]}"#);
    check("{{ x|tojson(ensure_ascii=true) }}", json!({"x": "é👍\u{7f}"}), "\"\\u00e9\\ud83d\\udc4d\u{7f}\"");
    check("{{ x|tojson(sort_keys=true) }}", json!({"x": {"b": 1, "a": 2}}), r#"{"a": 2, "b": 1}"#);
    check("{{ x|tojson }}", json!({"x": "a\"\\\n\u{1}\u{8}/"}), r#""a\"\\\n\u0001\b/""#);
    check(
        "{{ x|tojson }}",
        json!({"x": [1e16, 1.5e-7, 0.1, -0.0, 123456789.0]}),
        "[1e+16, 1.5e-07, 0.1, -0.0, 123456789.0]",
    );
    assert!(matches!(render("{{ missing|tojson }}", json!({})), Err(TemplateError::Render { .. })));
}

#[test]
fn generation_blocks_are_scopes() {
    let source = "a\n{%- generation -%}\n b{% set x = 2 %}{{ x }}\n{%- endgeneration %}\nc{{ x }}";
    check(source, json!({"x": 1}), "ab2c1");
}

#[test]
fn blocks_are_trimmed_as_transformers_does() {
    check("a\n  {% if true %}\nb\n  {% endif %}\nc\n", json!({}), "a\nb\nc");
    check(
        "{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
        json!({}),
        "13",
    );
    check(
        "{{ x }} {{ none }} {{ [1, 'a'] }} {{ ' a '.strip() }}",
        json!({"x": true}),
        "True None [1, 'a'] a",
    );
}

#[test]
fn an_exception_is_the_templates_own_words() {
    let error = render("{{ raise_exception('no <system> role') }}", json!({})).unwrap_err();
    assert!(matches!(&error, TemplateError::Raised { message } if message == "no <system> role"), "{error}");
    let in_macro = "{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{{ m() }}";
    assert!(
        matches!(render(in_macro, json!({})), Err(TemplateError::Raised { message }) if message == "deep")
    );
    assert!(matches!(render("{% if %}", json!({})), Err(TemplateError::Syntax { .. })));
}

#[track_caller]
fn said_of(source: &str, expected: &str) {
    let error = render(source, json!({})).unwrap_err();
    let shown = errors::WithCauses(&error).to_string();
    assert_eq!(shown, expected);
    // The rewritten template contains names with `__`, which the error message must not show.
    assert!(!shown.contains("__"), "{shown}");
}

#[test]
fn an_error_shows_the_tag_as_it_was_written() {
    let failed = "the chat template failed at line";
    said_of(
        "a\n\n{% set x = 'b'.nope() %}",
        &format!("{failed} 3, `{{% set x = 'b'.nope() %}}`: unknown method: string has no method named nope"),
    );
    said_of(
        "{{ f(1 ~ 2) }}{% set x = y.items.z %}\n{{ [1][::0] }}",
        &format!("{failed} 1, `{{{{ f(1 ~ 2) }}}}`: unknown function: f is unknown"),
    );
    said_of(
        "{% set x = [1] %}\r\n{{ x[::0] }}",
        &format!("{failed} 2, `{{{{ x[::0] }}}}`: slice step cannot be zero"),
    );
    // minijinja did not see these lines, because they are within a tag that was rewritten.
    said_of(
        "{% set x = [\n1 + 1,\n2\n] %}\n{{ 'a' %\n1 }}",
        &format!("{failed} 5, `{{{{ 'a' % 1 }}}}`: not all arguments converted during string formatting"),
    );
    said_of(
        "{% macro m(a) %}\n{{ a.b.c }}\n{% endmacro %}\n{{ m(1) }}",
        &format!("{failed} 2, `{{{{ a.b.c }}}}`: undefined value: `a.b` is undefined"),
    );
    said_of(
        "{{ 'a'.items }}{{ {}.items }}",
        &format!(
            "{failed} 1, `{{{{ {{}}.items }}}}`: the method `items` is not called, as in `items()`, and has no text"
        ),
    );
    let syntax = "the chat template is not valid Jinja at line";
    said_of(
        "a\n{% set x = 1 2 %}",
        &format!(
            "{syntax} 2, `{{% set x = 1 2 %}}`: syntax error: unexpected integer, expected end of block"
        ),
    );
    said_of(
        "{% if true %}\n{{ (1 + }}",
        &format!("{syntax} 2, `{{{{ (1 + }}}}`: syntax error: unexpected `}}`"),
    );
    said_of("a\n{{ 'a", &format!("{syntax} 2: syntax error: unexpected end of string"));
    said_of(
        "\n{% macro f(a, b=[a]) %}{% endmacro %}",
        &format!(
            "{syntax} 2, `{{% macro f(a, b=[a]) %}}`: the default of `b` is made of the argument `a`, which is not supported"
        ),
    );
    said_of(
        &format!("\n{{{{ 0{} }}}}", "+1".repeat(2000)),
        &format!("{syntax} 2, `{{{{ 0{}…`: a tag has 2002 operators, expected at most 1000", "+1".repeat(38)),
    );
    said_of(
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "the chat template failed at line 1: it takes too many steps",
    );
}

/// The error message is short and safe, although the template can be long and contain control sequences of a
/// terminal.
#[test]
fn an_error_is_short_and_obeys_nobody() {
    let long = "a".repeat(100_000);
    let tag = format!("{{{{ '{}…", "a".repeat(76));
    said_of(
        &format!("{{{{ '{long}'.nope() }}}}"),
        &format!(
            "the chat template failed at line 1, `{tag}`: unknown method: string has no method named nope"
        ),
    );
    for source in [
        format!("{{{{ x.{long}() }}}}"),
        format!("{{{{ ''.{long}() }}}}"),
        format!("{{{{ 1|{long} }}}}"),
        format!("{{% {long} %}}"),
        format!("{{{{ '%(é{long})s' % 1 }}}}"),
        format!("{{{{ '{long}'|int(0, 16) }}}}"),
        format!("{{{{ strftime_now('{long}%Q') }}}}"),
        format!("{{{{ raise_exception('{long}') }}}}"),
        format!("{{% macro f({long}, b={long}) %}}{{% endmacro %}}"),
        "{{ ''.nope('\u{1b}[31m\u{7}') }}".to_owned(),
        "{{ strftime_now('\u{1b}[31m%Q') }}".to_owned(),
        "{{ raise_exception('\u{1b}[31m') }}".to_owned(),
    ] {
        let error = render(&source, json!({})).unwrap_err();
        let shown = errors::WithCauses(&error).to_string();
        assert!(shown.chars().count() < 500 && !shown.contains(char::is_control), "{source:.99}: {shown}");
    }
}

#[test]
fn an_endless_template_ends() {
    let source = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}";
    assert!(matches!(render(source, json!({})), Err(TemplateError::Render { .. })));
}

/// Tracewright quickly stops templates that would exhaust resources. The test runs on a thread with
/// a stack of the default size.
#[cfg(unix)]
#[test]
fn a_template_that_repeats_nests_or_squares_ends() {
    use rustix::time::{ClockId, clock_gettime};
    use std::time::Duration;

    // The clock measures only this thread, however many other threads compute.
    let processor_time = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let loops = |start: &str, step: &str, end: &str| {
        let head = format!("{{% set n = namespace(x={start}) %}}{{% for i in range(64) %}}");
        format!("{head}{{% set n.x = {step} %}}{{% endfor %}}{{{{ {end} }}}}")
    };
    let nested = |open: &str, close: &str, inside: &str| open.repeat(60) + inside + &close.repeat(60);
    let long = "a".repeat(100_000);
    for source in [
        "{{ 'a'|center(10000000000) }}".to_owned(),
        "{{ 'x'.ljust(10**10) }}".to_owned(),
        "{{ 'x'.zfill(10**10) }}".to_owned(),
        "{{ '\t'.expandtabs(10**10) }}".to_owned(),
        "{{ '%10000000000r' % 1 }}".to_owned(),
        "{{ ('a ' * 40000000).split()|length }}".to_owned(),
        "{{ ('a ' * 40000000).rsplit(' ')|length }}".to_owned(),
        "{{ ('{0}' * 10000).format('a' * 9999999)|length }}".to_owned(),
        "{{ 'a\nb'|indent(10000000000) }}".to_owned(),
        "{{ messages|tojson(indent=10000000000) }}".to_owned(),
        "{{ '%10000000000d' % 1 }}".to_owned(),
        "{{ '%10000000000s' % 1 }}".to_owned(),
        "{{ '%*d' % (10000000000, 1) }}".to_owned(),
        "{{ '{:>10000000000}'.format(1) }}".to_owned(),
        "{{ strftime_now('%1000000000d') }}".to_owned(),
        "{{ [1]|slice(10000000000) }}".to_owned(),
        "{{ [1]|batch(10000000000, 0) }}".to_owned(),
        "{{ ('a' * 99999999) ~ 'a' }}".to_owned(),
        // These templates double a value in each step.
        loops("'aaaaaaaa'", "n.x ~ n.x", "n.x|length"),
        loops("'aaaaaaaa'", "n.x + n.x", "n.x|length"),
        loops("'aaaaaaaa'", "n.x|replace('a', n.x)", "n.x|length"),
        loops("'aaaaaaaa'", "n.x.replace('a', n.x)", "n.x|length"),
        loops("[1]", "n.x + n.x", "n.x"),
        loops("[1]", "[n.x, n.x]", "n.x"),
        loops("[1]", "[n.x, n.x]", "n.x|tojson"),
        loops("[1]", "[n.x, n.x]|select", "n.x|list"),
        loops("[1]", "[n.x, n.x]", "n.x|string|length"),
        loops("{}", "{'a': n.x, 'b': n.x}", "n.x ~ ''"),
        loops("'a'", "cycler(n.x, n.x)", "n.x.next().next()"),
        loops("{}", "dict(a=n.x, b=n.x)", "n.x ~ ''"),
        loops("[]", "n.x + ['a' * 99999999]", "n.x|join|length"),
        loops("[]", "n.x + ['a' * 9999999]", "n.x|join|length"),
        loops("['a', 'a']", "['a' * 9999999, n.x|join('a' * 9999999)]", "n.x|length"),
        loops("['a', 'a']", "['a', ('a' * 9999999).join(n.x)]", "n.x|length"),
        "{% set x %}{% for i in range(99999) %}{{ 'a' * 99999 }}{% endfor %}{% endset %}".to_owned(),
        "{% macro m(x) %}{{ m(x ~ x) }}{% endmacro %}{{ m('aaaaaaaa') }}".to_owned(),
        nested("{% for x in [x ~ x, x ~ x] %}", "{% endfor %}", "{{ x|length }}"),
        format!("{{% set x = 'aaaaaaaa' %}}{}", nested("{% with x = x ~ x %}", "{% endwith %}", "{{ x }}")),
        // These templates create a value that contains itself.
        "{% set n = namespace() %}{% set n.x = n %}{{ n }}".to_owned(),
        "{% set n = namespace() %}{% set n.x = [n] %}{{ n.x|tojson }}".to_owned(),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
        // These templates loop almost forever, with or without output.
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}".to_owned(),
        format!(
            "{{% for i in range(99999) %}}{{% for j in range(99999) %}}{long}{{% endfor %}}{{% endfor %}}"
        ),
        format!("{{% set x %}}{{% for i in range(99999) %}}{long}{{% endfor %}}{{% endset %}}"),
        // These templates nest expressions deeply.
        format!("{{{{ 1{} }}}}", "+1".repeat(20_000)),
        format!("{{{{ 1{} }}}}", "+1".repeat(200_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(20_000)),
        format!("{{{{ x{} }}}}", "|upper".repeat(20_000)),
        format!("{{{{ x{} }}}}", ".x".repeat(20_000)),
        format!("{{{{ {}1 }}}}", "'%s' % ".repeat(20_000)),
        format!("{{{{ {}1{} }}}}", "(".repeat(200_000), ")".repeat(200_000)),
        "{% if 1 %}".repeat(100_000),
    ] {
        let start = processor_time();
        let ended = render(&source, json!({}));
        let refused = matches!(ended, Err(TemplateError::Render { .. } | TemplateError::Syntax { .. }));
        assert!(refused, "{source:.200}: {:.100?}", ended);
        let took = processor_time() - start;
        assert!(took < Duration::from_secs(2), "{source:.200}: {took:?}");
    }
}

/// A conversation with a thousand long messages stays within the limits.
#[test]
fn a_long_conversation_is_rendered() {
    let source = "{% set ns = namespace(seen=[], text='') %}{% for message in messages %}\
                  {% set content = message.role ~ ': ' ~ message.content %}{% set ns.seen = ns.seen + [content] %}\
                  {{ '<' + content + '>' }}{% endfor %}{{ ns.seen|length }}";
    let message = json!({"role": "user", "content": "word ".repeat(200)});
    let chat = Chat { messages: vec![message; 1000], ..Chat::default() };
    let text = ChatTemplate::from_source(source, Map::new()).unwrap().render(&chat).unwrap();
    assert!(text.len() > 1_000_000 && text.ends_with(">1000"), "{}", text.len());
}

#[test]
fn what_a_template_does_not_read_is_known() {
    for (source, expected) in [
        ("{{ x }}", &[][..]),
        ("{{ y }}", &["x"]),
        ("{{ y.x }}{{ y['x'] }}{{ 'x' }}{{ y|x }}{# x #}{% raw %}{{ x }}{% endraw %}x", &["x"]),
        ("{% set x = 1 %}{{ y }}{% set x %}{% endset %}", &["x"]),
        ("{% set x = x|default(1) %}", &[]),
        ("{% set x = y.x or(x) %}", &[]),
        ("{% if not x is defined %}{% set x = 1 %}{% endif %}", &[]),
        ("{% if x_y or xx %}{% endif %}", &["x"]),
        ("{% for m in messages if x %}{% endfor %}", &[]),
        ("{% macro f(a) %}{{ \"'\" ~ x }}{% endmacro %}", &[]),
    ] {
        let template = ChatTemplate::from_source(source, Map::new()).unwrap();
        let variables = Map::from_iter([("x".to_owned(), json!(1))]);
        let chat = Chat { variables, ..Chat::default() };
        assert_eq!(template.unread(&chat).unwrap(), expected, "{source}");
    }
    let named = [("default", ""), ("tool_use", "{{ tools }}")].map(|(name, text)| (name.into(), text.into()));
    let several = ChatTemplate::from_file("tokenizer_config.json".into(), named.into(), Map::new()).unwrap();
    let with_tools = Chat { tools: Some(vec![]), ..Chat::default() };
    assert_eq!(several.unread(&with_tools).unwrap(), [""; 0]);
    let one = ChatTemplate::from_source("{{ namespace(a=b).a ~ bos_token ~ c.d }}", Map::new()).unwrap();
    assert_eq!(one.unread(&with_tools).unwrap(), ["tools"]);
    assert_eq!(one.variables(&with_tools).unwrap(), ["b", "c"]);
}

#[test]
fn the_time_can_be_given() {
    let now: Zoned = "2024-07-04T09:05:00+00:00[UTC]".parse().unwrap();
    let template = ChatTemplate::from_source("{{ strftime_now('%d %b %Y %-H:%M') }}", Map::new()).unwrap();
    let chat = Chat { messages: vec![json!({"role": "user"})], now: Some(now), ..Chat::default() };
    assert_eq!(template.render(&chat).unwrap(), "04 Jul 2024 9:05");
}

#[test]
fn messages_lose_nulls_and_share_their_reasoning() {
    let message = json!({"role": "assistant", "content": null, "reasoning": "why"});
    let found = prepared(0, &message).unwrap();
    let expected =
        json!({"thinking": "why", "role": "assistant", "reasoning": "why", "reasoning_content": "why"});
    assert_eq!(Json::Object(found), expected);
    assert!(matches!(prepared(3, &json!("hi")), Err(TemplateError::Message { index: 3, .. })));
}
