use super::*;

fn plan(data_type: DataType) -> Result<DataType, DeltaError> {
    planned(&Field::new("c", data_type, true), Timestamps::Utc).map(|field| field.data_type().clone())
}

fn utc() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

/// Catches a type that the library would store with another value (T: unsigned kept at its width, seconds refused).
#[test]
fn every_type_keeps_its_values_or_is_refused() {
    use DataType as T;
    let kept = [
        (T::Int8, T::Int8),
        (T::UInt8, T::Int16),
        (T::UInt16, T::Int32),
        (T::UInt32, T::Int64),
        (T::Float16, T::Float32),
        (T::Decimal256(38, 4), T::Decimal128(38, 4)),
        (T::Date64, T::Date32),
        (T::Timestamp(TimeUnit::Second, None), utc()),
        (T::Timestamp(TimeUnit::Nanosecond, Some("+02:00".into())), utc()),
        (T::Utf8View, T::Utf8View),
        (T::Dictionary(Box::new(T::Int32), Box::new(T::Utf8)), T::Utf8),
    ];
    for (from, to) in kept {
        assert_eq!(plan(from.clone()).expect("has a place"), to, "{from}");
    }
    let refused = [
        T::UInt64,
        T::Decimal256(40, 4),
        T::Decimal128(10, -2),
        T::Time64(TimeUnit::Microsecond),
        T::Duration(TimeUnit::Second),
        T::Null,
    ];
    for data_type in refused {
        let error = plan(data_type.clone()).expect_err("has no place").to_string();
        assert!(error.contains("CAST(\"c\" AS"), "{data_type}: {error}");
    }
}

/// Catches a position column refused for being unsigned, or another unsigned 64 let in.
#[test]
fn only_positions_may_be_unsigned_64() {
    let offset = Field::new("__offset", DataType::UInt64, false);
    assert_eq!(planned(&offset, Timestamps::Utc).expect("position").data_type(), &DataType::Int64);
    assert!(planned(&Field::new("n", DataType::UInt64, false), Timestamps::Utc).is_err());
}

/// Catches an unsigned integer that hides inside a list or struct.
#[test]
fn nested_types_are_mapped_all_the_way_down() {
    let element = Arc::new(Field::new("item", DataType::UInt32, true));
    let of_struct = DataType::Struct(vec![Field::new("list", DataType::LargeList(element), true)].into());
    let planned = plan(of_struct).expect("has a place");
    let DataType::Struct(fields) = planned else { panic!("{planned}") };
    let DataType::List(element) = fields[0].data_type() else { panic!("{fields:?}") };
    assert_eq!(element.data_type(), &DataType::Int64);
    assert!(plan(DataType::Struct(vec![Field::new("n", DataType::UInt64, true)].into())).is_err());
}

/// Catches a name that a reader cannot open.
#[test]
fn names_that_delta_forbids_are_refused_with_an_alias() {
    check_names(["a", "b", "__offset", "ä", "a.b"]).expect("allowed");
    for (name, alias) in [("a b", "a_b"), ("a=b", "a_b"), ("a,b", "a_b"), ("", "column_1")] {
        let error = check_names([name]).expect_err("forbidden").to_string();
        assert!(error.contains(alias), "{error}");
    }
    let error = check_names(["Amount", "amount"]).expect_err("equal but for case").to_string();
    assert!(error.contains("`Amount`") && error.contains("amount_2"), "{error}");
}

/// Catches a name that is only seen once rows come, inside a list of structs.
#[test]
fn names_inside_of_columns_are_judged_too() {
    let inner = DataType::Struct(vec![Field::new("a b", DataType::Int64, true)].into());
    let list = DataType::List(Arc::new(Field::new("item", inner, true)));
    let error = check_fields(&[Field::new("items", list, true)]).expect_err("forbidden").to_string();
    assert!(error.contains("`a b`"), "{error}");
    assert!(plan(DataType::Struct(Fields::empty())).is_err(), "Parquet cannot hold it");
}

/// Catches a narrowing that would cut values, or a widening that is refused.
#[test]
fn an_existing_column_takes_what_fits_and_nothing_narrower() {
    use DataType as T;
    let fits = [
        (T::Int32, T::Int64, T::Int64),
        (T::UInt32, T::Int64, T::Int64),
        (T::Float32, T::Float64, T::Float64),
        (T::Decimal128(10, 2), T::Decimal128(12, 3), T::Decimal128(12, 3)),
        (T::Utf8View, T::Utf8, T::Utf8View),
        (T::Timestamp(TimeUnit::Nanosecond, None), utc(), utc()),
    ];
    for (query, table, to) in fits {
        assert_eq!(fit(&query, &table, false).expect("fits"), to, "{query} into {table}");
    }
    let misfits = [
        (T::Int64, T::Int32),
        (T::Utf8, T::Int64),
        (T::Decimal128(12, 3), T::Decimal128(12, 2)),
        (T::Decimal128(12, 2), T::Decimal128(12, 3)),
        (utc(), T::Timestamp(TimeUnit::Microsecond, None)),
        (T::Int64, T::Float64),
    ];
    for (query, table) in misfits {
        let error = fit(&query, &table, false).expect_err("does not fit");
        assert!(error.contains(&table.to_string()), "{error}");
    }
}

/// Catches NULLs let into a nested field that the table declares NOT NULL.
#[test]
fn a_nested_null_does_not_fit_a_nested_not_null() {
    let of = |nullable| DataType::Struct(vec![Field::new("x", DataType::Int64, nullable)].into());
    assert!(fit(&of(false), &of(true), false).is_ok());
    assert!(fit(&of(true), &of(false), false).is_err());
}
