//! The entry points of vision towers.

use dsl::{AnyFloat, Axis, EntryPoint, EntryRecorder, F32, Float, Tensor, TraceError, Traced, in_element};
use ops::ElementType;
use trace::Role;

use crate::internvl::InternVlTower;
use crate::pixtral::PixtralTower;
use crate::shape_check::DeclaredSize;
use crate::vision::{Gemma3Tower, SmolVlmTower, Vision, VisionFamily};
use crate::{Architecture, MtpError};

const IMAGES: Axis = Axis("B");
const PATCHES: Axis = Axis("S");
const PIXELS: Axis = Axis("P");

impl Vision {
    /// Records the tower's entry point, which computes the vectors of images.
    fn record<T: Float>(
        &self,
        entry: &mut EntryRecorder,
        point: &EntryPoint,
        see: impl FnOnce(Tensor<F32>) -> Tensor<T>,
    ) {
        let dims = [IMAGES.of(point.batch), PATCHES.of(point.chunk), PIXELS.of(self.numbers())];
        let patches = entry.input::<F32>("patches", Role::Patches, &dims);
        entry.output("features", Role::Features, see(patches).to::<F32>());
    }
}

impl Architecture for Vision {
    /// Each entry point takes the numbers of patches, and returns vectors of the text network.
    fn trace(&self, element: ElementType, entry_points: &[EntryPoint]) -> Result<Traced, TraceError> {
        macro_rules! recorded {
            ($tower:ident) => {{
                let mut recording = $tower::<AnyFloat>::record(self)?;
                for point in entry_points {
                    recording = recording.entry_with(&point.name, |tower, entry| {
                        self.record(entry, point, |patches| tower.see(patches.to()));
                    })?;
                }
                Ok(recording.finish())
            }};
        }
        in_element(element, || match self.family {
            VisionFamily::SmolVlm => recorded!(SmolVlmTower),
            VisionFamily::Gemma3 => recorded!(Gemma3Tower),
            VisionFamily::InternVl { .. } => recorded!(InternVlTower),
            VisionFamily::Pixtral { .. } => recorded!(PixtralTower),
        })
    }

    /// The patches of an image.
    fn max_context(&self) -> usize {
        self.patches()
    }

    /// A tower reads no tokens.
    fn vocabulary(&self) -> usize {
        0
    }

    fn element(&self) -> Option<ElementType> {
        self.element
    }

    fn check_mtp(&self) -> Result<(), MtpError> {
        Err(MtpError::Family)
    }

    fn sizes(&self) -> Vec<DeclaredSize> {
        Vec::new()
    }
}
