//! Formats the measurements of the tuner as text and as JSON.

use std::fmt::{self, Display, Write as _};

use serde::Serialize;
use serde_json::{Value, json};
use tracewright::tuning::{FASTER, Record, TuningCache, Verdict};

use super::{Trial, Tuned, TunedNetwork};

pub struct TuneReport<'a> {
    pub works: &'a [Tuned],
    pub network: &'a TunedNetwork<'a>,
    pub cache: &'a TuningCache,
}

impl TuneReport<'_> {
    /// For `tracewright tune --json`.
    pub fn json(&self) -> Value {
        let Self { works, network, cache } = self;
        fn known<Way: Clone + PartialEq + Serialize>(record: &Record<Way>, left: usize) -> Value {
            let best = record.best();
            json!({
                "name": record.name,
                "usual": record.usual,
                "fastest": best.map(|(way, _)| way),
                "ratio": best.map(|(_, ratio)| ratio),
                "tried": record.tried,
                "left": left,
            })
        }
        let kernels = works.iter().map(|work| {
            let mut json = known(&work.record, work.left().len());
            json["share"] = work.share.into();
            json
        });
        json!({
            "folder": cache.folder().to_string_lossy(),
            "kernels": kernels.collect::<Vec<_>>(),
            "network": known(&network.record, network.left().len()),
        })
    }

    pub fn table(&self) -> String {
        let Self { works, network, .. } = self;
        fn known<Way: Clone + PartialEq + Display>(record: &Record<Way>, left: usize) -> String {
            let fastest = match record.best() {
                Some((way, ratio)) => format!("{ratio:.3} of the default time: {way}"),
                None => format!("as usual: {}", record.usual),
            };
            format!("{}\n         {fastest}; {} tried, {left} not", record.name, record.tried.len())
        }
        let mut text = String::new();
        for work in *works {
            let share = 100.0 * work.share;
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{share:>5.1} %  {}", known(&work.record, work.left().len()));
        }
        let _ = writeln!(text, "{:>5}    {}", "all", known(&network.record, network.left().len()));
        let _ = writeln!(
            text,
            "faster: at most {FASTER} of the default time; shares: of the time of these kernels, averaged \
             over the entry points"
        );
        text
    }
}

/// The start of a kernel's trials, or the result of one.
impl Display for Trial<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, share, tried } = self;
        match tried {
            None => write!(f, "{:5.1} %  {name}", 100.0 * share),
            Some((way, verdict)) => write!(f, "         {}", outcome(way, verdict)),
        }
    }
}

fn outcome(way: &dyn Display, verdict: &Verdict) -> String {
    match verdict {
        Verdict::Ratio { median, shortest, .. } => {
            format!("{way}: {median:.3} of the default time, the shortest {shortest:.3}")
        }
        Verdict::Wrong(how) => format!("{way}: rejected, it is wrong: {how}"),
        Verdict::Refused(why) => format!("{way}: rejected by the compiler: {why}"),
    }
}
