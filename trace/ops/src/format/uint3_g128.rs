//! Integers of three bits in groups of 128 with zero points.

use super::integers::shifted;
use super::{BlockFormat, Groups};

pub(super) const FORMAT: Groups = shifted::<3, 128>(BlockFormat::Uint3G128, &[2, 1]);
