//! Names of axes.

use std::borrow::Cow;

use ops::{Attribute as _, ParseError, Reader};

/// The name of an axis, kept for messages, dumps and shardings: ops are positional.
///
/// An axis of a weight that holds several axes of the network one within the other, as the outputs of a projection to
/// heads do, is named by all of them and their extents: `K=2*G=3*E=32`.
pub type AxisName = Cow<'static, str>;

/// The name of an axis that holds several, the first varying slowest; that of the axis itself if it is one.
///
/// ```
/// assert_eq!(tracewright_trace::joined_axis(&[("K", 2), ("E", 32)]), "K=2*E=32");
/// assert_eq!(tracewright_trace::joined_axis(&[("D", 64)]), "D");
/// ```
pub fn joined_axis(axes: &[(&'static str, usize)]) -> AxisName {
    match axes {
        [(one, _)] => (*one).into(),
        _ => {
            axes.iter().map(|(name, extent)| format!("{name}={extent}")).collect::<Vec<_>>().join("*").into()
        }
    }
}

/// The axes that an axis of this name and extent holds, the first varying slowest.
///
/// ```
/// use tracewright_trace::axis_factors;
///
/// assert_eq!(axis_factors("K=2*E=32", 64), [("K", 2), ("E", 32)]);
/// assert_eq!(axis_factors("D", 64), [("D", 64)]);
/// ```
pub fn axis_factors(name: &str, extent: usize) -> Vec<(&str, usize)> {
    let factor = |text: &'_ str| text.split_once('=').and_then(|(_, extent)| extent.parse().ok());
    name.split('*')
        .map(|part| (part.split('=').next().unwrap_or(part), factor(part).unwrap_or(extent)))
        .collect()
}

/// Reads the name of an axis, which may hold several.
pub(crate) fn parse(reader: &mut Reader<'_>) -> Result<AxisName, ParseError> {
    let mut name = reader.word()?.to_owned();
    while reader.eat("=") {
        name.push_str(&format!("={}", usize::parse(reader)?));
        if reader.eat("*") {
            name.push_str(&format!("*{}", reader.word()?));
        }
    }
    Ok(name.into())
}
