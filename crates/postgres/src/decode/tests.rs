//! Messages read back, and none that is cut, garbled or made up does harm.

use landfall_types::Coded;
use proptest::prelude::*;

use super::*;
use crate::Identity;

const LSN: Lsn = Lsn(0x16_b374_d848);

fn samples() -> Vec<Vec<u8>> {
    let (one, two) = (Cell::Text(b"1"), Cell::Text("zw\u{f6}lf".as_bytes()));
    vec![
        sample::begin(0x0123_4567_89ab_cdef, 1, 77),
        sample::commit(100, 180, 5),
        sample::origin(9, "elsewhere"),
        sample::relation(16_384, "public", "Orders", b'd', &[(1, "id", 23, -1), (0, "note", 25, -1)]),
        sample::relation(16_385, "", "pg_class", b'n', &[]),
        sample::type_name(16_390, "public", "mood"),
        sample::insert(16_384, &[one, two, Cell::Null, Cell::Text(b"")]),
        sample::update(16_384, None, &[one, Cell::Unchanged]),
        sample::update(16_384, Some((b'K', &[one, Cell::Null])), &[two, Cell::Unchanged]),
        sample::update(16_384, Some((b'O', &[one, two])), &[two, Cell::Unchanged]),
        sample::delete(16_384, b'K', &[one, Cell::Null]),
        sample::delete(16_384, b'O', &[one, two]),
        sample::truncate(3, &[16_384, 16_385]),
        sample::note(1, 12, "landfall.mark", b"\0\xff"),
        sample::note(0, 12, "other", b""),
        sample::stream_abort(7, 8),
    ]
}

/// Reads a message and all that lies inside it.
fn walk(bytes: &[u8]) -> Result<usize, DecodeError> {
    Ok(match decode(LSN, bytes)? {
        Message::Relation(body) => body.columns().map(|column| column.name.len()).sum(),
        Message::Insert { new, .. } => new.cells().count(),
        Message::Update { old, new, .. } => new.cells().count() + old.map_or(0, |old| old.tuple().cells().count()),
        Message::Delete { old, .. } => old.tuple().cells().count(),
        Message::Truncate(truncate) => truncate.relations().count(),
        _ => 0,
    })
}

/// Catches a field that is read from the wrong place, or lost.
#[test]
fn every_message_of_protocol_1_reads_as_it_was_sent() {
    let begin = sample::begin(0x0123_4567_89ab_cdef, 1, 77);
    let Message::Begin(read) = decode(LSN, &begin).expect("begin") else { panic!("a begin") };
    assert_eq!((read.commit_lsn, read.xid), (Lsn(0x0123_4567_89ab_cdef), Xid(77)));
    assert_eq!(read.commit_time, Timestamp(946_684_800_000_001));

    let commit = sample::commit(100, 180, -1);
    let Message::Commit(read) = decode(LSN, &commit).expect("commit") else { panic!("a commit") };
    assert_eq!((read.commit_lsn, read.end_lsn, read.commit_time), (Lsn(100), Lsn(180), Timestamp(946_684_799_999_999)));

    let origin = sample::origin(9, "elsewhere");
    assert_eq!(decode(LSN, &origin), Ok(Message::Origin { commit_lsn: Lsn(9), name: "elsewhere" }));

    let relation = sample::relation(5, "", "T", b'i', &[(1, "Id", 23, -1), (0, "n", 1700, 0x000a_0006)]);
    let Message::Relation(read) = decode(LSN, &relation).expect("relation") else { panic!("a relation") };
    assert_eq!((read.id, read.schema, read.name, read.identity), (RelationId(5), "pg_catalog", "T", Identity::Index));
    let columns: Vec<_> = read.columns().collect();
    assert_eq!(
        columns,
        [
            RelationColumn { name: "Id", is_identity: true, type_oid: 23, modifier: -1 },
            RelationColumn { name: "n", is_identity: false, type_oid: 1700, modifier: 0x000a_0006 },
        ]
    );

    let type_name = sample::type_name(6, "s", "mood");
    assert_eq!(decode(LSN, &type_name), Ok(Message::Type { oid: 6, schema: "s", name: "mood" }));

    let cells = [Cell::Text(b"a\0b"), Cell::Null, Cell::Unchanged, Cell::Text(b"")];
    let insert = sample::insert(5, &cells);
    let Message::Insert { relation, new } = decode(LSN, &insert).expect("insert") else { panic!("an insert") };
    assert_eq!((relation, new.len()), (RelationId(5), 4));
    assert!(new.cells().eq(cells));

    for (mark, is_whole) in [(b'K', false), (b'O', true)] {
        let update = sample::update(5, Some((mark, &cells[..2])), &cells);
        let Message::Update { old: Some(old), new, .. } = decode(LSN, &update).expect("update") else {
            panic!("an update with an old tuple")
        };
        assert_eq!(old.is_whole(), is_whole);
        assert!(old.tuple().cells().eq(cells[..2].iter().copied()) && new.cells().eq(cells));
        let delete = sample::delete(5, mark, &cells);
        let Message::Delete { old, .. } = decode(LSN, &delete).expect("delete") else { panic!("a delete") };
        assert!(old.is_whole() == is_whole && old.tuple().cells().eq(cells));
    }
    let update = sample::update(5, None, &cells);
    assert!(matches!(decode(LSN, &update), Ok(Message::Update { old: None, .. })));

    let truncate = sample::truncate(2, &[5, 6]);
    let Message::Truncate(read) = decode(LSN, &truncate).expect("truncate") else { panic!("a truncate") };
    assert!(read.relations().eq([RelationId(5), RelationId(6)]));
    assert_eq!((read.is_cascade, read.restarts_identity), (false, true));

    let note = sample::note(1, 12, "p", b"\0\xff");
    let Message::Note(read) = decode(LSN, &note).expect("note") else { panic!("a note") };
    assert_eq!((read.is_transactional, read.lsn, read.prefix, read.content), (true, Lsn(12), "p", &b"\0\xff"[..]));
}

