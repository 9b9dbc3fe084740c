//! Symmetric integers of four bits in groups of 128.

use super::integers::symmetric;
use super::{BlockFormat, Groups};

pub(super) const FORMAT: Groups = symmetric::<4, 128>(BlockFormat::Int4G128, &[4]);
