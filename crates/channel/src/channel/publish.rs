//! The publisher's side (C20): everything up to the queue, and the three ways to publish (C4, C5).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use landfall_log::{Tag, UnitBody};
use landfall_types::{Coded, PartitionId};

use super::{Channel, ChannelShared, PublishOptions};
use crate::chain::{ChainId, Link};
use crate::committer::Committer;
use crate::envelope;
use crate::error::PublishError;
use crate::intake::{HandedOver, Handover, Queued, QueuedUnit, Tried};
use crate::keys::{Gate, KeyName, Sequences, tag};
use crate::options::{DEADLINE, DEADLINE_DEFAULT};
use crate::outcome::{Committed, PublishOutcome, Timings};
use crate::partition::Partition;
use crate::record::Record;
use crate::threads::wake_all;
use crate::ticket::{Joined, Pending, Settlement, Ticket, TicketCell, split};

/// Encoding above this goes to the blocking pool, so that no async worker is held up (C20).
const ENCODE_INLINE_BYTES: usize = 256 << 10;

/// One call's options, resolved.
struct Call<'a> {
    options: &'a PublishOptions,
    deadline: Duration,
    admitted: Instant,
}

impl Call<'_> {
    fn new(options: &PublishOptions) -> Call<'_> {
        let deadline = options.deadline.unwrap_or(DEADLINE_DEFAULT).clamp(DEADLINE.0, DEADLINE.1);
        Call { options, deadline, admitted: Instant::now() }
    }

    fn expires(&self) -> Instant {
        self.admitted + self.deadline
    }
}

