use landfall_types::ByteSize;
use proptest::prelude::*;

use super::*;

fn full() -> Record {
    Record {
        payload: Bytes::from_static(b"{\"n\":1}"),
        key: Some(Bytes::from_static(b"order-7")),
        headers: vec![
            Header { name: "content-type".into(), value: Bytes::from_static(b"application/json") },
            Header { name: "content-type".into(), value: Bytes::new() },
        ],
        event_time: Some(Timestamp(-1)),
        idempotency_key: Some(Bytes::from_static(&[0, 255])),
        parent: Some(Parent { channel: ChannelId([7; 16]), partition: PartitionId(3), offset: Offset(9) }),
        trace: Some(Trace { trace_id: [1; 16], span_id: [2; 8], flags: 0xff, state: Some("a=b".into()) }),
        schema: Some(4),
        publisher: Some("grüße".into()),
    }
}

fn any_record() -> impl Strategy<Value = Record> {
    let bytes = |most: usize| prop::collection::vec(any::<u8>(), 0..most).prop_map(Bytes::from);
    let header = (".{0,20}", bytes(20)).prop_map(|(name, value)| Header { name, value });
    let trace = (any::<[u8; 16]>(), any::<[u8; 8]>(), any::<u8>(), prop::option::of(".{1,40}"))
        .prop_map(|(trace_id, span_id, flags, state)| Trace { trace_id, span_id, flags, state: state.map(Arc::from) });
    let parent = (any::<[u8; 16]>(), any::<u32>(), any::<u64>()).prop_map(|(channel, partition, offset)| Parent {
        channel: ChannelId(channel),
        partition: PartitionId(partition),
        offset: Offset(offset),
    });
    (
        bytes(300),
        prop::option::of(bytes(30)),
        prop::collection::vec(header, 0..4),
        prop::option::of(any::<i64>().prop_map(Timestamp)),
        prop::option::of(bytes(30)),
        prop::option::of(parent),
        prop::option::of(trace),
        prop::option::of(any::<u32>()),
        prop::option::of(".{1,30}".prop_map(Arc::from)),
    )
        .prop_map(|(payload, key, headers, event_time, idempotency_key, parent, trace, schema, publisher)| {
            Record { payload, key, headers, event_time, idempotency_key, parent, trace, schema, publisher }
        })
}

proptest! {
    /// Catches a field that is lost, defaulted or moved between publish and delivery (C70), and a length that is
    /// reserved wrongly.
    #[test]
    fn what_is_stored_is_what_was_published(records in prop::collection::vec(any_record(), 1..5)) {
        let rows = encode(&records);
        prop_assert_eq!(rows.len(), records.iter().map(row_len).sum::<usize>());
        prop_assert_eq!(decode(&rows).unwrap(), records);
    }

    /// Catches a short cut for bare rows that takes what has more than a payload, or reads another payload.
    #[test]
    fn a_bare_row_is_a_row_with_a_payload_alone(
        records in prop::collection::vec(prop_oneof![
            any_record(),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(Record::new),
        ], 1..5),
        at in 0usize..200,
        flip in any::<u8>(),
        cut in 0usize..400,
    ) {
        let mut bytes = encode(&records).to_vec();
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= flip;
        }
        bytes.truncate(cut);
        let mut rows = Rows::new(&bytes);
        loop {
            let (mut bare, mut any) = (rows.clone(), rows.clone());
            let (bare_payload, row) = (bare.next_bare(), any.next_row());
            if let Some(payload) = bare_payload {
                let row = row.expect("it is a row").expect("it is there");
                prop_assert_eq!((row.payload, row.key, row.schema, row.event_time), (payload, None, None, None));
                prop_assert_eq!((bare.rest(), bare.row), (any.rest(), any.row));
            }
            match row {
                Ok(Some(row)) => {
                    let is_bare = encode(&[Record::new(row.payload.to_vec())]).len() + any.rest().len() == rows.rest().len();
                    prop_assert_eq!(bare_payload.is_some(), is_bare);
                    rows = any;
                }
                Ok(None) | Err(_) => break,
            }
        }
    }

    /// Catches a length that is trusted: cut or changed rows must be an error or other records, never a panic.
    #[test]
    fn hostile_rows_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..400, at in 0usize..400, flip in any::<u8>()) {
        let _ = decode(&Bytes::from(bytes));
        let mut rows = encode(&[full(), full()]).to_vec();
        if let Some(byte) = rows.get_mut(at) {
            *byte ^= flip;
        }
        rows.truncate(cut);
        let _ = decode(&Bytes::from(rows));
    }
}

/// Catches a change of the stored form: these bytes must stay readable by every later version (C89).
#[test]
fn golden_envelope_reads() {
    let golden = include_bytes!("../../../../docs/formats/golden/envelope.rows");
    let records = vec![full(), Record::new(&b"bare"[..])];
    assert_eq!(encode(&records).as_ref(), golden.as_slice());
    assert_eq!(decode(&Bytes::from_static(golden)), Ok(records));
}

/// Writes the golden file anew: `LANDFALL_WRITE_GOLDEN=1 cargo test -p landfall-channel golden`. Without the variable it
/// checks that the file would not change.
#[test]
fn golden_envelope_is_what_this_version_writes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/formats/golden/envelope.rows");
    let rows = encode(&[full(), Record::new(&b"bare"[..])]);
    if std::env::var_os("LANDFALL_WRITE_GOLDEN").is_some() {
        std::fs::write(path, &rows).unwrap();
    }
    assert_eq!(std::fs::read(path).unwrap(), rows);
}

/// Catches a row of a newer version that is read as if its fields were ours.
#[test]
fn unknown_presence_bits_are_refused() {
    let rows = [2u32.to_le_bytes().as_slice(), &(1u16 << 12).to_le_bytes()].concat();
    assert_eq!(decode(&Bytes::from(rows)), Err(EnvelopeError::UnknownBits { row: 0, bits: 1 << 12 }));
}

/// Catches a limit that is off by one, or that is checked against another field.
#[test]
fn each_limit_is_taken_at_and_refused_above() {
    let limits = Limits { record_bytes: ByteSize::kib(1), headers: 1, header_bytes: ByteSize(10), ..Limits::default() };
    let with_payload = |len: usize| Record::new(vec![0u8; len]);
    assert!(check(0, &with_payload(1024), &limits).is_ok());
    assert!(matches!(
        check(3, &with_payload(1025), &limits),
        Err(PublishError::RecordTooLarge { index: 3, bytes: 1025, .. })
    ));
    let header = |name: usize, value: usize| Header { name: "n".repeat(name), value: vec![0u8; value].into() };
    let with_headers = |headers: Vec<Header>| Record { headers, ..Record::default() };
    assert!(check(0, &with_headers(vec![header(4, 6)]), &limits).is_ok());
    assert!(check(0, &with_headers(vec![header(4, 7)]), &limits).is_err());
    assert!(check(0, &with_headers(vec![header(1, 1), header(1, 1)]), &limits).is_err());
    let with_key = |len: usize| Record { idempotency_key: Some(vec![0u8; len].into()), ..Record::default() };
    assert!(check(0, &with_key(256), &limits).is_ok());
    assert!(check(0, &with_key(257), &limits).is_err());
    assert!(check(0, &with_key(0), &limits).is_err());
}
