//! How fast a checkpoint becomes an archive, beside `cp` of the same file, and how fast elements convert.
//! `cargo bench -p tracewright-irpa`; takes the scratch folder as an argument.

use ops::ElementType::{self, Bf16, F16, F32};
use safetensors::{Dtype, serialize_to_file, tensor::TensorView};
use std::{error::Error, fs::File, path::Path, process::Command, time::Instant};
use tracewright_irpa::{Archive, Checkpoint, ConvertOptions, convert, convert_checkpoint};

const TENSORS: usize = 16;
const TENSOR: usize = 64 << 20;
const ROUNDS: usize = 5;

/// The best time of some rounds, in seconds, with the speed that it means.
fn best(name: &str, mut round: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        round()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("{name:32} {best:6.2} s {:6.2} GB/s", (TENSORS * TENSOR) as f64 / best / 1e9);
    Ok(best)
}

fn checkpoint(path: &Path) -> Result<(), Box<dyn Error>> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        // Finite values of any of the float types.
        ((state >> 33) as u32) & 0x3fff_3fff
    };
    let data: Vec<u8> = (0..TENSOR / 4).flat_map(|_| next().to_le_bytes()).collect();
    let view = TensorView::new(Dtype::BF16, vec![TENSOR / 2048, 1024], &data)?;
    serialize_to_file((0..TENSORS).map(|i| (format!("layers.{i:02}.weight"), &view)), None, path)?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let scratch = std::env::args().nth(1).filter(|argument| !argument.starts_with('-'));
    let folder = match scratch {
        Some(scratch) => tempfile::tempdir_in(scratch)?,
        None => tempfile::tempdir()?,
    };
    let file = folder.path().join("model.safetensors");
    let (copy, out) = (folder.path().join("copy"), folder.path().join("out.irpa"));
    checkpoint(&file)?;
    let cp = || -> Result<(), Box<dyn Error>> {
        let _ = std::fs::remove_file(&copy);
        assert!(Command::new("cp").arg(&file).arg(&copy).status()?.success());
        Ok(())
    };
    let bake = |metadata, float| -> Result<(), Box<dyn Error>> {
        let _ = std::fs::remove_file(&out);
        let options = ConvertOptions { metadata, float, watch: None };
        convert_checkpoint(&Checkpoint::open(&file)?, &out, options)?;
        Ok(())
    };
    let plain = best("cp", cp)?;
    let flushed = best("cp, flushed to disk", || {
        cp()?;
        Ok(File::open(&copy)?.sync_all()?)
    })?;
    let baked = best("bake, hashed, flushed to disk", || bake(true, None))?;
    best("bake, no metadata", || bake(false, None))?;
    best("bake, converted to f16", || bake(true, Some(F16)))?;
    let archive = Archive::open(&out)?;
    best("verify_content", || {
        archive.verify_content(None)?;
        Ok(())
    })?;
    println!("bake has {:.2} of cp's speed, {:.2} of cp's with a flush", plain / baked, flushed / baked);

    let src: Vec<u8> = (0..TENSOR).map(|i| (i as u8) & 0x3f).collect();
    for (from, to) in [(F32, Bf16), (F32, F16), (Bf16, F32), (F16, F32), (F16, Bf16), (Bf16, F16)] {
        speed(&src, from, to)?;
    }
    Ok(())
}

fn speed(src: &[u8], from: ElementType, to: ElementType) -> Result<(), Box<dyn Error>> {
    let mut dst = vec![0; to.bytes(src.len() * 8 / from.bits())];
    best(&format!("convert {from} to {to}"), || {
        Ok((0..TENSORS).try_for_each(|_| convert(src, from, to, &mut dst))?)
    })?;
    Ok(())
}
