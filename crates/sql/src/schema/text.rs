//! The SQL type text of a column: `struct<id: bigint not null, tags: array<string>>` (E101). It parses with the
//! place of the first mistake and a "did you mean", and prints what reads back the same.

use std::fmt;

use super::{Column, ColumnType, Item, TimestampForm};

/// Levels of `struct`, `array` and `map`: as deep as a payload may nest.
const DEPTH_MAX: usize = 128;

/// What is wrong with a type text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TextError {
    /// Byte offset, at a character boundary.
    pub(super) at: usize,
    pub(super) text: String,
}

const NAMES: &[&str] = &[
    "boolean",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "decimal",
    "string",
    "date",
    "timestamp",
    "json",
    "struct",
    "array",
    "map",
];

/// Parses one type with an optional `not null` behind it.
pub(super) fn parse(text: &str) -> Result<Item, TextError> {
    let mut parser = Parser { text, at: 0 };
    let item = parser.item(0)?;
    parser.space();
    if parser.at < text.len() {
        return parser.fail("nothing more is expected here");
    }
    Ok(item)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Parser<'a> {
    fn fail<T>(&self, text: impl Into<String>) -> Result<T, TextError> {
        Err(TextError { at: self.at.min(self.text.len()), text: text.into() })
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    fn takes(&mut self, symbol: char) -> bool {
        self.space();
        let found = self.rest().starts_with(symbol);
        if found {
            self.at += symbol.len_utf8();
        }
        found
    }

    fn expect(&mut self, symbol: char) -> Result<(), TextError> {
        if self.takes(symbol) { Ok(()) } else { self.fail(format!("expected `{symbol}`")) }
    }

    fn word(&mut self) -> &'a str {
        self.space();
        let rest = self.rest();
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        self.at += end;
        rest.get(..end).unwrap_or_default()
    }

    /// A name: bare, or between backticks or double quotes.
    fn name(&mut self) -> Result<String, TextError> {
        self.space();
        for quote in ['`', '"'] {
            if let Some(quoted) = self.rest().strip_prefix(quote) {
                let Some(end) = quoted.find(quote) else {
                    return self.fail(format!("the name has no closing {quote}"));
                };
                self.at += end + 2;
                return Ok(quoted.get(..end).unwrap_or_default().to_owned());
            }
        }
        match self.word() {
            "" => self.fail("expected a field's name"),
            word => Ok(word.to_owned()),
        }
    }

    fn number(&mut self) -> Result<u8, TextError> {
        self.space();
        let start = self.at;
        let word = self.word();
        word.parse().or_else(|_| {
            self.at = start;
            self.fail("expected a number from 0 to 38")
        })
    }

    fn item(&mut self, depth: usize) -> Result<Item, TextError> {
        if depth > DEPTH_MAX {
            return self.fail(format!("the type nests deeper than {DEPTH_MAX} levels"));
        }
        let kind = self.kind(depth)?;
        self.space();
        let before = self.at;
        let not_null = match self.word().to_ascii_lowercase().as_str() {
            "" => false,
            "null" => false,
            "not" => {
                if !self.word().eq_ignore_ascii_case("null") {
                    self.at = before;
                    return self.fail("expected `not null`");
                }
                true
            }
            _ => {
                self.at = before;
                return self.fail("expected `not null` or nothing");
            }
        };
        Ok(Item { kind, not_null })
    }

    fn kind(&mut self, depth: usize) -> Result<ColumnType, TextError> {
        self.space();
        let start = self.at;
        let word = self.word().to_ascii_lowercase();
        Ok(match word.as_str() {
            "boolean" | "bool" => ColumnType::Boolean,
            "smallint" => ColumnType::SmallInt,
            "int" | "integer" => ColumnType::Int,
            "bigint" | "long" => ColumnType::BigInt,
            "float" | "real" => ColumnType::Float,
            "double" => ColumnType::Double,
            "string" | "text" | "varchar" => ColumnType::String,
            "json" => ColumnType::Json,
            "date" => ColumnType::Date,
            "decimal" | "numeric" => self.decimal()?,
            "timestamp" => self.timestamp()?,
            "array" => {
                self.expect('<')?;
                let item = self.item(depth + 1)?;
                self.expect('>')?;
                ColumnType::Array(Box::new(item))
            }
            "map" => {
                self.expect('<')?;
                self.space();
                let key = self.at;
                if !matches!(self.word().to_ascii_lowercase().as_str(), "string" | "text" | "varchar") {
                    self.at = key;
                    return self.fail("the keys of a JSON object are `string`: write map<string, …>");
                }
                self.expect(',')?;
                let item = self.item(depth + 1)?;
                self.expect('>')?;
                ColumnType::Map(Box::new(item))
            }
            "struct" => self.fields(depth)?,
            other => {
                self.at = start;
                return self.fail(unknown(other));
            }
        })
    }

    fn decimal(&mut self) -> Result<ColumnType, TextError> {
        if !self.takes('(') {
            return self.fail("decimal needs precision and scale: decimal(12,2)");
        }
        let at = self.at;
        let precision = self.number()?;
        let scale = if self.takes(',') { self.number()? } else { 0 };
        self.expect(')')?;
        if precision == 0 || precision > 38 || scale > precision {
            self.at = at;
            return self.fail(format!(
                "decimal({precision},{scale}): precision is 1 to 38 and scale is at most the precision"
            ));
        }
        // Checked above: at most 38.
        Ok(ColumnType::Decimal { precision, scale: scale as i8 })
    }

    fn timestamp(&mut self) -> Result<ColumnType, TextError> {
        if !self.takes('(') {
            return Ok(ColumnType::Timestamp(TimestampForm::Text));
        }
        self.space();
        let at = self.at;
        let form = match self.word() {
            "s" => TimestampForm::Seconds,
            "ms" => TimestampForm::Millis,
            "us" => TimestampForm::Micros,
            "ns" => TimestampForm::Nanos,
            _ => {
                self.at = at;
                return self.fail("a timestamp of integers counts s, ms, us or ns: timestamp(ms)");
            }
        };
        self.expect(')')?;
        Ok(ColumnType::Timestamp(form))
    }

    fn fields(&mut self, depth: usize) -> Result<ColumnType, TextError> {
        self.expect('<')?;
        let mut columns: Vec<Column> = Vec::new();
        loop {
            self.space();
            let at = self.at;
            let name = self.name()?;
            if columns.iter().any(|other| other.name == name) {
                self.at = at;
                return self.fail(format!("field `{name}` is declared twice"));
            }
            if columns.len() >= super::FIELDS_MAX {
                return self.fail(format!("a struct has at most {} fields", super::FIELDS_MAX));
            }
            self.expect(':')?;
            let item = self.item(depth + 1)?;
            columns.push(Column { name, kind: item.kind, not_null: item.not_null, default: None, round: None });
            if self.takes('>') {
                return Ok(ColumnType::Struct(columns));
            }
            if !self.takes(',') {
                return self.fail("expected `,` or `>`");
            }
        }
    }
}

