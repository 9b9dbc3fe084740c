//! Reads checkpoints: safetensors files, indexes with shards, and GGUF files.

use crate::counts::{GGUF_RENAMINGS, count};
use crate::error::{ArchiveError, RowsProblem};
use crate::gguf::{BlockFormat, Gguf, StoredNumbers};
use crate::index::PassedOver;
use crate::joined::Parts;
use crate::low_rank::{LowRank, Updates};
use crate::mapped::MappedFile;
use crate::rows::{BLOCKS, BlockRows};
use crate::unsupported::UnsupportedFormat;
use crate::weight_files::{WeightFiles, rejected};
use errors::WithPath as _;
use ops::format::{Quantized, ScaledFloats};
use ops::{ElementType, TensorType};
use safetensors::{Dtype, SafeTensors};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A memory-mapped checkpoint of one or several files, which maps names to tensors.
///
/// ```no_run
/// use tracewright_irpa::{ArchiveError, Checkpoint};
///
/// let checkpoint = Checkpoint::open("Llama-3.2-1B")?; // a folder with safetensors, or a GGUF file
/// for tensor in checkpoint.tensors() {
///     println!("{} {:?}", tensor.name, checkpoint.ty(&tensor.name)?);
/// }
/// # Ok::<(), ArchiveError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Checkpoint {
    path: PathBuf,
    pub(crate) files: Vec<(PathBuf, Arc<MappedFile>)>,
    pub(crate) tensors: BTreeMap<String, CheckpointTensor>,
    passed_over: Option<PassedOver>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointTensor {
    pub name: String,
    /// The name in the file. Several tensors can be parts of the same one.
    pub source: String,
    /// The element type can be one that Tracewright does not support.
    pub stored: StoredNumbers,
    pub shape: Vec<usize>,
    pub range: Range<usize>,
    pub arranged: StoredOrder,
    /// In a shard, but not in the index, as in fine-tuned checkpoints whose shards replace tensors of another
    /// one.
    pub unlisted: bool,
    pub(crate) file: usize,
    /// Whether `shape` does not contain leading extents of 1, as in GGUF files.
    pub(crate) without_ones: bool,
    /// The further tensors that describe the numbers, such as scales: the file's index and the range of bytes.
    pub(crate) parts: Vec<(usize, Range<usize>)>,
    /// Changed by an adapter, so the numbers differ from those of the model's own files.
    pub is_adapted: bool,
    pub(crate) updates: Vec<TensorUpdate>,
}

/// A [`LowRank`] whose tensors are in the files of the checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TensorUpdate {
    pub low_rank: LowRank,
    pub a: CheckpointTensor,
    pub b: CheckpointTensor,
    pub magnitude: Option<CheckpointTensor>,
}

/// How the file's order differs from the model's; the conversion to GGUF, for example, changes some tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoredOrder {
    #[default]
    Same,
    /// The rows of each of `heads` heads are interleaved: the first half at even positions, the second at odd
    /// ones. So the two rows of a pair that RoPE rotates are neighbours.
    PermutedRope { heads: usize },
    /// The file stores the transposed matrix, so the last two axes of the tensor are exchanged.
    Transposed,
    /// The file stores x + 1.
    PlusOne,
    /// The file stores −eˣ.
    NegativeExponential,
}

/// In the order of the file.
#[derive(Clone, Debug)]
pub struct TensorNumbers<'a> {
    bytes: &'a [u8],
    stored: StoredNumbers,
    element: Option<ElementType>,
    parts: Parts<'a>,
    updates: Updates,
}

