//! The ingest service as the transport calls it.

use std::sync::Arc;

use landfall_protocol::header::{self, Features};
use landfall_protocol::wire::{
    EphemeralStreamRequest, PersistentStreamRequest, PersistentStreamResponse, RetireStreamRequest,
    RetireStreamResponse,
};
use landfall_protocol::{IngestCode, Refusal, zerobus_server::Zerobus};
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status, Streaming};

use crate::core::Core;
use crate::memory::Account;
use crate::stream::create::Asked;
use crate::stream::outbox::{Outbox, Responses};
use crate::stream::session;

/// The extensions that this server takes (G6).
const FEATURES: Features = Features { producer: false, keys: true, slot: true };

/// The handler of all methods.
#[derive(Clone, Debug)]
pub(crate) struct IngestService {
    core: Arc<Core>,
}

impl IngestService {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        IngestService { core }
    }
}

fn not_offered(method: &str) -> Status {
    Refusal::new(IngestCode::NotOffered, format!("{method} is not offered by this version: use EphemeralStream")).into()
}

#[tonic::async_trait]
impl Zerobus for IngestService {
    type EphemeralStreamStream = Responses;
    type PersistentStreamStream = futures::stream::Empty<Result<PersistentStreamResponse, Status>>;

    /// Returns its stream before it reads a message: a client that waits for response headers before it writes
    /// must get them at once (G8).
    async fn ephemeral_stream(
        &self,
        request: Request<Streaming<EphemeralStreamRequest>>,
    ) -> Result<Response<Responses>, Status> {
        self.core.refuse_when_draining()?;
        let asked = Asked::of(request.metadata());
        let account = match request.extensions().get::<Arc<Account>>() {
            Some(account) => Arc::clone(account),
            // Called without the transport's body wrapper: nothing was charged.
            None => self.core.memory.account(),
        };
        let (outbox, responses) = Outbox::new();
        tokio::spawn(session::run(Arc::clone(&self.core), asked, request.into_inner(), outbox, account));
        let mut response = Response::new(responses);
        let metadata = response.metadata_mut();
        metadata.insert(header::LANDFALL_VERSION, MetadataValue::from_static(env!("CARGO_PKG_VERSION")));
        if let Ok(features) = FEATURES.to_string().parse() {
            metadata.insert(header::LANDFALL_FEATURES, features);
        }
        Ok(response)
    }

    async fn persistent_stream(
        &self,
        _: Request<Streaming<PersistentStreamRequest>>,
    ) -> Result<Response<Self::PersistentStreamStream>, Status> {
        Err(not_offered("PersistentStream"))
    }

    async fn retire_stream(&self, _: Request<RetireStreamRequest>) -> Result<Response<RetireStreamResponse>, Status> {
        Err(not_offered("RetireStream"))
    }
}
