//! Reads a file that maps patterns of weight names to storage formats.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use errors::FileError;
use files::limits;
use ops::WeightFormat;

/// The reason why a file with storage formats cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum QuantMapError {
    /// The file that maps weights to storage formats cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    #[error("`{}` is not a JSON object that maps patterns of weight names to formats", .path.display())]
    Json {
        /// The path of the file that is not a valid JSON object.
        path: PathBuf,
        /// The JSON error, with its line and column.
        source: serde_json::Error,
    },
    /// A value in the file is not the name of a storage format.
    #[error("`{}`: the format of `{pattern}` is `{found}`, expected none, {}", .path.display(), WeightFormat::list(choices()))]
    Format {
        path: PathBuf,
        /// A pattern of weight names.
        pattern: String,
        found: String,
    },
}

fn choices() -> impl Iterator<Item = WeightFormat> {
    WeightFormat::choices().map(|(format, _)| format)
}

/// Reads the storage formats of weight matrices from a file with a JSON object such as
/// `{"model.layers.*.mlp.down_proj.weight": "q8"}`. The value `none` selects the element type of
/// the network as the storage format.
pub fn read_quant_map(path: &Path) -> Result<BTreeMap<String, Option<WeightFormat>>, QuantMapError> {
    let bytes = files::read(path, limits::CONFIG)?;
    let words: BTreeMap<String, String> = serde_json::from_slice(files::unmarked(&bytes))
        .map_err(|source| QuantMapError::Json { path: path.to_owned(), source })?;
    let format = |(pattern, found): (String, String)| {
        let format = match found.as_str() {
            "none" => None,
            word => match choices().find(|format| format.word() == word) {
                Some(format) => Some(format),
                None => return Err(QuantMapError::Format { path: path.to_owned(), pattern, found }),
            },
        };
        Ok((pattern, format))
    };
    words.into_iter().map(format).collect()
}
