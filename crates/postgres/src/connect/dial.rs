//! Opens the bytes of a connection: TCP or a local socket, with TLS on it where asked.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{ConnectError, ConnectOptions, Endpoint, TlsMode};

/// A dead peer is found by the kernel too: probes on an idle connection, and a bound on unacknowledged bytes (P48).
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const UNACKNOWLEDGED_FOR: Duration = Duration::from_secs(60);

/// An open connection's bytes, whatever carries them.
#[derive(Debug)]
pub enum Stream {
    /// Plain TCP.
    Tcp(TcpStream),
    /// A local socket.
    Socket(UnixStream),
    /// TLS over TCP.
    Tls(Box<TlsStream<TcpStream>>),
}

/// Opens `endpoint`, up to the first byte of the start-up packet. The caller bounds the time.
pub(super) async fn open(endpoint: &Endpoint, options: &ConnectOptions) -> Result<Stream, ConnectError> {
    let unreachable = |source| ConnectError::Unreachable { endpoint: endpoint.to_string(), source };
    match endpoint {
        Endpoint::Socket { directory, port } => {
            let path = directory.join(format!(".s.PGSQL.{port}"));
            Ok(Stream::Socket(UnixStream::connect(path).await.map_err(unreachable)?))
        }
        Endpoint::Tcp { host, address, port } => {
            let stream = match address {
                Some(address) => TcpStream::connect((*address, *port)).await,
                None => TcpStream::connect((host.as_str(), *port)).await,
            };
            let stream = stream.map_err(unreachable)?;
            watch(&stream).map_err(unreachable)?;
            encrypt(stream, host, endpoint, options).await
        }
    }
}

fn watch(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    socket
        .set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_EVERY))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_FOR))?;
    Ok(())
}

async fn encrypt(
    mut stream: TcpStream,
    host: &str,
    endpoint: &Endpoint,
    options: &ConnectOptions,
) -> Result<Stream, ConnectError> {
    if options.tls.mode == TlsMode::Disable {
        return Ok(Stream::Tcp(stream));
    }
    let lost = |source| ConnectError::Unreachable { endpoint: endpoint.to_string(), source };
    let mut request = bytes::BytesMut::new();
    postgres_protocol::message::frontend::ssl_request(&mut request);
    stream.write_all(&request).await.map_err(lost)?;
    // One byte, and no more is read before the handshake: bytes that came in the clear must not count as encrypted.
    let answer = stream.read_u8().await.map_err(lost)?;
    match (answer, options.tls.mode) {
        (b'S', _) => {}
        (b'N', TlsMode::Prefer) => return Ok(Stream::Tcp(stream)),
        (b'N', _) => return Err(ConnectError::TlsRefused { endpoint: endpoint.to_string() }),
        (other, _) => return Err(ConnectError::NotPostgres { endpoint: endpoint.to_string(), answer: other }),
    }
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| ConnectError::ServerName { host: host.chars().take(255).collect() })?;
    let stream = TlsConnector::from(options.tls.client()?)
        .connect(name, stream)
        .await
        .map_err(|source| ConnectError::Handshake { endpoint: endpoint.to_string(), source })?;
    Ok(Stream::Tls(Box::new(stream)))
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, into),
            Stream::Socket(stream) => Pin::new(stream).poll_read(cx, into),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, from),
            Stream::Socket(stream) => Pin::new(stream).poll_write(cx, from),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, from),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Socket(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Socket(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
