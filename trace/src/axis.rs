//! The names of the axes of tensors. One name can combine the names of several axes.

use std::borrow::Cow;

use ops::{Attribute as _, ParseError, Reader};

/// Names an axis in error messages, traces and sharding rules; operations use indices.
///
/// An axis of a weight can combine several, such as heads and features of a projection. It has their names
/// and extents: `K=2*G=3*E=32`.
pub type AxisName = Cow<'static, str>;

/// Returns the name of an axis that combines the given axes, where the first given axis varies
/// slowest. If there is only one axis, its name does not change.
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

/// Splits the name of a combined axis into the names and extents of the single axes. The first
/// single axis in the list varies slowest.
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

/// Parses the name of an axis, as it is in the text of a trace. The name can combine the names of
/// several axes.
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
