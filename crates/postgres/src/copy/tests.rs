//! Copied lines give the values that were copied, however they are cut into chunks.

use proptest::prelude::*;

use super::*;

type Row = Vec<Option<Vec<u8>>>;

fn rows_of(chunks: &[&[u8]]) -> Result<Vec<Row>, CopyLineError> {
    let mut lines = CopyLines::new(1 << 20);
    let mut rows = Vec::new();
    for chunk in chunks {
        lines.feed(Bytes::copy_from_slice(chunk));
        while let Some(line) = lines.next_line()? {
            assert_eq!(line.len(), line.cells().count());
            rows.push(
                line.cells()
                    .map(|cell| match cell {
                        Cell::Null => None,
                        Cell::Text(text) => Some(text.to_vec()),
                        Cell::Unchanged => panic!("a copy leaves nothing out"),
                    })
                    .collect(),
            );
        }
    }
    assert_eq!(lines.finish()?, rows.len() as u64);
    Ok(rows)
}

fn row(texts: &[Option<&str>]) -> Row {
    texts.iter().map(|text| text.map(|text| text.as_bytes().to_vec())).collect()
}

/// Writes a row as the server does.
fn written(row: &[Option<Vec<u8>>]) -> Vec<u8> {
    let mut line = Vec::new();
    for (at, value) in row.iter().enumerate() {
        if at > 0 {
            line.push(b'\t');
        }
        let Some(value) = value else {
            line.extend_from_slice(b"\\N");
            continue;
        };
        for byte in value {
            match byte {
                0x08 => line.extend_from_slice(b"\\b"),
                0x0c => line.extend_from_slice(b"\\f"),
                b'\n' => line.extend_from_slice(b"\\n"),
                b'\r' => line.extend_from_slice(b"\\r"),
                b'\t' => line.extend_from_slice(b"\\t"),
                0x0b => line.extend_from_slice(b"\\v"),
                b'\\' => line.extend_from_slice(b"\\\\"),
                _ => line.push(*byte),
            }
        }
    }
    line.push(b'\n');
    line
}

/// Catches an escape that is read as another byte, and a NULL that is taken for a text or the other way round (FX-3).
#[test]
fn escapes_and_nulls_read_as_the_server_means_them() {
    let text = b"1\ta\\tb\\nc\\\\x\t\\N\t\t\\\\N\n\\b\\f\\r\\v\t\\101\\7\\x41\\x4z\t\\q\\x\t\\0610\tend\\\n";
    let rows = rows_of(&[text]).expect("lines");
    assert_eq!(rows[0], row(&[Some("1"), Some("a\tb\nc\\x"), None, Some(""), Some("\\N")]));
    assert_eq!(rows[1], row(&[Some("\x08\x0c\r\x0b"), Some("A\x07A\x04z"), Some("qx"), Some("10"), Some("end\\")]));
}

/// Catches a line without columns that is lost.
#[test]
fn an_empty_line_is_a_row() {
    assert_eq!(rows_of(&[b"\n\n"]).expect("lines"), vec![row(&[Some("")]), row(&[Some("")])]);
}

/// Catches a tail that is dropped: what does not end is an error (I12).
#[test]
fn a_copy_that_ends_inside_a_line_is_void() {
    assert_eq!(rows_of(&[b"1\n2"]), Err(CopyLineError::CutShort { line: 2, len: 1 }));
    assert_eq!(rows_of(&[b"1\n", b"2", b"3"]), Err(CopyLineError::CutShort { line: 2, len: 2 }));
}

/// Catches a buffer that grows with a line that does not end, in one chunk or in many (I14).
#[test]
fn a_line_and_its_columns_are_bounded() {
    let mut lines = CopyLines::new(8);
    lines.feed(Bytes::from_static(b"12345678\n"));
    assert!(lines.next_line().expect("eight").is_some());
    lines.feed(Bytes::from_static(b"123456789\n"));
    assert_eq!(lines.next_line().err(), Some(CopyLineError::TooLong { line: 2, limit: 8 }));
    let mut lines = CopyLines::new(8);
    for _ in 0..2 {
        lines.feed(Bytes::from_static(b"1234"));
        assert!(lines.next_line().expect("no end yet").is_none());
    }
    lines.feed(Bytes::from_static(b"5"));
    assert!(lines.next_line().is_err());
    let wide = "\t".repeat(COLUMNS_MAX) + "\n";
    assert_eq!(rows_of(&[wide.as_bytes()]), Err(CopyLineError::TooManyColumns { line: 1 }));
    assert!(rows_of(&[&wide.as_bytes()[1..]]).is_ok());
}

/// Catches a chunk that is lost because the one before it was not read to its end.
#[test]
fn a_chunk_fed_early_waits_behind_the_one_before() {
    let mut lines = CopyLines::new(100);
    lines.feed(Bytes::from_static(b"1\n2"));
    lines.feed(Bytes::from_static(b"3\n"));
    let mut seen = Vec::new();
    while let Some(line) = lines.next_line().expect("lines") {
        seen.extend(line.cells().map(|cell| format!("{cell:?}")));
    }
    assert_eq!(seen, [format!("{:?}", Cell::Text(b"1")), format!("{:?}", Cell::Text(b"23"))]);
}

proptest! {
    /// Catches a value that depends on where a chunk ends, inside an escape above all.
    #[test]
    fn rows_come_back_whatever_the_chunks(
        rows in proptest::collection::vec(
            proptest::collection::vec(proptest::option::of(proptest::collection::vec(
                prop_oneof![Just(b'\\'), Just(b'\t'), Just(b'\n'), Just(b'N'), Just(b'1'), any::<u8>()], 0..8)), 1..5),
            0..6),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let text: Vec<u8> = rows.iter().flat_map(|row| written(row)).collect();
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        places.extend([0, text.len()]);
        places.sort_unstable();
        let chunks: Vec<&[u8]> = places.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        prop_assert_eq!(rows_of(&chunks), Ok(rows));
    }

    /// Catches a panic on what no server sends (I14).
    #[test]
    fn arbitrary_chunks_never_panic(
        chunks in proptest::collection::vec(proptest::collection::vec(
            prop_oneof![Just(b'\\'), Just(b'\t'), Just(b'\n'), Just(b'x'), any::<u8>()], 0..20), 0..6),
    ) {
        let chunks: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
        let _ = rows_of(&chunks);
    }
}
