//! Decodes audio files to one channel.

use std::fs::File;
use std::io::{Cursor, ErrorKind};
use std::path::Path;

use errors::WithPath as _;
use files::limits;
use symphonia::core::codecs::audio::{AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::well_known::{FORMAT_ID_MP3, FORMAT_ID_OGG};
use symphonia::core::formats::{FormatOptions, FormatReader, Track, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream};
use symphonia::core::meta::MetadataOptions;
use symphonia::core::units::Duration;

use crate::AudioError;
use crate::resample::Rate;

/// The audio that a header may declare beyond the decoded audio, in seconds. Encoders round to whole packets.
const TOLERANCE: f64 = 0.25;

/// Reads a wav, flac, mp3, ogg (Vorbis) or m4a (AAC) file. The result is the mean of the channels, with `rate`
/// samples per second.
///
/// # Errors
/// Returns an error if the file is empty, cut, damaged, too large or too long, or has an unknown format.
pub fn decode(path: &Path, rate: u32) -> Result<Vec<f32>, AudioError> {
    Source::open(path)?.decoded(rate)
}

/// Decodes the bytes of a file like [`decode`]. Errors name `path`.
///
/// # Errors
/// Returns the errors of [`decode`].
pub fn decode_bytes(path: &Path, bytes: Vec<u8>, rate: u32) -> Result<Vec<f32>, AudioError> {
    let length = bytes.len() as u64;
    Source::read(path, Box::new(Cursor::new(bytes)), length)?.decoded(rate)
}

struct Source<'a> {
    path: &'a Path,
    format: Box<dyn FormatReader>,
    decoder: Box<dyn AudioDecoder>,
    track: u32,
    /// In samples per second.
    rate: u32,
    /// The length that the header declares, in seconds.
    declared: Option<f64>,
}

impl<'a> Source<'a> {
    fn open(path: &'a Path) -> Result<Self, AudioError> {
        files::regular(path).with_path("read", path)?;
        let file = File::open(path).with_path("read", path)?;
        let bytes = file.metadata().with_path("read", path)?.len();
        Self::read(path, Box::new(file), bytes)
    }

    fn read(path: &'a Path, file: Box<dyn MediaSource>, bytes: u64) -> Result<Self, AudioError> {
        if bytes == 0 {
            return Err(AudioError::Empty { path: path.into() });
        }
        if bytes > limits::AUDIO {
            let why = format!("it has {bytes} bytes, expected at most {}", limits::AUDIO);
            return Err(std::io::Error::new(ErrorKind::FileTooLarge, why)).with_path("read", path)?;
        }
        let stream = MediaSourceStream::new(file, Default::default());
        // Bytes decide, and not the name: files with a wrong extension are common.
        let found = symphonia::default::get_probe().probe(
            &Hint::new(),
            stream,
            FormatOptions::default(),
            MetadataOptions::default(),
        );
        let format = found.map_err(|error| unreadable(path, error))?;
        let Some(track) = format.default_track(TrackType::Audio) else {
            return Err(AudioError::Encoding { path: path.into() });
        };
        let Some(parameters) = track.codec_params.as_ref().and_then(|parameters| parameters.audio()) else {
            return Err(AudioError::Encoding { path: path.into() });
        };
        let decoder =
            symphonia::default::get_codecs().make_audio_decoder(parameters, &AudioDecoderOptions::default());
        let decoder = decoder.map_err(|error| match error {
            Error::Unsupported(_) => AudioError::Encoding { path: path.into() },
            error => damaged(path, &error),
        })?;
        let rate = parameters.sample_rate.unwrap_or_default();
        if !(1000..=384_000).contains(&rate) {
            return Err(AudioError::Rate { path: path.into(), found: rate });
        }
        // Without a header of LAME, the length of an mp3 file is an estimate from its first frames.
        let is_estimate = format.format_info().format == FORMAT_ID_MP3 && track.delay.is_none();
        let (declared, track) = (declared(track, rate).filter(|_| !is_estimate), track.id);
        Ok(Self { path, format, decoder, track, rate, declared })
    }

