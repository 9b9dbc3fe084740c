//! `tracewright apply-template` renders a chat template for another process of Tracewright.
//!
//! The system limits the memory and time of this process, so a hostile template cannot exceed these limits.

use clap::Args;

#[derive(Args)]
pub struct Arguments {}

#[cfg(feature = "iree")]
mod run {
    use std::io;
    use std::path::Path;

    use console::{CommandError as _, print};
    use serde_json::json;
    use tracewright::errors::{WithCauses, WithPath as _};
    use tracewright::files::{limits, read_from};
    use tracewright::model::{TemplateAnswer, TemplateRequest};

    use super::Arguments;
    use crate::Invocation;
    use crate::error::Error;
    use crate::limited::{limit_memory, limit_time};

    impl Arguments {
        pub fn run(&self, _: &Invocation) -> Result<(), Error> {
            limit_memory(limits::TEMPLATE_MEMORY);
            limit_time(limits::TEMPLATE_SECONDS);
            Ok(print(&json!(answer(render())).to_string())?)
        }
    }

    fn answer(rendered: Result<String, Error>) -> TemplateAnswer {
        match rendered {
            Ok(text) => TemplateAnswer::Text(text),
            Err(Error::Unread { name, variables }) => TemplateAnswer::Unread { name, variables },
            Err(error) => TemplateAnswer::Refused {
                code: error.code().to_string(),
                message: WithCauses(&error).to_string(),
                help: error.help(),
            },
        }
    }

    /// Reads a chat from stdin, and renders the chat template.
    fn render() -> Result<String, Error> {
        // Messages, tools, documents and variables, each as long as any may be.
        let text = read_from(io::stdin().lock(), 4 * limits::PROMPT).with_path("read", Path::new("-"))?;
        let request = serde_json::from_str::<TemplateRequest>(&text);
        let request = request.map_err(|source| Error::Messages { path: "-".into(), source })?;
        let (template, chat) = request.into_parts();
        let template = template.template()?;
        if let Some(name) = template.unread(&chat)?.first() {
            let variables = template.variables(&chat)?;
            return Err(Error::Unread { name: (*name).to_owned(), variables });
        }
        Ok(template.render(&chat)?)
    }
}
