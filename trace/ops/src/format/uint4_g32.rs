//! Integers of four bits in groups of 32 with zero points.

use super::integers::shifted;
use super::{BlockFormat, Groups};

pub(super) const FORMAT: Groups = shifted::<4, 32>(BlockFormat::Uint4G32, &[4]);
