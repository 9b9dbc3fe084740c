//! Declares [`Placement`], which describes the part of a tensor that each device stores.

use std::borrow::Cow;
use std::ops::Range;

use ops::TensorType;
use targets::{Mesh, MeshAxis};

use crate::error::PjrtError;

/// Which devices store a tensor, and which parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    devices: Range<usize>,
    /// Along each axis; empty if each device stores the whole tensor.
    parts: Vec<usize>,
    /// Each device's part, by an index along each axis.
    indices: Vec<Vec<usize>>,
}

/// The ranges of the whole tensor's bytes that form one part, in its order, all of one length.
struct Runs {
    length: usize,
    /// In the whole tensor.
    offsets: Vec<usize>,
}

impl Placement {
    pub fn on(device: usize) -> Self {
        Self::copies(device..device + 1)
    }

    /// Places a copy of the whole tensor on each of the given devices.
    pub fn copies(devices: Range<usize>) -> Self {
        Self { indices: devices.clone().map(|_| Vec::new()).collect(), devices, parts: Vec::new() }
    }

    /// One part for each device of a mesh, from the client's first device on. `axes` lists the mesh axes that
    /// partition each tensor axis, the slowest first.
    pub fn new(mesh: &Mesh, axes: &[Vec<MeshAxis>]) -> Self {
        let index = |device: usize| {
            let along = |axes: &Vec<MeshAxis>| {
                axes.iter().fold(0, |index, axis| index * axis.size + coordinate(mesh, axis, device))
            };
            axes.iter().map(along).collect()
        };
        let parts = axes.iter().map(|axes| axes.iter().map(|axis| axis.size).product()).collect();
        let devices = 0..mesh.devices();
        Self { indices: devices.clone().map(index).collect(), devices, parts }
    }

    pub fn devices(&self) -> Range<usize> {
        self.devices.clone()
    }

    /// A row is a slice at an index of the first axis.
    pub fn divides_rows(&self) -> bool {
        self.parts.first().is_some_and(|&parts| parts > 1)
    }

    pub(crate) fn local(&self, ty: &TensorType) -> Result<TensorType, PjrtError> {
        if self.parts.is_empty() {
            return Ok(ty.clone());
        }
        let mut local = ty.clone();
        let mut divides = ty.rank() == self.parts.len();
        for (extent, &parts) in local.shape.iter_mut().zip(&self.parts) {
            divides &= parts > 0 && extent.is_multiple_of(parts);
            *extent = extent.checked_div(parts).unwrap_or_default();
        }
        let refused = || PjrtError::Placement { ty: ty.clone(), parts: self.parts.clone() };
        if divides { Ok(local) } else { Err(refused()) }
    }

    /// For parts with the type `local`.
    pub(crate) fn whole(&self, local: &TensorType) -> Result<TensorType, PjrtError> {
        let mut ty = local.clone();
        ty.shape.iter_mut().zip(&self.parts).for_each(|(extent, &parts)| *extent *= parts);
        self.local(&ty).map(|_| ty)
    }

    /// `place` is the device's index in this placement.
    pub(crate) fn part<'a>(
        &self,
        ty: &TensorType,
        bytes: &'a [u8],
        place: usize,
    ) -> Result<Cow<'a, [u8]>, PjrtError> {
        let Runs { length, offsets } = self.runs(ty, place)?;
        Ok(match offsets[..] {
            [offset] => Cow::Borrowed(&bytes[offset..][..length]),
            _ => offsets.iter().flat_map(|&offset| &bytes[offset..][..length]).copied().collect(),
        })
    }

    /// Copies one device's part of the tensor into the bytes of the whole tensor.
    pub(crate) fn put(
        &self,
        ty: &TensorType,
        part: &[u8],
        place: usize,
        whole: &mut [u8],
    ) -> Result<(), PjrtError> {
        let Runs { length, offsets } = self.runs(ty, place)?;
        for (run, offset) in part.chunks(length.max(1)).zip(offsets) {
            whole[offset..][..length].copy_from_slice(run);
        }
        Ok(())
    }

    /// One device's index for each different part.
    pub(crate) fn once(&self) -> impl Iterator<Item = usize> {
        (0..self.indices.len()).filter(|&place| !self.indices[..place].contains(&self.indices[place]))
    }

    /// The first device (its index here) with the element, and the element's row-major index in its part.
    pub(crate) fn find(&self, ty: &TensorType, index: usize) -> Result<(usize, usize), PjrtError> {
        let local = self.local(ty)?;
        let (mut rest, mut stride, mut within) = (index, 1, 0);
        let mut part = vec![0; self.parts.len()];
        for (axis, (&extent, &size)) in ty.shape.iter().zip(&local.shape).enumerate().rev() {
            let at = rest % extent.max(1);
            rest /= extent.max(1);
            within += at % size.max(1) * stride;
            stride *= size;
            part.iter_mut().skip(axis).take(1).for_each(|part| *part = at / size.max(1));
        }
        let place = self.indices.iter().position(|indices| *indices == part);
        Ok((place.unwrap_or_default(), within))
    }

    fn runs(&self, ty: &TensorType, place: usize) -> Result<Runs, PjrtError> {
        let local = self.local(ty)?;
        let element = ty.element.bytes(1);
        let strides = |shape: &[usize]| shape.iter().product::<usize>() * element;
        // No axis after the last divided axis is divided, so each byte range contains these axes completely.
        let Some(last) = self.parts.iter().rposition(|&parts| parts > 1) else {
            return Ok(Runs { length: ty.bytes(), offsets: vec![0] });
        };
        let mut offsets = vec![0];
        for axis in 0..=last {
            let (stride, size) = (strides(&ty.shape[axis + 1..]), local.shape[axis]);
            let first = self.indices[place][axis] * size;
            let count = if axis == last { 1 } else { size };
            let places = |offset: usize| (first..first + count).map(move |at| offset + at * stride);
            offsets = offsets.into_iter().flat_map(places).collect();
        }
        Ok(Runs { length: strides(&local.shape[last..]), offsets })
    }
}

