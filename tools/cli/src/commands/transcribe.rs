//! `tracewright transcribe` writes the text of audio files.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use console::NetworkArguments;

use crate::arguments::{CompileArguments, DeviceArguments, TuningArguments};

#[derive(Args, Clone)]
pub struct Arguments {
    /// Hugging Face model directory of a Whisper
    pub model: PathBuf,
    /// Audio files: wav, flac, mp3, ogg (Vorbis) or m4a (AAC or ALAC). The network hears 30 seconds at a time, so a
    /// word at the border of two such windows can be wrong
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Code of the spoken language, such as `en`; `auto` detects the language in the first 30 seconds
    #[arg(short, long, value_name = "CODE", default_value = "auto")]
    pub language: String,
    /// Translate the speech to English
    #[arg(long)]
    pub translate: bool,
    /// Format of the text on stdout: `txt` has a line for each 30 seconds, `json` an object for each file
    #[arg(short = 'o', long, value_enum, value_name = "FORMAT", default_value = "txt")]
    pub format: TextFormat,
    /// Number of worker threads; 0 uses all cores
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    #[command(flatten)]
    pub device: DeviceArguments,
    #[command(flatten)]
    pub network: NetworkArguments,
    #[command(flatten)]
    pub tuning: TuningArguments,
    #[command(flatten)]
    pub compile: CompileArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TextFormat {
    Txt,
    Json,
}

#[cfg(feature = "iree")]
mod run {
    use std::ops::ControlFlow;
    use std::path::Path;

    use console::print;
    use serde_json::{Value, json};
    use tracewright::footprint::peak_rss;
    use tracewright::model::{Opening, SpeechSegment, TranscribeOptions, Transcript};
    use tracewright::models::check_transcribes;
    use tracewright::{Model, ModelError, OpenOptions, audio};

    use super::{Arguments, TextFormat};
    use crate::Invocation;
    use crate::build::{build_times, milliseconds};
    use crate::error::Error;
    use crate::load;

    impl Arguments {
        pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
            let interrupt = &invocation.interrupt;
            let opening = self.opening(invocation)?;
            match opening.network() {
                Some(network) => drop(check_transcribes(&network.kind, &self.model)?),
                None => {
                    let (path, does) = (self.model.clone(), "is an export, which continues text");
                    return Err(ModelError::Kind { path, does, asked: "transcribe speech" }.into());
                }
            }
            let rate = opening.check_speech(&self.options())?;
            // The errors of all files come before the slow compilation.
            let decode = |file| -> Result<Vec<f32>, Error> {
                let file: std::path::PathBuf = Path::to_owned(file);
                Ok(interrupt.or(move || audio::decode(&file, rate))?.map_err(ModelError::from)?)
            };
            let mut last = None;
            for file in &self.files {
                last = Some(decode(file)?);
            }
            // The samples of all files may not fit into memory.
            let mut only = last.filter(|_| self.files.len() == 1);
            let model = load::open(opening, &self.compile, interrupt)?;
            for file in &self.files {
                let samples = only.take().map_or_else(|| decode(file), Ok)?;
                self.transcribe(&model, file, &samples, invocation)?;
            }
            interrupt.check()
        }

        fn opening(&self, invocation: &Invocation) -> Result<Opening, Error> {
            let &Invocation { read, ref interrupt, .. } = invocation;
            let options = load::network_options(&self.network, &self.device, &self.tuning)?;
            let watch = Some(load::watch(interrupt));
            let mut options = OpenOptions { threads: self.threads, read, watch, ..options };
            load::choose(&mut options, &self.device)?;
            let path = self.model.clone();
            let opening = interrupt.or(move || Opening::read(path, options))??;
            console::warn(opening.warnings());
            Ok(opening)
        }

        fn options(&self) -> TranscribeOptions {
            let language = (self.language != "auto").then(|| self.language.clone());
            TranscribeOptions { language, translate: self.translate }
        }

        fn transcribe(
            &self,
            model: &Model,
            file: &Path,
            samples: &[f32],
            invocation: &Invocation,
        ) -> Result<(), Error> {
            let name = file.display();
            let mut failed = None;
            if self.files.len() > 1 && self.format == TextFormat::Txt {
                print(&format!("{name}:\n"))?;
            }
            let watch = |segment: &SpeechSegment| {
                if self.format == TextFormat::Txt
                    && let Err(error) = print(&format!("{}\n", segment.text))
                {
                    failed = Some(error);
                }
                if segment.start > 0.0 {
                    say!("`{name}`: {:.0} s", segment.end);
                }
                if failed.is_some() || invocation.interrupt.is_set() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            let transcript = model.transcribe_samples(samples, &self.options(), watch)?;
            if let Some(error) = failed {
                return Err(error.into());
            }
            invocation.interrupt.check()?;
            if self.format == TextFormat::Json {
                print(&format!("{}\n", report(model, file, &transcript)))?;
            }
            let Transcript { language, duration, time, .. } = &transcript;
            let seconds = time.as_secs_f64();
            let [load, compile] = build_times(model.info().build.as_ref());
            say!(
                "`{name}`: {duration:.1} s of audio in {seconds:.1} s, real-time factor {:.3}, language {language}; load {load:.0} ms, compile {compile:.0} ms",
                seconds / duration.max(f64::MIN_POSITIVE),
            );
            Ok(())
        }
    }

    fn report(model: &Model, file: &Path, transcript: &Transcript) -> Value {
        let segment = |segment: &SpeechSegment| {
            let SpeechSegment { start, end, text, tokens } = segment;
            json!({ "start": start, "end": end, "text": text, "tokens": tokens })
        };
        let [load, compile] = build_times(model.info().build.as_ref());
        json!({
            "file": file.display().to_string(),
            "language": transcript.language,
            "duration": transcript.duration,
            "text": transcript.text(),
            "segments": transcript.segments.iter().map(segment).collect::<Value>(),
            "timings": { "load_ms": load, "compile_ms": compile, "transcribe_ms": milliseconds(transcript.time) },
            "peak_rss_bytes": peak_rss(),
        })
    }
}
