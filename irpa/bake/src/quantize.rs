//! Writes a checkpoint with quantized matrices. The checkpoint is a safetensors file. The metadata
//! of the safetensors file list the tensors that are stored in quantized blocks.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use errors::FileError;
use files::{FileKind, NewFile, NewFolder, is_there};
use irpa::{ArchiveError, BLOCKS, BlockRows, Checkpoint, CheckpointTensor};
use ops::format::all_finite;
use ops::ops::Permute;
use ops::{ElementType, Op, TensorType, WeightFormat};
use safetensors::{Dtype, View};
use trace::{Parameter, Recipe, key_pattern};

use crate::compensate::{Importance, round};
use crate::finite::lost_in;

const FILE: &str = "model.safetensors";

/// The reason why Tracewright cannot write a quantized copy of a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The folder for the new checkpoint is a file, or already contains a file of a model.
    #[error("`{}` exists; write to another folder, or move this file away", .0.display())]
    Exists(PathBuf),
    #[error("cannot write `{}`", .path.display())]
    Write { path: PathBuf, source: safetensors::SafeTensorError },
}

/// Quantizes the matrices of a checkpoint one after the other.
pub struct Quantizer<'a> {
    checkpoint: &'a Checkpoint,
    sources: BTreeMap<String, Source>,
    rounded: BTreeMap<String, (BlockRows, Vec<u8>)>,
}

struct Source {
    ty: TensorType,
    format: Option<WeightFormat>,
    transposed: bool,
}

/// Checks before the slow calibration that the folder has no file that the checkpoint or its tokenizer would
/// replace, and none of `more`.
pub fn check_new_checkpoint(folder: &Path, more: &[&str]) -> Result<(), QuantizeError> {
    let files = [FILE].iter().chain(files::TOKENIZER_FILES).chain(more).copied();
    let mut files = files.map(|name| folder.join(name));
    let taken = if is_there(folder) && !folder.is_dir() {
        Some(folder.to_owned())
    } else {
        files.find(|path| is_there(path))
    };
    taken.map_or(Ok(()), |path| Err(QuantizeError::Exists(path)))
}

impl<'a> Quantizer<'a> {
    /// `formats` selects the format of each matrix by a pattern for its key.
    pub fn new(
        checkpoint: &'a Checkpoint,
        parameters: &[Parameter],
        formats: &BTreeMap<String, WeightFormat>,
    ) -> Self {
        let mut sources = BTreeMap::new();
        for parameter in parameters {
            let transposed = match parameter.recipe.as_deref() {
                Some(Recipe::Op(Op::Permute(Permute { order }), operands)) => {
                    order[..] == [1, 0] && matches!(operands[..], [Recipe::Source(..)])
                }
                _ => false,
            };
            for (key, ty) in parameter.sources() {
                let format = formats.get(&key_pattern(key)).copied().filter(|_| ty.rank() == 2);
                sources.insert(key.to_owned(), Source { ty: ty.clone(), format, transposed });
            }
        }
        Self { checkpoint, sources, rounded: BTreeMap::new() }
    }

    /// The keys of the matrices that are not quantized yet, each with the number of bytes of the matrix in f32.
    pub fn left(&self) -> Vec<(String, usize)> {
        let left = self
            .sources
            .iter()
            .filter(|(key, source)| source.format.is_some() && !self.rounded.contains_key(*key));
        left.map(|(key, source)| (key.clone(), 4 * source.ty.count())).collect()
    }

    /// Does nothing if `formats` has no format for the matrix.
    pub fn round(&mut self, key: &str, importance: &Importance) -> Result<(), ArchiveError> {
        let Some(Source { ty, format: Some(format), transposed }) = self.sources.get(key) else {
            return Ok(());
        };
        let mut matrix = vec![0.0; ty.count()];
        let ty = ty.with_element(ElementType::F32);
        crate::read(self.checkpoint, key, &ty, 0, &mut matrix)?;
        let lost = || lost_in(self.checkpoint, key, &ty, *format);
        if !all_finite(&matrix) {
            return Err(lost());
        }
        let mut shape = [ty.shape[0], ty.shape[1]];
        if *transposed {
            let [inputs, outputs] = shape;
            matrix = (0..matrix.len()).map(|i| matrix[i % inputs * outputs + i / inputs]).collect();
            shape = [outputs, inputs];
        }
        let blocks = round(*format, &mut matrix, shape[1], importance).ok_or_else(lost)?;
        let rows = BlockRows { format: format.word().to_owned(), shape, transposed: *transposed };
        self.rounded.insert(key.to_owned(), (rows, blocks));
        Ok(())
    }

