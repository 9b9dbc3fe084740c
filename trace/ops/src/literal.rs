//! A [`Literal`] is a constant, whose elements are known when a trace is recorded.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::{Attribute, ElementType, ParseError, Reader, Real, TensorType, Value};

/// A constant tensor. Two are equal if type, content and representation are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Literal {
    ty: TensorType,
    content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Content {
    /// The bit pattern of all elements, and not a number, so that a NaN keeps its payload.
    Splat(u32),
    /// The literal stores the bytes of all elements, little-endian and in row-major order.
    Dense(Arc<[u8]>),
    /// Computed only when needed, so that recording is quick and the trace's text stays short.
    Rope(Arc<RopeTable>),
}

crate::words! {
    pub enum RopePart {
        /// The table contains cos(position · inv_freq) · scaling.
        Cos = "cos",
        /// The table contains sin(position · inv_freq) · scaling.
        Sin = "sin",
    }
}

/// A table for rotary embeddings. The table's element in row p and column i is `scaling · cos(f32(p ·
/// inv_freq[i]))`, or the same expression with the sine. Tracewright rounds the product to f32 before the
/// cosine, and rounds the result to f32 again, as in HF's `LlamaRotaryEmbedding.forward`
/// (`modeling_llama.py`). The crate `libm` computes the cosine and the sine in f64.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RopeTable {
    pub part: RopePart,
    pub positions: usize,
    /// The factor of cosine and sine: 1 except for yarn and longrope.
    pub scaling: Real,
    /// The angular frequency for each column of the table, as a number that f32 represents exactly.
    pub inv_freq: Vec<Real>,
}

impl RopeTable {
    /// Before the rounding to the element type.
    pub fn at(&self, position: usize, column: usize) -> f64 {
        let angle = f64::from((position as f32) * (self.inv_freq[column].0 as f32));
        let value = match self.part {
            RopePart::Cos => libm::cos(angle),
            RopePart::Sin => libm::sin(angle),
        };
        f64::from((value as f32) * (self.scaling.0 as f32))
    }

    /// Stores all elements of the table in `bytes`, little-endian and in row-major order.
    fn store(&self, element: ElementType, bytes: &mut [u8]) {
        let columns = self.inv_freq.len();
        for position in 0..self.positions {
            for column in 0..columns {
                element.store(bytes, position * columns + column, element.encode(self.at(position, column)));
            }
        }
    }
}

impl Literal {
    pub fn splat(ty: TensorType, value: f64) -> Self {
        let bits = ty.element.encode(value);
        Self { ty, content: Content::Splat(bits) }
    }

    pub fn splat_bits(ty: TensorType, bits: u32) -> Self {
        Self { ty, content: Content::Splat(bits) }
    }

    /// From little-endian bytes; `None` if their number is not `ty.bytes()`.
    pub fn dense(ty: TensorType, bytes: impl Into<Arc<[u8]>>) -> Option<Self> {
        let bytes = bytes.into();
        (bytes.len() == ty.bytes()).then_some(Self { ty, content: Content::Dense(bytes) })
    }

    pub fn from_value(value: &Value) -> Self {
        Self { ty: value.ty.clone(), content: Content::Dense(value.to_bytes().into()) }
    }

    /// Creates a rotary table with the shape [positions, inv_freq.len()].
    pub fn rope_table(element: ElementType, table: RopeTable) -> Self {
        let ty = TensorType::new(element, [table.positions, table.inv_freq.len()]);
        Self { ty, content: Content::Rope(Arc::new(table)) }
    }

    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Returns the bit pattern of every element, if the literal stores a single bit pattern for all elements.
    pub fn as_splat(&self) -> Option<u32> {
        match self.content {
            Content::Splat(bits) => Some(bits),
            _ => None,
        }
    }

