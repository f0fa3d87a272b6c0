//! Connections, and the opening of one RPC: create out, create response in.
//!
//! The create is sent without waiting for response headers, so a peer that sends headers late cannot
//! deadlock us. Every phase is bounded. What comes back is an open RPC, or a failure that already says
//! whether another attempt makes sense.

use std::sync::Arc;
use std::time::Duration;

use landfall_protocol::wire::{
    CreateIngestStreamRequest, EphemeralStreamRequest, EphemeralStreamResponse, ephemeral_stream_request,
    ephemeral_stream_response,
};
use landfall_protocol::{Refusal, header, zerobus_client::ZerobusClient};
use landfall_types::{Retry, root_cause};
use tonic::codec::CompressionEncoding;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code as Grpc, Request, Status, Streaming};

use crate::call::RecordForm;
use crate::credentials::Credentials;
use crate::error::IngestError;
use crate::options::{Compression, ConnectOptions, invalid};
use crate::outbound::Outbound;
use crate::recovery::Ending;
use crate::shared::Shared;

/// An attempt or an RPC that ended.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: IngestError,
    pub(crate) ending: Ending,
    /// The connection itself is gone or in doubt.
    pub(crate) connection: bool,
}

impl Failure {
    /// Something about the connection or the peer that another attempt may mend.
    pub(crate) fn later(error: IngestError) -> Self {
        let ending = Ending { retry: Retry::Later, grpc: None, retry_after: None, planned: false, told: false };
        Failure { error, ending, connection: true }
    }

    /// Nothing mends it.
    pub(crate) fn never(error: IngestError) -> Self {
        let ending = Ending { retry: Retry::Never, grpc: None, retry_after: None, planned: false, told: false };
        Failure { error, ending, connection: false }
    }

    /// The peer's status.
    pub(crate) fn status(status: &Status, sub_stream: u16) -> Self {
        // A status with a source was made on this side, from what the transport saw.
        if let Some(source) = std::error::Error::source(status) {
            let detail = format!("{}: {}", status.message(), root_cause(source));
            return Failure::later(IngestError::ConnectionLost { sub_stream, detail: detail.into() });
        }
        let refusal = Refusal::from_status(status);
        let ending = Ending {
            retry: refusal.retry(),
            grpc: Some(refusal.grpc),
            retry_after: refusal.retry_after,
            planned: false,
            told: refusal.retry.is_some(),
        };
        let error = IngestError::Status { refusal: Arc::new(refusal), sub_stream };
        Failure { error, ending, connection: false }
    }
}

/// Ends the request stream of an RPC that is given up, at whatever point: the transport keeps an RPC for as
/// long as either direction of it is in use.
#[derive(Debug)]
struct RequestStream {
    shared: Arc<Shared>,
    sub_stream: u16,
    rpc: u64,
}

impl Drop for RequestStream {
    fn drop(&mut self) {
        self.shared.sub_stream(self.sub_stream).end_rpc(self.rpc);
    }
}

/// An RPC whose create was answered.
#[derive(Debug)]
pub(crate) struct OpenRpc {
    pub(crate) responses: Streaming<EphemeralStreamResponse>,
    /// The peer named itself: an ack without a class then means stable storage.
    pub(crate) is_landfall: bool,
    /// The connection, to be used again.
    pub(crate) channel: Channel,
    _request: RequestStream,
}

/// Checks an endpoint and makes it ready to connect.
pub(crate) fn endpoint(text: &str, options: &ConnectOptions) -> Result<Endpoint, IngestError> {
    let wrong = |bound: &str| invalid("endpoint", text, bound);
    let uri: http::Uri = text.parse().map_err(|_| wrong("expected a URL like `http://127.0.0.1:7420`"))?;
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(invalid("endpoint", "(with credentials)", "credentials do not belong into the URL"));
    }
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => return Err(wrong("TLS is not built into this version: use `http://` on a trusted network")),
        None => {
            return Err(wrong(
                "without a scheme it would mean https, and TLS is not built into this version: write `http://…`",
            ));
        }
        Some(_) => return Err(wrong("expected the scheme `http`")),
    }
    let mut agent = format!("landfall-client/{}", env!("CARGO_PKG_VERSION"));
    if !options.application.is_empty() {
        agent = format!("{agent} {}", options.application);
    }
    let mut endpoint = Endpoint::from_shared(text.to_owned())
        .and_then(|endpoint| endpoint.user_agent(agent))
        .map_err(|_| wrong("expected a URL like `http://127.0.0.1:7420`"))?
        .connect_timeout(options.connect_timeout)
        .keep_alive_timeout(options.keepalive_timeout)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true);
    if let Some(interval) = options.keepalive_interval {
        endpoint = endpoint.http2_keep_alive_interval(interval);
    }
    Ok(endpoint)
}

/// Opens RPCs for one stream.
#[derive(Debug)]
pub(crate) struct Connector {
    pub(crate) endpoint: Endpoint,
    pub(crate) address: Arc<str>,
    pub(crate) credentials: Credentials,
    pub(crate) form: RecordForm,
    pub(crate) connect_timeout: Duration,
}

