//! Start-up and log-in of a replication connection: trust, password, MD5 and SCRAM-SHA-256.

use bytes::Bytes;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::frontend;

use super::commands::ServerVersion;
use super::wire::{Message, Wire, server_error};
use crate::connect::{
    ConnectError, ConnectOptions, HAS_TRANSACTION_TIMEOUT, NO_TRANSACTION_TIMEOUT, PINNED_FOR_REPLICATION,
    TAKE_UNCHECKED, UNCHECKED_ENCODING, cut,
};

fn broken(what: impl Into<String>) -> ConnectError {
    ConnectError::Protocol { what: what.into() }
}

/// A parameter with a NUL in it would be cut on the wire.
fn no_nul(result: std::io::Result<()>, what: &'static str) -> Result<(), ConnectError> {
    result.map_err(|_| ConnectError::Nul { what })
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Commands of replication; it takes one of the server's senders.
    Replication,
    /// SQL.
    Sql,
}

/// Whom we talk to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) version: ServerVersion,
    /// Its process for this connection, for a cancel by another one; 0 if it did not say.
    pub(super) pid: i32,
}

/// Logs in; gives who is there.
pub(super) async fn log_in(
    wire: &mut Wire,
    options: &ConnectOptions,
    purpose: Purpose,
) -> Result<Server, ConnectError> {
    let mut startup = options.startup_options();
    let replication = (purpose == Purpose::Replication).then_some(("replication", "database"));
    if replication.is_some() {
        let (name, value) = PINNED_FOR_REPLICATION;
        startup.push_str(&format!(" -c {name}={value}"));
    }
    let parameters = [
        ("user", options.user.as_str()),
        ("database", options.database.as_str()),
        ("application_name", options.application_name.as_str()),
        ("client_encoding", "UTF8"),
        ("options", startup.as_str()),
    ];
    let parameters = parameters.into_iter().chain(replication);
    no_nul(frontend::startup_message(parameters, &mut wire.outgoing), "user, database, application_name or options")?;
    wire.send().await?;
    authenticate(wire, options).await?;
    let (mut version, mut pid, mut is_unchecked) = (None, 0, false);
    loop {
        let message = wire.message().await?;
        match message.tag {
            b'S' => match parameter_in(&message.body) {
                Some(("server_version", text)) => version = ServerVersion::parse(text).or(version),
                Some(("server_encoding", encoding)) => is_unchecked = encoding == UNCHECKED_ENCODING,
                _ => {}
            },
            // The process, and the key to cancel with.
            b'K' => pid = message.body.first_chunk::<4>().map_or(0, |four| i32::from_be_bytes(*four)),
            // Notices.
            b'N' => {}
            b'E' => return Err(ConnectError::LogIn(server_error(&message.body))),
            b'Z' => break,
            tag => return Err(broken(format!("a message 0x{tag:02x} after the log-in"))),
        }
    }
    let version = version.ok_or_else(|| broken("the server did not tell its version; is it Postgres?"))?;
    if is_unchecked {
        set(wire, TAKE_UNCHECKED).await?;
    }
    if version.0 >= HAS_TRANSACTION_TIMEOUT {
        set(wire, NO_TRANSACTION_TIMEOUT).await?;
    }
    Ok(Server { version, pid })
}

/// Sets what the start-up packet cannot say.
async fn set(wire: &mut Wire, statement: &str) -> Result<(), ConnectError> {
    no_nul(frontend::query(statement, &mut wire.outgoing), "a statement")?;
    wire.send().await?;
    loop {
        let message = wire.message().await?;
        match message.tag {
            // Done, what it is set to now, and notices.
            b'C' | b'S' | b'N' => {}
            b'E' => return Err(ConnectError::LogIn(server_error(&message.body))),
            b'Z' => return Ok(()),
            tag => return Err(broken(format!("a message 0x{tag:02x} in answer to SET"))),
        }
    }
}

/// The name and value of a ParameterStatus.
fn parameter_in(body: &Bytes) -> Option<(&str, &str)> {
    let mut parts = body.split(|byte| *byte == 0).map(std::str::from_utf8);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

async fn authenticate(wire: &mut Wire, options: &ConnectOptions) -> Result<(), ConnectError> {
    loop {
        let (method, rest) = request(wire.message().await?)?;
        match method {
            0 => return Ok(()),
            3 => {
                no_nul(frontend::password_message(password(options)?, &mut wire.outgoing), "the password")?;
                wire.send().await?;
            }
            5 => {
                let salt = rest.first_chunk::<4>().ok_or_else(|| broken("an MD5 request without salt"))?;
                let hash = md5_hash(options.user.as_bytes(), password(options)?, *salt);
                no_nul(frontend::password_message(hash.as_bytes(), &mut wire.outgoing), "the password")?;
                wire.send().await?;
            }
            10 => return scram(wire, options, &rest).await,
            other => return Err(ConnectError::LogInMethod { method: name_of(other) }),
        }
    }
}

/// An authentication request: its number and what follows.
fn request(message: Message) -> Result<(i32, Bytes), ConnectError> {
    match message.tag {
        b'R' => {
            let four = message.body.first_chunk::<4>().ok_or_else(|| broken("a log-in request of no length"))?;
            Ok((i32::from_be_bytes(*four), message.body.slice(4..)))
        }
        b'E' => Err(ConnectError::LogIn(server_error(&message.body))),
        b'v' => Err(broken("the server does not speak version 3.0 of the protocol")),
        tag => Err(broken(format!("a message 0x{tag:02x} where a log-in request may come; is it a Postgres server?"))),
    }
}

fn password(options: &ConnectOptions) -> Result<&[u8], ConnectError> {
    options.password.as_ref().map(|password| password.bytes()).ok_or(ConnectError::NoPassword)
}

async fn scram(wire: &mut Wire, options: &ConnectOptions, mechanisms: &[u8]) -> Result<(), ConnectError> {
    let mut offered = mechanisms.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    if !offered.any(|name| name == SCRAM_SHA_256.as_bytes()) {
        let method = format!("SASL with {}", cut(&String::from_utf8_lossy(mechanisms)).replace('\0', " "));
        return Err(ConnectError::LogInMethod { method });
    }
    let failed = |source| ConnectError::Scram { source };
    let mut exchange = ScramSha256::new(password(options)?, ChannelBinding::unsupported());
    frontend::sasl_initial_response(SCRAM_SHA_256, exchange.message(), &mut wire.outgoing).map_err(failed)?;
    wire.send().await?;

    let (11, first) = request(wire.message().await?)? else { return Err(broken("the password exchange is cut short")) };
    exchange.update(&first).map_err(failed)?;
    frontend::sasl_response(exchange.message(), &mut wire.outgoing).map_err(failed)?;
    wire.send().await?;

    // The server proves here that it knows the password too: a peer that only lets us in is refused.
    let (12, last) = request(wire.message().await?)? else { return Err(broken("the password exchange is cut short")) };
    exchange.finish(&last).map_err(failed)?;
    match request(wire.message().await?)? {
        (0, _) => Ok(()),
        _ => Err(broken("the password exchange goes on past its end")),
    }
}

fn name_of(method: i32) -> String {
    match method {
        2 => "Kerberos V5".to_owned(),
        7 | 8 => "GSSAPI".to_owned(),
        9 => "SSPI".to_owned(),
        other => format!("log-in method {other}"),
    }
}
