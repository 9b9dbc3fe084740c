//! Lists the code of each error type, and the source lines of a network's declaration that the
//! error refers to.
//!
//! An error that only wraps another error has the code of the wrapped error.

use Code::*;
use bake::{AgainstError, BakeError, Problem, QuantizeError};
use dsl::{BuildError, TraceError, TraceErrorKind};
use errors::{FileError, Place};
use hub::HubError;
use irpa::ArchiveError;
use lower::{LowerError, ShardError};
use models::config::ConfigError;
use models::fit::FitError;
use models::gguf::ImatrixError;
use models::{LoraError, OtherSizes, UnknownPrompt};
use ops::{InferError, ParseError, UnknownElementType};
use simplify::ExplainError;
use simplify::rules::UnknownRules;
use targets::{MeshError, TargetError};
use trace::{EvaluateError, ParameterConflict, VerifyError};
use tracewright::files::{NotReplaced, StandIn};

use crate::{Code, Coded, UnknownCode, coded, place};
use tracewright::export::xla::XlaError;
use tracewright::export::{FolderError, ManifestError};
use tracewright::footprint::TooLarge;
use tracewright::output_guard::OverwritesModel;
use tracewright::quant_map::QuantMapError;
use tracewright::random::RandomError;
use tracewright::tuning::TuningFileError;
use tracewright::{AdapterError, ArrayError, PlanError};

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

coded! {
    ImatrixError: File Config {
        TW0517: NoNames Old Empty;
        TW0812: Number;
    }

    QuantizeError: File Archive {
        TW0009: Exists;
        TW0006: Write;
    }

    QuantMapError: File {
        TW0515: Json Format;
    }

    HubError: File {
        TW1101: NoCache Offline;
        TW1102: NoModel NoAccess NoRevision;
        TW1103: NoFile SeveralFiles NoWeights;
        TW1104: Status Unreachable Connection Answer;
        TW1105: Hash;
        TW0005: Stopped;
    }

    RandomError: File {
        TW0009: Exists;
        TW0005: Stopped;
        TW0505: Memory;
        TW0006: Write;
    }

    TuningFileError: File {
        TW1003: Syntax;
    }

    FolderError: File {
        TW0008: Own OwnFile;
        TW0009: Foreign;
        TW0901: Locked;
    }

    ManifestError: File {
        TW0902: Syntax;
        TW0903: Lost;
        TW0906: Device;
        TW0908: Engine;
        TW0904: Module;
    }

    XlaError: Plan Shard Folder File Bake Archive Manifest {
        TW0907: Gguf Unnamed;
        TW0208: Lost;
        TW0904: Moved;
    }

    ConfigError: File Archive {
        TW0101: Syntax;
        TW0102: Keys;
        TW0103: Modules;
        TW0104: Architecture GgufEmbeds;
        TW0105: Embeds;
        TW0106: Generates;
        TW0107: Quantized;
        TW0109: Scores Unranked;
        TW0111: Transcribes NoSpeech;
    }

    FitError: Config Archive Sizes {}

    LoraError: File Archive {
        TW0110: NoAdapter Syntax Fields;
        TW0214: Tensors;
    }

    BakeError: Archive {
        TW0201: Mismatch;
        TW0202: Recipe;
    } @ |error| {
        let declared = |problem: &Problem| match problem {
            Problem::Shape { declared, .. } => declared.as_ref().map(|declared| place(&declared.provenance)),
            _ => None,
        };
        match error {
            Self::Mismatch { problems, .. } => problems.iter().filter_map(declared).collect(),
            _ => Vec::new(),
        }
    };

    AgainstError: Archive {
        TW0201: Missing Shape;
        TW0202: Recipe;
        TW0304: Untyped;
        TW0305: Number Row;
    }

    ArchiveError: File {
        TW0007: DiskFull;
        TW0005: Cancelled;
        TW0301: Archive;
        TW0302: Content;
        TW0303: Entry;
        TW0210: Gguf;
        TW0209: Blocks SourceLength Conversion ConversionLength Dtype;
        TW0203: Foreign;
        TW0204: NoCheckpoint Snapshots;
        TW0205: Safetensors SafetensorsLength Rows;
        TW0213: Joined;
        TW0206: Index;
        TW0207: IndexMismatch;
        TW0208: NoTensor;
        TW0812: NotFinite;
        TW0008: OutputIsInput;
    }

    BuildError: {
        TW0401: Indivisible;
        TW0402: Empty;
        TW0403: Key;
    }

    InferError: {
        TW0404: Arity;
        TW0405: Element;
        TW0406: Mismatch;
        TW0407: Axis;
        TW0408: Attribute;
    }

    LowerError: Parameter {
        TW0506: Infer;
        TW0507: Composite Kernel;
        TW0508: IntegersWithoutKernels;
        TW0518: NumericsWithoutKernels;
        TW0513: Element;
        TW0514: Pattern;
        TW0428: NoEntry;
    } @ |error| {
        match error {
            Self::Infer { provenance, .. }
            | Self::Composite { provenance, .. }
            | Self::Kernel { provenance, .. }
            | Self::Element { provenance, .. } => vec![place(provenance)],
            _ => Vec::new(),
        }
    };

    AdapterError: {
        TW0214: Weight Unchanged Rank;
    }

    PlanError: Trace Lower Parameter QuantMap Adapters {
        TW0501: Context;
        TW0502: Chunk;
        TW0503: Length;
        TW0504: Element;
    }
}