impl Connector {
    /// A new connection.
    pub(crate) async fn connect(&self) -> Result<Channel, Failure> {
        let began = tokio::time::Instant::now();
        // The endpoint's own limit covers TCP alone; a peer that accepts and stays silent must end too.
        let connecting = tokio::time::timeout(self.connect_timeout, self.endpoint.connect());
        let source: Arc<dyn std::error::Error + Send + Sync> = match connecting.await {
            Ok(Ok(channel)) => return Ok(channel),
            Ok(Err(error)) => Arc::new(std::io::Error::other(root_cause(&error))),
            Err(_) => Arc::new(std::io::Error::new(std::io::ErrorKind::TimedOut, "no connection in time")),
        };
        let error = IngestError::Connect { endpoint: Arc::clone(&self.address), elapsed: began.elapsed(), source };
        Err(Failure::later(error))
    }

    /// One attempt: a connection, if there is none, and an RPC on it whose frames are let out when it is open.
    pub(crate) async fn open(
        &self,
        shared: &Arc<Shared>,
        sub_stream: u16,
        channel: Option<Channel>,
    ) -> Result<OpenRpc, Failure> {
        let began = tokio::time::Instant::now();
        let timeout = shared.options.open_timeout;
        let mut phase = "the connection";
        let attempt = async {
            let channel = match channel {
                Some(channel) => channel,
                None => self.connect().await?,
            };
            phase = "response headers";
            let rpc = shared.sub_stream(sub_stream).begin_rpc();
            let request_stream = RequestStream { shared: Arc::clone(shared), sub_stream, rpc };
            let outbound = Outbound::new(Arc::clone(shared), sub_stream, rpc, self.create(&shared.table));
            let request = self.request(&shared.table, outbound).map_err(Failure::never)?;
            let mut client = client(channel.clone(), shared.options.compression);
            let response =
                client.ephemeral_stream(request).await.map_err(|status| Failure::status(&status, sub_stream))?;
            let is_landfall = response.metadata().contains_key(header::LANDFALL_VERSION);
            let mut responses = response.into_inner();
            phase = "the answer to create";
            let answer = responses.message().await.map_err(|status| Failure::status(&status, sub_stream))?;
            check_answer(answer, sub_stream)?;
            Ok(OpenRpc { responses, is_landfall, channel, _request: request_stream })
        };
        match tokio::time::timeout(timeout, attempt).await {
            Ok(result) => result,
            Err(_) => Err(Failure::later(IngestError::OpenTimeout {
                endpoint: Arc::clone(&self.address),
                phase,
                elapsed: began.elapsed(),
            })),
        }
    }

    fn create(&self, table: &str) -> EphemeralStreamRequest {
        let mut create = CreateIngestStreamRequest {
            table_name: Some(table.to_owned()),
            record_type: Some(self.form.record_type() as i32),
            ..CreateIngestStreamRequest::default()
        };
        match &self.form {
            RecordForm::Json => {}
            RecordForm::Proto { descriptor } => create.descriptor_proto = Some(descriptor.clone()),
            RecordForm::Avro { schema } => create.avro_schema_json = Some(schema.to_string()),
        }
        EphemeralStreamRequest { payload: Some(ephemeral_stream_request::Payload::CreateStream(create)) }
    }

    fn request(&self, table: &str, outbound: Outbound) -> Result<Request<Outbound>, IngestError> {
        let mut request = Request::new(outbound);
        self.credentials.apply(request.metadata_mut())?;
        // A name that does not fit a header stays out of it: the create has it, and the header is optional.
        if let Ok(value) = table.parse() {
            request.metadata_mut().insert(header::TABLE_NAME, value);
        }
        request.metadata_mut().insert(header::LANDFALL_ACCEPT, tonic::metadata::MetadataValue::from_static("1"));
        Ok(request)
    }
}

fn client(channel: Channel, compression: Compression) -> ZerobusClient<Channel> {
    let client = ZerobusClient::new(channel)
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Zstd);
    match compression {
        Compression::None => client,
        Compression::Gzip => client.send_compressed(CompressionEncoding::Gzip),
        Compression::Zstd => client.send_compressed(CompressionEncoding::Zstd),
    }
}

/// The first response must answer the create with a stream id. A peer that answers otherwise may be half-way
/// through a restart, so another attempt is made within the budget.
fn check_answer(answer: Option<EphemeralStreamResponse>, sub_stream: u16) -> Result<(), Failure> {
    use ephemeral_stream_response::Payload;
    let what = match answer.map(|answer| answer.payload) {
        Some(Some(Payload::CreateStreamResponse(created))) => match created.stream_id.as_deref() {
            Some(id) if !id.is_empty() => return Ok(()),
            _ => "it answered the create without a stream id",
        },
        Some(_) => "its first message does not answer the create",
        None => {
            let status = Status::new(Grpc::Unavailable, "the stream ended before the create was answered");
            return Err(Failure::status(&status, sub_stream));
        }
    };
    Err(Failure::later(IngestError::ProtocolViolation { sub_stream, what: what.into() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch an endpoint that silently means something else than it says.
    #[test]
    fn the_scheme_decides_and_is_told() {
        let of = |text: &str| endpoint(text, &ConnectOptions::default()).map(|_| ()).map_err(|error| error.to_string());
        assert_eq!(of("http://127.0.0.1:7420"), Ok(()));
        assert!(of("https://example.com").unwrap_err().contains("TLS is not built into this version"));
        assert!(of("127.0.0.1:7420").unwrap_err().contains("without a scheme"));
        assert!(of("ftp://x").unwrap_err().contains("http"));
        assert!(!of("http://user:pw@host").unwrap_err().contains("pw"));
        assert!(of("").is_err());
    }
}
