//! Whether bytes decode as a protobuf message of a given descriptor.
//!
//! [`ProtoSchema`] is a `DescriptorProto` turned into tables: per message its fields by number. [`ProtoSchema::check`]
//! walks the wire form once: wire types must fit the fields, text must be UTF-8, required fields must be there,
//! nesting is bounded ([`MAX_BINARY_DEPTH`]), unknown fields are stepped over. Nothing is built and no payload
//! byte leaves in an error (I14).

mod compatible;

use std::collections::HashMap;

use landfall_protocol::{MAX_BINARY_DEPTH, MAX_SCHEMA_BYTES, MAX_SCHEMA_FIELDS};
use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto};

/// Why bytes are not a message of the schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProtoError {
    #[error("a protobuf message that ends in the middle of a field at byte {0}")]
    Ends(usize),
    #[error("not a protobuf field at byte {0}")]
    Tag(usize),
    #[error("field {field} has a wire type that its declared type does not take, at byte {at}")]
    WireType { field: u32, at: usize },
    #[error("field {field} is not UTF-8, at byte {at}")]
    Utf8 { field: u32, at: usize },
    #[error("protobuf nested deeper than {MAX_BINARY_DEPTH} at byte {0}")]
    TooDeep(usize),
    #[error("required field {field} is missing")]
    Missing { field: u32 },
}

/// Why a descriptor is no schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SchemaError {
    #[error("`descriptor_proto` has {0} bytes, the limit is {MAX_SCHEMA_BYTES}")]
    TooLarge(usize),
    #[error("`descriptor_proto` is not an encoded google.protobuf.DescriptorProto")]
    NotADescriptor,
    #[error("the descriptor has more than {MAX_SCHEMA_FIELDS} fields")]
    TooManyFields,
    #[error("the descriptor nests messages deeper than {MAX_BINARY_DEPTH}")]
    TooDeep,
    #[error("field `{0}` has no number, an invalid or a repeated one, or no type")]
    Field(String),
    #[error("field `{0}` is of a type that the descriptor does not contain: nest it inside")]
    NotSelfContained(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Varint,
    Fixed64,
    Fixed32,
    Bytes,
    Text,
    Message(usize),
    Group(usize),
}

#[derive(Clone, Debug)]
struct Field {
    form: Form,
    repeated: bool,
    /// Its place among the required fields of its message.
    required: Option<u32>,
    /// As declared, for comparing schemas.
    kind: Type,
    name: Box<str>,
}

#[derive(Debug, Default)]
struct Table {
    fields: HashMap<u32, Field>,
    required: Vec<u32>,
}

/// A descriptor as tables.
#[derive(Debug)]
pub(crate) struct ProtoSchema {
    /// The root is the first.
    messages: Vec<Table>,
}

/// The largest field number.
const MAX_FIELD: u32 = (1 << 29) - 1;

impl ProtoSchema {
    /// Reads a descriptor: one message with everything it needs nested inside.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, SchemaError> {
        if bytes.len() > MAX_SCHEMA_BYTES {
            return Err(SchemaError::TooLarge(bytes.len()));
        }
        let root = DescriptorProto::decode(bytes).map_err(|_| SchemaError::NotADescriptor)?;
        let mut names = Names::default();
        names.collect(&root, String::new(), 0)?;
        let messages =
            names.messages.iter().map(|(path, message)| names.table(path, message)).collect::<Result<_, _>>()?;
        Ok(ProtoSchema { messages })
    }

    /// Checks that `record` is a message of the root type.
    pub(crate) fn check(&self, record: &[u8]) -> Result<(), ProtoError> {
        let mut walk = Walk { schema: self, bytes: record, at: 0 };
        walk.message(0, record.len(), None, 0)
    }

    fn field(&self, message: usize, number: u32) -> Option<&Field> {
        self.messages.get(message)?.fields.get(&number)
    }
}

/// The types that a descriptor contains, by their path below the root (the root's own is empty).
#[derive(Default)]
struct Names<'a> {
    root: &'a str,
    messages: Vec<(String, &'a DescriptorProto)>,
    by_path: HashMap<String, usize>,
    enums: HashMap<String, ()>,
    fields: usize,
}

impl<'a> Names<'a> {
    fn collect(&mut self, message: &'a DescriptorProto, path: String, depth: usize) -> Result<(), SchemaError> {
        if depth == 0 {
            self.root = message.name();
        }
        if depth > MAX_BINARY_DEPTH {
            return Err(SchemaError::TooDeep);
        }
        self.fields += message.field.len();
        if self.fields > MAX_SCHEMA_FIELDS {
            return Err(SchemaError::TooManyFields);
        }
        for inner in &message.enum_type {
            self.enums.insert(join(&path, inner.name()), ());
        }
        self.by_path.insert(path.clone(), self.messages.len());
        self.messages.push((path.clone(), message));
        // A type takes bytes in a bounded schema, so their number is bounded too.
        for inner in &message.nested_type {
            self.collect(inner, join(&path, inner.name()), depth + 1)?;
        }
        Ok(())
    }

