//! Chat templates, rendered as transformers' `apply_chat_template` renders them.
//!
//! The environment is that of `utils/chat_template_utils.py`: Jinja with `trim_blocks`, `lstrip_blocks` and loop
//! controls, `raise_exception`, `strftime_now`, a `tojson` that is `json.dumps`, and `{% generation %}` blocks.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use files::limits;
use irpa::Gguf;
use jiff::Zoned;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Template, Value};
use serde_json::{Map, Value as Json};

use crate::GenerateError;
use crate::model_file::{read_json, read_keys, read_text};

mod arguments;
#[cfg(test)]
mod bounds;
mod engine;
mod generator;
mod globals;
mod jinja;
mod markup;
mod python;
mod rewrite;
mod room;
mod source;
mod text;
mod values;

use room::Room;
use source::{DEFAULT, Source};

/// Names under which a message's reasoning is passed; the first is the standard one.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A conversation, and what else a template may see.
#[derive(Debug, Clone, Default)]
pub struct Chat {
    /// Objects with `role` and `content`.
    pub messages: Vec<Json>,
    /// JSON schemas of the functions that the model may call.
    pub tools: Option<Vec<Json>>,
    /// Whether the text ends with the header of the model's answer.
    pub add_generation_prompt: bool,
    /// Further variables of the template.
    pub variables: Map<String, Json>,
    /// What `strftime_now` formats; the time of rendering where absent.
    pub now: Option<Zoned>,
}

/// A model's chat template with its special tokens.
///
/// A template is a program that came with the model. What doubles, recurses, repeats or does not end is stopped by limits:
/// on steps, on operators in a tag, on texts and lists wherever they get a name, on what is written. They end all
/// that is known to take more, but are no proof: the engine has no limit on memory of its own, so that a list that contains
/// itself and is compared or joined with `~`, or one filter on a long list (`sort`, `list`), may still take more of the
/// stack, of time or of memory. Whoever renders templates of strangers does it in a process of its own, under limits of the system, as
/// `tracewright prompt` does.
///
/// ```
/// use serde_json::{Map, json};
/// use tracewright_generate::{Chat, ChatTemplate, GenerateError};
///
/// let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
/// let template = ChatTemplate::from_source(template, Map::new())?;
/// let chat = Chat { messages: vec![json!({ "role": "user", "content": "Hello" })], ..Chat::default() };
/// assert_eq!(template.render(&chat)?, "<user>Hello");
/// # Ok::<(), GenerateError>(())
/// ```
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    sources: Vec<Source>,
    special_tokens: Map<String, Json>,
}

impl ChatTemplate {
    /// Reads the template of a model's folder: `chat_template.jinja`, or else `chat_template` in
    /// `tokenizer_config.json`; or that of a GGUF file. Of several, `tool_use` serves conversations with tools and `default` all others.
    pub fn load(dir: &Path) -> Result<Self, GenerateError> {
        const CONFIG: &str = "tokenizer_config.json";
        let config_path = dir.join(CONFIG);
        let wanted = |key: &str| key == "chat_template" || key.ends_with("_token");
        let config = Json::Object(read_keys(dir, CONFIG, wanted)?.unwrap_or_default());
        // A GGUF file has both, and is the file.
        let file = |name: &str| if Gguf::is_at(dir) { dir.to_path_buf() } else { dir.join(name) };
        const FILE: &str = "chat_template.jinja";
        let (file, templates) = match read_text(dir, FILE, limits::TEMPLATE)? {
            Some(source) => (file(FILE), vec![(DEFAULT.to_string(), source)]),
            None => (file(CONFIG), named_templates(&config_path, config.get("chat_template"))?),
        };
        if templates.is_empty() {
            return Err(GenerateError::NoTemplate { dir: dir.to_path_buf() });
        }
        const MAP: &str = "special_tokens_map.json";
        let map = read_json(dir, MAP)?.unwrap_or_default();
        let mut special_tokens = special_tokens(&dir.join(MAP), &map)?;
        special_tokens.extend(self::special_tokens(&config_path, &config)?);
        Self::new(Some(file), templates, special_tokens)
    }

    /// One template, given as text; `special_tokens` maps names such as `bos_token` to texts.
    pub fn from_source(source: &str, special_tokens: Map<String, Json>) -> Result<Self, GenerateError> {
        Self::new(None, vec![(DEFAULT.to_string(), source.to_string())], special_tokens)
    }

