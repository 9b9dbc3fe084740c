//! Connections to clients. A client can close its half of a connection after the request, as `nc -N` does, and still
//! gets the answer. A client that has left closes both halves, which looks the same until the server sends something.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Request, Response, Version, header};
use futures_util::StreamExt as _;
use futures_util::stream::unfold;
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tower::ServiceExt as _;

/// An interim response, which clients skip. The system of a client that has left answers it with a reset.
const PROBE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The interval at which the server looks for the end of a request's bytes, and then for a reset.
const LOOK: Duration = Duration::from_millis(20);

/// The interval at which a streamed answer without new text probes a client that has closed its half.
const FILL: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Progress {
    /// Whether the client has closed its half.
    has_ended: AtomicBool,
    /// Whether the last request is of HTTP/1.0, whose clients have left when they close their half.
    is_old: AtomicBool,
    /// Whether a request has arrived, and the server has not begun its response.
    awaits_response: AtomicBool,
    /// Whether a part of a response waits for the client to read.
    is_blocked: AtomicBool,
}

/// A connection from which a task learns that the client has left.
#[derive(Clone)]
pub struct ClientConnection {
    stream: Arc<TcpStream>,
    progress: Arc<Progress>,
}

impl ClientConnection {
    pub fn new(stream: TcpStream) -> Self {
        Self { stream: Arc::new(stream), progress: Arc::default() }
    }

    /// Waits until a client that has closed its half turns out to have left.
    pub async fn lost(self) {
        let Self { stream, progress } = self;
        loop {
            match stream.peek(&mut [0]).await {
                Ok(0) => break,
                Ok(_) => tokio::time::sleep(LOOK).await,
                Err(_) => return,
            }
        }
        progress.has_ended.store(true, Ordering::Release);
        if progress.awaits_response.load(Ordering::Acquire) && !progress.is_blocked.load(Ordering::Acquire) {
            let _ = stream.try_write(PROBE);
        }
        while !progress.is_old.load(Ordering::Acquire) && matches!(stream.take_error(), Ok(None)) {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Answers a request with a router.
    pub async fn answer(
        self,
        router: Router,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Infallible> {
        let Progress { awaits_response: waits, is_old, .. } = &*self.progress;
        // Clients of HTTP/1.0 know no interim responses.
        let knows_interim = request.version() >= Version::HTTP_11;
        is_old.store(!knows_interim, Ordering::Release);
        waits.store(knows_interim, Ordering::Release);
        let response = router.oneshot(request.map(Body::new)).await;
        waits.store(false, Ordering::Release);
        response.map(|response| filled(response, self.progress.clone()))
    }
}

/// Adds bytes without a meaning to a streamed answer that waits for its next text, once the client has closed its half.
/// The system of a client that has left answers them with a reset.
fn filled(response: Response<Body>, progress: Arc<Progress>) -> Response<Body> {
    let kind = response.headers().get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let filler: &'static [u8] = if kind.starts_with(b"text/event-stream") {
        b":\n\n"
    } else if kind.starts_with(b"application/x-ndjson") {
        b" "
    } else {
        return response;
    };
    let stream = |body: Body| {
        unfold(body.into_data_stream(), move |mut body| {
            let progress = progress.clone();
            async move {
                loop {
                    let next = tokio::time::timeout(FILL, body.next()).await;
                    match next {
                        Ok(next) => return next.map(|next| (next, body)),
                        Err(_) if progress.has_ended.load(Ordering::Acquire) => {
                            return Some((Ok(Bytes::from_static(filler)), body));
                        }
                        Err(_) => {}
                    }
                }
            }
        })
    };
    response.map(|body| Body::from_stream(stream(body)))
}

impl AsyncRead for ClientConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            match self.stream.try_read(into.initialize_unfilled()) {
                Ok(count) => {
                    into.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for ClientConnection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.progress.is_blocked.store(true, Ordering::Release);
        loop {
            ready!(self.stream.poll_write_ready(context))?;
            match self.stream.try_write_vectored(parts) {
                Ok(count) => {
                    let all: usize = parts.iter().map(|part| part.len()).sum();
                    self.progress.is_blocked.store(count < all, Ordering::Release);
                    return Poll::Ready(Ok(count));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Shuts down the sending half only, as tokio's stream does, so that the client receives the last bytes.
        Poll::Ready(socket2::SockRef::from(&*self.stream).shutdown(std::net::Shutdown::Write))
    }
}
