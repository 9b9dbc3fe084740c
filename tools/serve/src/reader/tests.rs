use proptest::prelude::*;
use serde_json::json;

use super::*;

fn tools() -> Vec<Value> {
    let tool = |name: &str| {
        json!({ "type": "function", "function": { "name": name, "parameters": { "type": "object", "properties": {
            "city": { "type": "string" }, "days": { "type": "integer" } } } } })
    };
    vec![tool("weather"), tool("time")]
}

fn with_tools() -> Reading {
    Reading { tools: tools(), ..Reading::default() }
}

/// The reasoning, the content and the function calls of an answer; each function call has the
/// format `NAME ARGUMENTS`.
type Parts = (String, String, Vec<String>);

fn joined(updates: Vec<Update>) -> Parts {
    let (mut reasoning, mut content, mut calls) = (String::new(), String::new(), Vec::new());
    for update in updates {
        match update {
            Update::Reasoning(text) => reasoning += &text,
            Update::Content(text) => content += &text,
            Update::Call(call) => calls.push(format!("{} {}", call.name, call.arguments)),
            Update::Logprobs(_) | Update::End(_) => {}
        }
    }
    (reasoning, content, calls)
}

fn read(reading: &Reading, pieces: &[&str]) -> Parts {
    let mut reader = AnswerReader::new(reading.clone());
    let mut updates: Vec<Update> = pieces.iter().flat_map(|piece| reader.push(piece)).collect();
    updates.extend(reader.finish(false));
    joined(updates)
}

#[track_caller]
fn check(reading: &Reading, text: &str, reasoning: &str, content: &str, calls: &[&str]) {
    let expected =
        (reasoning.to_owned(), content.to_owned(), calls.iter().map(|&call| call.to_owned()).collect());
    assert_eq!(read(reading, &[text]), expected, "{text}");
    // Divides the text into pieces of one character.
    let characters: Vec<String> = text.chars().map(String::from).collect();
    let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
    assert_eq!(read(reading, &characters), expected, "{text}");
}

const PARIS: &str = r#"weather {"city":"Paris"}"#;
const ROME: &str = r#"weather {"city":"Rome"}"#;

#[test]
fn hermes_qwen_and_smollm() {
    let with = with_tools();
    let paris = r#"<tool_call>
{"name": "weather", "arguments": {"city":"Paris"}}
</tool_call>"#;
    check(&with, paris, "", "", &[PARIS]);
    let rome = paris.replace("Paris", "Rome");
    check(&with, &format!("Let me look.\n\n{paris}\n{rome}"), "", "Let me look.", &[PARIS, ROME]);
    // The closing marker can be missing, because the marker's token can be a stop token.
    check(&with, paris.trim_end_matches("</tool_call>"), "", "", &[PARIS]);
    let list = r#"<tool_call>[{"name":"weather","arguments":{"city":"Paris"}},{"name":"time"}]</tool_call>"#;
    check(&with, list, "", "", &[PARIS, "time {}"]);
    check(&with, &format!("<think>\nHm.\n</think>\n\n{paris}"), "Hm.", "", &[PARIS]);
}

/// Numbers that no Rust type can hold are those that the model wrote.
#[test]
fn numbers_in_arguments_keep_their_texts() {
    let numbers =
        r#"{"days":[123456789012345678901234567890,53.630839129292724,-1e400,18446744073709551616]}"#;
    let expected = format!("weather {numbers}");
    for text in [
        format!("<tool_call>{{\"name\": \"weather\", \"arguments\": {numbers}}}</tool_call>"),
        format!("<function=weather>{numbers}</function>"),
        format!("[TOOL_CALLS]weather[ARGS]{numbers}"),
        format!("[TOOL_CALLS][{{\"name\": \"weather\", \"arguments\": {numbers}}}]"),
        numbers.replace("{\"days\"", "<start_function_call>call:weather{days") + "<end_function_call>",
    ] {
        check(&with_tools(), &text, "", "", &[&expected]);
    }
}