    fn table(&self, path: &str, message: &DescriptorProto) -> Result<Table, SchemaError> {
        let mut table = Table::default();
        for field in &message.field {
            let wrong = || SchemaError::Field(join(path, field.name()));
            let number =
                u32::try_from(field.number()).ok().filter(|n| (1..=MAX_FIELD).contains(n)).ok_or_else(wrong)?;
            let form = self.form(path, field)?;
            let required = (field.label() == Label::Required).then(|| {
                table.required.push(number);
                u32::try_from(table.required.len() - 1).unwrap_or(u32::MAX)
            });
            let kind = match form {
                Form::Message(_) => Type::Message,
                Form::Group(_) => Type::Group,
                _ if field.r#type.is_none() => Type::Enum,
                _ => field.r#type(),
            };
            let repeated = field.label() == Label::Repeated;
            let entry = Field { form, repeated, required, kind, name: field.name().into() };
            if table.fields.insert(number, entry).is_some() {
                return Err(wrong());
            }
        }
        Ok(table)
    }

    fn form(&self, path: &str, field: &FieldDescriptorProto) -> Result<Form, SchemaError> {
        // `type` may be absent when `type_name` is there; then the name says whether it is a message or an enum.
        let declared = match field.r#type {
            Some(number) => Some(Type::try_from(number).map_err(|_| SchemaError::Field(join(path, field.name())))?),
            None => None,
        };
        let foreign = || SchemaError::NotSelfContained(join(path, field.name()));
        Ok(match declared {
            Some(Type::Double | Type::Fixed64 | Type::Sfixed64) => Form::Fixed64,
            Some(Type::Float | Type::Fixed32 | Type::Sfixed32) => Form::Fixed32,
            Some(
                Type::Int64 | Type::Uint64 | Type::Int32 | Type::Uint32 | Type::Bool | Type::Sint32 | Type::Sint64,
            ) => Form::Varint,
            Some(Type::String) => Form::Text,
            Some(Type::Bytes) => Form::Bytes,
            Some(Type::Enum) => {
                self.find(path, field.type_name(), |name| self.enums.get(name).copied()).ok_or_else(foreign)?;
                Form::Varint
            }
            Some(kind @ (Type::Message | Type::Group)) => {
                let at =
                    self.find(path, field.type_name(), |name| self.by_path.get(name).copied()).ok_or_else(foreign)?;
                if kind == Type::Group { Form::Group(at) } else { Form::Message(at) }
            }
            None if field.type_name().is_empty() => return Err(SchemaError::Field(join(path, field.name()))),
            None => match self.find(path, field.type_name(), |name| self.by_path.get(name).copied()) {
                Some(at) => Form::Message(at),
                None => {
                    self.find(path, field.type_name(), |name| self.enums.get(name).copied()).ok_or_else(foreign)?;
                    Form::Varint
                }
            },
        })
    }

    /// Finds a type by its name as written. A full name (`.package.Root.Inner`) is found by what follows the
    /// root's name, since the package is not part of the descriptor; a relative one from the inside outwards.
    fn find<T>(&self, scope: &str, name: &str, known: impl Fn(&str) -> Option<T>) -> Option<T> {
        if let Some(full) = name.strip_prefix('.') {
            let parts: Vec<&str> = full.split('.').collect();
            // The last occurrence first: a package may end in the root's name.
            return (0..parts.len())
                .rev()
                .filter(|at| parts.get(*at) == Some(&self.root))
                .find_map(|at| known(&parts.get(at + 1..).unwrap_or_default().join(".")));
        }
        let mut scope = scope;
        loop {
            if let Some(found) = known(&join(scope, name)) {
                return Some(found);
            }
            if scope.is_empty() {
                return if name == self.root { known("") } else { None };
            }
            scope = scope.rsplit_once('.').map_or("", |(outer, _)| outer);
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

struct Walk<'a> {
    schema: &'a ProtoSchema,
    bytes: &'a [u8],
    at: usize,
}

impl Walk<'_> {
    /// One message up to `end`, or up to the end mark of group `group`.
    fn message(&mut self, message: usize, end: usize, group: Option<u32>, depth: usize) -> Result<(), ProtoError> {
        if depth > MAX_BINARY_DEPTH {
            return Err(ProtoError::TooDeep(self.at));
        }
        let schema = self.schema;
        let required = schema.messages.get(message).map_or(&[][..], |table| &table.required);
        let mut seen = vec![0u64; required.len().div_ceil(64)];
        loop {
            if self.at >= end {
                if group.is_some() {
                    return Err(ProtoError::Ends(self.at));
                }
                break;
            }
            let start = self.at;
            let (number, wire) = self.tag(end)?;
            if wire == 4 {
                if group == Some(number) {
                    break;
                }
                return Err(ProtoError::Tag(start));
            }
            let Some(field) = schema.field(message, number) else {
                self.skip(number, wire, end, start, depth)?;
                continue;
            };
            if let Some(place) = field.required
                && let Some(word) = seen.get_mut(place as usize / 64)
            {
                *word |= 1 << (place % 64);
            }
            self.field(number, wire, field, end, start, depth)?;
        }
        for (place, field) in required.iter().enumerate() {
            if seen.get(place / 64).is_none_or(|word| word >> (place % 64) & 1 == 0) {
                return Err(ProtoError::Missing { field: *field });
            }
        }
        Ok(())
    }

    fn field(
        &mut self,
        number: u32,
        wire: u8,
        field: &Field,
        end: usize,
        start: usize,
        depth: usize,
    ) -> Result<(), ProtoError> {
        match (field.form, wire) {
            (Form::Varint, 0) => self.varint(end).map(drop),
            (Form::Fixed64, 1) => self.step(8, end),
            (Form::Fixed32, 5) => self.step(4, end),
            (Form::Bytes, 2) => self.length(end).map(|to| self.at = to),
            (Form::Text, 2) => {
                let to = self.length(end)?;
                let text = self.bytes.get(self.at..to).unwrap_or_default();
                if std::str::from_utf8(text).is_err() {
                    return Err(ProtoError::Utf8 { field: number, at: self.at });
                }
                self.at = to;
                Ok(())
            }
            (Form::Message(inner), 2) => {
                let to = self.length(end)?;
                self.message(inner, to, None, depth + 1)
            }
            (Form::Group(inner), 3) => self.message(inner, end, Some(number), depth + 1),
            // A repeated number may come packed, whatever the descriptor prefers.
            (Form::Varint, 2) if field.repeated => {
                let to = self.length(end)?;
                while self.at < to {
                    self.varint(to)?;
                }
                Ok(())
            }
            (Form::Fixed64, 2) if field.repeated => self.packed(8, number, end, start),
            (Form::Fixed32, 2) if field.repeated => self.packed(4, number, end, start),
            _ => Err(ProtoError::WireType { field: number, at: start }),
        }
    }

    fn packed(&mut self, width: usize, number: u32, end: usize, start: usize) -> Result<(), ProtoError> {
        let to = self.length(end)?;
        if !(to - self.at).is_multiple_of(width) {
            return Err(ProtoError::WireType { field: number, at: start });
        }
        self.at = to;
        Ok(())
    }

    fn tag(&mut self, end: usize) -> Result<(u32, u8), ProtoError> {
        let start = self.at;
        let tag = self.varint(end)?;
        let number = u32::try_from(tag >> 3).ok().filter(|n| (1..=MAX_FIELD).contains(n));
        match number {
            Some(number) => Ok((number, (tag & 7) as u8)),
            None => Err(ProtoError::Tag(start)),
        }
    }

    fn varint(&mut self, end: usize) -> Result<u64, ProtoError> {
        let start = self.at;
        let mut value = 0u64;
        for shift in 0..10u32 {
            if self.at >= end {
                return Err(ProtoError::Ends(self.at));
            }
            let Some(byte) = self.bytes.get(self.at) else { return Err(ProtoError::Ends(self.at)) };
            self.at += 1;
            if shift == 9 && *byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << (shift * 7);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ProtoError::Tag(start))
    }

    fn step(&mut self, width: usize, end: usize) -> Result<(), ProtoError> {
        match self.at.checked_add(width) {
            Some(to) if to <= end => {
                self.at = to;
                Ok(())
            }
            _ => Err(ProtoError::Ends(self.at)),
        }
    }

    /// Where a length-delimited value ends; it lies before `end`.
    fn length(&mut self, end: usize) -> Result<usize, ProtoError> {
        let length = self.varint(end)?;
        let to = usize::try_from(length).ok().and_then(|length| self.at.checked_add(length));
        to.filter(|to| *to <= end).ok_or(ProtoError::Ends(self.at))
    }

    /// A field that the schema does not know.
    fn skip(&mut self, number: u32, wire: u8, end: usize, start: usize, depth: usize) -> Result<(), ProtoError> {
        match wire {
            0 => self.varint(end).map(drop),
            1 => self.step(8, end),
            2 => self.length(end).map(|to| self.at = to),
            3 => {
                if depth >= MAX_BINARY_DEPTH {
                    return Err(ProtoError::TooDeep(start));
                }
                loop {
                    let inner_start = self.at;
                    let (inner, wire) = self.tag(end)?;
                    if wire == 4 {
                        return if inner == number { Ok(()) } else { Err(ProtoError::Tag(inner_start)) };
                    }
                    self.skip(inner, wire, end, inner_start, depth + 1)?;
                }
            }
            5 => self.step(4, end),
            _ => Err(ProtoError::Tag(start)),
        }
    }
}

#[cfg(test)]
mod tests;
