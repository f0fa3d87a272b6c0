//! `/v1/pipelines/{pipeline}/tables`: what is handed on, and what is refused before it is.

use std::sync::Arc;

use futures::future::BoxFuture;
use landfall_channel::ChannelOptions;
use landfall_server::{PipelineTables, ServerOptions, TableOrder, TablesRefusal};
use landfall_types::{Code, Kind, Retry};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::world::World;

const TABLES: &str = "/v1/pipelines/shop/tables";
const JSON: &str = "application/json";

/// One pipeline `shop` that takes any order but one to `public.nothing`.
#[derive(Default)]
struct Shop {
    given: Mutex<Vec<TableOrder>>,
}

fn refusal(kind: Kind, text: &str) -> TablesRefusal {
    let (code, name) = (Code::new("PG", 701), "OrderNamesNoTable".to_owned());
    TablesRefusal { code, name, kind, retry: Retry::Never, text: text.to_owned(), is_unknown: false }
}

impl PipelineTables for Shop {
    fn list(&self, pipeline: &str) -> Result<Value, TablesRefusal> {
        match pipeline {
            "shop" => Ok(json!({"pipeline": "shop", "tables": [{"name": "public.orders"}]})),
            "records" => Err(refusal(Kind::Conflict, "it reads a channel")),
            _ => Err(TablesRefusal { is_unknown: true, ..refusal(Kind::Invalid, "no such pipeline") }),
        }
    }

    fn order(&self, pipeline: &str, order: TableOrder) -> BoxFuture<'static, Result<Value, TablesRefusal>> {
        let known = self.list(pipeline);
        let answer = known.and_then(|_| match order.table.as_deref() {
            Some("public.nothing") => Err(refusal(Kind::Invalid, "these are: public.orders")),
            Some("public.slow") => Err(refusal(Kind::Unresolved, "not seen")),
            _ => Ok(json!({"applied": !order.is_rehearsal})),
        });
        self.given.lock().push(order);
        Box::pin(async move { answer })
    }
}

async fn world() -> (World, Arc<Shop>) {
    let shop = Arc::new(Shop::default());
    let tables = Arc::clone(&shop) as Arc<dyn PipelineTables>;
    let channels = vec![("events", ChannelOptions::default())];
    let world = World::with_parts(ServerOptions::default(), channels, |parts| parts.tables = tables).await;
    (world, shop)
}

/// Would catch an order that reaches the pipeline as another one, and a list that is not its own.
#[tokio::test]
async fn lists_and_orders_reach_the_pipeline_as_they_were_sent() {
    let (world, shop) = world().await;
    let listed = world.get(TABLES).await;
    assert_eq!((listed.status, &listed.json()["tables"][0]["name"]), (200, &"public.orders".into()));
    for (body, expected) in [
        (json!({"command": "park", "table": "public.orders"}), ("park", Some("public.orders"), false)),
        (json!({"command": "resync", "all": true}), ("resync", None, false)),
        (json!({"command": "resume", "table": "a.*", "rehearsal": true}), ("resume", Some("a.*"), true)),
    ] {
        let answer = world.post(TABLES, JSON, body.to_string()).await;
        assert_eq!((answer.status, &answer.json()["applied"]), (200, &(!expected.2).into()), "{answer:?}");
        let (command, table, is_rehearsal) = expected;
        let expected = TableOrder { command: command.to_owned(), table: table.map(str::to_owned), is_rehearsal };
        assert_eq!(shop.given.lock().pop(), Some(expected));
    }
    world.close().await;
}

/// Would catch an order that is guessed from half of one, a refusal of another form than the others, and a body without a
/// bound (I14).
#[tokio::test]
async fn what_is_no_order_is_refused_before_anybody_is_asked() {
    let (world, shop) = world().await;
    let large = json!({"command": "park", "table": "x".repeat(20_000)}).to_string();
    for (body, status) in [
        ("", 400),
        ("not json", 400),
        ("[]", 400),
        (r#"{"table": "public.orders"}"#, 400),
        (r#"{"command": "park"}"#, 400),
        (r#"{"command": "park", "table": 7}"#, 400),
        (r#"{"command": "park", "table": "public.orders", "all": true}"#, 400),
        (r#"{"command": "park", "table": "public.orders", "mode": "now"}"#, 400),
        (&large, 413),
    ] {
        let answer = world.post(TABLES, JSON, body.to_owned()).await;
        assert_eq!(answer.problem().0, status, "{body}: {answer:?}");
    }
    assert!(shop.given.lock().is_empty());
    assert_eq!(world.http(http::Request::delete(TABLES), "").await.problem().0, 405);
    assert_eq!(world.get(&format!("{TABLES}?table=x")).await.problem().0, 400);
    world.close().await;
}

/// Would catch a refusal of the pipeline that reaches the caller under another status, code or name, or calls an order not
/// stored that may be.
#[tokio::test]
async fn a_refusal_keeps_its_code_and_says_whose_fault_it_is() {
    let (world, _) = world().await;
    let order = |table: &str| json!({"command": "park", "table": table}).to_string();
    let answer = world.post(TABLES, JSON, order("public.nothing")).await;
    assert_eq!(answer.problem(), (400, "LF-PG0701".to_owned()));
    assert_eq!(
        (&answer.json()["title"], &answer.json()["outcome"]),
        (&"OrderNamesNoTable".into(), &"not_stored".into())
    );
    let answer = world.post(TABLES, JSON, order("public.slow")).await;
    assert_eq!((answer.problem().0, &answer.json()["outcome"]), (503, &"unresolved".into()));
    for (pipeline, status) in [("records", 409), ("other", 404), ("%20", 404)] {
        let url = format!("/v1/pipelines/{pipeline}/tables");
        assert_eq!(world.get(&url).await.problem().0, status, "{pipeline}");
        assert_eq!(world.post(&url, JSON, order("public.orders")).await.problem().0, status, "{pipeline}");
    }
    world.close().await;
    let without = World::plain().await;
    assert_eq!(without.get(TABLES).await.problem().0, 404, "a process without pipelines");
    without.close().await;
}
