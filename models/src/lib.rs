//! The networks: one file per architecture, and their configurations.

/// A configuration that is another one's and more: it has that one's fields, and that one's blocks may be fields of
/// its network.
macro_rules! descends {
    ($config:ident from $field:ident: $base:ident) => {
        impl std::ops::Deref for $config {
            type Target = $base;

            fn deref(&self) -> &$base {
                &self.$field
            }
        }

        impl dsl::Project<$base> for $config {
            fn project(&self) -> $base {
                self.$field.clone()
            }
        }
    };
}

/// A network and its configuration in each line, which the module's `read` makes of a `config.json`; the architectures
/// that one may name for it; those without a head, of which transformers makes the first one by the model type; the
/// model types, for a file that was written by hand and names the family only; and how else a checkpoint may hold the
/// parameters.
macro_rules! families {
    ($($module:ident::$family:ident($config:ident): $($architecture:literal)+, base $($base:literal)+, or $($model_type:literal)+
        $(, also $stacks:path)?;)+) => {
        /// The architectures that [`ModelConfig::read`] knows, as `config.json` names them.
        pub const ARCHITECTURES: &[&str] = &[$($($architecture),+),+];

        /// The configuration of any known architecture.
        #[derive(Clone, Debug, PartialEq)]
        pub enum ModelConfig {
            $(
                #[doc = concat!($("`", $architecture, "` "),+)]
                $family($config),
            )+
        }

        impl ModelConfig {
            /// Reads a `config.json`, or the one in the directory at `path`. `allowed` keys may be there although
            /// nothing reads them.
            ///
            /// # Errors
            /// An unknown architecture, a quantized checkpoint, or all keys that are missing, unknown or unusable.
            pub fn read(path: &Path, allowed: &[String]) -> Result<Self, ConfigError> {
                Self::of(Keys::read(path)?, allowed)
            }

            /// What the keys of a configuration say.
            pub(crate) fn of(keys: Keys, allowed: &[String]) -> Result<Self, ConfigError> {
                let (found, path) = (architecture(&keys), keys.path().to_owned());
                if embedding_gemma::is_embedding(&keys, &found) {
                    return Err(ConfigError::Embeds { path, found });
                }
                let read: fn(&Keys) -> Self = match found.as_str() {
                    $($($architecture)|+ | $($base)|+ | $($model_type)|+ => {
                        |keys| Self::$family($module::read(keys))
                    })+
                    _ => return Err(ConfigError::Architecture { path, found, known: ARCHITECTURES }),
                };
                check_storage(&keys)?;
                let config = read(&keys);
                read_base(&keys);
                keys.finish(IGNORED, allowed)?;
                Ok(config)
            }
        }

        impl Architecture for ModelConfig {
            fn trace(
                &self,
                element: ElementType,
                entry_points: &[EntryPoint],
            ) -> Result<Traced, TraceError> {
                match (self, element) {
                    $(
                        (Self::$family(config), ElementType::Bf16) => {
                            $family::<Bf16>::trace(config, entry_points)
                        }
                        (Self::$family(config), ElementType::F16) => $family::<F16>::trace(config, entry_points),
                        (Self::$family(config), _) => $family::<F32>::trace(config, entry_points),
                    )+
                }
            }

            fn ignorable(&self) -> Vec<Ignorable> {
                match self {
                    $(Self::$family(config) => config.ignorable(),)+
                }
            }

            fn prefixes(&self) -> &'static [(&'static str, &'static str)] {
                match self {
                    $(Self::$family(config) => config.prefixes(),)+
                }
            }

            fn stacks(&self) -> &'static [(&'static str, &'static [&'static str])] {
                match self {
                    $($(Self::$family(_) => $stacks,)?)+
                    _ => &[],
                }
            }

            fn named(&self, checkpoint: Checkpoint) -> Checkpoint {
                let named = checkpoint.renamed(self.prefixes()).apart(self.stacks());
                let (tied, embedding) = match self {
                    $(Self::$family(config) => (config.tie_word_embeddings, config.embedding()),)+
                };
                // A checkpoint may have either of two tied weights.
                if tied { named.renamed(&[(head::HEAD, embedding)]) } else { named }
            }

            fn settle_head(&mut self, checkpoint: &Checkpoint) -> Option<UntiedHead> {
                match self {
                    $(Self::$family(config) if config.tie_word_embeddings => {
                        let untied = head::own_head(checkpoint, config.embedding());
                        if untied.is_some() {
                            config.untie();
                        }
                        untied
                    })+
                    _ => None,
                }
            }

            fn element(&self) -> Option<ElementType> {
                match self {
                    $(Self::$family(config) => config.element,)+
                }
            }

            fn max_context(&self) -> usize {
                match self {
                    $(Self::$family(config) => config.max_position_embeddings,)+
                }
            }

            fn vocabulary(&self) -> usize {
                match self {
                    $(Self::$family(config) => config.vocab_size,)+
                }
            }

            fn sizes(&self) -> Vec<DeclaredSize> {
                match self {
                    $(Self::$family(config) => config.sizes(),)+
                }
            }
        }
    };
}

