//! Fuzzes the text form of traces. Parsing the printed form must give the same trace, and sound traces can be
//! evaluated.

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
