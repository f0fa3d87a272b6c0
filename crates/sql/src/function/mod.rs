//! The functions that a pipeline's SQL has beside the library's (E107), and the registry of both.
//!
//! All are pure and row-wise. The `record_` functions and `row_id()` stand for hidden columns; `query::record` puts
//! those in their place once a query is bound, so they are never called. A function that cannot answer for a row
//! fails; the evaluation finds the row (E108).

mod json;
mod text;
mod time;

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};

use arrow_array::ArrayRef;
use arrow_schema::{DataType, TimeUnit};
use datafusion_common::{DataFusionError, Result, exec_datafusion_err};
use datafusion_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};

/// A function over whole columns of one batch.
type Body = fn(&[ArrayRef], usize) -> Result<ArrayRef>;

/// A function of ours: its identity is its name.
#[derive(Debug)]
pub(crate) struct RowFunction {
    name: &'static str,
    signature: Signature,
    returns: DataType,
    body: Body,
}

impl PartialEq for RowFunction {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for RowFunction {}

impl Hash for RowFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl RowFunction {
    pub(crate) fn pure(name: &'static str, takes: TypeSignature, returns: DataType, body: Body) -> ScalarUDF {
        let signature = Signature::new(takes, Volatility::Immutable);
        ScalarUDF::new_from_impl(RowFunction { name, signature, returns, body })
    }

    /// Stands for hidden columns until the query is bound. Volatile, so that no rule computes it beforehand.
    fn placeholder(name: &'static str, takes: TypeSignature, returns: DataType) -> ScalarUDF {
        let body: Body = |_, _| Err(exec_datafusion_err!("the query is not bound to its input"));
        let signature = Signature::new(takes, Volatility::Volatile);
        ScalarUDF::new_from_impl(RowFunction { name, signature, returns, body })
    }
}

impl ScalarUDFImpl for RowFunction {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.returns.clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows;
        let columns = args.args.into_iter().map(|arg| arg.into_array(rows)).collect::<Result<Vec<_>>>()?;
        (self.body)(&columns, rows).map(ColumnarValue::Array)
    }
}

/// The functions that stand for hidden columns.
pub(crate) mod record {
    pub(crate) const KEY: &str = "record_key";
    pub(crate) const TIMESTAMP: &str = "record_timestamp";
    pub(crate) const HEADER: &str = "record_header";
    pub(crate) const OFFSET: &str = "record_offset";
    pub(crate) const PARTITION: &str = "record_partition";
    pub(crate) const ROW_ID: &str = "row_id";
    pub(crate) const ALL: &[&str] = &[KEY, TIMESTAMP, HEADER, OFFSET, PARTITION, ROW_ID];
}

/// Microseconds in UTC: what `TIMESTAMP WITH TIME ZONE` is here.
pub(crate) fn timestamp_type() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

fn ours() -> Vec<ScalarUDF> {
    let texts = |count: usize| TypeSignature::Exact(vec![DataType::Utf8; count]);
    vec![
        RowFunction::placeholder(record::KEY, TypeSignature::Nullary, DataType::BinaryView),
        RowFunction::placeholder(record::TIMESTAMP, TypeSignature::Nullary, timestamp_type()),
        RowFunction::placeholder(record::HEADER, texts(1), DataType::Utf8),
        RowFunction::placeholder(record::OFFSET, TypeSignature::Nullary, DataType::Int64),
        RowFunction::placeholder(record::PARTITION, TypeSignature::Nullary, DataType::Int64),
        RowFunction::placeholder(record::ROW_ID, TypeSignature::Nullary, DataType::Utf8),
        RowFunction::pure("json_get", texts(2), DataType::Utf8, json::get),
        RowFunction::pure("json_get_text", texts(2), DataType::Utf8, json::get_text),
        RowFunction::pure("epoch_ms", TypeSignature::Exact(vec![DataType::Int64]), timestamp_type(), time::epoch_ms),
        RowFunction::pure("epoch_us", TypeSignature::Exact(vec![DataType::Int64]), timestamp_type(), time::epoch_us),
        RowFunction::pure(
            "parse_timestamp",
            TypeSignature::OneOf((1..=9).map(texts).collect()),
            timestamp_type(),
            time::parse,
        ),
        RowFunction::pure("nullif_blank", texts(1), DataType::Utf8, text::nullif_blank),
        RowFunction::pure(
            "hash_bucket",
            TypeSignature::Exact(vec![DataType::Utf8, DataType::Int64]),
            DataType::Int64,
            text::hash_bucket,
        ),
        RowFunction::pure("sha256_hex", texts(1), DataType::Utf8, text::sha256_hex),
        RowFunction::pure(
            "mask",
            TypeSignature::Exact(vec![DataType::Utf8, DataType::Int64]),
            DataType::Utf8,
            text::mask,
        ),
        RowFunction::pure("url_host", texts(1), DataType::Utf8, text::url_host),
    ]
}

/// The scalar functions by every name they have; ours win over the library's.
pub(crate) fn scalar_functions() -> &'static HashMap<String, Arc<ScalarUDF>> {
    static FUNCTIONS: LazyLock<HashMap<String, Arc<ScalarUDF>>> = LazyLock::new(|| {
        let library = datafusion_functions::all_default_functions()
            .into_iter()
            .chain(datafusion_functions_nested::all_default_nested_functions());
        let mut functions = HashMap::new();
        for function in library.chain(ours().into_iter().map(Arc::new)) {
            for alias in function.aliases() {
                functions.insert(alias.clone(), function.clone());
            }
            functions.insert(function.name().to_owned(), function);
        }
        functions
    });
    &FUNCTIONS
}

fn too_wide(function: &str) -> DataFusionError {
    exec_datafusion_err!("{function}: the result does not fit")
}
