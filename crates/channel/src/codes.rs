//! The pages of `landfall explain` for this crate. Codes of opening and reading a partition's log are the log's.

use landfall_types::{CodePage, Kind, Retry};

use crate::error::ch;

const fn page(
    number: u16,
    name: &'static str,
    kind: Kind,
    retry: Retry,
    meaning: &'static str,
    help: &'static str,
) -> CodePage {
    CodePage { code: ch(number), name, kind, retry, meaning, help }
}

/// The codes that channels give beside those of `landfall_log::CODES`.
#[rustfmt::skip]
pub const CODES: &[CodePage] = &[
    page(1, "RecordTooLarge", Kind::Invalid, Retry::Never,
        "A record's payload, key and headers together are above the channel's limits.record_bytes. It was not stored.",
        "Send it in parts, or raise limits.record_bytes (at most 64MiB) and restart."),
    page(2, "BatchTooLarge", Kind::Invalid, Retry::Never,
        "A batch has more records or encoded bytes than the channel takes at once. None of it was stored.",
        "Send smaller batches, or raise limits.batch_records or limits.batch_bytes."),
    page(3, "BadField", Kind::Invalid, Retry::Never,
        "A field is outside what is allowed; the message names it, with the limit and the value. Nothing was stored or read.",
        "Correct the field. A start past the tail: read from the tail it names."),
    page(4, "UnknownSchema", Kind::Invalid, Retry::Never,
        "The record names a schema id that the channel does not have, or a new schema was offered to a channel whose schema_policy is fixed.",
        "Offer the schema first, or publish under a known one."),
    page(5, "UnknownChannel", Kind::Invalid, Retry::Never,
        "There is no channel of this name.",
        "Look at the channels with `landfall top --once`, add it to the configuration, or create it."),
    page(6, "UnknownPartition", Kind::Invalid, Retry::Never,
        "The channel has no partition of this number. The number of partitions is fixed at creation, and they count from 0.",
        "Use a number below the channel's number of partitions."),
    page(10, "KeyReused", Kind::Conflict, Retry::Never,
        "The idempotency key was used, inside the channel's key window, for a record with other content. Nothing was stored by this publish.",
        "Give different records different keys. If the content was changed on purpose, it is another record and needs another key."),
    page(11, "KeyExpired", Kind::Conflict, Retry::Never,
        "Whether the key was used before can no longer be said: its first attempt lies before the key window.",
        "Look for the record in the channel, then publish it again under a new key if it is not there. Widen keys.window or keys.count for later."),
    page(12, "KeyClosed", Kind::Conflict, Retry::Never,
        "The key was answered Absent before, which closed it, so that no late copy can enter.",
        "Publish with the token of that answer, or under a new key."),
    page(13, "OffsetConflict", Kind::Conflict, Retry::Never,
        "The publish named the offset it expected, and the record would have got another one. It was not stored.",
        "Read what came in between, then decide again."),
    page(14, "ChainBroken", Kind::Conflict, Retry::Never,
        "An earlier publish of the same chain was not stored, or is not known to be; so this one was not stored either, and the stream has no hole.",
        "Settle the first one, then start a new chain from there."),
    page(20, "QueueFull", Kind::Unavailable, Retry::Later,
        "The partition's queue or the process's budget has no room, and the channel's admission is reject.",
        "Publish again after a pause. If it lasts, the device is slower than the publishers: see landfall_sync_seconds."),
    page(21, "DeadlineBeforeClaim", Kind::Unavailable, Retry::Later,
        "The publish waited in line until its deadline and was not taken up. It was not stored.",
        "Publish again, with fewer outstanding or a longer deadline."),
    page(22, "Withdrawn", Kind::Unavailable, Retry::Later,
        "The publisher dropped the call before it was taken up. It was not stored. Seen in metrics only.",
        "Nothing."),
    page(23, "AtCapacity", Kind::Unavailable, Retry::Later,
        "The channel refuses records: the disk reserve is met, or consumers hold more of the log than retention.max_bytes allows. The reason is in the message.",
        "Free disk space, or let the consumer that `landfall top` names go on. Publishing resumes by itself."),
    page(31, "Abandoned", Kind::Unavailable, Retry::Later,
        "An append failed on the device and was fenced away: it is not stored and cannot come back.",
        "Publish again. Look at the device: the log names what it answered."),
    page(32, "PartitionUncertain", Kind::Unavailable, Retry::Later,
        "An append to this partition failed and is being settled. Until it is, nothing new is taken.",
        "Publish again later; settling repeats by itself. Look at the device if it lasts."),
    page(34, "Draining", Kind::Closed, Retry::Later,
        "The process is going down and takes no new records.",
        "Reconnect after the restart, or publish elsewhere."),
    page(35, "Superseded", Kind::Closed, Retry::Later,
        "Another process has taken over the data directory.",
        "Find out which process runs on this data_dir, and stop one of them."),
    page(40, "AnswerLate", Kind::Unresolved, Retry::Now,
        "The deadline passed while the record was being written. It is stored, or not: this answer cannot say.",
        "Publish again under the same idempotency key: it is then stored once, whatever became of the first attempt."),
    page(41, "CommitterLost", Kind::Unresolved, Retry::Now,
        "The process ended, or a partition could not be opened anew, while the record was being written.",
        "Publish again under the same idempotency key after the restart."),
    page(52, "HistoryChanged", Kind::Invalid, Retry::Never,
        "The log holds other records under the cursor's offsets than when it was taken: it was restored from a copy, or lost its unsynced tail.",
        "Start the reader anew from a position that you choose."),
    page(53, "LeaseHeld", Kind::Conflict, Retry::Later,
        "Another reader holds this consumer's lease.",
        "Wait for its end, or attach with take_over."),
    page(54, "LeaseLost", Kind::Closed, Retry::Later,
        "The lease was taken over; nothing was changed by this call.",
        "Attach again."),
    page(55, "AckNotDelivered", Kind::Invalid, Retry::Never,
        "The ack names records that were never delivered to this consumer.",
        "Ack only what was delivered."),
    page(56, "ResolutionUnavailable", Kind::Unavailable, Retry::Later,
        "What became of the record cannot be looked up now. That does not mean that it is absent.",
        "Ask again later."),
    page(57, "TooManySubscribers", Kind::Unavailable, Retry::Later,
        "As many subscriptions are open as the process allows.",
        "Close some, or raise process.channels.subscriptions."),
    page(58, "ConsumersUnavailable", Kind::Internal, Retry::Never,
        "The durable cursors of consumers cannot be read, so consumers refuse to run; channels go on, and nothing is deleted.",
        "Put state.redb back from a copy, or make a new one with `landfall positions … --new-state`."),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Catches a code that has two pages, here or with the log's, and a page that says nothing.
    #[test]
    fn each_code_has_one_page() {
        let all = CODES.iter().chain(landfall_log::CODES);
        let mut seen = BTreeSet::new();
        for page in all {
            assert!(seen.insert(page.code), "{} twice", page.code);
            assert!(page.meaning.len() > 20 && !page.help.is_empty(), "{}", page.code);
        }
    }
}