impl TensorNumbers<'_> {
    /// From `start` on. Quantized blocks give the same f32 as ggml; an unsupported element type gives zeros.
    ///
    /// # Panics
    /// Panics if the tensor has fewer than `start + out.len()` numbers.
    pub fn read(&self, start: usize, out: &mut [f32]) {
        self.read_stored(start, out);
        self.updates.apply(start, out);
    }

    fn read_stored(&self, start: usize, out: &mut [f32]) {
        match (self.stored, self.element) {
            (StoredNumbers::Blocks(format), _) => format.decode(self.bytes, start, out),
            (StoredNumbers::Rows(format, length), _) => {
                let (mut done, padded) = (0, length.next_multiple_of(format.numbers()));
                while done < out.len() {
                    let (row, column) = ((start + done) / length, (start + done) % length);
                    let count = (length - column).min(out.len() - done);
                    format.decode(self.bytes, row * padded + column, &mut out[done..done + count]);
                    done += count;
                }
            }
            (StoredNumbers::Each(_), Some(element)) => element.decode_all(self.bytes, start, out),
            (StoredNumbers::Mxfp4, _) => self.floats().decode(start, out),
            (StoredNumbers::Joined(joined), _) => joined.read(self.bytes, self.parts, start, out),
            (StoredNumbers::Each(_), None) => out.fill(0.0),
        }
    }

    pub fn stored(&self) -> StoredNumbers {
        self.stored
    }

    /// The block of the `count` numbers from `start` on; `None` if no format of Tracewright stores it
    /// unchanged.
    pub fn quantized(&self, start: usize, count: usize) -> Option<Quantized> {
        match self.stored {
            _ if !self.updates.is_empty() => None,
            StoredNumbers::Blocks(format) if count == format.together() => {
                format.quantized(self.bytes, start)
            }
            StoredNumbers::Rows(format, length) => {
                let (row, column) = (start / length, start % length);
                let whole = count == format.numbers().min(length - column);
                let padded = length.next_multiple_of(format.numbers());
                whole.then(|| format.quantized(self.bytes, row * padded + column))?
            }
            StoredNumbers::Mxfp4 => self.floats().quantized(start, count),
            StoredNumbers::Joined(joined) => joined.quantized(self.bytes, self.parts, start, count),
            StoredNumbers::Blocks(_) | StoredNumbers::Each(_) => None,
        }
    }

    fn floats(&self) -> ScaledFloats<'_> {
        ScaledFloats { pairs: self.bytes, scales: self.parts[0] }
    }
}

