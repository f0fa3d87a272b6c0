//! The registry of ingest codes: what each means, what the caller does, how gRPC and HTTP say it.
//!
//! One table serves gRPC, HTTP and the client (`landfall explain LF-IN0011`). Codes of channels (`CH`) pass
//! through unchanged and have their place in the table of statuses. Definite refusals use only gRPC codes
//! that the reference client does not retry; every other one it retries without end.

use http::StatusCode;
use landfall_types::{Code, CodePage, Kind, Retry};
use tonic::Code as Grpc;

/// A reason for which the ingest server refuses, before the channel is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IngestCode {
    /// No bearer, or one that is not known.
    Unauthenticated,
    /// The bearer's scopes do not cover it.
    PermissionDenied,
    /// No channel goes by this table name.
    TableNotFound,
    /// The first message was not a create, or a later one was.
    CreateExpected,
    /// The header names another table than the create.
    TableMismatch,
    /// The record type is missing, unknown, or not the channel's.
    RecordType,
    /// The schema does not parse.
    SchemaInvalid,
    /// The schema does not fit the channel's.
    SchemaIncompatible,
    /// A frame's number is not the next one.
    OffsetNotNext,
    /// A call in another form than its stream, or without a record.
    RecordForm,
    /// A record does not decode.
    RecordMalformed,
    /// A call above the limit of bytes or records.
    CallTooLarge,
    /// The records of one idempotency key belong to several partitions.
    KeySpansPartitions,
    /// No such persistent stream.
    StreamUnknown,
    /// A newer connection took the stream or the producer over.
    StreamSuperseded,
    /// The client did not create its stream in time.
    OpenTimeout,
    /// The server is shutting down.
    Draining,
    /// A limit of streams, memory or requests is reached.
    Overloaded,
    /// Reading was asked to start behind the newest record.
    OffsetPastTail,
    /// The channel has several partitions and the request names none.
    PartitionRequired,
    /// The content type or encoding is not understood.
    BodyEncoding,
    /// The body or a parameter does not parse.
    BodySyntax,
    /// The method exists in the protocol and is not offered here.
    NotOffered,
    /// No such URL.
    UrlUnknown,
}

struct Row {
    code: IngestCode,
    page: CodePage,
    grpc: Option<Grpc>,
    http: Option<u16>,
}

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

use Kind::{Closed, Invalid, Unavailable};
use Retry::{Later, Never};

