//! The name and the path of an adapter.

use std::path::PathBuf;
use std::str::FromStr;

/// An adapter that requests choose by its name.
///
/// ```
/// use tracewright::NamedAdapter;
///
/// let adapter: NamedAdapter = "sql=adapters/sql".parse()?;
/// assert_eq!((adapter.name.as_str(), adapter.path.to_str()), ("sql", Some("adapters/sql")));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedAdapter {
    /// The name, which is not empty.
    pub name: String,
    /// A folder that the library PEFT wrote, or a GGUF file.
    pub path: PathBuf,
}

impl FromStr for NamedAdapter {
    type Err = String;

    /// `NAME=PATH`
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, path)) if !name.is_empty() && !path.is_empty() => {
                Ok(Self { name: name.into(), path: path.into() })
            }
            _ => Err("expected a name, `=`, and the path of an adapter".into()),
        }
    }
}
