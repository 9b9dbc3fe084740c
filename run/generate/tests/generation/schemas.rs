//! The schemas that public generators write, and the keywords, references and numbers in them.

#![allow(clippy::unwrap_used, reason = "the helpers are called by tests only")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;
use tracewright_generate::{
    Constrainer, Constraint, GenerateError, SchemaError, SchemaNote, Tokenizer, stop_tokens,
};

struct Judge {
    tokenizer: Tokenizer,
    constrainer: Constrainer,
    stop: u32,
}

impl Judge {
    fn new() -> Self {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo");
        let tokenizer = Tokenizer::load(&demo).unwrap().unwrap();
        let stop_tokens = stop_tokens(&demo).unwrap();
        let constrainer = Constrainer::new(&tokenizer, &stop_tokens).unwrap();
        Self { tokenizer, constrainer, stop: stop_tokens[0] }
    }

    /// Returns the rest of a text that a constraint does not allow, or `None` if it allows the text.
    fn rest(&self, constraint: &Constraint, text: &str) -> Option<String> {
        let mut tokens = self.tokenizer.encode_plain(text).unwrap();
        tokens.push(self.stop);
        let (count, is_complete) = constraint.allowed_tokens(&tokens).unwrap();
        let is_whole = count == tokens.len() || (count == tokens.len() - 1 && is_complete);
        (!is_whole).then(|| self.tokenizer.decode(&tokens[count..]).unwrap())
    }

    /// Checks which texts follow a schema, as a schema and inside a grammar.
    fn check(&self, schema: &str, yes: &[&str], no: &[&str]) {
        let grammar = format!("start: \"\" %json {schema}");
        for constraint in [self.constrainer.json_schema(schema), self.constrainer.grammar(&grammar)] {
            let constraint = constraint.unwrap_or_else(|error| panic!("{schema}: {error}"));
            for text in yes {
                assert_eq!(self.rest(&constraint, text), None, "{schema}: {text}");
            }
            for text in no {
                assert_ne!(self.rest(&constraint, text), None, "{schema}: {text}");
            }
        }
    }

    fn refused(&self, schema: &str) -> SchemaError {
        match self.constrainer.json_schema(schema) {
            Err(GenerateError::SchemaKeyword(error)) => error,
            other => panic!("{schema}: {other:?}"),
        }
    }
}

#[derive(Deserialize)]
struct Line<'a> {
    from: &'a str,
    #[serde(borrow)]
    schema: &'a RawValue,
    instance: &'a RawValue,
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/schemas.jsonl")
}

/// Returns the reason for a refused schema, without the place in the schema.
fn reason(error: GenerateError) -> String {
    match error {
        GenerateError::SchemaKeyword(SchemaError::Kind { at, found, .. }) => {
            format!("{} is {found}", at.rsplit('/').next().unwrap())
        }
        GenerateError::SchemaKeyword(SchemaError::Unsupported { keyword, .. }) => keyword.into_owned(),
        other => other.to_string(),
    }
}

/// The refused schemas of each generator, by reason. TypeBox has types of JavaScript that no JSON
/// text has, and pydantic, zod and quicktype have no refused schema.
const REFUSED: [(&str, usize); 6] = [
    ("typebox: contains", 35),
    ("typebox: type is `\"Date\"`", 14),
    ("typebox: type is `\"RegExp\"`", 38),
    ("typebox: type is `\"Uint8Array\"`", 16),
    ("typebox: type is `\"bigint\"`", 15),
    ("typebox: minProperties", 9),
];

#[test]
fn schemas_of_generators_are_followed() {
    let lines = std::fs::read_to_string(corpus()).unwrap();
    let judge = Judge::new();
    let (mut refused, mut count) = (BTreeMap::<String, usize>::new(), 0);
    for line in lines.lines() {
        let Line { from, schema, instance } = serde_json::from_str(line).unwrap();
        count += 1;
        match judge.constrainer.json_schema(schema.get()) {
            Err(error) => *refused.entry(format!("{from}: {}", reason(error))).or_default() += 1,
            // Walking through every instance takes longer than all other checks.
            Ok(constraint) if count % 6 == 0 => {
                let rest = judge.rest(&constraint, instance.get());
                assert_eq!(rest, None, "{}: {}", schema.get(), instance.get());
            }
            Ok(_) => {}
        }
    }
    println!("{refused:?}");
    assert!(count >= 2000, "{count}");
    let expected: BTreeMap<String, usize> =
        REFUSED.into_iter().map(|(reason, count)| (reason.to_owned(), count)).collect();
    assert_eq!(refused, expected);
}

