//! The first bytes of a connection: HTTP/2 by prior knowledge, or HTTP/1.1.
//!
//! Read before anything is built for the connection, with a deadline, so that a silent peer costs a socket for
//! `open_timeout` and no more (G86).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What the peer speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    Http1,
    Http2,
}

/// A connection with the bytes read ahead put back.
#[derive(Debug)]
pub(crate) struct Sniffed<I> {
    ahead: Bytes,
    inner: I,
}

/// Reads until it is clear what the peer speaks. `None`: it closed before that.
pub(crate) async fn sniff<I: AsyncRead + Unpin>(mut inner: I) -> io::Result<Option<(Speaks, Sniffed<I>)>> {
    let mut ahead = BytesMut::with_capacity(HTTP2_PREFACE.len());
    loop {
        let speaks = if !HTTP2_PREFACE.starts_with(&ahead) {
            Speaks::Http1
        } else if ahead.len() == HTTP2_PREFACE.len() {
            Speaks::Http2
        } else {
            let wanted = (HTTP2_PREFACE.len() - ahead.len()) as u64;
            if (&mut inner).take(wanted).read_buf(&mut ahead).await? == 0 {
                return Ok(None);
            }
            continue;
        };
        return Ok(Some((speaks, Sniffed { ahead: ahead.freeze(), inner })));
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Sniffed<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.ahead.has_remaining() {
            let n = self.ahead.len().min(buf.remaining());
            buf.put_slice(&self.ahead.split_to(n));
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Sniffed<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a byte that is lost or read twice on the way to the protocol.
    #[tokio::test]
    async fn the_bytes_read_ahead_are_put_back() {
        let rest = [HTTP2_PREFACE, b"frames"].concat();
        for (bytes, speaks) in
            [(&b"GET / HTTP/1.1\r\n\r\n"[..], Speaks::Http1), (b"PRX", Speaks::Http1), (&rest, Speaks::Http2)]
        {
            let (found, mut io) = sniff(bytes).await.unwrap().unwrap();
            let mut all = Vec::new();
            io.read_to_end(&mut all).await.unwrap();
            assert_eq!((found, all.as_slice()), (speaks, bytes));
        }
        assert!(sniff(&b"PRI * HT"[..]).await.unwrap().is_none());
        assert!(sniff(&b""[..]).await.unwrap().is_none());
    }
}
