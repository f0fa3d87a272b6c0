//! Whether records of a new schema and of an old one can be read by each other's readers (G12).

use std::collections::HashSet;

use prost_types::field_descriptor_proto::Type;

use super::{Field, Form, MAX_FIELD, ProtoSchema, join};

/// At most so many contradictions are named.
const MOST_NAMED: usize = 20;

/// Types with one wire family are read as each other.
#[derive(Debug, PartialEq, Eq)]
enum Family {
    Integer,
    ZigZag,
    Fixed32,
    Fixed64,
    Itself(Type),
}

fn family(kind: Type) -> Family {
    match kind {
        Type::Int32 | Type::Int64 | Type::Uint32 | Type::Uint64 | Type::Bool | Type::Enum => Family::Integer,
        Type::Sint32 | Type::Sint64 => Family::ZigZag,
        Type::Fixed32 | Type::Sfixed32 => Family::Fixed32,
        Type::Fixed64 | Type::Sfixed64 => Family::Fixed64,
        Type::Double | Type::Float | Type::String | Type::Bytes | Type::Message | Type::Group => Family::Itself(kind),
    }
}

impl Field {
    fn has_the_cardinality_of(&self, other: &Field) -> bool {
        self.repeated == other.repeated && self.required.is_some() == other.required.is_some()
    }
}

impl ProtoSchema {
    /// The paths of the fields at which `self`, the newer one, contradicts `old`; empty: they go together. A number
    /// that was removed is found by comparing with every schema that ever had it.
    pub(crate) fn contradictions(&self, old: &ProtoSchema) -> Vec<String> {
        let mut compared = HashSet::new();
        let mut todo = vec![(0, 0, String::new())];
        let mut found = Vec::new();
        while let Some((new_message, old_message, path)) = todo.pop() {
            if !compared.insert((new_message, old_message)) || found.len() >= MOST_NAMED {
                continue;
            }
            let (Some(new), Some(old)) = (self.messages.get(new_message), old.messages.get(old_message)) else {
                continue;
            };
            let mut numbers: Vec<_> = new.fields.iter().collect();
            numbers.sort_by_key(|(number, _)| **number);
            for (number, field) in numbers {
                debug_assert!(*number <= MAX_FIELD, "the schema was parsed");
                let path = join(&path, &field.name);
                match old.fields.get(number) {
                    None if field.required.is_some() => found.push(format!("{path} ({number}): new and required")),
                    None => {}
                    Some(before) if family(before.kind) != family(field.kind) => {
                        found.push(format!("{path} ({number}): its type was {:?}, now {:?}", before.kind, field.kind));
                    }
                    Some(before) if !field.has_the_cardinality_of(before) => {
                        found.push(format!("{path} ({number}): it was optional, required or repeated otherwise"));
                    }
                    Some(before) => {
                        if let (Form::Message(new) | Form::Group(new), Form::Message(old) | Form::Group(old)) =
                            (field.form, before.form)
                        {
                            todo.push((new, old, path));
                        }
                    }
                }
            }
        }
        found.truncate(MOST_NAMED);
        found
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use prost_types::field_descriptor_proto::Label;
    use prost_types::{DescriptorProto, FieldDescriptorProto};

    use super::*;

    type Fields<'a> = &'a [(&'a str, i32, Type, Label)];

    fn schema(fields: Fields<'_>, inner: Fields<'_>) -> ProtoSchema {
        let field = |(name, number, kind, label): &(&str, i32, Type, Label)| FieldDescriptorProto {
            name: Some((*name).into()),
            number: Some(*number),
            label: Some(*label as i32),
            r#type: Some(*kind as i32),
            type_name: (*kind == Type::Message).then(|| ".p.Root.Inner".into()),
            ..Default::default()
        };
        let message = |name: &str, fields: Fields<'_>, nested_type| DescriptorProto {
            name: Some(name.into()),
            field: fields.iter().map(field).collect(),
            nested_type,
            ..Default::default()
        };
        let root = message("Root", fields, vec![message("Inner", inner, vec![])]);
        ProtoSchema::parse(&root.encode_to_vec()).expect("the schema is valid")
    }

    /// Would catch a change that old or new readers misread, and a harmless one that is refused.
    #[test]
    fn schemas_go_together_by_number_family_and_cardinality() {
        use Label::{Optional, Repeated, Required};
        let old = schema(
            &[("id", 1, Type::Int32, Optional), ("at", 2, Type::Fixed64, Optional), ("in", 3, Type::Message, Optional)],
            &[("x", 1, Type::String, Optional), ("loop", 2, Type::Message, Optional)],
        );
        let fine = schema(
            &[
                ("renamed", 1, Type::Uint64, Optional),
                ("in", 3, Type::Message, Optional),
                ("more", 4, Type::Double, Repeated),
            ],
            &[("x", 1, Type::String, Optional), ("loop", 2, Type::Message, Optional)],
        );
        assert!(fine.contradictions(&old).is_empty() && old.contradictions(&fine).is_empty());
        let wrong = schema(
            &[
                ("id", 1, Type::Sint32, Optional),
                ("at", 2, Type::Fixed64, Repeated),
                ("in", 3, Type::Message, Optional),
                ("must", 9, Type::Int32, Required),
            ],
            &[("x", 1, Type::Bytes, Optional)],
        );
        assert_eq!(
            wrong.contradictions(&old),
            [
                "id (1): its type was Int32, now Sint32",
                "at (2): it was optional, required or repeated otherwise",
                "must (9): new and required",
                "in.x (1): its type was String, now Bytes",
            ]
        );
    }
}
