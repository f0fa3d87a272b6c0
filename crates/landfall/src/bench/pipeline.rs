//! Channel → SQL → Delta against the same Arrow batches written straight by the Parquet writer.
//!
//! The limit gets what the query makes of the records, already decoded and computed, and has only to write it: same
//! schema and properties, one row group, one file, synced. It is one thread, and tries a dictionary for each column; ours
//! has all cores, leaves out dictionaries of columns that only rise, starts from bytes in the channel and ends with a
//! commit. Afterwards both are read back and a sum of checksums over their rows is compared.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, RecordBatch};
use landfall_engine::contract::{Decoded, RowErrors, is_hidden, payload_schema};
use landfall_types::Place;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use tokio::runtime::Runtime;

use super::{Line, Workspace};
use crate::assembly::{self, ConfigText, PlanOptions, Running};
use crate::cli::BenchArgs;
use crate::{config, storefront};

const CHANNEL: &str = "bench.events";
const PIPELINE: &str = "bench";
const SEED: u64 = 11;
const LAND_WITHIN: Duration = Duration::from_secs(300);

pub(super) fn run(args: &BenchArgs, workspace: &Workspace, runtime: &Runtime) -> anyhow::Result<bool> {
    let (records, rounds) = if args.quick { (5_000, 1) } else { (1_000_000, 5) };
    let batches = computed(workspace, records)?;
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let expected = content(&batches)?;
    let (mut pairs, mut verified) = (Vec::new(), true);
    for round in 0..=rounds {
        let straight = workspace.path.join(format!("straight-{round}.parquet"));
        let took = write_straight(&batches, &straight)?;
        verified &= content(&read_parquet(&straight)?)? == expected;
        std::fs::remove_file(&straight)?;
        let folder = workspace.folder(&format!("round-{round}"))?;
        let (landed, early, table) = runtime.block_on(land(&folder, records))?;
        let files = runtime.block_on(landfall_delta::table_files(&table))?;
        let mut found = Content::default();
        for file in &files.files {
            found.add(content(&read_parquet(&file.path)?)?);
        }
        verified &= found == expected;
        std::fs::remove_dir_all(&folder)?;
        if round > 0 {
            pairs.push(((rows as f64 - early as f64) / landed.as_secs_f64(), rows as f64 / took.as_secs_f64()));
        }
    }
    let case = format!("storefront {records} records");
    let line = Line::of("pipeline", case, "rows/s", "parquet writer, same batches, synced", &pairs, verified);
    line.print(args.json)?;
    Ok(verified)
}

fn configuration(folder: &Path) -> String {
    let quoted = |path: std::path::PathBuf| serde_json::to_string(&path.to_string_lossy()).unwrap_or_default();
    format!(
        r#"
data_dir: {data}
server: {{ listen: "127.0.0.1:0" }}
channels: {{ {CHANNEL}: {{ validate: "off" }} }}
pipelines:
  {PIPELINE}:
    from: {{ channel: {CHANNEL} }}
    decode:
      json:
        schema:
          event_id: string not null
          type: string not null
          order_id: bigint not null
          customer: "struct<id: bigint, country: string>"
          amount: "decimal(12,2)"
          currency: string
          placed_at: timestamp
    sql: |
      SELECT event_id, type, order_id, customer.id AS customer_id, customer.country, amount, currency, placed_at
      FROM input
    to: {{ delta: {{ path: {table}, commit_every: 10s }} }}
"#,
        data = quoted(folder.join("data")),
        table = quoted(folder.join("table")),
    )
}

/// Whole records only: the limit writes what lands, and a dead letter does not.
fn write_record(n: u64, out: &mut String) -> bool {
    storefront::write_record(SEED, n, out);
    storefront::fault(n).is_none()
}

