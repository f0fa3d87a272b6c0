//! Every type of the table in `docs/postgres-types.md`: exact values, misfits by policy, and texts that no server sends.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Decimal128Type, Decimal256Type, DecimalType, Float32Type, Float64Type, Int16Type,
    Int32Type, Int64Type, Time64MicrosecondType, TimestampMicrosecondType, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, TimeUnit};
use proptest::prelude::*;

use super::*;
use crate::PgType;

fn other() -> PgType {
    PgType::Other("inet".into())
}

fn array_of(element: PgType, delimiter: char) -> PgType {
    PgType::Array { element: Box::new(element), delimiter }
}

fn column(kind: &PgType, policies: &Policies, target: Target) -> Column {
    Column::new(kind, &arrow_type(kind, policies, target), policies, false)
}

/// The column of these texts, with what policies did.
fn read(kind: &PgType, policies: &Policies, texts: &[&[u8]]) -> Result<(ArrayRef, Tally), Fault> {
    let mut column = column(kind, policies, Target::Arrow);
    let mut tally = Tally::default();
    for text in texts {
        column.push_text(text, &mut tally)?;
    }
    let array = column.finish().expect("an array");
    assert_eq!(*array.data_type(), arrow_type(kind, policies, Target::Arrow));
    assert_eq!(array.len(), texts.len());
    Ok((array, tally))
}

fn exact(kind: &PgType, text: &str) -> ArrayRef {
    let (array, tally) = read(kind, &Policies::default(), &[text.as_bytes()]).unwrap_or_else(|fault| {
        panic!("`{text}` as {kind:?}: {fault:?}");
    });
    assert_eq!(tally, Tally::default());
    assert!(array.is_valid(0));
    array
}

fn native<T: ArrowPrimitiveType>(kind: &PgType, text: &str) -> T::Native {
    exact(kind, text).as_primitive::<T>().value(0)
}

fn fault(kind: &PgType, text: &str) -> Fault {
    fault_under(kind, &Policies::default(), text)
}

fn fault_under(kind: &PgType, policies: &Policies, text: &str) -> Fault {
    read(kind, policies, &[text.as_bytes()]).map(|(array, _)| array).expect_err(text)
}

/// Catches an end of a range that wraps, is cut, or is refused.
#[test]
fn integers_are_exact_at_both_ends() {
    for (text, value) in [("-32768", i16::MIN), ("32767", i16::MAX), ("0", 0)] {
        assert_eq!(native::<Int16Type>(&PgType::Int2, text), value);
    }
    for (text, value) in [("-2147483648", i32::MIN), ("2147483647", i32::MAX)] {
        assert_eq!(native::<Int32Type>(&PgType::Int4, text), value);
    }
    for (text, value) in [("-9223372036854775808", i64::MIN), ("9223372036854775807", i64::MAX)] {
        assert_eq!(native::<Int64Type>(&PgType::Int8, text), value);
    }
    assert_eq!(native::<UInt32Type>(&PgType::Oid, "4294967295"), u32::MAX);
    assert_eq!(native::<UInt64Type>(&PgType::Xid8, "18446744073709551615"), u64::MAX);
    for (kind, texts) in [
        (PgType::Int2, ["32768", "-32769", ""]),
        (PgType::Int4, ["2147483648", "1.0", "--1"]),
        (PgType::Int8, ["9223372036854775808", "-9223372036854775809", "-"]),
        (PgType::Oid, ["4294967296", "-1", " 1"]),
        (PgType::Xid8, ["18446744073709551616", "99999999999999999999999", "1a"]),
        (PgType::Bool, ["true", "", "T"]),
    ] {
        for text in texts {
            assert_eq!(fault(&kind, text), Fault::Bad, "`{text}` as {kind:?}");
        }
    }
    assert!(exact(&PgType::Bool, "t").as_boolean().value(0));
    assert!(!exact(&PgType::Bool, "f").as_boolean().value(0));
}

/// Catches a float that loses its sign, its smallest values, or what is no number.
#[test]
fn floats_keep_every_bit_that_their_text_tells() {
    let double = |text| native::<Float64Type>(&PgType::Float8, text);
    assert!(double("NaN").is_nan());
    assert_eq!(double("Infinity"), f64::INFINITY);
    assert_eq!(double("-Infinity"), f64::NEG_INFINITY);
    assert!(double("-0").is_sign_negative() && double("-0") == 0.0);
    assert_eq!(double("5e-324"), 5e-324);
    assert_eq!(double("1.7976931348623157e+308"), f64::MAX);
    assert_eq!(native::<Float32Type>(&PgType::Float4, "1e-45"), 1e-45);
    assert_eq!(native::<Float32Type>(&PgType::Float4, "3.4028235e+38"), f32::MAX);
    assert_eq!(fault(&PgType::Float8, "1e999"), Fault::Bad);
    assert_eq!(fault(&PgType::Float4, "1e39"), Fault::Bad);
    for text in ["", "1,5", "0x1", "1e", "nan(1)"] {
        assert_eq!(fault(&PgType::Float8, text), Fault::Bad, "`{text}`");
    }
}