pub mod config;
pub mod decoder;
pub mod embedding_gemma;
pub mod gemma2;
pub mod gemma3;
pub mod gguf;
pub mod gpt2;
mod head;
pub mod lfm2;
pub mod llama;
pub mod mistral;
pub mod mixtral;
pub mod olmo2;
pub mod phi3;
pub mod presets;
pub mod qwen2;
pub mod qwen3;
mod rope;
pub mod sentence;
mod shape_check;
pub mod smollm3;

use std::path::Path;

use bake::Ignorable;
use config::{ConfigError, IGNORED, Keys, check_storage, read_base};
use dsl::{Bf16, CausalLm, EntryPoint, F16, F32, TraceError, Traced};
use irpa::{Checkpoint, Gguf};
use lower::Quantization;
use ops::ElementType;

pub use decoder::LlamaConfig;
pub use embedding_gemma::{EmbeddingGemma, EmbeddingGemmaConfig};
pub use gemma2::Gemma2;
pub use gemma3::{Gemma, Gemma3, GemmaConfig};
pub use gguf::{GGUF_ARCHITECTURES, GgufModel};
pub use gpt2::{Gpt2, Gpt2Config};
pub use head::UntiedHead;
pub use lfm2::{Lfm2, Lfm2Config};
pub use llama::Llama;
pub use mistral::Mistral;
pub use mixtral::Mixtral;
pub use olmo2::Olmo2;
pub use phi3::Phi3;
pub use qwen2::Qwen2;
pub use qwen3::Qwen3;
pub use rope::{RopeDefaults, RopeParameters, RopeScaling};
pub use sentence::{SentenceConfig, UnknownPrompt};
pub use shape_check::{DeclaredSize, Evidence, OtherSize, OtherSizes, check_sizes};
pub use smollm3::SmolLm3;

families! {
    llama::Llama(LlamaConfig): "LlamaForCausalLM", base "LlamaModel", or "llama";
    gemma3::Gemma3(GemmaConfig): "Gemma3ForCausalLM" "Gemma3ForConditionalGeneration",
        base "Gemma3TextModel" "Gemma3Model", or "gemma3_text" "gemma3";
    gemma2::Gemma2(GemmaConfig): "Gemma2ForCausalLM", base "Gemma2Model", or "gemma2";
    gpt2::Gpt2(Gpt2Config): "GPT2LMHeadModel", base "GPT2Model", or "gpt2";
    lfm2::Lfm2(Lfm2Config): "Lfm2ForCausalLM", base "Lfm2Model", or "lfm2";
    mistral::Mistral(LlamaConfig): "MistralForCausalLM", base "MistralModel", or "mistral";
    mixtral::Mixtral(LlamaConfig): "MixtralForCausalLM", base "MixtralModel", or "mixtral", also mixtral::STACKS;
    olmo2::Olmo2(LlamaConfig): "Olmo2ForCausalLM", base "Olmo2Model", or "olmo2";
    phi3::Phi3(LlamaConfig): "Phi3ForCausalLM", base "Phi3Model", or "phi3";
    qwen2::Qwen2(LlamaConfig): "Qwen2ForCausalLM", base "Qwen2Model", or "qwen2";
    qwen3::Qwen3(LlamaConfig): "Qwen3ForCausalLM", base "Qwen3Model", or "qwen3";
    smollm3::SmolLm3(LlamaConfig): "SmolLM3ForCausalLM", base "SmolLM3Model", or "smollm3";
}

