//! Which error has which code, and which place in a declaration it is about.
//!
//! What is made of another error and says nothing itself has the code of that one.

use Code::*;
use bake::{BakeError, Problem};
use dsl::{BuildError, TraceError, TraceErrorKind};
use errors::{FileError, Place};
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
use tracewright::export::FolderError;
use tracewright::export::xla::XlaError;
use tracewright::footprint::TooLarge;
use tracewright::own::OwnFile;
use tracewright::random::RandomError;
use tracewright::tuning::TuningFileError;
use tracewright::{ArrayError, PlanError};

/// Errors of one kind.
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
    OwnFile => TW0008,
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
            Self::Manifest { .. } => TW0902,
            Self::Module { .. } | Self::Moved { .. } => TW0904,
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

#[cfg(feature = "iree")]
mod with_runtime {
    use errors::Place;
    use generate::GenerateError;
    use runtime::{CompileError, RuntimeError};

    use crate::Code::*;
    use crate::{Code, Coded};
    use instruments::bench::BenchError;
    use instruments::bisect::BisectError;
    use instruments::tune::TuneError;
    use tracewright::CallError;
    use tracewright::build::LoadError;
    use tracewright::embed::EmbedError;
    use tracewright::export::ExportError;
    use tracewright::model::ModelError;

    impl Coded for CompileError {
        fn code(&self) -> Code {
            match self {
                Self::NotFound { .. } => TW0601,
                Self::Spawn { .. } | Self::NotACompiler { .. } => TW0602,
                Self::TimedOut { .. } => TW0603,
                Self::Interrupted => TW0005,
                Self::Killed { .. } => TW0604,
                Self::Failed { .. } => TW0605,
                Self::NoModule { .. } => TW0606,
                Self::UnknownTarget { .. } => TW0607,
                Self::File(error) => error.code(),
            }
        }

        fn places(&self) -> Vec<Place> {
            match self {
                Self::Failed { place, .. } => place.iter().map(|place| (**place).clone()).collect(),
                _ => Vec::new(),
            }
        }
    }

    impl Coded for RuntimeError {
        fn code(&self) -> Code {
            match self {
                Self::Device(_) => TW0701,
                Self::Buffer { .. } | Self::TooLarge(_) | Self::Length { .. } => TW0702,
                Self::Parameters { .. }
                | Self::ParameterRange { .. }
                | Self::MissingParameter(_)
                | Self::ShortParameter(_) => TW0703,
                Self::NotAModule(_) => TW0704,
                Self::OtherVersion(_) => TW0705,
                Self::Load(_) => TW0706,
                Self::NoFunction { .. }
                | Self::Arity { .. }
                | Self::OtherRuntime { .. }
                | Self::ResultType { .. } => TW0707,
                Self::Call { .. } => TW0708,
                Self::Watch(_) => TW0709,
                Self::DriverNotBuilt(_) | Self::NotRun(_) => TW0710,
                Self::Driver { .. } => TW0711,
                Self::NoDevice { .. } => TW0712,
            }
        }
    }

    impl Coded for GenerateError {
        fn code(&self) -> Code {
            match self {
                Self::File(error) => error.code(),
                Self::Json { .. } | Self::Key { .. } => TW0801,
                Self::Tokenizer { .. } => TW0802,
                Self::SchemaSyntax { .. }
                | Self::Schema { .. }
                | Self::Grammar { .. }
                | Self::Constraint { .. }
                | Self::NothingAllowed { .. } => TW0818,
                Self::NoBytes { .. } => TW0819,
                Self::Tokenize { .. } => TW0803,
                Self::NoTemplate { .. } => TW0804,
                Self::NoDefaultTemplate { .. } => TW0805,
                Self::TemplateSyntax { .. } => TW0806,
                Self::TemplateRender { .. } => TW0807,
                Self::TemplateRaised { .. } => TW0808,
                Self::EmptyChat | Self::Message { .. } => TW0810,
                Self::Setting { .. } => TW0811,
                Self::NeedsText { .. } => TW0822,
                Self::Logit { .. } | Self::NoCandidate { .. } => TW0812,
                Self::Favoured { .. } | Self::Token { .. } => TW0813,
                Self::Full { .. } => TW0814,
                Self::EmptyPrompt => TW0815,
                Self::TooLong { .. } => TW0816,
                Self::EntryPoint { .. } | Self::NoEntryPoint { .. } | Self::NoMemory => TW0817,
                Self::Features { .. } => TW0815,
                Self::Evaluate(error) => error.code(),
                Self::Gguf(error) => error.code(),
                Self::Runtime(error) => error.code(),
            }
        }
    }

    impl Coded for EmbedError {
        fn code(&self) -> Code {
            match self {
                Self::NoEntryPoint { .. } => TW0817,
                Self::Empty { .. } => TW0815,
                Self::TooLong { .. } => TW0816,
                Self::Token { .. } => TW0813,
                Self::Number { .. } => TW0812,
                Self::Array(error) => error.code(),
                Self::Call(error) => error.code(),
            }
        }
    }

