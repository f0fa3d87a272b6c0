//! The pages of `landfall explain` for this crate.

use landfall_types::{Code, CodePage, Kind, Retry};

const fn page(
    number: u16,
    name: &'static str,
    kind: Kind,
    retry: Retry,
    meaning: &'static str,
    help: &'static str,
) -> CodePage {
    CodePage { code: Code::new("CH", number), name, kind, retry, meaning, help }
}

/// The codes that a partition's log gives.
pub const CODES: &[CodePage] = &[
    page(
        30,
        "NoSpace",
        Kind::Unavailable,
        Retry::Later,
        "There is no room for the record on the device, or none for the spare file that a fence needs. Nothing of it was stored.",
        "Free disk space under data_dir, or lower the channel's retention. Publishing resumes by itself.",
    ),
    page(
        33,
        "PartitionStopped",
        Kind::Internal,
        Retry::Never,
        "The partition's tail is not known, so accepting a record could reuse an offset that was acknowledged. What verifies can still be read.",
        "Run `landfall log check` on the partition's directory; `landfall log repair` prints a plan and acts with --confirm.",
    ),
    page(
        36,
        "NumbersExhausted",
        Kind::Internal,
        Retry::Never,
        "An offset, epoch or segment number of the partition is at the end of its range. Numbers never wrap.",
        "Create a new channel and move publishers to it; the old one stays readable.",
    ),
    page(
        50,
        "Trimmed",
        Kind::Invalid,
        Retry::Never,
        "Retention has passed the offset: its records are gone.",
        "Start at the log start that the message names, or raise the channel's retention before consumers fall behind.",
    ),
    page(
        51,
        "DamagedRange",
        Kind::Internal,
        Retry::Never,
        "Records of the named offset range are on a file that no longer verifies, or on a missing one. Everything around them is served.",
        "Run `landfall log check` to see what is damaged. Restore the file from a copy, or read on after the range.",
    ),
    page(
        59,
        "ReadFailed",
        Kind::Unavailable,
        Retry::Later,
        "The device did not give the bytes of a segment.",
        "Look at the system's log for I/O errors. The read is tried again.",
    ),
    page(
        71,
        "FormatTooNew",
        Kind::Invalid,
        Retry::Never,
        "A segment was written by a later version in a format that this one does not read. Nothing was changed.",
        "Use the landfall version that wrote it, or a later one.",
    ),
    page(
        72,
        "IdentityMismatch",
        Kind::Conflict,
        Retry::Never,
        "The partition's segments belong to another channel or partition than the directory says.",
        "Put the right directory in place. If a channel.yaml was lost, `landfall log repair` rebuilds it from the segments.",
    ),
    page(
        73,
        "TailUnknown",
        Kind::Internal,
        Retry::Never,
        "A durable mark lies beyond the last record that verifies, or something that is no file stands in the place of the newest segment, so the end of the log is not known.",
        "Put the segment that the message names back where it was moved away. Else run `landfall log check`; `landfall log repair --confirm` declares the missing range damaged and goes on past it.",
    ),
    page(
        74,
        "HeaderDamaged",
        Kind::Internal,
        Retry::Never,
        "Both header copies of the newest segment are damaged, so its records cannot be verified.",
        "Run `landfall log check`; `landfall log repair --confirm` rebuilds the header from its neighbours where it can.",
    ),
    page(
        75,
        "CursorPastTail",
        Kind::Internal,
        Retry::Never,
        "A consumer's floor, or the tail that an earlier run has confirmed, lies past the end of the log: records that were durable are missing.",
        "Restore the newest segment from a copy, or let `landfall log repair --confirm` go on past the missing range.",
    ),
    page(
        76,
        "OpenFailed",
        Kind::Unavailable,
        Retry::Later,
        "The device refused while a partition was opened.",
        "The message names the step and the file. Free space or fix permissions; opening is tried again.",
    ),
];
