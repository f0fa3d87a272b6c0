//! The destination of each captured table in a sink: a place of its own in a lake, or a channel for all.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use landfall_channel::{ChangesOf, Channel, ChannelSink, ChannelSinkOptions, Channels};
use landfall_delta::{DeltaOptions, DeltaSink};
use landfall_engine::TableSinkFactory;
use landfall_engine::contract::{PlanError, Sink, TableSpec};
use parking_lot::Mutex;

use crate::config::{Finding, SinkConfig, TABLE_PLACE, ToChannelConfig, codes};

/// Each table's own place in a Delta sink. A table that was dropped and made again under its name goes on in the place of the
/// first: two that live never have one name, which the capture sees to.
pub(super) fn lakes(options: DeltaOptions) -> TableSinkFactory {
    let taken: Mutex<BTreeMap<PathBuf, Arc<str>>> = Mutex::default();
    Arc::new(move |spec: &TableSpec| {
        let path = place_of(&options.path, &spec.name);
        let owner = Arc::clone(taken.lock().entry(path.clone()).or_insert_with(|| Arc::clone(&spec.name)));
        if owner != spec.name {
            let text = format!(
                "`{}` is the place of another table already: table {} needs a `path` with `{TABLE_PLACE}`, or a pipeline \
                 of its own",
                path.display(),
                spec.name
            );
            return Err(PlanError::new(codes::CONTRADICTION, text));
        }
        let sink = DeltaSink::new(DeltaOptions { path, ..options.clone() })?;
        Ok(Arc::new(sink) as Arc<dyn Sink>)
    })
}

/// The changes of every table in one channel, or, with the table's name in that of the channel, of each in its own.
pub(super) fn changes(
    sink: &SinkConfig,
    to: &ToChannelConfig,
    channels: &Channels,
) -> Result<TableSinkFactory, Finding> {
    let open: BTreeMap<String, Channel> =
        channels.list().into_iter().map(|channel| (channel.name().to_owned(), channel)).collect();
    if !to.name.contains(TABLE_PLACE) && !open.contains_key(&to.name) {
        let text = format!("the channel `{}` is not open", to.name);
        return Err(Finding::error(codes::UNDEFINED, Some(sink.mark), text));
    }
    let (name, to) = (sink.name.clone(), to.clone());
    Ok(Arc::new(move |spec: &TableSpec| {
        let wanted = to.name.replace(TABLE_PLACE, &word_of(&spec.name));
        let channel = open.get(&wanted).cloned().ok_or_else(|| {
            let text = format!(
                "the changes of table {} go to the channel `{wanted}`, which `channels` does not define: add \
                 `{wanted}: {{}}` there, or name one channel for all tables",
                spec.name
            );
            PlanError::new(codes::UNDEFINED, text)
        })?;
        let options = ChannelSinkOptions {
            name: name.clone(),
            payload_column: to.payload.clone(),
            key_column: to.key.clone(),
            changes_of: Some(ChangesOf { table: Arc::clone(&spec.name), key: Arc::clone(&spec.key) }),
        };
        Ok(Arc::new(ChannelSink::new(channel, options)) as Arc<dyn Sink>)
    }))
}

/// The path with the table's name put in. A name is whatever its owner called it: one that is no plain word is spelled so
/// that it stays one part of the path, and two names never meet in one place.
pub(crate) fn place_of(template: &Path, table: &str) -> PathBuf {
    PathBuf::from(template.to_string_lossy().replace(TABLE_PLACE, &word_of(table)))
}

fn word_of(table: &str) -> String {
    let mut word = String::with_capacity(table.len());
    for byte in table.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.') {
            word.push(char::from(byte));
        } else {
            word.push_str(&format!("~{byte:02x}"));
        }
    }
    // A table has a schema, so the word is neither empty nor made of points alone but for the oddest names.
    if word.bytes().all(|byte| byte == b'.') {
        word = word.replace('.', "~2e");
    }
    word
}

#[cfg(test)]
mod tests {
    use arrow_schema::Schema;
    use landfall_engine::contract::TableId;

    use super::*;

    fn spec(id: u32, name: &str) -> TableSpec {
        TableSpec {
            id: TableId(id),
            name: name.into(),
            schema: Arc::new(Schema::empty()),
            shape: 1,
            key: Arc::from([]),
        }
    }

    /// Catches a table whose name leads out of the lake, or into another table's place.
    #[test]
    fn a_table_s_name_stays_one_part_of_the_path() {
        let at = |name: &str| place_of(Path::new("lake/{table}/rows"), name);
        assert_eq!(at("public.orders"), Path::new("lake/public.orders/rows"));
        assert_eq!(at("public.../../etc"), Path::new("lake/public...~2f..~2fetc/rows"));
        assert_eq!(at("..."), Path::new("lake/~2e~2e~2e/rows"));
        let names = ["public.a b", "public.a~20b", "public.a%20b", "public.ä", "public.A", "public.a"];
        let places: std::collections::BTreeSet<_> = names.iter().map(|name| at(name)).collect();
        assert_eq!(places.len(), names.len(), "{places:?}");
    }

    /// Catches two tables whose rows would be mixed in one place; a table that comes back finds its own.
    #[test]
    fn one_place_is_one_table_s() {
        let dir = tempfile::tempdir().expect("a directory");
        let make = lakes(DeltaOptions::new(dir.path().join("orders")));
        make(&spec(1, "public.orders")).expect("the first table");
        make(&spec(1, "public.orders")).expect("the same again");
        let Err(error) = make(&spec(2, "public.lines")) else { panic!("two tables in one place") };
        assert!(error.text.contains("{table}"), "{}", error.text);
        let make = lakes(DeltaOptions::new(dir.path().join("{table}")));
        make(&spec(1, "public.orders")).expect("the first table");
        make(&spec(2, "public.orders")).expect("the one that was made again under its name");
    }
}