/// Catches a decimal with a digit too many or too few, and scales outside 0 to precision.
#[test]
fn decimals_are_exact_digit_for_digit() {
    let numeric = |precision, scale| PgType::Numeric(Some((precision, scale)));
    let decimal = |kind: &PgType, text: &str| native::<Decimal128Type>(kind, text);
    assert_eq!(decimal(&numeric(10, 2), "12345678.90"), 1_234_567_890);
    assert_eq!(decimal(&numeric(10, 2), "-0.01"), -1);
    assert_eq!(decimal(&numeric(10, 2), "0.00"), 0);
    assert_eq!(decimal(&numeric(38, 0), &"9".repeat(38)), 10i128.pow(38) - 1);
    assert_eq!(decimal(&numeric(38, 38), &format!("0.{}", "9".repeat(38))), 10i128.pow(38) - 1);
    // A negative scale rounds whole digits away, one above the precision fixes zeros behind the point.
    assert_eq!(arrow_type(&numeric(3, -2), &Policies::default(), Target::Arrow), DataType::Decimal128(5, 0));
    assert_eq!(decimal(&numeric(3, -2), "99900"), 99_900);
    assert_eq!(arrow_type(&numeric(3, 5), &Policies::default(), Target::Arrow), DataType::Decimal128(5, 5));
    assert_eq!(decimal(&numeric(3, 5), "0.00123"), 123);
    let wide = numeric(76, 4);
    assert_eq!(arrow_type(&wide, &Policies::default(), Target::Arrow), DataType::Decimal256(76, 4));
    let text = format!("-{}.{}", "9".repeat(72), "9876");
    let value = native::<Decimal256Type>(&wide, &text);
    assert_eq!(Decimal256Type::format_decimal(value, 76, 4), text);
    // Beyond 76 digits a number is its text.
    assert_eq!(arrow_type(&numeric(77, 0), &Policies::default(), Target::Arrow), DataType::Utf8);
    assert_eq!(arrow_type(&numeric(1_000, -1_000), &Policies::default(), Target::Arrow), DataType::Utf8);
    for text in ["", "-", ".", "1.2.3", "1e5", "+1", "1 ", "١"] {
        assert_eq!(fault(&numeric(10, 2), text), Fault::Bad, "`{text}`");
    }
}

/// Catches an unbounded number that is changed by a decimal that nobody asked for (F-P8).
#[test]
fn f_p8_a_numeric_without_modifier_is_its_text_unless_a_decimal_is_asked_for() {
    let unbounded = PgType::Numeric(None);
    for text in ["0.0012000", "NaN", "-Infinity", &format!("1{}", "0".repeat(131_071))] {
        assert_eq!(exact(&unbounded, text).as_string::<i32>().value(0), text);
    }
    let mut policies =
        Policies { numeric_unbounded: "decimal(6, 3)".parse().expect("a decimal"), ..Policies::default() };
    let scaled = |policies: &Policies, text: &str| {
        read(&unbounded, policies, &[text.as_bytes()])
            .map(|(array, tally)| (array.is_valid(0).then(|| array.as_primitive::<Decimal128Type>().value(0)), tally))
    };
    assert_eq!(scaled(&policies, "999.999").expect("fits").0, Some(999_999));
    assert_eq!(scaled(&policies, "0.0010000").expect("zeros say nothing").0, Some(1));
    assert_eq!(fault_under(&unbounded, &policies, "1000"), Fault::Beyond);
    assert_eq!(fault_under(&unbounded, &policies, "0.0001"), Fault::Beyond);
    assert_eq!(fault_under(&unbounded, &policies, "NaN"), Fault::NotANumber);
    assert_eq!(fault_under(&unbounded, &policies, "Infinity"), Fault::Infinite);
    policies.out_of_range = Some(RangePolicy::Clamp);
    policies.infinity = RangePolicy::Clamp;
    policies.nan = NanPolicy::Null;
    for (text, value) in [
        ("-1000", -999_999),
        ("1e5", 0),
        ("Infinity", 999_999),
        ("-Infinity", -999_999),
        ("0.0005", 1),
        ("0.0004999", 0),
        ("-0.0005", -1),
        ("999.9995", 999_999),
    ] {
        if text == "1e5" {
            assert_eq!(fault_under(&unbounded, &policies, text), Fault::Bad);
            continue;
        }
        let (read, tally) = scaled(&policies, text).expect(text);
        assert_eq!((read, tally.clamped), (Some(value), 1), "`{text}`");
    }
    let (read, tally) = scaled(&policies, "NaN").expect("null");
    assert_eq!((read, tally), (None, Tally { nulled: 1, ..Tally::default() }));
    policies.nan = NanPolicy::Text;
    assert_eq!(arrow_type(&unbounded, &policies, Target::Arrow), DataType::Utf8);
    assert_eq!(arrow_type(&PgType::Numeric(Some((5, 2))), &policies, Target::Arrow), DataType::Utf8);
}

