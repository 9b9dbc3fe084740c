use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use errors::{FileError, WithPath as _};

use crate::{BrokenLink, StandIn, limits};

/// Rejects what is not a regular file, because reading a pipe could wait forever, and
/// [placeholders](StandIn).
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
    let read = || {
        regular(path)?;
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        if size > limit {
            return Err(too_large(format!("it has {size} bytes, expected at most {limit}")));
        }
        let mut content = Vec::with_capacity(size as usize);
        // If the file grows during reading, the rest of the file is cut off, and parsing the file
        // fails.
        file.take(limit).read_to_end(&mut content)?;
        match StandIn::of(&content) {
            // The caller decides whether the file may be empty.
            Some(found) if found != StandIn::Empty => Err(found.error()),
            _ => Ok(content),
        }
    };
    read().with_path("read", path)
}

pub fn read_text(path: &Path, limit: u64) -> Result<String, FileError> {
    utf8(read(path, limit)?).with_path("read", path)
}

/// Some editors put it at the beginning of a UTF-8 file.
const MARK: &str = "\u{feff}";

/// Returns the bytes of a text without the byte order mark at the beginning.
pub fn unmarked(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(MARK.as_bytes()).unwrap_or(bytes)
}

pub fn without_mark(mut text: String) -> String {
    if text.starts_with(MARK) {
        text.drain(..MARK.len());
    }
    text
}

/// Converts bytes to a text. Windows tools often write UTF-16, so the error names this encoding.
fn utf8(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let is_wide = [b"\xff\xfe", b"\xfe\xff"].iter().any(|mark| error.as_bytes().starts_with(*mark));
        let what = if is_wide {
            "it is UTF-16 text, expected UTF-8; save the file as UTF-8".to_owned()
        } else {
            format!("it is not UTF-8 text: {}", error.utf8_error())
        };
        io::Error::new(io::ErrorKind::InvalidData, what)
    })
}

/// Without a byte order mark, and not empty.
pub fn json_text(path: &Path, limit: u64) -> Result<String, FileError> {
    let text = without_mark(read_text(path, limit)?);
    if text.is_empty() { Err(StandIn::Empty.error()).with_path("read", path) } else { Ok(text) }
}

/// A [`json_text`] whose values fit into the memory limit.
pub fn read_json(path: &Path) -> Result<String, FileError> {
    let text = json_text(path, limits::CONFIG)?;
    check_json(&text).with_path("read", path)?;
    Ok(text)
}

pub fn check_json(text: &str) -> io::Result<()> {
    let (most, limit) = (json_memory(text), limits::JSON_MEMORY);
    if most > limit {
        Err(too_large(format!("its values may take {most} bytes of memory, expected at most {limit}")))
    } else {
        Ok(())
    }
}

/// An upper bound in bytes. Lists and objects count twice, because a growing list moves to twice its size.
fn json_memory(text: &str) -> u64 {
    let mut in_string = false;
    let mut bytes = text.bytes();
    let mut memory = 0;
    while let Some(byte) = bytes.next() {
        memory += match byte {
            b'"' => {
                in_string = !in_string;
                0
            }
            b'\\' if in_string => {
                bytes.next();
                0
            }
            b',' | b'[' if !in_string => 96,
            b':' if !in_string => 224,
            b'{' if !in_string => 320,
            // `NaN` and `Infinity` become objects with one string.
            b'N' | b'I' if !in_string => 640,
            _ => 0,
        };
    }
    memory
}

/// Reads a text of at most `limit` bytes. `path` can name a regular file or a pipe.
pub fn read_stream(path: &Path, limit: u64) -> Result<String, FileError> {
    File::open(path).and_then(|file| read_from(file, limit)).with_path("read", path)
}

/// Without a byte order mark.
pub fn read_from(from: impl io::Read, limit: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(too_large(format!("it has too many bytes, expected at most {limit}")));
    }
    utf8(bytes).map(without_mark)
}

fn too_large(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, what)
}

/// For a link, the target must be a regular file.
pub fn regular(path: &Path) -> io::Result<()> {
    if let Some(broken) = BrokenLink::at(path) {
        return Err(broken.error());
    }
    let metadata = fs::metadata(path)?;
    let what = match metadata.is_file() {
        true => return Ok(()),
        false if metadata.is_dir() => "it is a folder",
        false => "it is not a regular file",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}
