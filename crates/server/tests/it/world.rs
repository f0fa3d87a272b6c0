//! A server on a free port, its channels in a temporary directory, and peers that speak to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use landfall_channel::{Channel, ChannelOptions, Channels, Delivered, ProcessOptions};
use landfall_protocol::Refusal;
use landfall_protocol::wire::{
    CreateIngestStreamRequest, EphemeralStreamRequest, EphemeralStreamResponse, IngestRecordBatchRequest,
    IngestRecordRequest, JsonRecordBatch, RecordType, ephemeral_stream_request, ephemeral_stream_response,
    ingest_record_batch_request, ingest_record_request,
};
use landfall_protocol::zerobus_client::ZerobusClient;
use landfall_server::{Server, ServerHandle, ServerOptions, ServerParts};
use landfall_state::{DataDirLock, StateStore};
use landfall_types::{ByteSize, Offset, PartitionId, SystemClock};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Code, Status, Streaming};

/// Longer than anything here takes; only a failure waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A result within [`PATIENCE`].
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it comes in time")
}

pub(crate) struct World {
    pub(crate) channels: Channels,
    pub(crate) server: ServerHandle,
    _state: StateStore,
    _lock: DataDirLock,
    _dir: tempfile::TempDir,
}

impl World {
    /// A server with one channel `events` of one partition.
    pub(crate) async fn plain() -> World {
        World::with(ServerOptions::default(), vec![("events", ChannelOptions::default())]).await
    }

    pub(crate) async fn with(options: ServerOptions, channels: Vec<(&str, ChannelOptions)>) -> World {
        World::with_parts(options, channels, |_| {}).await
    }

    /// With more than channels to serve.
    pub(crate) async fn with_parts(
        options: ServerOptions,
        channels: Vec<(&str, ChannelOptions)>,
        change: impl FnOnce(&mut ServerParts),
    ) -> World {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let lock = DataDirLock::acquire(dir.path(), &SystemClock).expect("the directory is ours");
        let state = StateStore::open(&lock).expect("a new state store");
        let configs = channels.into_iter().map(|(name, options)| (name.to_owned(), options)).collect();
        let process = ProcessOptions { disk_reserve: Some(ByteSize::mib(64)), ..ProcessOptions::default() };
        let channels = Channels::open(dir.path(), configs, process, state.handle(), Arc::new(SystemClock));
        let channels = channels.expect("the channels open");
        let options = ServerOptions { listen: SocketAddr::from(([127, 0, 0, 1], 0)), ..options };
        let mut parts = ServerParts::new(channels.clone());
        change(&mut parts);
        let server = Server::bind(options, parts).await.expect("a free port");
        World { channels, server: server.start(), _state: state, _lock: lock, _dir: dir }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.local_addr()
    }

    pub(crate) fn channel(&self, name: &str) -> Channel {
        self.channels.get(name).expect("the channel is there")
    }

    /// All records of a partition, by a reader that is not the server.
    pub(crate) async fn stored(&self, name: &str, partition: u32) -> Vec<Delivered> {
        let channel = self.channel(name);
        let partition = PartitionId(partition);
        let mut all = Vec::new();
        let mut from = Offset::ZERO;
        while Some(from) < channel.tail(partition) {
            let page = channel.read(partition, from, 1_000, 1 << 20).await.expect("the records are readable");
            from = Offset(page.last().expect("a page below the tail has a record").offset.get() + 1);
            all.extend(page);
        }
        assert!(all.iter().enumerate().all(|(n, one)| one.offset == Offset(n as u64)), "offsets are dense from 0");
        all
    }

    pub(crate) async fn payloads(&self, name: &str) -> Vec<Bytes> {
        self.stored(name, 0).await.into_iter().map(|one| one.record.payload).collect()
    }

    /// A gRPC connection of its own.
    pub(crate) async fn connect(&self) -> ZerobusClient<tonic::transport::Channel> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address())).expect("an address");
        ZerobusClient::new(soon(endpoint.connect()).await.expect("the server accepts"))
            .max_decoding_message_size(1 << 26)
            .max_encoding_message_size(1 << 27)
    }

    /// Sends one HTTP/1.1 request on a connection of its own.
    pub(crate) async fn http(&self, request: http::request::Builder, body: impl Into<Bytes>) -> Answer {
        let stream = TcpStream::connect(self.address()).await.expect("the server accepts");
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("a handshake");
        let connection = tokio::spawn(connection);
        let request = request.header("host", "localhost").body(Full::new(body.into())).expect("a request");
        let response = soon(sender.send_request(request)).await.expect("an answer");
        let (parts, body) = response.into_parts();
        let body = soon(body.collect()).await.expect("a whole body").to_bytes();
        drop(sender);
        connection.abort();
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.http(http::Request::get(path), Bytes::new()).await
    }

    pub(crate) async fn post(&self, path: &str, content_type: &str, body: impl Into<Bytes>) -> Answer {
        self.http(http::Request::post(path).header("content-type", content_type), body).await
    }

    /// Ends the channels; a test that fails before leaves it to the process.
    pub(crate) async fn close(self) {
        let report = self.server.drain(Duration::ZERO, Instant::now() + PATIENCE).await;
        assert!(report.is_clean(), "{report:?}");
        let channels = self.channels.clone();
        tokio::task::spawn_blocking(move || channels.close()).await.expect("closing does not panic");
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    /// The code of a problem; asserts its form.
    pub(crate) fn problem(&self) -> (u16, String) {
        assert_eq!(
            self.headers.get("content-type").map(|value| value.as_bytes()),
            Some(&b"application/problem+json"[..]),
            "{self:?}"
        );
        let json = self.json();
        let code = json["code"].as_str().expect("a code").to_owned();
        assert_eq!(json["status"], self.status);
        assert_eq!(json["type"], format!("urn:landfall:error:{code}"));
        (self.status, code)
    }
}

