//! `landfall publish`: NDJSON in, committed positions out, nothing stored twice by a retry.
//!
//! Every request carries a name of its own (`Idempotency-Key`, or a key per record where records are spread by a
//! record key), so a request whose answer was lost is sent again under the same name (I3, I4).

mod summary;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::cli::PublishArgs;
use crate::dead_letters;
use crate::endpoint::{Endpoint, EndpointError, escaped};
use crate::exit::Exit;
use crate::stdout;
use summary::{Summary, Told};

/// A request closes before this many bytes; the server's bound is 16 MiB as sent.
const REQUEST_BYTES_MAX: usize = 8 << 20;
/// The longest line; no channel takes a longer record.
const LINE_BYTES_MAX: usize = 64 << 20;
const TRIES: usize = 8;
/// How many refusals are printed one by one; the rest is counted.
const REFUSALS_SHOWN: u64 = 5;

/// Reads, publishes, sums up.
pub(crate) async fn run(args: &PublishArgs) -> anyhow::Result<Exit> {
    let endpoint = Endpoint::new(&args.server)?;
    let mut publisher = Publisher::new(endpoint.clone(), args);
    let ended = match (&args.from_dead_letters, &args.channel) {
        (Some(pipeline), _) => {
            let letters = dead_letters::Reader::open(endpoint, pipeline).await?;
            publisher.publish_letters(letters).await
        }
        (None, Some(channel)) => {
            let mut lines = Lines::open(args.file.as_deref())?;
            publisher.publish_lines(channel, &mut lines).await
        }
        (None, None) => anyhow::bail!("name a channel to publish to"),
    };
    let summary = publisher.summary;
    if args.json {
        stdout::line(serde_json::to_string(&summary)?)?;
    } else {
        print_summary(&summary)?;
    }
    // What was read before an error is accounted for all the same.
    match ended {
        Err(error) if summary.unresolved == 0 => return Err(error),
        Err(error) => eprintln!("error: {error:#}"),
        Ok(()) => {}
    }
    Ok(match (summary.unresolved, summary.not_stored) {
        (0, 0) => Exit::Ok,
        (0, _) => Exit::Failed,
        _ => Exit::Second,
    })
}

fn print_summary(summary: &Summary) -> std::io::Result<()> {
    stdout::line(format!(
        "{} records: {} committed ({} of them repeats), {} not stored, {} unresolved",
        summary.records, summary.committed, summary.duplicates, summary.not_stored, summary.unresolved
    ))?;
    for position in summary.positions.values() {
        stdout::line(format!(
            "  partition {}: {} records, offsets {} to {}",
            position.partition, position.records, position.first, position.last
        ))?;
    }
    for reference in &summary.references {
        stdout::line(format!("  unresolved: {reference}"))?;
    }
    Ok(())
}

struct Publisher {
    endpoint: Endpoint,
    batch: usize,
    key_field: Option<String>,
    idempotency_field: Option<String>,
    run: String,
    requests: u64,
    refusals: u64,
    /// The last request found nobody, through all its tries.
    is_alone: bool,
    summary: Summary,
}

impl Publisher {
    fn new(endpoint: Endpoint, args: &PublishArgs) -> Self {
        Publisher {
            endpoint,
            batch: args.batch as usize,
            key_field: args.key_field.clone(),
            idempotency_field: args.idempotency_field.clone(),
            run: uuid::Uuid::now_v7().simple().to_string(),
            requests: 0,
            refusals: 0,
            is_alone: false,
            summary: Summary::default(),
        }
    }

    async fn publish_letters(&mut self, mut letters: dead_letters::Reader) -> anyhow::Result<()> {
        let path = format!("/v1/channels/{}/records", escaped(letters.source_channel()));
        while let Some(lines) = letters.next_page().await? {
            self.send_envelopes(&path, &lines).await;
        }
        Ok(())
    }

