//! A scripted peer: a server in this process that does to the client what its script says, RPC by RPC, and
//! writes down every frame that it received.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use landfall_protocol::wire::{
    CloseStreamSignal, CreateIngestStreamResponse, EphemeralStreamRequest, EphemeralStreamResponse,
    IngestRecordResponse, PersistentStreamRequest, PersistentStreamResponse, RetireStreamRequest, RetireStreamResponse,
    ephemeral_stream_request, ephemeral_stream_response, ingest_record_batch_request, ingest_record_request,
};
use landfall_protocol::zerobus_server::{Zerobus, ZerobusServer};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

/// A gate that a test opens.
#[derive(Clone, Debug)]
pub(crate) struct Gate(Arc<watch::Sender<bool>>);

impl Gate {
    pub(crate) fn new() -> Self {
        Gate(Arc::new(watch::channel(false).0))
    }

    pub(crate) fn open(&self) {
        self.0.send_replace(true);
    }

    async fn passed(&self) {
        let _ = self.0.subscribe().wait_for(|open| *open).await;
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) enum Opening {
    #[default]
    Accept,
    Refuse(Status),
    WithoutId,
    WrongReply,
    Eof,
    Silent,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Acks {
    #[default]
    Each,
    Every(u64),
    Never,
}

/// What happens when a frame has come, before its ack.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Fail(Status),
    Eof,
    CloseSignal(Option<Duration>),
    Ack(i64),
    AckWithoutOffset,
    Empty,
    Wait(Gate),
}

/// The script of one RPC.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    pub(crate) opening: Opening,
    pub(crate) acks: Acks,
    pub(crate) at: Vec<(u64, Act)>,
    /// Sends an empty message so often.
    pub(crate) empty_each: Option<Duration>,
    pub(crate) landfall: bool,
    /// Sends its headers only when the first message has come.
    pub(crate) late_headers: bool,
}

impl Script {
    pub(crate) fn never() -> Self {
        Script { acks: Acks::Never, ..Script::default() }
    }

    pub(crate) fn refuse(status: Status) -> Self {
        Script { opening: Opening::Refuse(status), ..Script::default() }
    }

    pub(crate) fn at(mut self, frame: u64, act: Act) -> Self {
        self.at.push((frame, act));
        self
    }
}

/// A frame that came.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) rpc: usize,
    pub(crate) wire_offset: i64,
    pub(crate) records: Vec<String>,
    /// Whether it came as a batch message.
    pub(crate) batch: bool,
    /// Whether it came after the close signal of its RPC.
    pub(crate) after_signal: bool,
}

#[derive(Debug, Default)]
struct Book {
    received: Vec<Received>,
    half_closed: Vec<usize>,
    metadata: Vec<BTreeMap<String, String>>,
}

#[derive(Clone)]
struct Service {
    scripts: Arc<Vec<Script>>,
    rpcs: Arc<AtomicUsize>,
    open: Arc<AtomicUsize>,
    book: Arc<Mutex<Book>>,
    changed: Arc<watch::Sender<u64>>,
}