fn unknown(word: &str) -> String {
    if word.is_empty() {
        return "expected a type, like bigint or struct<id: bigint>".to_owned();
    }
    let near = NAMES
        .iter()
        .map(|name| (strsim::damerau_levenshtein(word, name), *name))
        .min()
        .filter(|(distance, name)| *distance <= 1 + name.len() / 3);
    let word: String = word.chars().take(40).collect();
    match near {
        Some((_, name)) => format!("`{word}` is not a type; did you mean `{name}`?"),
        None => format!("`{word}` is not a type; types are {}", NAMES.join(", ")),
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not_null = |not_null: bool| if not_null { " not null" } else { "" };
        match self {
            ColumnType::Boolean => f.write_str("boolean"),
            ColumnType::SmallInt => f.write_str("smallint"),
            ColumnType::Int => f.write_str("int"),
            ColumnType::BigInt => f.write_str("bigint"),
            ColumnType::Float => f.write_str("float"),
            ColumnType::Double => f.write_str("double"),
            ColumnType::Decimal { precision, scale } => write!(f, "decimal({precision},{scale})"),
            ColumnType::String => f.write_str("string"),
            ColumnType::Json => f.write_str("json"),
            ColumnType::Date => f.write_str("date"),
            ColumnType::Timestamp(TimestampForm::Text) => f.write_str("timestamp"),
            ColumnType::Timestamp(TimestampForm::Seconds) => f.write_str("timestamp(s)"),
            ColumnType::Timestamp(TimestampForm::Millis) => f.write_str("timestamp(ms)"),
            ColumnType::Timestamp(TimestampForm::Micros) => f.write_str("timestamp(us)"),
            ColumnType::Timestamp(TimestampForm::Nanos) => f.write_str("timestamp(ns)"),
            ColumnType::Array(item) => write!(f, "array<{}{}>", item.kind, not_null(item.not_null)),
            ColumnType::Map(item) => write!(f, "map<string, {}{}>", item.kind, not_null(item.not_null)),
            ColumnType::Struct(columns) => {
                f.write_str("struct<")?;
                for (at, column) in columns.iter().enumerate() {
                    let comma = if at == 0 { "" } else { ", " };
                    // A quote that the name does not contain; a name with both cannot be declared in a text.
                    let bare = column.name.chars().all(|c| c.is_alphanumeric() || c == '_');
                    let quote = match (bare, column.name.contains('`')) {
                        (true, _) => "",
                        (false, false) => "`",
                        (false, true) => "\"",
                    };
                    write!(f, "{comma}{quote}{}{quote}: {}{}", column.name, column.kind, not_null(column.not_null))?;
                }
                f.write_str(">")
            }
        }
    }
}
