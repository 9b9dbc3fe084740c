//! Symmetric integers of eight bits in groups of 128.

use super::integers::symmetric;
use super::{BlockFormat, Groups};

pub(super) const FORMAT: Groups = symmetric::<8, 128>(BlockFormat::Int8G128, &[8]);
