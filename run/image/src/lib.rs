//! Images as the pixels and patches that vision towers read. The pixels equal those of the image processors of
//! HF transformers.
#![warn(missing_docs)]

mod decode;
mod error;
mod normalize;
mod resize;
mod sizes;
mod smolvlm;
mod taps;

pub use decode::{ImageLimits, Pixels};
pub use error::ImageError;
pub use normalize::Normalization;
pub use resize::{Resizer, Rounding};
pub use sizes::{PixelRange, SplitRule, TiledSize, pixtral_size};
pub use smolvlm::{ImageTiles, SmolVlmProcessor};
pub use taps::Filter;
