use proptest::prelude::*;
use prost_types::{EnumDescriptorProto, FileDescriptorProto};

use super::*;

fn field(name: &str, number: i32, kind: Type, label: Label, type_name: Option<&str>) -> FieldDescriptorProto {
    FieldDescriptorProto {
        name: Some(name.into()),
        number: Some(number),
        label: Some(label as i32),
        r#type: Some(kind as i32),
        type_name: type_name.map(str::to_owned),
        ..Default::default()
    }
}

fn orders() -> DescriptorProto {
    DescriptorProto {
        name: Some("Order".into()),
        field: vec![
            field("id", 1, Type::Int64, Label::Required, None),
            field("name", 2, Type::String, Label::Optional, None),
            field("items", 3, Type::Message, Label::Repeated, Some(".shop.v1.Order.Item")),
            field("prices", 4, Type::Double, Label::Repeated, None),
            field("flags", 5, Type::Uint32, Label::Repeated, None),
            field("kind", 6, Type::Enum, Label::Optional, Some("Kind")),
            field("parent", 7, Type::Message, Label::Optional, Some(".shop.v1.Order")),
            field("raw", 8, Type::Bytes, Label::Optional, None),
            field("checksum", 9, Type::Fixed32, Label::Optional, None),
        ],
        nested_type: vec![DescriptorProto {
            name: Some("Item".into()),
            field: vec![field("sku", 1, Type::String, Label::Optional, None)],
            ..Default::default()
        }],
        enum_type: vec![EnumDescriptorProto { name: Some("Kind".into()), ..Default::default() }],
        ..Default::default()
    }
}

fn schema() -> ProtoSchema {
    ProtoSchema::parse(&orders().encode_to_vec()).expect("the schema is valid")
}

/// Would catch a wire type or nested type that is judged by the wrong field.
#[test]
fn well_formed_messages_pass_and_others_are_named() {
    let schema = schema();
    let good: [&[u8]; 8] = [
        &[0x08, 0x01],
        &[0x08, 0x01, 0x12, 0x02, 0xc3, 0xa9],
        &[0x08, 0x01, 0x1a, 0x03, 0x0a, 0x01, b'x'],
        &[0x08, 0x01, 0x22, 0x08, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0x08, 0x01, 0x2a, 0x02, 0x01, 0x02, 0x28, 0x03],
        &[0x08, 0x01, 0x3a, 0x02, 0x08, 0x05],
        // An unknown field, and an unknown group with a field inside.
        &[0x08, 0x01, 0xa0, 0x06, 0x01, 0xa3, 0x06, 0x08, 0x01, 0xa4, 0x06],
        &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
    ];
    for bytes in good {
        assert_eq!(schema.check(bytes), Ok(()), "{bytes:x?}");
    }
    assert_eq!(schema.check(&[]), Err(ProtoError::Missing { field: 1 }));
    assert_eq!(schema.check(&[0x08]), Err(ProtoError::Ends(1)));
    assert_eq!(schema.check(&[0x0a, 0x01, 0x00]), Err(ProtoError::WireType { field: 1, at: 0 }));
    assert_eq!(schema.check(&[0x08, 1, 0x12, 1, 0xff]), Err(ProtoError::Utf8 { field: 2, at: 4 }));
    assert_eq!(schema.check(&[0x08, 1, 0x1a, 9, 0x0a]), Err(ProtoError::Ends(4)));
    // A nested text that reaches past its message.
    assert_eq!(schema.check(&[0x08, 1, 0x1a, 2, 0x0a, 3, b'a', b'b', b'c']), Err(ProtoError::Ends(6)));
    assert_eq!(schema.check(&[0x08, 1, 0x22, 3, 0, 0, 0]), Err(ProtoError::WireType { field: 4, at: 2 }));
    assert_eq!(schema.check(&[0x00]), Err(ProtoError::Tag(0)));
    assert_eq!(schema.check(&[0x08, 1, 0x0c]), Err(ProtoError::Tag(2)));
    assert_eq!(schema.check(&[0xff; 12]), Err(ProtoError::Tag(0)));
}

/// Would catch a recursion that follows the input.
#[test]
fn depth_is_bounded() {
    let schema = schema();
    let mut bytes = vec![0x08, 0x01];
    for _ in 0..200 {
        let mut outer = vec![0x08, 0x01, 0x3a];
        prost::encoding::encode_varint(bytes.len() as u64, &mut outer);
        outer.extend_from_slice(&bytes);
        bytes = outer;
    }
    assert!(matches!(schema.check(&bytes), Err(ProtoError::TooDeep(_))));
    assert!(matches!(schema.check(&[0xa3, 0x06].repeat(100_000)), Err(ProtoError::TooDeep(_))));
}

/// Would catch a schema that is taken although records cannot be judged by it.
#[test]
fn a_descriptor_is_self_contained_and_bounded() {
    let parse = |message: &DescriptorProto| ProtoSchema::parse(&message.encode_to_vec()).map(drop);
    let mut foreign = orders();
    foreign.field.push(field("at", 20, Type::Message, Label::Optional, Some(".google.protobuf.Timestamp")));
    assert_eq!(parse(&foreign), Err(SchemaError::NotSelfContained("at".into())));
    let mut twice = orders();
    twice.field.push(field("again", 1, Type::Int64, Label::Optional, None));
    assert_eq!(parse(&twice), Err(SchemaError::Field("again".into())));
    let mut zero = orders();
    zero.field.push(field("zero", 0, Type::Int64, Label::Optional, None));
    assert_eq!(parse(&zero), Err(SchemaError::Field("zero".into())));
    let many = (1..=2_001).map(|n| field("f", n, Type::Int64, Label::Optional, None)).collect();
    assert_eq!(parse(&DescriptorProto { field: many, ..Default::default() }), Err(SchemaError::TooManyFields));
    assert_eq!(ProtoSchema::parse(&[0xff; 10]).map(drop), Err(SchemaError::NotADescriptor));
    assert_eq!(ProtoSchema::parse(&vec![0; MAX_SCHEMA_BYTES + 1]).map(drop), Err(SchemaError::TooLarge(1_048_577)));
}

/// Would catch a validator that refuses what a real encoder writes: descriptors are messages themselves.
#[test]
fn a_descriptor_of_descriptors_takes_descriptors() {
    let name = |name: &str, number| field(name, number, Type::String, Label::Optional, None);
    let me = DescriptorProto {
        name: Some("DescriptorProto".into()),
        field: vec![
            name("name", 1),
            field("field", 2, Type::Message, Label::Repeated, Some("Field")),
            field("nested_type", 3, Type::Message, Label::Repeated, Some("DescriptorProto")),
        ],
        nested_type: vec![DescriptorProto {
            name: Some("Field".into()),
            field: vec![
                name("name", 1),
                field("number", 3, Type::Int32, Label::Optional, None),
                field("label", 4, Type::Int32, Label::Optional, None),
                field("type", 5, Type::Int32, Label::Optional, None),
                name("type_name", 6),
            ],
            ..Default::default()
        }],
        ..Default::default()
    };
    let schema = ProtoSchema::parse(&me.encode_to_vec()).expect("the schema is valid");
    assert_eq!(schema.check(&orders().encode_to_vec()), Ok(()));
    let file = FileDescriptorProto { name: Some("x".into()), ..Default::default() };
    assert_eq!(schema.check(&file.encode_to_vec()), Ok(()));
}

proptest! {
    /// Would catch a panic on any bytes, as a record and as a descriptor.
    #[test]
    fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        let _ = schema().check(&bytes);
        let _ = ProtoSchema::parse(&bytes);
    }
}
