//! Why a server does not start, and the code pages of this crate.

use std::io;
use std::net::SocketAddr;

use landfall_protocol::LimitError;
use landfall_types::{Code, CodePage, Coded, Kind, Retry};

/// The server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address could not be bound.
    #[error("cannot listen on {address}: {source}; {}", next_step(source))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A listener that strangers could reach, without protection.
    #[error(
        "`server.listen` is {address}, which others can reach, and there are no tokens and no TLS: listen on 127.0.0.1, or say `server.insecure: true`"
    )]
    Unprotected {
        /// The address.
        address: SocketAddr,
    },
    /// A limit is out of bounds.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

fn next_step(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrInUse => {
            "another process holds the port (perhaps another landfall): stop it, or set `server.listen` to a free port"
        }
        io::ErrorKind::PermissionDenied => "ports below 1024 need privileges: set `server.listen` to a higher port",
        io::ErrorKind::AddrNotAvailable => "the address is not one of this machine: set `server.listen` to one that is",
        _ => "set `server.listen` to another address",
    }
}

const LISTEN_FAILED: Code = Code::new("IN", 60);
const LISTEN_UNPROTECTED: Code = Code::new("IN", 61);
const LIMIT_OUT_OF_BOUNDS: Code = Code::new("IN", 62);

/// The pages of `landfall explain` for codes that only the server gives; those of single calls are in `protocol`.
pub const CODES: &[CodePage] = &[
    CodePage {
        code: LISTEN_FAILED,
        name: "ListenFailed",
        kind: Kind::Unavailable,
        retry: Retry::Later,
        meaning: "The server could not bind its address.",
        help: "Stop the process that holds the port, or set `server.listen` to a free one.",
    },
    CodePage {
        code: LISTEN_UNPROTECTED,
        name: "ListenUnprotected",
        kind: Kind::Invalid,
        retry: Retry::Never,
        meaning: "The address can be reached from other machines, and neither tokens nor TLS protect it.",
        help: "Listen on loopback, configure `server.auth` and `server.tls`, or accept the risk with `server.insecure: true`.",
    },
    CodePage {
        code: LIMIT_OUT_OF_BOUNDS,
        name: "LimitOutOfBounds",
        kind: Kind::Invalid,
        retry: Retry::Never,
        meaning: "A limit under `server.ingest` is out of its bounds, or contradicts another one.",
        help: "Set it to a value inside the bounds that the message names.",
    },
];

impl Coded for ServerError {
    fn code(&self) -> Code {
        match self {
            ServerError::Listen { .. } => LISTEN_FAILED,
            ServerError::Unprotected { .. } => LISTEN_UNPROTECTED,
            ServerError::Limit(_) => LIMIT_OUT_OF_BOUNDS,
        }
    }

    fn kind(&self) -> Kind {
        match self {
            ServerError::Listen { .. } => Kind::Unavailable,
            ServerError::Unprotected { .. } | ServerError::Limit(_) => Kind::Invalid,
        }
    }

    fn retry(&self) -> Retry {
        match self {
            ServerError::Listen { .. } => Retry::Later,
            ServerError::Unprotected { .. } | ServerError::Limit(_) => Retry::Never,
        }
    }
}
