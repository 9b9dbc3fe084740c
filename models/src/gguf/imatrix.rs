//! Reads importance matrices, which are files of `llama-imatrix` (`tools/imatrix/imatrix.cpp` in
//! llama.cpp). An importance matrix contains the mean squares of each matmul's inputs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use irpa::{ArchiveError, Dtype, Gguf, GgufTensor, ModelFiles, StoredNumbers};

use super::names::Renaming;
use crate::ModelConfig;
use crate::config::ConfigError;

/// The reason why Tracewright cannot read an importance matrix.
#[derive(Debug, thiserror::Error)]
pub enum ImatrixError {
    /// The file is not a GGUF file.
    #[error(transparent)]
    File(#[from] ArchiveError),
    /// The model's configuration cannot be read.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Tracewright knows no GGUF tensor names for this family.
    #[error("the architecture of `{}` has no tensor names for GGUF files; calibrate with a text instead of \
        an importance matrix", .0.display())]
    NoNames(PathBuf),
    /// The file has the format of importance matrices before GGUF.
    #[error("`{path}` is an importance matrix in llama.cpp's old format, expected GGUF; convert the file with \
        `llama-imatrix --in-file {path} -o imatrix.gguf`", path = .0.display())]
    Old(PathBuf),
    /// The importance matrix contains no data about the matrices of the network.
    #[error("the importance matrix `{}` has no tensor `….in_sum2` for a matrix of the network; write the \
        importance matrix with `llama-imatrix`", .0.display())]
    Empty(PathBuf),
    /// A sum of squares or a count is NaN, infinite or negative.
    #[error("`{}`: the number {index} of the tensor `{tensor}` is {found}, expected a finite number of at least 0; \
        write the importance matrix again with `llama-imatrix`", .path.display())]
    Number {
        /// Path of the importance matrix.
        path: PathBuf,
        /// The name of the tensor in the importance matrix.
        tensor: String,
        /// The index of the number in the tensor, beginning with 0.
        index: usize,
        /// The invalid number.
        found: f32,
    },
}

/// The suffixes of the names of tensors that contain sums of squares and token counts.
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

/// The smallest importance of an input, as a fraction of the mean importance.
const LEAST: f32 = 1e-6;

/// Mean squares of matmul inputs, by the matrix's name in the network of `model`.
pub fn read_imatrix(
    path: &Path,
    model: impl Into<ModelFiles>,
    allowed: &[String],
) -> Result<BTreeMap<String, Vec<f32>>, ImatrixError> {
    let files = model.into();
    let renaming = if files.is_gguf() {
        super::read(super::open(&files)?, allowed)?.1
    } else {
        let gguf = &ModelConfig::read(&files, allowed)?.family().gguf;
        Renaming::of(gguf.as_ref().ok_or_else(|| ImatrixError::NoNames(files.path().to_owned()))?)
    };
    if is_old(path) {
        return Err(ImatrixError::Old(path.to_owned()));
    }
    let file = Gguf::open(path)?;
    let mut squares = BTreeMap::new();
    for tensor in file.tensors() {
        let Some(matrix) = tensor.name.strip_suffix(SUMS) else { continue };
        let (Some(name), Some(counts)) = (renaming.name(matrix), file.tensor(&format!("{matrix}{COUNTS}")))
        else {
            continue;
        };
        let of_inputs = numbers(&file, tensor)?;
        if let [count] = numbers(&file, counts)?[..]
            && !of_inputs.is_empty()
        {
            squares.insert(name, means(of_inputs, count));
        }
    }
    if squares.is_empty() { Err(ImatrixError::Empty(path.to_owned())) } else { Ok(squares) }
}

/// Written by `llama-imatrix` before GGUF: the number of entries, then length and text of a tensor name.
fn is_old(path: &Path) -> bool {
    let mut head = Vec::new();
    if !path.is_file() || File::open(path).and_then(|file| file.take(128).read_to_end(&mut head)).is_err() {
        return false;
    }
    let (words, text) = head.split_at_checked(8).unwrap_or_default();
    let [entries, length] = [0, 4].map(|at| match words.get(at..at + 4) {
        Some(&[a, b, c, d]) => u32::from_le_bytes([a, b, c, d]),
        _ => 0,
    });
    let name = text.get(..length as usize).unwrap_or_default();
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    (1..1 << 16).contains(&entries) && name.contains(&b'.') && name.iter().all(is_name)
}

/// Empty for another type.
fn numbers(file: &Gguf, tensor: &GgufTensor) -> Result<Vec<f32>, ImatrixError> {
    let words = match tensor.numbers {
        StoredNumbers::Each(Dtype::F32) => file.data(tensor).as_chunks::<4>().0,
        _ => &[],
    };
    let numbers: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
    match numbers.iter().position(|x| !x.is_finite() || *x < 0.0) {
        Some(index) => {
            let (path, tensor) = (file.path().to_owned(), tensor.name.clone());
            Err(ImatrixError::Number { path, tensor, index, found: numbers[index] })
        }
        None => Ok(numbers),
    }
}

fn means(mut squares: Vec<f32>, count: f32) -> Vec<f32> {
    squares.iter_mut().for_each(|square| *square /= count.max(1.0));
    let mean = squares.iter().sum::<f32>() / squares.len().max(1) as f32;
    squares.iter_mut().for_each(|square| *square = square.max(LEAST * mean).max(f32::MIN_POSITIVE));
    squares
}