/// A running peer; it ends with the value.
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    service: Service,
    task: AbortHandle,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Peer {
    /// Serves RPC i by script i; the last one serves all that follow.
    pub(crate) async fn start(scripts: Vec<Script>) -> Peer {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = Service {
            scripts: Arc::new(scripts),
            rpcs: Arc::default(),
            open: Arc::default(),
            book: Arc::default(),
            changed: Arc::new(watch::channel(0).0),
        };
        let server = ZerobusServer::new(service.clone())
            .max_decoding_message_size(64 << 20)
            .accept_compressed(tonic::codec::CompressionEncoding::Gzip)
            .accept_compressed(tonic::codec::CompressionEncoding::Zstd);
        let serving = tonic::transport::Server::builder().add_service(server).serve_with_incoming(
            TcpListenerStream::new(listener).map(|accepted| {
                let connection = accepted?;
                connection.set_nodelay(true)?;
                Ok::<_, std::io::Error>(connection)
            }),
        );
        let task = tokio::spawn(async move {
            let _ = serving.await;
        });
        Peer { address, service, task: task.abort_handle() }
    }

    pub(crate) async fn acking() -> Peer {
        Peer::start(vec![Script::default()]).await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// RPCs so far.
    pub(crate) fn rpcs(&self) -> usize {
        self.service.rpcs.load(Ordering::SeqCst)
    }

    /// RPCs that are being served.
    pub(crate) fn open_rpcs(&self) -> usize {
        self.service.open.load(Ordering::SeqCst)
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.service.book.lock().received.clone()
    }

    /// All records of one RPC, in order.
    pub(crate) fn records_of(&self, rpc: usize) -> Vec<String> {
        self.received().into_iter().filter(|frame| frame.rpc == rpc).flat_map(|frame| frame.records).collect()
    }

    pub(crate) fn all_records(&self) -> Vec<String> {
        self.received().into_iter().flat_map(|frame| frame.records).collect()
    }

    pub(crate) fn was_half_closed(&self, rpc: usize) -> bool {
        self.service.book.lock().half_closed.contains(&rpc)
    }

    pub(crate) fn metadata(&self, rpc: usize, key: &str) -> Option<String> {
        self.service.book.lock().metadata.get(rpc).and_then(|metadata| metadata.get(key).cloned())
    }

    /// Waits until `seen` holds, looking again whenever something came in.
    pub(crate) async fn until(&self, what: &str, seen: impl Fn(&Peer) -> bool) {
        let mut changed = self.service.changed.subscribe();
        let waiting = async {
            while !seen(self) {
                changed.changed().await.unwrap();
            }
        };
        if tokio::time::timeout(Duration::from_secs(20), waiting).await.is_err() {
            panic!("{what} did not happen; {} RPCs, {:?}", self.rpcs(), self.received().last());
        }
    }
}

type Answers = Pin<Box<dyn tokio_stream::Stream<Item = Result<EphemeralStreamResponse, Status>> + Send>>;

struct OpenRpc(Service);

impl Drop for OpenRpc {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
        self.0.note();
    }
}

impl Service {
    fn note(&self) {
        self.changed.send_modify(|n| *n += 1);
    }

    async fn serve(
        self,
        rpc: usize,
        script: Script,
        mut requests: Streaming<EphemeralStreamRequest>,
        answers: mpsc::Sender<Result<EphemeralStreamResponse, Status>>,
    ) {
        let _open = OpenRpc(self.clone());
        if !script.late_headers {
            let Ok(Some(_create)) = requests.message().await else { return };
        }
        match script.opening {
            Opening::Accept => {
                let created = CreateIngestStreamResponse {
                    stream_id: Some(format!("stream-{rpc}")),
                    ..CreateIngestStreamResponse::default()
                };
                let _ = answers.send(Ok(created_response(created))).await;
            }
            Opening::WithoutId => {
                let _ = answers.send(Ok(created_response(CreateIngestStreamResponse::default()))).await;
                return;
            }
            Opening::WrongReply => {
                let _ = answers.send(Ok(ack(Some(0)))).await;
                return;
            }
            Opening::Refuse(status) => {
                let _ = answers.send(Err(status)).await;
                return;
            }
            Opening::Eof => return,
            Opening::Silent => {
                answers.closed().await;
                return;
            }
        }
        let ticker = script.empty_each.map(|each| {
            let answers = answers.clone();
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(each).await;
                    if answers.send(Ok(EphemeralStreamResponse { payload: None })).await.is_err() {
                        return;
                    }
                }
            })
        });
        self.serve_frames(rpc, &script, &mut requests, &answers).await;
        if let Some(ticker) = ticker {
            ticker.abort();
        }
    }

    async fn serve_frames(
        &self,
        rpc: usize,
        script: &Script,
        requests: &mut Streaming<EphemeralStreamRequest>,
        answers: &mpsc::Sender<Result<EphemeralStreamResponse, Status>>,
    ) {
        let mut frames = 0u64;
        let mut signalled = false;
        loop {
            let message = tokio::select! {
                message = requests.message() => message,
                // The client is gone.
                () = answers.closed() => return,
            };
            let message = match message {
                Ok(Some(message)) => message,
                Ok(None) => {
                    self.book.lock().half_closed.push(rpc);
                    self.note();
                    return;
                }
                Err(_) => return,
            };
            let received = received(rpc, message, signalled);
            let wire_offset = received.wire_offset;
            self.book.lock().received.push(received);
            self.note();
            for (_, act) in script.at.iter().filter(|(at, _)| *at == frames) {
                match act {
                    Act::Fail(status) => {
                        let _ = answers.send(Err(status.clone())).await;
                        return;
                    }
                    Act::Eof => return,
                    Act::CloseSignal(duration) => {
                        signalled = true;
                        let duration = duration.and_then(|duration| prost_types::Duration::try_from(duration).ok());
                        let signal =
                            ephemeral_stream_response::Payload::CloseStreamSignal(CloseStreamSignal { duration });
                        let _ = answers.send(Ok(EphemeralStreamResponse { payload: Some(signal) })).await;
                    }
                    Act::Ack(upto) => {
                        let _ = answers.send(Ok(ack(Some(*upto)))).await;
                    }
                    Act::AckWithoutOffset => {
                        let _ = answers.send(Ok(ack(None))).await;
                    }
                    Act::Empty => {
                        let _ = answers.send(Ok(EphemeralStreamResponse { payload: None })).await;
                    }
                    Act::Wait(gate) => gate.passed().await,
                }
            }
            frames += 1;
            let due = match script.acks {
                Acks::Each => true,
                Acks::Every(n) => frames.is_multiple_of(n),
                Acks::Never => false,
            };
            if due {
                let _ = answers.send(Ok(ack(Some(wire_offset)))).await;
            }
        }
    }
}

