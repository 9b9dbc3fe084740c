//! A GGUF file in parts, so that a test can change one key or one tensor and write the file again.
#![allow(dead_code, reason = "each test file uses a part")]

use std::fs;
use std::path::Path;

/// The types of metadata values (`gguf_metadata_value_type`).
pub const U32: u32 = 4;
pub const I32: u32 = 5;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const TEXT: u32 = 8;
pub const ARRAY: u32 = 9;

const ALIGNMENT: usize = 32;

#[derive(Clone, Debug, Default)]
pub struct GgufParts {
    /// The name, the type and the bytes of each value.
    pub keys: Vec<(String, u32, Vec<u8>)>,
    pub tensors: Vec<TensorPart>,
}

#[derive(Clone, Debug)]
pub struct TensorPart {
    pub name: String,
    /// The extents, innermost first, as in the file.
    pub extents: Vec<u64>,
    /// The number of the type in ggml.
    pub kind: u32,
    pub data: Vec<u8>,
}

pub fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// The bytes of an array of values with the type `kind`.
pub fn array(kind: u32, values: &[Vec<u8>]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &(values.len() as u64).to_le_bytes(), &values.concat()].concat()
}

/// The number of values in a block, and the bytes of a block (`GGML_QUANT_SIZES`).
fn block(kind: u32) -> (usize, usize) {
    match kind {
        0 => (1, 4),
        1 | 30 => (1, 2),
        2 => (32, 18),
        3 => (32, 20),
        6 => (32, 22),
        7 => (32, 24),
        8 => (32, 34),
        12 => (256, 144),
        13 => (256, 176),
        14 => (256, 210),
        39 => (32, 17),
        other => panic!("type {other}"),
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        self.at += count;
        &self.bytes[self.at - count..self.at]
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    fn text(&mut self) -> String {
        let length = self.u64() as usize;
        String::from_utf8(self.take(length).to_vec()).unwrap()
    }

    fn skip(&mut self, kind: u32) {
        match kind {
            0 | 1 | 7 => drop(self.take(1)),
            2 | 3 => drop(self.take(2)),
            4..=6 => drop(self.take(4)),
            8 => drop(self.text()),
            9 => {
                let (kind, count) = (self.u32(), self.u64());
                (0..count).for_each(|_| self.skip(kind));
            }
            _ => drop(self.take(8)),
        }
    }
}

impl GgufParts {
    pub fn read(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap();
        let mut cursor = Cursor { bytes: &bytes, at: 8 };
        let (tensors, keys) = (cursor.u64(), cursor.u64());
        let key = |_| {
            let (name, kind) = (cursor.text(), cursor.u32());
            let start = cursor.at;
            cursor.skip(kind);
            (name, kind, bytes[start..cursor.at].to_vec())
        };
        let keys = (0..keys).map(key).collect();
        let tensor = |_| {
            let (name, rank) = (cursor.text(), cursor.u32());
            let extents: Vec<u64> = (0..rank).map(|_| cursor.u64()).collect();
            (name, extents, cursor.u32(), cursor.u64() as usize)
        };
        let infos: Vec<_> = (0..tensors).map(tensor).collect();
        let start = cursor.at.next_multiple_of(ALIGNMENT);
        let tensors = infos.into_iter().map(|(name, extents, kind, offset)| {
            let (together, size) = block(kind);
            let length = extents.iter().product::<u64>() as usize / together * size;
            TensorPart { name, extents, kind, data: bytes[start + offset..][..length].to_vec() }
        });
        Self { tensors: tensors.collect(), keys }
    }

    /// Sets a key, which may be new.
    pub fn set(&mut self, name: &str, kind: u32, value: Vec<u8>) {
        self.keys.retain(|(key, ..)| key != name);
        self.keys.push((name.to_owned(), kind, value));
    }

    pub fn add(&mut self, name: &str, extents: &[u64], kind: u32, data: Vec<u8>) {
        self.tensors.push(TensorPart { name: name.to_owned(), extents: extents.to_vec(), kind, data });
    }

    pub fn tensor(&mut self, name: &str) -> &mut TensorPart {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap_or_else(|| panic!("{name}"))
    }

    /// The file, in which the data of tensor i are at the offset that `places` returns for i and the
    /// usual offset.
    pub fn placed(&self, places: impl Fn(usize, u64) -> u64) -> Vec<u8> {
        let mut bytes = [&b"GGUF"[..], &3u32.to_le_bytes()].concat();
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.keys.len() as u64).to_le_bytes());
        for (name, kind, value) in &self.keys {
            bytes.extend([&text(name)[..], &kind.to_le_bytes(), value].concat());
        }
        let mut data = Vec::new();
        for (index, tensor) in self.tensors.iter().enumerate() {
            bytes.extend(text(&tensor.name));
            bytes.extend((tensor.extents.len() as u32).to_le_bytes());
            bytes.extend(tensor.extents.iter().flat_map(|extent| extent.to_le_bytes()));
            bytes.extend(tensor.kind.to_le_bytes());
            bytes.extend(places(index, data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
            data.resize(data.len().next_multiple_of(ALIGNMENT), 0);
        }
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        bytes.extend(data);
        bytes
    }

    pub fn write(&self, path: &Path) {
        fs::write(path, self.placed(|_, offset| offset)).unwrap();
    }
}
