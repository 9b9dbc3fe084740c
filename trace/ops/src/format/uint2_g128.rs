//! Integers of two bits in groups of 128 with zero points.

use super::integers::shifted;
use super::{BlockFormat, Groups};

pub(super) const FORMAT: Groups = shifted::<2, 128>(BlockFormat::Uint2G128, &[2]);