/// Catches a calendar that is wrong far from today, and an end of time that becomes a date (F-P7, FX-3).
#[test]
fn f_p7_dates_and_timestamps_are_exact_or_go_by_policy() {
    for (text, days) in [
        ("1970-01-01", 0),
        ("2000-02-29", 11_016),
        ("1556-05-29", -151_062),
        ("9999-12-31", 2_932_896),
        ("5874897-12-31", 2_145_042_905),
        ("0001-01-01", -719_162),
        ("0001-12-31 BC", -719_163),
        ("4713-01-01 BC", -2_440_550),
        ("4714-11-24 BC", -2_440_588),
    ] {
        assert_eq!(native::<Date32Type>(&PgType::Date, text), days, "`{text}`");
    }
    for text in
        ["1970-1-01", "1970-02-29", "0000-01-01", "1970-01-01 AD", "70-01-01", "5874898-01-01", "", "1970-01-01 BCE"]
    {
        assert_eq!(fault(&PgType::Date, text), Fault::Bad, "`{text}`");
    }
    let micros = |kind: &PgType, text| native::<TimestampMicrosecondType>(kind, text);
    assert_eq!(micros(&PgType::Timestamp, "1970-01-01 00:00:00"), 0);
    assert_eq!(micros(&PgType::Timestamp, "1969-12-31 23:59:59.5"), -500_000);
    assert_eq!(micros(&PgType::Timestamp, "294247-01-10 04:00:54.775807"), i64::MAX);
    assert_eq!(micros(&PgType::Timestamp, "4714-11-24 00:00:00 BC"), -210_866_803_200_000_000);
    assert_eq!(micros(&PgType::TimestampTz, "1970-01-01 00:19:32+00:19:32"), 0);
    assert_eq!(micros(&PgType::TimestampTz, "1969-12-31 18:30:00-05:30"), 0);
    assert_eq!(micros(&PgType::TimestampTz, "0001-12-31 23:59:59.999999+00 BC"), -62_135_596_800_000_001);
    for kind in [PgType::Timestamp, PgType::TimestampTz] {
        let zone = if kind == PgType::TimestampTz { "+00" } else { "" };
        assert_eq!(fault(&kind, &format!("294247-01-10 04:00:54.775808{zone}")), Fault::Beyond);
        assert_eq!(fault(&kind, &format!("294276-12-31 23:59:59.999999{zone}")), Fault::Beyond);
        assert_eq!(fault(&kind, "-infinity"), Fault::Infinite);
        for text in [
            "1970-01-01",
            "1970-01-01T00:00:00",
            "1970-01-01 25:00:00",
            "1970-01-01 00:00:00.1234567",
            "1970-01-01 00:00:00+",
        ] {
            assert_eq!(fault(&kind, &format!("{text}{zone}x")), Fault::Bad, "`{text}`");
        }
    }
    assert_eq!(fault(&PgType::TimestampTz, "1970-01-01 00:00:00"), Fault::Bad, "a zone is missing");
    assert_eq!(fault(&PgType::Timestamp, "1970-01-01 00:00:00+00"), Fault::Bad, "a zone too many");

    let clamp =
        Policies { infinity: RangePolicy::Clamp, out_of_range: Some(RangePolicy::Clamp), ..Policies::default() };
    let (dates, tally) = read(&PgType::Date, &clamp, &[b"infinity", b"-infinity"]).expect("clamped");
    assert_eq!(dates.as_primitive::<Date32Type>().values(), &[2_145_042_905, -2_440_588]);
    assert_eq!(tally.clamped, 2);
    let (times, tally) =
        read(&PgType::Timestamp, &clamp, &[b"294276-12-31 23:59:59.999999", b"infinity", b"-infinity"])
            .expect("clamped");
    assert_eq!(
        times.as_primitive::<TimestampMicrosecondType>().values(),
        &[i64::MAX, i64::MAX, -210_866_803_200_000_000]
    );
    assert_eq!(tally.clamped, 3);
    let null = Policies { infinity: RangePolicy::Null, ..Policies::default() };
    let (dates, tally) = read(&PgType::Date, &null, &[b"infinity", b"2000-01-01"]).expect("null");
    assert_eq!((dates.is_null(0), dates.is_valid(1), tally.nulled), (true, true, 1));
    for policies in [
        Policies { infinity: RangePolicy::Text, ..Policies::default() },
        Policies { out_of_range: Some(RangePolicy::Text), ..Policies::default() },
    ] {
        let (texts, _) = read(&PgType::TimestampTz, &policies, &[b"infinity"]).expect("text");
        assert_eq!(texts.as_string::<i32>().value(0), "infinity");
    }
}