/// Catches a stray abort that ends the stream: it is a message of its own, for the caller to count (P79, F-P17).
#[test]
fn a_stray_stream_abort_is_ignored() {
    let stray = sample::stream_abort(7, 8);
    let message = decode(LSN, &stray).expect("no error on protocol 1");
    assert_eq!(message, Message::StreamAbort { xid: Xid(7), subxid: Xid(8) });
    assert_eq!(message.kind(), "stream_abort");
}

/// Catches a year that wraps: times near the server's epoch, and numbers that no clock shows (F-P7).
#[test]
fn f_p7_times_count_from_2000_and_never_wrap() {
    for (sent, read) in [
        (0, 946_684_800_000_000),
        (1, 946_684_800_000_001),
        (i64::MIN, i64::MIN + 946_684_800_000_000),
        (i64::MAX, i64::MAX),
    ] {
        let bytes = sample::begin(1, sent, 1);
        assert!(matches!(decode(LSN, &bytes), Ok(Message::Begin(begin)) if begin.commit_time == Timestamp(read)));
    }
}

/// Catches a read past the end, and a message that means something else when its tail is missing or another follows.
#[test]
fn no_cut_message_and_no_message_with_more_behind_it_is_taken() {
    for message in samples() {
        walk(&message).expect("whole");
        for len in 0..message.len() {
            assert!(walk(&message[..len]).is_err(), "{len} bytes of {message:?}");
        }
        let mut longer = message.clone();
        longer.push(0);
        assert!(walk(&longer).is_err(), "a byte behind {message:?}");
    }
}

/// Catches a flag of a later server that is passed over though it may change what the message means.
#[test]
fn flags_that_are_not_known_are_refused() {
    for message in [sample::truncate(4, &[5]), sample::note(2, 1, "p", b"")] {
        assert_eq!(walk(&message).expect_err("an unknown flag").code().to_string(), "LF-PG0304");
    }
    let mut commit = sample::commit(1, 2, 3);
    commit[1] = 1;
    assert!(walk(&commit).is_err());
}

/// Catches room made by a length that was only claimed.
#[test]
fn a_claimed_length_is_not_believed() {
    let mut insert = sample::insert(5, &[Cell::Text(b"abc")]);
    let at = insert.len() - 7;
    insert[at..at + 4].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(decode(LSN, &insert).expect_err("too long").code().to_string(), "LF-PG0304");
    let mut truncate = sample::truncate(0, &[5]);
    truncate[1..5].copy_from_slice(&u32::MAX.to_be_bytes());
    assert!(decode(LSN, &truncate).is_err());
}

