//! A pipeline's place in a running configuration: started, or not yet, or never, and why.
//!
//! Every configured pipeline has one from the first moment on, so that none is missing in the status, the readiness,
//! the exit code or the watch for failures, whether or not it came to run (I11).

use std::collections::BTreeMap;

use landfall_channel::{Channels, ReadError};
use landfall_engine::contract::{PipelineId, PlanError};
use landfall_engine::{Ending, ExitReport, PipelineHandle};
use landfall_postgres::Orders;
use landfall_state::StateError;
use landfall_types::{Code, Coded, Retry};
use tokio::sync::watch;

use crate::config::{FromConfig, PipelineConfig, StartAt};

const WAITING: &str = "waiting for records to infer the schema from";

/// A pipeline's place.
pub(super) struct Slot {
    /// What it is to be.
    pub(super) config: PipelineConfig,
    state: watch::Sender<SlotState>,
}

enum SlotState {
    /// Nothing to infer the schema from has come yet.
    Waiting,
    /// A passing error; it is tried again.
    Retrying(NotStarted),
    /// It will not start.
    Failed(NotStarted),
    Started(PipelineHandle, Option<Orders>),
}

/// Why a pipeline could not be started.
#[derive(Clone, Debug)]
pub(super) struct NotStarted {
    /// The code, if the cause has one.
    pub(super) code: Option<Code>,
    /// In words.
    pub(super) cause: String,
    /// Another try may go better.
    pub(super) is_passing: bool,
}

impl From<anyhow::Error> for NotStarted {
    fn from(error: anyhow::Error) -> Self {
        let read = error.downcast_ref::<ReadError>();
        let state = error.downcast_ref::<StateError>();
        let coded = read.map(|read| read as &dyn Coded).or_else(|| state.map(|state| state as &dyn Coded));
        let planned = error.downcast_ref::<PlanError>().map(|plan| plan.code);
        NotStarted {
            code: coded.map(|coded| coded.code()).or(planned),
            cause: format!("{error:#}"),
            // Retention may pass by samples that are being read: the next try begins behind it.
            is_passing: matches!(read, Some(ReadError::Trimmed { .. }))
                || coded.is_some_and(|coded| coded.retry() != Retry::Never),
        }
    }
}

impl Slot {
    pub(super) fn new(config: PipelineConfig) -> Self {
        Slot { config, state: watch::Sender::new(SlotState::Waiting) }
    }

    pub(super) fn started(&self, handle: PipelineHandle, orders: Option<Orders>) {
        self.state.send_replace(SlotState::Started(handle, orders));
    }

    /// Gives orders to its tables, once it has been started.
    pub(super) fn orders(&self) -> Option<Orders> {
        match &*self.state.borrow() {
            SlotState::Started(_, orders) => orders.clone(),
            SlotState::Waiting | SlotState::Retrying(_) | SlotState::Failed(_) => None,
        }
    }

    pub(super) fn retrying(&self, why: NotStarted) {
        self.state.send_replace(SlotState::Retrying(why));
    }

    pub(super) fn fail(&self, why: NotStarted) {
        self.state.send_replace(SlotState::Failed(why));
    }

    /// The running pipeline, once there is one.
    pub(super) fn handle(&self) -> Option<PipelineHandle> {
        match &*self.state.borrow() {
            SlotState::Started(handle, _) => Some(handle.clone()),
            SlotState::Waiting | SlotState::Retrying(_) | SlotState::Failed(_) => None,
        }
    }

    /// Waits until it has failed for good, before or after its start; without end otherwise.
    pub(super) async fn failed(&self) -> String {
        let mut states = self.state.subscribe();
        let handle = loop {
            {
                let state = states.borrow_and_update();
                match &*state {
                    SlotState::Failed(_) => return self.config.name.clone(),
                    SlotState::Started(handle, _) => break handle.clone(),
                    SlotState::Waiting | SlotState::Retrying(_) => {}
                }
            }
            if states.changed().await.is_err() {
                // The sender lives in this slot.
                return std::future::pending().await;
            }
        };
        match handle.ended().await.ending {
            Ending::Failed => self.config.name.clone(),
            Ending::Settled | Ending::Unfinished | Ending::Aborted => std::future::pending().await,
        }
    }

    /// How a pipeline ends that has never started. Nothing: no record came, so none is left behind.
    pub(super) fn report_without_start(&self) -> Option<ExitReport> {
        let (ending, why) = match &*self.state.borrow() {
            SlotState::Waiting | SlotState::Started(..) => return None,
            SlotState::Retrying(why) => (Ending::Unfinished, why.clone()),
            SlotState::Failed(why) => (Ending::Failed, why.clone()),
        };
        Some(ExitReport {
            pipeline: PipelineId(self.config.id.clone()),
            ending,
            code: why.code,
            cause: Some(why.cause),
            committed: BTreeMap::new(),
            unfinished: Vec::new(),
            balance: BTreeMap::new(),
        })
    }

    /// What it lacks to be ready.
    pub(super) fn lack(&self) -> Option<String> {
        use landfall_engine::PipelineState::{Failed, Starting, Stopped};
        match &*self.state.borrow() {
            SlotState::Waiting => Some(WAITING.to_owned()),
            SlotState::Retrying(why) | SlotState::Failed(why) => Some(why.cause.clone()),
            SlotState::Started(handle, _) => {
                let state = handle.state();
                matches!(state, Starting | Failed | Stopped).then(|| format!("{state:?}").to_lowercase())
            }
        }
    }

    /// What lies before it in its source while it does not run.
    fn waiting_records(&self, channels: &Channels) -> u64 {
        let FromConfig::Channel(from) = &self.config.from else { return 0 };
        let Some(source) = channels.get(&from.name).map(|channel| channel.status()) else { return 0 };
        let consumer = format!("pipeline:{}", self.config.id);
        match source.consumers.iter().find(|known| known.name == consumer) {
            Some(known) => known.lag_records,
            None if matches!(from.start, StartAt::Latest) => 0,
            None => source.tail.saturating_sub(source.log_start),
        }
    }

    /// The pipeline's part of `/v1/status`, with the channels that `tail` and `publish` ask for.
    pub(super) fn status(&self, channels: &Channels) -> serde_json::Value {
        let unstarted = |state: &str, why: serde_json::Value| {
            serde_json::json!({
                "name": self.config.name, "id": self.config.id, "state": state, "why": why, "sinks": [],
            })
        };
        let told = |why: &NotStarted| serde_json::json!({"code": why.code, "cause": why.cause});
        let mut status = match &*self.state.borrow() {
            SlotState::Started(handle, _) => serde_json::to_value(handle.status()).unwrap_or_default(),
            SlotState::Waiting => unstarted("starting", serde_json::json!({"cause": WAITING})),
            SlotState::Retrying(why) => unstarted("retrying", told(why)),
            SlotState::Failed(why) => unstarted("failed", told(why)),
        };
        let has_begun = |fields: &serde_json::Map<String, serde_json::Value>| {
            fields.get("watermarks").and_then(serde_json::Value::as_object).is_some_and(|marks| !marks.is_empty())
        };
        if let Some(fields) = status.as_object_mut() {
            if !has_begun(fields) && self.config.source_channel().is_some() {
                // It has not looked at its source yet: what waits there is not nothing.
                fields.insert("lag".to_owned(), serde_json::json!({"records": self.waiting_records(channels)}));
            }
            fields.insert("source_channel".to_owned(), self.config.source_channel().into());
            fields.insert("dead_letter_channel".to_owned(), self.config.dead_letter_channel().into());
        }
        status
    }
}