impl Checkpoint {
    /// A safetensors file, a GGUF file, an index, or a directory with the first or an index under the
    /// standard name. Checks all headers, but reads no tensor data.
    ///
    /// If a directory has a safetensors file and an index, it reads the former, as Hugging Face transformers
    /// does: see [`passed_over`](Self::passed_over). A tensor in several shards comes from the one that the
    /// index lists.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ArchiveError> {
        let path = path.as_ref();
        if Gguf::is_at(path) {
            return Gguf::open(path).map(|file| Self::of_gguf(&file));
        }
        let mut checkpoint = Self::empty(path);
        let place = if path.is_dir() {
            WeightFiles::find(path)?
        } else {
            WeightFiles { file: path.into(), index: None }
        };
        if place.file.extension() == Some(OsStr::new("json")) {
            checkpoint.add_shards(&place.file)?;
        } else {
            for tensor in checkpoint.add_file(place.file)? {
                checkpoint.tensors.insert(tensor.name.clone(), tensor);
            }
        }
        checkpoint.passed_over = place.index.and_then(|index| checkpoint.differs_from(index));
        Ok(checkpoint)
    }

    pub(crate) fn empty(path: &Path) -> Self {
        Self { path: path.into(), files: Vec::new(), tensors: BTreeMap::new(), passed_over: None }
    }

    /// The index that was ignored beside a single safetensors file, unless its shards have the same weights.
    pub fn passed_over(&self) -> Option<&PassedOver> {
        self.passed_over.as_ref()
    }

    /// Names stay as in the file.
    pub fn of_gguf(file: &Gguf) -> Self {
        let tensor = |tensor: &crate::GgufTensor| {
            let (name, shape, range) = (tensor.name.clone(), tensor.shape.clone(), tensor.range.clone());
            let (stored, arranged) = (tensor.numbers, StoredOrder::Same);
            let source = name.clone();
            let tensor = CheckpointTensor {
                name,
                source,
                stored,
                shape,
                range,
                arranged,
                unlisted: false,
                without_ones: true,
                file: tensor.file,
                parts: Vec::new(),
                is_adapted: false,
                updates: Vec::new(),
            };
            (tensor.name.clone(), tensor)
        };
        let files = file.files().to_vec();
        Self { files, tensors: file.tensors().iter().map(tensor).collect(), ..Self::empty(file.path()) }
    }

    /// `revise` can change the name, the order and the shape, but not the number of elements, and removes a
    /// tensor by `None`. A tensor stays as it is if its new name is taken.
    #[must_use]
    pub fn revised(mut self, revise: impl Fn(CheckpointTensor) -> Option<CheckpointTensor>) -> Self {
        count(&GGUF_RENAMINGS);
        let mut tensors = BTreeMap::new();
        for (name, tensor) in self.tensors {
            let Some(revised) = revise(tensor.clone()) else { continue };
            if tensors.contains_key(&revised.name) {
                tensors.insert(name, tensor)
            } else {
                tensors.insert(revised.name.clone(), revised)
            };
        }
        self.tensors = tensors;
        self
    }

    /// Adds the checkpoint in a subfolder, with `folder` and a dot before its names.
    pub fn with_folder(mut self, folder: &str) -> Result<Self, ArchiveError> {
        let other = Self::open(self.path.join(folder))?;
        let first = self.files.len();
        self.files.extend(other.files);
        for tensor in other.tensors.into_values() {
            let name = format!("{folder}.{}", tensor.name);
            let file = first + tensor.file;
            self.tensors.insert(name.clone(), CheckpointTensor { name, file, ..tensor });
        }
        Ok(self)
    }

    /// Pairs of an old and a new prefix. A tensor keeps its name if the new one is taken.
    #[must_use]
    pub fn renamed(mut self, prefixes: &[(&str, &str)]) -> Self {
        for name in self.tensors.keys().cloned().collect::<Vec<_>>() {
            let renamed =
                prefixes.iter().find_map(|(from, to)| Some(format!("{to}{}", name.strip_prefix(from)?)));
            let Some(renamed) = renamed.filter(|renamed| !self.tensors.contains_key(renamed)) else {
                continue;
            };
            if let Some(tensor) = self.tensors.remove(&name) {
                self.tensors.insert(renamed.clone(), CheckpointTensor { name: renamed, ..tensor });
            }
        }
        self
    }

    /// Splits tensors of several weights, such as stacks of experts. A pair has the suffix of the tensor, and
    /// those of its weights. With `*`, which becomes the slice's index, the tensor is first cut along its
    /// first axis. Each slice is divided equally among the suffixes, or stays as it is.
    #[must_use]
    pub fn apart(mut self, stacks: &[(&str, &[&str])]) -> Self {
        for name in self.tensors.keys().cloned().collect::<Vec<_>>() {
            let found = stacks.iter().find_map(|(whole, parts)| Some((name.strip_suffix(whole)?, *parts)));
            let Some((before, parts)) = found else { continue };
            let Some(pieces) = self.tensors.get(&name).and_then(|tensor| tensor.pieces(before, parts)) else {
                continue;
            };
            self.tensors.remove(&name);
            self.tensors.extend(pieces.into_iter().map(|piece| (piece.name.clone(), piece)));
        }
        self
    }

    /// Combines four-bit floats with their scales, as in published gpt-oss checkpoints: `NAME_blocks` `[…,
    /// rows, inputs / 32, 16]` and `NAME_scales` `[…, rows, inputs / 32]` become `NAME` `[…, inputs, rows]`.
    #[must_use]
    pub fn with_scales(mut self) -> Self {
        for name in self.tensors.keys().cloned().collect::<Vec<_>>() {
            let Some(joined) = name.strip_suffix("_blocks") else { continue };
            let scales_name = format!("{joined}_scales");
            let (Some(blocks), Some(scales)) = (self.get(&name), self.get(&scales_name)) else { continue };
            let are_bytes = [blocks, scales].iter().all(|part| part.stored == StoredNumbers::Each(Dtype::U8));
            let [before @ .., rows, groups, 16] = &blocks.shape[..] else { continue };
            if !are_bytes || scales.shape[..] != blocks.shape[..blocks.shape.len() - 1] {
                continue;
            }
            let tensor = CheckpointTensor {
                name: joined.to_owned(),
                stored: StoredNumbers::Mxfp4,
                shape: [before, &[groups * BlockFormat::Mxfp4.numbers(), *rows]].concat(),
                arranged: StoredOrder::Transposed,
                parts: vec![(scales.file, scales.range.clone())],
                ..blocks.clone()
            };
            self.tensors.remove(&name);
            self.tensors.remove(&scales_name);
            self.tensors.insert(tensor.name.clone(), tensor);
        }
        self
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| path.as_path())
    }

    /// On all threads.
    pub fn content_blake3(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for (_, map) in &self.files {
            // The length before each file prevents two different lists of files from having the same hash.
            hasher.update(&(map.len() as u64).to_le_bytes());
            hasher.update_rayon(map);
        }
        hasher.finalize().to_string()
    }

    /// Sorted by name.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &CheckpointTensor> {
        self.tensors.values()
    }

    pub fn get(&self, name: &str) -> Option<&CheckpointTensor> {
        self.tensors.get(name)
    }

    pub fn file(&self, tensor: &CheckpointTensor) -> &Path {
        &self.files[tensor.file].0
    }

    /// Fails for an unsupported element type.
    pub fn ty(&self, name: &str) -> Result<TensorType, ArchiveError> {
        let tensor = self.require(name)?;
        let (path, name) = (self.file(tensor).to_owned(), name.to_owned());
        match (tensor.stored, tensor.element()) {
            _ if !tensor.updates.is_empty() => Ok(TensorType::new(ElementType::F32, tensor.shape.clone())),
            (StoredNumbers::Mxfp4, _) => {
                Err(ArchiveError::Blocks { path, name, format: BlockFormat::Mxfp4.word() })
            }
            (StoredNumbers::Blocks(format) | StoredNumbers::Rows(format, _), _) => {
                Err(ArchiveError::Blocks { path, name, format: format.word() })
            }
            (StoredNumbers::Joined(joined), _) => {
                Err(ArchiveError::Blocks { path, name, format: joined.blocks().word() })
            }
            (StoredNumbers::Each(dtype), None) => Err(ArchiveError::Dtype { path, name, dtype }),
            (_, Some(element)) => Ok(TensorType::new(element, tensor.shape.clone())),
        }
    }

    /// Little-endian, perhaps unaligned; without the updates of an adapter.
    pub fn data(&self, name: &str) -> Result<&[u8], ArchiveError> {
        let tensor = self.require(name)?;
        Ok(&self.files[tensor.file].1[tensor.range.clone()])
    }

    /// Unlike those of [`data`](Self::data), the bytes do not stay in the memory of the process.
    pub fn read_once<R>(&self, name: &str, read: impl FnOnce(&[u8]) -> R) -> Result<R, ArchiveError> {
        let tensor = self.require(name)?;
        let (path, file) = &self.files[tensor.file];
        Ok(file.read_once(tensor.range.clone(), read).with_path("map", path)?)
    }

    /// In the order of the file.
    pub fn numbers(&self, name: &str) -> Result<TensorNumbers<'_>, ArchiveError> {
        let tensor = self.require(name)?;
        let base = self.stored_numbers(tensor);
        Ok(TensorNumbers { updates: self.updates(tensor, &base)?, ..base })
    }

    pub(crate) fn stored_numbers(&self, tensor: &CheckpointTensor) -> TensorNumbers<'_> {
        let (bytes, stored) = (&self.files[tensor.file].1[tensor.range.clone()], tensor.stored);
        let mut parts = Parts::default();
        for (part, (file, range)) in parts.iter_mut().zip(&tensor.parts) {
            *part = &self.files[*file].1[range.clone()];
        }
        TensorNumbers { bytes, stored, element: tensor.stored_element(), parts, updates: Updates::default() }
    }

    /// The stored types may differ.
    pub fn holds_equal(&self, name: &str, other: &str) -> bool {
        const TOGETHER: usize = 4096;
        let (Some(a), Some(b)) = (self.get(name), self.get(other)) else { return false };
        let (Ok(left), Ok(right)) = (self.numbers(name), self.numbers(other)) else { return false };
        if (a.arranged, &a.shape) != (b.arranged, &b.shape) {
            return false;
        }
        if a.stored == b.stored && a.updates.is_empty() && b.updates.is_empty() {
            return (left.bytes, left.parts) == (right.bytes, right.parts);
        }
        let count: usize = a.shape.iter().product();
        let readable = [a, b].iter().all(|tensor| tensor.element().is_some() || tensor.blocks().is_some());
        readable
            && (0..count).step_by(TOGETHER).all(|start| {
                let length = TOGETHER.min(count - start);
                let [mut x, mut y] = [vec![0.0; length], vec![0.0; length]];
                left.read(start, &mut x);
                right.read(start, &mut y);
                x == y
            })
    }

    pub(crate) fn require(&self, name: &str) -> Result<&CheckpointTensor, ArchiveError> {
        self.get(name).ok_or_else(|| ArchiveError::NoTensor { path: self.path.clone(), name: name.into() })
    }

    pub(crate) fn add_file(&mut self, path: PathBuf) -> Result<Vec<CheckpointTensor>, ArchiveError> {
        let map = MappedFile::open(&path)?;
        if let Some(format) = UnsupportedFormat::of_safetensors(&path, &map) {
            return Err(ArchiveError::Foreign { path, format });
        }
        let (header, metadata) =
            SafeTensors::read_metadata(&map).map_err(|error| rejected(&path, &map, error))?;
        let start = size_of::<u64>() + header;
        let file = self.files.len();
        let tensor = |(name, info): (String, &safetensors::tensor::TensorInfo)| CheckpointTensor {
            source: name.clone(),
            name,
            stored: StoredNumbers::Each(info.dtype),
            shape: info.shape.clone(),
            range: start + info.data_offsets.0..start + info.data_offsets.1,
            arranged: StoredOrder::Same,
            unlisted: false,
            without_ones: false,
            file,
            parts: Vec::new(),
            is_adapted: false,
            updates: Vec::new(),
        };
        let mut tensors: Vec<_> = metadata.tensors().into_iter().map(tensor).collect();
        if let Some(text) = metadata.metadata().as_ref().and_then(|texts| texts.get(BLOCKS)) {
            in_blocks(&mut tensors, text)
                .map_err(|problem| ArchiveError::Rows { path: path.clone(), problem })?;
        }
        self.files.push((path, map));
        Ok(tensors)
    }

    /// Overwriting a mapped checkpoint would destroy what may be the only copy of the weights.
    pub fn check_output(&self, path: &Path) -> Result<(), ArchiveError> {
        if files::is_one_of(path, self.files().chain([self.path()])) {
            Err(ArchiveError::OutputIsInput { path: path.into() })
        } else {
            Ok(())
        }
    }
}