/// What the query makes of all records, by the very chain that the pipeline uses.
fn computed(workspace: &Workspace, records: u64) -> anyhow::Result<Vec<RecordBatch>> {
    const ROWS: u64 = 8_192;
    let text = configuration(&workspace.path);
    let (config, _) = config::read(&text, &|_| None);
    let config = config.context("the bench's configuration reads")?;
    let pipeline = config.pipelines.first().context("the bench has a pipeline")?;
    let factory = assembly::chain_of(pipeline, &text).map_err(|finding| anyhow::anyhow!(finding.text))?;
    let mut parts = factory()?;
    let mut schema = parts.decoder.plan(&parts.wanted)?;
    for transform in &parts.transforms {
        schema = transform.plan(&schema)?;
    }
    let mut batches = Vec::new();
    let mut bad = RowErrors::default();
    let mut record = String::new();
    for first in (0..records).step_by(ROWS as usize) {
        let mut payloads = arrow_array::builder::BinaryViewBuilder::new();
        for n in first..records.min(first + ROWS) {
            if write_record(n, &mut record) {
                payloads.append_value(&record);
            }
        }
        let input = as_source_batch(payloads.finish())?;
        let Decoded::Rows(mut rows) = parts.decoder.decode(&input, &mut bad)? else {
            anyhow::bail!("JSON decodes at once");
        };
        for transform in &mut parts.transforms {
            rows = transform.apply(rows, &mut bad)?;
        }
        ensure!(bad.is_empty(), "a whole record was refused: {:?}", bad.as_slice().first());
        let shown: Vec<usize> =
            (0..rows.num_columns()).filter(|at| !is_hidden(rows.schema().field(*at).name())).collect();
        batches.push(rows.project(&shown)?);
    }
    Ok(batches)
}

fn as_source_batch(payloads: arrow_array::BinaryViewArray) -> anyhow::Result<RecordBatch> {
    let rows = payloads.len();
    let schema = payload_schema();
    let columns: Vec<arrow_array::ArrayRef> = schema
        .fields()
        .iter()
        .enumerate()
        .map(|(at, field)| -> anyhow::Result<arrow_array::ArrayRef> {
            Ok(match at {
                0 => Arc::new(payloads.clone()),
                2 => {
                    let times = arrow_array::TimestampMicrosecondArray::from(vec![0; rows]);
                    Arc::new(times.with_timezone("UTC"))
                }
                3 => empty_lists(field.data_type(), rows)?,
                4 => Arc::new(arrow_array::UInt32Array::from(vec![0; rows])),
                5 => Arc::new(arrow_array::UInt64Array::from_iter_values(0..rows as u64)),
                _ => arrow_array::new_null_array(field.data_type(), rows),
            })
        })
        .collect::<anyhow::Result<_>>()?;
    Ok(RecordBatch::try_new(schema, columns)?)
}

/// Headers: a list without items for each row.
fn empty_lists(of: &arrow_schema::DataType, rows: usize) -> anyhow::Result<arrow_array::ArrayRef> {
    let arrow_schema::DataType::List(item) = of else { anyhow::bail!("headers are a list") };
    let offsets = arrow::buffer::OffsetBuffer::new_zeroed(rows);
    let values = arrow_array::new_empty_array(item.data_type());
    Ok(Arc::new(arrow_array::ListArray::try_new(Arc::clone(item), offsets, values, None)?))
}

fn properties() -> anyhow::Result<WriterProperties> {
    Ok(WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?)).build())
}

fn write_straight(batches: &[RecordBatch], path: &Path) -> anyhow::Result<Duration> {
    let first = batches.first().context("there is at least one batch")?;
    let start = Instant::now();
    let mut writer = ArrowWriter::try_new(std::fs::File::create(path)?, first.schema(), Some(properties()?))?;
    for batch in batches {
        writer.write(batch)?;
    }
    let file = writer.into_inner()?;
    file.sync_all()?;
    Ok(start.elapsed())
}

fn read_parquet(path: &Path) -> anyhow::Result<Vec<RecordBatch>> {
    let reader =
        ParquetRecordBatchReaderBuilder::try_new(std::fs::File::open(path)?)?.with_batch_size(8_192).build()?;
    Ok(reader.collect::<Result<Vec<_>, _>>()?)
}

/// A count and a sum of row checksums: equal for the same rows in any order, since partitions and files have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Content {
    rows: u64,
    sum: u64,
}

