//! Orders to the tables of pipelines, as the server hands them on (G85): it knows neither tables nor what becomes of them.

use futures::future::BoxFuture;
use landfall_protocol::IngestCode;
use landfall_types::{Code, Kind, Retry};
use serde_json::Value;

use crate::core::shown;

/// An order as it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableOrder {
    /// What is to be done, as written.
    pub command: String,
    /// With which table or tables; `None`: with all.
    pub table: Option<String>,
    /// It is only said what it would do.
    pub is_rehearsal: bool,
}

/// Why a list or an order was refused, with the status that says whose fault it is.
#[derive(Clone, Debug)]
pub struct TablesRefusal {
    /// The code.
    pub code: Code,
    /// The code's name, as on its page.
    pub name: String,
    /// What the caller must do.
    pub kind: Kind,
    /// Whether the same may go better later.
    pub retry: Retry,
    /// What is wrong, and the next step.
    pub text: String,
    /// There is no such pipeline.
    pub is_unknown: bool,
}

/// The pipelines' side of `/v1/pipelines/{pipeline}/tables`.
pub trait PipelineTables: Send + Sync {
    /// Where each table of a pipeline stands.
    fn list(&self, pipeline: &str) -> Result<Value, TablesRefusal>;

    /// Gives an order; answered when it is durable.
    fn order(&self, pipeline: &str, order: TableOrder) -> BoxFuture<'static, Result<Value, TablesRefusal>>;
}

/// Of a process that runs no pipeline.
pub(crate) struct NoPipelines;

impl NoPipelines {
    fn refused(pipeline: &str) -> TablesRefusal {
        TablesRefusal {
            code: IngestCode::UrlUnknown.code(),
            name: "UrlUnknown".to_owned(),
            kind: Kind::Invalid,
            retry: Retry::Never,
            text: format!("no pipeline is called `{}`: this process runs none", shown(pipeline)),
            is_unknown: true,
        }
    }
}

impl PipelineTables for NoPipelines {
    fn list(&self, pipeline: &str) -> Result<Value, TablesRefusal> {
        Err(Self::refused(pipeline))
    }

    fn order(&self, pipeline: &str, _order: TableOrder) -> BoxFuture<'static, Result<Value, TablesRefusal>> {
        let refused = Self::refused(pipeline);
        Box::pin(async move { Err(refused) })
    }
}