    fn new(
        file: Option<PathBuf>,
        templates: Vec<(String, String)>,
        special_tokens: Map<String, Json>,
    ) -> Result<Self, GenerateError> {
        let mut sources = Vec::new();
        let mut rewritten = Vec::new();
        let mut between = 0;
        for (name, text) in templates {
            let (source, translated) = Source::read(file.clone(), name, &text)?;
            between = between.max(translated.between);
            rewritten.push(translated.text);
            sources.push(source);
        }
        // One tag joins a text with itself as often as it has operators.
        let tags = sources.iter().flat_map(|source| &source.tags);
        let operators = 1 + tags.map(|tag| tag.operators).max().unwrap_or(0) as u64;
        let room = Room { bytes: (limits::TEMPLATE_MEMORY / operators).min(limits::PROMPT) as usize };
        // Each step may write what stands between two tags.
        let steps = (limits::TEMPLATE_MEMORY / (1 + between as u64)).min(limits::TEMPLATE_STEPS as u64);
        let mut environment = engine::environment(room, steps).map_err(|error| {
            GenerateError::TemplateSyntax { at: Box::default(), why: source::why(&error) }
        })?;
        environment.add_function("raise_exception", raise_exception);
        for (source, rewritten) in sources.iter().zip(rewritten) {
            let added = environment.add_template_owned(source.name.clone(), rewritten);
            added.map_err(|error| source.syntax_error(&error))?;
        }
        Ok(ChatTemplate { environment, sources, special_tokens })
    }

    /// The template for a conversation: it depends on whether there are tools.
    fn chosen(&self, chat: &Chat) -> Result<Template<'_, '_>, GenerateError> {
        let template = match self.environment.get_template("tool_use") {
            Ok(template) if chat.tools.is_some() => Ok(template),
            _ => self.environment.get_template(DEFAULT),
        };
        let names = || self.sources.iter().map(|source| &*source.name).collect::<Vec<_>>().join(", ");
        template.map_err(|_| GenerateError::NoDefaultTemplate { names: source::words(&names()) })
    }

    /// What a conversation gives and the template for it does not read: `tools`, or names of variables.
    ///
    /// # Errors
    /// If the model has no template for the conversation.
    pub fn unread<'a>(&self, chat: &'a Chat) -> Result<Vec<&'a str>, GenerateError> {
        let template = self.chosen(chat)?;
        let source = self.sources.iter().find(|source| source.name == template.name());
        let tools = chat.tools.iter().map(|_| "tools");
        let given = tools.chain(chat.variables.keys().map(String::as_str));
        Ok(given.filter(|name| source.is_some_and(|source| !source.reads(name))).collect())
    }

    /// Variables that the template for a conversation reads, without functions and special tokens, in alphabetical order.
    ///
    /// # Errors
    /// If the model has no template for the conversation.
    pub fn variables(&self, chat: &Chat) -> Result<Vec<String>, GenerateError> {
        let functions: Vec<_> = self.environment.globals().map(|(name, _)| name.to_owned()).collect();
        let known = |name: &String| {
            functions.contains(name)
                || ["caller", "strftime_now"].contains(&&**name)
                || name.ends_with("_token")
        };
        let mut names: Vec<_> = self.chosen(chat)?.undeclared_variables(false).into_iter().collect();
        names.retain(|name| !known(name));
        names.sort_unstable();
        Ok(names)
    }

    /// The text of a conversation. It spells its special tokens: encode it with `encode_plain`.
    pub fn render(&self, chat: &Chat) -> Result<String, GenerateError> {
        let template = self.chosen(chat)?;
        if chat.messages.is_empty() {
            return Err(GenerateError::EmptyChat);
        }
        let messages = chat.messages.iter().enumerate().map(|(i, message)| prepared(i, message));
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        let now = chat.now.clone();
        let strftime_now = move |format: &str| strftime(now.clone().unwrap_or_else(Zoned::now), format);
        // A variable of the conversation hides a special token of the same name, and nothing else.
        let tokens_and_variables = self.special_tokens.iter().chain(&chat.variables);
        let mut seen = BTreeMap::from([("documents", Value::from(()))]);
        seen.extend(tokens_and_variables.map(|(name, value)| (name.as_str(), Value::from(Serde(value)))));
        seen.extend([
            ("messages", Value::from(Serde(&messages))),
            ("tools", Value::from(Serde(&chat.tools))),
            ("add_generation_prompt", Value::from(chat.add_generation_prompt)),
            ("strftime_now", Value::from_function(strftime_now)),
        ]);
        let mut text = Bounded(Vec::new());
        let rendered = template.render_captured_to(Value::from_pairs(seen), &mut text).map(drop);
        let text = rendered.and_then(|()| {
            let text = String::from_utf8(text.0);
            text.map_err(|_| minijinja::Error::new(ErrorKind::InvalidOperation, "the text is no UTF-8"))
        });
        text.map_err(|error| {
            if let Some(Raised(message)) = raised(&error) {
                return GenerateError::TemplateRaised { message: source::words(message) };
            }
            let named = error.name().unwrap_or(template.name());
            let source = self.sources.iter().find(|source| source.name == named);
            let at = source.map(|source| source.place(&error)).unwrap_or_default();
            GenerateError::TemplateRender { at: at.into(), why: source::why(&error) }
        })
    }
}