    async fn publish_lines(&mut self, channel: &str, lines: &mut Lines) -> anyhow::Result<()> {
        let path = format!("/v1/channels/{}/records", escaped(channel));
        let named_each = self.key_field.is_some() || self.idempotency_field.is_some();
        loop {
            let batch = lines.next_batch(self.batch)?;
            if batch.is_empty() {
                return Ok(());
            }
            if named_each {
                let first = self.summary.records;
                let mut envelopes = Vec::with_capacity(batch.len());
                for (at, line) in batch.iter().enumerate() {
                    match self.envelope(line, first + at as u64) {
                        Ok(envelope) => envelopes.push(envelope),
                        // A bad line does not stop its neighbours.
                        Err(error) => {
                            self.show(&error);
                            self.summary.records += 1;
                            self.summary.not_stored += 1;
                        }
                    }
                }
                self.send_envelopes(&path, &envelopes).await;
            } else {
                let records = batch.len() as u64;
                let mut body = Vec::with_capacity(batch.iter().map(|line| line.len() + 1).sum());
                for line in &batch {
                    body.extend_from_slice(line);
                    body.push(b'\n');
                }
                self.requests += 1;
                let name = format!("{}-{}", self.run, self.requests);
                let headers = [("content-type", "application/x-ndjson"), ("idempotency-key", name.as_str())];
                self.send(&path, &headers, Bytes::from(body), records).await;
            }
        }
    }

    /// A record with its keys beside it, so that each can be named although they spread over partitions.
    fn envelope(&self, line: &[u8], number: u64) -> anyhow::Result<String> {
        let at = number + 1;
        let parsed: Value = serde_json::from_slice(line).map_err(|error| {
            anyhow::anyhow!("line {at} is not JSON at column {}, and a key is asked of it", error.column())
        })?;
        let payload: &RawValue = serde_json::from_slice(line)?;
        let key = self.key_field.as_deref().map(|pointer| key_text(&parsed, pointer, at)).transpose()?;
        let idempotency_key = match &self.idempotency_field {
            Some(pointer) => key_text(&parsed, pointer, at)?,
            None => format!("{}-{number}", self.run),
        };
        #[derive(Serialize)]
        struct Envelope<'a> {
            payload: &'a RawValue,
            #[serde(skip_serializing_if = "Option::is_none")]
            key: Option<String>,
            idempotency_key: String,
        }
        Ok(serde_json::to_string(&Envelope { payload, key, idempotency_key })?)
    }

    async fn send_envelopes(&mut self, path: &str, envelopes: &[String]) {
        if envelopes.is_empty() {
            return;
        }
        let body = envelopes.join("\n");
        let headers = [("content-type", "application/vnd.landfall.records+json")];
        self.send(path, &headers, Bytes::from(body), envelopes.len() as u64).await;
    }

    /// Prints a refusal, unless there were many.
    fn show(&mut self, refusal: &impl std::fmt::Display) {
        self.refusals += 1;
        if self.refusals <= REFUSALS_SHOWN {
            eprintln!("{refusal}");
        }
    }

    /// One request until it has an outcome, or tries run out. It keeps its name through all tries. Where the one before
    /// found nobody, it is tried once.
    async fn send(&mut self, path: &str, headers: &[(&str, &str)], body: Bytes, records: u64) {
        self.summary.records += records;
        let mut told = Told::default();
        let mut delays = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(100))
            .with_max_delay(Duration::from_secs(5))
            .with_jitter()
            .with_max_times(if self.is_alone { 0 } else { TRIES - 1 })
            .build();
        loop {
            let error = match self.endpoint.post(path, headers, body.clone()).await {
                Ok(answer) => {
                    self.is_alone = false;
                    self.summary.count_committed(&answer.body, records);
                    return;
                }
                Err(error) => error,
            };
            told.hear(&error);
            let again = match &error {
                EndpointError::Unreachable { .. } => true,
                EndpointError::Refused { status, .. } => {
                    *status == StatusCode::SERVICE_UNAVAILABLE || *status == StatusCode::TOO_MANY_REQUESTS
                }
                EndpointError::Address { .. } => false,
            };
            match delays.next().filter(|_| again) {
                Some(delay) => tokio::time::sleep(delay).await,
                None => {
                    self.is_alone = matches!(error, EndpointError::Unreachable { .. });
                    self.show(&error);
                    self.summary.count_refused(told, records);
                    return;
                }
            }
        }
    }
}