/// Catches midnight at the end of a day that becomes midnight at its start.
#[test]
fn a_time_of_24_hours_is_never_another_time() {
    let default = Policies::default();
    assert_eq!(arrow_type(&PgType::Time, &default, Target::Arrow), DataType::Utf8);
    assert_eq!(exact(&PgType::Time, "24:00:00").as_string::<i32>().value(0), "24:00:00");
    let of = |policy| Policies { out_of_range: Some(policy), ..Policies::default() };
    assert_eq!(
        arrow_type(&PgType::Time, &of(RangePolicy::Error), Target::Arrow),
        DataType::Time64(TimeUnit::Microsecond)
    );
    assert_eq!(fault_under(&PgType::Time, &of(RangePolicy::Error), "24:00:00"), Fault::Beyond);
    let (times, tally) =
        read(&PgType::Time, &of(RangePolicy::Clamp), &[b"24:00:00", b"23:59:59.999999", b"00:00:00.000001"])
            .expect("clamped");
    assert_eq!(times.as_primitive::<Time64MicrosecondType>().values(), &[86_399_999_999, 86_399_999_999, 1]);
    assert_eq!(tally.clamped, 1);
    for text in ["24:00:00.000001", "1:00:00", "00:00", "00:00:60", "00:00:00+00"] {
        assert_eq!(fault_under(&PgType::Time, &of(RangePolicy::Clamp), text), Fault::Bad, "`{text}`");
    }
}

/// Catches text that is trimmed, unescaped twice, or taken for NULL.
#[test]
fn texts_are_kept_byte_for_byte() {
    let range = PgType::Other("int4range".into());
    let long = "x".repeat(100_000);
    for (kind, text) in [
        (PgType::Text, ""),
        (PgType::Text, "\\N"),
        (PgType::Text, "tab\t, line\n, return\r"),
        (PgType::Text, "\u{1f600}"),
        (PgType::Text, &long),
        (PgType::Char, "ab   "),
        (PgType::Money, "-$1,234.50"),
        (PgType::TimeTz, "01:02:03+00:19:32"),
        (PgType::Interval, "P-1M2DT0S"),
        (PgType::Enum, "it's \"so\""),
        (PgType::Json, "{\"a\": 1, \"a\": \"\\ud800\"}"),
        (PgType::Jsonb, "null"),
        (other(), "10.0.0.1/8"),
        (range.clone(), "empty"),
        (range, "(,5]"),
    ] {
        assert_eq!(exact(&kind, text).as_string::<i32>().value(0), text, "{kind:?}");
    }
}

/// Catches wrong bytes that land as they are, or that cost more than their policy says (SQL_ASCII).
#[test]
fn a_text_that_is_not_utf8_goes_by_its_policy() {
    let wrong: &[u8] = b"a\xffb";
    for kind in [PgType::Text, PgType::Json, PgType::Enum, other(), array_of(PgType::Text, ',')] {
        let text = if matches!(kind, PgType::Array { .. }) { &b"{a\xffb}"[..] } else { wrong };
        assert_eq!(read(&kind, &Policies::default(), &[text]).expect_err("not UTF-8"), Fault::NotUtf8);
    }
    let replace = Policies { invalid_text: InvalidText::Replace, ..Policies::default() };
    let (array, tally) = read(&PgType::Text, &replace, &[wrong]).expect("replaced");
    assert_eq!((array.as_string::<i32>().value(0), tally.replaced), ("a\u{fffd}b", 1));
    let binary = Policies { invalid_text: InvalidText::Binary, ..Policies::default() };
    let (array, _) = read(&PgType::Text, &binary, &[wrong]).expect("bytes");
    assert_eq!(array.as_binary::<i32>().value(0), wrong);
}