/// A text of at most as many bytes as a prompt may have.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match (self.0.len() + bytes.len()) as u64 > limits::PROMPT {
            true => {
                Err(io::Error::new(io::ErrorKind::FileTooLarge, "the text is longer than a prompt may be"))
            }
            false => self.0.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The templates of a `tokenizer_config.json`: a text, or a list of `{"name", "template"}`.
fn named_templates(path: &Path, found: Option<&Json>) -> Result<Vec<(String, String)>, GenerateError> {
    let bad = |found: &Json| {
        let expected = "a text or a list of objects with `name` and `template`";
        GenerateError::Key {
            path: path.to_path_buf(),
            key: "chat_template",
            found: source::words(&found.to_string()),
            expected,
        }
    };
    match found {
        None | Some(Json::Null) => Ok(Vec::new()),
        Some(Json::String(source)) => Ok(vec![(DEFAULT.to_string(), source.clone())]),
        Some(Json::Array(list)) => {
            let text = |entry: &Json, key| entry.get(key).and_then(Json::as_str).map(String::from);
            let named = |entry| text(entry, "name").zip(text(entry, "template")).ok_or_else(|| bad(entry));
            list.iter().map(named).collect()
        }
        Some(other) => Err(bad(other)),
    }
}

/// The keys `*_token` of a configuration; a token is its text or an object with `content`.
///
/// # Errors
/// If one that every tokenizer has is neither, nor null: a text would lose it.
fn special_tokens(path: &Path, config: &Json) -> Result<Map<String, Json>, GenerateError> {
    const KNOWN: [&str; 4] = ["bos_token", "eos_token", "unk_token", "pad_token"];
    let text = |value: &Json| value.as_str().or_else(|| value.get("content")?.as_str()).map(Json::from);
    for key in KNOWN {
        if let Some(found) = config.get(key).filter(|value| !value.is_null() && text(value).is_none()) {
            let expected = "a text, an object with `content`, or null";
            return Err(GenerateError::Key { path: path.into(), key, found: found.to_string(), expected });
        }
    }
    let entries = config.as_object().into_iter().flatten();
    let tokens = entries.filter(|(key, _)| key.ends_with("_token"));
    Ok(tokens.filter_map(|(key, value)| Some((key.clone(), text(value)?))).collect())
}

/// A message as templates see it: without keys that are null, and its reasoning under every name in use.
fn prepared(index: usize, message: &Json) -> Result<Map<String, Json>, GenerateError> {
    let Json::Object(message) = message else {
        return Err(GenerateError::Message { index, found: source::words(&message.to_string()) });
    };
    let kept = message.iter().filter(|(_, value)| !value.is_null());
    let kept: Map<_, _> = kept.map(|(key, value)| (key.clone(), value.clone())).collect();
    let Some(reasoning) = REASONING.iter().find_map(|name| kept.get(*name)).cloned() else { return Ok(kept) };
    let mut out = Map::from_iter([("thinking".to_string(), reasoning.clone())]);
    out.extend(kept);
    out.insert("reasoning_content".to_string(), reasoning);
    Ok(out)
}

/// What a template said with `raise_exception`, carried through the engine.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: Value) -> Result<Value, minijinja::Error> {
    let message = message.to_string();
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn raised(error: &minijinja::Error) -> Option<&Raised> {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(raised) = error.downcast_ref() {
            return Some(raised);
        }
        source = error.source();
    }
    None
}

