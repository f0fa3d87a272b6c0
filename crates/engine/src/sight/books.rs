//! The books of a pipeline and of each table: settled source rows by class, and the balance that they make with what is
//! still in flight (I8, E113).

use serde::Serialize;

use crate::contract::TableId;
use crate::core::Counted;

/// One sink's totals in source rows (E113). `in = delivered + filtered + dead_lettered + in_flight`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Balance {
    /// Polled and not returned.
    #[serde(rename = "in")]
    pub rows_in: u64,
    /// Durable in the sink (those that it had before included).
    pub delivered: u64,
    /// Dropped by the query, a filter, or the policy `skip`.
    pub filtered: u64,
    /// Set aside.
    pub dead_lettered: u64,
    /// Not settled yet.
    pub in_flight: u64,
    /// Given back by a restart and read again; not part of `in`.
    pub returned: u64,
    /// Whether it balances, and every settled batch's books agreed.
    pub ok: bool,
}

/// Totals of settled source rows of one sink.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) delivered: u64,
    pub(crate) replayed: u64,
    pub(crate) filtered: u64,
    pub(crate) skipped: u64,
    pub(crate) dead: u64,
    pub(crate) returned: u64,
    pub(crate) off: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, other: &Totals) {
        self.delivered += other.delivered;
        self.replayed += other.replayed;
        self.filtered += other.filtered;
        self.skipped += other.skipped;
        self.dead += other.dead;
        self.returned += other.returned;
        self.off += other.off;
    }
}

/// The books of a pipeline, or of one table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Books {
    /// Per sink, 0 for the chain.
    pub(crate) totals: Vec<Totals>,
    /// Rows issued in rings that are closed.
    pub(crate) closed_issued: u64,
}

impl Books {
    /// Makes room for so many sinks.
    pub(crate) fn fit(&mut self, sinks: usize) {
        if self.totals.len() != sinks + 1 {
            self.totals.resize(sinks + 1, Totals::default());
        }
    }

    /// A ring is closed: what it issued and did not settle is returned.
    pub(crate) fn close(&mut self, issued: u64, harvested: &[u64]) {
        self.closed_issued += issued;
        for (totals, harvested) in self.totals.iter_mut().zip(harvested) {
            totals.returned += issued.saturating_sub(*harvested);
        }
    }

    pub(super) fn balance<'a>(&self, live: impl Iterator<Item = &'a Live>, sink: usize) -> Balance {
        let totals = self.totals.get(sink + 1).copied().unwrap_or_default();
        // Issued is read once per ring, so a snapshot balances at every instant.
        let (mut issued, mut in_flight) = (self.closed_issued, 0);
        for live in live {
            let rows = live.counted.rows_issued();
            issued += rows;
            in_flight += rows.saturating_sub(live.harvested.get(sink + 1).copied().unwrap_or_default());
        }
        let rows_in = issued.saturating_sub(totals.returned);
        let delivered = totals.delivered + totals.replayed;
        let filtered = totals.filtered + totals.skipped;
        let ok = rows_in == delivered + filtered + totals.dead + in_flight && totals.off == 0;
        Balance { rows_in, delivered, filtered, dead_lettered: totals.dead, in_flight, returned: totals.returned, ok }
    }
}

/// A partition whose ring is live.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) table: Option<TableId>,
    pub(crate) counted: Counted,
    /// Per sink, source rows harvested.
    pub(crate) harvested: Vec<u64>,
}
