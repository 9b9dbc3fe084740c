//! The fields of the objects inside requests, such as messages and tools. As for the fields of a request itself, none is
//! ignored unless `openapi.json` marks it as a field without effect.

mod anthropic;
mod chat;
mod object;
mod parts;
mod responses;

pub use anthropic::OF_MESSAGES;
pub use chat::OF_CHAT;
pub use object::{NestedField, check, schema};
pub use responses::OF_RESPONSES;
