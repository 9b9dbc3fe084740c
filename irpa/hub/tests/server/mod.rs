//! A server that speaks the hub's protocol, as far as downloads need it.
#![allow(dead_code, reason = "each test program uses its part")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub const TOKEN: &str = "hf_right";

/// What goes wrong.
#[derive(Clone, Copy)]
pub enum Fault {
    None,
    /// A connection ends after so many bytes of a file.
    Cut(usize),
    /// After so many bytes of a file nothing more comes.
    Stall(usize),
    /// A byte of each file is another.
    Flip,
    /// Ranges are ignored.
    NoRanges,
    /// Files come from another host.
    Elsewhere,
    /// Everything has this status.
    Status(u16),
    /// The description of a model is this.
    Description(&'static str),
}

struct State {
    repository: &'static str,
    files: Vec<(&'static str, Vec<u8>)>,
    fault: Fault,
    requests: usize,
    starts: Vec<usize>,
    tokens_elsewhere: Vec<Option<String>>,
}

pub struct Server {
    port: u16,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub fn of(repository: &'static str, files: Vec<(&'static str, Vec<u8>)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (requests, starts, tokens_elsewhere) = (0, Vec::new(), Vec::new());
        let state = State { repository, files, fault: Fault::None, requests, starts, tokens_elsewhere };
        let state = Arc::new(Mutex::new(state));
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let state = shared.clone();
                thread::spawn(move || serve(&stream.unwrap(), port, &state));
            }
        });
        Self { port, state }
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Sets the fault, and forgets the starts.
    pub fn set(&self, fault: Fault) {
        let mut state = self.state.lock().unwrap();
        state.fault = fault;
        state.starts.clear();
    }

    pub fn requests(&self) -> usize {
        self.state.lock().unwrap().requests
    }

    /// The first bytes that were asked for, of each request for a file.
    pub fn starts(&self) -> Vec<usize> {
        self.state.lock().unwrap().starts.clone()
    }

    pub fn tokens_elsewhere(&self) -> Vec<Option<String>> {
        self.state.lock().unwrap().tokens_elsewhere.clone()
    }

    pub fn hash(&self, file: &str) -> String {
        let state = self.state.lock().unwrap();
        sha256(&state.files.iter().find(|(name, _)| *name == file).unwrap().1)
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sha1(bytes: &[u8]) -> String {
    use sha1::Sha1;
    let digest = Sha1::new_with_prefix(format!("blob {}\0", bytes.len())).chain_update(bytes).finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Small files are git's, large ones are LFS's, as on the hub.
fn described((name, bytes): &(&str, Vec<u8>)) -> String {
    let lfs = if name.ends_with(".gguf") || name.ends_with(".safetensors") {
        format!(r#", "lfs": {{"sha256": "{}", "size": {}, "pointerSize": 1}}"#, sha256(bytes), bytes.len())
    } else {
        String::new()
    };
    format!(r#"{{"rfilename": "{name}", "size": {}, "blobId": "{}"{lfs}}}"#, bytes.len(), sha1(bytes))
}

/// Answers one request, and closes the connection.
fn serve(mut stream: &TcpStream, port: u16, state: &Mutex<State>) {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    let Some(request) = lines.next() else { return };
    let headers: Vec<String> = lines.collect();
    let header = |name: &str| {
        let found = headers.iter().filter_map(|line| line.split_once(": "));
        found.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned()).next()
    };
    let path = request.split(' ').nth(1).unwrap().replace("%20", " ");
    let token = header("authorization").map(|value| value.replace("Bearer ", ""));
    let (status, extra, body, most) = {
        let mut state = state.lock().unwrap();
        state.requests += 1;
        let start =
            header("range").map(|range| range.replace("bytes=", "").replace('-', "").parse().unwrap());
        if path.contains("/elsewhere/") {
            state.tokens_elsewhere.push(token.clone());
        }
        answer(&mut state, &path, start, token.as_deref(), port)
    };
    let head =
        format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\nConnection: close\r\n{extra}\r\n", body.len());
    // A client that hangs up early is part of the tests.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body[..most.min(body.len())]));
    while most < body.len() && matches!(state.lock().unwrap().fault, Fault::Stall(_)) {
        thread::sleep(Duration::from_millis(20));
    }
}

type Answer = (u16, String, Vec<u8>, usize);

fn answer(state: &mut State, path: &str, start: Option<usize>, token: Option<&str>, port: u16) -> Answer {
    let plain = |status: u16, extra: &str, body: &str| (status, extra.to_owned(), body.into(), usize::MAX);
    if let Fault::Status(status) = state.fault {
        return plain(status, "", "");
    }
    let gated = path.contains("org/gated");
    if gated && token != Some(TOKEN) {
        let status = if token.is_some() { 403 } else { 401 };
        return plain(status, "X-Error-Code: GatedRepo\r\n", "");
    }
    let path = path.replace("org/gated", state.repository).replace("/elsewhere", "");
    let (api, resolve) = (
        format!("/api/models/{}/revision/", state.repository),
        format!("/{}/resolve/{COMMIT}/", state.repository),
    );
    if let Some(revision) = path.strip_prefix(&api) {
        let revision = revision.split('?').next().unwrap();
        if ![COMMIT, "main"].contains(&revision) {
            return plain(404, "X-Error-Code: RevisionNotFound\r\n", "");
        }
        if let Fault::Description(text) = state.fault {
            return plain(200, "", text);
        }
        let files: Vec<_> = state.files.iter().map(described).collect();
        return plain(200, "", &format!(r#"{{"sha": "{COMMIT}", "siblings": [{}]}}"#, files.join(", ")));
    }
    let Some(file) = path.strip_prefix(&resolve) else {
        return plain(401, "X-Error-Code: RepoNotFound\r\n", "");
    };
    if matches!(state.fault, Fault::Elsewhere)
        && !state.tokens_elsewhere.iter().any(|_| true)
        && start.is_none()
    {
        state.fault = Fault::None;
        let location = format!("Location: http://localhost:{port}/elsewhere{path}\r\n");
        return plain(302, &location, "");
    }
    state.starts.push(start.unwrap_or(0));
    let mut bytes = state.files.iter().find(|(name, _)| *name == file).unwrap().1.clone();
    let start = start.filter(|_| !matches!(state.fault, Fault::NoRanges));
    if matches!(state.fault, Fault::Flip) {
        bytes[0] ^= 1;
    }
    let most = match state.fault {
        Fault::Cut(most) | Fault::Stall(most) => most,
        _ => usize::MAX,
    };
    match start {
        Some(start) => (206, String::new(), bytes.split_off(start), most),
        None => (200, String::new(), bytes, most),
    }
}
