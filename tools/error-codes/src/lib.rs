//! Assigns a code such as `TW0201` to each error. `tracewright explain` prints a page about an
//! error code, with an example and a fix.

mod list;
mod with_instruments;
#[cfg(feature = "iree")]
mod with_runtime;
#[cfg(feature = "iree")]
mod with_server;

use std::error::Error;
use std::fmt;
use std::str::FromStr;

pub use errors::Place;
use trace::Provenance;

pub trait Coded: Error {
    fn code(&self) -> Code;

    /// The wrapped error, if this one has its code and source lines.
    fn passed_on(&self) -> Option<&(dyn Coded + 'static)> {
        None
    }

    /// The most helpful line first.
    fn places(&self) -> Vec<Place> {
        self.passed_on().map_or_else(Vec::new, Coded::places)
    }

    fn coded(&self) -> &(dyn Coded + 'static)
    where
        Self: Sized + 'static,
    {
        self
    }
}

pub struct AnyCoded(Box<dyn Coded + Send + Sync>);

impl AnyCoded {
    pub fn new(error: impl Coded + Send + Sync + 'static) -> Self {
        Self(Box::new(error))
    }

    /// `Err` with the unchanged error if it has another type.
    pub fn downcast<E: Error + 'static>(self) -> Result<Box<E>, Self> {
        let Self(error) = self;
        if (&*error as &(dyn Error + 'static)).is::<E>() {
            Ok((error as Box<dyn Error + Send + Sync>).downcast().expect("it is of this type"))
        } else {
            Err(Self(error))
        }
    }

    /// In the chain of wrapped errors, from this one on.
    pub fn find<E: Error + 'static>(&self) -> Option<&E> {
        let mut errors = std::iter::successors(Some(self.coded()), |error| error.passed_on());
        errors.find_map(|error| (error as &(dyn Error + 'static)).downcast_ref())
    }
}

impl Coded for AnyCoded {
    fn code(&self) -> Code {
        self.0.code()
    }

    fn passed_on(&self) -> Option<&(dyn Coded + 'static)> {
        Some(&*self.0)
    }
}

impl Error for AnyCoded {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

impl fmt::Debug for AnyCoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for AnyCoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Lists the variants that wrap another error, and then each code with its variants. `@` precedes source
/// lines. A variant without a code doesn't compile.
#[macro_export]
macro_rules! coded {
    ($($error:ident: $($passed:ident)* { $($code:ident: $($own:ident)+;)* } $(@ $places:expr;)?)+) => {
        $(impl $crate::Coded for $error {
            fn code(&self) -> $crate::Code {
                match self {
                    $(Self::$passed(error) => error.code(),)*
                    $($(Self::$own { .. })|+ => $crate::Code::$code,)*
                }
            }

            fn passed_on(&self) -> Option<&(dyn $crate::Coded + 'static)> {
                match self {
                    $(Self::$passed(error) => Some(error.coded()),)*
                    $($(Self::$own { .. })|+ => None,)*
                }
            }
            $(
                fn places(&self) -> Vec<$crate::Place> {
                    let own: fn(&Self) -> Vec<$crate::Place> = $places;
                    own(self)
                }
            )?
        })+
    };
}

/// Converts the origin of a node in the trace to a source line for an error.
fn place(provenance: &Provenance) -> Place {
    let Provenance { path, file, line } = provenance;
    Place { path: path.to_string(), file: file.to_string(), line: *line }
}

macro_rules! codes {
    ($($name:ident)*) => {
        /// The first two digits are the group: 0 the command line and the system, 1 the configuration, 2 the
        /// checkpoint, 3 archives, 4 declarations of networks, 5 plans and lowering.
        /// Then 6 is the compiler, 7 the runtime, 8 generation, 9 exports, 10 the instruments, 11 the Hugging Face
        /// hub, 12 the server.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $($name),*
        }

        impl Code {
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Such as `TW0201`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name)),*
                }
            }

            /// The page of the code in Markdown: a title, the meaning, an example, and how to fix the error.
            pub fn explanation(self) -> &'static str {
                match self {
                    $(Self::$name => include_str!(concat!(stringify!($name), ".md"))),*
                }
            }
        }
    };
}