/// How far a publish has come without waiting for anything.
enum Step<'a> {
    /// It is queued, or its outcome is known.
    Ticket(Ticket),
    /// Not taken; the records go back.
    Refused(PublishError, Option<Link>),
    /// There is too much to encode here.
    Large(&'a Arc<Partition>, Option<Link>),
    /// There was no room at the first look.
    Waiting(&'a Arc<Partition>, Tried, Ticket),
}

/// What a unit is made of.
struct Encoded {
    body: UnitBody,
    key: Option<(KeyName, u64)>,
    sequences: Option<Sequences>,
}

/// A unit that is ready to be queued, and the ticket that waits for it.
struct Prepared {
    queued: QueuedUnit,
    ticket: Ticket,
}

impl Channel {
    /// Publishes one record. Dropping the future withdraws it, unless the committer has taken it.
    pub async fn publish(&self, record: Record, options: PublishOptions) -> PublishOutcome {
        let call = Call::new(&options);
        match self.begin(std::slice::from_ref(&record), &call) {
            Step::Ticket(ticket) => {
                // The unit has its bytes; the queue's limits know of no second copy.
                drop(record);
                ticket.await
            }
            // Boxed, here and below: it is rare and large, and a future is moved as a whole when it is made.
            step => Box::pin(self.go_on(step, vec![record], &call)).await.await,
        }
    }

    /// Publishes a batch: one partition, consecutive offsets, all or none at every instant (C4). Only the first record
    /// may have an idempotency key; it names the batch.
    pub async fn publish_batch(&self, records: Vec<Record>, options: PublishOptions) -> PublishOutcome {
        self.submit_batch(records, options).await.await
    }

    /// Waits for room in line, up to the deadline, then hands the batch over without waiting for the commit, so that a
    /// stream can have several under way in order. A refusal is a ticket that is ready.
    pub async fn submit_batch(&self, records: Vec<Record>, options: PublishOptions) -> Ticket {
        let call = Call::new(&options);
        match self.begin(&records, &call) {
            Step::Ticket(ticket) => ticket,
            step => Box::pin(self.go_on(step, records, &call)).await,
        }
    }

    /// Goes as far as there is nothing to wait for, which is mostly the whole way: no future then carries the records
    /// from one call to the next.
    fn begin(&self, records: &[Record], call: &Call<'_>) -> Step<'_> {
        let link = call.options.chain.as_ref().map(ChainId::enter);
        let partition = match self.admit(records, link.as_ref(), call) {
            Ok(partition) => partition,
            Err(error) => return Step::Refused(error, link),
        };
        if records.is_empty() {
            return Step::Ticket(Ticket::ready(self.nothing(partition)));
        }
        if is_large(records) {
            return Step::Large(partition, link);
        }
        let encoded = encode(&self.shared, records, call.options.sequences.clone());
        match self.prepare(partition, encoded, link, call) {
            Err(ticket) => Step::Ticket(ticket),
            Ok(Prepared { queued, ticket }) => match partition.intake.try_hand_over(Handover::One(queued)) {
                Tried::Queued(committer) => {
                    was_queued(partition, committer, ticket.is_watched());
                    Step::Ticket(ticket)
                }
                tried => Step::Waiting(partition, tried, ticket),
            },
        }
    }

    async fn go_on(&self, step: Step<'_>, records: Vec<Record>, call: &Call<'_>) -> Ticket {
        match step {
            Step::Ticket(ticket) => ticket,
            Step::Refused(error, link) => self.refused(error, records, link.as_ref()),
            Step::Waiting(partition, tried, mut ticket) => {
                drop(records);
                let handed = partition.intake.wait_to_hand_over(tried, call.expires(), call.deadline).await;
                self.handed_over(partition, handed, std::iter::once(&mut ticket));
                ticket
            }
            Step::Large(partition, link) => {
                match self.prepare_anywhere(partition, records, call.options.sequences.clone(), link, call).await {
                    Err(ticket) => ticket,
                    Ok(Prepared { queued, mut ticket }) => {
                        self.hand_over(partition, Handover::One(queued), call, std::iter::once(&mut ticket)).await;
                        ticket
                    }
                }
            }
        }
    }

    /// Publishes records together: one reservation, adjacent tickets, one outcome per record, in order (C5). Records with
    /// an idempotency key are units of their own, runs without are one. A bad record is refused alone (C8).
    pub async fn publish_group(&self, records: Vec<Record>, options: PublishOptions) -> Vec<PublishOutcome> {
        let call = Call::new(&options);
        let mut outcomes: Vec<Option<PublishOutcome>> = Vec::new();
        outcomes.resize_with(records.len(), || None);
        let mut tickets: Vec<(Ticket, Vec<usize>)> = Vec::new();
        for (partition, units) in self.group(records, &call, &mut outcomes) {
            self.submit_units(&partition, units, &call, &mut tickets).await;
        }
        for (mut ticket, indexes) in tickets {
            let outcome = (&mut ticket).await;
            let mut shares = Vec::with_capacity(indexes.len());
            split(outcome, indexes.len() as u32, ticket.skipped(), &mut shares);
            for (index, share) in indexes.into_iter().zip(shares) {
                if let Some(place) = outcomes.get_mut(index) {
                    *place = Some(share);
                }
            }
        }
        outcomes.into_iter().flatten().collect()
    }

    /// Checks everything that needs no ticket (C8), and routes (C12).
    fn admit(&self, records: &[Record], link: Option<&Link>, call: &Call<'_>) -> Result<&Arc<Partition>, PublishError> {
        let limits = &self.shared.options.limits;
        if let Some(first) = link.and_then(Link::broken_by) {
            return Err(PublishError::ChainBroken { first });
        }
        if records.len() > limits.batch_records as usize {
            let (value, limit) = (records.len() as u64, u64::from(limits.batch_records));
            return Err(PublishError::BatchTooLarge { what: "records", value, limit });
        }
        for (index, record) in records.iter().enumerate() {
            envelope::check(index, record, limits)?;
            if index > 0 && record.idempotency_key.is_some() {
                let reason = "stands inside a batch; only the first record may have one, which names the batch".into();
                return Err(PublishError::BadField { index, field: "idempotency key", reason });
            }
            self.check_schema(record)?;
        }
        let partition = self.route(call.options.partition, call.options.keyless, records.first())?;
        for (index, record) in records.iter().enumerate() {
            check_parent(index, record, partition)?;
        }
        if records.len() > 1 {
            let value: u64 = records.iter().map(|record| envelope::row_len(record) as u64).sum();
            if value > limits.batch_bytes.0 {
                return Err(PublishError::BatchTooLarge { what: "bytes", value, limit: limits.batch_bytes.0 });
            }
        }
        if let Some(sequences) = &call.options.sequences {
            check_sequences(sequences, records)?;
        }
        Ok(partition)
    }

    fn check_schema(&self, record: &Record) -> Result<(), PublishError> {
        match record.schema {
            Some(id) if !self.shared.schemas.is_known(id) => {
                Err(PublishError::UnknownSchema { id, channel: Arc::clone(&self.shared.name) })
            }
            _ => Ok(()),
        }
    }

    fn route(
        &self,
        named: Option<PartitionId>,
        keyless: Option<PartitionId>,
        first: Option<&Record>,
    ) -> Result<&Arc<Partition>, PublishError> {
        let keys = first.map(|record| (record.key.as_deref(), record.idempotency_key.as_deref()));
        let partition = match (named, keys) {
            (Some(partition), _) => partition,
            (None, Some((Some(key), _) | (None, Some(key)))) => self.partition_for(Some(key)),
            (None, _) => keyless.unwrap_or_else(|| self.partition_for(None)),
        };
        self.partition(partition).ok_or_else(|| PublishError::UnknownPartition {
            channel: Arc::clone(&self.shared.name),
            partition,
            partitions: self.partitions(),
        })
    }

    fn refused(&self, error: PublishError, records: Vec<Record>, link: Option<&Link>) -> Ticket {
        if let Some(link) = link {
            link.break_by(error.code());
        }
        metrics::counter!("landfall_publish_refused_total", "channel" => self.shared.name.to_string(), "code" => error.code().to_string()).increment(1);
        Ticket::ready(PublishOutcome::refused(error, records))
    }

    /// An empty batch (C7).
    fn nothing(&self, partition: &Partition) -> PublishOutcome {
        PublishOutcome::Committed(Committed {
            partition: partition.id,
            first: partition.tail.get(),
            count: 0,
            epoch: Default::default(),
            class: partition.class(),
            duplicate: false,
            timings: Timings::default(),
        })
    }

    /// Encodes where it holds nobody up, and passes the key gate.
    async fn prepare_anywhere(
        &self,
        partition: &Arc<Partition>,
        records: Vec<Record>,
        sequences: Option<Sequences>,
        link: Option<Link>,
        call: &Call<'_>,
    ) -> Result<Prepared, Ticket> {
        let encoded = if is_large(&records) {
            let shared = Arc::clone(&self.shared);
            match tokio::task::spawn_blocking(move || encode(&shared, &records, sequences)).await {
                Ok(encoded) => encoded,
                // The runtime is going down; nothing was queued, and the payload went with the job.
                Err(_) => {
                    let channel = Arc::clone(&self.shared.name);
                    return Err(self.refused(PublishError::Draining { channel }, Vec::new(), link.as_ref()));
                }
            }
        } else {
            encode(&self.shared, &records, sequences)
        };
        self.prepare(partition, encoded, link, call)
    }

    /// Passes the key gate. `Err`: the outcome is known, or another publish under the key is waited for.
    fn prepare(
        &self,
        partition: &Arc<Partition>,
        encoded: Encoded,
        link: Option<Link>,
        call: &Call<'_>,
    ) -> Result<Prepared, Ticket> {
        let Encoded { body, key, sequences } = encoded;
        let unit = Arc::new(Queued {
            cell: TicketCell::new(),
            bytes: body.encoded_len(),
            body,
            chain: link.clone(),
            expect: call.options.expect,
            key,
            sequences,
            admitted: call.admitted,
            expires: call.expires(),
            deadline: call.deadline,
        });
        if let Some((name, hash)) = unit.key {
            let gate = partition.keys.lock().enter(name, hash, &unit, partition.clock.now());
            match gate {
                Gate::Vacant => {}
                Gate::Join(earlier, seat) => {
                    let own = Joined { rows: unit.body.rows().clone(), expires: unit.expires, deadline: unit.deadline };
                    return Err(self.ticket(partition, earlier, seat, Some(Box::new(own)), link, call));
                }
                Gate::Committed { first, count } => {
                    partition.metrics.duplicate.increment(1);
                    return Err(Ticket::ready(PublishOutcome::Committed(Committed {
                        partition: partition.id,
                        first,
                        count,
                        epoch: Default::default(),
                        class: partition.class(),
                        duplicate: true,
                        timings: Timings::default(),
                    })));
                }
                Gate::Reused { first } => {
                    partition.metrics.key_reused.increment(1);
                    let error = PublishError::KeyReused { partition: partition.id, first };
                    return Err(self.refused(error, given_back(unit.body.rows()), link.as_ref()));
                }
                Gate::Crowded => {
                    let what = format!("{} publishes wait under this key", crate::options::JOINED_MAX);
                    let error = PublishError::QueueFull { partition: partition.id, what };
                    return Err(self.refused(error, given_back(unit.body.rows()), link.as_ref()));
                }
            }
        }
        let ticket = self.ticket(partition, Arc::clone(&unit), 0, None, link, call);
        Ok(Prepared { queued: unit, ticket })
    }

    fn ticket(
        &self,
        partition: &Arc<Partition>,
        unit: QueuedUnit,
        seat: usize,
        joined: Option<Box<Joined>>,
        chain: Option<Link>,
        call: &Call<'_>,
    ) -> Ticket {
        Ticket::pending(Pending {
            unit,
            seat,
            partition: Arc::clone(partition),
            chain,
            joined,
            // Who joined is not in the queue, where it would be found.
            is_watched: seat == 0 && partition.threads.deadlines.covers(call.deadline),
            sleep: None,
        })
    }

    /// Reserves and queues units together.
    async fn hand_over<'a>(
        &self,
        partition: &Arc<Partition>,
        units: Handover,
        call: &Call<'_>,
        tickets: impl Iterator<Item = &'a mut Ticket>,
    ) {
        let tried = partition.intake.try_hand_over(units);
        let handed = partition.intake.wait_to_hand_over(tried, call.expires(), call.deadline).await;
        self.handed_over(partition, handed, tickets);
    }

    fn handed_over<'a>(
        &self,
        partition: &Arc<Partition>,
        handed: HandedOver,
        tickets: impl Iterator<Item = &'a mut Ticket>,
    ) {
        match handed {
            Ok(committer) => {
                let is_watched = tickets.fold(false, |any, ticket| ticket.look_again() | any);
                was_queued(partition, committer, is_watched);
            }
            Err((error, units)) => self.settle_refused(partition, units, &error),
        }
    }

    /// Who joined these tickets through their keys is answered with them; the publisher's own ticket gives the payload
    /// back.
    fn settle_refused(&self, partition: &Partition, units: Handover, error: &PublishError) {
        let units = match units {
            Handover::One(unit) => vec![unit],
            Handover::Many(units) => units,
        };
        let mut wake = Vec::new();
        metrics::counter!("landfall_publish_refused_total", "channel" => self.shared.name.to_string(), "code" => error.code().to_string()).increment(units.len() as u64);
        for unit in units {
            unit.cell.settle(Settlement::NotStored(error.clone()), &mut wake);
            if let Some((name, _)) = &unit.key {
                partition.keys.lock().release(name, &unit);
            }
            if let Some(chain) = &unit.chain {
                chain.break_by(error.code());
            }
        }
        wake_all(&mut wake);
    }

    /// Sorts a group's records by partition and cuts them into units; bad ones get their outcome at once.
    fn group(
        &self,
        records: Vec<Record>,
        call: &Call<'_>,
        outcomes: &mut [Option<PublishOutcome>],
    ) -> Vec<(Arc<Partition>, Vec<Unit>)> {
        let limits = &self.shared.options.limits;
        let mut groups: BTreeMap<PartitionId, (Arc<Partition>, Vec<Unit>)> = BTreeMap::new();
        // Records without a key stay together.
        let (named, keyless) = (call.options.partition, call.options.keyless);
        let keyless = named.or(keyless).unwrap_or_else(|| self.partition_for(None));
        let sequences = call.options.sequences.as_ref();
        let bad_sequences = sequences.and_then(|own| check_sequences(own, &records).err());
        for (index, record) in records.into_iter().enumerate() {
            let link = call.options.chain.as_ref().map(ChainId::enter);
            let route = || -> Result<Arc<Partition>, PublishError> {
                if let Some(first) = link.as_ref().and_then(Link::broken_by) {
                    return Err(PublishError::ChainBroken { first });
                }
                if let Some(error) = &bad_sequences {
                    return Err(error.clone());
                }
                envelope::check(index, &record, limits)?;
                self.check_schema(&record)?;
                let partition = self.route(named, Some(keyless), Some(&record))?;
                check_parent(index, &record, partition)?;
                Ok(Arc::clone(partition))
            };
            match route() {
                Ok(partition) => {
                    let units = &mut groups.entry(partition.id).or_insert_with(|| (partition, Vec::new())).1;
                    let number = sequences.and_then(|own| own.numbers.get(index).copied());
                    let most = (limits.batch_records as usize, limits.batch_bytes.as_usize());
                    add_to_units(units, index, record, number, link, most);
                }
                Err(error) => {
                    if let Some(link) = &link {
                        link.break_by(error.code());
                    }
                    if let Some(place) = outcomes.get_mut(index) {
                        *place = Some(PublishOutcome::refused(error, vec![record]));
                    }
                }
            }
        }
        groups.into_values().collect()
    }

    async fn submit_units(
        &self,
        partition: &Arc<Partition>,
        units: Vec<Unit>,
        call: &Call<'_>,
        tickets: &mut Vec<(Ticket, Vec<usize>)>,
    ) {
        let (items_max, bytes_max) = (partition.intake.handover_items_max(), partition.intake.handover_bytes_max());
        let mut together: Vec<QueuedUnit> = Vec::new();
        let mut bytes = 0usize;
        for unit in units {
            let sequences = call
                .options
                .sequences
                .as_ref()
                .map(|own| Sequences { producer: own.producer, numbers: unit.numbers.clone().into() });
            match self.prepare_anywhere(partition, unit.records, sequences, unit.link, call).await {
                Err(ticket) => tickets.push((ticket, unit.indexes)),
                Ok(Prepared { queued, ticket }) => {
                    if !together.is_empty() && (together.len() >= items_max || bytes + queued.cost() > bytes_max) {
                        let units = std::mem::take(&mut together);
                        let theirs = tickets.iter_mut().rev().take(units.len()).map(|(ticket, _)| ticket);
                        self.hand_over(partition, Handover::Many(units), call, theirs).await;
                        bytes = 0;
                    }
                    bytes += queued.cost();
                    together.push(queued);
                    tickets.push((ticket, unit.indexes));
                }
            }
        }
        if !together.is_empty() {
            let theirs = tickets.iter_mut().rev().take(together.len()).map(|(ticket, _)| ticket);
            self.hand_over(partition, Handover::Many(together), call, theirs).await;
        }
    }
}