/// Catches a limit that is off by one, and one that is not there.
#[test]
fn columns_and_names_end_at_their_limits() {
    let cells = vec![Cell::Null; COLUMNS_MAX + 1];
    assert!(walk(&sample::insert(5, &cells[1..])).is_ok());
    let error = walk(&sample::insert(5, &cells)).expect_err("one too many");
    assert_eq!(error.code().to_string(), "LF-PG0306");
    assert!(error.to_string().contains("a column count is 1665, at most 1664 is possible"), "{error}");
    let long = "n".repeat(NAME_BYTES_MAX + 1);
    assert!(walk(&sample::relation(5, "s", &long[1..], b'd', &[(0, &long[1..], 25, -1)])).is_ok());
    for (table, column) in [(&*long, "c"), ("t", &*long)] {
        let error = walk(&sample::relation(5, "s", table, b'd', &[(0, column, 25, -1)])).expect_err("too long");
        assert_eq!(error.code().to_string(), "LF-PG0306");
    }
    let columns = vec![(0, "c", 25, -1); COLUMNS_MAX + 1];
    assert!(walk(&sample::relation(5, "s", "t", b'd', &columns)).is_err());
}

/// Catches an error that does not say where to look.
#[test]
fn an_error_names_the_message_its_relation_and_its_position() {
    let mut insert = sample::insert(16_384, &[Cell::Null]);
    *insert.last_mut().expect("a mark") = b'b';
    let error = decode(LSN, &insert).expect_err("binary");
    assert_eq!(error.code().to_string(), "LF-PG0308");
    assert_eq!(error.relation, Some(RelationId(16_384)));
    let text = error.to_string();
    assert!(text.starts_with("message `I` of 9 bytes at 16/B374D848 for relation 16384: "), "{text}");
    assert_eq!(decode(LSN, b"x").expect_err("no kind").code().to_string(), "LF-PG0305");
    assert_eq!(decode(LSN, b"S\0\0\0\x01\x01").expect_err("protocol 2").code().to_string(), "LF-PG0305");
    let empty = decode(LSN, b"").expect_err("empty");
    assert_eq!(empty.code().to_string(), "LF-PG0304");
    assert!(empty.to_string().starts_with("an empty message"), "{empty}");
}

/// Catches a message too large to read that does not say whose it is, how large, and what to raise (P4).
#[test]
fn an_oversized_message_names_its_relation_from_its_head() {
    let insert = sample::insert(16_384, &[Cell::Text(&[b'x'; 100])]);
    let error = OversizedMessage::new(LSN, &insert[..20], 70 << 20, 64 << 20);
    assert_eq!(error.code().to_string(), "LF-PG0301");
    assert_eq!(
        error.to_string(),
        "message `I` of 73400320 bytes at 16/B374D848 for relation 16384 is larger than `max_message`, which is \
         67108864 bytes: raise it"
    );
    for head in [&b""[..], b"I", b"I\0\0", b"M\0\0\0\0\0", b"\xff"] {
        assert_eq!(OversizedMessage::new(LSN, head, 1, 0).relation, None);
    }
}

/// Catches values in logs.
#[test]
fn debug_shows_no_values() {
    let secret = sample::update(5, None, &[Cell::Text(b"hunter2")]);
    let shown = format!("{:?}", decode(LSN, &secret).expect("an update"));
    assert!(!shown.contains("104") && !shown.contains("hunter"), "{shown}");
    let secret = sample::note(0, 1, "p", b"hunter2");
    assert!(!format!("{:?}", decode(LSN, &secret).expect("a note")).contains("104"));
}

proptest! {
    /// Catches a panic on bytes that no server sends (I14).
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = walk(&bytes);
    }

    /// Catches a panic on a message that was almost right, and a walk that disagrees with the counts that were read.
    #[test]
    fn garbled_messages_never_panic(
        at in 0usize..16,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut message = samples().swap_remove(at);
        for (place, byte) in changes {
            let place = place.index(message.len());
            message[place] = byte;
        }
        if let Ok(Message::Insert { new, .. }) = decode(LSN, &message) {
            prop_assert_eq!(new.cells().count(), new.len());
        }
        let _ = walk(&message);
    }
}
