//! Calls: records encoded once, checked, immutable.
//!
//! A [`PreparedBatch`] is one call. Cloning it counts a reference; from here on a payload is copied once more
//! at most, into the transport's buffer. A bad record is found here, before it could take room or an id (I13).

use std::sync::Arc;

use bytes::Bytes;
use landfall_protocol::wire::RecordType;

use crate::error::{Load, PrepareError};

/// What each record costs beside its payload, in bytes of the budget.
pub(crate) const RECORD_OVERHEAD: u64 = 64;

/// The form of a stream's records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordForm {
    /// One JSON text each.
    Json,
    /// One encoded protobuf message each; the descriptor is an encoded, self-contained `DescriptorProto`.
    Proto {
        /// The descriptor.
        descriptor: Bytes,
    },
    /// One bare Avro datum each; the schema is an Avro record schema.
    Avro {
        /// The schema, as JSON.
        schema: Arc<str>,
    },
}

impl RecordForm {
    pub(crate) fn record_type(&self) -> RecordType {
        match self {
            RecordForm::Json => RecordType::Json,
            RecordForm::Proto { .. } => RecordType::Proto,
            RecordForm::Avro { .. } => RecordType::Avro,
        }
    }
}

/// Something that becomes the bytes of one record, in the stream's own form.
pub trait Encode {
    /// The record's bytes, or what is wrong with it.
    fn encode(self) -> Result<Bytes, String>;
}

impl Encode for Bytes {
    fn encode(self) -> Result<Bytes, String> {
        Ok(self)
    }
}

impl Encode for Vec<u8> {
    fn encode(self) -> Result<Bytes, String> {
        Ok(self.into())
    }
}

impl Encode for &[u8] {
    fn encode(self) -> Result<Bytes, String> {
        Ok(Bytes::copy_from_slice(self))
    }
}

impl Encode for String {
    fn encode(self) -> Result<Bytes, String> {
        Ok(self.into())
    }
}

impl Encode for &str {
    fn encode(self) -> Result<Bytes, String> {
        Ok(Bytes::copy_from_slice(self.as_bytes()))
    }
}

/// A protobuf message as a record.
#[derive(Clone, Debug)]
pub struct Proto<M>(pub M);

impl<M: prost::Message> Encode for Proto<M> {
    fn encode(self) -> Result<Bytes, String> {
        Ok(self.0.encode_to_vec().into())
    }
}

/// One call, encoded and checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedBatch {
    body: Body,
    bytes: u64,
    record_type: RecordType,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Body {
    One(Bytes),
    Many(Arc<[Bytes]>),
}

impl PreparedBatch {
    /// Its records, in order.
    pub fn records(&self) -> &[Bytes] {
        match &self.body {
            Body::One(record) => std::slice::from_ref(record),
            Body::Many(records) => records,
        }
    }

    /// How many records it has; at least one.
    pub fn record_count(&self) -> u64 {
        self.records().len() as u64
    }

    /// Payload bytes.
    pub fn payload_bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it was prepared as a single record, which may share a frame with others. A batch never does:
    /// it is stored all or none.
    pub(crate) fn is_single(&self) -> bool {
        matches!(self.body, Body::One(_))
    }

    pub(crate) fn load(&self) -> Load {
        let records = self.record_count();
        Load { records, bytes: self.bytes + records * RECORD_OVERHEAD }
    }
}

/// What [`PreparedBatch`]es are checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallLimits {
    pub(crate) record_type: RecordType,
    pub(crate) max_bytes: u64,
    pub(crate) max_records: u64,
}

impl CallLimits {
    pub(crate) fn prepare<R: Encode>(&self, record: R) -> Result<PreparedBatch, PrepareError> {
        let record = self.encode(0, record)?;
        let bytes = record.len() as u64;
        self.check_bytes(bytes)?;
        Ok(PreparedBatch { body: Body::One(record), bytes, record_type: self.record_type })
    }

    pub(crate) fn prepare_batch<R: Encode>(
        &self,
        records: impl IntoIterator<Item = R>,
    ) -> Result<Option<PreparedBatch>, PrepareError> {
        let mut encoded = Vec::new();
        let mut bytes = 0u64;
        for (index, record) in records.into_iter().enumerate() {
            let record = self.encode(index, record)?;
            bytes += record.len() as u64;
            // Checked as it grows, so that an endless iterator ends at the limit.
            self.check_bytes(bytes)?;
            encoded.push(record);
            let count = encoded.len() as u64;
            if count > self.max_records {
                return Err(PrepareError::CallTooLarge {
                    unit: "records",
                    size: count,
                    limit: self.max_records,
                    option: "max_call_records",
                });
            }
        }
        if encoded.is_empty() {
            return Ok(None);
        }
        Ok(Some(PreparedBatch { body: Body::Many(encoded.into()), bytes, record_type: self.record_type }))
    }