    fn decoded(mut self, rate: u32) -> Result<Vec<f32>, AudioError> {
        let path = self.path;
        let limit = limits::AUDIO_SECONDS * u64::from(self.rate);
        let mut result = Rate::new(self.rate, rate);
        let (mut count, mut packets, mut bad) = (0, 0u64, 0u64);
        let (mut all, mut mono) = (Vec::new(), Vec::new());
        let mut why = None;
        let is_mp3 = self.format.format_info().format == FORMAT_ID_MP3;
        while let Some(mut packet) = self.next()? {
            packets += 1;
            if is_mp3 {
                // The header of the first of several joined files does not count the others.
                packet.trim_end = Duration::ZERO;
            }
            let decoded = match self.decoder.decode(&packet) {
                Ok(decoded) => decoded,
                // The decoder continues with the next packet, as players do.
                Err(error @ (Error::DecodeError(_) | Error::IoError(_))) => {
                    bad += 1;
                    why = Some(error.to_string());
                    continue;
                }
                Err(error) => return Err(damaged(path, &error)),
            };
            let (channels, found) = (decoded.spec().channels().count().max(1), decoded.spec().rate());
            if found != self.rate {
                let why = format!("its sampling rate changes from {} to {found} Hz", self.rate);
                return Err(AudioError::Damaged { path: path.into(), why });
            }
            all.clear();
            decoded.copy_to_vec_interleaved::<f32>(&mut all);
            mono.clear();
            mono.extend(all.chunks_exact(channels).map(mean));
            if let Some(x) = mono.iter().find(|x| !x.is_finite()) {
                let why = format!("a sample is {x}, expected a finite number");
                return Err(AudioError::Damaged { path: path.into(), why });
            }
            count += mono.len() as u64;
            if count > limit {
                return Err(AudioError::Long { path: path.into(), limit: limits::AUDIO_SECONDS / 3600 });
            }
            result.push(&mono);
        }
        let found = count as f64 / f64::from(self.rate);
        match (why, self.declared) {
            (Some(why), _) if bad * 10 > packets => Err(AudioError::Damaged { path: path.into(), why }),
            (_, Some(expected)) if found + TOLERANCE < expected => {
                Err(AudioError::Cut { path: path.into(), found, expected })
            }
            _ if count == 0 => Err(AudioError::Empty { path: path.into() }),
            _ => Ok(result.finish()),
        }
    }

    /// The next packet of the audio track, or `None` at the end. The end of a cut file is the end.
    fn next(&mut self) -> Result<Option<symphonia::core::packet::Packet>, AudioError> {
        loop {
            match self.format.next_packet() {
                Ok(Some(packet)) if packet.track_id != self.track => {}
                Ok(packet) => return Ok(packet),
                Err(Error::IoError(error)) if error.kind() == ErrorKind::UnexpectedEof => {
                    if self.format.format_info().format == FORMAT_ID_OGG {
                        let why = "its last page is missing".to_owned();
                        return Err(AudioError::Damaged { path: self.path.into(), why });
                    }
                    return Ok(None);
                }
                // As in recordings of radio stations.
                Err(Error::ResetRequired) => return Err(AudioError::Several { path: self.path.into() }),
                Err(error) => return Err(damaged(self.path, &error)),
            }
        }
    }
}

/// In f64, so that the mean of equal channels is the channel.
fn mean(frame: &[f32]) -> f32 {
    let sum: f64 = frame.iter().map(|&x| f64::from(x)).sum();
    (sum / frame.len() as f64) as f32
}

fn declared(track: &Track, rate: u32) -> Option<f64> {
    let of_frames = track.num_frames.map(|frames| frames as f64 / f64::from(rate));
    let of_time = || Some(track.time_base?.calc_duration(track.duration?)?.as_secs_f64());
    of_frames.or_else(of_time).filter(|seconds| *seconds > 0.0)
}

fn unreadable(path: &Path, error: Error) -> AudioError {
    match error {
        Error::IoError(error) if error.kind() != ErrorKind::UnexpectedEof => {
            AudioError::File(errors::FileError { action: "read", path: path.into(), source: error })
        }
        Error::Unsupported(_) | Error::IoError(_) => AudioError::Format { path: path.into() },
        error => damaged(path, &error),
    }
}

fn damaged(path: &Path, error: &Error) -> AudioError {
    AudioError::Damaged { path: path.into(), why: errors::escaped(&error.to_string()) }
}
