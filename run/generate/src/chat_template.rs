//! Finds the chat template of a model in the same files as the library Hugging Face transformers.

use std::path::Path;

use errors::{escaped, shortened};
use files::limits;
use irpa::ModelFiles;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use template::ChatTemplate;

use crate::GenerateError;
use crate::model_file::{found, read_keys};

/// An error message shows at most this number of characters of an invalid value.
const SHOWN: usize = 300;

/// Reads and parses the chat template of a model.
pub fn chat_template(model: impl Into<ModelFiles>) -> Result<ChatTemplate, GenerateError> {
    TemplateSource::read(&model.into())?.template()
}

/// The texts of a model's chat templates, with all that a process needs to render them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TemplateSource {
    /// For messages.
    pub path: String,
    /// By name.
    pub templates: Vec<(String, String)>,
    /// Names such as `bos_token`, and texts.
    pub special_tokens: Map<String, Json>,
}

impl TemplateSource {
    /// Reads `chat_template.jinja`, the key `chat_template` of `tokenizer_config.json`, or a GGUF file's
    /// metadata.
    pub fn read(files: &ModelFiles) -> Result<Self, GenerateError> {
        const FILE: &str = "chat_template.jinja";
        const CONFIG: &str = "tokenizer_config.json";
        const MAP: &str = "special_tokens_map.json";
        let model = files.path();
        let config_path = model.join(CONFIG);
        let wanted = |key: &str| key == "chat_template" || key.ends_with("_token");
        let config = Json::Object(read_keys(files, CONFIG, wanted)?.unwrap_or_default());
        let text = || found(files::read_text(&model.join(FILE), limits::TEMPLATE));
        let (name, templates) = match if files.is_gguf() { None } else { text()? } {
            Some(source) => (FILE, vec![(ChatTemplate::DEFAULT.into(), source)]),
            None => (CONFIG, named_templates(&config_path, config.get("chat_template"))?),
        };
        if templates.is_empty() {
            return Err(GenerateError::NoTemplate { dir: model.to_path_buf() });
        }
        let map = Json::Object(read_keys(files, MAP, |key| key.ends_with("_token"))?.unwrap_or_default());
        let mut special_tokens = declared(&model.join(MAP), &map)?;
        special_tokens.extend(declared(&config_path, &config)?);
        // The metadata of a GGUF file contain the templates and the tokens.
        let path = if files.is_gguf() { model.to_path_buf() } else { model.join(name) };
        Ok(Self { path: path.display().to_string(), templates, special_tokens })
    }

    /// Parses the templates, which are untrusted programs.
    pub fn template(self) -> Result<ChatTemplate, GenerateError> {
        Ok(ChatTemplate::from_file(self.path.into(), self.templates, self.special_tokens)?)
    }
}

/// Names and texts of templates. `chat_template` is a string, or a list of `{"name", "template"}`.
fn named_templates(path: &Path, found: Option<&Json>) -> Result<Vec<(String, String)>, GenerateError> {
    let bad = |found: &Json| {
        let expected = "a text or a list of objects with `name` and `template`";
        let found = escaped(&shortened(found.to_string(), SHOWN));
        GenerateError::Key { path: path.into(), key: "chat_template", found, expected }
    };
    match found {
        None | Some(Json::Null) => Ok(Vec::new()),
        Some(Json::String(source)) => Ok(vec![(ChatTemplate::DEFAULT.into(), source.clone())]),
        Some(Json::Array(list)) => {
            let text = |entry: &Json, key| entry.get(key).and_then(Json::as_str).map(String::from);
            let named = |entry| text(entry, "name").zip(text(entry, "template")).ok_or_else(|| bad(entry));
            list.iter().map(named).collect()
        }
        Some(other) => Err(bad(other)),
    }
}

/// Returns the keys that end with `_token`, such as `eos_token`, with their texts. A value is a string, or an
/// object with the key `content`. An invalid value is an error, because the rendered text would lack the
/// token.
fn declared(path: &Path, config: &Json) -> Result<Map<String, Json>, GenerateError> {
    const KNOWN: [&str; 4] = ["bos_token", "eos_token", "unk_token", "pad_token"];
    let text = |value: &Json| value.as_str().or_else(|| value.get("content")?.as_str()).map(Json::from);
    for key in KNOWN {
        if let Some(found) = config.get(key).filter(|value| !value.is_null() && text(value).is_none()) {
            let expected = "a text, an object with `content`, or null";
            let found = escaped(&shortened(found.to_string(), SHOWN));
            return Err(GenerateError::Key { path: path.into(), key, found, expected });
        }
    }
    let entries = config.as_object().into_iter().flatten();
    let tokens = entries.filter(|(key, _)| key.ends_with("_token"));
    Ok(tokens.filter_map(|(key, value)| Some((key.clone(), text(value)?))).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;
    use template::{Chat, TemplateError};

    use super::*;

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
        Ok(chat_template(dir.path())?.render(&chat)?)
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
            matches!(said(&[config(rag)], None), Err(GenerateError::Template(TemplateError::NoDefault { names })) if names == "rag")
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
        assert!(matches!(empty, Err(TemplateError::Empty)));
    }
}
