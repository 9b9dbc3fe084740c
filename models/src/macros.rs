//! Lists of families and keys, and configurations that extend others.

/// Makes a configuration an extension of another one: it dereferences to that one, and its network can have
/// that one's blocks as fields, and with `through` those of further networks.
macro_rules! descends {
    ($config:ident from $($field:tt).+: $base:ident $(, through $($other:tt).+: $between:ident)*) => {
        impl std::ops::Deref for $config {
            type Target = $base;

            fn deref(&self) -> &$base {
                &self.$($field).+
            }
        }

        impl std::ops::DerefMut for $config {
            fn deref_mut(&mut self) -> &mut $base {
                &mut self.$($field).+
            }
        }

        impl dsl::Project<$base> for $config {
            fn project(&self) -> $base {
                self.$($field).+.clone()
            }
        }

        $(impl dsl::Project<$between> for $config {
            fn project(&self) -> $between {
                self.$($other).+.clone()
            }
        })*
    };
}

/// A line has a family's module, network and configuration, which the module's `read` reads from a
/// `config.json`. Missing keys get the defaults of the family's configuration in HF transformers. With
/// `embeds`, `read` also reads the files next to it. With `transcribes`, the network takes speech. The module's
/// `FAMILY` has all other facts.
macro_rules! families {
    ($($module:ident::$family:ident($config:ty) $($kind:ident)?;)+) => {
        $(
            pub mod $module;
            pub use $module::$family;
        )+

        /// All supported families of networks.
        pub static FAMILIES: &[&Family] = &[$(&$module::FAMILY),+];

        /// The configuration of a supported architecture.
        #[derive(Clone, Debug, PartialEq)]
        pub enum ModelConfig {
            $(
                #[doc = concat!("A network of [`", stringify!($module), "`].")]
                $family($config),
            )+
        }

        impl ModelConfig {
            /// The family of an architecture or model type, and how to read its keys.
            fn reader(found: &str, keys: &Keys) -> Option<(&'static Family, ReadKeys)> {
                $(
                    if $module::FAMILY.is_named(found) && ($module::FAMILY.is)(keys) {
                        let read: ReadKeys =
                            |keys, allowed| Ok(Self::$family(read!($module keys allowed $($kind)?)));
                        return Some((&$module::FAMILY, read));
                    }
                )+
                None
            }

            fn facts(&self) -> Facts {
                match self {
                    $(Self::$family(config) => Facts {
                        family: &$module::FAMILY,
                        element: config.element,
                        max_context: config.max_position_embeddings,
                        vocabulary: config.vocab_size,
                        tied: config.tie_word_embeddings,
                        layers: config.num_hidden_layers,
                        sizes: config.sizes(),
                    },)+
                }
            }

            /// The purpose of the network.
            pub fn kind(&self) -> ModelKind {
                match self {
                    $(Self::$family(config) => kind!(config $($kind)?),)+
                }
            }

            fn untie(&mut self) {
                match self {
                    $(Self::$family(config) => config.tie_word_embeddings = false,)+
                }
            }

            fn recorded(&self, entry_points: &[EntryPoint]) -> Result<Traced, TraceError> {
                match self {
                    $(Self::$family(config) => $family::<AnyFloat>::trace(&config.clone().into(), entry_points),)+
                }
            }
        }
    };
}

/// Calls the function `read` of a module with all keys, and checks the keys that `read` did not read.
macro_rules! read {
    ($module:ident $keys:ident $allowed:ident) => {{
        let config = $module::read(&$keys);
        read_base(&$keys);
        $keys.finish(IGNORED, $allowed)?;
        config
    }};
    ($module:ident $keys:ident $allowed:ident transcribes) => {
        read!($module $keys $allowed)
    };
    ($module:ident $keys:ident $allowed:ident embeds) => {
        $module::read($keys, $allowed)?
    };
}

macro_rules! kind {
    ($config:ident) => {{
        let _ = $config;
        ModelKind::Text
    }};
    ($config:ident embeds) => {
        ModelKind::Embedding($config.sentence.clone())
    };
    ($config:ident transcribes) => {
        ModelKind::Speech($config.speech())
    };
}

/// Lists configuration keys without quotation marks and commas.
macro_rules! key_names {
    ($($key:ident)+) => {
        &[$(stringify!($key)),+]
    };
}