    /// Returns the number of bytes. Matrices that are not quantized yet are rounded without statistics.
    pub fn write(mut self, folder: &Path) -> Result<u64, QuantizeError> {
        for (key, _) in self.left() {
            self.round(&key, &Importance::Equal)?;
        }
        let path = folder.join(FILE);
        if is_there(&path) {
            return Err(QuantizeError::Exists(path));
        }
        let described: BTreeMap<&String, &BlockRows> =
            self.rounded.iter().map(|(key, (rows, _))| (key, rows)).collect();
        // The metadata have a single entry, because the library writes several entries in the random order of
        // a `HashMap`.
        let texts = HashMap::from([(BLOCKS.to_owned(), serde_json::json!(described).to_string())]);
        let failed = RefCell::new(None);
        let tensors: Vec<(&String, Written<'_>)> =
            self.sources.iter().map(|(key, source)| (key, self.written(key, source, &failed))).collect();
        let bytes = tensors.iter().map(|(_, tensor)| (&tensor).data_len() as u64).sum();
        let new = NewFolder::create(folder)?;
        let write = || {
            let file = NewFile::begin(&path, FileKind::NEW)?;
            safetensors::serialize_to_file(
                tensors.iter().map(|(key, t)| (key, t)),
                Some(texts),
                file.partial(),
            )
            .map_err(|source| QuantizeError::Write { path: path.clone(), source })?;
            match failed.take() {
                Some(error) => Err(QuantizeError::Archive(error)),
                None => Ok(file.publish()?),
            }
        };
        match write() {
            Ok(()) => Ok(bytes),
            Err(error) => {
                new.discard();
                Err(error)
            }
        }
    }

    fn written<'s>(
        &'s self,
        key: &'s str,
        source: &'s Source,
        failed: &'s RefCell<Option<ArchiveError>>,
    ) -> Written<'s> {
        match self.rounded.get(key) {
            Some((_, blocks)) => {
                Written { dtype: Dtype::U8, shape: vec![blocks.len()], data: Data::Blocks(blocks) }
            }
            None => {
                // A tensor that is not quantized keeps the checkpoint's element type; a tensor in blocks becomes f32.
                let stored = self.checkpoint.get(key).and_then(CheckpointTensor::element);
                let element = stored.filter(|element| element.is_float()).unwrap_or(ElementType::F32);
                let dtype = match element {
                    ElementType::F16 => Dtype::F16,
                    ElementType::Bf16 => Dtype::BF16,
                    _ => Dtype::F32,
                };
                let ty = source.ty.with_element(element);
                Written {
                    dtype,
                    shape: ty.shape.clone(),
                    data: Data::Dense(self.checkpoint, key, ty, failed),
                }
            }
        }
    }
}

struct Written<'a> {
    dtype: Dtype,
    shape: Vec<usize>,
    data: Data<'a>,
}

enum Data<'a> {
    Blocks(&'a [u8]),
    /// Keeps the error of reading, because the trait `View` returns none.
    Dense(&'a Checkpoint, &'a str, TensorType, &'a RefCell<Option<ArchiveError>>),
}

impl View for &Written<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        match &self.data {
            Data::Blocks(blocks) => (*blocks).into(),
            Data::Dense(checkpoint, key, ty, failed) => {
                let (mut numbers, mut bytes) = (vec![0.0; ty.count()], vec![0; ty.bytes()]);
                if let Err(error) = crate::read(checkpoint, key, ty, 0, &mut numbers) {
                    failed.replace(Some(error));
                }
                for (i, number) in numbers.iter().enumerate() {
                    ty.element.store(&mut bytes, i, ty.element.encode((*number).into()));
                }
                bytes.into()
            }
        }
    }
    fn data_len(&self) -> usize {
        match &self.data {
            Data::Blocks(blocks) => blocks.len(),
            Data::Dense(_, _, ty, _) => ty.bytes(),
        }
    }
}
