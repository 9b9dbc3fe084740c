//! A server of a test, and a client that shows every byte.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use serde_json::Value;

use crate::support::*;

/// Sizes that all tests share, so that the model is compiled once.
pub const SIZES: [&str; 6] = ["--dtype", "f32", "--context", "512", "--chunk", "1"];

/// A server that runs.
pub struct Serving {
    pub child: Child,
    pub port: u16,
    /// The lines on stderr so far.
    pub err: Arc<Mutex<String>>,
}

/// The answer to a request.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: String,
}

/// The server of most tests.
pub static DEMO: LazyLock<Serving> = LazyLock::new(|| Serving::until_the_end(&[text(&demo())]));

impl Serving {
    /// Serves with these arguments on any free port.
    pub fn of(arguments: &[&str]) -> Self {
        Self::of_sizes(arguments, &SIZES)
    }

    /// Serves with sizes other than those of most tests.
    pub fn of_sizes(arguments: &[&str], sizes: &[&str]) -> Self {
        let mut command = tracewright(&["serve", "--port", "0"]);
        command.args(arguments).args(sizes);
        Self::start(command)
    }

    /// A server that ends with the test program, which closes a pipe then.
    pub fn until_the_end(arguments: &[&str]) -> Self {
        let mut server = tracewright(&["serve", "--port", "0"]);
        server.args(arguments).args(SIZES);
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "\"$@\" </dev/null & server=$!; cat; kill -KILL $server", "sh"]);
        shell.arg(server.get_program()).args(server.get_args()).env_clear().stdin(Stdio::piped());
        shell.env("PATH", "/usr/bin:/bin");
        shell.envs(server.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Self::start(shell)
    }

    pub fn start(mut command: Command) -> Self {
        let mut child = spawn(&mut command);
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut before = String::new();
        let port = loop {
            let line = lines.next().unwrap_or_else(|| panic!("{command:?} ended:\n{before}"));
            if let Some((_, address)) = line.rsplit_once("listening on http://") {
                break address.rsplit_once(':').unwrap().1.parse().unwrap();
            }
            before += &(line + "\n");
        };
        let err = Arc::new(Mutex::new(before));
        let said = err.clone();
        std::thread::spawn(move || lines.for_each(|line| *said.lock().unwrap() += &(line + "\n")));
        Self { child, port, err }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Sends a request, and reads to the end of the connection.
    pub fn ask(&self, head: &str, body: &[u8]) -> Response {
        let mut stream = self.connect();
        let length = body.len();
        let host = self.port;
        write!(
            stream,
            "{head}\r\nHost: 127.0.0.1:{host}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        )
        .unwrap();
        // A server that refuses the body may close the connection before it is sent.
        let _ = stream.write_all(body);
        read(stream)
    }

    pub fn get(&self, path: &str) -> Response {
        self.ask(&format!("GET {path} HTTP/1.1"), b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.ask(
            &format!("POST {path} HTTP/1.1\r\nContent-Type: application/json"),
            body.to_string().as_bytes(),
        )
    }

    /// The answer to a request that succeeds.
    #[track_caller]
    pub fn good(&self, path: &str, body: &Value) -> Value {
        let response = self.post(path, body);
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()
    }

    /// The error of a request that is refused, in OpenAI's form.
    #[track_caller]
    pub fn bad(&self, path: &str, body: &Value, status: u16) -> Value {
        let response = self.post(path, body);
        assert_eq!(response.status, status, "{body}: {}", response.body);
        response.error()
    }

    /// Waits for the end.
    pub fn end(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Response {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The error in OpenAI's form.
    #[track_caller]
    pub fn error(&self) -> Value {
        let error = self.json()["error"].clone();
        for key in ["message", "type", "code"] {
            assert!(error[key].is_string(), "{}", self.body);
        }
        assert!(error["param"].is_string() || error["param"].is_null(), "{}", self.body);
        error
    }

    /// The data of server-sent events. The last one is `[DONE]`, which is left out.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.body);
        let data: Vec<&str> = self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        let (last, chunks) = data.split_last().unwrap();
        assert_eq!(*last, "[DONE]");
        chunks.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect()
    }
}

/// Reads a response to the end of the connection.
pub fn read(mut stream: TcpStream) -> Response {
    let mut bytes = Vec::new();
    // A connection that is reset after the response is as good as closed.
    let _ = stream.read_to_end(&mut bytes);
    let all = String::from_utf8(bytes).unwrap();
    let all = all.strip_prefix("HTTP/1.1 100 Continue\r\n\r\n").unwrap_or(&all);
    let (head, body) = all.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {all:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let is_chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    let body = if is_chunked { unchunked(body) } else { body.to_owned() };
    Response { status, head: head.to_owned(), body }
}

fn unchunked(mut rest: &str) -> String {
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        body += &after[..size];
        rest = after[size..].strip_prefix("\r\n").unwrap();
    }
    body
}
