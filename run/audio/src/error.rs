//! The error type of audio files.

use std::path::PathBuf;

use errors::FileError;

/// The reason why an audio file, or the configuration of a spectrogram, is rejected.
#[derive(Debug, thiserror::Error)]
pub enum AudioError {
    /// The file cannot be read, or is larger than the limit.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file has no bytes, or no audio.
    #[error("`{}` contains no audio, expected at least one sample", .path.display())]
    Empty {
        /// The audio file.
        path: PathBuf,
    },
    /// The bytes are no container that the decoders know.
    #[error(
        "the format of `{}` is unknown, expected wav, flac, mp3, ogg or m4a; convert the file, for example with \
        `ffmpeg -i FILE out.wav`", .path.display()
    )]
    Format {
        /// The file, possibly no audio file at all.
        path: PathBuf,
    },
    /// The container is known, but not the encoding of its audio, such as Opus.
    #[error(
        "the encoding of the audio in `{}` is not supported, expected PCM, FLAC, MP3, Vorbis, AAC or ALAC; convert \
        the file, for example with `ffmpeg -i FILE out.wav`", .path.display()
    )]
    Encoding {
        /// The audio file.
        path: PathBuf,
    },
    /// The file ends before its audio does.
    #[error(
        "`{}` is cut: it contains {found:.2} s of audio, expected {expected:.2} s; copy or download the file again",
        .path.display()
    )]
    Cut {
        /// The audio file.
        path: PathBuf,
        /// The seconds that the file contains.
        found: f64,
        /// The seconds that its header declares.
        expected: f64,
    },
    /// A part of the file is invalid.
    #[error("`{}` is damaged: {why}; copy or download the file again", .path.display())]
    Damaged {
        /// The audio file.
        path: PathBuf,
        /// The message of the decoder.
        why: String,
    },
    /// Another recording follows in the same file.
    #[error(
        "`{}` has several recordings, expected one; join them, for example with `ffmpeg -i FILE out.wav`", .path.display()
    )]
    Several {
        /// The audio file.
        path: PathBuf,
    },
    /// The audio is longer than the limit.
    #[error("the audio in `{}` is longer than {limit} hours; split the file", .path.display())]
    Long {
        /// The audio file.
        path: PathBuf,
        /// The limit in hours.
        limit: u64,
    },
    /// The number of samples per second is outside of the range that speech needs.
    #[error("the sampling rate of `{}` is {found} Hz, expected 1000 to 384000 Hz", .path.display())]
    Rate {
        /// The audio file.
        path: PathBuf,
        /// In samples per second.
        found: u32,
    },
    /// The configuration of a spectrogram has an invalid value.
    #[error("`{}`: `{key}` is {found}, expected {expected}", .path.display())]
    Key {
        /// The file with the configuration.
        path: PathBuf,
        /// The key of the invalid value.
        key: &'static str,
        /// The invalid value.
        found: String,
        /// The values that the key may have.
        expected: String,
    },
    /// The configuration of a spectrogram is not a JSON object.
    #[error("`{}` is not a JSON object: {why}", .path.display())]
    Syntax {
        /// The file with the configuration.
        path: PathBuf,
        /// Position and reason.
        why: String,
    },
}
