//! `tracewright explain` prints the meaning of an error and how to fix it.

use clap::Args;
use console::print;
use error_codes::Code;
use serde_json::{Value, json};

use crate::Invocation;
use crate::error::Error;

#[derive(Args)]
pub struct Arguments {
    /// Code of the error, such as TW0201; without a code, `explain` lists all codes
    code: Option<String>,
    /// Print one JSON object on stdout instead of the text
    #[arg(long)]
    json: bool,
}

impl Arguments {
    pub fn run(&self, _: &Invocation) -> Result<(), Error> {
        let text = match (self.code.as_deref().map(str::parse::<Code>).transpose()?, self.json) {
            (Some(code), false) => code.explanation().to_owned(),
            (Some(code), true) => format!("{:#}\n", explained(code)),
            (None, false) => Code::ALL.iter().map(|code| format!("{code}  {}\n", code.title())).collect(),
            (None, true) => {
                let all: Vec<Value> = Code::ALL.iter().copied().map(explained).collect();
                format!("{:#}\n", json!({ "codes": all }))
            }
        };
        Ok(print(&text)?)
    }
}

fn explained(code: Code) -> Value {
    json!({ "code": code.name(), "title": code.title(), "explanation": code.explanation() })
}