/// Turns tensors of bytes into the block-quantized matrices that `text`, JSON in the file's metadata, lists.
fn in_blocks(tensors: &mut [CheckpointTensor], text: &str) -> Result<(), RowsProblem> {
    let mut described: BTreeMap<String, BlockRows> = serde_json::from_str(text).map_err(RowsProblem::Json)?;
    for tensor in tensors {
        let Some(rows) = described.remove(&tensor.name) else { continue };
        let name = tensor.name.clone();
        let (Some(format), Some(expected)) = (rows.blocks(), rows.bytes()) else {
            return Err(RowsProblem::Format { name, format: rows.format });
        };
        match tensor.stored {
            StoredNumbers::Each(Dtype::U8) if tensor.range.len() == expected && expected > 0 => {}
            StoredNumbers::Each(dtype) => {
                return Err(RowsProblem::Bytes { name, dtype, found: tensor.range.len(), expected });
            }
            _ => {}
        }
        let [outputs, inputs] = rows.shape;
        tensor.stored = StoredNumbers::Rows(format, inputs);
        tensor.shape = if rows.transposed { vec![inputs, outputs] } else { vec![outputs, inputs] };
        tensor.arranged = if rows.transposed { StoredOrder::Transposed } else { StoredOrder::Same };
    }
    described.into_keys().next().map_or(Ok(()), |name| Err(RowsProblem::Missing(name)))
}

