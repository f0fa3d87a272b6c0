//! The server's life: bind, serve, drain (G23, I11).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::core::{Core, Phase};
use crate::error::ServerError;
use crate::listener;
use crate::options::{ServerOptions, ServerParts};
use crate::streams::LeftStream;

/// A server that has its address and does not accept yet.
#[derive(Debug)]
pub struct Server {
    core: Arc<Core>,
    listener: TcpListener,
    address: SocketAddr,
}

/// A running server; clones share it. Dropping every clone does not stop it: [`ServerHandle::drain`] does.
#[derive(Clone, Debug)]
pub struct ServerHandle {
    core: Arc<Core>,
    address: SocketAddr,
    accepting: Arc<Mutex<Option<JoinHandle<()>>>>,
}

/// How a drain ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainReport {
    /// The streams that were still open at the deadline, each with what was not acknowledged.
    pub left: Vec<LeftStream>,
    /// Whether connections had to be cut at the deadline.
    pub cut: bool,
}

impl DrainReport {
    /// Whether everything was finished in time.
    pub fn is_clean(&self) -> bool {
        self.left.is_empty() && !self.cut
    }
}

impl Server {
    /// Checks the options and binds the address. Needs a tokio runtime.
    ///
    /// # Errors
    /// A limit out of bounds, an address that others can reach without protection (G33), or one that cannot be
    /// bound, such as a port in use.
    pub async fn bind(options: ServerOptions, parts: ServerParts) -> Result<Server, ServerError> {
        if let Some(error) = options.limits.check().into_iter().next() {
            return Err(error.into());
        }
        let address = options.listen;
        if !address.ip().is_loopback() {
            if !options.insecure {
                return Err(ServerError::Unprotected { address });
            }
            tracing::warn!(%address, "listening beyond loopback without tokens and TLS, as `server.insecure` says");
        }
        let listen = |source| ServerError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        Ok(Server { core: Core::new(options, parts), listener, address })
    }

    /// Where it listens, with the port that it got.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Starts to accept, on the current runtime.
    pub fn start(self) -> ServerHandle {
        tracing::info!(address = %self.address, "serving gRPC and HTTP");
        let accepting = tokio::spawn(listener::accept(Arc::clone(&self.core), self.listener));
        ServerHandle { core: self.core, address: self.address, accepting: Arc::new(Mutex::new(Some(accepting))) }
    }
}

impl ServerHandle {
    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// How many ingest streams are open.
    pub fn open_streams(&self) -> usize {
        self.core.streams.count()
    }

    /// Stops the server within `deadline`: new calls are refused, open streams get a close signal and are read for
    /// `grace` more, then finish what they have taken. Connections that are left at the deadline are cut, and the
    /// streams on them are named. Without open streams it does not wait for `grace`. A second call returns a
    /// clean report at once.
    pub async fn drain(&self, grace: Duration, deadline: Instant) -> DrainReport {
        let Some(mut accepting) = self.accepting.lock().take() else { return DrainReport::default() };
        let until = (Instant::now() + grace).min(deadline);
        self.core.phase.send_replace(Phase::Closing { until, grace: until.saturating_duration_since(Instant::now()) });
        let left = match tokio::time::timeout_at(deadline.into(), self.core.streams.none_left()).await {
            Ok(()) => Vec::new(),
            Err(_) => self.core.streams.left(),
        };
        for stream in &left {
            tracing::error!(
                stream_id = %stream.stream_id,
                channel = %stream.channel,
                first_unacked = stream.first_unacked,
                calls = stream.calls,
                "a stream was left unfinished at the drain deadline"
            );
        }
        self.core.phase.send_replace(Phase::Ended);
        // Trailers and GOAWAY are still to be written after the last stream has ended.
        let last = deadline.max(Instant::now() + LAST_WORDS);
        let cut = tokio::time::timeout_at(last.into(), &mut accepting).await.is_err();
        if cut {
            accepting.abort();
        }
        DrainReport { left, cut }
    }
}

/// The least time that connections get to say their last.
const LAST_WORDS: Duration = Duration::from_millis(100);
