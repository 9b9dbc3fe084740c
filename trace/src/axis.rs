//! Names of axes.

use std::borrow::Cow;

/// The name of an axis, kept for messages and dumps: ops are positional.
pub type AxisName = Cow<'static, str>;
