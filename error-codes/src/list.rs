//! Which error has which code, and which place in a declaration it is about.
//!
//! What is made of another error and says nothing itself has the code of that one.

use Code::*;
use bake::{BakeError, Problem};
use dsl::{BuildError, TraceError, TraceErrorKind};
use errors::{FileError, Place};
use hub::HubError;
use irpa::ArchiveError;
use lower::{LowerError, ShardError};
use models::config::ConfigError;
use models::{OtherSizes, UnknownPrompt};
use ops::{InferError, ParseError, UnknownElementType};
use simplify::ExplainError;
use simplify::rules::UnknownRules;
use targets::{MeshError, TargetError};
use trace::{EvaluateError, ParameterConflict, VerifyError};
use tracewright::files::{NotReplaced, StandIn};

use crate::{Code, Coded, UnknownCode, place};
use instruments::profile::ProfileError;
use tracewright::export::xla::XlaError;
use tracewright::export::{FolderError, ManifestError};
use tracewright::footprint::TooLarge;
use tracewright::output_guard::OverwritesModel;
use tracewright::random::RandomError;
use tracewright::tuning::TuningFileError;
use tracewright::{ArrayError, PlanError};

macro_rules! all {
    ($($error:ident => $code:ident),* $(,)?) => {
        $(impl Coded for $error {
            fn code(&self) -> Code {
                $code
            }
        })*
    };
}

all! {
    OverwritesModel => TW0008,
    UnknownPrompt => TW0108,
    OtherSizes => TW0211,
    ParameterConflict => TW0426,
    EvaluateError => TW0428,
    ArrayError => TW0428,
    TooLarge => TW0505,
    ExplainError => TW0509,
    UnknownElementType => TW0510,
    UnknownRules => TW0510,
    UnknownCode => TW0510,
    ParseError => TW0511,
    TargetError => TW0511,
    MeshError => TW0511,
    ShardError => TW0512,
}

impl Coded for FileError {
    fn code(&self) -> Code {
        match self.source.get_ref() {
            Some(source) if source.is::<NotReplaced>() => TW0009,
            Some(source) if source.is::<StandIn>() => TW0203,
            _ => TW0006,
        }
    }
}

impl Coded for RandomError {
    fn code(&self) -> Code {
        match self {
            Self::File(error) => error.code(),
            Self::Exists(_) => TW0009,
            Self::Stopped(_) => TW0005,
            Self::Memory { .. } => TW0505,
            Self::Write { .. } => TW0006,
        }
    }
}

impl Coded for ProfileError {
    fn code(&self) -> Code {
        match self {
            Self::File(error) => error.code(),
            Self::Syntax { .. } => TW1006,
            Self::Variant { .. } | Self::Entry { .. } | Self::Network { .. } => TW1007,
        }
    }
}

impl Coded for TuningFileError {
    fn code(&self) -> Code {
        match self {
            Self::File(error) => error.code(),
            Self::Syntax { .. } => TW1003,
        }
    }
}

impl Coded for FolderError {
    fn code(&self) -> Code {
        match self {
            Self::File(error) => error.code(),
            Self::Own(_) => TW0008,
            Self::Foreign(_) => TW0009,
            Self::Locked(_) => TW0901,
        }
    }
}

impl Coded for ManifestError {
    fn code(&self) -> Code {
        match self {
            Self::File(error) => error.code(),
            Self::Syntax { .. } => TW0902,
            Self::Lost { .. } => TW0903,
            Self::Device { .. } => TW0906,
            Self::Engine(_) => TW0908,
            Self::Module { .. } => TW0904,
        }
    }
}

impl Coded for XlaError {
    fn code(&self) -> Code {
        match self {
            Self::Quantized | Self::Gguf(_) | Self::Unnamed(_) => TW0907,
            Self::Plan(error) => error.code(),
            Self::Shard(error) => error.code(),
            Self::Folder(error) => error.code(),
            Self::File(error) => error.code(),
            Self::Bake(error) => error.code(),
            Self::Archive(error) => error.code(),
            Self::Lost { .. } => TW0208,
            Self::Manifest(error) => error.code(),
            Self::Moved { .. } => TW0904,
        }
    }

    fn places(&self) -> Vec<Place> {
        match self {
            Self::Plan(error) => error.places(),
            Self::Bake(error) => error.places(),
            _ => Vec::new(),
        }
    }
}

impl Coded for ConfigError {
    fn code(&self) -> Code {
        match self {
            Self::File(error) => error.code(),
            Self::Syntax { .. } => TW0101,
            Self::Keys { .. } => TW0102,
            Self::Modules { .. } => TW0103,
            Self::Architecture { .. } => TW0104,
            Self::Embeds { .. } => TW0105,
            Self::Generates { .. } => TW0106,
            Self::Quantized { .. } => TW0107,
            Self::Archive(error) => error.code(),
        }
    }
}

impl Coded for BakeError {
    fn code(&self) -> Code {
        match self {
            Self::Mismatch { .. } => TW0201,
            Self::Recipe { .. } => TW0202,
            Self::Archive(error) => error.code(),
        }
    }

    fn places(&self) -> Vec<Place> {
        let declared = |problem: &Problem| match problem {
            Problem::Shape { declared, .. } => declared.as_ref().map(|declared| place(&declared.provenance)),
            _ => None,
        };
        match self {
            Self::Mismatch { problems, .. } => problems.iter().filter_map(declared).collect(),
            _ => Vec::new(),
        }
    }
}