impl CheckpointTensor {
    /// For [`Checkpoint::apart`].
    fn pieces(&self, before: &str, parts: &[&str]) -> Option<Vec<Self>> {
        let numbered = parts.iter().any(|part| part.contains('*'));
        let (count, mut shape) =
            if numbered { (*self.shape.first()?, self.shape[1..].to_vec()) } else { (1, self.shape.clone()) };
        let rows = shape.first_mut()?;
        let (pieces, bytes) = (count * parts.len(), self.range.len());
        if pieces == 0 || *rows % parts.len() != 0 || bytes % pieces != 0 {
            return None;
        }
        *rows /= parts.len();
        if let StoredNumbers::Joined(_) = self.stored {
            return (count == 1).then(|| self.joined_pieces(before, parts, &shape));
        }
        let piece = |index: usize| {
            let part = parts[index % parts.len()].replace('*', &(index / parts.len()).to_string());
            let start = self.range.start + index * (bytes / pieces);
            let (name, range) = (format!("{before}{part}"), start..start + bytes / pieces);
            Self { name, shape: shape.clone(), range, ..self.clone() }
        };
        Some((0..pieces).map(piece).collect())
    }

    /// Whether the tensor can have the given shape. The shapes of a GGUF file contain no leading extents of 1.
    pub fn has_shape(&self, shape: &[usize]) -> bool {
        fn short(shape: &[usize]) -> &[usize] {
            &shape[shape.iter().take_while(|&&extent| extent == 1).count()..]
        }
        self.shape == shape || (self.without_ones && short(&self.shape) == short(shape))
    }