#[test]
fn numbers_of_a_schema_keep_their_texts() {
    let judge = Judge::new();
    for (schema, yes, no) in [
        (r#"{"const":1234567890123456789}"#, &["1234567890123456789"][..], &["1234567890123456768"][..]),
        (r#"{"const":-9223372036854775808}"#, &["-9223372036854775808"], &["-9223372036854775807"]),
        (r#"{"const":123456789012345678901234567890}"#, &["123456789012345678901234567890"], &["1"]),
        (r#"{"const":53.630839129292724}"#, &["53.630839129292724"], &["53.63083912929272"]),
        (r#"{"const":1e-7}"#, &["1e-07"], &["0.0000001"]),
        (r#"{"const":1.0}"#, &["1.0"], &["1"]),
        (
            r#"{"enum":["a",18446744073709551616,2.0,3]}"#,
            &["\"a\"", "18446744073709551616", "2.0", "3"],
            &["2"],
        ),
        (
            r#"{"type":"integer","enum":[1,9007199254740993]}"#,
            &["1", "9007199254740993"],
            &["9007199254740992"],
        ),
        (
            r#"{"const":{"a":[1.5e300,{"b":9007199254740993}]}}"#,
            &[r#"{"a":[1.5e+300,{"b":9007199254740993}]}"#],
            &[],
        ),
        (
            r#"{"properties":{"a":{"const":9007199254740993}},"required":["a"],"additionalProperties":false}"#,
            &[r#"{"a":9007199254740993}"#],
            &[r#"{"a":9007199254740992}"#],
        ),
        (
            r#"{"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807}"#,
            &["-9223372036854775808", "9223372036854775807", "0", "-5"],
            &["-9223372036854775809", "9223372036854775808"],
        ),
        (
            r#"{"type":"integer","exclusiveMinimum":9007199254740993,"maximum":9007199254740996}"#,
            &["9007199254740994", "9007199254740996"],
            &["9007199254740993", "9007199254740997"],
        ),
        (
            r#"{"type":["number","string"],"minimum":-3.4028234663852886e38,"maximum":3.4028234663852886e38}"#,
            &["1e+20", "-0.5", "\"a\"", "340282346638528860000000000000000000000"],
            &["1e+39", "340282346638528870000000000000000000000"],
        ),
        (r#"{"type":"number","maximum":0.1,"exclusiveMinimum":0}"#, &["0.1", "0.05"], &["0.11", "0"]),
        (r#"{"type":"number","multipleOf":0.29}"#, &["0.58", "-0.29"], &["0.3"]),
    ] {
        judge.check(schema, yes, no);
    }
}

#[test]
fn keywords_of_everyday_generators_are_followed() {
    let judge = Judge::new();
    for (schema, yes, no) in [
        // Annotations.
        (r#"{"type":"string","format":"path"}"#, &["\"/a\""][..], &["1"][..]),
        (r#"{"type":"string","format":"uuid"}"#, &["\"123e4567-e89b-42d3-a456-426614174000\""], &["\"a\""]),
        // References.
        (r##"{"$ref":"#/$defs/Page%3Cint%3E","$defs":{"Page<int>":{"const":1}}}"##, &["1"], &["2"]),
        (r##"{"$ref":"#/$defs/a~1b","$defs":{"a/b":{"const":1}}}"##, &["1"], &["2"]),
        (r##"{"$ref":"#/$defs/a~0b","$defs":{"a~b":{"const":1}}}"##, &["1"], &["2"]),
        (r##"{"$ref":"#here","$defs":{"a":{"$anchor":"here","const":1}}}"##, &["1"], &["2"]),
        (r##"{"$ref":"T","$defs":{"a":{"$id":"T","const":1}}}"##, &["1"], &["2"]),
        (
            r##"{"properties":{"a":{"$id":"T","$ref":"#/$defs/x","$defs":{"x":{"const":1}}}},"required":["a"],"additionalProperties":false,"$defs":{"x":{"const":2}}}"##,
            &[r#"{"a":1}"#],
            &[r#"{"a":2}"#],
        ),
        (
            r##"{"type":"object","properties":{"n":{"$ref":"#"}},"additionalProperties":false}"##,
            &[r#"{"n":{"n":{}}}"#],
            &[r#"{"n":1}"#],
        ),
        // Names of properties.
        (
            r#"{"type":"object","propertyNames":{"type":"string"},"additionalProperties":{"const":1}}"#,
            &[r#"{"a":1}"#],
            &[r#"{"a":2}"#],
        ),
        (
            r#"{"type":"object","propertyNames":{"pattern":"^[a-z]{2}$"},"additionalProperties":{"const":1}}"#,
            &[r#"{"en":1}"#, "{}"],
            &[r#"{"eng":1}"#, r#"{"en":2}"#],
        ),
        (
            r#"{"type":"object","propertyNames":{"enum":["x","y"]},"additionalProperties":{"const":1},"required":["y"]}"#,
            &[r#"{"x":1,"y":1}"#, r#"{"y":1}"#],
            &[r#"{"z":1}"#, r#"{"x":1}"#],
        ),
        (r#"{"type":"object","propertyNames":{"minLength":2}}"#, &[r#"{"ab":1}"#], &[r#"{"a":1}"#]),
        // Sets.
        (
            r#"{"type":"array","items":{"enum":["a","b",1]},"uniqueItems":true,"minItems":1}"#,
            &[r#"["b","a",1]"#, r#"["a"]"#],
            &["[]", r#"["a","a"]"#, r#"["a",1,"a"]"#, "[2]"],
        ),
        (
            r##"{"type":"array","items":{"$ref":"#/$defs/c"},"uniqueItems":true,"$defs":{"c":{"type":"boolean"}}}"##,
            &["[true,false]", "[]"],
            &["[true,true]"],
        ),
        (
            r#"{"type":"array","items":{"type":"string"},"uniqueItems":true,"maxItems":2}"#,
            &[r#"["a","b"]"#],
            &["[1]"],
        ),
        // Alternatives that overlap.
        (r#"{"oneOf":[{"type":"integer"},{"type":"number"}]}"#, &["1.5"], &["\"a\""]),
        (
            r#"{"oneOf":[{"type":"string","maxLength":2},{"type":"string","minLength":1}]}"#,
            &["\"abcd\""],
            &["1"],
        ),
        // Patterns.
        (
            r#"{"type":"string","pattern":"^(?=.*\\d)[a-z\\d]{4,8}$","maxLength":5}"#,
            &["\"abc1\""],
            &["\"abcd\"", "\"abcde1\""],
        ),
        (r#"{"type":["string","null"],"pattern":"^$|^[0-9]{2}$"}"#, &["null", "\"\"", "\"12\""], &["\"1\""]),
        // Negations, conditions, and objects that are combined.
        (r#"{"not":{"type":"string"}}"#, &["1", "[]"], &["\"a\""]),
        (r#"{"anyOf":[{"not":{}},{"const":1}]}"#, &["1"], &["2"]),
        (
            r#"{"type":"object","properties":{"a":{"const":1},"b":{"const":2}},"additionalProperties":false,"dependentRequired":{"a":["b"]}}"#,
            &["{}", r#"{"b":2}"#, r#"{"a":1,"b":2}"#],
            &[r#"{"a":1}"#],
        ),
        (
            r#"{"allOf":[{"properties":{"a":{"const":1}}},{"properties":{"b":{"const":2}}}],"type":"object","unevaluatedProperties":false}"#,
            &[r#"{"a":1,"b":2}"#],
            &[r#"{"c":1}"#],
        ),
        // Older drafts.
        (r#"{"type":"integer","minimum":3,"exclusiveMinimum":true}"#, &["4"], &["3"]),
        (
            r#"{"type":"array","items":[{"const":1}],"additionalItems":false,"minItems":1.0}"#,
            &["[1]"],
            &["[]", "[1,1]"],
        ),
        // Wrappers.
        (
            r#"{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"const":1}}}"#,
            &["1"],
            &["2"],
        ),
        (r#"{"name":"n","strict":true,"schema":{"const":1}}"#, &["1"], &["2"]),
        (r#"{"type":"function","function":{"name":"n","parameters":{"const":1}}}"#, &["1"], &["2"]),
        (
            r#"{"type":"object","properties":{"schema":{"const":1}},"additionalProperties":false}"#,
            &[r#"{"schema":1}"#],
            &["1"],
        ),
    ] {
        judge.check(schema, yes, no);
    }
}

#[test]
fn a_refusal_names_the_keyword_and_a_way_out() {
    let judge = Judge::new();
    for (schema, words) in [
        (r#"{"type":"array","contains":{"const":1}}"#, &["`contains`", "`/contains`", "prefixItems"][..]),
        (r#"{"if":{"const":1},"then":{"const":2}}"#, &["`if`", "anyOf"]),
        (r#"{"properties":{"a/b":{"not":{"const":1}}}}"#, &["`/properties/a~1b/not`", "enum"]),
        (r##"{"$ref":"#/$defs/x"}"##, &["`#/$defs/x`", "`/$ref`", "copy the schema"]),
        (r#"{"$ref":"https://example.com/schema"}"#, &["`https://example.com/schema`", "`$defs`"]),
        (r#"{"type":"strin"}"#, &["`/type`", "`\"strin\"`", "`integer`"]),
        (r#"{"type":"string","pattern":"(?<=a)b"}"#, &["look-behind", "`/pattern`"]),
        (r#"{"enum":[]}"#, &["`/enum`"]),
        (
            r#"{"type":"integer","minimum":9007199254740993,"maximum":9007199254740992}"#,
            &["a range with at least one number"],
        ),
        (r#"{"const":1e999}"#, &["`1e999`"]),
        (
            r##"{"propertyNames":{"$ref":"#/$defs/a"},"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}"##,
            &["`propertyNames`"],
        ),
        (r#"{"minLength":-1}"#, &["`/minLength`", "`-1`", "a whole number"]),
        (
            r#"{"type":"object","properties":{"a":{},"b":{}},"minProperties":1}"#,
            &["`minProperties`", "`required`"],
        ),
    ] {
        let said = judge.refused(schema).to_string();
        assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
        let grammar = judge.constrainer.grammar(&format!("start: \"a\"\n  | %json {schema}"));
        assert!(
            matches!(&grammar, Err(GenerateError::Grammar { at: Some((2, 10)), why }) if *why == said),
            "{grammar:?}"
        );
    }
    let wide: Vec<String> = (0..3000).map(|index| format!("\"p{index}\":{{}}")).collect();
    let wide = judge.refused(&format!("{{\"properties\":{{{}}}}}", wide.join(","))).to_string();
    assert!(wide.contains("`/properties` has 3000 optional properties, expected at most 490"), "{wide}");
    let deep = "[".repeat(120) + &"]".repeat(120);
    assert!(matches!(judge.refused(&format!("{{\"const\":{deep}}}")), SchemaError::Depth { found: 121 }));
}

#[test]
fn a_keyword_that_is_not_enforced_is_noted() {
    let judge = Judge::new();
    let at = |at: &str| at.to_owned();
    for (schema, expected) in [
        (
            r#"{"items":{"type":"string"},"uniqueItems":true}"#,
            vec![SchemaNote::UniqueItems { at: at("/uniqueItems") }],
        ),
        (r#"{"items":{"type":"boolean"},"uniqueItems":true}"#, vec![]),
        (r#"{"items":{"type":"string"},"uniqueItems":true,"maxItems":1}"#, vec![]),
        (r#"{"oneOf":[{"type":"string"},{"type":"integer"}]}"#, vec![]),
        (r#"{"oneOf":[{"type":"number"},{"type":"integer"}]}"#, vec![SchemaNote::OneOf { at: at("/oneOf") }]),
        (
            r##"{"oneOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}],"$defs":{"a":{"type":"object","properties":{"k":{"const":"a"}},"required":["k"]},"b":{"type":"object","properties":{"k":{"const":"b"}},"required":["k"]}}}"##,
            vec![],
        ),
        (r#"{"oneOf":[{"enum":[1,2]},{"const":2.0}]}"#, vec![SchemaNote::OneOf { at: at("/oneOf") }]),
        (r#"{"properites":{}}"#, vec![SchemaNote::Anything]),
        ("{}", vec![]),
    ] {
        let grammar = format!("start: %json {schema} \"x\" %json {{\"type\":\"null\"}}");
        for constraint in [judge.constrainer.json_schema(schema), judge.constrainer.grammar(&grammar)] {
            assert_eq!(constraint.unwrap().notes(), expected, "{schema}");
        }
    }
}