    pub fn as_rope_table(&self) -> Option<&RopeTable> {
        match &self.content {
            Content::Rope(table) => Some(table),
            _ => None,
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let element = self.ty.element;
        let mut bytes = vec![0; self.ty.bytes()];
        match &self.content {
            Content::Splat(bits) => (0..self.ty.count()).for_each(|i| element.store(&mut bytes, i, *bits)),
            Content::Dense(dense) => bytes.copy_from_slice(dense),
            Content::Rope(table) => table.store(element, &mut bytes),
        }
        bytes
    }

    pub fn to_value(&self) -> Value {
        Value::from_bytes(self.ty.clone(), &self.to_bytes())
    }

    /// `dense<…> : tensor<…>`.
    pub fn mlir(&self) -> String {
        let element = self.ty.element;
        let mut text = String::from("dense<");
        match (&self.content, self.ty.count()) {
            (_, 0) => {}
            (Content::Splat(bits), _) => text.push_str(&mlir_scalar(element, *bits)),
            // For i1 and i4, MLIR expects packed bits in the hex form, so the function writes each
            // element separately.
            _ if element.bits() == 4 || element == ElementType::I1 => {
                let bytes = self.to_bytes();
                let mut index = 0;
                text.push_str(&nested(&self.ty.shape, &mut || {
                    index += 1;
                    mlir_scalar(element, element.load(&bytes, index - 1))
                }));
            }
            _ => {
                let bytes = self.to_bytes();
                text.reserve(2 * bytes.len() + 64);
                text.push_str("\"0x");
                push_hex(&bytes, &mut text);
                text.push('"');
            }
        }
        text.push_str("> : ");
        text.push_str(&self.ty.mlir());
        text
    }

    fn print_text(&self, out: &mut String) {
        self.ty.print(out);
        match &self.content {
            Content::Splat(bits) => {
                let _ = write!(out, " splat ");
                let value = self.ty.element.decode(*bits);
                if self.ty.element.encode(value) == *bits && !value.is_nan() {
                    Real(value).print(out);
                } else {
                    let _ = write!(out, "bits 0x{bits:x}");
                }
            }
            Content::Dense(bytes) => {
                out.push_str(" dense 0x");
                push_hex(bytes, out);
            }
            Content::Rope(table) => {
                let _ = write!(out, " rope_table {} scaling=", table.part.word());
                table.scaling.print(out);
                out.push_str(" inv_freq=");
                table.inv_freq.print(out);
            }
        }
    }

    fn parse_text(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        let ty = TensorType::parse(reader)?;
        if reader.eat("splat") {
            if reader.eat("bits") {
                reader.expect("0x")?;
                let digits = reader.take_while("hex digits", |c| c.is_ascii_hexdigit())?;
                let bits =
                    u32::from_str_radix(digits, 16).or_else(|_| reader.error("at most 8 hex digits"))?;
                return Ok(Self::splat_bits(ty, bits));
            }
            let value = Real::parse(reader)?.0;
            return Ok(Self::splat(ty, value));
        }
        if reader.eat("dense") {
            reader.expect("0x")?;
            let bytes: Vec<u8> = match ty.count() {
                0 => Vec::new(),
                _ => {
                    let digits = reader.take_while("hex digits", |c| c.is_ascii_hexdigit())?;
                    let pairs = digits.as_bytes().chunks(2);
                    pairs
                        .map(|p| {
                            p.iter().fold(0, |b, &d| b << 4 | (d as char).to_digit(16).unwrap_or(0) as u8)
                        })
                        .collect()
                }
            };
            return Self::dense(ty.clone(), bytes)
                .map_or_else(|| reader.error(format!("{} bytes for {ty}", ty.bytes())), Ok);
        }
        reader.expect("rope_table")?;
        let part = RopePart::parse(reader)?;
        reader.expect("scaling=")?;
        let scaling = Real::parse(reader)?;
        reader.expect("inv_freq=")?;
        let inv_freq: Vec<Real> = reader.list()?;
        let [positions, columns] = ty.shape[..] else { return reader.error("a table of rank 2") };
        if columns != inv_freq.len() {
            return reader.error(format!("{columns} frequencies"));
        }
        Ok(Self::rope_table(ty.element, RopeTable { part, positions, scaling, inv_freq }))
    }
}

fn push_hex(bytes: &[u8], out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    // The function appends digits in pieces, because appending each digit of a long table takes
    // longer than computing the table.
    let mut piece = [0; 128];
    for bytes in bytes.chunks(piece.len() / 2) {
        for (digits, byte) in piece.chunks_exact_mut(2).zip(bytes) {
            digits[0] = DIGITS[usize::from(byte >> 4)];
            digits[1] = DIGITS[usize::from(byte & 15)];
        }
        out.push_str(std::str::from_utf8(&piece[..2 * bytes.len()]).unwrap_or_default());
    }
}

fn nested(shape: &[usize], next: &mut impl FnMut() -> String) -> String {
    match shape {
        [] => next(),
        [extent, rest @ ..] => {
            let items: Vec<String> = (0..*extent).map(|_| nested(rest, next)).collect();
            format!("[{}]", items.join(", "))
        }
    }
}

fn mlir_scalar(element: ElementType, bits: u32) -> String {
    match element {
        // MLIR reads a hex integer as the bits of a float.
        ElementType::F32 => format!("0x{bits:08X}"),
        ElementType::F16 | ElementType::Bf16 => format!("0x{bits:04X}"),
        ElementType::I1 => (bits & 1 == 1).to_string(),
        _ => (element.decode(bits) as i64).to_string(),
    }
}

impl Attribute for Literal {
    fn print(&self, out: &mut String) {
        self.print_text(out);
    }
    fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        Literal::parse_text(reader)
    }
}