impl Content {
    fn add(&mut self, other: Content) {
        self.rows += other.rows;
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

fn content(batches: &[RecordBatch]) -> anyhow::Result<Content> {
    let mut content = Content::default();
    for batch in batches {
        let column = |name: &str| batch.column_by_name(name).with_context(|| format!("the column `{name}` is there"));
        let text = |name: &str| -> anyhow::Result<_> { column(name)?.as_string_opt::<i32>().context("text") };
        let (ids, types, currencies, countries) =
            (text("event_id")?, text("type")?, text("currency")?, text("country")?);
        let orders = column("order_id")?.as_primitive::<Int64Type>();
        let customers = column("customer_id")?.as_primitive::<Int64Type>();
        let amounts = column("amount")?.as_primitive::<arrow_array::types::Decimal128Type>();
        let times = column("placed_at")?.as_primitive::<TimestampMicrosecondType>();
        for row in 0..batch.num_rows() {
            let mut hash = crc32c::crc32c(ids.value(row).as_bytes());
            for part in [types.value(row), currencies.value(row), countries.value(row)] {
                hash = crc32c::crc32c_append(hash, part.as_bytes());
            }
            for number in [orders.value(row), customers.value(row), times.value(row)] {
                hash = crc32c::crc32c_append(hash, &number.to_le_bytes());
            }
            hash = crc32c::crc32c_append(hash, &amounts.value(row).to_le_bytes());
            content.rows += 1;
            // Spread over 64 bits, so that two wrong rows do not cancel out easily.
            content.sum = content.sum.wrapping_add(u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
    }
    Ok(content)
}

/// Fills the channel, then times the pipeline until the commit of its last row: how long, how many rows were read before
/// the clock started, and where the table is.
async fn land(folder: &Path, records: u64) -> anyhow::Result<(Duration, u64, std::path::PathBuf)> {
    let text = configuration(folder);
    let (config, findings) = config::read(&text, &|_| None);
    let config = config.with_context(|| format!("{findings:?}"))?;
    let plan = assembly::plan(&config, &text, PlanOptions { online: false }).await?;
    ensure!(plan.findings.is_empty(), "{:?}", plan.findings);
    let filling = config::Config { pipelines: Vec::new(), ..config.clone() };
    let config_text = ConfigText { file: "bench".to_owned(), text };
    let filled = Running::start(filling, config_text.clone(), None).await?;
    fill(&filled, records).await?;
    filled.shutdown().await;
    // Opening the channels again is recovery, not throughput: the clock starts once the pipeline does.
    let running = Running::start(config, config_text, None).await?;
    let start = Instant::now();
    let pipeline = running.pipeline(PIPELINE).context("the bench's pipeline is started")?;
    // What its threads read before the clock started does not count.
    let early = pipeline.balance("delta").map_or(0, |balance| balance.rows_in);
    let channel = running.channel(CHANNEL).context("the bench's channel is open")?;
    let ends = channel.positions().into_iter().map(|(partition, offset)| (partition, Place::of(offset))).collect();
    let until = Instant::now() + LAND_WITHIN;
    // Once everything is read, the last commit is asked for instead of waited for. How often that is looked at is part of
    // what is measured, so often; asked once, since each wish seals what is open then.
    let (total, mut is_asked) = (channel.positions().values().map(|offset| offset.get()).sum::<u64>(), false);
    while !pipeline.wait_until(&ends, Duration::from_millis(2)).await {
        if !is_asked && pipeline.balance("delta").map_or(0, |balance| balance.rows_in) >= total {
            pipeline.flush();
            is_asked = true;
        }
        ensure!(Instant::now() < until, "not landed within {LAND_WITHIN:?}: {:?}", pipeline.status().why);
    }
    let took = start.elapsed();
    running.shutdown().await;
    Ok((took, early, folder.join("table")))
}

async fn fill(running: &Running, records: u64) -> anyhow::Result<()> {
    use landfall_channel::{PublishOptions, PublishOutcome, Record};
    const BATCH: u64 = 5_000;
    let channel = running.channel(CHANNEL).context("the bench's channel is open")?;
    let mut text = String::new();
    for first in (0..records).step_by(BATCH as usize) {
        let mut batch = Vec::new();
        for n in first..records.min(first + BATCH) {
            if write_record(n, &mut text) {
                batch.push(Record::new(bytes::Bytes::copy_from_slice(text.as_bytes())));
            }
        }
        let outcome = channel.publish_batch(batch, PublishOptions::default()).await;
        ensure!(matches!(outcome, PublishOutcome::Committed(_)), "filling the channel: {outcome:?}");
    }
    Ok(())
}
