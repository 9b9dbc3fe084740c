//! Lists the codes of errors from the server.

use serve::ServeError;

use crate::coded;

coded! {
    ServeError: File {
        TW1201: Listen;
        TW1202: NoKeys Key;
        TW1203: Name;
        TW1204: ConfigSyntax ConfigKey ConfigValue ConfigPath ConfigEmpty;
        TW0004: Threads;
    }
}