/// A part of a group that becomes one unit.
struct Unit {
    records: Vec<Record>,
    indexes: Vec<usize>,
    numbers: Vec<(u64, u64)>,
    bytes: usize,
    is_keyed: bool,
    /// That of its first record.
    link: Option<Link>,
}

fn add_to_units(
    units: &mut Vec<Unit>,
    index: usize,
    record: Record,
    number: Option<(u64, u64)>,
    link: Option<Link>,
    (records_max, bytes_max): (usize, usize),
) {
    let is_keyed = record.idempotency_key.is_some();
    let bytes = envelope::row_len(&record);
    let fits = |last: &&mut Unit| {
        !last.is_keyed && !is_keyed && last.records.len() < records_max && last.bytes + bytes <= bytes_max
    };
    match units.last_mut().filter(fits) {
        Some(last) => {
            last.records.push(record);
            last.indexes.push(index);
            last.numbers.extend(number);
            last.bytes += bytes;
        }
        None => {
            let numbers = number.into_iter().collect();
            units.push(Unit { records: vec![record], indexes: vec![index], numbers, bytes, is_keyed, link });
        }
    }
}

fn was_queued(partition: &Partition, committer: Option<Box<Committer>>, is_watched: bool) {
    if let Some(committer) = committer {
        partition.threads.commit.submit(committer);
    }
    if is_watched {
        partition.watch();
    }
}