/// Catches bytes that are made up from half a digit pair.
#[test]
fn bytes_and_uuids_are_exact() {
    let bytes = |text| exact(&PgType::Bytea, text).as_binary::<i32>().value(0).to_vec();
    assert_eq!(bytes("\\x"), b"");
    assert_eq!(bytes("\\x00fF10"), b"\x00\xff\x10");
    for text in ["", "\\x0", "\\xg0", "00ff", "\\000"] {
        assert_eq!(fault(&PgType::Bytea, text), Fault::Bad, "`{text}`");
    }
    let uuid = |text| exact(&PgType::Uuid, text).as_fixed_size_binary().value(0).to_vec();
    assert_eq!(uuid("00000000-0000-0000-0000-000000000000"), [0; 16]);
    assert_eq!(
        uuid("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        [0xa0, 0xee, 0xbc, 0x99, 0x9c, 0x0b, 0x4e, 0xf8, 0xbb, 0x6d, 0x6b, 0xb9, 0xbd, 0x38, 0x0a, 0x11]
    );
    for text in [
        "",
        "a0eebc999c0b4ef8bb6d6bb9bd380a11",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a1",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a111",
    ] {
        assert_eq!(fault(&PgType::Uuid, text), Fault::Bad, "`{text}`");
    }
}

/// Catches an element that is split, joined, or taken for NULL; and dimensions that are flattened.
#[test]
fn arrays_are_lists_of_their_elements() {
    let ints = array_of(PgType::Int4, ',');
    let list = |kind: &PgType, text| exact(kind, text).as_list::<i32>().value(0);
    assert_eq!(list(&ints, "{}").len(), 0);
    assert_eq!(
        list(&ints, "{1,-2,NULL}").as_primitive::<Int32Type>().iter().collect::<Vec<_>>(),
        [Some(1), Some(-2), None]
    );
    let texts = |kind: &PgType, text| {
        list(kind, text).as_string::<i32>().iter().map(|text| text.map(str::to_owned)).collect::<Vec<_>>()
    };
    let some = |text: &str| Some(text.to_owned());
    let of_text = array_of(PgType::Text, ',');
    assert_eq!(texts(&of_text, r#"{NULL,"NULL","",a b}"#), [None, some("NULL"), some(""), some("a b")]);
    assert_eq!(
        texts(&of_text, r#"{"a{b","c,d","e\"f","\\","g\\h}"}"#),
        [some("a{b"), some("c,d"), some("e\"f"), some("\\"), some("g\\h}")]
    );
    let boxes = array_of(PgType::Other("box".into()), ';');
    assert_eq!(texts(&boxes, "{(1,1),(0,0);(3,3),(2,2)}"), [some("(1,1),(0,0)"), some("(3,3),(2,2)")]);
    let zones = array_of(PgType::TimeTz, ',');
    assert_eq!(texts(&zones, "{01:02:03+02,04:05:06-00:19:32}"), [some("01:02:03+02"), some("04:05:06-00:19:32")]);
    let floats = list(&array_of(PgType::Float8, ','), "{1.5,NaN,NULL,-Infinity}");
    let floats = floats.as_primitive::<Float64Type>();
    assert!(
        floats.value(0) == 1.5 && floats.value(1).is_nan() && floats.is_null(2) && floats.value(3) == f64::NEG_INFINITY
    );

    // A lower bound is dropped and counted.
    let (shifted, tally) = read(&ints, &Policies::default(), &[b"[0:1]={7,8}", b"[1:2]={7,8}"]).expect("lists");
    assert_eq!(shifted.as_list::<i32>().value(0).as_primitive::<Int32Type>().values(), &[7, 8]);
    assert_eq!(tally.shifted, 1);
    for text in ["{{1,2},{3,4}}", "[1:1][-2:-1]={{1,2}}"] {
        assert_eq!(fault(&ints, text), Fault::ManyDimensions, "`{text}`");
        let as_text = Policies { array_shape: ArrayShape::Text, ..Policies::default() };
        let (array, _) = read(&ints, &as_text, &[text.as_bytes()]).expect("text");
        assert_eq!(array.as_string::<i32>().value(0), text);
    }
    for text in [
        "",
        "{",
        "}",
        "{1",
        "{1,}",
        "{,1}",
        "{1}2",
        "{1 2}",
        "{\"1\"2}",
        "[0:1]{1,2}",
        "[0]={1}",
        "{\"1",
        "{\"\\",
        "[a:b]={1}",
    ] {
        assert_eq!(fault(&ints, text), Fault::Bad, "`{text}`");
    }
    // An array inside an array is one of a domain over arrays; it is quoted like any other element.
    let nested = list(&array_of(ints, ','), r#"{"{1,2}",NULL,"{}"}"#);
    let nested = nested.as_list::<i32>();
    assert_eq!((nested.value(0).len(), nested.is_null(1), nested.value(2).len()), (2, true, 0));
}

/// Catches a target that is given what it cannot hold, or a fall-back that changes a value.
#[test]
fn a_delta_target_gets_the_nearest_exact_form() {
    let range = Policies { out_of_range: Some(RangePolicy::Error), ..Policies::default() };
    for (kind, policies, data_type) in [
        (PgType::Oid, Policies::default(), DataType::Int64),
        (PgType::Xid8, Policies::default(), DataType::Decimal128(20, 0)),
        (PgType::Uuid, Policies::default(), DataType::Utf8),
        (PgType::Time, range, DataType::Utf8),
        (PgType::Numeric(Some((38, 3))), Policies::default(), DataType::Decimal128(38, 3)),
        (PgType::Numeric(Some((39, 3))), Policies::default(), DataType::Utf8),
    ] {
        assert_eq!(arrow_type(&kind, &policies, Target::Delta), data_type, "{kind:?}");
        let DataType::List(item) = arrow_type(&array_of(kind.clone(), ','), &policies, Target::Delta) else {
            panic!("a list of {kind:?}")
        };
        assert_eq!(*item.data_type(), data_type, "elements as well");
    }
    let mut tally = Tally::default();
    let mut xids = column(&PgType::Xid8, &Policies::default(), Target::Delta);
    xids.push_text(b"18446744073709551615", &mut tally).expect("fits");
    assert_eq!(xids.finish().expect("an array").as_primitive::<Decimal128Type>().value(0), i128::from(u64::MAX));
    let mut oids = column(&PgType::Oid, &Policies::default(), Target::Delta);
    oids.push_text(b"4294967295", &mut tally).expect("fits");
    assert_eq!(oids.push_text(b"4294967296", &mut tally), Err(Fault::Bad), "no oid, though an Int64");
    oids.cut(1);
    assert_eq!(oids.finish().expect("an array").as_primitive::<Int64Type>().value(0), 4_294_967_295);
}

/// Catches a policy that makes a key NULL.
#[test]
fn a_key_is_never_nulled_by_a_policy() {
    let policies = Policies {
        infinity: RangePolicy::Null,
        nan: NanPolicy::Null,
        out_of_range: Some(RangePolicy::Null),
        ..Policies::default()
    };
    let mut tally = Tally::default();
    for (kind, text) in [(PgType::Date, "infinity"), (PgType::Numeric(Some((5, 2))), "NaN"), (PgType::Time, "24:00:00")]
    {
        let data_type = arrow_type(&kind, &policies, Target::Arrow);
        let mut key = Column::new(&kind, &data_type, &policies, true);
        assert!(key.push_text(text.as_bytes(), &mut tally).is_err(), "{kind:?}");
    }
    assert_eq!(tally, Tally::default());
}

/// Catches an option's word that does something else than it says.
#[test]
fn policies_read_their_words() {
    assert_eq!("clamp".parse(), Ok(RangePolicy::Clamp));
    assert_eq!("decimal(38,9)".parse(), Ok(NumericUnbounded::Decimal { precision: 38, scale: 9 }));
    assert_eq!(NumericUnbounded::Decimal { precision: 38, scale: 9 }.to_string(), "decimal(38,9)");
    for word in ["decimal(77,0)", "decimal(5,6)", "decimal(5,-1)", "decimal(0,0)", "decimal", "decimal(5)", ""] {
        assert!(word.parse::<NumericUnbounded>().is_err(), "{word}");
    }
    let error = "clamp".parse::<NanPolicy>().expect_err("NaN has no nearest number");
    assert_eq!(error.to_string(), "`values.nan: clamp` is not offered: write one of error, null, text");
}

/// Catches a cut that leaves something of a failed value, deep inside a list too.
#[test]
fn a_failed_value_leaves_no_trace() {
    let kind = array_of(PgType::Text, ',');
    let mut tally = Tally::default();
    let mut one = column(&kind, &Policies::default(), Target::Arrow);
    let mut other = column(&kind, &Policies::default(), Target::Arrow);
    for text in [&b"{a,b}"[..], b"{c,d,\xff}", b"{e}", b"{f,{g}}", b"{h"] {
        let len = one.len();
        match one.push_text(text, &mut tally) {
            Ok(()) => other.push_text(text, &mut tally).expect("taken before"),
            Err(_) => one.cut(len),
        }
    }
    one.push_null();
    other.push_null();
    assert_eq!(&one.finish().expect("an array"), &other.finish().expect("an array"));
    assert_eq!(one.len(), 0, "starts anew");
}

fn kinds() -> Vec<PgType> {
    let mut kinds = vec![
        PgType::Bool,
        PgType::Int2,
        PgType::Int4,
        PgType::Int8,
        PgType::Oid,
        PgType::Xid8,
        PgType::Float4,
        PgType::Float8,
        PgType::Numeric(None),
        PgType::Numeric(Some((10, 2))),
        PgType::Numeric(Some((60, 7))),
        PgType::Money,
        PgType::Text,
        PgType::Char,
        PgType::Bytea,
        PgType::Date,
        PgType::Timestamp,
        PgType::TimestampTz,
        PgType::Time,
        PgType::TimeTz,
        PgType::Interval,
        PgType::Uuid,
        PgType::Json,
        PgType::Jsonb,
        PgType::Enum,
        other(),
    ];
    let arrays: Vec<_> = kinds.iter().map(|kind| array_of(kind.clone(), ',')).collect();
    kinds.extend(arrays.iter().map(|kind| array_of(kind.clone(), ';')));
    kinds.extend(arrays);
    kinds
}

fn policies() -> impl Strategy<Value = Policies> {
    let range = || {
        prop_oneof![
            Just(RangePolicy::Error),
            Just(RangePolicy::Null),
            Just(RangePolicy::Clamp),
            Just(RangePolicy::Text)
        ]
    };
    (
        prop_oneof![Just(NanPolicy::Error), Just(NanPolicy::Null), Just(NanPolicy::Text)],
        range(),
        proptest::option::of(range()),
        prop_oneof![Just(InvalidText::Error), Just(InvalidText::Replace), Just(InvalidText::Binary)],
        prop_oneof![
            Just(NumericUnbounded::Text),
            (1u8..=76, 0i8..=76).prop_map(|(precision, scale)| NumericUnbounded::Decimal {
                precision,
                scale: scale.min(precision as i8),
            }),
        ],
        prop_oneof![Just(ArrayShape::Error), Just(ArrayShape::Text)],
    )
        .prop_map(|(nan, infinity, out_of_range, invalid_text, numeric_unbounded, array_shape)| Policies {
            nan,
            infinity,
            out_of_range,
            invalid_text,
            numeric_unbounded,
            array_shape,
        })
}

/// Texts near what the types' parsers look for, and some that are nowhere near.
fn texts() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        "[-+0-9.:{}\\[\\]\",;= BCNULeEx\\\\]{0,40}".prop_map(String::into_bytes),
        "-?[0-9]{1,90}(\\.[0-9]{0,90})?".prop_map(String::into_bytes),
        "[0-9]{1,8}-[0-9]{2}-[0-9]{2}( [0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{1,7})?)?([+-][0-9]{2}(:[0-9]{2}){0,2})?( BC)?"
            .prop_map(String::into_bytes),
        "P(-?[0-9]{1,9}[YMD]){0,3}(T-?[0-9]{1,9}[HMS])?".prop_map(String::into_bytes),
        Just(b"infinity".to_vec()),
        Just(b"NaN".to_vec()),
    ]
}

proptest! {
    /// Catches a panic, a column that is longer than its texts, a cut that is none, and room out of proportion, for
    /// every type and every policy (I14).
    #[test]
    fn arbitrary_texts_never_panic_and_never_leave_a_trace(
        kind in proptest::sample::select(kinds()),
        policies in policies(),
        is_delta in any::<bool>(),
        texts in proptest::collection::vec(texts(), 1..4),
    ) {
        let target = if is_delta { Target::Delta } else { Target::Arrow };
        let mut growing = column(&kind, &policies, target);
        let (mut tally, mut taken) = (Tally::default(), 0);
        for text in &texts {
            match growing.push_text(text, &mut tally) {
                Ok(()) => taken += 1,
                Err(_) => growing.cut(taken),
            }
            prop_assert_eq!(growing.len(), taken);
        }
        let text_bytes: usize = texts.iter().map(Vec::len).sum();
        prop_assert!(growing.bytes() <= 64 * (text_bytes + texts.len() + 1), "{} bytes", growing.bytes());
        let array = growing.finish().expect("an array");
        prop_assert_eq!(array.len(), taken);
        prop_assert_eq!(array.data_type(), &arrow_type(&kind, &policies, target));
    }

    /// Catches an integer that reads back as another one.
    #[test]
    fn integers_round_trip(value in any::<i64>(), small in any::<i16>(), wide in any::<u64>()) {
        prop_assert_eq!(native::<Int64Type>(&PgType::Int8, &value.to_string()), value);
        prop_assert_eq!(native::<Int16Type>(&PgType::Int2, &small.to_string()), small);
        prop_assert_eq!(native::<UInt64Type>(&PgType::Xid8, &wide.to_string()), wide);
    }

    /// Catches a float whose shortest text gives another one.
    #[test]
    fn floats_round_trip(bits in any::<u64>(), small in any::<u32>()) {
        let (value, small) = (f64::from_bits(bits), f32::from_bits(small));
        prop_assume!(value.is_finite() && small.is_finite());
        prop_assert_eq!(native::<Float64Type>(&PgType::Float8, &format!("{value:e}")).to_bits(), bits);
        prop_assert_eq!(native::<Float32Type>(&PgType::Float4, &format!("{small:e}")).to_bits(), small.to_bits());
    }

    /// Catches a decimal that is off by a digit, in either width.
    #[test]
    fn decimals_round_trip(
        digits in "[1-9][0-9]{0,75}", scale in 0i8..=76, is_negative in any::<bool>(),
    ) {
        let precision = (digits.len().max(scale as usize)) as u8;
        let padded = format!("{digits:0>width$}", width = scale as usize + 1);
        let (whole, fraction) = padded.split_at(padded.len() - scale as usize);
        let point = if fraction.is_empty() { "" } else { "." };
        let text = format!("{}{whole}{point}{fraction}", if is_negative { "-" } else { "" });
        let array = exact(&PgType::Numeric(Some((precision.into(), scale.into()))), &text);
        let back = match array.data_type() {
            DataType::Decimal128(precision, scale) => {
                Decimal128Type::format_decimal(array.as_primitive::<Decimal128Type>().value(0), *precision, *scale)
            }
            DataType::Decimal256(precision, scale) => {
                Decimal256Type::format_decimal(array.as_primitive::<Decimal256Type>().value(0), *precision, *scale)
            }
            other => panic!("{other}"),
        };
        prop_assert_eq!(back, text);
    }

    /// Catches a day that is skipped or counted twice: a calendar walked day by day says the same.
    #[test]
    fn dates_round_trip(days in -2_440_588i32..=2_145_042_905, micros in 0i64..86_400_000_000) {
        let (year, month, day) = civil(days.into());
        let (year, era) = if year > 0 { (year, "") } else { (1 - year, " BC") };
        let date = format!("{year:04}-{month:02}-{day:02}");
        prop_assert_eq!(native::<Date32Type>(&PgType::Date, &format!("{date}{era}")), days);
        let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
        let time = format!("{:02}:{:02}:{:02}.{fraction:06}", seconds / 3600, seconds / 60 % 60, seconds % 60);
        let wanted = i128::from(days) * 86_400_000_000 + i128::from(micros);
        let read = read(&PgType::Timestamp, &Policies::default(), &[format!("{date} {time}{era}").as_bytes()]);
        match i64::try_from(wanted) {
            Ok(wanted) => {
                let (array, _) = read.expect("in range");
                prop_assert_eq!(array.as_primitive::<TimestampMicrosecondType>().value(0), wanted);
            }
            Err(_) => prop_assert_eq!(read.expect_err("out of range"), Fault::Beyond),
        }
    }

    /// Catches an element that comes back as another one, whatever has to be quoted.
    #[test]
    fn arrays_round_trip(
        elements in proptest::collection::vec(proptest::option::of("[a-z{},;\"\\\\ ]{0,6}|NULL|null"), 0..6),
    ) {
        let written: Vec<String> = elements.iter().map(|element| match element {
            None => "NULL".to_owned(),
            Some(text) => {
                let needs_quotes = text.is_empty() || text.eq_ignore_ascii_case("null")
                    || text.contains(['{', '}', ',', ';', '"', '\\', ' ']);
                if needs_quotes {
                    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
                } else {
                    text.clone()
                }
            }
        }).collect();
        let array = exact(&array_of(PgType::Text, ','), &format!("{{{}}}", written.join(",")));
        let list = array.as_list::<i32>().value(0);
        let back: Vec<Option<String>> = list.as_string::<i32>().iter().map(|text| text.map(str::to_owned)).collect();
        prop_assert_eq!(back, elements);
    }
}

/// Year, month and day of a day since 1970, by walking 400-year eras, then years, then months.
fn civil(days: i64) -> (i64, i64, i64) {
    let is_leap = |year: i64| year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0);
    let mut year = 1970 + days.div_euclid(146_097) * 400;
    let mut left = days.rem_euclid(146_097);
    loop {
        let length = 365 + i64::from(is_leap(year));
        if left < length {
            break;
        }
        left -= length;
        year += 1;
    }
    for (at, length) in [31, 28 + i64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31].iter().enumerate() {
        if left < *length {
            return (year, at as i64 + 1, left + 1);
        }
        left -= length;
    }
    unreachable!("a year has twelve months")
}

/// Catches a field that tools cannot tell from plain text or plain bytes.
#[test]
fn uuids_and_json_carry_their_extension_names() {
    let extension = |kind: &PgType, policies: &Policies, target| {
        let field = arrow_field("c", kind, arrow_type(kind, policies, target), true);
        field.metadata().get("ARROW:extension:name").cloned()
    };
    let default = Policies::default();
    assert_eq!(extension(&PgType::Uuid, &default, Target::Arrow).as_deref(), Some("arrow.uuid"));
    assert_eq!(extension(&PgType::Uuid, &default, Target::Delta), None);
    assert_eq!(extension(&PgType::Jsonb, &default, Target::Delta).as_deref(), Some("arrow.json"));
    let binary = Policies { invalid_text: InvalidText::Binary, ..default };
    assert_eq!(extension(&PgType::Json, &binary, Target::Arrow), None);
}
