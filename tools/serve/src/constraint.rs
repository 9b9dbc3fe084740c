//! Reads the schema, the grammar, the expression or the choices that an answer must follow. Clients of OpenAI,
//! llama.cpp, vLLM and SGLang name these fields differently.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::body::shown;
use crate::closed::closed;
use crate::failure::Failure;
use tracewright::Follow;

/// The fields that restrict the text of an answer. A request sets at most one of them.
#[derive(Default, Deserialize, JsonSchema)]
pub struct ConstraintFields {
    /// The format of the answer: `text`, `json_object`, or a `json_schema` that the answer must follow. A
    /// `json_object` can have a `schema`; `grammar` and `regex` are types, too.
    response_format: Option<Value>,
    /// A grammar in llguidance's variant of Lark's notation.
    grammar: Option<String>,
    /// A JSON Schema, as an object or as text.
    json_schema: Option<Value>,
    /// A regular expression that the whole answer matches.
    regex: Option<String>,
    /// SGLang's name for `grammar`.
    ebnf: Option<String>,
    /// vLLM's earlier name for `json_schema`.
    guided_json: Option<Value>,
    /// vLLM's earlier name for `regex`.
    guided_regex: Option<String>,
    /// Texts of which the answer is one.
    guided_choice: Option<Vec<String>>,
    /// vLLM's earlier name for `grammar`.
    guided_grammar: Option<String>,
    /// vLLM's object with one of `json`, `regex`, `choice`, `grammar`, or `json_object`.
    structured_outputs: Option<Value>,
}

/// A restriction of an answer, with the name of the request's field.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerForm {
    pub param: String,
    pub rule: FormKind,
}

#[derive(Clone, Debug, PartialEq)]
pub enum FormKind {
    /// A JSON Schema.
    Schema(Value),
    /// A grammar in llguidance's notation.
    Grammar(String),
}

impl AnswerForm {
    /// Returns the name of the field and the rule that the engine follows.
    pub fn follow(self, opens: bool) -> (String, Follow) {
        match self.rule {
            FormKind::Schema(schema) => {
                (self.param, Follow::JsonSchema(files::exact_json(&closed(&schema, opens))))
            }
            FormKind::Grammar(text) => (self.param, Follow::Grammar(text)),
        }
    }
}

type Found = Result<Option<FormKind>, Failure>;

impl ConstraintFields {
    /// Returns the only constraint of the request; two are an error, because the answer follows one.
    pub fn read(&self) -> Result<Option<AnswerForm>, Failure> {
        let text = |given: &Option<String>| given.clone().filter(|text| !text.is_empty());
        let grammar = |given: &Option<String>| -> Found { Ok(text(given).map(FormKind::Grammar)) };
        let expression = |given: &Option<String>| -> Found { Ok(text(given).map(|text| matching(&text))) };
        let schema = |param: &str, given: &Option<Value>| -> Found {
            given
                .as_ref()
                .filter(|given| !given.is_null())
                .map(|given| of_schema(param, given).map(FormKind::Schema))
                .transpose()
        };
        let choices = self.guided_choice.as_deref().map(choice).transpose()?;
        let all = [
            (
                "response_format",
                of_format("response_format", self.response_format.as_ref(), "json_schema.schema")?,
            ),
            ("grammar", grammar(&self.grammar)?),
            ("json_schema", schema("json_schema", &self.json_schema)?),
            ("regex", expression(&self.regex)?),
            ("ebnf", grammar(&self.ebnf)?),
            ("guided_json", schema("guided_json", &self.guided_json)?),
            ("guided_regex", expression(&self.guided_regex)?),
            ("guided_choice", choices),
            ("guided_grammar", grammar(&self.guided_grammar)?),
            ("structured_outputs", structured(self.structured_outputs.as_ref())?),
        ];
        let set = all
            .into_iter()
            .filter_map(|(param, rule)| Some(AnswerForm { param: param.to_owned(), rule: rule? }));
        only(set)
    }
}

/// Returns the only constraint of several sources.
pub fn only(set: impl IntoIterator<Item = AnswerForm>) -> Result<Option<AnswerForm>, Failure> {
    let mut set = set.into_iter();
    match (set.next(), set.next()) {
        (Some(first), Some(second)) => {
            let expected = format!("no value, because `{}` is set", first.param);
            Err(Failure::field(second.param, "set", expected))
        }
        (first, _) => Ok(first),
    }
}

