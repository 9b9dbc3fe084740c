//! Names of axes, including axes that combine several axes.

use std::borrow::Cow;

use ops::{Attribute as _, ParseError, Reader};

/// The name of an axis, for messages, dumps and sharding. Operations refer to axes by index.
///
/// An axis of a weight can combine several axes of the network, such as the heads and features of a
/// projection. The name of the combined axis lists these axes with their extents: `K=2*G=3*E=32`.
pub type AxisName = Cow<'static, str>;

/// The name of an axis that combines several axes, where the first axis varies slowest. A single axis keeps
/// its own name.
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

/// Splits a combined axis into its parts, given the name and the extent of the combined axis. The first part
/// varies slowest.
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

/// Parses the name of an axis, which can combine several axes.
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
