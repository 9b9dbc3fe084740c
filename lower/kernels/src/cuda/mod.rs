//! Kernels for NVIDIA GPUs. XLA calls the CUDA kernels in a module for its CUDA platform. The PTX text of a
//! kernel comes from `decode.ptx`, in which Tracewright replaces the name of each size by a number. The
//! module contains the PTX text in a `custom_call`, so XLA and the driver compile the kernel like the rest of
//! the module.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ops::ops::WeightStyle;
use ops::{ElementType, Operand, Statements, TensorType};

/// Compiled from `decode.cu` by nvcc.
const PTX: &str = include_str!("decode.ptx");

/// The most vectors multiplied by a weight in one call.
pub const CUDA_VECTORS: usize = 8;

/// The number of bf16 numbers that a CUDA block keeps in shared memory: `STAGED` in `decode.cu`.
const KEPT: usize = 18_432;
/// Threads per block: `THREADS`, and 32 times `READERS`, in `decode.cu`.
const THREADS: usize = 256;
const ATTENTION_THREADS: usize = 512;
/// The number of rows of a weight that a block multiplies together: `TILE` in `decode.cu`.
const TILE: usize = 8;
/// The most token positions that a block reads in the KV cache: `POSITIONS` in `decode.cu`.
const POSITIONS: usize = 1024;
/// With more tiles, each of `BLOCKS` blocks computes several. An H100 has 132 streaming multiprocessors.
const MOST_BLOCKS: usize = 4 * 132;
const BLOCKS: usize = 2 * 132;

