//! The guard before all handlers: gRPC goes to the ingest service, all else to the HTTP routes, and each is
//! refused in its own kind (G86).

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::response::IntoResponse;
use http::{Method, Request, Response, Version, header};
use hyper::body::Incoming;
use landfall_protocol::{IngestCode, Refusal, zerobus_server::ZerobusServer};
use tonic::codec::CompressionEncoding;
use tower::ServiceExt;

use crate::admission::ConnectionPermit;
use crate::body::{ChargedBody, HoldingBody};
use crate::core::{COME_BACK_AFTER, Core};
use crate::http::{self as web, Problem};
use crate::stream::IngestService;

const SERVICE: &str = "/databricks.zerobus.Zerobus/";
const METHODS: [&str; 3] = ["EphemeralStream", "PersistentStream", "RetireStream"];

/// Answers the requests of all connections.
#[derive(Clone)]
pub(crate) struct Dispatch {
    core: Arc<Core>,
    grpc: ZerobusServer<IngestService>,
    http: axum::Router,
}

/// What a request is, by its line and headers alone.
#[derive(Debug, PartialEq, Eq)]
enum Call {
    Grpc,
    UnknownMethod,
    NotGrpc,
    Http,
}

impl Call {
    fn of<B>(request: &Request<B>) -> Call {
        let content_type =
            request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
        let media_type = content_type.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
        let says_grpc = media_type.starts_with("application/grpc");
        let method = request.uri().path().strip_prefix(SERVICE);
        if !says_grpc && method.is_none() {
            return Call::Http;
        }
        let is_grpc = request.version() == Version::HTTP_2
            && request.method() == Method::POST
            && matches!(media_type.as_str(), "application/grpc" | "application/grpc+proto");
        match method {
            _ if !is_grpc => Call::NotGrpc,
            Some(method) if METHODS.contains(&method) => Call::Grpc,
            _ => Call::UnknownMethod,
        }
    }
}

impl Dispatch {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        // The library's own limit is a bound only: a call's size is checked after decoding, with details.
        let grpc = ZerobusServer::new(IngestService::new(Arc::clone(&core)))
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Zstd)
            .max_decoding_message_size(core.limits().transport_message_bytes());
        let http = web::routes(Arc::clone(&core));
        Dispatch { core, grpc, http }
    }

    /// Answers one request.
    pub(crate) async fn answer(self, connection: Arc<ConnectionPermit>, request: Request<Incoming>) -> Response<Body> {
        let call = Call::of(&request);
        let permit = match (request.version() == Version::HTTP_2).then(|| connection.open_stream()).transpose() {
            Ok(permit) => permit,
            Err(full) => {
                let refusal = Refusal::new(IngestCode::Overloaded, full.to_string()).retry_after(COME_BACK_AFTER);
                return match call {
                    Call::Grpc | Call::UnknownMethod => grpc_response(&refusal),
                    Call::NotGrpc | Call::Http => Problem::from(refusal).into_response(),
                };
            }
        };
        let response = match call {
            Call::Grpc => self.grpc(request).await,
            Call::UnknownMethod => grpc_response(&Refusal::new(
                IngestCode::NotOffered,
                "no such method: this server offers databricks.zerobus.Zerobus/EphemeralStream",
            )),
            Call::NotGrpc => Problem::from(Refusal::new(
                IngestCode::BodyEncoding,
                "the ingest service takes `application/grpc` by POST over HTTP/2; records go to /v1/channels/CHANNEL/records over plain HTTP",
            ))
            .into_response(),
            Call::Http => match self.http.oneshot(request.map(Body::new)).await {
                Ok(response) => response,
                Err(never) => match never {},
            },
        };
        match permit {
            Some(permit) => response.map(|body| Body::new(HoldingBody::new(body, permit))),
            None => response,
        }
    }

    async fn grpc(self, request: Request<Incoming>) -> Response<Body> {
        let account = self.core.memory.account();
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(Arc::clone(&account));
        let request = Request::from_parts(parts, ChargedBody::new(body, account));
        let response: Result<_, Infallible> = self.grpc.oneshot(request).await;
        match response {
            Ok(response) => response.map(Body::new),
            Err(never) => match never {},
        }
    }
}

/// A refusal as trailers only.
fn grpc_response(refusal: &Refusal) -> Response<Body> {
    refusal.to_status().into_http()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(version: Version, method: Method, path: &str, content_type: Option<&str>) -> Call {
        let mut request = Request::builder().version(version).method(method).uri(path);
        if let Some(content_type) = content_type {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        Call::of(&request.body(()).expect("the request is well formed"))
    }

    /// Would catch a gRPC call that falls to HTTP, or the other way round.
    #[test]
    fn each_request_is_told_by_its_kind() {
        let (h1, h2) = (Version::HTTP_11, Version::HTTP_2);
        let ephemeral = "/databricks.zerobus.Zerobus/EphemeralStream";
        let grpc = Some("application/grpc");
        assert_eq!(call(h2, Method::POST, ephemeral, grpc), Call::Grpc);
        assert_eq!(call(h2, Method::POST, ephemeral, Some("Application/GRPC+proto; x=y")), Call::Grpc);
        assert_eq!(call(h2, Method::POST, ephemeral, Some("application/grpc-web")), Call::NotGrpc);
        assert_eq!(call(h2, Method::GET, ephemeral, grpc), Call::NotGrpc);
        assert_eq!(call(h1, Method::POST, ephemeral, grpc), Call::NotGrpc);
        assert_eq!(call(h2, Method::POST, ephemeral, None), Call::NotGrpc);
        assert_eq!(call(h1, Method::POST, "/v1/x", grpc), Call::NotGrpc);
        assert_eq!(call(h2, Method::POST, "/other.Service/M", grpc), Call::UnknownMethod);
        assert_eq!(call(h2, Method::POST, "/databricks.zerobus.Zerobus/Nope", grpc), Call::UnknownMethod);
        assert_eq!(call(h2, Method::POST, "/v1/x", Some("application/json")), Call::Http);
        assert_eq!(call(h1, Method::GET, "/", None), Call::Http);
    }
}