/// The last axis of the mesh changes fastest.
fn coordinate(mesh: &Mesh, axis: &MeshAxis, device: usize) -> usize {
    let behind = mesh.axes.iter().rev().take_while(|other| other.name != axis.name);
    device / behind.map(|other| other.size).product::<usize>() % axis.size
}

#[cfg(test)]
mod tests {
    use ops::ElementType;

    use super::*;

    fn placed(mesh: &str, axes: &[&[&str]]) -> Placement {
        let mesh: Mesh = mesh.parse().unwrap();
        let axis = |name: &&str| mesh.axis(name).unwrap().clone();
        let axes: Vec<Vec<MeshAxis>> = axes.iter().map(|names| names.iter().map(axis).collect()).collect();
        Placement::new(&mesh, &axes)
    }

    /// For the numbers 0, 1, 2, …, checking that the methods of [`Placement`] agree.
    fn parts(placement: &Placement, shape: &[usize]) -> Vec<Vec<u8>> {
        let ty = TensorType::new(ElementType::I8, shape);
        let bytes: Vec<u8> = (0..ty.count() as u8).collect();
        let part = |place| placement.part(&ty, &bytes, place).unwrap().into_owned();
        let parts: Vec<Vec<u8>> = (0..placement.devices().len()).map(part).collect();
        let mut whole = vec![99; bytes.len()];
        placement.once().for_each(|place| placement.put(&ty, &parts[place], place, &mut whole).unwrap());
        assert_eq!(whole, bytes);
        for index in 0..bytes.len() {
            let (place, within) = placement.find(&ty, index).unwrap();
            assert_eq!(usize::from(parts[place][within]), index, "{placement:?} of {ty}");
        }
        let local = placement.local(&ty).unwrap();
        assert_eq!(placement.whole(&local).unwrap(), ty);
        assert!(parts.iter().all(|part| part.len() == local.bytes()));
        parts
    }

    #[test]
    fn devices_have_their_parts() {
        assert_eq!(parts(&Placement::on(3), &[2, 2]), [[0, 1, 2, 3]]);
        assert_eq!(parts(&placed("a=2", &[]), &[3]), [[0, 1, 2]; 2]);
        assert_eq!(parts(&placed("a=2", &[&["a"]]), &[4]), [[0, 1], [2, 3]]);
        assert_eq!(parts(&placed("a=2", &[&[], &["a"]]), &[2, 4]), [[0, 1, 4, 5], [2, 3, 6, 7]]);
        assert_eq!(parts(&placed("a=2", &[&["a"], &[]]), &[2, 3]), [[0, 1, 2], [3, 4, 5]]);
        assert_eq!(parts(&placed("a=2,b=2", &[&["b"], &["a"]]), &[2, 2]), [[0], [2], [1], [3]]);
        assert_eq!(parts(&placed("a=2,b=2", &[&["b"]]), &[4]), [[0, 1], [2, 3], [0, 1], [2, 3]]);
        assert_eq!(parts(&placed("a=2,b=2", &[&["b", "a"]]), &[4]), [[0], [2], [1], [3]]);
        assert_eq!(parts(&placed("a=2", &[&[], &["a"], &[]]), &[2, 2, 2]), [[0, 1, 4, 5], [2, 3, 6, 7]]);
        assert_eq!(parts(&placed("a=2", &[&[]]), &[0]), [[]; 2] as [[u8; 0]; 2]);
    }

    #[test]
    fn a_tensor_that_does_not_fit_is_an_error() {
        for shape in [&[3][..], &[2, 2], &[]] {
            let ty = TensorType::new(ElementType::F32, shape);
            let error = placed("a=2", &[&["a"]]).local(&ty).err().unwrap();
            assert!(matches!(error, PjrtError::Placement { .. }), "{error}");
        }
    }
}