fn key_text(record: &Value, pointer: &str, line: u64) -> anyhow::Result<String> {
    match record.pointer(pointer) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(value @ (Value::Number(_) | Value::Bool(_))) => Ok(value.to_string()),
        _ => anyhow::bail!("line {line} has no text, number or boolean at `{pointer}`"),
    }
}

/// Non-empty lines, each bounded.
struct Lines {
    /// What is read, for errors.
    from: String,
    reader: BufReader<Box<dyn Read + Send>>,
    kept: Option<Vec<u8>>,
}

impl Lines {
    /// Of a file, or of stdin.
    fn open(file: Option<&Path>) -> anyhow::Result<Self> {
        let Some(file) = file else { return Ok(Lines::new("stdin".to_owned(), Box::new(std::io::stdin()))) };
        let from = format!("`{}`", file.display());
        match std::fs::File::open(file) {
            Ok(opened) => Ok(Lines::new(from, Box::new(opened))),
            Err(error) => anyhow::bail!("cannot read {from}: {error}"),
        }
    }

    fn new(from: String, reader: Box<dyn Read + Send>) -> Self {
        Lines { from, reader: BufReader::with_capacity(1 << 16, reader), kept: None }
    }

    fn next_line(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        if let Some(line) = self.kept.take() {
            return Ok(Some(line));
        }
        loop {
            let mut line = Vec::new();
            let read = (&mut self.reader).take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line);
            let read = read.map_err(|error| anyhow::anyhow!("cannot read {} on: {error}", self.from))?;
            if read == 0 {
                return Ok(None);
            }
            if line.len() > LINE_BYTES_MAX {
                anyhow::bail!("a line is longer than {LINE_BYTES_MAX} B, more than any channel takes for a record");
            }
            while line.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
                line.pop();
            }
            if !line.is_empty() {
                return Ok(Some(line));
            }
        }
    }

    fn next_batch(&mut self, most: usize) -> anyhow::Result<Vec<Vec<u8>>> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < most {
            let Some(line) = self.next_line()? else { break };
            if !batch.is_empty() && bytes + line.len() > REQUEST_BYTES_MAX {
                self.kept = Some(line);
                break;
            }
            bytes += line.len();
            batch.push(line);
        }
        Ok(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &'static str) -> Lines {
        Lines::new("a text".to_owned(), Box::new(text.as_bytes()))
    }

    /// Would catch an empty line that becomes a record, a last line without a newline that is lost, or a batch that
    /// is one record too long.
    #[test]
    fn every_non_empty_line_is_in_exactly_one_batch() {
        let mut lines = lines("{\"a\":1}\r\n\n{\"a\":2}\n   x\n{\"a\":3}");
        assert_eq!(lines.next_batch(2).expect("read"), [b"{\"a\":1}".to_vec(), b"{\"a\":2}".to_vec()]);
        assert_eq!(lines.next_batch(2).expect("read"), [b"   x".to_vec(), b"{\"a\":3}".to_vec()]);
        assert!(lines.next_batch(2).expect("read").is_empty());
    }

    /// Would catch keys that differ between retries, or a payload that is not sent byte for byte.
    #[test]
    fn an_envelope_keeps_the_payload_and_names_the_record() {
        let args = PublishArgs {
            channel: Some("c".into()),
            file: None,
            batch: 10,
            key_field: Some("/customer/id".into()),
            idempotency_field: None,
            from_dead_letters: None,
            json: false,
            server: crate::cli::ServerArgs { server: "http://127.0.0.1:1".into(), token: None },
        };
        let publisher = Publisher::new(Endpoint::new(&args.server).expect("an address"), &args);
        let line = br#"{"customer": {"id": 7},  "n":1.50}"#;
        let envelope = publisher.envelope(line, 3).expect("an envelope");
        assert!(envelope.contains(r#""payload":{"customer": {"id": 7},  "n":1.50}"#), "{envelope}");
        assert!(envelope.contains(r#""key":"7""#) && envelope.contains(&format!("{}-3", publisher.run)), "{envelope}");
        assert_eq!(envelope, publisher.envelope(line, 3).expect("an envelope"));
        assert!(publisher.envelope(b"{", 0).is_err());
        assert!(publisher.envelope(b"{\"customer\":{}}", 0).is_err());
    }
}
