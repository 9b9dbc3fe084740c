//! `tracewright explain`: what an error means, and what to do.

use std::io::Write as _;

use error_codes::Code;
use serde_json::{Value, json};

use crate::error::Error;

pub fn run(code: Option<&str>, as_json: bool) -> Result<(), Error> {
    let text = match (code.map(str::parse::<Code>).transpose()?, as_json) {
        (Some(code), false) => code.explanation().to_owned(),
        (Some(code), true) => format!("{:#}\n", explained(code)),
        (None, false) => Code::ALL.iter().map(|code| format!("{code}  {}\n", code.title())).collect(),
        (None, true) => {
            let all: Vec<Value> = Code::ALL.iter().copied().map(explained).collect();
            format!("{:#}\n", json!({ "codes": all }))
        }
    };
    std::io::stdout().lock().write_all(text.as_bytes()).map_err(Error::Output)
}

fn explained(code: Code) -> Value {
    json!({ "code": code.name(), "title": code.title(), "explanation": code.explanation() })
}
