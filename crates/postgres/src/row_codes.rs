//! The stable codes of messages and rows: `LF-PG03xx` for decoding, `LF-PG04xx` for values, and those of copied lines.

use landfall_types::{Code, CodePage, Kind, Retry};

macro_rules! codes {
    ($($name:ident = $number:literal $page:literal $kind:ident $retry:ident: $meaning:literal; $help:literal)*) => {
        $(#[doc = $meaning] pub(crate) const $name: Code = Code::new("PG", $number);)*

        /// The pages of the codes LF-PG03xx and LF-PG04xx, for `landfall explain`.
        pub const ROW_CODES: &[CodePage] = &[$(CodePage {
            code: $name,
            name: $page,
            kind: Kind::$kind,
            retry: Retry::$retry,
            meaning: $meaning,
            help: $help,
        }),*];
    };
}

codes! {
    OVERSIZED = 301 "PgMessageTooLarge" Invalid Never: "A change in the stream is larger than `max_message`: it was set aside as a dead letter with the first 64 KiB of it, and the stream goes on."; "Raise `max_message` (up to 1GiB) for rows that are really that large, then copy the table again with `landfall tables CONFIG PIPELINE resync TABLE`."
    UNKNOWN_RELATION = 302 "PgUnknownRelation" Conflict Never: "A change names a relation that no Relation message has described on this connection."; "The table is parked and none of its rows is dropped: it is copied anew, or goes on by hand with `landfall tables … resync`. Report it with the server's version if it repeats."
    COLUMN_COUNT = 303 "PgColumnCount" Conflict Never: "A row has another number of columns than its table's shape."; "The table's shape changed without the notice that should come first. The table is parked; copy it anew with `landfall tables … resync`."
    MALFORMED = 304 "PgMalformedMessage" Internal Never: "A message of the stream is not what its kind says: too short, too long, or with a mark that is not defined."; "Nothing is skipped. Look for a proxy between server and Landfall, and report the text with the server's version."
    UNKNOWN_KIND = 305 "PgUnknownMessageKind" Internal Never: "The stream holds a message of a kind that protocol 1 does not have."; "Nothing is skipped, since the message may carry rows. Compare the server's version with those that are supported (14 to 18)."
    LIMIT = 306 "PgMessageLimit" Internal Never: "A count or a name in a message is beyond what the server can mean: 1,664 columns, 64 bytes of a name, 100,000 relations."; "A server built with other limits is not supported; otherwise look for a proxy between server and Landfall."
    UNCHANGED_UNKNOWN = 307 "PgUnchangedValueUnknown" Invalid Never: "An update leaves out a large value that it did not touch, and nothing else tells it. A NULL or a placeholder is never written in its place."; "Give the table ALTER TABLE … REPLICA IDENTITY FULL, so that old rows come whole, then re-sync it; or leave the column out with `columns:`."
    BINARY = 308 "PgBinaryValue" Internal Never: "A value came in binary form although text was asked for."; "Report it with the server's version."
    COPY_LINE = 309 "PgCopyLine" Conflict Never: "A line of a copy does not have the columns of its table's shape, is cut short, or is longer than `max_message`."; "The table may have changed while it was copied: it is copied anew. Raise `max_message` for rows that are really longer."
    TRANSACTION_TOO_LONG = 310 "PgTransactionTooLong" Internal Never: "A transaction has more than 2^48 row events, which is where `_seq` ends."; "Report it: no server can make such a transaction."

    BAD_VALUE = 401 "PgBadValue" Invalid Never: "A value's text is not one of its column's type."; "The row is a dead letter with the text that came. Leave the column out with `columns:` until it is mended, and report it with the type and the server's version."
    NAN = 402 "PgNotANumber" Invalid Never: "A numeric column holds NaN, which a decimal has no form for."; "Set `values.nan` for the column: `null`, or `text` for a text column."
    INFINITE = 403 "PgInfinite" Invalid Never: "A date, timestamp or number is infinite, which its column has no form for."; "Set `values.infinity` for the column: `null`, `clamp` for the type's end, or `text` for a text column."
    OUT_OF_RANGE = 404 "PgOutOfRange" Invalid Never: "A value is valid in Postgres and beyond what its column can hold."; "Set `values.out_of_range` for the column: `null`, `clamp` for the nearest value, or `text` for a text column."
    INVALID_TEXT = 405 "PgInvalidText" Invalid Never: "A text is not UTF-8. Databases with the encoding SQL_ASCII may hold such texts."; "Mend the row at the source, or set `values.invalid_text` for the column: `replace`, or `binary` for a column of bytes."
    ARRAY_SHAPE = 406 "PgArrayShape" Invalid Never: "An array has more than one dimension; the column is a list of elements."; "Set `values.array_shape: text` for the column to keep such arrays as texts."
    NULL_VALUE = 407 "PgNullInKey" Invalid Never: "A column of the key holds NULL, so the row cannot be told from others."; "Choose another key for the table (`key:`), or mend the row at the source."
    COLUMN_NAME = 409 "PgColumnName" Invalid Never: "A table has a column whose name Landfall needs for itself: _op, _commit_lsn, _seq, _commit_ts, _xid, _unchanged, _before, or one that starts with two underscores."; "Rename it at the source, or leave it out of the column list of a publication of your own."
    VALUE_OPTION = 410 "PgValueOption" Invalid Never: "An option under `values` has a value that is not offered."; "nan: error, null, text. infinity and out_of_range: error, null, clamp, text. invalid_text: error, replace, binary. numeric_unbounded: text, decimal(p,s). array_shape: error, text."
}

fn page(code: Code) -> Option<&'static CodePage> {
    ROW_CODES.iter().find(|page| page.code == code)
}

/// The public kind of a code of this list.
pub(crate) fn kind_of(code: Code) -> Kind {
    page(code).map_or(Kind::Internal, |page| page.kind)
}

/// Whether the same may be tried again.
pub(crate) fn retry_of(code: Code) -> Retry {
    page(code).map_or(Retry::Never, |page| page.retry)
}
