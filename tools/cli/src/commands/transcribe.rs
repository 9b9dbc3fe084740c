//! `tracewright transcribe` writes the text of audio files.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use console::NetworkArguments;

use crate::arguments::{CompileArguments, DeviceArguments, TuningArguments};

#[derive(Args, Clone)]
pub struct Arguments {
    /// Hugging Face model directory of a Whisper
    pub model: PathBuf,
    /// Audio files: wav, flac, mp3, ogg (Vorbis) or m4a (AAC or ALAC)
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Code of the spoken language, such as `en`; `auto` detects the language in the first 30 seconds
    #[arg(short, long, value_name = "CODE", default_value = "auto")]
    pub language: String,
    /// Translate the speech to English
    #[arg(long)]
    pub translate: bool,
    /// Parts of the text that get times: with `word`, each subtitle is a word; with `none`, a word at the border of two
    /// windows can be wrong
    #[arg(long, value_enum, value_name = "PART", default_value = "segment")]
    pub timestamps: Timestamps,
    /// Format of the text on stdout: `txt` has a line for each segment, `srt` and `vtt` are subtitles, and `json` has
    /// an object for each file
    #[arg(short = 'o', long, value_enum, value_name = "FORMAT", default_value = "txt")]
    pub format: TextFormat,
    /// Text that could stand before the transcript, with names in their spelling
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Let the network read what it wrote for the windows before; a repetition then easily goes on
    #[arg(long)]
    pub condition_on_prev_tokens: bool,
    /// First temperature; 0 always chooses the most likely token
    #[arg(long = "temp", visible_alias = "temperature", value_name = "TEMP", default_value_t = 0.0)]
    pub temperature: f32,
    /// Don't hear windows that fail a threshold again with higher temperatures
    #[arg(long)]
    pub no_fallback: bool,
    /// Hear a window again if its tokens compress better than this, because it repeats itself
    #[arg(long, value_name = "N", default_value_t = 1.35)]
    pub compression_ratio_threshold: f64,
    /// Hear a window again if its tokens have a lower average logarithm of their probabilities
    #[arg(long, value_name = "N", default_value_t = -1.0, allow_negative_numbers = true)]
    pub logprob_threshold: f64,
    /// Skip an unlikely window if the probability that nobody speaks is larger than this
    #[arg(long, value_name = "N", default_value_t = 0.6)]
    pub no_speech_threshold: f64,
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
    Srt,
    Vtt,
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Timestamps {
    Word,
    Segment,
    None,
}

#[cfg(feature = "iree")]
mod run {
    use std::ops::ControlFlow;
    use std::path::Path;

    use console::{print, usage};
    use serde_json::{Value, json};
    use tracewright::footprint::peak_rss;
    use tracewright::model::{Opening, SpeechProgress, SpeechSegment, TranscribeOptions, Transcript};
    use tracewright::models::check_transcribes;
    use tracewright::{Model, ModelError, OpenOptions, audio};

    use super::{Arguments, TextFormat, Timestamps};
    use crate::Invocation;
    use crate::build::{build_times, milliseconds};
    use crate::error::Error;
    use crate::load;

    impl Arguments {
        pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
            let interrupt = &invocation.interrupt;
            let is_one_file = matches!(self.format, TextFormat::Srt | TextFormat::Vtt);
            if is_one_file && self.files.len() > 1 {
                let what =
                    "subtitles belong to one file, so `-o srt` and `-o vtt` take one audio file at a time";
                return Err(usage(what.to_owned()).into());
            }
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
            let all = TranscribeOptions::default().temperatures;
            let higher = all.into_iter().filter(|one| !self.no_fallback && *one > self.temperature);
            TranscribeOptions {
                language: (self.language != "auto").then(|| self.language.clone()),
                translate: self.translate,
                timestamps: self.timestamps != Timestamps::None,
                words: self.timestamps == Timestamps::Word,
                prompt: self.prompt.clone(),
                condition_on_prev_tokens: self.condition_on_prev_tokens,
                temperatures: std::iter::once(self.temperature).chain(higher).collect(),
                compression_ratio_threshold: Some(self.compression_ratio_threshold),
                logprob_threshold: Some(self.logprob_threshold),
                no_speech_threshold: Some(self.no_speech_threshold),
                ..TranscribeOptions::default()
            }
        }

        fn transcribe(
            &self,
            model: &Model,
            file: &Path,
            samples: &[f32],
            invocation: &Invocation,
        ) -> Result<(), Error> {
            let name = file.display();
            let seconds = samples.len() as f64 / f64::from(model.sampling_rate()?);
            let (mut failed, mut number) = (None, 0);
            let is_subtitle = matches!(self.format, TextFormat::Srt | TextFormat::Vtt);
            match self.format {
                TextFormat::Txt if self.files.len() > 1 => print(&format!("{name}:\n"))?,
                TextFormat::Vtt => print(Transcript::VTT)?,
                _ => {}
            }
            let watch = |progress: SpeechProgress<'_>| {
                let cues: Vec<SpeechSegment> = match self.timestamps {
                    Timestamps::Word if is_subtitle => {
                        progress.segments.iter().flat_map(SpeechSegment::by_word).collect()
                    }
                    _ => progress.segments.to_vec(),
                };
                for cue in &cues {
                    number += 1;
                    if let Some(text) = self.shown(cue, number)
                        && let Err(error) = print(&text)
                    {
                        failed = Some(error);
                    }
                }
                if progress.end < seconds {
                    say!("`{name}`: {:.0} of {seconds:.0} s", progress.end);
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

        /// The text that is printed as soon as the segment is known.
        fn shown(&self, segment: &SpeechSegment, number: usize) -> Option<String> {
            match self.format {
                TextFormat::Txt => Some(format!("{}\n", segment.text.trim())),
                TextFormat::Srt => Some(segment.srt(number)),
                TextFormat::Vtt => Some(segment.vtt()),
                TextFormat::Json => None,
            }
        }
    }

    fn report(model: &Model, file: &Path, transcript: &Transcript) -> Value {
        let [load, compile] = build_times(model.info().build.as_ref());
        json!({
            "file": file.display().to_string(),
            "language": transcript.language,
            "duration": transcript.duration,
            "text": transcript.text(),
            "segments": transcript.segments,
            "timings": { "load_ms": load, "compile_ms": compile, "transcribe_ms": milliseconds(transcript.time) },
            "peak_rss_bytes": peak_rss(),
        })
    }
}
