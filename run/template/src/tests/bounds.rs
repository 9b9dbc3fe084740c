//! Tests of each limit by itself. Most whole templates would reach another limit first.

use std::io::Write as _;

use errors::WithCauses;
use files::limits;
use minijinja::Value;
use serde_json::{Map, json};

use crate::budget::Budget;
use crate::chat::Bounded;
use crate::generator::Generator;
use crate::{Chat, ChatTemplate, repr_json};

const FULL: usize = limits::PROMPT as usize;

/// The output of a template, or the error message.
fn said(source: &str) -> Result<String, String> {
    let chat = Chat { messages: vec![json!({"role": "user", "content": "hi"})], ..Chat::default() };
    let rendered = ChatTemplate::from_source(source, Map::new()).and_then(|template| template.render(&chat));
    rendered.map_err(|error| WithCauses(&error).to_string())
}

#[track_caller]
fn refused(source: &str, words: &str) {
    let error = said(source).expect_err(source);
    assert!(error.contains(words), "{source:.200}: {error}");
}

/// A list that contains a list, and so on, with `lists` lists in total.
fn nested(lists: usize) -> Value {
    (1..lists).fold(Value::from(Vec::<Value>::new()), |inner, _| Value::from(vec![inner]))
}

#[test]
fn the_widths_in_a_format_are_bounded() {
    let wide = "a text becomes too wide";
    for format in ["%67108865d", "%67108864d%1d", "%.67108865f", "%99999999999999999999d"] {
        refused(&format!("{{{{ '{format}' % (1, 2)[:{}] }}}}", format.matches('%').count()), wide);
    }
    for format in ["{:>67108865}", "{:67108865.2f}", "{:.67108865f}", "{:99999999999999999999}"] {
        refused(&format!("{{{{ '{format}'.format(1) }}}}"), wide);
    }
    // These numbers are no widths.
    let plain = "{{ '99999999999 %d' % 10000000000 }} {{ '99999999999 {}'.format(10000000000) }}";
    assert_eq!(said(plain).unwrap(), "99999999999 10000000000 99999999999 10000000000");
    refused("{{ '%*d' % (10000000000, 1) }}", "a width among the values");
    for conversion in ["%10000000000r", "%.10000000000r", "%10000000000a", "%(a)10000000000s"] {
        refused(&format!("{{{{ '{conversion}' % {{'a': 1}} }}}}"), wide);
    }
}

#[test]
fn a_format_has_room_for_each_value_wherever_it_is_named() {
    let budget = Budget { bytes: 100 };
    let values = |bytes: usize| [Value::from("a".repeat(bytes))];
    budget.check_format("{0}{0}", &values(50)).unwrap();
    budget.check_format("{0}{0}", &values(51)).unwrap_err();
    budget.check_format("%s", &values(100)).unwrap();
    budget.check_format("%s", &values(101)).unwrap_err();
    budget.check_format("nothing", &values(100)).unwrap();
    let long = "a text becomes too long where values are put into it";
    refused("{% set x = 'a' * 1000000 %}{{ ('{0}' * 1000).format(x)|length }}", long);
    refused("{% set x = 'a' * 1000000 %}{{ (('%(a)s' * 1000)|format({'a': x}))|length }}", long);
}

#[test]
fn what_makes_a_text_wide_is_bounded() {
    for call in ["ljust(W)", "rjust(W)", "center(W)", "zfill(W)", "expandtabs(W)", "ljust(W, 'é')"] {
        let wide = |width: &str| format!("{{{{ '\\t'.{}|length }}}}", call.replace('W', width));
        refused(&wide("10000000000"), "a text becomes too wide");
        refused(&wide("9223372036854775807"), "a text becomes too wide");
        refused(&wide("150000000"), "a text becomes too wide");
        assert_eq!(said(&wide("1000")).unwrap(), "1000", "{call}");
    }
    refused("{{ ('\\t' * 1000).expandtabs(1000000) }}", "a text becomes too wide");
    refused("{{ ('<' * 40000000)|e|length }}", "a text becomes too long where a part is replaced");
    refused("{{ ('<' * 40000000)|forceescape|length }}", "a text becomes too long where a part is replaced");
}

#[test]
fn a_text_is_split_into_no_more_items_than_a_list_may_have() {
    let most = limits::TEMPLATE_ITEMS;
    for call in ["split()", "split(' ')", "rsplit()", "rsplit(' ')", "splitlines()"] {
        let source = |items: usize| format!("{{{{ ('a\\n ' * {items}).{call}|length > 2 }}}}");
        assert_eq!(said(&source(most - 1)).unwrap(), "True", "{call}");
        refused(&source(most + 1), "a list becomes too long");
    }
}