/// A stream as a raw client of the wire has it.
pub(crate) struct RawStream {
    pub(crate) send: Option<mpsc::UnboundedSender<EphemeralStreamRequest>>,
    pub(crate) receive: Streaming<EphemeralStreamResponse>,
    next: i64,
}

impl RawStream {
    /// Starts the call and sends nothing.
    pub(crate) async fn call(client: &mut ZerobusClient<tonic::transport::Channel>) -> Result<RawStream, Status> {
        RawStream::call_with(client, &[]).await
    }

    pub(crate) async fn call_with(
        client: &mut ZerobusClient<tonic::transport::Channel>,
        headers: &[(&'static str, &str)],
    ) -> Result<RawStream, Status> {
        let (send, messages) = mpsc::unbounded_channel();
        let mut request = tonic::Request::new(UnboundedReceiverStream::new(messages));
        for (name, value) in headers {
            request.metadata_mut().insert(*name, value.parse().expect("a header value"));
        }
        let response = soon(client.ephemeral_stream(request)).await?;
        Ok(RawStream { send: Some(send), receive: response.into_inner(), next: 0 })
    }

    /// Opens a JSON stream into a table.
    pub(crate) async fn open(client: &mut ZerobusClient<tonic::transport::Channel>, table: &str) -> RawStream {
        let mut stream = RawStream::call(client).await.expect("the call is taken");
        stream.create(json_create(table));
        stream.expect_created().await;
        stream
    }

    pub(crate) fn send(&self, payload: ephemeral_stream_request::Payload) {
        let send = self.send.as_ref().expect("not half-closed yet");
        // An error means that the call has ended, and its status tells more.
        let _ = send.send(EphemeralStreamRequest { payload: Some(payload) });
    }

    pub(crate) fn create(&mut self, create: CreateIngestStreamRequest) {
        self.send(ephemeral_stream_request::Payload::CreateStream(create));
    }

    pub(crate) async fn expect_created(&mut self) -> String {
        match self.message().await.expect("the create is answered") {
            Some(ephemeral_stream_response::Payload::CreateStreamResponse(created)) => {
                let id = created.stream_id.expect("an id");
                assert!(!id.is_empty());
                id
            }
            other => panic!("expected the create's answer, got {other:?}"),
        }
    }

    /// Sends one JSON record as the next frame.
    pub(crate) fn record(&mut self, json: impl Into<Bytes>) {
        let offset = self.take_offset();
        self.send(json_record(Some(offset), json));
    }

    pub(crate) fn batch<T: Into<Bytes>>(&mut self, records: impl IntoIterator<Item = T>) {
        let offset_id = Some(self.take_offset());
        let records = records.into_iter().map(Into::into).collect();
        let batch = Some(ingest_record_batch_request::Batch::JsonBatch(JsonRecordBatch { records }));
        let request = IngestRecordBatchRequest { offset_id, batch, record_keys: Vec::new() };
        self.send(ephemeral_stream_request::Payload::IngestRecordBatch(request));
    }

    pub(crate) fn take_offset(&mut self) -> i64 {
        self.next += 1;
        self.next - 1
    }

    pub(crate) fn half_close(&mut self) {
        self.send = None;
    }

    pub(crate) async fn message(&mut self) -> Result<Option<ephemeral_stream_response::Payload>, Status> {
        Ok(soon(self.receive.message()).await?.map(|message| message.payload.expect("a payload")))
    }

    /// Reads until frame `upto` is acknowledged; acks rise and never exceed what was sent.
    pub(crate) async fn acked(&mut self, upto: i64) {
        let mut last = -1;
        while last < upto {
            match self.message().await.expect("the stream is open") {
                Some(ephemeral_stream_response::Payload::IngestRecordResponse(ack)) => {
                    let ack = ack.durability_ack_up_to_offset.expect("an offset");
                    assert!(ack > last && ack < self.next, "ack {ack} after {last}, {} sent", self.next);
                    last = ack;
                }
                other => panic!("expected an ack, got {other:?}"),
            }
        }
    }

    /// Reads to the end: the last ack (-1: none) and the status, if it is not OK.
    pub(crate) async fn end(&mut self) -> (i64, Option<Status>) {
        let mut last = -1;
        loop {
            match self.message().await {
                Ok(Some(ephemeral_stream_response::Payload::IngestRecordResponse(ack))) => {
                    last = ack.durability_ack_up_to_offset.expect("an offset");
                }
                Ok(Some(_)) => {}
                Ok(None) => return (last, None),
                Err(status) => return (last, Some(status)),
            }
        }
    }

    /// Reads to the end, which is a refusal.
    pub(crate) async fn refused(&mut self) -> (i64, Code, Refusal) {
        let (last, status) = self.end().await;
        let status = status.expect("the stream is refused");
        (last, status.code(), Refusal::from_status(&status))
    }
}

pub(crate) fn json_create(table: &str) -> CreateIngestStreamRequest {
    CreateIngestStreamRequest {
        table_name: Some(table.to_owned()),
        record_type: Some(RecordType::Json as i32),
        ..Default::default()
    }
}

pub(crate) fn json_record(offset_id: Option<i64>, json: impl Into<Bytes>) -> ephemeral_stream_request::Payload {
    ephemeral_stream_request::Payload::IngestRecord(IngestRecordRequest {
        offset_id,
        record: Some(ingest_record_request::Record::JsonRecord(json.into())),
        record_key: None,
    })
}