const ROWS: &[Row] = &[
    Row {
        code: IngestCode::Unauthenticated,
        grpc: Some(Grpc::Unauthenticated),
        http: Some(401),
        page: page(
            1,
            "Unauthenticated",
            Invalid,
            Never,
            "The request carries no bearer token, or one that the server does not know.",
            "Send `authorization: Bearer TOKEN` with a token listed under `server.auth.tokens`, or a fresh one from the token endpoint.",
        ),
    },
    Row {
        code: IngestCode::PermissionDenied,
        grpc: Some(Grpc::PermissionDenied),
        http: Some(403),
        page: page(
            2,
            "PermissionDenied",
            Invalid,
            Never,
            "The token is known, but its scopes do not cover this channel or action.",
            "Add the channel to the token's scopes (`ingest`, `read`, `create`, `admin`) under `server.auth.tokens`, or use another token.",
        ),
    },
    Row {
        code: IngestCode::TableNotFound,
        grpc: Some(Grpc::NotFound),
        http: Some(404),
        page: page(
            3,
            "TableNotFound",
            Invalid,
            Never,
            "No channel goes by this table name: names are compared exactly, with case.",
            "Declare the channel under `channels`, map the table under `server.ingest.tables`, or allow it under `server.ingest.auto_create`.",
        ),
    },
    Row {
        code: IngestCode::CreateExpected,
        grpc: Some(Grpc::InvalidArgument),
        http: Some(400),
        page: page(
            4,
            "CreateExpected",
            Invalid,
            Never,
            "A stream begins with exactly one `create_stream` message; another message came first, or a second create followed.",
            "Send `create_stream` first and once.",
        ),
    },
    Row {
        code: IngestCode::TableMismatch,
        grpc: Some(Grpc::InvalidArgument),
        http: Some(400),
        page: page(
            5,
            "TableMismatch",
            Invalid,
            Never,
            "The header `x-databricks-zerobus-table-name` names another table than the create.",
            "Send the same name in both, or leave the header out.",
        ),
    },
    Row {
        code: IngestCode::RecordType,
        grpc: Some(Grpc::InvalidArgument),
        http: Some(422),
        page: page(
            6,
            "RecordType",
            Invalid,
            Never,
            "The record type is missing, unknown, or another one than the channel's `format`.",
            "Open the stream with the channel's record type; a channel with `format: any` takes all.",
        ),
    },
    Row {
        code: IngestCode::SchemaInvalid,
        grpc: Some(Grpc::InvalidArgument),
        http: Some(422),
        page: page(
            7,
            "SchemaInvalid",
            Invalid,
            Never,
            "The descriptor or Avro schema does not parse, is not self-contained, or is above the limits of size and fields.",
            "Send one `DescriptorProto` with nested types only, or an Avro record schema.",
        ),
    },
    Row {
        code: IngestCode::SchemaIncompatible,
        grpc: Some(Grpc::InvalidArgument),
        http: Some(422),
        page: page(
            8,
            "SchemaIncompatible",
            Invalid,
            Never,
            "The schema contradicts one that the channel has already taken; the message names the fields.",
            "Keep number, cardinality and wire family of every field ever used, or set the channel's `schema_policy: any`.",
        ),
    },
    Row {
        code: IngestCode::OffsetNotNext,
        grpc: Some(Grpc::InvalidArgument),
        http: Some(400),
        page: page(
            9,
            "OffsetNotNext",
            Invalid,
            Never,
            "`offset_id` is missing, negative, repeated or skips: on one call frames count 0, 1, 2, …",
            "Number the frames of each call from 0, without a gap.",
        ),
    },
    Row {
        code: IngestCode::RecordForm,
        grpc: Some(Grpc::InvalidArgument),
        http: Some(400),
        page: page(
            10,
            "RecordForm",
            Invalid,
            Never,
            "A call is in another form than its stream was created with, holds no record, or is an empty batch.",
            "Send records in the form of the create, at least one per call.",
        ),
    },
    Row {
        code: IngestCode::RecordMalformed,
        grpc: Some(Grpc::InvalidArgument),
        http: Some(422),
        page: page(
            11,
            "RecordMalformed",
            Invalid,
            Never,
            "A record does not decode by its type and schema: JSON that is not well formed, a field that does not fit, text that is not UTF-8, or nesting above the limit. Nothing at or after it was stored.",
            "Fix the record named by `wire_offset` and `record_index`. A channel with `validate: off` takes any bytes and leaves bad rows to the pipeline's `on_error`.",
        ),
    },
    Row {
        code: IngestCode::CallTooLarge,
        grpc: Some(Grpc::InvalidArgument),
        http: Some(413),
        page: page(
            12,
            "CallTooLarge",
            Invalid,
            Never,
            "One call holds more bytes or records than `server.ingest.max_call_bytes` or `max_call_records` allow.",
            "Split the batch, or raise the limit.",
        ),
    },
    Row {
        code: IngestCode::KeySpansPartitions,
        grpc: Some(Grpc::InvalidArgument),
        http: Some(422),
        page: page(
            14,
            "KeySpansPartitions",
            Invalid,
            Never,
            "One `Idempotency-Key` names a request whose record keys lead to several partitions. Nothing was stored.",
            "Send one request per partition, or give each record its own idempotency key.",
        ),
    },
    Row {
        code: IngestCode::StreamUnknown,
        grpc: Some(Grpc::NotFound),
        http: None,
        page: page(
            16,
            "StreamUnknown",
            Invalid,
            Never,
            "No persistent stream of this principal has this id: it is unknown, retired, or was unused for `persistent_ttl`.",
            "Create a new stream.",
        ),
    },
    Row {
        code: IngestCode::StreamSuperseded,
        grpc: Some(Grpc::OutOfRange),
        http: None,
        page: page(
            17,
            "StreamSuperseded",
            Closed,
            Never,
            "A newer connection has taken this stream or producer over.",
            "Let only one process hold the stream; this one may reopen it and take it back.",
        ),
    },
    Row {
        code: IngestCode::OpenTimeout,
        grpc: Some(Grpc::DeadlineExceeded),
        http: Some(408),
        page: page(
            18,
            "OpenTimeout",
            Unavailable,
            Later,
            "The connection or call was opened, and nothing followed within `server.ingest.open_timeout`.",
            "Try again; if it repeats, look at the network between the two, or raise the limit.",
        ),
    },
    Row {
        code: IngestCode::Draining,
        grpc: Some(Grpc::Unavailable),
        http: Some(503),
        page: page(
            20,
            "Draining",
            Unavailable,
            Later,
            "The server is shutting down and takes nothing new.",
            "Try again after it is back, or at another address.",
        ),
    },
    Row {
        code: IngestCode::Overloaded,
        grpc: Some(Grpc::ResourceExhausted),
        http: Some(429),
        page: page(
            22,
            "Overloaded",
            Unavailable,
            Later,
            "A limit of streams, connections, memory or requests is reached; the message names it.",
            "Try again after the delay that the answer gives, or raise the limit under `server.ingest`.",
        ),
    },
    Row {
        code: IngestCode::OffsetPastTail,
        grpc: None,
        http: Some(416),
        page: page(
            31,
            "OffsetPastTail",
            Invalid,
            Never,
            "Reading was asked to start behind the newest record of the partition.",
            "Start at `Landfall-End-Offset` or below, or use `from=latest`.",
        ),
    },
    Row {
        code: IngestCode::PartitionRequired,
        grpc: None,
        http: Some(400),
        page: page(
            33,
            "PartitionRequired",
            Invalid,
            Never,
            "The channel has several partitions and the request names none.",
            "Add `partition=P`.",
        ),
    },
    Row {
        code: IngestCode::BodyEncoding,
        grpc: Some(Grpc::Unimplemented),
        http: Some(415),
        page: page(
            34,
            "BodyEncoding",
            Invalid,
            Never,
            "The content type, content encoding, method or HTTP version is not one that this path takes.",
            "Send NDJSON, JSON or the records envelope over HTTP, or `application/grpc` over HTTP/2 to the ingest service.",
        ),
    },
    Row {
        code: IngestCode::BodySyntax,
        grpc: None,
        http: Some(400),
        page: page(
            35,
            "BodySyntax",
            Invalid,
            Never,
            "The body, a header or a parameter does not parse; the message says which and where.",
            "Fix the request.",
        ),
    },
    Row {
        code: IngestCode::NotOffered,
        grpc: Some(Grpc::Unimplemented),
        http: Some(501),
        page: page(
            36,
            "NotOffered",
            Invalid,
            Never,
            "The protocol has this method, and this server does not offer it.",
            "Use `EphemeralStream`, or a server that offers it.",
        ),
    },
    Row {
        code: IngestCode::UrlUnknown,
        grpc: None,
        http: Some(404),
        page: page(
            37,
            "UrlUnknown",
            Invalid,
            Never,
            "No route goes by this URL.",
            "Check the path; the routes are listed in the README.",
        ),
    },
];