    /// `None` after the update of an adapter.
    pub fn blocks(&self) -> Option<BlockFormat> {
        match self.stored {
            _ if !self.updates.is_empty() => None,
            StoredNumbers::Blocks(format) | StoredNumbers::Rows(format, _) => Some(format),
            StoredNumbers::Mxfp4 => Some(BlockFormat::Mxfp4),
            StoredNumbers::Joined(joined) => Some(joined.blocks()),
            StoredNumbers::Each(_) => None,
        }
    }

    /// F32 after the update of an adapter, because readers compute the sum in f32.
    pub fn element(&self) -> Option<ElementType> {
        if self.updates.is_empty() { self.stored_element() } else { Some(ElementType::F32) }
    }

    /// Whether an adapter adds numbers to those of the file.
    pub fn is_merged(&self) -> bool {
        !self.updates.is_empty()
    }

    /// Whether [`Checkpoint::data`] has the numbers of the model's tensor in its order.
    pub fn is_plain(&self) -> bool {
        self.element().is_some() && self.arranged == StoredOrder::Same && self.updates.is_empty()
    }
}

pub(crate) fn element(dtype: Dtype) -> Option<ElementType> {
    match dtype {
        Dtype::F32 => Some(ElementType::F32),
        Dtype::F16 => Some(ElementType::F16),
        Dtype::BF16 => Some(ElementType::Bf16),
        Dtype::I32 => Some(ElementType::I32),
        Dtype::I8 => Some(ElementType::I8),
        Dtype::BOOL => Some(ElementType::I1),
        _ => None,
    }
}