/// The check of the limit reads the items of a generator, but does not consume the items.
#[test]
fn a_generator_has_room_and_keeps_its_items() {
    let budget = Budget { bytes: 100 };
    let of = |bytes: usize| Generator::of(&Value::from(vec!["a".repeat(bytes)])).unwrap();
    let generator = budget.bounded(of(100)).unwrap();
    assert_eq!(generator.try_iter().unwrap().count(), 1);
    budget.bounded(of(101)).unwrap_err();
    budget.check_join(&of(100), 1).unwrap();
    budget.check_join(&of(10), 101).unwrap_err();
    let nested =
        |depth| (0..depth).fold(Value::from(1), |inner, _| Generator::of(&vec![inner].into()).unwrap());
    budget.bounded(nested(limits::TEMPLATE_DEPTH + 1)).unwrap();
    budget.bounded(nested(limits::TEMPLATE_DEPTH + 2)).unwrap_err();
}

#[test]
fn a_value_has_room_to_its_last_byte_item_and_depth() {
    let budget = Budget { bytes: 100 };
    let texts = |bytes: usize| Value::from(vec!["a".repeat(50), "b".repeat(bytes)]);
    budget.bounded(texts(50)).unwrap();
    budget.bounded(texts(51)).unwrap_err();
    let of_map = |bytes: usize| Value::from_pairs([("k".repeat(50), "v".repeat(bytes))]);
    budget.bounded(of_map(50)).unwrap();
    budget.bounded(of_map(51)).unwrap_err();
    // The list itself counts as an item.
    let items = |count: usize| Value::from(vec![1; count]);
    budget.bounded(items(limits::TEMPLATE_ITEMS - 1)).unwrap();
    budget.bounded(items(limits::TEMPLATE_ITEMS)).unwrap_err();
    let unknown = Value::make_iterable(|| (0..limits::TEMPLATE_ITEMS).filter(|_| true));
    budget.bounded(unknown).unwrap_err();
    budget.bounded(nested(limits::TEMPLATE_DEPTH + 1)).unwrap();
    budget.bounded(nested(limits::TEMPLATE_DEPTH + 2)).unwrap_err();
    budget.bounded(nested(200)).unwrap_err();
}

/// Each value contains the previous value. Rust would drop these values recursively, with a stack
/// frame for each value.
#[test]
fn joiners_and_cyclers_are_nested_no_deeper_than_lists() {
    for nested in ["joiner(n.x)", "cycler(n.x)", "cycler(joiner(n.x), 1)"] {
        let source = format!(
            "{{% set n = namespace(x='a') %}}{{% for i in range(200) %}}{{% set n.x = {nested} %}}{{% endfor %}}"
        );
        refused(&source, "a value becomes too large or is nested too deep");
    }
}

#[test]
fn a_list_is_joined_where_its_texts_and_those_between_have_room() {
    let budget = Budget { bytes: 100 };
    let list = |count: usize, bytes: usize| Value::from(vec!["a".repeat(bytes); count]);
    budget.check_join(&list(2, 50), 0).unwrap();
    budget.check_join(&list(2, 51), 0).unwrap_err();
    budget.check_join(&list(10, 1), 10).unwrap();
    budget.check_join(&list(10, 1), 11).unwrap_err();
    budget.check_join(&list(10, 1), usize::MAX).unwrap_err();
    // This iterator has an unknown length.
    let unknown = Value::make_iterable(|| (0..3).filter(|_| true));
    budget.check_join(&unknown, 0).unwrap();
    budget.check_join(&unknown, 1).unwrap_err();
}