/// A kernel for an NVIDIA GPU. All tensors are bf16, except tensors of integers.
#[derive(Clone, Debug, PartialEq)]
pub enum CudaKernel {
    /// `x · weightᵀ`. Operands: x, the norm's weight (if any), the weight.
    Linear(CudaProduct),
    /// `x · weightᵀ + residual`, x not normalized. Operands: x, the weight, the residual.
    Residual(CudaProduct),
    /// Three matmuls of one normalized x, with rows of the last two weights. Operands: x, norm, weights.
    Three(CudaProduct, [usize; 2]),
    /// `silu(x · gateᵀ) · (x · upᵀ)`, x normalized. Operands: x, the norm's weight, gate, up.
    Gated(CudaProduct),
    /// Rotary embedding of one new token per sequence, appends to the caches, and attention. Operands:
    /// queries, new keys and values, cosines, sines, start, count, key cache, value cache. Pass `start` as
    /// the count of an append without one; the kernel then appends all tokens. Results: the output, the new
    /// key cache, the new value cache.
    Attention(CudaAttention),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CudaProduct {
    /// The number of vectors in the activations x.
    pub vectors: usize,
    /// The length of each vector.
    pub inputs: usize,
    /// The rows of the weight.
    pub outputs: usize,
    /// The epsilon and weight style of the RMS norm of x.
    pub norm: Option<(f32, WeightStyle)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CudaAttention {
    /// The sequences in the batch.
    pub sequences: usize,
    /// Key-value heads.
    pub heads: usize,
    /// Query heads per key-value head.
    pub group: usize,
    /// Features per head.
    pub features: usize,
    /// Slots in the cache of a sequence.
    pub slots: usize,
    /// The factor by which attention multiplies the scores, usually 1 / √features.
    pub scale: f32,
    /// Whether each sequence has a separate start position and a separate token count.
    pub by_row: bool,
}

struct Launch {
    kernel: String,
    sizes: BTreeMap<&'static str, String>,
    grid: [usize; 2],
    threads: usize,
    /// A result and the operand whose memory it takes.
    in_place: Vec<(usize, usize)>,
}

impl CudaProduct {
    fn is_supported(&self) -> bool {
        (1..=CUDA_VECTORS).contains(&self.vectors)
            && self.inputs > 0
            && self.inputs.is_multiple_of(64)
            && self.outputs > 0
            && self.outputs.is_multiple_of(TILE)
    }

    /// `outputs` is the rows of all weights of the kernel.
    fn launch(&self, kernel: &str, outputs: usize) -> Launch {
        let mut kernel = kernel.to_owned();
        let mut sizes = BTreeMap::from([
            ("M", self.vectors.to_string()),
            ("K", self.inputs.to_string()),
            ("N0", self.outputs.to_string()),
        ]);
        if let Some((epsilon, style)) = self.norm {
            let is_kept = self.vectors * (self.inputs + 32) <= KEPT;
            kernel.push_str(if is_kept { "_norm_kept" } else { "_norm_computed" });
            sizes.insert("EPSILON", float(epsilon));
            let style = match style {
                WeightStyle::Scale => 0,
                WeightStyle::Wide => 1,
                WeightStyle::OnePlus => 2,
            };
            sizes.insert("STYLE", style.to_string());
        }
        let tiles = outputs / TILE;
        let blocks = if tiles <= MOST_BLOCKS { tiles } else { BLOCKS };
        Launch { kernel, sizes, grid: [blocks, 1], threads: THREADS, in_place: Vec::new() }
    }
}

impl CudaAttention {
    fn is_supported(&self) -> bool {
        matches!(self.features, 64 | 128) && (1..=8).contains(&self.group) && self.slots > 0
    }

    /// The ranges of positions of a KV cache, each read by different blocks.
    fn ranges(&self) -> usize {
        self.slots.div_ceil(POSITIONS)
    }

    fn launch(&self) -> Launch {
        let most = if self.group <= 4 { 4 } else { 8 };
        let sizes = BTreeMap::from([
            ("HEADS", self.heads.to_string()),
            ("G", self.group.to_string()),
            ("SLOTS", self.slots.to_string()),
            ("SPLIT", self.ranges().to_string()),
            ("BY_ROW", u8::from(self.by_row).to_string()),
            ("SCALE", float(self.scale)),
        ]);
        Launch {
            kernel: format!("attention_{}_{most}", self.features),
            sizes,
            grid: [self.sequences * self.heads, self.ranges()],
            threads: ATTENTION_THREADS,
            in_place: vec![(1, 7), (2, 8)],
        }
    }

    /// Combines the results of all ranges.
    fn combine(&self) -> Launch {
        let sizes = BTreeMap::from([
            ("SPLIT", self.ranges().to_string()),
            ("G", self.group.to_string()),
            ("K", self.features.to_string()),
        ]);
        let grid = [self.sequences * self.heads * self.group, 1];
        let kernel = "combine".to_owned();
        Launch { kernel, sizes, grid, threads: self.features, in_place: Vec::new() }
    }
}

impl CudaKernel {
    /// Whether the kernel supports the sizes of its tensors.
    pub fn is_supported(&self) -> bool {
        match self {
            Self::Linear(product) | Self::Residual(product) | Self::Gated(product) => product.is_supported(),
            Self::Three(product, others) => {
                product.is_supported() && others.iter().all(|outputs| outputs.is_multiple_of(TILE))
            }
            Self::Attention(attention) => attention.is_supported(),
        }
    }

    /// Returns the names of the results.
    pub fn call(
        &self,
        statements: &mut dyn Statements,
        operands: &[Operand<'_>],
        results: &[&TensorType],
    ) -> Vec<String> {
        let launch = match self {
            Self::Linear(product) => product.launch("linear", product.outputs),
            Self::Residual(product) => product.launch("linear_residual", product.outputs),
            Self::Gated(product) => product.launch("gated", product.outputs),
            Self::Three(product, [second, third]) => {
                let mut launch = product.launch("three", product.outputs + second + third);
                launch.sizes.extend([("N1", second.to_string()), ("N2", third.to_string())]);
                launch
            }
            Self::Attention(attention) if attention.ranges() == 1 => attention.launch(),
            Self::Attention(attention) => {
                let CudaAttention { sequences, heads, group, features, .. } = *attention;
                let extents = [sequences, heads, attention.ranges(), group, features + 2];
                let parts = TensorType::new(ElementType::F32, extents);
                let of_ranges = [&[&parts], &results[1..]].concat();
                let mut names = attention.launch().write(statements, operands, &of_ranges);
                let parts = [Operand { name: &names[0].clone(), ty: &parts }];
                names[0] = attention.combine().write(statements, &parts, &results[..1]).remove(0);
                return names;
            }
        };
        launch.write(statements, operands, results)
    }
}

impl Launch {
    /// Launches the kernel, and returns the names of the results.
    fn write(
        &self,
        statements: &mut dyn Statements,
        operands: &[Operand<'_>],
        results: &[&TensorType],
    ) -> Vec<String> {
        let listed = |texts: Vec<String>| texts.join(", ");
        let names = listed(operands.iter().map(|operand| operand.name.to_owned()).collect());
        let types = listed(operands.iter().map(|operand| operand.ty.mlir()).collect());
        let returned = listed(results.iter().map(|ty| ty.mlir()).collect());
        let operand_layouts = listed(operands.iter().map(|operand| row_major(operand.ty)).collect());
        let result_layouts = listed(results.iter().map(|ty| row_major(ty)).collect());
        let places = (0..results.len()).map(|at| format!("{} : i32", operands.len() + at));
        let aliases = self.in_place.iter().map(|(result, operand)| {
            format!(
                "#stablehlo.output_operand_alias<output_tuple_indices = [{result}], operand_index = {operand}, \
                 operand_tuple_indices = []>"
            )
        });
        let [x, y] = self.grid;
        let rhs = format!(
            "stablehlo.custom_call @\"__gpu$xla.gpu.ptx\"({names}) {{api_version = 4 : i32, backend_config = {{\
             name = \"{name}\", kernel_type = \"ptx\", kernel_data = \"{code}\", grid_x = {x} : i32, \
             grid_y = {y} : i32, grid_z = 1 : i32, block_x = {threads} : i32, block_y = 1 : i32, block_z = 1 : i32, \
             shared_mem_bytes = 0 : i32, output_indices = [{places}]}}, operand_layouts = [{operand_layouts}], \
             result_layouts = [{result_layouts}], output_operand_aliases = [{aliases}]}} : ({types}) -> ({returned})",
            name = self.kernel,
            code = escaped(&ptx(&self.kernel, &self.sizes)),
            threads = self.threads,
            places = listed(places.collect()),
            aliases = listed(aliases.collect()),
        );
        match results.len() {
            1 => vec![statements.statement(rhs)],
            count => {
                let group = statements.group(rhs, count);
                (0..count).map(|at| format!("{group}#{at}")).collect()
            }
        }
    }
}

/// Panics if `decode.ptx` lacks the kernel or a size; a test checks all of them.
fn ptx(kernel: &str, sizes: &BTreeMap<&str, String>) -> String {
    let mut parts = PTX.split("\n.visible .entry ");
    let head = parts.next().unwrap_or_default();
    let is_this = |part: &&str| part.split('(').next() == Some(kernel);
    let Some(body) = parts.find(is_this) else { unreachable!("`decode.ptx` contains `{kernel}`") };
    // If several kernels use a variable in shared memory, its declaration comes before the kernels.
    let is_used = |line: &&str| {
        if line.starts_with(".shared") {
            line.split_whitespace()
                .last()
                .and_then(|name| name.split('[').next())
                .is_some_and(|name| body.contains(name))
        } else {
            !line.starts_with("//")
        }
    };
    let mut code: String = head.lines().filter(is_used).fold(String::new(), |text, line| text + line + "\n");
    code.push_str(".visible .entry ");
    let mut rest = body;
    while let Some((before, after)) = rest.split_once("TW_") {
        let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
        let Some(number) = sizes.get(&after[..end]) else {
            unreachable!("`{kernel}` has the size `{}`", &after[..end])
        };
        code.push_str(before);
        code.push_str(number);
        rest = &after[end..];
    }
    code.push_str(rest);
    code.push('\n');
    code
}

/// PTX notation, without rounding.
fn float(number: f32) -> String {
    format!("0f{:08X}", number.to_bits())
}

/// The row-major layout as an MLIR attribute.
fn row_major(ty: &TensorType) -> String {
    let axes: Vec<String> = (0..ty.rank()).rev().map(|axis| axis.to_string()).collect();
    match ty.rank() {
        0 => "dense<> : tensor<0xindex>".into(),
        rank => format!("dense<[{}]> : tensor<{rank}xindex>", axes.join(", ")),
    }
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + text.len() / 8);
    for c in text.chars() {
        match c {
            '"' | '\\' | '\n' | '\t' => {
                // Writing to a string cannot fail.
                let _ = write!(escaped, "\\{:02X}", c as u32);
            }
            _ => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    struct Lines(Vec<String>);

    impl Statements for Lines {
        fn statement(&mut self, rhs: String) -> String {
            self.group(rhs, 1)
        }

        fn group(&mut self, rhs: String, _: usize) -> String {
            self.0.push(rhs);
            format!("%{}", self.0.len())
        }
    }

    #[test]
    fn the_code_is_that_of_the_source() {
        let hash: String =
            Sha256::digest(include_bytes!("decode.cu")).iter().map(|byte| format!("{byte:02x}")).collect();
        let said = PTX.lines().next().and_then(|line| line.strip_prefix("// decode.cu: "));
        assert_eq!(
            said,
            Some(&*hash),
            "decode.cu has changed; run lower/kernels/src/cuda/build, which needs nvcc"
        );
    }

    #[test]
    fn every_kernel_has_code() {
        let mut kernels = Vec::new();
        for norm in [None, Some((1e-5, WeightStyle::OnePlus))] {
            for (vectors, inputs) in [(1, 64), (8, 4096)] {
                let product = CudaProduct { vectors, inputs, outputs: 16, norm };
                kernels.push((CudaKernel::Linear(product), 1));
                match norm {
                    None => kernels.push((CudaKernel::Residual(product), 1)),
                    Some(_) => {
                        kernels.push((CudaKernel::Three(product, [8, 8]), 3));
                        kernels.push((CudaKernel::Gated(product), 1));
                    }
                }
            }
        }
        let attention = CudaAttention {
            sequences: 2,
            heads: 3,
            group: 4,
            features: 64,
            slots: 512,
            scale: 0.125,
            by_row: true,
        };
        for (group, features, slots) in [(4, 64, 512), (8, 64, 512), (3, 128, 4096), (8, 128, 512)] {
            kernels.push((CudaKernel::Attention(CudaAttention { group, features, slots, ..attention }), 3));
        }
        let ty = TensorType::new(ElementType::Bf16, [1, 8]);
        for (kernel, results) in kernels {
            assert!(kernel.is_supported(), "{kernel:?}");
            let mut lines = Lines(Vec::new());
            let operands: Vec<_> = (0..9).map(|_| Operand { name: "%a", ty: &ty }).collect();
            let names = kernel.call(&mut lines, &operands, &vec![&ty; results]);
            assert_eq!(names.len(), results, "{kernel:?}");
            for line in lines.0 {
                assert!(!line.contains("TW_") && line.contains(".visible .entry"), "{kernel:?}");
            }
        }
    }
}
