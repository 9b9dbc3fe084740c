//! Lists the codes of errors from the compiler, the runtime, text generation and the crates that
//! depend on the compiler or the runtime.

use generate::{GenerateError, TemplateError};
use pjrt::PjrtError;
use runtime::{CompileError, RuntimeError};

use crate::coded;
use tracewright::CallError;
use tracewright::audio::AudioError;
use tracewright::build::LoadError;
use tracewright::embed::EmbedError;
use tracewright::export::ExportError;
use tracewright::model::ModelError;
use tracewright::pixels::ImageError;

coded! {
    CompileError: File {
        TW0601: NotFound;
        TW0602: Spawn NotACompiler;
        TW0603: TimedOut;
        TW0005: Interrupted;
        TW0604: Killed;
        TW0605: Failed;
        TW0606: NoModule;
        TW0607: UnknownTarget;
    } @ |error| {
        match error {
            Self::Failed { place, .. } => place.iter().map(|place| (**place).clone()).collect(),
            _ => Vec::new(),
        }
    };

    RuntimeError: {
        TW0701: Device;
        TW0702: Buffer TooLarge Length;
        TW0703: Parameters ParameterRange MissingParameter ShortParameter;
        TW0704: NotAModule;
        TW0705: OtherVersion;
        TW0706: Load;
        TW0707: NoFunction Arity OtherRuntime ResultType;
        TW0708: Call;
        TW0709: Watch;
        TW0710: DriverNotBuilt NotRun;
        TW0711: Driver;
        TW0712: NoDevice;
    }

    PjrtError: {
        TW0713: NoPlugin Library Cut NoApi Version Missing;
        TW0711: Start;
        TW0712: NoDevice FewDevices;
        TW0714: Compile ResultType;
        TW0715: OutOfMemory;
        TW0702: Element ByteCount Range Placement DividedRows;
        TW0707: OtherClient OtherDevices ResultCount;
        TW0708: Failed NotStored;
    }

    GenerateError: File Template Evaluate Gguf Compile Runtime Pjrt {
        TW0004: ConstraintProgram;
        TW0707: OtherEngine;
        TW0801: Json Key;
        TW0802: Tokenizer;
        TW0818: SchemaSyntax Schema SchemaKeyword Grammar Constraint ConstraintLimit NothingAllowed;
        TW0819: NoBytes;
        TW0803: Tokenize;
        TW0804: NoTemplate;
        TW0811: Setting NothingLeft;
        TW0822: NeedsText;
        TW0812: Logit NoCandidate;
        TW0813: Favoured Token;
        TW0814: Full;
        TW0815: EmptyPrompt;
        TW0816: TooLong;
        TW0817: EntryPoint NoEntryPoint NoMemory;
        TW0827: Features SourceKind NoEncoder Adapter;
        TW0825: Saved;
    }

    TemplateError: {
        TW0805: NoDefault;
        TW0806: Syntax;
        TW0807: Render;
        TW0808: Raised;
        TW0810: Empty Message;
    }

    EmbedError: Array Call {
        TW0817: NoEntryPoint;
        TW0815: Empty;
        TW0816: TooLong;
        TW0813: Token;
        TW0812: Number;
    }

    AudioError: File {
        TW0828: Empty Format Encoding Cut Damaged Several Long Rate;
        TW0801: Key Syntax;
    }

    ImageError: File {
        TW0830: Format Decode Bytes Pixels Ratio;
    }

    ModelError: Audio File Config Lora Adapter Hub Sizes Archive Cached Plan Load Xla Plugin Export Tuning Generate Failed Embed Prompt {
        TW0713: Platform;
        TW0822: NoTokenizer;
        TW0802: SpeechToken;
        TW0829: Language EnglishOnly;
        TW0823: Kind;
        TW0830: Image ImagePart;
        TW0831: Placeholders ImageToken;
        TW0824: DraftTokenizer;
        TW0826: Mtp;
        TW0001: AdapterLimit AdapterName AdapterRoom UnknownAdapter AsExported Compiled Target NoCache MeshEngine MeshDevice NoMesh;
        TW0807: Template;
        TW0809: TemplateLimit;
        TW0821: UnreadVariable;
        TW0004: Program Thread Gone;
    }

    CallError: Runtime Generate {
        TW0428: NoEntry Count Name Argument;
    }

    LoadError: Lower TooLarge Bake Archive File Compile Runtime {
        TW0703: Parameter;
        TW0005: Stopped;
        TW0004: Thread;
    }

    ExportError: File Folder Manifest Config Tokenizer Plan Compile Load {
        TW0904: Archive;
        TW0905: NoManifest;
        TW0906: Architecture Cpu;
    }
}
