//! Formats of matrices by the patterns of their keys, as a file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use errors::FileError;
use files::limits;
use ops::WeightFormat;

/// Why a map of formats is not used.
#[derive(Debug, thiserror::Error)]
pub enum QuantMapError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is no JSON object of texts.
    #[error("`{}` is no JSON object of formats by key pattern", .path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The JSON error, with its line and column.
        source: serde_json::Error,
    },
    /// A word that names no format.
    #[error("`{}`: the format of `{pattern}` is `{found}`, expected none, q8, q4 or q4_k", .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The key pattern.
        pattern: String,
        /// The word.
        found: String,
    },
}

/// Reads the formats of matrices: a JSON object such as `{"model.layers.*.mlp.down_proj.weight": "q8"}`. `none` is as the network
/// computes.
///
/// # Errors
/// If the file is no such object.
pub fn read_quant_map(path: &Path) -> Result<BTreeMap<String, Option<WeightFormat>>, QuantMapError> {
    let bytes = files::read(path, limits::CONFIG)?;
    let words: BTreeMap<String, String> = serde_json::from_slice(&bytes)
        .map_err(|source| QuantMapError::Json { path: path.to_owned(), source })?;
    let format = |(pattern, found): (String, String)| {
        let mut quantized = WeightFormat::ALL.iter().copied().filter(|format| format.element().is_none());
        let format = match found.as_str() {
            "none" => None,
            word => match quantized.find(|format| format.word() == word) {
                Some(format) => Some(format),
                None => return Err(QuantMapError::Format { path: path.to_owned(), pattern, found }),
            },
        };
        Ok((pattern, format))
    };
    words.into_iter().map(format).collect()
}
