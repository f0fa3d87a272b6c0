//! The stable codes of this crate: `LF-DC` for decoding, `LF-SQ` for queries. Row errors and plan errors share the
//! list; a number is never reused.

use landfall_types::{Code, CodePage, Kind, Retry};

macro_rules! codes {
    ($($name:ident = $area:literal $number:literal $page:literal: $meaning:literal; $help:literal)*) => {
        $(#[doc = $meaning] pub(crate) const $name: Code = Code::new($area, $number);)*

        /// The pages of every code of this crate, for `landfall explain`.
        pub const CODES: &[CodePage] = &[$(CodePage {
            code: $name,
            name: $page,
            kind: Kind::Invalid,
            retry: Retry::Never,
            meaning: $meaning,
            help: $help,
        }),*];
    };
}

codes! {
    NOT_JSON = "DC" 1 "NotJson": "The payload is not JSON."; "The text names the byte where reading stopped. Mend the publisher, or publish the record again from its dead letter once it is mended."
    NOT_AN_OBJECT = "DC" 2 "NotAnObject": "The payload is JSON, but not an object."; "Each record must be a JSON object. For arrays of objects use `framing: array`, for lines `framing: ndjson`."
    BAD_UTF8 = "DC" 3 "BadUtf8": "The payload is not UTF-8."; "JSON is UTF-8. The text names the first wrong byte; a publisher that writes Latin-1 or cuts texts at a byte count is the usual cause."
    TRAILING_BYTES = "DC" 4 "TrailingBytes": "Something follows the JSON object."; "One record holds one object. If a record holds several lines, use `framing: ndjson`."
    TOO_DEEP = "DC" 5 "TooDeep": "The payload nests deeper than 128 levels."; "The limit protects the process. Flatten the record at the publisher."
    FIELD_MISSING = "DC" 6 "FieldMissing": "A NOT NULL column has no field in the record."; "Publish the field, give the column a `default`, or declare it without `not null`."
    FIELD_NULL = "DC" 7 "FieldNull": "A NOT NULL column's field is null."; "Publish a value, give the column a `default`, or declare it without `not null`."
    FIELD_UNKNOWN = "DC" 8 "FieldUnknown": "The record has a field that the schema does not declare, and `unknown: error` is set."; "Declare the field, or set `unknown: skip`."
    FIELD_TWICE = "DC" 9 "FieldTwice": "The record names a field twice, and `duplicates: error` is set."; "Without that option the last one wins."
    OUT_OF_RANGE = "DC" 10 "OutOfRange": "A number does not fit the column's type."; "Declare a wider type: int, bigint, decimal(38,0)."
    NOT_AN_INTEGER = "DC" 11 "NotAnInteger": "A number with a fraction stands in an integer column."; "Declare double or decimal. `5.0` and `1e3` are taken as integers."
    EXCESS_SCALE = "DC" 12 "ExcessScale": "A number has more digits behind the point than the column keeps."; "Declare a larger scale, or give the column `round: half_even`."
    EXCESS_PRECISION = "DC" 13 "ExcessPrecision": "A number has more digits than the decimal column holds."; "Declare a larger precision (at most 38)."
    FLOAT_OVERFLOW = "DC" 14 "FloatOverflow": "A number is too large for a floating-point column."; "Declare double or decimal."
    WRONG_TYPE = "DC" 15 "WrongType": "A value has another JSON type than the column takes."; "Declare the column as what is published, or `json` for mixtures; `coerce: true` lets a text that parses in full stand for a number, and the other way round."
    BAD_TIMESTAMP = "DC" 16 "BadTimestamp": "A text is not a date or an RFC 3339 timestamp with zone and at most microseconds."; "Integers need `timestamp(ms)` and the like. Other forms: declare string and use `parse_timestamp` in SQL; more digits than microseconds: `round: half_even`."
    BATCH_TOO_LARGE = "DC" 17 "BatchTooLarge": "One record's rows would carry a column of a batch past 2 GiB."; "Lower `poll.max_bytes`, or publish smaller records."
    BAD_TEXT_COLUMN = "DC" 18 "NotText": "A raw payload is declared as string but is not UTF-8."; "Declare the raw column as binary."
    BAD_SCHEMA = "DC" 30 "BadSchema": "The declared schema cannot be read."; "The text names column and place. Types: boolean, smallint, int, bigint, float, double, decimal(p,s), string, date, timestamp, timestamp(s|ms|us|ns), json, struct<name: type, …>, array<type>, map<string, type>; each with `not null` behind it where it is so."
    BAD_DEFAULT = "DC" 31 "BadDefault": "A column's default does not fit its type."; "Defaults are read by the same rules as records."
    NOTHING_TO_INFER = "DC" 32 "NothingToInfer": "No schema could be inferred: none of the sampled records is a JSON object."; "Publish records first, or declare the schema."
    BAD_PINNED_SCHEMA = "DC" 33 "BadPinnedSchema": "The stored schema cannot be read."; "It is kept, not replaced. Declare the schema in the configuration, or start with a new state."
    UNKNOWN_PATH = "DC" 34 "UnknownPath": "Something wants a column that the decoder does not have."; "Compare the query with the declared schema."
    WRONG_PAYLOAD = "DC" 40 "WrongPayload": "A decoder was given a batch that is not in the payload schema."; "A defect: report it with the version."
    BAD_ROWS = "DC" 41 "BadRows": "Decoded columns could not be put together."; "A defect: report it with the version."

    SYNTAX = "SQ" 1 "Syntax": "The query is not SQL."; "The place is where the parser stopped."
    NOT_ROW_WISE = "SQ" 2 "NotRowWise": "The query uses a clause that needs more than one row, or is not a SELECT."; "A pipeline's SQL looks at one row at a time: projection, WHERE, CASE, casts, scalar functions, `unnest`, sub-selects in FROM. Land the rows, then aggregate or join there or in `landfall query`."
    NOT_DETERMINISTIC = "SQ" 3 "NotDeterministic": "The query calls a function that answers differently each time."; "A row may be computed again after a crash and must come out the same. Use record_timestamp() or row_id(), or the sink option `loaded_at`."
    ALIAS_REQUIRED = "SQ" 4 "AliasRequired": "An output column has no name."; "Write `… AS name`."
    COLUMN_TWICE = "SQ" 5 "ColumnTwice": "Two output columns have one name."; "Give one of them another alias."
    RESERVED_NAME = "SQ" 6 "ReservedName": "An output column's name starts with `__`."; "Such names belong to hidden columns. Give it an alias."
    CANNOT_PLAN = "SQ" 7 "CannotPlan": "The query does not fit its input: an unknown column or function, or types that do not go together."; "The text names it. Names without quotes are read in lower case: write \"orderId\" where the field has capitals."
    BAD_CONSTANT = "SQ" 8 "BadConstant": "A constant expression of the query cannot be evaluated."; "It would fail for every row."
    UNNEST_FORM = "SQ" 9 "UnnestForm": "This form of unnest is not offered."; "Write `unnest(items)` in the SELECT list, one level at a time; for deeper lists use a sub-select in FROM."
    NOT_BOUND = "SQ" 10 "NotBound": "The compiled query does not fit the batches it is given."; "A defect: report it with the version."
    BAD_CAST = "SQ" 20 "BadCast": "A value could not be cast."; "Mend the value, or use TRY_CAST to get NULL instead."
    UNNEST_TOO_LARGE = "SQ" 22 "UnnestTooLarge": "Unnesting a row would repeat its other columns into more than 16 MiB."; "Select fewer or shorter columns beside the unnested list."
    FAILED_EXPRESSION = "SQ" 21 "FailedExpression": "An expression failed for this row."; "The text says why, as in a division by zero or an overflow."
}
