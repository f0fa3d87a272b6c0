//! Texts: blanks, buckets, digests, masks, hosts.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int64Array, StringArray};
use datafusion_common::{Result, exec_err};
use sha2::{Digest, Sha256};
use siphasher::sip::SipHasher13;

/// `nullif_blank(text)`: NULL where the text is empty or only white space.
pub(super) fn nullif_blank(args: &[ArrayRef], _: usize) -> Result<ArrayRef> {
    let [text] = args else { return exec_err!("nullif_blank takes one argument") };
    let kept = text.as_string::<i32>().iter().map(|text| text.filter(|text| !text.trim().is_empty()));
    Ok(Arc::new(kept.collect::<StringArray>()))
}

/// `hash_bucket(value, n)`: 0 to n − 1 by the value as text; the same for all time.
pub(super) fn hash_bucket(args: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
    let [value, count] = args else { return exec_err!("hash_bucket takes two arguments") };
    let (value, count) = (value.as_string::<i32>(), count.as_primitive::<Int64Type>());
    let buckets = (0..rows).map(|row| {
        if value.is_null(row) || count.is_null(row) {
            return Ok(None);
        }
        match u64::try_from(count.value(row)) {
            // The remainder is below an i64.
            Ok(count) if count > 0 => Ok(Some((SipHasher13::new().hash(value.value(row).as_bytes()) % count) as i64)),
            _ => exec_err!("hash_bucket: the number of buckets must be positive"),
        }
    });
    Ok(Arc::new(buckets.collect::<Result<Int64Array>>()?))
}

/// `sha256_hex(value)`: the digest of the value as text, in 64 lower-case digits.
pub(super) fn sha256_hex(args: &[ArrayRef], _: usize) -> Result<ArrayRef> {
    let [text] = args else { return exec_err!("sha256_hex takes one argument") };
    let hex = |text: &str| {
        let digest = Sha256::digest(text.as_bytes());
        let mut hex = String::with_capacity(64);
        for byte in digest.iter() {
            for nibble in [byte >> 4, byte & 15] {
                hex.push(char::from_digit(u32::from(nibble), 16).unwrap_or('0'));
            }
        }
        hex
    };
    Ok(Arc::new(text.as_string::<i32>().iter().map(|text| text.map(hex)).collect::<StringArray>()))
}

/// `mask(text, keep)`: all but the last `keep` characters become `*`.
pub(super) fn mask(args: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
    let [text, keep] = args else { return exec_err!("mask takes two arguments") };
    let (text, keep) = (text.as_string::<i32>(), keep.as_primitive::<Int64Type>());
    let masked = (0..rows).map(|row| {
        if text.is_null(row) || keep.is_null(row) {
            return None;
        }
        let text = text.value(row);
        let hidden = text.chars().count().saturating_sub(usize::try_from(keep.value(row)).unwrap_or(0));
        Some(text.chars().enumerate().map(|(at, c)| if at < hidden { '*' } else { c }).collect::<String>())
    });
    Ok(Arc::new(masked.collect::<StringArray>()))
}

/// `url_host(text)`: the host of an absolute URL in lower case, NULL where there is none.
pub(super) fn url_host(args: &[ArrayRef], _: usize) -> Result<ArrayRef> {
    let [text] = args else { return exec_err!("url_host takes one argument") };
    let host = |text: &str| {
        let (scheme, rest) = text.trim().split_once("://")?;
        let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
        let authority = rest.split(['/', '?', '#', '\\']).next()?;
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let host = match host.strip_prefix('[') {
            Some(address) => address.split_once(']')?.0,
            None => host.rsplit_once(':').map_or(host, |(host, _)| host),
        };
        (is_scheme && !host.is_empty()).then(|| host.to_lowercase())
    };
    Ok(Arc::new(text.as_string::<i32>().iter().map(|text| text.and_then(host)).collect::<StringArray>()))
}
