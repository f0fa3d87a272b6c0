//! The engine's codes (`LF-EN`) with the pages that `landfall explain` prints.

use landfall_types::{Code, CodePage, Kind, Retry};

macro_rules! codes {
    ($($(#[$doc:meta])* $constant:ident = $number:literal, $name:literal, $kind:ident, $retry:ident,
        $meaning:literal, $help:literal;)*) => {
        $($(#[$doc])* pub(crate) const $constant: Code = Code::new("EN", $number);)*

        /// Every code of the engine with its page.
        pub const CODES: &[CodePage] = &[$(CodePage {
            code: $constant,
            name: $name,
            kind: Kind::$kind,
            retry: Retry::$retry,
            meaning: $meaning,
            help: $help,
        }),*];
    };
}

codes! {
    OPTION_BOUNDS = 1, "OptionOutOfBounds", Invalid, Never,
        "A number of a pipeline's options is outside its bounds, or two of them do not fit together.",
        "The message names the key, the value and the nearest good one. Change the configuration.";
    PLAN = 2, "PipelineCannotBePlanned", Invalid, Never,
        "The parts of a pipeline do not fit: a column is missing, a name is used twice, a type has no cast.",
        "The message names the part. Change the query or the sink's options; `landfall check` shows the plan.";
    START = 3, "PipelineCannotStart", Unavailable, Later,
        "A pipeline could not be started: a thread could not be made or its state could not be read.",
        "Look at the cause in the message; a restart of the process tries again.";
    LANE_CONTRACT = 10, "LaneBrokeItsContract", Internal, Never,
        "A source yielded a batch that does not follow the one before it, or of a partition that takes none now.",
        "A defect of the source. The pipeline stops so that nothing is skipped; please report it with both ranges.";
    HOLD_DROPPED = 11, "HoldDropped", Internal, Now,
        "A hold on a source batch was given up before its rows were settled: a thread or task ended early.",
        "The rows are read again by themselves. If it repeats, look for the error before it in the log.";
    ABANDONED = 12, "BatchAbandoned", Unavailable, Now,
        "Rows were not settled before a deadline and were given up.",
        "They were not committed and will be read again at the next start, or at once where the pipeline goes on.";
    PANIC = 13, "PanicContained", Internal, Now,
        "A decoder, a query or a sink panicked. The batch fails and is read again; the process goes on.",
        "A defect: report it with the text. A record that panics each time it is read ends as a dead letter.";
    INVARIANT = 14, "InvariantBroken", Internal, Never,
        "The engine found its own books or positions contradicting each other and stopped the pipeline.",
        "A defect: report it with the values of the message. Nothing past the last commit is lost.";
    GROUP_LOST = 15, "GroupLost", Unavailable, Now,
        "A sink lost rows that it had accepted and not yet made durable.",
        "They are read again by themselves; committed groups are skipped by position.";
    WRITE_GAVE_UP = 16, "WriteGaveUp", Unavailable, Later,
        "Writing a batch was given up after `retry.max_elapsed`.",
        "The rows are read again. Look at the sink's last error; raise `retry.max_elapsed` or leave it out.";
    ATTEMPT_TIMEOUT = 17, "AttemptTimedOut", Unresolved, Now,
        "One attempt to write took longer than `retry.attempt_timeout`; whether it was stored is not known.",
        "It is tried again. If it repeats, the destination is too slow for `batch.bytes`, or hangs.";
    EPOCH_ENDED = 18, "EpochEnded", Closed, Now,
        "The partition was restarted or given up while its rows were in flight.",
        "Nothing to do: the rows are read again from the last commit.";
    ROW_FAILS_PIPELINE = 20, "RowErrorStops", Invalid, Later,
        "A row could not be handled and `on_error: fail` stops its partition there.",
        "Mend the query or the record's producer, or choose `dead_letter` or `skip`; it is retried by itself.";
    TOO_MANY_BAD_ROWS = 21, "TooManyBadRows", Invalid, Later,
        "A sink refused so many rows of one batch that a mismatch is likely, so none was set aside.",
        "Compare the query's columns with the destination's; or raise `max_bad_rows` and `max_bad_fraction`.";
    NULL_IN_NOT_NULL = 22, "NullInNotNullColumn", Invalid, Never,
        "A row has no value for a column of the destination that requires one.",
        "The record is set aside. Give the column a default in the query (`coalesce`), or filter such rows.";
    CAST = 23, "CastFailed", Invalid, Never,
        "A value does not fit the type of the destination's column.",
        "The record is set aside. Cast or round the column in the query, or widen the destination's column.";
    STAGE_FAILED = 24, "StageFailed", Internal, Later,
        "A decoder or a query reported a defect for a whole batch.",
        "The batch is read again; if it repeats, the pipeline restarts by its back-off. Please report it.";
    DEAD_LETTERS_BLOCKED = 25, "DeadLettersBlocked", Unavailable, Later,
        "Dead letters cannot be stored, so the partition waits: nothing is dropped.",
        "Look at the dead-letter channel's health and room.";
    POSITION_WENT_BACK = 30, "PositionWentBack", Conflict, Later,
        "A destination holds less than it held when its position was last recorded: it was restored or replaced.",
        "Decide: accept the destination's position and read again from there, or restore it. Nothing is guessed.";
    SOURCE_CHANGED = 31, "SourceChanged", Conflict, Later,
        "The pipeline's positions belong to another source: a channel of the same name that was made anew.",
        "Start the pipeline under a new `id`, or accept the new source with `landfall positions`.";
    SINK_CHANGED = 32, "SinkChanged", Conflict, Later,
        "The pipeline's positions belong to another destination than the one that answers now.",
        "Start the pipeline under a new `id`, or accept the new destination with `landfall positions`.";
    STATE_UNREADABLE = 33, "StateUnreadable", Unavailable, Later,
        "Stored positions could not be read or written.",
        "Look at the state file's error. Nothing is committed meanwhile; nothing is recreated by itself.";
    GAP = 34, "RowsMissing", Conflict, Later,
        "The source no longer has rows that the pipeline has not read: retention has passed them, or they are damaged.",
        "With `on_trimmed: continue` the pipeline goes on behind them; the range is named in the log.";
    DESTINATION = 40, "DestinationAtFault", Unavailable, Later,
        "The destination refuses everything: credentials, a missing table, another schema.",
        "Mend the destination; the pipeline tries again by itself and skips nothing.";
    RETRYING = 41, "SinkRetrying", Unavailable, Later,
        "A write failed in a passing way and is tried again with the same bytes and the same name.",
        "Nothing is lost. Look at the destination when it repeats.";
    STALLED = 42, "PipelineStalled", Unavailable, Later,
        "Nothing was settled for longer than `stalled_after`.",
        "The message names partition, sink and cause. The process keeps trying.";
    SOURCE_RETRYING = 43, "SourceRetrying", Unavailable, Later,
        "A source or a lane failed and is opened again after a back-off.",
        "Look at the source's own code in the message.";
    DRAIN_DEADLINE = 44, "DrainDeadline", Unavailable, Later,
        "Shutdown ended before everything was settled.",
        "The ranges named were left uncommitted and will be read again at the next start.";
    PIPELINE_FAILED = 45, "PipelineFailed", Internal, Later,
        "A pipeline ended with an error; unless an invariant broke it starts again by its back-off.",
        "Look at the cause in the message.";
}
