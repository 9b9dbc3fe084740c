//! Recognizes GGUF files that contain no language model.

use crate::{Gguf, GgufPart};

impl GgufPart {
    /// `None` for a whole model. The keys decide, so `file` may come from [`Gguf::open_keys`].
    pub fn of_keys(file: &Gguf) -> Option<Self> {
        let architecture = file.text("general.architecture");
        match (file.text("general.type"), architecture) {
            (Some("mmproj"), _) | (_, Some("clip")) => Some(Self::Projector),
            (Some("imatrix"), _) => Some(Self::Imatrix),
            (Some("adapter"), _) => {
                let name = ["general.base_model.0.name", "general.base_model.0.repo_url"];
                let base = name.iter().find_map(|key| file.text(key)).map(str::to_owned);
                Some(Self::Adapter { base })
            }
            (_, Some("controlvector")) => Some(Self::ControlVector),
            _ => None,
        }
    }

    /// `None` for a whole model.
    pub fn of(file: &Gguf) -> Option<Self> {
        Self::of_keys(file).or_else(|| file.tensors().is_empty().then_some(Self::Vocabulary))
    }
}
