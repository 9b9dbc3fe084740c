//! Images as the pixels and patches that vision towers read. The pixels equal those of the image processors of
//! HF transformers.
#![warn(missing_docs)]

mod decode;
mod error;
mod gemma3;
mod internvl;
mod normalize;
mod pixtral;
mod processor;
mod resize;
mod settings;
mod sizes;
mod smolvlm;
mod taps;

pub use decode::{ImageLimits, Pixels};
pub use error::ImageError;
pub use gemma3::Gemma3Processor;
pub use internvl::InternVlProcessor;
pub use normalize::Normalization;
pub use pixtral::{PixtralProcessor, PlacedPatches};
pub use processor::{ImageProcessor, ImageTile, PreparedImage};
pub use resize::{Resizer, Rounding};
pub use sizes::{PixelRange, SplitRule, TiledSize, pixtral_size, tile_grid};
pub use smolvlm::{ImageTiles, SmolVlmProcessor};
pub use taps::Filter;
