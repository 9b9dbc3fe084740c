//! A checkpoint becomes the archive a trace asks for.
