//! The log on disk as a [`PartitionStore`].

use std::path::PathBuf;
use std::sync::Arc;

use landfall_log::{
    Append, Budget, CloseError, Evidence, Intent, Located, LogIdentity, LogOptions, LogReader, LogWriter, OpenError,
    Page, PartitionLog, Preparer, ReadError, SegmentSummary, Settled, StoreLimits, TrimError, UncertainCause, Unit,
    Vfs, VisibleTail,
};
use landfall_types::{Durability, Epoch, Offset, TicketNumber, Timestamp};

use super::{OpenedStore, PartitionReader, PartitionStore, PartitionWriter, Upkeep};

/// One partition's directory.
#[derive(Debug)]
pub(crate) struct LogStore {
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) dir: PathBuf,
    pub(crate) identity: LogIdentity,
    pub(crate) options: LogOptions,
}

impl PartitionStore for LogStore {
    fn open(&self) -> Result<OpenedStore, OpenError> {
        let opened = PartitionLog::open(Arc::clone(&self.vfs), &self.dir, self.identity, self.options.clone())?;
        Ok(OpenedStore {
            writer: Box::new(opened.writer),
            reader: Box::new(opened.reader),
            upkeep: Box::new(opened.preparer),
            tail: opened.tail,
            last_append_time: opened.last_append_time,
            adopted_units: opened.adopted_units,
            torn_bytes: opened.torn_bytes,
            damaged: opened.damaged,
            window_start: opened.window_start,
            tags: opened.tags,
            sequences: opened.sequences,
            strays: opened
                .strays
                .iter()
                .map(|stray| format!("{} ({:?})", stray.name.display(), stray.reason))
                .collect(),
        })
    }
}

impl PartitionWriter for LogWriter {
    fn epoch(&self) -> Epoch {
        LogWriter::epoch(self)
    }
    fn tail(&self) -> Offset {
        LogWriter::tail(self)
    }
    fn class(&self) -> Durability {
        LogWriter::class(self)
    }
    fn limits(&self) -> StoreLimits {
        LogWriter::limits(self)
    }
    fn has_spare(&self) -> bool {
        LogWriter::has_spare(self)
    }
    fn evidence(&self, units: Vec<Unit>) -> Evidence {
        LogWriter::evidence(self, units)
    }
    fn append(&mut self, expected: Offset, units: &[Unit]) -> Append {
        LogWriter::append(self, expected, units)
    }
    fn share(&mut self, units: &mut [Unit]) {
        LogWriter::share(self, units);
    }
    fn settle(&mut self, evidence: &Evidence, intent: Intent) -> Settled {
        LogWriter::settle(self, evidence, intent)
    }
    fn sync(&mut self) -> Result<(), UncertainCause> {
        LogWriter::sync(self)
    }
    fn mark(&mut self) -> Result<(), UncertainCause> {
        LogWriter::mark(self)
    }
    fn trim(&mut self, before: Offset) -> Result<Offset, TrimError> {
        LogWriter::trim(self, before)
    }
    fn segments(&self) -> Vec<SegmentSummary> {
        LogWriter::segments(self)
    }
    fn close(self: Box<Self>) -> Result<(), CloseError> {
        LogWriter::close(*self)
    }
}

impl PartitionReader for LogReader {
    fn log_start(&self) -> Offset {
        LogReader::log_start(self)
    }
    fn read(&self, from: Offset, upto: VisibleTail, budget: Budget, page: &mut Page) -> Result<(), ReadError> {
        LogReader::read(self, from, upto, budget, page)
    }
    fn at_time(&self, at: Timestamp, upto: VisibleTail) -> Result<Offset, ReadError> {
        LogReader::at_time(self, at, upto)
    }
    fn origin_epoch(&self, offset: Offset, upto: VisibleTail) -> Result<Epoch, ReadError> {
        LogReader::origin_epoch(self, offset, upto)
    }
    fn locate(
        &self,
        first: Offset,
        epoch: Epoch,
        ticket: TicketNumber,
        upto: VisibleTail,
    ) -> Result<Located, ReadError> {
        LogReader::locate(self, first, epoch, ticket, upto)
    }
}

impl Upkeep for Preparer {
    fn is_due(&self) -> bool {
        Preparer::is_due(self)
    }
    fn run(&self) -> std::io::Result<()> {
        Preparer::prepare(self)
    }
}
