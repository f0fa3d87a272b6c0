//! The pages of `landfall explain` for the client's codes.

use landfall_types::Kind::{Closed, Internal, Invalid, Unavailable};
use landfall_types::Retry::{Later, Never, Now};
use landfall_types::{Code, CodePage, Kind, Retry};

const fn page(
    number: u16,
    name: &'static str,
    kind: Kind,
    retry: Retry,
    meaning: &'static str,
    help: &'static str,
) -> CodePage {
    CodePage { code: Code::new("IN", number), name, kind, retry, meaning, help }
}

/// The pages of the client's own codes; those of the server come with `landfall-protocol`.
pub const CODES: &[CodePage] = &[
    page(
        101,
        "InvalidRecord",
        Invalid,
        Never,
        "A record is not of the stream's form: JSON that is not UTF-8, or a record prepared for another form. It took no room and no id.",
        "Fix the record; the stream goes on.",
    ),
    page(
        102,
        "CallTooLarge",
        Invalid,
        Never,
        "A call has more bytes or records than `max_call_bytes` or `max_call_records` allow.",
        "Split the batch, or raise the option (and the server's limit with it).",
    ),
    page(
        103,
        "Full",
        Unavailable,
        Later,
        "The budget of calls in flight is used up, and the call was made in the form that never waits.",
        "Try again after acknowledgements came in, use the waiting form, or raise `max_in_flight_bytes` and `max_in_flight_records`.",
    ),
    page(
        104,
        "CapacityTimeout",
        Unavailable,
        Later,
        "No room came within `capacity_wait`: the peer acknowledges more slowly than records are submitted. Nothing is lost and the stream goes on; the call is given back.",
        "Submit it again, slow down, or raise `capacity_wait`.",
    ),
    page(
        105,
        "Closed",
        Closed,
        Never,
        "The stream is closed or closing and takes nothing new. The call is given back.",
        "Open a new stream.",
    ),
    page(
        110,
        "PeerStatus",
        Invalid,
        Never,
        "The peer ended the stream with a gRPC status and gave no code of its own.",
        "The status and its message say what the peer wants; look at its documentation.",
    ),
    page(
        120,
        "Connect",
        Unavailable,
        Later,
        "No connection could be made to the endpoint.",
        "Check the address, that the server runs, and that nothing between the two blocks the port.",
    ),
    page(
        122,
        "OpenTimeout",
        Unavailable,
        Later,
        "The connection stands, and the peer did not open the stream within `open_timeout`.",
        "Look at the server's health; raise `open_timeout` if it is only slow.",
    ),
    page(
        124,
        "ConnectionLost",
        Unavailable,
        Later,
        "The connection or the peer's side of the stream ended. The client reconnects and sends again what was not acknowledged.",
        "Nothing, unless it repeats: then look at the network and the server.",
    ),
    page(
        125,
        "AckTimeout",
        Unavailable,
        Later,
        "The oldest sent call was not acknowledged within `ack_timeout`. The client reconnects and sends it again.",
        "Look at the server: its disk may be slow or full.",
    ),
    page(
        126,
        "Lost",
        Unavailable,
        Later,
        "Reconnecting brought no acknowledgement for `recovery_budget`.",
        "The cause behind it says why. Fetch what was not acknowledged with `take_unacked` and open a new stream once the server is back.",
    ),
    page(
        127,
        "ProtocolViolation",
        Internal,
        Never,
        "The peer acknowledged what was never sent, or answered in a way that the protocol does not allow. Nothing was taken as acknowledged by it.",
        "Report it to whoever runs the peer; it may be another service than the one expected.",
    ),
    page(
        130,
        "FlushTimeout",
        Unavailable,
        Now,
        "Not every call was acknowledged within the flush's deadline. The stream goes on.",
        "Flush again, or look at the server.",
    ),
    page(
        131,
        "WaitTimeout",
        Unavailable,
        Now,
        "The call was not acknowledged within the wait's deadline. It is still in flight.",
        "Wait again; the id stays valid.",
    ),
    page(
        132,
        "CloseTimeout",
        Closed,
        Never,
        "Not every call was acknowledged within the deadline of the close. The stream is closed.",
        "Fetch the rest with `take_unacked`; their outcome says whether they may have been stored.",
    ),
    page(
        140,
        "UnknownId",
        Invalid,
        Never,
        "The id was not given out by this stream.",
        "Use ids with the stream that returned them.",
    ),
    page(
        141,
        "InvalidState",
        Invalid,
        Never,
        "The operation needs the stream to be in another state, such as `take_unacked` on an open stream.",
        "Close the stream first.",
    ),
    page(
        142,
        "InvalidOption",
        Invalid,
        Never,
        "An option is outside its bounds, or contradicts another.",
        "The message names the option, its value and the bound.",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Would catch a code explained twice or out of order.
    #[test]
    fn every_page_has_its_own_code() {
        let codes: HashSet<_> = CODES.iter().map(|page| page.code).collect();
        assert_eq!(codes.len(), CODES.len());
        assert!(CODES.windows(2).all(|pair| pair[0].code.number() < pair[1].code.number()));
    }
}
