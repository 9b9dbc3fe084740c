//! [`Server`] listens on a port until the caller stops the server.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::app::App;
use crate::connection::ClientConnection;
use crate::models::Models;
use crate::{ServeError, ServeOptions, ServedModel, routes};

/// The most connections that the server keeps open. Additional connections wait.
const CONNECTIONS: usize = 4096;

/// The server checks at this interval whether the caller wants to stop the server.
const LOOK: Duration = Duration::from_millis(50);

/// The server looks at this interval for models without requests.
const IDLE: Duration = Duration::from_millis(500);

/// The time in which clients receive the last events of cut answers.
const LAST: Duration = Duration::from_secs(2);

/// An answer to the question of a running server what comes next.
pub enum ServerEvent {
    /// The server continues.
    None,
    /// The server serves these models from now on.
    Models(Vec<ServedModel>),
    /// The server stops.
    Stop,
}

/// A server that listens on a port, but does not accept connections yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Listens for connections on a host and a port. For port 0, the system chooses a free port.
    pub fn bind(host: &str, port: u16) -> Result<Self, ServeError> {
        let failed = |source| ServeError::Listen { address: format!("{host}:{port}"), source };
        let listener = TcpListener::bind((host, port)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// Returns the address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until `next` returns [`ServerEvent::Stop`]. Then the server waits until the running answers
    /// end, at most for the time [`ServeOptions::drain`].
    pub fn run(
        self,
        models: Vec<ServedModel>,
        options: ServeOptions,
        next: impl FnMut() -> ServerEvent,
    ) -> Result<(), ServeError> {
        let models = Models::new(models, options.keep_alive, options.memory_limit);
        let app = App::new(models, options, self.address.ip().is_loopback());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(64)
            .thread_name("serve")
            .enable_all()
            .build()
            .map_err(ServeError::Threads)?;
        let result = runtime.block_on(self.serve(Arc::new(app), next));
        // Some threads may still run although no client waits for their results. For example, a
        // thread may load a model.
        runtime.shutdown_timeout(Duration::from_secs(1));
        result
    }

    async fn serve(self, app: Arc<App>, mut next: impl FnMut() -> ServerEvent) -> Result<(), ServeError> {
        let Self { listener, address } = self;
        let failed = |source| ServeError::Listen { address: address.to_string(), source };
        let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
        // The first model is already loaded.
        if let Err(failure) = app.models.get(None).await {
            tracing::warn!("{failure}");
        }
        let router = routes::router(&app);
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        let graceful = GracefulShutdown::new();
        let mut look = tokio::time::interval(LOOK);
        let idle = tokio::spawn(unload_idle(app.clone()));
        loop {
            match next() {
                ServerEvent::None => {}
                ServerEvent::Models(models) => app.models.replace(models),
                ServerEvent::Stop => break,
            }
            let accepted = tokio::select! {
                _ = look.tick() => continue,
                accepted = accept(&listener, &places) => accepted,
            };
            let Some((stream, place)) = accepted else { continue };
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(app.options.read_timeout).half_close(true);
            let connection = ClientConnection::new(stream);
            let (answering, router) = (connection.clone(), router.clone());
            let service = service_fn(move |request| answering.clone().answer(router.clone(), request));
            let served = http.serve_connection(TokioIo::new(connection.clone()), service);
            let served = graceful.watch(served);
            tokio::spawn(async move {
                tokio::select! {
                    ended = served => {
                        if let Err(error) = ended {
                            tracing::debug!("a connection ended: {error}");
                        }
                    }
                    () = connection.lost() => tracing::debug!("a client has left"),
                }
                drop(place);
            });
        }
        idle.abort();
        drop(listener);
        tracing::info!("stopping; {} connections are open", graceful.count());
        let mut ended = std::pin::pin!(graceful.shutdown());
        if tokio::time::timeout(app.options.drain, &mut ended).await.is_err() {
            tracing::warn!("answers were cut after {} s", app.options.drain.as_secs());
            // Each running answer ends with an error.
            app.closing.send_replace(true);
            let _ = tokio::time::timeout(LAST, ended).await;
        }
        Ok(())
    }
}

/// Unloads idle models while the server runs.
async fn unload_idle(app: Arc<App>) {
    let mut look = tokio::time::interval(IDLE);
    loop {
        look.tick().await;
        app.models.unload_idle();
    }
}

/// Accepts the next connection, at the limit only after another one closes.
async fn accept(
    listener: &tokio::net::TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            // Without this option, TCP would delay a small packet with one token and merge the
            // packet with later packets.
            let _ = stream.set_nodelay(true);
            Some((stream, place))
        }
        Err(error) => {
            // For example, the process may have too many open files. The server waits until other
            // connections close.
            tracing::warn!("a connection is not accepted: {error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
            None
        }
    }
}