/// `datetime.now().strftime(format)`: a time without a zone, in words of the locale `C`.
fn strftime(now: Zoned, format: &str) -> Result<String, minijinja::Error> {
    /// Those that jiff writes as C does.
    const SAME: &str = "aAbBCdDeFgGhHIjklmMnpPRStTuUVwWyY%";
    let cannot = |why: String| {
        let what = format!("`strftime_now` cannot format `{format}`: {why}");
        minijinja::Error::new(ErrorKind::InvalidOperation, what)
    };
    let mut text = String::new();
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        let settings = after.find(|c| !"-_0^#".contains(c)).unwrap_or(after.len());
        let (settings, conversion) = after.split_at(settings);
        let mut conversion = conversion.chars();
        text.push_str(before);
        match conversion.next() {
            Some('c') => text.push_str("%a %b %e %H:%M:%S %Y"),
            Some('f') => text.push_str("%6f"),
            Some('r') => text.push_str("%I:%M:%S %p"),
            Some('x') => text.push_str("%m/%d/%y"),
            Some('X') => text.push_str("%H:%M:%S"),
            Some('z' | 'Z') => {}
            Some(same) if SAME.contains(same) => text.extend(["%", settings, same.encode_utf8(&mut [0; 4])]),
            Some(other) => return Err(cannot(format!("`%{settings}{other}` is not known"))),
            None => return Err(cannot("it ends in a conversion".to_owned())),
        }
        rest = conversion.as_str();
    }
    text.push_str(rest);
    jiff::fmt::strtime::format(&text, &now).map_err(|source| cannot(source.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs;

    fn render(source: &str, variables: Json) -> Result<String, GenerateError> {
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

    /// The engine, 3.0.5, divides by the number of them.
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
    fn keys_in_a_format_are_ascii() {
        check("{{ 'é %(a)s %%(é)' % {'a': 'ü'} }}", json!({}), "é ü %(é)");
        for source in ["{{ 'wor%(999\u{1d3}' % 1 }}", "{{ '%(\u{e9})s'|format({'\u{e9}': 1}) }}"] {
            let error = render(source, json!({})).unwrap_err();
            assert!(errors::WithCauses(&error).to_string().contains("is not ASCII"), "{error:?}");
        }
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
        check(
            "{{ x|tojson(ensure_ascii=true) }}",
            json!({"x": "é👍\u{7f}"}),
            "\"\\u00e9\\ud83d\\udc4d\u{7f}\"",
        );
        check("{{ x|tojson(sort_keys=true) }}", json!({"x": {"b": 1, "a": 2}}), r#"{"a": 2, "b": 1}"#);
        check("{{ x|tojson }}", json!({"x": "a\"\\\n\u{1}\u{8}/"}), r#""a\"\\\n\u0001\b/""#);
        check(
            "{{ x|tojson }}",
            json!({"x": [1e16, 1.5e-7, 0.1, -0.0, 123456789.0]}),
            "[1e+16, 1.5e-07, 0.1, -0.0, 123456789.0]",
        );
        assert!(matches!(
            render("{{ missing|tojson }}", json!({})),
            Err(GenerateError::TemplateRender { .. })
        ));
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
        assert!(
            matches!(&error, GenerateError::TemplateRaised { message } if message == "no <system> role"),
            "{error}"
        );
        let in_macro = "{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{{ m() }}";
        assert!(
            matches!(render(in_macro, json!({})), Err(GenerateError::TemplateRaised { message }) if message == "deep")
        );
        assert!(matches!(render("{% if %}", json!({})), Err(GenerateError::TemplateSyntax { .. })));
    }

    #[track_caller]
    fn said_of(source: &str, expected: &str) {
        let error = render(source, json!({})).unwrap_err();
        let shown = errors::WithCauses(&error).to_string();
        assert_eq!(shown, expected);
        // The engine was given other words, which nobody wrote.
        assert!(!shown.contains("__"), "{shown}");
    }

    #[test]
    fn an_error_shows_the_tag_as_it_was_written() {
        let failed = "the chat template failed at line";
        said_of(
            "a\n\n{% set x = 'b'.nope() %}",
            &format!(
                "{failed} 3, `{{% set x = 'b'.nope() %}}`: unknown method: string has no method named nope"
            ),
        );
        said_of(
            "{{ f(1 ~ 2) }}{% set x = y.items.z %}\n{{ [1][::0] }}",
            &format!("{failed} 1, `{{{{ f(1 ~ 2) }}}}`: unknown function: f is unknown"),
        );
        said_of(
            "{% set x = [1] %}\r\n{{ x[::0] }}",
            &format!("{failed} 2, `{{{{ x[::0] }}}}`: slice step cannot be zero"),
        );
        // In lines that the engine did not see, since they are within a tag that became others.
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
            &format!(
                "{syntax} 2, `{{{{ 0{}…`: a tag has 2002 operators, at most 1000 are read",
                "+1".repeat(38)
            ),
        );
        said_of(
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "the chat template failed at line 1: it takes too many steps",
        );
    }

    /// However long the template is that somebody else wrote, and whatever a terminal would do with it.
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
            assert!(
                shown.chars().count() < 500 && !shown.contains(char::is_control),
                "{source:.99}: {shown}"
            );
        }
    }

    #[test]
    fn an_error_names_the_file_that_the_template_is_in() {
        const CONFIG: &str = "tokenizer_config.json";
        let failed =
            |files: &[(&str, Json)], tools| errors::WithCauses(&said(files, tools).unwrap_err()).to_string();
        let file = ("chat_template.jinja", json!("a\n{{ 1|nope }}"));
        let config = (CONFIG, json!({"chat_template": "{{ 1|nope }}"}));
        let shown = failed(&[file, config.clone()], None);
        assert!(
            shown.contains("chat_template.jinja` failed at line 2, `{{ 1|nope }}`: unknown filter"),
            "{shown}"
        );
        let shown = failed(&[config], None);
        assert!(
            shown.contains("tokenizer_config.json` failed at line 1, `{{ 1|nope }}`: unknown filter"),
            "{shown}"
        );
        let list = |of: &str| json!({"chat_template": [{"name": "default", "template": ""}, {"name": "tool_use", "template": of}]});
        let shown = failed(&[(CONFIG, list("{{ 1|nope }}"))], Some(vec![]));
        assert!(
            shown.starts_with("the chat template `tool_use` in `") && shown.contains("` failed at line 1"),
            "{shown}"
        );
        let shown = failed(&[(CONFIG, list("{{ 1 2 }}"))], None);
        assert!(
            shown.contains("tokenizer_config.json` is not valid Jinja at line 1, `{{ 1 2 }}`: syntax error"),
            "{shown}"
        );
        let long = "a".repeat(100_000);
        for value in [
            json!([{"name": long, "template": "{{"}]),
            json!([{"name": long, "template": ""}]),
            json!([long]),
        ] {
            let shown = failed(&[(CONFIG, json!({"chat_template": value}))], None);
            assert!(shown.len() < 600, "{shown:.1000}");
        }
    }

    #[test]
    fn an_endless_template_ends() {
        let source = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}";
        assert!(matches!(render(source, json!({})), Err(GenerateError::TemplateRender { .. })));
    }

    /// Templates that take all there is, in as much stack as any thread has, and as soon as a user would wait.
    #[cfg(unix)]
    #[test]
    fn a_template_that_repeats_nests_or_squares_ends() {
        use rustix::time::{ClockId, clock_gettime};
        use std::time::Duration;

        // Of this thread alone, however many others compute.
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
            // What doubles.
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
            format!(
                "{{% set x = 'aaaaaaaa' %}}{}",
                nested("{% with x = x ~ x %}", "{% endwith %}", "{{ x }}")
            ),
            // What contains itself.
            "{% set n = namespace() %}{% set n.x = n %}{{ n }}".to_owned(),
            "{% set n = namespace() %}{% set n.x = [n] %}{{ n.x|tojson }}".to_owned(),
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
            // What does not end, and writes.
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}".to_owned(),
            format!(
                "{{% for i in range(99999) %}}{{% for j in range(99999) %}}{long}{{% endfor %}}{{% endfor %}}"
            ),
            format!("{{% set x %}}{{% for i in range(99999) %}}{long}{{% endfor %}}{{% endset %}}"),
            // What nests.
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
            let refused = matches!(
                ended,
                Err(GenerateError::TemplateRender { .. } | GenerateError::TemplateSyntax { .. })
            );
            assert!(refused, "{source:.200}: {:.100?}", ended);
            let took = processor_time() - start;
            assert!(took < Duration::from_secs(2), "{source:.200}: {took:?}");
        }
    }

    /// A thousand long messages are no attack.
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
        let dir = folder(&[(
            "tokenizer_config.json",
            json!({"chat_template": [{"name": "default", "template": ""}, {"name": "tool_use", "template": "{{ tools }}"}]}),
        )]);
        let several = ChatTemplate::load(dir.path()).unwrap();
        let with_tools = Chat { tools: Some(vec![]), ..Chat::default() };
        assert_eq!(several.unread(&with_tools).unwrap(), [""; 0]);
        let one = ChatTemplate::from_source("{{ namespace(a=b).a ~ bos_token ~ c.d }}", Map::new()).unwrap();
        assert_eq!(one.unread(&with_tools).unwrap(), ["tools"]);
        assert_eq!(one.variables(&with_tools).unwrap(), ["b", "c"]);
    }

    #[test]
    fn the_time_can_be_given() {
        let now: Zoned = "2024-07-04T09:05:00+00:00[UTC]".parse().unwrap();
        let template =
            ChatTemplate::from_source("{{ strftime_now('%d %b %Y %-H:%M') }}", Map::new()).unwrap();
        let chat = Chat { messages: vec![json!({"role": "user"})], now: Some(now), ..Chat::default() };
        assert_eq!(template.render(&chat).unwrap(), "04 Jul 2024 9:05");
    }

    #[test]
    fn messages_lose_nulls_and_share_their_reasoning() {
        let message = json!({"role": "assistant", "content": null, "reasoning": "why"});
        let prepared = prepared(0, &message).unwrap();
        let expected =
            json!({"thinking": "why", "role": "assistant", "reasoning": "why", "reasoning_content": "why"});
        assert_eq!(Json::Object(prepared), expected);
        assert!(matches!(self::prepared(3, &json!("hi")), Err(GenerateError::Message { index: 3, .. })));
    }

    fn folder(files: &[(&str, Json)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let text = content.as_str().map_or_else(|| content.to_string(), String::from);
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    fn said(files: &[(&str, Json)], tools: Option<Vec<Json>>) -> Result<String, GenerateError> {
        let dir = folder(files);
        let chat = Chat { messages: vec![json!({"role": "user"})], tools, ..Chat::default() };
        ChatTemplate::load(dir.path())?.render(&chat)
    }

    #[test]
    fn templates_are_found_where_transformers_finds_them() {
        const CONFIG: &str = "tokenizer_config.json";
        let config =
            |template: Json| (CONFIG, json!({"chat_template": template, "bos_token": {"content": "<s>"}}));
        assert_eq!(said(&[config(json!("{{ bos_token }}one"))], None).unwrap(), "<s>one");
        let file = ("chat_template.jinja", json!("file{{ eos_token }}"));
        let map = ("special_tokens_map.json", json!({"eos_token": "</s>", "bos_token": "x"}));
        assert_eq!(said(&[config(json!("one")), file, map], None).unwrap(), "file</s>");

        let list =
            json!([{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]);
        assert_eq!(said(&[config(list.clone())], None).unwrap(), "plain");
        assert_eq!(said(&[config(list)], Some(vec![])).unwrap(), "tools");
        let rag = json!([{"name": "rag", "template": "x"}]);
        assert!(
            matches!(said(&[config(rag)], None), Err(GenerateError::NoDefaultTemplate { names }) if names == "rag")
        );
        assert!(matches!(
            said(&[config(json!(3))], None),
            Err(GenerateError::Key { key: "chat_template", .. })
        ));
        for bad in [json!(5), json!(false), json!({"text": "<s>"})] {
            let files = [
                ("special_tokens_map.json", json!({"bos_token": bad})),
                (CONFIG, json!({"chat_template": "x"})),
            ];
            assert!(matches!(said(&files, None), Err(GenerateError::Key { key: "bos_token", .. })), "{bad}");
        }
        let null = json!({"chat_template": "{{ eos_token }}x", "bos_token": null, "add_bos_token": true});
        assert_eq!(said(&[(CONFIG, null)], None).unwrap(), "x");
        assert!(matches!(said(&[], None), Err(GenerateError::NoTemplate { .. })));
        let empty = ChatTemplate::from_source("x", Map::new()).unwrap().render(&Chat::default());
        assert!(matches!(empty, Err(GenerateError::EmptyChat)));
    }
}