/// The pages of `landfall explain`.
pub const CODES: &[CodePage] = &PAGES;

const PAGES: [CodePage; ROWS.len()] = {
    let mut pages = [ROWS[0].page; ROWS.len()];
    let mut at = 0;
    while at < ROWS.len() {
        pages[at] = ROWS[at].page;
        at += 1;
    }
    pages
};

impl IngestCode {
    /// Every code, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = IngestCode> {
        ROWS.iter().map(|row| row.code)
    }

    fn row(self) -> &'static Row {
        // The position in ROWS is the position in the enum; `every_code_has_its_own_row` holds it so.
        &ROWS[self as usize]
    }

    /// The page with name, kind, retry and texts.
    pub fn page(self) -> &'static CodePage {
        &self.row().page
    }

    /// The stable code.
    pub fn code(self) -> Code {
        self.row().page.code
    }

    /// The name, as in `RecordMalformed`: the reason in status details.
    pub fn name(self) -> &'static str {
        self.row().page.name
    }

    /// What the caller does.
    pub fn kind(self) -> Kind {
        self.row().page.kind
    }

    /// Whether the same call may be made again.
    pub fn retry(self) -> Retry {
        self.row().page.retry
    }
}

/// The gRPC status of a code: this registry's, a channel's, or by kind for any other.
pub fn grpc_code(code: Code, kind: Kind) -> Grpc {
    let known = match code.area() {
        "IN" => ROWS.iter().find(|row| row.page.code == code).and_then(|row| row.grpc),
        "CH" => match code.number() {
            5 => Some(Grpc::NotFound),
            1..=4 | 6 | 10 | 12 | 13 => Some(Grpc::InvalidArgument),
            11 => Some(Grpc::OutOfRange),
            14 | 21 | 22 | 31..=36 | 40 | 41 => Some(Grpc::Unavailable),
            20 | 23 | 30 => Some(Grpc::ResourceExhausted),
            _ => None,
        },
        _ => None,
    };
    known.unwrap_or(match kind {
        Kind::Invalid | Kind::Conflict => Grpc::InvalidArgument,
        Kind::Unavailable | Kind::Unresolved | Kind::Closed => Grpc::Unavailable,
        Kind::Internal => Grpc::Internal,
    })
}

