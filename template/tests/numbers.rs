//! Checks that JSON numbers reach a template's output as Python prints them, in 20,000 random
//! documents and in the expressions that Jinja evaluated.
//!
//! `tests/oracle/values.py` writes the expected results of the expressions.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value};
use tracewright_template::{Chat, ChatTemplate};

/// A random document: its JSON text with random white space, and the text that Python's
/// `json.dumps(json.loads(text), ensure_ascii=False)` returns.
#[derive(Default)]
struct Document {
    text: String,
    dumped: String,
}

impl Document {
    fn both(&mut self, text: &str) {
        self.text.push_str(text);
        self.dumped.push_str(text);
    }
}

/// The generator SplitMix64. The same seed gives the same documents on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn digits(&mut self, most: u64) -> String {
        (0..1 + self.below(most)).map(|_| char::from(b'0' + self.below(10) as u8)).collect()
    }

    fn integer(&mut self) -> String {
        let digits = match self.below(6) {
            0 => self.below(100).to_string(),
            1 => self.next().to_string(),
            2 => ((1_u128 << self.below(127)) + u128::from(self.below(3)) - 1).to_string(),
            3 => (self.next() >> self.below(64)).to_string(),
            4 => u128::MAX.to_string(),
            _ => self.digits(60),
        };
        let digits = digits.trim_start_matches('0');
        let digits = if digits.is_empty() { "0" } else { digits };
        if self.below(2) == 0 { format!("-{digits}") } else { digits.to_owned() }
    }

    fn real(&mut self) -> String {
        let text = match self.below(6) {
            // Every bit pattern of a finite float is equally likely.
            0 => format!("{:e}", f64::from_bits(self.next())),
            1 => format!("{}.{}", self.below(100), self.digits(20)),
            2 => format!("{}.{}e{}", self.below(10), self.digits(25), self.below(680) as i64 - 350),
            3 => format!("{}E+{}", self.below(1000), self.below(30)),
            4 => format!("{:e}", f64::from_bits(self.below(1 << 52))), // a subnormal float
            _ => ["0.0", "1e16", "1e15", "0.0001", "0.00001", "1e400", "5e-324", "9007199254740993.0"]
                [self.below(8) as usize]
                .to_owned(),
        };
        let text = if text.contains(['N', 'i']) { "53.630839129292724".to_owned() } else { text };
        let text = if text.contains(['.', 'e', 'E']) { text } else { text + ".5" };
        let text = text.trim_start_matches('-');
        if self.below(2) == 0 { format!("-{text}") } else { text.to_owned() }
    }

    fn document(&mut self, depth: u64, out: &mut Document) {
        match self.below(if depth == 0 { 7 } else { 10 }) {
            0..=2 => {
                let text = self.integer();
                out.dumped.push_str(if text == "-0" { "0" } else { &text });
                out.text.push_str(&text);
            }
            3..=5 => {
                let text = self.real();
                out.dumped.push_str(&dumped(text.parse().expect("the text is a float")));
                out.text.push_str(&text);
            }
            6 => {
                let word =
                    ["null", "true", "\"1e400\"", "\"-0 \\\" 123456789012345678901\"", "\"é\\\\\"", "\"\""];
                out.both(word[self.below(6) as usize]);
            }
            kind => {
                let (open, close) = if kind < 9 { ("[", "]") } else { ("{", "}") };
                out.both(open);
                for i in 0..self.below(6) {
                    if i > 0 {
                        out.text.push_str([",", ", ", " ,\n"][self.below(3) as usize]);
                        out.dumped.push_str(", ");
                    }
                    if close == "}" {
                        out.both(&format!("\"key {i} 1e999\""));
                        out.text.push_str([":", " : "][self.below(2) as usize]);
                        out.dumped.push_str(": ");
                    }
                    self.document(depth - 1, out);
                }
                out.both(close);
            }
        }
    }
}

/// Python's `json.dumps` of a float: the fewest digits that give the same float, with an exponent
/// below 1e-4 and from 1e16.
fn dumped(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    // Of two nearest texts with the fewest digits, Python takes the text with the even digit.
    let shortest = format!("{:e}", number.abs());
    let text = (0..17).map(|digits| format!("{:.digits$e}", number.abs()));
    let text = text.into_iter().find(|text| text.parse() == Ok(number.abs()));
    let text = text.filter(|text| text.len() <= shortest.len()).unwrap_or(shortest);
    let (digits, exponent) = text.split_once('e').expect("an exponent");
    let (digits, exponent): (String, i32) = (digits.replace('.', ""), exponent.parse().expect("an exponent"));
    let sign = if number.is_sign_negative() { "-" } else { "" };
    let whole = (exponent + 1) as usize;
    let body = match exponent {
        -4..0 => format!("0.{}{digits}", "0".repeat(-exponent as usize - 1)),
        0..16 if digits.len() > whole => format!("{}.{}", &digits[..whole], &digits[whole..]),
        0..16 => format!("{digits:0<whole$}.0"),
        _ => {
            let (first, rest) = digits.split_at(1);
            let point = if rest.is_empty() { "" } else { "." };
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{first}{point}{rest}e{sign}{:02}", exponent.abs())
        }
    };
    format!("{sign}{body}")
}