    impl Coded for ModelError {
        fn code(&self) -> Code {
            match self {
                Self::File(error) => error.code(),
                Self::Config(error) => error.code(),
                Self::Sizes(error) => error.code(),
                Self::Archive(error) | Self::Cached(error) => error.code(),
                Self::Plan(error) => error.code(),
                Self::Load(error) => error.code(),
                Self::Export(error) => error.code(),
                Self::Tuning(error) => error.code(),
                Self::Generate(error) => error.code(),
                Self::Failed(error) => error.code(),
                Self::Embed(error) => error.code(),
                Self::Prompt(error) => error.code(),
                Self::NoTokenizer { .. } => TW0822,
                Self::Kind { .. } => TW0823,
                Self::AsExported { .. } | Self::Compiled { .. } | Self::Target { .. } | Self::NoCache => {
                    TW0001
                }
                // Its text begins with a code where the program is ours.
                Self::Template { .. } => TW0807,
                Self::TemplateLimit => TW0809,
                Self::Program(_) | Self::Thread(_) | Self::Gone => TW0004,
            }
        }

        fn places(&self) -> Vec<Place> {
            match self {
                Self::Plan(error) => error.places(),
                Self::Load(error) => error.places(),
                Self::Export(error) => error.places(),
                _ => Vec::new(),
            }
        }
    }

    impl Coded for CallError {
        fn code(&self) -> Code {
            match self {
                Self::NoEntry { .. } | Self::Count { .. } | Self::Name { .. } | Self::Argument { .. } => {
                    TW0428
                }
                Self::Runtime(error) => error.code(),
            }
        }
    }

    impl Coded for LoadError {
        fn code(&self) -> Code {
            match self {
                Self::Lower(error) => error.code(),
                Self::TooLarge(error) => error.code(),
                Self::Bake(error) => error.code(),
                Self::Archive(error) => error.code(),
                Self::Parameter { .. } => TW0703,
                Self::File(error) => error.code(),
                Self::Stopped => TW0005,
                Self::Compile(error) => error.code(),
                Self::Runtime(error) => error.code(),
            }
        }

        fn places(&self) -> Vec<Place> {
            match self {
                Self::Lower(error) => error.places(),
                Self::Bake(error) => error.places(),
                Self::Compile(error) => error.places(),
                _ => Vec::new(),
            }
        }
    }

    impl Coded for ExportError {
        fn code(&self) -> Code {
            match self {
                Self::File(error) => error.code(),
                Self::Folder(error) => error.code(),
                Self::Engine(_) => TW0908,
                Self::Manifest { .. } => TW0902,
                Self::Lost { .. } => TW0903,
                Self::Module { .. } | Self::Archive { .. } => TW0904,
                Self::NoManifest { .. } => TW0905,
                Self::Architecture { .. } | Self::Cpu { .. } | Self::Device { .. } => TW0906,
                Self::Config(error) => error.code(),
                Self::Tokenizer(error) => error.code(),
                Self::Plan(error) => error.code(),
                Self::Compile(error) => error.code(),
                Self::Load(error) => error.code(),
            }
        }

        fn places(&self) -> Vec<Place> {
            match self {
                Self::Plan(error) => error.places(),
                Self::Compile(error) => error.places(),
                Self::Load(error) => error.places(),
                _ => Vec::new(),
            }
        }
    }

    impl Coded for BenchError {
        fn code(&self) -> Code {
            match self {
                Self::Plan(error) => error.code(),
                Self::Load(error) => error.code(),
                Self::Random(error) => error.code(),
                Self::Generate(error) => error.code(),
                Self::Archive(error) => error.code(),
                Self::File(error) => error.code(),
                Self::Depth { .. } => TW1002,
                Self::Chunks { .. } | Self::NotWatched => TW1008,
                Self::Stopped => TW0005,
            }
        }

        fn places(&self) -> Vec<Place> {
            match self {
                Self::Plan(error) => error.places(),
                Self::Load(error) => error.places(),
                _ => Vec::new(),
            }
        }
    }

    impl Coded for BisectError {
        fn code(&self) -> Code {
            match self {
                Self::Lower(error) => error.code(),
                Self::Load(error) => error.code(),
                Self::Call(error) => error.code(),
                Self::Evaluate(error) => error.code(),
                Self::File(error) => error.code(),
                Self::Runtime(error) => error.code(),
                Self::Stopped => TW0005,
            }
        }

        fn places(&self) -> Vec<Place> {
            match self {
                Self::Lower(error) => error.places(),
                Self::Load(error) => error.places(),
                _ => Vec::new(),
            }
        }
    }

    impl Coded for TuneError {
        fn code(&self) -> Code {
            match self {
                Self::Plan(error) => error.code(),
                Self::Lower(error) => error.code(),
                Self::Evaluate(error) => error.code(),
                Self::Compile(error) => error.code(),
                Self::Runtime(error) => error.code(),
                Self::File(error) => error.code(),
                Self::Bench(error) => error.code(),
                Self::Wrong { .. } => TW1004,
                Self::Stopped => TW0005,
            }
        }

        fn places(&self) -> Vec<Place> {
            match self {
                Self::Plan(error) => error.places(),
                Self::Lower(error) => error.places(),
                Self::Compile(error) => error.places(),
                _ => Vec::new(),
            }
        }
    }
}