fn created_response(created: CreateIngestStreamResponse) -> EphemeralStreamResponse {
    EphemeralStreamResponse { payload: Some(ephemeral_stream_response::Payload::CreateStreamResponse(created)) }
}

fn ack(upto: Option<i64>) -> EphemeralStreamResponse {
    let ack = IngestRecordResponse { durability_ack_up_to_offset: upto, durability: None };
    EphemeralStreamResponse { payload: Some(ephemeral_stream_response::Payload::IngestRecordResponse(ack)) }
}

fn received(rpc: usize, message: EphemeralStreamRequest, after_signal: bool) -> Received {
    use ingest_record_batch_request::Batch;
    use ingest_record_request::Record;
    let text = |record: &Bytes| String::from_utf8_lossy(record).into_owned();
    let (offset, records, batch) = match message.payload {
        Some(ephemeral_stream_request::Payload::IngestRecord(one)) => {
            let record = match one.record.unwrap() {
                Record::JsonRecord(record) | Record::ProtoEncodedRecord(record) | Record::AvroEncodedRecord(record) => {
                    record
                }
            };
            (one.offset_id, vec![text(&record)], false)
        }
        Some(ephemeral_stream_request::Payload::IngestRecordBatch(many)) => {
            let records = match many.batch.unwrap() {
                Batch::JsonBatch(batch) => batch.records,
                Batch::ProtoEncodedBatch(batch) => batch.records,
                Batch::AvroBatch(batch) => batch.records,
            };
            (many.offset_id, records.iter().map(text).collect(), true)
        }
        other => panic!("not a frame: {other:?}"),
    };
    Received { rpc, wire_offset: offset.unwrap(), records, batch, after_signal }
}

#[tonic::async_trait]
impl Zerobus for Service {
    type EphemeralStreamStream = Answers;
    type PersistentStreamStream =
        Pin<Box<dyn tokio_stream::Stream<Item = Result<PersistentStreamResponse, Status>> + Send>>;

    async fn ephemeral_stream(
        &self,
        request: Request<Streaming<EphemeralStreamRequest>>,
    ) -> Result<Response<Answers>, Status> {
        let rpc = self.rpcs.fetch_add(1, Ordering::SeqCst);
        self.open.fetch_add(1, Ordering::SeqCst);
        let metadata = request
            .metadata()
            .clone()
            .into_headers()
            .iter()
            .map(|(key, value)| (key.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
            .collect();
        self.book.lock().metadata.push(metadata);
        self.note();
        let script = self.scripts.get(rpc).or(self.scripts.last()).cloned().unwrap_or_default();
        let landfall = script.landfall;
        let (answers, stream) = mpsc::channel(16);
        let mut requests = request.into_inner();
        if script.late_headers {
            requests.message().await?;
        }
        tokio::spawn(self.clone().serve(rpc, script, requests, answers));
        let mut response = Response::new(Box::pin(ReceiverStream::new(stream)) as Answers);
        if landfall {
            response.metadata_mut().insert("landfall-version", "0.1.0".parse().unwrap());
        }
        Ok(response)
    }

    async fn persistent_stream(
        &self,
        _: Request<Streaming<PersistentStreamRequest>>,
    ) -> Result<Response<Self::PersistentStreamStream>, Status> {
        Err(Status::unimplemented("the script has no persistent streams"))
    }

    async fn retire_stream(&self, _: Request<RetireStreamRequest>) -> Result<Response<RetireStreamResponse>, Status> {
        Err(Status::unimplemented("the script has no persistent streams"))
    }
}
