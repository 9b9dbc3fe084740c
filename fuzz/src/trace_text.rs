//! The text of a trace: what reads is printed as what reads the same, and a sound one can be looked at.

use std::path::Path;

use tracewright::trace::Trace;

use crate::said;

pub fn read(_: &Path, bytes: &[u8]) {
    let Some(trace) = str::from_utf8(bytes).ok().and_then(|text| said(text.parse::<Trace>())) else { return };
    let text = trace.to_string();
    let again: Option<Trace> = said(text.parse());
    assert!(again.as_ref() == Some(&trace), "what is printed reads as another trace:\n{text}");
    if said(trace.verify()).is_some() {
        trace.functions.iter().for_each(|function| drop(function.signature()));
        said(trace.parameters());
    }
}