/// Reads a field whose `type` is `text`, `json_object`, `json_schema`, `grammar` or `regex`. `schema` is the path of
/// OpenAI's schema in it; others put the schema under `schema`.
pub fn of_format(param: &str, format: Option<&Value>, schema: &str) -> Found {
    let Some(format) = format.filter(|format| !format.is_null()) else { return Ok(None) };
    let at =
        |key: &str| format.pointer(&format!("/{}", key.replace('.', "/"))).filter(|found| !found.is_null());
    let text = |key: &str| match at(key) {
        Some(Value::String(text)) => Ok(text.as_str()),
        found => {
            Err(Failure::field(format!("{param}.{key}"), shown(found.unwrap_or(&Value::Null)), "a text"))
        }
    };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => match at("schema") {
            Some(found) => Ok(Some(FormKind::Schema(of_schema(&format!("{param}.schema"), found)?))),
            None => Ok(Some(FormKind::Schema(json!({ "type": "object" })))),
        },
        Some("json_schema") => {
            let found = at(schema).or(at("schema")).unwrap_or(&Value::Null);
            let is_strict = [at("strict"), at("json_schema.strict")].contains(&Some(&json!(true)));
            let found = of_schema(&format!("{param}.{schema}"), found)?;
            Ok(Some(FormKind::Schema(closed(&found, !is_strict))))
        }
        Some("grammar") => Ok(Some(FormKind::Grammar(text("grammar")?.to_owned()))),
        Some("regex") => Ok(Some(matching(text(if at("pattern").is_some() { "pattern" } else { "regex" })?))),
        _ => {
            let found = shown(format.get("type").unwrap_or(&Value::Null));
            let expected = "`text`, `json_object`, `json_schema`, `grammar` or `regex`";
            Err(Failure::field(format!("{param}.type"), found, expected))
        }
    }
}

/// Reads a JSON Schema, which some clients send as text.
fn of_schema(param: &str, given: &Value) -> Result<Value, Failure> {
    let refuse = || Failure::field(param, shown(given), "a JSON Schema");
    match given {
        Value::Object(_) => Ok(given.clone()),
        Value::String(text) => match files::parse_exact::<Value>(text) {
            Ok(schema @ Value::Object(_)) => Ok(schema),
            _ => Err(refuse()),
        },
        _ => Err(refuse()),
    }
}

fn structured(given: Option<&Value>) -> Found {
    const PARAM: &str = "structured_outputs";
    let Some(given) = given.filter(|given| !given.is_null()) else { return Ok(None) };
    let object = given.as_object().ok_or_else(|| Failure::field(PARAM, shown(given), "an object"))?;
    let mut found = Vec::new();
    for (key, value) in object.iter().filter(|(_, value)| !value.is_null() && **value != json!(false)) {
        let param = format!("{PARAM}.{key}");
        let text = || value.as_str().ok_or_else(|| Failure::field(&param, shown(value), "a text"));
        let rule = match key.as_str() {
            "json" => FormKind::Schema(of_schema(&param, value)?),
            "json_object" => FormKind::Schema(json!({ "type": "object" })),
            "regex" => matching(text()?),
            "grammar" => FormKind::Grammar(text()?.to_owned()),
            "choice" => {
                let texts = Vec::<String>::deserialize(value);
                choice(&texts.map_err(|_| Failure::field(&param, shown(value), "a list of texts"))?)?
            }
            // The server never falls back, and writes no whitespace.
            "disable_fallback" | "disable_any_whitespace" => continue,
            _ => return Err(Failure::Unsupported { param }),
        };
        found.push(AnswerForm { param, rule });
    }
    Ok(only(found)?.map(|found| found.rule))
}

fn choice(texts: &[String]) -> Result<FormKind, Failure> {
    if texts.is_empty() {
        return Err(Failure::field("guided_choice", "empty", "at least one text"));
    }
    let quoted: Vec<String> = texts.iter().map(|text| json!(text).to_string()).collect();
    Ok(FormKind::Grammar(format!("start: {}", quoted.join(" | "))))
}

/// Returns a grammar for texts that match an expression as a whole. llguidance has no anchors, and needs none.
fn matching(expression: &str) -> FormKind {
    let mut inner = expression;
    if !expression.contains('|') {
        inner = inner.strip_prefix('^').unwrap_or(inner);
        let slashes = |text: &str| text.len() - text.trim_end_matches('\\').len();
        inner = inner.strip_suffix('$').filter(|rest| slashes(rest).is_multiple_of(2)).unwrap_or(inner);
    }
    let mut escaped = String::new();
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => escaped.extend(['\\'].into_iter().chain(characters.next())),
            '/' => escaped.push_str("\\/"),
            '\n' => escaped.push_str("\\n"),
            other => escaped.push(other),
        }
    }
    FormKind::Grammar(if escaped.is_empty() {
        "start: \"\"".to_owned()
    } else {
        format!("start: /{escaped}/")
    })
}
