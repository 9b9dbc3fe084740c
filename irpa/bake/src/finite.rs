//! Finds the number because of which `bake` cannot convert a weight.

use std::cell::Cell;

use irpa::{ArchiveError, Checkpoint, NotFinite, NumberPlace};
use ops::format::all_finite;
use ops::{ElementType, TensorType, WeightFormat};
use trace::Recipe;

use crate::pieces::{PIECE, PieceReader};

#[derive(Clone, Copy)]
pub(crate) enum NewNumbers {
    Each(ElementType),
    Groups(WeightFormat),
}

impl NewNumbers {
    fn name(self) -> &'static str {
        match self {
            Self::Each(element) => element.name(),
            Self::Groups(format) => format.word(),
        }
    }

    fn keeps(self, x: f32) -> bool {
        match self {
            Self::Each(element) => element.round(x.into()).is_finite(),
            Self::Groups(_) => x.is_finite(),
        }
    }
}

/// Reads the weight again from its start, so the error names the first number, whatever thread found it.
pub(crate) fn lost(
    made: &PieceReader<'_>,
    recipe: &Recipe,
    checkpoint: &Checkpoint,
    new: NewNumbers,
) -> ArchiveError {
    match find(made, recipe, checkpoint, new) {
        Ok(lost) => lost.into(),
        Err(error) => error,
    }
}

/// Like [`lost`], for a tensor of the checkpoint that becomes a quantized matrix.
pub(crate) fn lost_in(
    checkpoint: &Checkpoint,
    key: &str,
    ty: &TensorType,
    format: WeightFormat,
) -> ArchiveError {
    let recipe = Recipe::Source(key.to_owned(), ty.clone());
    match PieceReader::new(&recipe, checkpoint, true) {
        Ok(made) => lost(&made, &recipe, checkpoint, NewNumbers::Groups(format)),
        Err(error) => error,
    }
}

fn find(
    made: &PieceReader<'_>,
    recipe: &Recipe,
    checkpoint: &Checkpoint,
    new: NewNumbers,
) -> Result<NotFinite, ArchiveError> {
    let (to, sources) = (new.name(), recipe.sources());
    for (key, _) in &sources {
        if let Some(lost) = checkpoint.first_lost(key, to, |x| new.keeps(x))? {
            return Ok(lost);
        }
    }
    let mut piece = vec![0.0; PIECE];
    for start in (0..made.ty.count()).step_by(PIECE) {
        let piece = &mut piece[..PIECE.min(made.ty.count() - start)];
        made.read(start, piece);
        if let Some(at) = piece.iter().position(|x| !x.is_finite()) {
            let names = sources.iter().map(|(key, _)| checkpoint.get(key).map_or(*key, |t| &t.source));
            let tensor = names.collect::<Vec<_>>().join("`, `");
            let place = NumberPlace::Computed(start + at);
            return Ok(NotFinite { path: checkpoint.path().to_owned(), tensor, place, found: piece[at], to });
        }
    }
    // All numbers are finite, but the scale of a group is not. The largest number has the largest scale.
    let largest = Cell::new(0.0f32);
    for (key, _) in &sources {
        checkpoint.first_lost(key, to, |x| {
            largest.set(largest.get().max(x.abs()));
            true
        })?;
    }
    for (key, _) in &sources {
        if let Some(lost) = checkpoint.first_lost(key, to, |x| x.abs() < largest.get())? {
            return Ok(lost);
        }
    }
    let name = sources.first().map_or_else(String::new, |(key, _)| (*key).to_owned());
    Err(ArchiveError::NoTensor { path: checkpoint.path().to_owned(), name })
}

/// Whether a conversion to f32 keeps all `numbers`. A reader that only moves numbers keeps NaN.
pub(crate) fn are_kept(made: &PieceReader<'_>, numbers: &[f32]) -> bool {
    !made.converts || all_finite(numbers)
}
