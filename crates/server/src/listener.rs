//! The accept loop and what one connection lives through (G86).
//!
//! Own, since the ready-made one has no HTTP/2 settings: windows, the number of streams, PINGs and header limits
//! are set here. A failed connection ends alone (I13).

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admission::ConnectionPermit;
use crate::core::{Core, Phase};
use crate::dispatch::Dispatch;
use crate::sniff::{Sniffed, Speaks, sniff};

/// Bytes of one request's head.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Bytes of the headers of one HTTP/2 request.
const MAX_HEADER_LIST_BYTES: u32 = 32 << 10;
/// Larger frames than the protocol's 16 KiB make fewer of them; still far below any window.
const MAX_FRAME_BYTES: u32 = 64 << 10;
/// What is buffered of one response before its writer waits.
const MAX_SEND_BUFFER_BYTES: usize = 256 << 10;
/// What a peer gets to answer a GOAWAY once nothing of its connection is open any more.
const GOAWAY_PATIENCE: Duration = Duration::from_secs(1);
/// After a failed accept: usually the process is out of descriptors, which others must give back first.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// Accepts until the server has ended, then waits for the connections. Dropping it cuts them.
pub(crate) async fn accept(core: Arc<Core>, listener: TcpListener) {
    let dispatch = Dispatch::new(Arc::clone(&core));
    let mut phase = core.phase.subscribe();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = ended(&mut phase) => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => match core.admission.connect() {
                    Some(permit) => {
                        connections.spawn(connection(Arc::clone(&core), dispatch.clone(), stream, permit));
                    }
                    // Past the limit: closed at once, by dropping it.
                    None => core.meters.refused_connections.increment(1),
                },
                Err(error) => {
                    tracing::warn!(%error, "accepting a connection failed; trying again");
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            },
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection(core: Arc<Core>, dispatch: Dispatch, stream: TcpStream, permit: Arc<ConnectionPermit>) {
    core.meters.connections.increment(1.0);
    let ended = serve(&core, dispatch, stream, permit).await;
    core.meters.connections.decrement(1.0);
    if let Err(error) = ended {
        tracing::debug!(error = %error, "a connection ended early");
    }
}

async fn serve(
    core: &Core,
    dispatch: Dispatch,
    stream: TcpStream,
    permit: Arc<ConnectionPermit>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    stream.set_nodelay(true)?;
    let open_timeout = core.limits().open_timeout;
    let Ok(sniffed) = tokio::time::timeout(open_timeout, sniff(stream)).await else {
        return Err(io::Error::from(io::ErrorKind::TimedOut).into());
    };
    let Some((speaks, io)) = sniffed? else { return Ok(()) };
    let phase = core.phase.subscribe();
    match speaks {
        Speaks::Http1 => serve_http1(core, dispatch, io, permit, phase).await,
        Speaks::Http2 => serve_http2(core, dispatch, io, permit, phase).await,
    }
}

async fn serve_http1(
    core: &Core,
    dispatch: Dispatch,
    io: Sniffed<TcpStream>,
    permit: Arc<ConnectionPermit>,
    mut phase: watch::Receiver<Phase>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = dispatch.clone().answer(Arc::clone(&permit), request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(core.limits().open_timeout)
            .max_buf_size(MAX_HEAD_BYTES)
            .half_close(true)
            .serve_connection(TokioIo::new(io), service)
    );
    tokio::select! {
        ended = &mut connection => return Ok(ended?),
        () = ended(&mut phase) => connection.as_mut().graceful_shutdown(),
    }
    Ok(connection.await?)
}

async fn serve_http2(
    core: &Core,
    dispatch: Dispatch,
    io: Sniffed<TcpStream>,
    permit: Arc<ConnectionPermit>,
    mut phase: watch::Receiver<Phase>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let (window, connection_window) = (permit.stream_window(), permit.connection_window());
    let streams = permit.streams_admitted();
    let place = Arc::clone(&permit);
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = dispatch.clone().answer(Arc::clone(&permit), request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .adaptive_window(false)
        .initial_stream_window_size(window)
        .initial_connection_window_size(connection_window)
        .max_concurrent_streams(streams)
        .max_frame_size(MAX_FRAME_BYTES)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .max_send_buf_size(MAX_SEND_BUFFER_BYTES)
        .keep_alive_interval(core.limits().keepalive_interval)
        .keep_alive_timeout(core.limits().keepalive_timeout);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(io), service));
    tokio::select! {
        ended = &mut connection => return Ok(ended?),
        () = ended(&mut phase) => connection.as_mut().graceful_shutdown(),
    }
    // The library asks the peer, by a PING, whether a request is still on its way. One that does not answer has no say
    // in how long a shutdown takes (I11): its connection is cut once nothing of it is open.
    let forsaken = async {
        place.idle().await;
        tokio::time::sleep(GOAWAY_PATIENCE).await;
    };
    tokio::select! {
        ended = &mut connection => Ok(ended?),
        () = forsaken => Ok(()),
    }
}

/// Resolves when the server has ended.
async fn ended(phase: &mut watch::Receiver<Phase>) {
    // An error would mean that the sender is gone with the server: that is its end too.
    drop(phase.wait_for(|phase| *phase == Phase::Ended).await);
}
