//! The request stream of one RPC: pulls frames straight from the ledger, when the transport has room for them.
//!
//! There is no queue between the ledger and the transport, so pressure shows in the ledger, where it is
//! bounded (I6), and what was handed over is known exactly. An RPC that is not the present one gets nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::Stream;
use landfall_protocol::wire::{
    AvroRecordBatch, EphemeralStreamRequest, IngestRecordBatchRequest, IngestRecordRequest, JsonRecordBatch,
    ProtoEncodedRecordBatch, RecordType, ephemeral_stream_request, ingest_record_batch_request, ingest_record_request,
};
use tokio::time::Sleep;

use crate::ledger::Frame;
use crate::shared::Shared;
use crate::sub_stream::Outgoing;

/// The request stream.
pub(crate) struct Outbound {
    shared: Arc<Shared>,
    sub_stream: u16,
    rpc: u64,
    create: Option<EphemeralStreamRequest>,
    linger: Option<Pin<Box<Sleep>>>,
}

impl Outbound {
    pub(crate) fn new(shared: Arc<Shared>, sub_stream: u16, rpc: u64, create: EphemeralStreamRequest) -> Self {
        Outbound { shared, sub_stream, rpc, create: Some(create), linger: None }
    }
}

impl Stream for Outbound {
    type Item = EphemeralStreamRequest;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(create) = self.create.take() {
            return Poll::Ready(Some(create));
        }
        let this = &mut *self;
        let shared = &this.shared;
        let patience = shared.options.coalesce_linger;
        let mut patient = !patience.is_zero();
        if let Some(linger) = &mut this.linger
            && linger.as_mut().poll(cx).is_ready()
        {
            patient = false;
        }
        loop {
            match shared.sub_stream(this.sub_stream).outgoing(this.rpc, shared.coalesce(), patient, cx) {
                Outgoing::Frame(frame) => {
                    this.linger = None;
                    return Poll::Ready(Some(message(frame, shared.limits.record_type)));
                }
                Outgoing::Linger => {
                    // The wait begins with the first record that is queued, not with each.
                    let linger = this.linger.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
                    if linger.as_mut().poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    patient = false;
                }
                Outgoing::Pending => return Poll::Pending,
                Outgoing::Done => return Poll::Ready(None),
            }
        }
    }
}

fn message(frame: Frame, record_type: RecordType) -> EphemeralStreamRequest {
    let offset_id = Some(frame.wire_offset);
    let single = match frame.calls.as_slice() {
        [call] if call.is_single() => call.records().first().cloned(),
        _ => None,
    };
    let payload = match single {
        Some(record) => {
            use ingest_record_request::Record;
            let record = match record_type {
                RecordType::Avro => Record::AvroEncodedRecord(record),
                RecordType::Proto => Record::ProtoEncodedRecord(record),
                RecordType::Json | RecordType::Unspecified => Record::JsonRecord(record),
            };
            let request = IngestRecordRequest { offset_id, record: Some(record), ..IngestRecordRequest::default() };
            ephemeral_stream_request::Payload::IngestRecord(request)
        }
        None => {
            use ingest_record_batch_request::Batch;
            let records: Vec<Bytes> = frame.calls.iter().flat_map(|call| call.records().iter().cloned()).collect();
            let batch = match record_type {
                RecordType::Avro => Batch::AvroBatch(AvroRecordBatch { records }),
                RecordType::Proto => Batch::ProtoEncodedBatch(ProtoEncodedRecordBatch { records }),
                RecordType::Json | RecordType::Unspecified => Batch::JsonBatch(JsonRecordBatch { records }),
            };
            let request =
                IngestRecordBatchRequest { offset_id, batch: Some(batch), ..IngestRecordBatchRequest::default() };
            ephemeral_stream_request::Payload::IngestRecordBatch(request)
        }
    };
    EphemeralStreamRequest { payload: Some(payload) }
}