    /// A call that was prepared elsewhere, perhaps under other limits.
    pub(crate) fn check(&self, call: &PreparedBatch) -> Result<(), PrepareError> {
        if call.record_type != self.record_type {
            let reason = format!("it was prepared as {:?}, the stream takes {:?}", call.record_type, self.record_type);
            return Err(PrepareError::InvalidRecord { index: 0, reason: reason.into() });
        }
        self.check_bytes(call.bytes)?;
        if call.record_count() > self.max_records {
            return Err(PrepareError::CallTooLarge {
                unit: "records",
                size: call.record_count(),
                limit: self.max_records,
                option: "max_call_records",
            });
        }
        Ok(())
    }

    fn encode<R: Encode>(&self, index: usize, record: R) -> Result<Bytes, PrepareError> {
        let invalid = |reason: String| PrepareError::InvalidRecord { index, reason: reason.into() };
        let record = record.encode().map_err(invalid)?;
        if self.record_type == RecordType::Json {
            if record.is_empty() {
                return Err(invalid("an empty text is not JSON".to_owned()));
            }
            if let Err(error) = std::str::from_utf8(&record) {
                return Err(invalid(format!("JSON must be UTF-8; byte {} is not", error.valid_up_to())));
            }
        }
        Ok(record)
    }

    fn check_bytes(&self, bytes: u64) -> Result<(), PrepareError> {
        if bytes > self.max_bytes {
            return Err(PrepareError::CallTooLarge {
                unit: "bytes",
                size: bytes,
                limit: self.max_bytes,
                option: "max_call_bytes",
            });
        }
        Ok(())
    }
}

/// A call, or a record that becomes one.
pub trait IntoCall: sealed::Sealed {
    #[doc(hidden)]
    fn into_call(self, limits: &Limits<'_>) -> Result<PreparedBatch, PrepareError>;
}

/// The stream's limits, as [`IntoCall`] sees them.
#[derive(Debug)]
pub struct Limits<'a>(pub(crate) &'a CallLimits);

mod sealed {
    pub trait Sealed {}
    impl<R: super::Encode> Sealed for R {}
    impl Sealed for super::PreparedBatch {}
}

impl<R: Encode> IntoCall for R {
    fn into_call(self, limits: &Limits<'_>) -> Result<PreparedBatch, PrepareError> {
        limits.0.prepare(self)
    }
}

impl IntoCall for PreparedBatch {
    fn into_call(self, limits: &Limits<'_>) -> Result<PreparedBatch, PrepareError> {
        limits.0.check(&self)?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: CallLimits = CallLimits { record_type: RecordType::Json, max_bytes: 10, max_records: 3 };

    /// Would catch a limit that is checked after all records were taken in: the iterator here never ends.
    #[test]
    fn an_endless_batch_stops_at_the_limit() {
        let records = LIMITS.prepare_batch(std::iter::repeat("1"));
        assert!(matches!(records, Err(PrepareError::CallTooLarge { unit: "records", size: 4, .. })));
        let bytes = LIMITS.prepare_batch(std::iter::repeat("123456"));
        assert!(matches!(bytes, Err(PrepareError::CallTooLarge { unit: "bytes", size: 12, limit: 10, .. })));
    }

    /// Would catch bytes that the wire calls text and are not.
    #[test]
    fn json_is_text() {
        assert!(matches!(LIMITS.prepare(vec![b'"', 0xff, b'"']), Err(PrepareError::InvalidRecord { index: 0, .. })));
        assert!(LIMITS.prepare("").is_err());
        assert_eq!(LIMITS.prepare_batch(Vec::<String>::new()).ok(), Some(None));
    }

    /// Would catch a call of one stream that gets into one of another form.
    #[test]
    fn a_call_of_another_form_is_refused() {
        let other = CallLimits { record_type: RecordType::Proto, ..LIMITS };
        let call = LIMITS.prepare("1").unwrap();
        assert!(matches!(other.check(&call), Err(PrepareError::InvalidRecord { .. })));
        assert_eq!(call.load(), Load { records: 1, bytes: 65 });
    }
}
