//! Writes random weights for the model that a `config.json` describes. With random weights, you can
//! run and measure a model without its checkpoint.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use errors::{FileError, WithPath as _};
use files::{FileKind, NewFile, NewFolder, is_there, limits};
use ops::{ElementType, TensorType};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use safetensors::{Dtype, View};
use trace::Parameter;

#[derive(Debug, thiserror::Error)]
pub enum RandomError {
    #[error(transparent)]
    File(#[from] FileError),
    /// The folder already contains a checkpoint or a different configuration file.
    #[error("`{}` exists; write to another folder, or move this file away", .0.display())]
    Exists(PathBuf),
    #[error("stopped on request while writing `{}`", .0.display())]
    Stopped(PathBuf),
    /// The machine does not have enough memory for a tensor. [`write_random`] keeps a whole tensor in memory.
    #[error("the tensor `{key}` needs {bytes} bytes, which is more than the memory of the machine")]
    Memory { key: String, bytes: usize },
    #[error("cannot write `{}`", .path.display())]
    Write { path: PathBuf, source: safetensors::SafeTensorError },
}

struct RandomTensor<'a> {
    key: &'a str,
    ty: &'a TensorType,
    seed: u64,
    watch: WatchBytes<'a>,
}

/// Receives the bytes of each written tensor, and can stop.
pub type WatchBytes<'a> = &'a (dyn Fn(usize) -> ControlFlow<()> + Sync);

impl RandomTensor<'_> {
    /// A separate stream per tensor, so that its content does not depend on others.
    fn bytes(&self) -> Vec<u8> {
        if (self.watch)(0).is_break() {
            return Vec::new(); // The file is thrown away.
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.seed.to_le_bytes()).update(self.key.as_bytes());
        let mut random = ChaCha8Rng::from_seed(*hasher.finalize().as_bytes());
        // The mean of a norm's weights is 1, because they are factors. The mean of all other weights,
        // including a norm's bias, is 0.
        let is_factor = self.ty.rank() == 1 && self.key.contains("norm") && !self.key.ends_with("bias");
        let centre = if is_factor { 1.0 } else { 0.0 };
        // A matrix has the standard deviation 1/√inputs, so that activations keep their size and tokens
        // differ. A vector has 0.1.
        let variance =
            if self.ty.rank() < 2 { 0.01 } else { 1.0 / self.ty.shape[self.ty.rank() - 1].max(1) as f32 };
        let half_width = (3.0 * variance).sqrt();
        let number = |drawn: u16| centre + (f32::from(drawn) / 32767.5 - 1.0) * half_width;
        let mut bytes = vec![0; self.ty.bytes()];
        // Each number comes from two random bytes. In a type with two bytes per number, a table converts the
        // random bytes in place; the table contains the number for each of the 65,536 random values.
        let element = self.ty.element;
        if element.bits() == 16 {
            let encoded = |drawn: u16| (element.encode(number(drawn).into()) as u16).to_le_bytes();
            let table: Vec<[u8; 2]> = (0..=u16::MAX).map(encoded).collect();
            random.fill_bytes(&mut bytes);
            for place in bytes.as_chunks_mut().0 {
                *place = table[usize::from(u16::from_le_bytes(*place))];
            }
        } else {
            let (mut pool, mut left) = (0u64, 0);
            for i in 0..self.ty.count() {
                if left == 0 {
                    (pool, left) = (random.next_u64(), 4);
                }
                let value = number(pool as u16);
                (pool, left) = (pool >> 16, left - 1);
                match element {
                    ElementType::F32 => bytes[4 * i..4 * i + 4].copy_from_slice(&value.to_le_bytes()),
                    _ => element.store(&mut bytes, i, element.encode(value.into())),
                }
            }
        }
        let _ = (self.watch)(bytes.len());
        bytes
    }
}

impl View for &RandomTensor<'_> {
    fn dtype(&self) -> Dtype {
        match self.ty.element {
            ElementType::F32 => Dtype::F32,
            ElementType::F16 => Dtype::F16,
            ElementType::Bf16 => Dtype::BF16,
            ElementType::I32 => Dtype::I32,
            ElementType::I8 | ElementType::I4 => Dtype::I8,
            ElementType::I1 => Dtype::BOOL,
        }
    }
    fn shape(&self) -> &[usize] {
        &self.ty.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        self.bytes().into()
    }
    fn data_len(&self) -> usize {
        self.ty.bytes()
    }
}

/// A cached folder with random weights, one for each seed and list of parameters.
pub fn random_checkpoint(
    config: &Path,
    parameters: &[Parameter],
    seed: u64,
    cache: &Path,
    watch: WatchBytes<'_>,
) -> Result<PathBuf, RandomError> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&files::read(config, limits::CONFIG)?).update(&seed.to_le_bytes());
    for (key, ty) in parameters.iter().flat_map(Parameter::sources) {
        hasher.update(format!("{key}\0{ty}\0").as_bytes());
    }
    let all = cache.join("random");
    let folder = all.join(&hasher.finalize().to_hex()[..32]);
    if !folder.join("model.safetensors").exists() {
        fs::create_dir_all(&all).with_path("create", &all)?;
        write_random(config, parameters, seed, &folder, watch)?;
    }
    Ok(folder)
}

/// Writes `config.json`, a copy of `config`, and `model.safetensors` with random data for each tensor of the
/// parameters, one at a time in memory. No error leaves a partial file in the folder.
pub fn write_random(
    config: &Path,
    parameters: &[Parameter],
    seed: u64,
    folder: &Path,
    watch: WatchBytes<'_>,
) -> Result<(), RandomError> {
    let text = files::read(config, limits::CONFIG)?;
    let new = NewFolder::create(folder)?;
    let written = write(&text, parameters, seed, folder, watch);
    if written.is_err() {
        new.discard();
    }
    written
}

fn write(
    config: &[u8],
    parameters: &[Parameter],
    seed: u64,
    folder: &Path,
    watch: WatchBytes<'_>,
) -> Result<(), RandomError> {
    let largest = parameters.iter().flat_map(Parameter::sources).max_by_key(|(_, ty)| ty.bytes());
    if let Some((key, ty)) = largest
        && Vec::<u8>::new().try_reserve_exact(ty.bytes()).is_err()
    {
        return Err(RandomError::Memory { key: key.into(), bytes: ty.bytes() });
    }
    let target = folder.join("model.safetensors");
    if is_there(&target) {
        return Err(RandomError::Exists(target));
    }
    let copy = folder.join("config.json");
    let there = is_there(&copy).then(|| files::read(&copy, limits::CONFIG)).transpose()?;
    let is_new = there.is_none();
    if there.is_some_and(|there| there != config) {
        return Err(RandomError::Exists(copy));
    }
    let sources: BTreeMap<&str, &TensorType> = parameters.iter().flat_map(Parameter::sources).collect();
    let tensors: Vec<RandomTensor<'_>> =
        sources.into_iter().map(|(key, ty)| RandomTensor { key, ty, seed, watch }).collect();
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let weights = NewFile::begin(&target, FileKind::NEW)?;
    let written =
        safetensors::serialize_to_file(tensors.iter().map(|t| (t.key, t)), Some(metadata), weights.partial());
    if watch(0).is_break() {
        return Err(RandomError::Stopped(target));
    }
    written.map_err(|source| RandomError::Write { path: target.clone(), source })?;
    if is_new {
        NewFile::write(&copy, FileKind::NEW, config)?;
    }
    Ok(weights.publish()?)
}
