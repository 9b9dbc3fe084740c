//! Codes of errors from the compiler, the runtime, generation and what builds on them.

use errors::Place;
use generate::{GenerateError, TemplateError};
use runtime::{CompileError, RuntimeError};

use crate::Code::*;
use crate::{Code, Coded};
use instruments::bench::BenchError;
use instruments::bisect::BisectError;
use instruments::quality::QualityError;
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
            Self::Template(error) => error.code(),
            Self::Setting { .. } => TW0811,
            Self::NeedsText { .. } => TW0822,
            Self::Logit { .. } | Self::NoCandidate { .. } => TW0812,
            Self::Favoured { .. } | Self::Token { .. } => TW0813,
            Self::Full { .. } => TW0814,
            Self::EmptyPrompt => TW0815,
            Self::Features { .. } => TW0815,
            Self::TooLong { .. } => TW0816,
            Self::EntryPoint { .. } | Self::NoEntryPoint { .. } | Self::NoMemory => TW0817,
            Self::Evaluate(error) => error.code(),
            Self::Gguf(error) => error.code(),
            Self::Runtime(error) => error.code(),
        }
    }
}

impl Coded for TemplateError {
    fn code(&self) -> Code {
        match self {
            Self::NoDefault { .. } => TW0805,
            Self::Syntax { .. } => TW0806,
            Self::Render { .. } => TW0807,
            Self::Raised { .. } => TW0808,
            Self::Empty | Self::Message { .. } => TW0810,
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
            Self::DraftTokenizer { .. } => TW0824,
            Self::AsExported { .. } | Self::Compiled { .. } | Self::Target { .. } | Self::NoCache => TW0001,
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
            Self::NoEntry { .. } | Self::Count { .. } | Self::Name { .. } | Self::Argument { .. } => TW0428,
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
            Self::Manifest(error) => error.code(),
            Self::Archive { .. } => TW0904,
            Self::NoManifest { .. } => TW0905,
            Self::Architecture { .. } | Self::Cpu { .. } => TW0906,
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

impl Coded for QualityError {
    fn code(&self) -> Code {
        match self {
            Self::Short { .. } | Self::Window(_) | Self::Vocabulary { .. } => TW1010,
            Self::NotFinite { .. } => TW0812,
            Self::Model(error) => error.code(),
            Self::Interrupted => TW0005,
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
