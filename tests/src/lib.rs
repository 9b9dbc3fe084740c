//! Evidence that spans crates.

pub mod arbitrary;
pub mod built;
pub mod calls;
pub mod case;
pub mod chunked;
mod comparison;
mod dice;
pub mod embedding;
pub mod emulator;
pub mod evaluate;
pub mod faults;
pub mod golden;
pub mod in_iree;
pub mod in_xla;
pub mod leeway;
pub mod level;
pub mod long;
pub mod modules;
mod operations;
pub mod parity;
pub mod pieces;
pub mod portable;
pub mod precision;
pub mod rewrite;
pub mod tensors;
pub mod tiles;
pub mod vectors;

/// The Rust in the documents is a test; that in the README is one of the root package.
#[cfg(doctest)]
mod documents {
    #[doc = include_str!("../../docs/guides/distributed.md")]
    struct Distributed;
    #[doc = include_str!("../../docs/guides/embed.md")]
    struct Embed;
    #[doc = include_str!("../../docs/guides/gguf.md")]
    struct Gguf;
    #[doc = include_str!("../../docs/guides/images.md")]
    struct Images;
    #[doc = include_str!("../../docs/guides/library.md")]
    struct Library;
    #[doc = include_str!("../../docs/guides/transcribe.md")]
    struct Transcribe;
    #[doc = include_str!("../../docs/tutorials/encoder.md")]
    struct Encoder;
    #[doc = include_str!("../../docs/introduction.md")]
    struct Introduction;
    #[doc = include_str!("../../docs/concepts/entry-points.md")]
    struct EntryPoints;
    #[doc = include_str!("../../docs/concepts/state.md")]
    struct State;
    #[doc = include_str!("../../docs/concepts/formats.md")]
    struct Formats;
    #[doc = include_str!("../../docs/concepts/targets.md")]
    struct Targets;
    #[doc = include_str!("../../docs/concepts/archives.md")]
    struct Archives;
}