/// Reads the configuration of a model: a Hugging Face folder, its `config.json`, or a GGUF file. The keys given may be there
/// although nothing reads them.
pub type ReadModel = fn(&Path, &[String]) -> Result<Box<dyn Architecture>, ConfigError>;

/// Reads the model at `path`: a GGUF file, a directory with a `config.json`, or that file. `allowed` keys of a configuration
/// may be there although nothing reads them.
///
/// # Errors
/// See [`GgufModel::read`] and [`ModelConfig::read`].
///
/// ```no_run
/// # use std::path::Path;
/// let model = tracewright_models::read(Path::new("model.gguf"), &[])?;
/// println!("{} token ids, {} positions", model.vocabulary(), model.max_context());
/// # Ok::<(), tracewright_models::config::ConfigError>(())
/// ```
pub fn read(path: &Path, allowed: &[String]) -> Result<Box<dyn Architecture>, ConfigError> {
    Ok(match Gguf::is_at(path) {
        true => Box::new(GgufModel::read(path, allowed)?),
        false => Box::new(ModelConfig::read(path, allowed)?),
    })
}

/// A network of which the sizes are known: what its configuration says to whoever builds it.
pub trait Architecture: Send {
    /// The trace of these entry points with weights and activations of type `element` (f32, f16 or bf16).
    ///
    /// # Errors
    /// What is wrong with the configuration.
    fn trace(&self, element: ElementType, entry_points: &[EntryPoint]) -> Result<Traced, TraceError>;

    /// The entry points of a program of these sizes: those of a language model, unless it is another network.
    fn entry_points(&self, batch: usize, chunk: usize, context: usize) -> Vec<EntryPoint> {
        EntryPoint::all(batch, chunk, context)
    }

    /// The folders beside the checkpoint whose tensors belong to the network.
    fn folders(&self) -> &'static [&'static str] {
        &[]
    }

    /// The longest sequence.
    fn max_context(&self) -> usize;

    /// The number of token ids.
    fn vocabulary(&self) -> usize;

    /// The element type the checkpoint was made for, if it is known.
    fn element(&self) -> Option<ElementType> {
        None
    }

    /// Tensors that a checkpoint may have beside the parameters.
    fn ignorable(&self) -> Vec<Ignorable> {
        Vec::new()
    }

    /// How keys of a checkpoint begin, and how the parameters of the model do: where the network is one tower of
    /// several.
    fn prefixes(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// How keys end under which a checkpoint may hold several parameters as one tensor, and how those of the
    /// parameters do.
    fn stacks(&self) -> &'static [(&'static str, &'static [&'static str])] {
        &[]
    }

    /// A checkpoint with its tensors as the model names them.
    fn named(&self, checkpoint: Checkpoint) -> Checkpoint {
        checkpoint.renamed(self.prefixes()).apart(self.stacks())
    }

    /// Unties the head from the embedding if the [named](Self::named) checkpoint has a head that differs, as transformers does.
    /// Call it before [`trace`](Self::trace): otherwise such a checkpoint does not fit. The result is a warning for the user.
    fn settle_head(&mut self, _checkpoint: &Checkpoint) -> Option<UntiedHead> {
        None
    }

    /// How the weights of products are best stored, where the checkpoint holds them in fewer bits than the network
    /// computes with.
    fn stored(&self) -> Quantization {
        Quantization::Computed
    }

    /// Sizes of the network that the header of a checkpoint shows, for [`check_sizes`].
    fn sizes(&self) -> Vec<DeclaredSize> {
        Vec::new()
    }
}

/// The architecture or model type that a `config.json` names.
fn architecture(keys: &Keys) -> String {
    // A list as a rule; what is none is named as it is.
    let named =
        keys.get("architectures").and_then(|names| names.as_array().map_or(Some(names), |all| all.first()));
    let named = named.map(|name| name.as_str().map_or_else(|| name.to_string(), str::to_owned));
    let named = named.or_else(|| keys.optional_text("model_type"));
    named.unwrap_or_else(|| "(none)".into())
}