#[test]
fn qwen_coder_writes_tags() {
    let text = "<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";
    check(&with_tools(), text, "", "", &[r#"weather {"city":"12","days":3}"#]);
}

#[test]
fn llama() {
    let with = with_tools();
    check(&with, r#"{"name": "weather", "parameters": {"city":"Paris"}}"#, "", "", &[PARIS]);
    check(
        &with,
        r#"<|python_tag|>{"name": "weather", "parameters": {"city":"Paris"}}; {"name": "time", "parameters": {}}"#,
        "",
        "",
        &[PARIS, "time {}"],
    );
    check(&with, r#"<function=weather>{"city":"Paris"}</function>"#, "", "", &[PARIS]);
    // None of these texts is a call of a known tool.
    for text in [r#"{"city": "Paris"}"#, r#"{"name": "Ada", "age": 3}"#, "{ so", "[1, 2]", "["] {
        check(&with, text, "", text, &[]);
    }
}

#[test]
fn mistral() {
    let with = with_tools();
    check(&with, r#"[TOOL_CALLS][{"name": "weather", "arguments": {"city":"Paris"}}]"#, "", "", &[PARIS]);
    check(
        &with,
        r#"[TOOL_CALLS]weather[ARGS]{"city":"Paris"}[TOOL_CALLS]time[CALL_ID]123456789[ARGS]{}"#,
        "",
        "",
        &[PARIS, "time {}"],
    );
    check(&with, r#"Yes.[TOOL_CALLS]weather{"city":"Paris"}"#, "", "Yes.", &[PARIS]);
}

#[test]
fn function_gemma() {
    let text = "<start_function_call>call:weather{city:<escape>Paris, {x}<escape>,days:3,at:{a:[1,true]}}<end_function_call>";
    check(&with_tools(), text, "", "", &[r#"weather {"city":"Paris, {x}","days":3,"at":{"a":[1,true]}}"#]);
}

#[test]
fn gpt_oss() {
    let text = "<|channel|>analysis<|message|>Need the weather.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\":\"Paris\"}<|call|>";
    check(&with_tools(), text, "Need the weather.", "", &[PARIS]);
    let text = "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>Four.";
    check(&Reading::default(), text, "Easy.", "Four.", &[]);
}

#[test]
fn reasoning() {
    let plain = Reading::default();
    check(&plain, "<think>\nOne.\n\nTwo.\n</think>\n\nFour.\n", "One.\n\nTwo.", "Four.\n", &[]);
    check(&plain, "<think>\nNever ends", "Never ends", "", &[]);
    check(&plain, "<think>\n\n</think>\n\nFour.", "", "Four.", &[]);
    check(&plain, "The tag <think> is text here.", "", "The tag <think> is text here.", &[]);
    let inside = Reading { reasons: Some("<think>"), ..Reading::default() };
    check(&inside, "Hm.\n</think>\n\nFour.", "Hm.", "Four.", &[]);
    let all = Reading { is_plain: true, ..Reading::default() };
    check(&all, "<think>\nA</think>", "", "<think>\nA</think>", &[]);
}

#[test]
fn text_stays_as_it_is() {
    for text in
        ["", " ", "Four.\n\n", " a <tool", "<", "<tool_call>no json</tool_call> then", "a\n<tool_call>\n{"]
    {
        check(
            &with_tools(),
            text,
            "",
            text.strip_prefix(' ').filter(|_| text.trim().len() > 1).unwrap_or(text).trim_start(),
            &[],
        );
        check(&Reading::default(), text, "", text, &[]);
    }
}

#[test]
fn a_single_call() {
    let text = r#"{"name": "weather", "arguments": {"city":"Paris"}}; {"name": "time"}"#;
    check(&with_tools(), text, "", "", &[PARIS, "time {}"]);
    check(&Reading { is_single: true, ..with_tools() }, text, "", "", &[PARIS]);
}

#[test]
fn a_forced_call() {
    let forced = Reading { is_call: true, ..with_tools() };
    check(&forced, r#"{"name":"weather","arguments":{"city":"Paris"}}"#, "", "", &[PARIS]);
    check(&forced, r#"{"name":"weather","argum"#, "", r#"{"name":"weather","argum"#, &[]);
}

#[test]
fn markdown_blocks() {
    let with = with_tools();
    let (call, time) = (r#"{"name": "weather", "arguments": {"city":"Paris"}}"#, r#"{"name": "time"}"#);
    for word in ["json", "", "tool_call"] {
        check(&with, &format!("Let me look.\n\n```{word}\n{call}\n```\n"), "", "Let me look.", &[PARIS]);
    }
    check(&with, &format!("```json\n{call}\n{time}\n```"), "", "", &[PARIS, "time {}"]);
    check(&with, &format!("```json\n[{call}, {time}]\n```\nDone."), "", "\nDone.", &[PARIS, "time {}"]);
    check(&with, &format!("```json {call} ```"), "", "", &[PARIS]);
    check(&with, &format!("```json\n{call}"), "", "", &[PARIS]);
    check(&with, &format!("<tool_call>\n```json\n{call}\n```\n</tool_call>"), "", "", &[PARIS]);
    let fenced = call.replace("Paris", "```");
    check(&with, &format!("```json\n{fenced}\n```"), "", "", &[r#"weather {"city":"```"}"#]);
    for text in [
        "```python\nprint(1)\n```",
        "```json\n{\"name\": \"Ada\"}\n```",
        "```json\n{\"a\": 1}\n```",
        "```\nls\n```\nand `x`",
        "``",
        "```js",
    ] {
        check(&with, text, "", text, &[]);
        check(&Reading::default(), text, "", text, &[]);
    }
}

#[test]
fn the_limit_cuts_a_call() {
    let check = |reading: &Reading, text: &str, content: &str, calls: &[&str]| {
        for pieces in [vec![text.to_owned()], text.chars().map(String::from).collect()] {
            let mut reader = AnswerReader::new(reading.clone());
            let mut updates: Vec<Update> = pieces.iter().flat_map(|piece| reader.push(piece)).collect();
            updates.extend(reader.finish(true));
            assert!(!reader.ends_with_calls(), "{text}");
            let calls = calls.iter().map(|&call| call.to_owned()).collect();
            assert_eq!(joined(updates), (String::new(), content.to_owned(), calls), "{text}");
        }
    };
    let forced = Reading { is_call: true, ..with_tools() };
    check(&forced, r#"{"name":"wea"#, "", &[]);
    check(&forced, r#"{"name":"weather","arg"#, "", &["weather "]);
    check(&forced, r#"{"name":"weather","arguments":{"city":"Pa"#, "", &[r#"weather {"city":"Pa"#]);
    let with = with_tools();
    let paris = r#"{"name": "weather", "arguments": {"city":"Paris"}}"#;
    check(&with, "Hm.\n<tool_call>\n{\"na", "Hm.", &[]);
    check(
        &with,
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\":\"Pa",
        "",
        &["weather {\"city\":\"Pa"],
    );
    check(&with, &format!("<tool_call>[{paris},{{\"name\": \"time\", \"argu"), "", &[PARIS, "time "]);
    check(&with, r#"{"name": "weather", "parameters": {"ci"#, "", &[r#"weather {"ci"#]);
    check(&with, r#"{"name": "we"#, "", &[]);
    check(&with, "```json\n{\"name\": \"weather\", \"arguments\": {\"city", "", &["weather {\"city"]);
    check(&with, "[TOOL_CALLS]weather[ARGS]{\"city\":\"P", "", &["weather {\"city\":\"P"]);
    check(&with, "[TOOL_CALLS]wea", "", &[]);
    check(&with, "<tool_call>\n<function=weather>\n<parameter=city>\nPar", "", &["weather {\"city\":\"Par"]);
    check(
        &with,
        "<function=weather>\n<parameter=days>\n3\n</parameter>\n<parameter=city>\nR",
        "",
        &["weather {\"days\":3,\"city\":\"R"],
    );
    check(&with, "<function=weather>{\"city\":", "", &["weather {\"city\":"]);
    check(&with, "<start_function_call>call:weather{city:<esc", "", &["weather "]);
    let harmony = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\":";
    check(&with, harmony, "", &["weather {\"city\":"]);
    for text in [r#"{"name": "Ada", "ag"#, "```json\n{\"a\": 1", "[1, 2"] {
        check(&with, text, text, &[]);
    }
}

#[test]
fn a_continued_answer_begins_with_content() {
    let continued = Reading { continues: true, ..with_tools() };
    check(&continued, " the capital", "", " the capital", &[]);
    let inside = Reading { continues: true, reasons: Some("<think>"), ..with_tools() };
    check(&inside, "Hm.</think>Yes", "Hm.", "Yes", &[]);
}

#[test]
fn ids_differ() {
    let ids: std::collections::BTreeSet<String> = (0..100).map(|_| calls::id()).collect();
    assert_eq!(ids.len(), 100);
    assert!(ids.iter().all(|id| id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric())));
}

proptest! {
    /// The reader returns the same parts for every division of the text into pieces.
    #[test]
    fn pieces_do_not_matter(
        words in prop::collection::vec(prop::sample::select(vec![
            "<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<function=", "</function>",
            "{\"name\":\"weather\",\"arguments\":{\"city\":\"Paris\"}}", "weather>", "{}", "[", " ", "\n", "é", "a",
            "<start_function_call>", "call:time{}", "<end_function_call>", "<", "<|channel|>", "final", "analysis",
            "```", "json", "<|message|>", "<|end|>", "<|start|>", "commentary to=functions.time ", "<|call|>",
        ]), 0..12),
        cuts in prop::collection::vec(0..200usize, 0..12),
        which in 0..4,
    ) {
        let text = words.concat();
        let reading = match which {
            0 => Reading::default(),
            1 => with_tools(),
            2 => Reading { reasons: Some("<think>"), ..with_tools() },
            _ => Reading { is_call: true, ..with_tools() },
        };
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|&cut| cut < text.len() && text.is_char_boundary(cut)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&str> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
        prop_assert_eq!(read(&reading, &pieces), read(&reading, &[&text]));
    }
}
