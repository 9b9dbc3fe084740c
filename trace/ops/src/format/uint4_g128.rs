//! Integers of four bits in groups of 128 with zero points.

use super::integers::shifted;
use super::{BlockFormat, Groups};

pub(super) const FORMAT: Groups = shifted::<4, 128>(BlockFormat::Uint4G128, &[4]);
