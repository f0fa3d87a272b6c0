//! `landfall tail`: records of a channel, or the dead letters of a pipeline, as lines.

use std::io::{IsTerminal, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;

use crate::cli::{TailArgs, TailFormat};
use crate::dead_letters::{self, PartitionBounds, ReadRecord};
use crate::endpoint::{Endpoint, EndpointError, escaped};
use crate::exit::Exit;
use crate::stdout;

/// The most records asked for at once.
const PAGE_RECORDS_MAX: u64 = 1_000;
/// How long the server holds an empty answer while following.
const FOLLOW_WAIT_SECONDS: u64 = 20;

/// Reads and prints.
pub(crate) async fn run(args: &TailArgs) -> anyhow::Result<Exit> {
    let endpoint = Endpoint::new(&args.server)?;
    let channel = if args.dead_letters {
        dead_letters::channels_of(&endpoint, &args.channel).await?.dead_letters
    } else {
        args.channel.clone()
    };
    let mut partitions = dead_letters::partitions(&endpoint, &channel).await?;
    if let Some(wanted) = args.partition {
        let count = partitions.len();
        partitions.retain(|entry| entry.partition == wanted);
        anyhow::ensure!(
            !partitions.is_empty(),
            "channel `{channel}` has {count} partitions, from 0 on; {wanted} is none"
        );
    }
    let starts =
        partitions.iter().map(|entry| start(args, entry, partitions.len())).collect::<anyhow::Result<Vec<_>>>()?;
    let printer = Printer { format: args.output, dead_letters: args.dead_letters };
    if args.output == TailFormat::Table {
        printer.print_heading()?;
    }
    let path = format!("/v1/channels/{}/records", escaped(&channel));
    if args.follow {
        follow(&endpoint, &path, &partitions, &starts, printer).await?;
    } else if !bounded(&endpoint, &path, &partitions, &starts, printer, args).await? {
        eprintln!("landfall: {}", nothing_shown(&channel, &partitions, &starts));
    }
    Ok(Exit::Ok)
}

/// Why no record was printed: silence would look like an empty channel.
fn nothing_shown(channel: &str, partitions: &[PartitionBounds], starts: &[u64]) -> String {
    let past = partitions.iter().zip(starts).find(|(entry, start)| **start > entry.tail);
    if let Some((PartitionBounds { partition, log_start, tail }, start)) = past {
        return format!(
            "nothing to show: partition {partition} of {channel} holds offsets {log_start} to {tail} (exclusive), and {start} lies past them"
        );
    }
    if partitions.iter().all(|entry| entry.log_start >= entry.tail) {
        return format!("nothing to show: {channel} holds no records");
    }
    format!("nothing to show: no record of {channel} lies at or after the start; --follow waits for the next ones")
}

fn start(args: &TailArgs, entry: &PartitionBounds, partitions: usize) -> anyhow::Result<u64> {
    match args.from.as_deref() {
        None => Ok(entry.tail.saturating_sub(args.count).max(entry.log_start)),
        Some("earliest") => Ok(entry.log_start),
        Some("latest") => Ok(entry.tail),
        Some(text) => {
            let offset = text
                .parse()
                .map_err(|_| anyhow::anyhow!("--from takes an offset, `earliest` or `latest`, not `{text}`"))?;
            anyhow::ensure!(partitions == 1, "--from with an offset needs --partition: the channel has {partitions}");
            Ok(offset)
        }
    }
}

/// At most `count` records; without `--from` the newest of what each partition's last ones are. True: there were some.
async fn bounded(
    endpoint: &Endpoint,
    path: &str,
    partitions: &[PartitionBounds],
    starts: &[u64],
    printer: Printer,
    args: &TailArgs,
) -> anyhow::Result<bool> {
    if args.from.is_some() {
        let mut left = args.count;
        for (entry, start) in partitions.iter().zip(starts) {
            let mut from = *start;
            while left > 0 && from < entry.tail {
                let page = read(endpoint, path, entry.partition, from, left.min(entry.tail - from), 0).await?;
                if page.lines.is_empty() {
                    break;
                }
                for line in &page.lines {
                    printer.print(line)?;
                }
                left -= (page.lines.len() as u64).min(left);
                from = page.next;
            }
        }
        return Ok(left < args.count);
    }
    let mut newest: Vec<(String, Vec<u8>)> = Vec::new();
    for (entry, start) in partitions.iter().zip(starts) {
        let mut from = *start;
        while from < entry.tail {
            let page = read(endpoint, path, entry.partition, from, entry.tail - from, 0).await?;
            if page.lines.is_empty() {
                break;
            }
            from = page.next;
            for line in page.lines {
                let record: ReadRecord<'_> = serde_json::from_slice(&line)?;
                newest.push((record.timestamp, line));
            }
        }
    }
    // Stable: within a partition offset order stays, whatever the publishers' clocks say of equal times.
    newest.sort_by(|left, right| left.0.cmp(&right.0));
    let skip = newest.len().saturating_sub(usize::try_from(args.count).unwrap_or(usize::MAX));
    for (_, line) in newest.iter().skip(skip) {
        printer.print(line)?;
    }
    Ok(!newest.is_empty())
}

async fn follow(
    endpoint: &Endpoint,
    path: &str,
    partitions: &[PartitionBounds],
    starts: &[u64],
    printer: Printer,
) -> anyhow::Result<()> {
    let mut tasks = tokio::task::JoinSet::new();
    for (entry, start) in partitions.iter().zip(starts) {
        let (endpoint, path, partition, mut from) = (endpoint.clone(), path.to_owned(), entry.partition, *start);
        tasks.spawn(async move {
            loop {
                let page = read(&endpoint, &path, partition, from, PAGE_RECORDS_MAX, FOLLOW_WAIT_SECONDS).await?;
                for line in &page.lines {
                    printer.print(line)?;
                }
                from = page.next;
            }
        });
    }
    let ended = tokio::select! {
        signal = tokio::signal::ctrl_c() => signal.map_err(anyhow::Error::from),
        Some(ended) = tasks.join_next() => match ended {
            Ok(result) => result,
            Err(error) => Err(error.into()),
        },
    };
    tasks.abort_all();
    ended
}

struct Page {
    lines: Vec<Vec<u8>>,
    next: u64,
}

async fn read(
    endpoint: &Endpoint,
    path: &str,
    partition: u32,
    from: u64,
    limit: u64,
    wait_seconds: u64,
) -> Result<Page, EndpointError> {
    let limit = limit.clamp(1, PAGE_RECORDS_MAX);
    let answer =
        endpoint.get(&format!("{path}?partition={partition}&from={from}&limit={limit}&wait={wait_seconds}s")).await?;
    let lines: Vec<Vec<u8>> =
        answer.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect();
    let next = answer.headers.get("landfall-next-offset").and_then(|value| value.to_str().ok()?.parse().ok());
    let next = next.unwrap_or(from + lines.len() as u64);
    Ok(Page { lines, next })
}

#[derive(Clone, Copy)]
struct Printer {
    format: TailFormat,
    dead_letters: bool,
}

impl Printer {
    fn print_heading(self) -> std::io::Result<()> {
        let bold = if std::io::stdout().is_terminal() { ("\u{1b}[1m", "\u{1b}[0m") } else { ("", "") };
        let last = if self.dead_letters { "WHY" } else { "PAYLOAD" };
        stdout::line(format!(
            "{}{:>4} {:>12}  {:<27}  {:<20}  {last}{}",
            bold.0, "PART", "OFFSET", "TIMESTAMP", "KEY", bold.1
        ))
    }

    /// One record, one line of stdout, written at once so that followers of several partitions do not mix.
    fn print(self, line: &[u8]) -> anyhow::Result<()> {
        let mut out = match self.format {
            TailFormat::Json if !self.dead_letters => line.to_vec(),
            TailFormat::Json => with_dead_letter(line)?,
            TailFormat::Raw => payload(&serde_json::from_slice(line)?)?,
            TailFormat::Table => self.row(&serde_json::from_slice(line)?)?.into_bytes(),
        };
        out.push(b'\n');
        std::io::stdout().lock().write_all(&out)?;
        Ok(())
    }

    fn row(self, record: &ReadRecord<'_>) -> anyhow::Result<String> {
        let key = record.key.clone().or_else(|| record.key_base64.clone()).unwrap_or_default();
        let last = if self.dead_letters {
            let fields = dead_letters::fields(&record.headers);
            let field = |name: &str| fields.get(name).copied().unwrap_or_default();
            format!("{} {}: {}", field("stage"), field("code"), field("text"))
        } else {
            String::from_utf8_lossy(&payload(record)?).into_owned()
        };
        let cut = |text: &str, most: usize| -> String {
            text.chars().take(most).map(|c| if c.is_control() { ' ' } else { c }).collect()
        };
        Ok(format!(
            "{:>4} {:>12}  {:<27}  {:<20}  {}",
            record.partition,
            record.offset,
            cut(&record.timestamp, 27),
            cut(&key, 20),
            cut(&last, 120)
        ))
    }
}

fn payload(record: &ReadRecord<'_>) -> anyhow::Result<Vec<u8>> {
    match (record.payload, &record.payload_base64) {
        (Some(raw), _) => Ok(raw.get().as_bytes().to_vec()),
        (None, Some(text)) => Ok(BASE64.decode(text)?),
        (None, None) => Ok(Vec::new()),
    }
}

/// The line with `dead_letter` added at its end; the rest stays byte for byte.
fn with_dead_letter(line: &[u8]) -> anyhow::Result<Vec<u8>> {
    let record: ReadRecord<'_> = serde_json::from_slice(line)?;
    let fields = dead_letters::fields(&record.headers);
    let fields: serde_json::Map<String, Value> = fields
        .into_iter()
        .map(|(name, text)| {
            let number = matches!(name, "partition" | "offset").then(|| text.parse::<u64>().ok()).flatten();
            (name.to_owned(), number.map_or_else(|| Value::from(text), Value::from))
        })
        .collect();
    let mut out = line.to_vec();
    anyhow::ensure!(out.pop() == Some(b'}'), "the server's answer is not an object a line");
    out.extend_from_slice(b",\"dead_letter\":");
    serde_json::to_writer(&mut out, &fields)?;
    out.push(b'}');
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a start past the end that looks like an empty channel.
    #[test]
    fn nothing_to_show_has_its_reason() {
        let bounds = |log_start, tail| [PartitionBounds { partition: 2, log_start, tail }];
        let past = nothing_shown("c", &bounds(3, 10), &[11]);
        assert!(past.contains("partition 2") && past.contains("3 to 10") && past.contains("11"), "{past}");
        assert!(nothing_shown("c", &bounds(10, 10), &[10]).contains("holds no records"));
        assert!(nothing_shown("c", &bounds(3, 10), &[10]).contains("--follow"));
    }

    /// Would catch a letter whose own object is changed, or whose cause cannot be read by a program.
    #[test]
    fn a_dead_letter_gains_its_cause_and_keeps_its_bytes() {
        let line = br#"{"partition":0,"offset":4,"timestamp":"2026-01-01T00:00:00Z","headers":[{"name":"trace","value":"x"},{"name":"landfall-code","value":"LF-DC0001"},{"name":"landfall-offset","value":"17"}],"payload_base64":"eyJh"}"#;
        let out = with_dead_letter(line).expect("an object");
        assert!(out.starts_with(&line[..line.len() - 1]));
        let value: Value = serde_json::from_slice(&out).expect("JSON");
        assert_eq!(value["dead_letter"], serde_json::json!({"code": "LF-DC0001", "offset": 17}));
        assert_eq!(payload(&serde_json::from_slice(&out).expect("a record")).expect("bytes"), b"{\"a");
    }
}
