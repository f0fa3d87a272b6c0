//! A request's body, whole: bounded as sent, bounded in size and ratio when decompressed (G35, I14).

use std::io::{self, Read};
use std::sync::Arc;
use std::task::ready;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use landfall_protocol::{IngestCode, MAX_BODY_RATIO, Refusal};

use crate::core::{COME_BACK_AFTER, Core};
use crate::http::{Problem, syntax};
use crate::memory::Account;

/// A body with the account that pays for it until the channel does.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) bytes: Bytes,
    pub(crate) account: Arc<Account>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Identity,
    Gzip,
    Zstd,
}

/// The window of a zstd frame that we take: what the format says every decoder should.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;
/// Decompressed at a time: the limits are checked between two of these.
const CHUNK_BYTES: usize = 64 << 10;
/// A request that says it is no larger than this draws on a part of the budget that large ones do not touch.
const SMALL_BODY_BYTES: u64 = 64 << 10;
/// Decompressed bytes up to which the ratio is not looked at.
const RATIO_FREE_BYTES: u64 = 1 << 20;

fn encoding(headers: &HeaderMap) -> Result<Encoding, Problem> {
    let mut values = headers.get_all(header::CONTENT_ENCODING).into_iter();
    let first = values.next().map(|value| value.to_str().unwrap_or_default().trim().to_ascii_lowercase());
    match (first.as_deref(), values.next()) {
        (None | Some("identity"), None) => Ok(Encoding::Identity),
        (Some("gzip" | "x-gzip"), None) => Ok(Encoding::Gzip),
        (Some("zstd"), None) => Ok(Encoding::Zstd),
        _ => {
            Err(Refusal::new(IngestCode::BodyEncoding, "`content-encoding`: expected gzip, zstd or none, once").into())
        }
    }
}

fn too_large(what: &str, key: &str, limit: u64) -> Problem {
    let text = format!("the body is larger {what} than `server.ingest.{key}` ({limit} bytes): send less at a time");
    Problem::from(Refusal::new(IngestCode::CallTooLarge, text)).with_limit(limit)
}

fn no_memory() -> Problem {
    let text = "`server.ingest.memory` is in use: come back later";
    Refusal::new(IngestCode::Overloaded, text).retry_after(COME_BACK_AFTER).into()
}

/// Reads a body to its end. Each frame must come within the time that a silent connection is given.
pub(crate) async fn receive(core: &Core, headers: &HeaderMap, body: Body) -> Result<Received, Problem> {
    let encoding = encoding(headers)?;
    let limit = core.limits().max_body_bytes.get();
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|declared| declared > limit) {
        return Err(too_large("as sent", "max_body_bytes", limit));
    }
    let is_small = encoding == Encoding::Identity && declared.is_some_and(|declared| declared <= SMALL_BODY_BYTES);
    let account = if is_small { core.small_bodies.account() } else { core.memory.account() };
    let silence = core.limits().keepalive_interval + core.limits().keepalive_timeout;
    let mut body = std::pin::pin!(body);
    let mut bytes = BytesMut::new();
    loop {
        let Ok(frame) = tokio::time::timeout(silence, body.frame()).await else {
            let text = format!("the body stopped for {silence:?}");
            return Err(Refusal::new(IngestCode::OpenTimeout, text).into());
        };
        let frame = match frame {
            None => break,
            Some(Ok(frame)) => frame,
            Some(Err(_)) => return Err(syntax("the body was cut short")),
        };
        let Ok(chunk) = frame.into_data() else { continue };
        if (bytes.len() + chunk.len()) as u64 > limit {
            return Err(too_large("as sent", "max_body_bytes", limit));
        }
        let charged = std::future::poll_fn(|cx| {
            ready!(account.poll_charge(chunk.len(), cx));
            std::task::Poll::Ready(())
        });
        if tokio::time::timeout(core.limits().commit_wait, charged).await.is_err() {
            return Err(no_memory());
        }
        bytes.extend_from_slice(&chunk);
    }
    let bytes = bytes.freeze();
    if encoding == Encoding::Identity {
        return Ok(Received { bytes, account });
    }
    let limit = core.limits().max_decoded_body_bytes.get();
    let payer = Arc::clone(&account);
    // Inflating the largest body takes long enough to keep a worker from its other streams.
    let decoded = tokio::task::spawn_blocking(move || decode(encoding, &bytes, limit, &payer)).await;
    let bytes = decoded.map_err(|_| no_memory())??;
    Ok(Received { bytes, account })
}

fn decode(encoding: Encoding, sent: &[u8], limit: u64, account: &Account) -> Result<Bytes, Problem> {
    let broken = |_: io::Error| syntax("the body does not decompress by its `content-encoding`");
    let mut reader: Box<dyn Read + '_> = match encoding {
        Encoding::Identity => Box::new(sent),
        Encoding::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(sent)),
        Encoding::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(sent).map_err(broken)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(broken)?;
            Box::new(decoder)
        }
    };
    let mut decoded = BytesMut::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let read = reader.read(&mut chunk).map_err(broken)?;
        let Some(read) = chunk.get(..read).filter(|read| !read.is_empty()) else { return Ok(decoded.freeze()) };
        let length = (decoded.len() + read.len()) as u64;
        if length > limit {
            return Err(too_large("decompressed", "max_decoded_body_bytes", limit));
        }
        if length > RATIO_FREE_BYTES && length > (sent.len() as u64).saturating_mul(MAX_BODY_RATIO) {
            let text = format!("the body decompresses to more than {MAX_BODY_RATIO} times its size: send it as it is");
            return Err(Problem::from(Refusal::new(IngestCode::CallTooLarge, text)).with_limit(MAX_BODY_RATIO));
        }
        if !account.try_charge(read.len()) {
            return Err(no_memory());
        }
        decoded.extend_from_slice(read);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::memory::IngestMemory;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// Would catch a body that changes on its way through a decompressor.
    #[test]
    fn bodies_decompress_to_what_was_sent() {
        let text: Vec<u8> = (0..300_000u32).flat_map(u32::to_le_bytes).collect();
        let account = IngestMemory::new(1 << 30).account();
        let zstd = zstd::stream::encode_all(&text[..], 1).unwrap();
        assert_eq!(decode(Encoding::Gzip, &gzip(&text), 1 << 30, &account).unwrap(), text);
        assert_eq!(decode(Encoding::Zstd, &zstd, 1 << 30, &account).unwrap(), text);
        assert!(decode(Encoding::Gzip, b"not gzip at all", 100, &account).is_err());
        assert!(decode(Encoding::Zstd, &zstd[..zstd.len() / 2], 1 << 30, &account).is_err());
    }

    /// Would catch a bomb that is inflated beyond the limits before anybody looks.
    #[test]
    fn a_bomb_stops_at_the_limits() {
        let memory = IngestMemory::new(1 << 30);
        let account = memory.account();
        let bomb = gzip(&vec![b' '; 64 << 20]);
        let problem = decode(Encoding::Gzip, &bomb, 1 << 40, &account).unwrap_err();
        assert_eq!(problem.status().as_u16(), 413);
        assert!(account.held() <= bomb.len() as u64 * MAX_BODY_RATIO);
        assert_eq!(
            decode(Encoding::Gzip, &gzip(&[7; 5_000]), 4_999, &memory.account()).unwrap_err().status().as_u16(),
            413
        );
        let poor = IngestMemory::new(1_000).account();
        assert_eq!(decode(Encoding::Gzip, &gzip(&[7; 5_000]), 10_000, &poor).unwrap_err().status().as_u16(), 429);
    }
}