/// The sizes barely exceed the limit. Without the limit, these templates would end without an
/// error, and the test would fail.
#[test]
fn the_filter_join_and_the_method_join_are_bounded() {
    let between = "a list becomes too long as a text";
    refused("{{ range(1000)|join('a' * 100000)|length }}", between);
    refused("{{ ('b' * 1000)|join('a' * 100000)|length }}", between);
    refused("{{ ('a' * 100000).join('b' * 1000)|length }}", between);
    let texts = "a value becomes too large";
    refused("{% set x = 'a' * 40000000 %}{{ [x, x]|join|length }}", texts);
    refused("{% set x = 'a' * 40000000 %}{{ ''.join([x, x])|length }}", texts);
    refused("{{ range(1000)|join(d='a' * 100000)|length }}", between);
    refused(
        "{% set x = 'a' * 1000000 %}{{ range(100)|join([x])|length }}",
        "expected a text, found a sequence",
    );
    // The filter inside the check is not available under its own name.
    refused("{{ range(1000)|__join__('a' * 100000)|length }}", "unknown filter");
    let named = "{{ range(3)|join(d='-') }} {{ [{'a': 1}, {'a': 2}]|join(', ', attribute='a') }} {{ [1, 2]|join }} {{ [1, 2]|join(0) }}";
    assert_eq!(said(named).unwrap(), "0-1-2 1, 2 12 102");
    let small = "{{ range(1000)|join('a' * 1000)|length }} {{ ('a' * 1000).join('b' * 1000)|length }}";
    assert_eq!(said(small).unwrap(), "1001890 1000000");
}

#[test]
fn what_replaces_nothing_counts_at_each_end_and_between_any_two() {
    let budget = Budget { bytes: 100 };
    let with = |bytes: usize| "b".repeat(bytes);
    budget.check_replace("aaa", "", &with(25)).unwrap();
    budget.check_replace("aaa", "", &with(26)).unwrap_err();
    budget.check_replace("", "", &with(100)).unwrap();
    budget.check_replace("", "", &with(101)).unwrap_err();
    budget.check_replace("abab", "ab", &with(50)).unwrap();
    budget.check_replace("abab", "ab", &with(51)).unwrap_err();
    budget.check_replace("abab", "c", &with(1000)).unwrap();
}

#[test]
fn only_a_text_replaces_a_text() {
    for source in [
        "{{ ('a' * 100)|replace('a', [x]) }}",
        "{{ ('a' * 100).replace('a', [x]) }}",
        "{{ [x]|replace('a', 'b') }}",
    ] {
        refused(&format!("{{% set x = 'a' * 1000000 %}}{source}"), "expected a text, found a sequence");
    }
    assert_eq!(said("{{ 'a1'|replace(1, 2) }} {{ 'a1'.replace('1', '2') }}").unwrap(), "a2 a2");
}

#[test]
fn a_list_as_a_text_has_room() {
    refused("{% set x = 'a' * 30000000 %}{{ [x, x, x]|string|length }}", "a value becomes too large");
    assert_eq!(said("{{ [1, 'a']|string }} {{ 1|string }} {{ 'a'|string }}").unwrap(), "[1, 'a'] 1 a");
}

/// The limit for a value is smaller if a tag has more operators, because each operator can create a
/// value of this size.
#[test]
fn operators_share_the_room() {
    let source = |operators: usize| {
        format!("{{% set x = 'a' * 10000000 %}}{{{{ x|length }}}}{{{{ 0{} }}}}", "+1".repeat(operators))
    };
    assert_eq!(said(&source(50)).unwrap(), "1000000050");
    refused(&source(200), "a value becomes too large");
}

#[test]
fn a_value_as_a_text_is_no_longer_than_a_prompt() {
    // The list exceeds the limit only with the last item.
    let half = Value::from("a".repeat(FULL / 2));
    assert!(repr_json::repr(&Value::from(vec![half.clone(), half, Value::from(1)]), false).is_err());
    repr_json::repr(&nested(limits::TEMPLATE_DEPTH + 1), false).unwrap();
    repr_json::repr(&nested(limits::TEMPLATE_DEPTH + 2), false).unwrap_err();
    // In the output, this number of spaces precedes each number.
    let indented = |numbers: usize| {
        let list = vec!["1"; numbers].join(", ");
        format!("{{{{ [{list}]|tojson(indent=30000000)|length }}}}")
    };
    assert_eq!(said(&indented(2)).unwrap(), (60_000_000 + "[\n1,\n1\n]".len()).to_string());
    refused(&indented(9), "too long as a text");
}

#[test]
fn what_is_written_is_no_longer_than_a_prompt() {
    let mut text = Bounded(vec![b'a'; FULL - 2]);
    assert_eq!(text.write(b"bb").unwrap(), 2);
    text.write(b"b").unwrap_err();
    assert_eq!(text.0.len(), FULL);
    refused(
        "{% set x = 'a' * 30000000 %}{% for i in range(3) %}{{ x }}{% endfor %}",
        "longer than a prompt may be",
    );
}