fn is_large(records: &[Record]) -> bool {
    records.iter().map(envelope::row_len).sum::<usize>() > ENCODE_INLINE_BYTES
}

fn encode(shared: &ChannelShared, records: &[Record], sequences: Option<Sequences>) -> Encoded {
    let key = records
        .first()
        .and_then(|record| record.idempotency_key.as_deref())
        .map(|key| (shared.seed.name(key), shared.seed.body(records)));
    let tag = match (&key, &sequences) {
        (Some((name, body)), _) => Tag::Key(tag(name, *body)),
        (None, Some(sequences)) => Tag::Sequence(sequences.block()),
        (None, None) => Tag::None,
    };
    let body = UnitBody::new(tag, shared.options.codec, envelope::encode(records), records.len() as u32);
    Encoded { body, key, sequences }
}

fn check_parent(index: usize, record: &Record, partition: &Partition) -> Result<(), PublishError> {
    let Some(parent) = record.parent else { return Ok(()) };
    let is_here = parent.channel == partition.channel_id && parent.partition == partition.id;
    let tail = partition.tail.get();
    if is_here && parent.offset >= tail {
        let reason = format!("is offset {} of its own partition, whose tail is {tail}", parent.offset);
        return Err(PublishError::BadField { index, field: "parent", reason });
    }
    Ok(())
}

fn check_sequences(sequences: &Sequences, records: &[Record]) -> Result<(), PublishError> {
    let bad = |index: usize, reason: String| Err(PublishError::BadField { index, field: "sequences", reason });
    if sequences.numbers.len() != records.len() {
        return bad(0, format!("are {} for {} records", sequences.numbers.len(), records.len()));
    }
    if let Some(at) = sequences.numbers.windows(2).position(|pair| pair[0] >= pair[1]) {
        return bad(at + 1, "do not rise".into());
    }
    if let Some(at) = sequences.numbers.iter().position(|(_, index)| *index > landfall_log::SequenceBlock::INDEX_MAX) {
        return bad(at, "have an index above 63 bits".into());
    }
    if let Some(at) = records.iter().position(|record| record.idempotency_key.is_some()) {
        return bad(at, "stand beside an idempotency key; a publish has the one or the other".into());
    }
    Ok(())
}

/// These rows were encoded by this process a moment ago, so they decode.
fn given_back(rows: &Bytes) -> Vec<Record> {
    envelope::decode(rows).unwrap_or_default()
}
