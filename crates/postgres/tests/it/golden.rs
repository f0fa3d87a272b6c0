//! What real servers sent, as another reader of the protocol understood it (`tests/golden/README.md`).

use std::path::Path;

use landfall_postgres::{Lsn, Message, Relations, decode};

#[path = "../../examples/golden/dump.rs"]
pub(crate) mod dump;

/// What a server of one major version sent, and another reader's text of it.
struct Recording {
    major: u32,
    messages: Vec<(Lsn, Vec<u8>)>,
    text: String,
}

/// The recordings, by major version.
fn recordings() -> Vec<Recording> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut found: Vec<_> = std::fs::read_dir(&folder)
        .expect("tests/golden")
        .filter_map(|entry| {
            let path = entry.expect("an entry").path();
            let name = path.file_name()?.to_str()?;
            let major = name.strip_prefix("pgoutput-")?.strip_suffix(".hex")?.parse().ok()?;
            let messages = std::fs::read_to_string(&path).expect("a recording");
            let messages = messages.lines().map(|line| dump::parse_line(line).expect("a line")).collect();
            let text = std::fs::read_to_string(path.with_extension("txt")).expect("its text");
            Some(Recording { major, messages, text })
        })
        .collect();
    found.sort_by_key(|recording| recording.major);
    assert!(!found.is_empty(), "no recording in {}", folder.display());
    found
}

/// Catches a message that we read otherwise than another reader does.
#[test]
fn recorded_messages_read_as_another_reader_reads_them() {
    for Recording { major, messages, text } in recordings() {
        assert_eq!(messages.len(), text.lines().count());
        for (line, ((lsn, bytes), wanted)) in messages.iter().zip(text.lines()).enumerate() {
            let read = dump::dump(*lsn, bytes).unwrap_or_else(|error| panic!("{major}, line {}: {error}", line + 1));
            assert_eq!(read, wanted, "{major}, line {}", line + 1);
        }
    }
}

/// Catches a recording that says nothing of some kind of message.
#[test]
fn every_kind_of_message_is_recorded() {
    for Recording { major, messages, .. } in recordings() {
        for kind in
            ["begin", "commit", "origin", "relation", "type", "insert", "update", "delete", "truncate", "message"]
        {
            let is_there =
                messages.iter().any(|(lsn, bytes)| decode(*lsn, bytes).is_ok_and(|read| read.kind() == kind));
            assert!(is_there, "{kind} of {major}");
        }
    }
}

/// Catches a message that is understood though its end is missing.
#[test]
fn no_recorded_message_is_taken_without_its_end() {
    for Recording { messages, .. } in recordings() {
        for (lsn, bytes) in &messages {
            // The long ones differ by the length of a text only.
            let lens = (0..bytes.len().min(300)).chain([bytes.len() - 1]);
            for len in lens.filter(|len| *len < bytes.len()) {
                assert!(decode(*lsn, &bytes[..len]).is_err());
            }
        }
    }
}

/// Catches a row that comes before its relation, or with another number of columns: each must fit the last Relation
/// message before it, over every change of shape.
#[test]
fn recorded_rows_fit_the_relation_before_them() {
    for Recording { major, messages, .. } in recordings() {
        let mut relations = Relations::new();
        let mut rows = 0;
        for (lsn, bytes) in &messages {
            let (relation, lens) = match decode(*lsn, bytes).expect("a message") {
                Message::Relation(body) => {
                    relations.take(*lsn, &body).expect("room");
                    continue;
                }
                Message::Insert { relation, new } => (relation, vec![new.len()]),
                Message::Update { relation, old, new } => {
                    (relation, old.map(|old| old.tuple().len()).into_iter().chain([new.len()]).collect())
                }
                Message::Delete { relation, old } => (relation, vec![old.tuple().len()]),
                _ => continue,
            };
            let known = relations.get(*lsn, relation).unwrap_or_else(|error| panic!("{major}: {error}"));
            assert!(lens.iter().all(|len| *len == known.columns.len()), "{major}: {} at {lsn}", known.name);
            rows += 1;
        }
        assert!(rows > 20, "{major}: {rows} rows");
    }
}