#[test]
fn random_documents_pass_through_messages_tools_and_variables() {
    let source = "{% for m in messages %}{{ m.content|default(none)|tojson }}\n{% endfor %}{% for t in tools %}{{ t.function|tojson }}\n{% endfor %}\
                  {% for x in variable %}{{ x|tojson }}\n{% endfor %}";
    let template = ChatTemplate::from_source(source, Map::new()).unwrap();
    let mut random = Random(62);
    for _ in 0..200 {
        let documents: Vec<Document> = (0..100)
            .map(|_| {
                let mut document = Document::default();
                random.document(3, &mut document);
                document
            })
            .collect();
        let list = |before: &str, after: &str| {
            let documents = documents.iter().map(|document| format!("{before}{}{after}", document.text));
            format!("[{}]", documents.collect::<Vec<_>>().join(","))
        };
        let variable: Value = files::parse_exact(&list("", "")).unwrap();
        // The texts of a schema and of a request to the process of the template pass through JSON again.
        let again: Value = files::parse_exact(&files::exact_json(&variable)).unwrap();
        assert_eq!(again, variable);
        let again: Value = serde_json::from_str(&variable.to_string()).unwrap();
        assert_eq!(again, variable);
        let chat = Chat {
            messages: files::parse_exact(&list("{\"role\":\"user\",\"content\":", "}")).unwrap(),
            tools: Some(files::parse_exact(&list("{\"function\":", "}")).unwrap()),
            variables: Map::from_iter([("variable".to_owned(), again)]),
            ..Chat::default()
        };
        let rendered = template.render(&chat).unwrap();
        let expected: Vec<&str> =
            (0..3).flat_map(|_| documents.iter().map(|document| &*document.dumped)).collect();
        let lines: Vec<&str> = rendered.lines().collect();
        assert_eq!(lines.len(), expected.len());
        for (i, (line, expected)) in lines.iter().zip(expected).enumerate() {
            assert_eq!(*line, expected, "{}", documents[i % 100].text);
        }
    }
}

/// Compares documents with the texts that Python wrote.
#[test]
fn documents_are_dumped_as_python_does() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/numbers.json");
    let cases: Vec<(String, String)> = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let texts: Vec<&str> = cases.iter().map(|(text, _)| &**text).collect();
    let list = format!("[{}]", texts.join(","));
    let chat = Chat {
        messages: vec![serde_json::json!({"role": "user"})],
        variables: Map::from_iter([("list".to_owned(), files::parse_exact(&list).unwrap())]),
        ..Chat::default()
    };
    let template =
        ChatTemplate::from_source("{% for x in list %}{{ x|tojson }}\n{% endfor %}", Map::new()).unwrap();
    let rendered = template.render(&chat).unwrap();
    assert_eq!(rendered.lines().count(), cases.len());
    for ((text, expected), line) in cases.iter().zip(rendered.lines()) {
        assert_eq!(line, expected, "{text}");
    }
}

/// Compares the results and errors of expressions with Jinja. The expressions combine numbers of
/// all kinds, and strings that are marked as `safe`, with operators, filters and methods.
#[test]
fn expressions_with_numbers_and_safe_strings_have_no_difference() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/values.json");
    let path = std::env::var_os("TRACEWRIGHT_VALUES").map_or(path, Into::into);
    let cases: Vec<(String, String, Option<String>)> =
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let mut differences = Vec::new();
    for (source, variables, expected) in &cases {
        let chat = Chat {
            messages: vec![serde_json::json!({"role": "user"})],
            variables: files::parse_exact(variables).unwrap(),
            ..Chat::default()
        };
        let rendered =
            ChatTemplate::from_source(source, Map::new()).and_then(|template| template.render(&chat));
        if rendered.as_deref().ok() != expected.as_deref() {
            differences.push(format!("{source} {variables}\n  Jinja: {expected:?}\n  ours: {rendered:?}"));
        }
    }
    let (count, total) = (differences.len(), cases.len());
    assert!(count == 0 && total > 0, "{count} of {total} expressions differ:\n{}", differences.join("\n"));
}
