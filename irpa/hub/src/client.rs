//! Implements the hub's HTTP protocol: lists the files of a repository, and downloads a file,
//! optionally without its first bytes.

use std::io::Read;
use std::time::Duration;

use serde::Deserialize;
use ureq::config::RedirectAuthHeaders;
use ureq::http::{HeaderMap, Response};
use ureq::{Agent, Body};

use crate::name::is_inside;
use crate::{Hub, HubError, ModelName};

/// The longest time that the client waits for the next data from the hub.
const SILENCE: Duration = Duration::from_secs(30);

/// The largest size in bytes of the hub's description of a repository.
const DESCRIPTION: u64 = 64 << 20;

#[derive(Debug, Deserialize)]
pub struct Commit {
    pub sha: String,
    #[serde(rename = "siblings")]
    pub files: Vec<Described>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Described {
    #[serde(rename = "rfilename")]
    pub name: String,
    #[serde(default)]
    pub size: u64,
    #[serde(rename = "blobId")]
    blob: Option<String>,
    lfs: Option<Large>,
}

#[derive(Clone, Debug, Deserialize)]
struct Large {
    sha256: String,
}

impl Described {
    /// Names the file in the cache: SHA-256 for a large file, git's SHA-1 for a small one.
    pub fn hash(&self) -> Option<&str> {
        let hash = self.lfs.as_ref().map(|large| large.sha256.as_str()).or(self.blob.as_deref())?;
        (matches!(hash.len(), 40 | 64) && hash.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(hash)
    }
}

pub struct HubClient<'a> {
    hub: &'a Hub,
    agent: Agent,
}

impl<'a> HubClient<'a> {
    pub fn new(hub: &'a Hub) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            // If the hub redirects a download to another server, the other server does not get the token.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_connect(Some(SILENCE))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .user_agent(concat!("tracewright/", env!("CARGO_PKG_VERSION")))
            .build();
        Self { hub, agent: agent.into() }
    }

    /// Requests the commit to which a model's revision refers, with the list of the commit's files.
    pub fn commit(&self, name: &ModelName) -> Result<Commit, HubError> {
        let Hub { endpoint, .. } = self.hub;
        let revision = in_address(name.revision());
        let url = format!("{endpoint}/api/models/{}/revision/{revision}?blobs=true", name.repository);
        let mut answer = self.get(&url, 0).map_err(|error| match error {
            HubError::Connection { source, .. } => {
                HubError::Unreachable { name: name.clone().into(), endpoint: endpoint.clone(), source }
            }
            error => error,
        })?;
        self.check(name, &url, &answer)?;
        let text = answer.body_mut().with_config().limit(DESCRIPTION).read_to_vec();
        let text = text.map_err(|source| failed(&url, source))?;
        let commit: Commit = serde_json::from_slice(&text)
            .map_err(|error| HubError::Answer { url: url.clone(), what: error.to_string() })?;
        let is_commit = commit.sha.len() == 40 && commit.sha.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_commit {
            let what = format!("`sha` is {:?}, expected 40 hexadecimal digits", commit.sha);
            return Err(HubError::Answer { url, what });
        }
        if let Some(file) = commit.files.iter().find(|file| !is_inside(&file.name)) {
            let what = format!("it has a file {:?}, which is no path inside the repository", file.name);
            return Err(HubError::Answer { url, what });
        }
        Ok(commit)
    }

    /// From byte `start` on; the returned index of the first byte is 0 if the hub ignores that.
    pub fn file(
        &self,
        name: &ModelName,
        commit: &str,
        file: &str,
        start: u64,
    ) -> Result<(impl Read + use<>, u64), HubError> {
        let url = self.address(name, commit, file);
        let answer = self.get(&url, start)?;
        self.check(name, &url, &answer)?;
        let begins = if answer.status() == 206 { start } else { 0 };
        Ok((answer.into_body().into_reader(), begins))
    }

    pub fn address(&self, name: &ModelName, commit: &str, file: &str) -> String {
        format!("{}/{}/resolve/{commit}/{}", self.hub.endpoint, name.repository, in_address(file))
    }

    fn get(&self, url: &str, start: u64) -> Result<Response<Body>, HubError> {
        let mut request = self.agent.get(url);
        if let Some(token) = &self.hub.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if start > 0 {
            request = request.header("Range", format!("bytes={start}-"));
        }
        request.call().map_err(|source| failed(url, source))
    }

    fn check(&self, name: &ModelName, url: &str, answer: &Response<Body>) -> Result<(), HubError> {
        let code = |headers: &HeaderMap| {
            headers.get("X-Error-Code").and_then(|code| code.to_str().ok()).map(str::to_owned)
        };
        let (name, endpoint) = (name.clone().into(), self.hub.endpoint.clone());
        Err(match (answer.status().as_u16(), code(answer.headers()).as_deref()) {
            (200 | 206, _) => return Ok(()),
            (_, Some("RevisionNotFound")) => HubError::NoRevision { name },
            (_, Some("GatedRepo")) | (403, _) => {
                HubError::NoAccess { name, endpoint, with_token: self.hub.token.is_some() }
            }
            (_, Some("RepoNotFound")) | (401 | 404, _) => HubError::NoModel { name, endpoint },
            (status, _) => HubError::Status { url: url.to_owned(), status },
        })
    }
}

fn in_address(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    path.bytes().fold(String::new(), |mut address, byte| {
        if is_plain(byte) {
            address.push(char::from(byte))
        } else {
            address.push_str(&format!("%{byte:02X}"))
        }
        address
    })
}

fn failed(url: &str, source: ureq::Error) -> HubError {
    HubError::Connection { url: url.to_owned(), source: source.into() }
}