codes! {
    TW0001 TW0002 TW0003 TW0004 TW0005 TW0006 TW0007 TW0008 TW0009
    TW0101 TW0102 TW0103 TW0104 TW0105 TW0106 TW0107 TW0108 TW0109 TW0110 TW0111
    TW0201 TW0202 TW0203 TW0204 TW0205 TW0206 TW0207 TW0208 TW0209 TW0210 TW0211 TW0212 TW0213 TW0214
    TW0301 TW0302 TW0303 TW0304 TW0305
    TW0401 TW0402 TW0403 TW0404 TW0405 TW0406 TW0407 TW0408 TW0409 TW0410 TW0411 TW0412 TW0413 TW0414 TW0415 TW0416
    TW0417 TW0418 TW0419 TW0420 TW0421 TW0422 TW0423 TW0424 TW0425 TW0426 TW0427 TW0428
    TW0429 TW0430
    TW0501 TW0502 TW0503 TW0504 TW0505 TW0506 TW0507 TW0508 TW0509 TW0510 TW0511 TW0512 TW0513 TW0514 TW0515 TW0516 TW0517
    TW0518
    TW0601 TW0602 TW0603 TW0604 TW0605 TW0606 TW0607
    TW0701 TW0702 TW0703 TW0704 TW0705 TW0706 TW0707 TW0708 TW0709 TW0710 TW0711 TW0712 TW0713 TW0714 TW0715
    TW0801 TW0802 TW0803 TW0804 TW0805 TW0806 TW0807 TW0808 TW0809 TW0810 TW0811 TW0812 TW0813 TW0814 TW0815 TW0816
    TW0817 TW0818 TW0819 TW0820 TW0821 TW0822 TW0823 TW0824 TW0825 TW0826 TW0827 TW0828 TW0829 TW0830
    TW0831
    TW0901 TW0902 TW0903 TW0904 TW0905 TW0906 TW0907 TW0908
    TW1001 TW1002 TW1003 TW1004 TW1005 TW1006 TW1007 TW1008 TW1009 TW1010
    TW1101 TW1102 TW1103 TW1104 TW1105
    TW1201 TW1202 TW1203 TW1204
}

impl Code {
    pub fn title(self) -> &'static str {
        let first = self.explanation().lines().next().unwrap_or_default();
        first.split_once(": ").map_or(first, |(_, title)| title)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no error with the code `{0}`; run `tracewright explain` without a code to list all codes")]
pub struct UnknownCode(pub String);

impl FromStr for Code {
    type Err = UnknownCode;

    /// Parses a code in one of the forms `TW0201`, `tw0201`, `0201` and `201`.
    fn from_str(text: &str) -> Result<Self, UnknownCode> {
        let digits = text.strip_prefix("TW").or(text.strip_prefix("tw")).unwrap_or(text);
        let name = format!("TW{digits:0>4}");
        Self::ALL.iter().copied().find(|code| code.name() == name).ok_or_else(|| UnknownCode(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_explained() {
        for code in Code::ALL {
            let text = code.explanation();
            assert!(text.starts_with(&format!("# {code}: ")), "{code}: {text}");
            for part in ["\n\n**Example**", "\n\n**What to do**"] {
                assert!(text.contains(part), "{code} has no{part}");
            }
            assert!(text.ends_with('\n') && !text.ends_with("\n\n"), "{code}");
        }
        let mut titles: Vec<_> = Code::ALL.iter().map(|code| code.title()).collect();
        titles.sort_unstable();
        titles.dedup();
        assert_eq!(titles.len(), Code::ALL.len(), "two have one title");
    }

    #[test]
    fn a_code_is_read_in_short() {
        for text in ["TW0201", "tw0201", "0201", "201"] {
            assert_eq!(text.parse(), Ok(Code::TW0201));
        }
        for text in ["", "TW", "TW9999", "x"] {
            assert_eq!(text.parse::<Code>(), Err(UnknownCode(text.into())));
        }
    }
}
