//! Converters and the module text that iree-compile accepts.
