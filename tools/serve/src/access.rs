//! Checks the API key, the host name and the origin of each request.

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::LazyLock;

use axum::http::{HeaderMap, header};
use files::read_stream;

use crate::ServeError;
use crate::failure::Failure;

/// The largest size in bytes of a file with API keys.
const MOST: u64 = 1 << 20;

/// The API keys that clients can use, kept only as hashes. No message and no log contains a key.
#[derive(Clone)]
pub struct ApiKeys(Vec<blake3::Hash>);

impl ApiKeys {
    /// Reads a key on each line. Lines that begin with `#` are comments.
    pub fn read(path: &Path) -> Result<Self, ServeError> {
        let text = read_stream(path, MOST)?;
        let mut keys = Vec::new();
        for (line, key) in (1..).zip(text.lines().map(str::trim)) {
            if key.is_empty() || key.starts_with('#') {
                continue;
            }
            if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(ServeError::Key { path: path.to_owned(), line });
            }
            keys.push(blake3::hash(key.as_bytes()));
        }
        if keys.is_empty() { Err(ServeError::NoKeys { path: path.to_owned() }) } else { Ok(Self(keys)) }
    }

    /// Checks the API key in a time that does not depend on it: compares all hashes, each in constant time.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> Result<(), Failure> {
        let (given, hash) = (given(headers), hash(headers));
        let is_known = self.0.iter().fold(false, |found, key| found | (*key == hash));
        match (is_known, given) {
            (true, _) => Ok(()),
            (false, Some(_)) => Err(Failure::WrongKey),
            (false, None) => Err(Failure::NoKey),
        }
    }
}

/// Returns the API key of a request.
fn given(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
    let bearer = bearer.and_then(|value| value.split_at_checked(7));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer ")).map(|(_, key)| key);
    bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes()))
}

/// Returns the hash of the API key of a request.
pub fn hash(headers: &HeaderMap) -> blake3::Hash {
    blake3::hash(given(headers).unwrap_or_default().trim_ascii())
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

/// Rejects requests from web pages whose origin is not allowed. If only this machine can reach the server,
/// the function rejects requests whose `Host` header is a domain name of the internet. The check of
/// the `Host` header stops DNS rebinding, an attack by a web page whose domain name resolves to this machine.
pub fn check_origin(
    headers: &HeaderMap,
    is_local: bool,
    hosts: &[String],
    origins: &[String],
) -> Result<(), Failure> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(header::HOST).unwrap_or_default();
    let is_allowed = |one: &String| one == "*" || one.eq_ignore_ascii_case(name(host)) || one == host;
    if is_local && !is_own_name(host) && !hosts.iter().any(is_allowed) {
        return Err(Failure::Host { host: host.to_owned() });
    }
    match text(header::ORIGIN) {
        Some(origin) if !origins.iter().any(|one| one == "*" || one == origin) => {
            if origin.split_once("://").is_some_and(|(_, from)| from == host) {
                Ok(())
            } else {
                Err(Failure::Origin { origin: origin.to_owned() })
            }
        }
        _ => Ok(()),
    }
}

/// Returns a `Host` header without its port.
fn name(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Whether a `Host` header is an address, a name that no domain of the internet can have, or the name of this machine.
/// It is empty if the request never came from a browser.
fn is_own_name(host: &str) -> bool {
    /// Names that RFC 6761, RFC 6762 and ICANN reserve for this machine and its network.
    const LOCAL: [&str; 4] = ["localhost", ".localhost", ".local", ".internal"];
    static OWN: LazyLock<Option<String>> = LazyLock::new(|| hostname::get().ok()?.into_string().ok());
    let name = name(host).trim_end_matches('.').to_ascii_lowercase();
    let address = name.trim_start_matches('[').trim_end_matches(']');
    let is_local = |local: &str| name == local || local.starts_with('.') && name.ends_with(local);
    name.is_empty()
        || LOCAL.iter().any(|local| is_local(local))
        || OWN.as_ref().is_some_and(|own| own.eq_ignore_ascii_case(&name))
        || address.parse::<IpAddr>().is_ok()
}
