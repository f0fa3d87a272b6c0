//! Errors of the parts below as refusals: the code passes through unchanged, its name comes from its page.

use landfall_protocol::{IngestCode, Refusal};
use landfall_types::{Code, Coded, Retry};

/// The name of a code, as on its page.
pub(crate) fn name_of(code: Code) -> &'static str {
    let pages = landfall_protocol::CODES.iter().chain(landfall_channel::CODES);
    pages.into_iter().find(|page| page.code == code).map_or("Unknown", |page| page.name)
}

/// A refusal with the code, outcome and text of an error. Over the wire everything that is not definite may be
/// tried later: a repair may come, and the client's budget bounds how long it waits for one.
pub(crate) fn of(error: &dyn Coded) -> Refusal {
    let refusal = Refusal::of(error, name_of(error.code()));
    match refusal.grpc {
        tonic::Code::Unavailable | tonic::Code::ResourceExhausted => Refusal { retry: Some(Retry::Later), ..refusal },
        _ => refusal,
    }
}

/// A record that does not decode (G17).
pub(crate) fn malformed(why: &str, index: usize) -> Refusal {
    Refusal::new(
        IngestCode::RecordMalformed,
        format!("record {index} does not decode: {why}; nothing from it on was stored"),
    )
    .at_record(u32::try_from(index).unwrap_or(u32::MAX))
}
