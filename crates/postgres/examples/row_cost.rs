//! What a row costs from the message's bytes to the batch, and from a copied line: ns per row of ten columns.
//!
//! `CARGO_PROFILE_DEV_OPT_LEVEL=3 cargo run -p landfall-postgres --example row_cost`

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use landfall_postgres::{
    ColumnShape, CopyLines, Identity, Lsn, Message, PgType, RelationId, RowOptions, RowPlan, Stamp, TableName,
    TableRows, TableShape, Xid, decode,
};
use landfall_types::{Offset, PartitionId, Timestamp};

const ROWS: usize = 20_000;
const ROUNDS: usize = 15;

fn columns() -> Vec<(&'static str, PgType)> {
    vec![
        ("id", PgType::Int8),
        ("customer", PgType::Int4),
        ("status", PgType::Enum),
        ("amount", PgType::Numeric(Some((12, 2)))),
        ("rate", PgType::Float8),
        ("placed", PgType::TimestampTz),
        ("due", PgType::Date),
        ("is_paid", PgType::Bool),
        ("note", PgType::Text),
        ("token", PgType::Uuid),
    ]
}

fn texts(row: usize) -> Vec<String> {
    vec![
        (1_000_000 + row).to_string(),
        (row % 5_000).to_string(),
        ["open", "shipped", "closed"][row % 3].to_owned(),
        format!("{}.{:02}", row * 7, row % 100),
        format!("0.{row}"),
        format!("2024-02-29 12:{:02}:{:02}.{:06}+00", row / 60 % 60, row % 60, row),
        format!("2024-03-{:02}", row % 28 + 1),
        "t".to_owned(),
        format!("order {row}, left at the door of the second house"),
        format!("a0eebc99-9c0b-4ef8-bb6d-6bb9{row:08x}"),
    ]
}

fn insert(texts: &[String]) -> Result<Vec<u8>> {
    let mut message = vec![b'I', 0, 0, 0, 1, b'N'];
    message.extend_from_slice(&u16::try_from(texts.len())?.to_be_bytes());
    for text in texts {
        message.push(b't');
        message.extend_from_slice(&u32::try_from(text.len())?.to_be_bytes());
        message.extend_from_slice(text.as_bytes());
    }
    Ok(message)
}

fn best(mut round: impl FnMut() -> Result<()>) -> Result<Duration> {
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        round()?;
        best = best.min(start.elapsed());
    }
    Ok(best)
}

fn main() -> Result<()> {
    let shape = TableShape {
        relation: RelationId(1),
        name: TableName { schema: "public".into(), table: "orders".into() },
        identity: Identity::Default,
        columns: columns()
            .into_iter()
            .map(|(name, kind)| ColumnShape {
                name: name.into(),
                attnum: 0,
                type_oid: 0,
                modifier: -1,
                kind,
                is_not_null: name == "id",
                is_key: name == "id",
                is_generated: false,
                is_toastable: false,
            })
            .collect(),
    };
    let mut rows = TableRows::new(Arc::new(RowPlan::new(Arc::new(shape), RowOptions::default())?));
    let all: Vec<Vec<String>> = (0..ROWS).map(texts).collect();
    let messages = all.iter().map(|texts| insert(texts)).collect::<Result<Vec<_>>>()?;
    let copy: Bytes = all.iter().map(|texts| texts.join("\t") + "\n").collect::<String>().into();
    let bytes: usize = messages.iter().map(Vec::len).sum();
    let stamp = Stamp { commit_lsn: Lsn(1), seq: 1, commit_time: Timestamp(0), xid: Some(Xid(1)) };

    let decoded = best(|| {
        for message in &messages {
            let Message::Insert { new, .. } = decode(Lsn(1), message)? else { bail!("no insert") };
            black_box(new);
        }
        Ok(())
    })?;
    let streamed = best(|| {
        for message in &messages {
            let Message::Insert { new, .. } = decode(Lsn(1), message)? else { bail!("no insert") };
            if let Err(refused) = rows.insert(stamp, new) {
                bail!("{refused:?}");
            }
        }
        black_box(rows.finish(PartitionId(0), Offset(0))?);
        Ok(())
    })?;
    let copied = best(|| {
        let mut lines = CopyLines::new(1 << 20);
        // As the server sends them: a chunk of many lines.
        for chunk in copy.chunks(8192) {
            lines.feed(copy.slice_ref(chunk));
            while let Some(line) = lines.next_line()? {
                if let Err(refused) = rows.copied(stamp, &line) {
                    bail!("{refused:?}");
                }
            }
        }
        black_box(rows.finish(PartitionId(0), Offset(0)).context("a batch")?);
        Ok(())
    })?;
    let each = |time: Duration| time.as_nanos() as f64 / ROWS as f64;
    println!("{} bytes per message", bytes / ROWS);
    println!("decode alone        {:7.0} ns per row", each(decoded));
    println!("message to batch    {:7.0} ns per row", each(streamed));
    println!("copied line to batch{:7.0} ns per row", each(copied));
    Ok(())
}
