//! Parses a target as you specify it on the command line.

use std::str::FromStr;

use crate::{DeviceKind, Target};

/// The notations in which you can specify a target on the command line.
const FORMS: &str = "`host`, a processor that LLVM knows, PLATFORM:PROCESSOR[:FEATURES], as \
                     `aarch64-linux-gnu:generic:+neon`, or DEVICE[:PROCESSOR[:FEATURES]], as `cuda:sm_80`";

/// The error for a text that is not the name of a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    #[error("the target is empty; expected {FORMS}")]
    Empty,
    #[error("the target `{target}` has no {part}; expected {FORMS}")]
    Missing { target: String, part: &'static str },
    /// A feature of the target begins with neither `+` nor `-`.
    #[error(
        "the target `{target}` has the feature `{feature}`; expected `+NAME` or `-NAME`, separated by commas"
    )]
    Feature { target: String, feature: String },
}

/// Parses a target in the form `host`, `PROCESSOR` or `PLATFORM:PROCESSOR[:FEATURES]`. In the notation
/// `PLATFORM:PROCESSOR[:FEATURES]`, a [kind of device](DeviceKind) can replace the platform.
impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = |part: &'static str, word: &str| {
            if word.is_empty() {
                Err(TargetError::Missing { target: text.into(), part })
            } else {
                Ok(word.to_owned())
            }
        };
        let mut parts = text.splitn(3, ':');
        let (platform, processor, features) = match (parts.next(), parts.next(), parts.next()) {
            (None, ..) => return Err(TargetError::Empty),
            (Some(name), None, _) if name.trim().is_empty() => return Err(TargetError::Empty),
            (Some("host"), None, _) => return Ok(Self::host()),
            (Some(name), None, _) => {
                return Ok(DeviceKind::of_name(name).map_or_else(|| Self::processor(name), Self::of_device));
            }
            (platform, Some(processor), features) => (platform.unwrap_or_default(), processor, features),
        };
        if let Some(device) = DeviceKind::of_name(platform).filter(|&device| device != DeviceKind::Cpu) {
            let changes = features.map(|features| named("features", features)).transpose()?;
            let processor = named("processor", processor)?;
            return Ok(Self { processor, changes, ..Self::of_device(device) });
        }
        let triple = Some(named("platform", platform)?);
        let target = Self { triple, ..Self::processor(named("processor", processor)?) };
        let Some(features) = features else { return Ok(target) };
        let wrong = |feature: &&str| !(feature.starts_with(['+', '-']) && feature.len() > 1);
        match named("features", features)?.split(',').find(wrong) {
            Some(feature) => Err(TargetError::Feature { target: text.into(), feature: feature.into() }),
            None => Ok(Self { changes: Some(features.into()), ..target }),
        }
    }
}