impl Coded for ArchiveError {
    fn code(&self) -> Code {
        match self {
            Self::File(error) => error.code(),
            Self::DiskFull { .. } => TW0007,
            Self::Cancelled { .. } => TW0005,
            Self::Archive { .. } => TW0301,
            Self::Content { .. } => TW0302,
            Self::Entry { .. } => TW0303,
            Self::Gguf { .. } => TW0210,
            Self::Blocks { .. }
            | Self::SourceLength { .. }
            | Self::Conversion { .. }
            | Self::ConversionLength { .. }
            | Self::Dtype { .. } => TW0209,
            Self::Foreign { .. } => TW0203,
            Self::NoCheckpoint { .. } | Self::Snapshots { .. } => TW0204,
            Self::Safetensors { .. } | Self::SafetensorsLength { .. } => TW0205,
            Self::Index { .. } => TW0206,
            Self::IndexMismatch { .. } => TW0207,
            Self::NoTensor { .. } => TW0208,
            Self::OutputIsInput { .. } => TW0008,
        }
    }
}

impl Coded for HubError {
    fn code(&self) -> Code {
        match self {
            Self::NoCache | Self::Offline { .. } => TW1101,
            Self::NoModel { .. } | Self::NoAccess { .. } | Self::NoRevision { .. } => TW1102,
            Self::NoFile { .. } | Self::SeveralFiles { .. } | Self::NoWeights { .. } => TW1103,
            Self::Status { .. } | Self::Connection { .. } | Self::Answer { .. } => TW1104,
            Self::Hash { .. } => TW1105,
            Self::File(error) => error.code(),
        }
    }
}

impl Coded for BuildError {
    fn code(&self) -> Code {
        match self {
            Self::Indivisible { .. } => TW0401,
            Self::Empty { .. } => TW0402,
            Self::Key { .. } => TW0403,
        }
    }
}

impl Coded for InferError {
    fn code(&self) -> Code {
        match self {
            Self::Arity { .. } => TW0404,
            Self::Element { .. } => TW0405,
            Self::Mismatch { .. } => TW0406,
            Self::Axis { .. } => TW0407,
            Self::Attribute { .. } => TW0408,
        }
    }
}

impl Coded for TraceErrorKind {
    fn code(&self) -> Code {
        match self {
            Self::Infer(error) => error.code(),
            Self::NoAxis { .. } => TW0409,
            Self::Extents { .. } => TW0410,
            Self::Renamed { kind, .. } => kind.code(),
            Self::Axes { .. } => TW0411,
            Self::Repeats { .. } => TW0412,
            Self::Repeated { .. } => TW0413,
            Self::Order { .. } => TW0414,
            Self::Extent { .. } => TW0415,
            Self::Positions { .. } => TW0416,
            Self::Signature { .. } => TW0417,
            Self::Stranger => TW0418,
            Self::Closed => TW0419,
            Self::Nested => TW0420,
            Self::Unequal { .. } => TW0421,
            Self::Unnamed => TW0422,
            Self::Size { .. } => TW0423,
            Self::UnusedSize { .. } => TW0424,
            Self::EntryTwice { .. } => TW0425,
            Self::NoState { .. }
            | Self::StateName { .. }
            | Self::StateTwice { .. }
            | Self::Unfilled { .. }
            | Self::Filled { .. } => TW0429,
            Self::NoFunction { .. } => TW0430,
            Self::Build(error) => error.code(),
        }
    }

    fn places(&self) -> Vec<Place> {
        match self {
            Self::Renamed { kind, at, .. } => kind.places().into_iter().chain([place(at)]).collect(),
            Self::Repeats { lost: Some(lost), .. } => vec![place(lost)],
            _ => Vec::new(),
        }
    }
}

impl Coded for TraceError {
    fn code(&self) -> Code {
        self.kind.code()
    }

    fn places(&self) -> Vec<Place> {
        [place(&self.provenance)].into_iter().chain(self.kind.places()).collect()
    }
}

impl Coded for VerifyError {
    fn code(&self) -> Code {
        TW0427
    }

    fn places(&self) -> Vec<Place> {
        match self {
            Self::Infer { provenance, .. } | Self::Type { provenance, .. } => vec![place(provenance)],
            _ => Vec::new(),
        }
    }
}

impl Coded for LowerError {
    fn code(&self) -> Code {
        match self {
            Self::Infer { .. } => TW0506,
            Self::Composite { .. } | Self::Kernel { .. } => TW0507,
            Self::IntegersWithoutKernels => TW0508,
            Self::Element { .. } => TW0513,
            Self::NoEntry(_) => TW0428,
            Self::Parameter(error) => error.code(),
        }
    }

    fn places(&self) -> Vec<Place> {
        match self {
            Self::Infer { provenance, .. }
            | Self::Composite { provenance, .. }
            | Self::Kernel { provenance, .. }
            | Self::Element { provenance, .. } => vec![place(provenance)],
            _ => Vec::new(),
        }
    }
}

impl Coded for PlanError {
    fn code(&self) -> Code {
        match self {
            Self::Context { .. } => TW0501,
            Self::Chunk { .. } => TW0502,
            Self::Length { .. } => TW0503,
            Self::Element(_) => TW0504,
            Self::Trace(error) => error.code(),
            Self::Lower(error) => error.code(),
            Self::Parameter(error) => error.code(),
        }
    }

    fn places(&self) -> Vec<Place> {
        match self {
            Self::Trace(error) => error.places(),
            Self::Lower(error) => error.places(),
            _ => Vec::new(),
        }
    }
}