/// The HTTP status of a code: this registry's, a channel's, or by kind for any other.
pub fn http_status(code: Code, kind: Kind) -> StatusCode {
    let known = match code.area() {
        "IN" => ROWS.iter().find(|row| row.page.code == code).and_then(|row| row.http),
        "CH" => match code.number() {
            1 | 2 => Some(413),
            3 | 4 | 6 | 55 => Some(400),
            5 => Some(404),
            10 | 12 | 13 | 53 | 54 => Some(409),
            11 | 50..=52 => Some(410),
            14 | 20..=23 | 30..=36 | 40 | 41 | 56..=59 => Some(503),
            _ => None,
        },
        _ => None,
    };
    known.and_then(|status| StatusCode::from_u16(status).ok()).unwrap_or(match kind {
        Kind::Invalid => StatusCode::BAD_REQUEST,
        Kind::Conflict => StatusCode::CONFLICT,
        Kind::Unavailable | Kind::Unresolved | Kind::Closed => StatusCode::SERVICE_UNAVAILABLE,
        Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a row out of the enum's order, or a number used twice.
    #[test]
    fn every_code_has_its_own_row() {
        for (at, row) in ROWS.iter().enumerate() {
            assert_eq!(row.code as usize, at, "{:?}", row.code);
            assert_eq!(format!("{:?}", row.code), row.page.name);
        }
        assert!(ROWS.windows(2).all(|pair| pair[0].page.code.number() < pair[1].page.code.number()));
        assert_eq!(ROWS.last().map(|row| row.code), Some(IngestCode::UrlUnknown));
    }

    /// Would catch a definite refusal under a status that the reference client retries for ever, and a
    /// retryable one under a status that it takes as final.
    #[test]
    fn definite_refusals_use_only_codes_that_are_not_retried() {
        let definite = [
            Grpc::InvalidArgument,
            Grpc::NotFound,
            Grpc::PermissionDenied,
            Grpc::Unauthenticated,
            Grpc::OutOfRange,
            Grpc::Unimplemented,
        ];
        for row in ROWS {
            let Some(grpc) = row.grpc else { continue };
            assert_eq!(definite.contains(&grpc), row.page.retry == Retry::Never, "{:?}", row.code);
        }
    }

    /// Would catch a channel's code that falls to the answer by kind where the table has one.
    #[test]
    fn channel_codes_keep_their_statuses() {
        let of = |number| {
            (
                grpc_code(Code::new("CH", number), Kind::Internal),
                http_status(Code::new("CH", number), Kind::Internal).as_u16(),
            )
        };
        assert_eq!(of(1), (Grpc::InvalidArgument, 413));
        assert_eq!(of(5), (Grpc::NotFound, 404));
        assert_eq!(of(11), (Grpc::OutOfRange, 410));
        assert_eq!(of(20), (Grpc::ResourceExhausted, 503));
        assert_eq!(of(33), (Grpc::Unavailable, 503));
        assert_eq!(of(40), (Grpc::Unavailable, 503));
        assert_eq!(of(76), (Grpc::Internal, 500));
        assert_eq!(http_status(IngestCode::Overloaded.code(), Kind::Unavailable).as_u16(), 429);
    }
}
