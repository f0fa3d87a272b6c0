//! What the shop does meanwhile: small transactions of inserts, updates and deletes, on connections of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use landfall_postgres::{ConnectOptions, SqlConnection};
use rand::RngExt;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Between two transactions of one connection: some 200 a second, which leaves a small machine room to show the rest.
const PACE: Duration = Duration::from_millis(10);

/// Connections at work until they are stopped.
pub(super) struct Workload {
    stop: watch::Sender<bool>,
    tasks: JoinSet<anyhow::Result<()>>,
    transactions: Arc<AtomicU64>,
}

impl Workload {
    /// Starts `connections` of them.
    pub(super) fn start(connect: &ConnectOptions, connections: u64, customers: u32) -> Self {
        let (stop, _) = watch::channel(false);
        let transactions = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        for number in 0..connections {
            let (connect, stop, transactions) = (connect.clone(), stop.subscribe(), transactions.clone());
            tasks.spawn(async move {
                let sql = SqlConnection::open(&connect).await?;
                work(&sql, stop, StdRng::seed_from_u64(number), customers, &transactions).await
            });
        }
        Workload { stop, tasks, transactions }
    }

    /// Transactions that were committed so far.
    pub(super) fn transactions(&self) -> u64 {
        self.transactions.load(Ordering::Relaxed)
    }

    /// Stops it: every transaction that was begun is committed. The number of all.
    pub(super) async fn stop(mut self) -> anyhow::Result<u64> {
        self.stop.send_replace(true);
        while let Some(ended) = self.tasks.join_next().await {
            ended.context("the workload")?.context("the workload")?;
        }
        Ok(self.transactions())
    }
}

async fn work(
    sql: &SqlConnection,
    mut stop: watch::Receiver<bool>,
    mut random: StdRng,
    customers: u32,
    transactions: &AtomicU64,
) -> anyhow::Result<()> {
    let mut ticks = tokio::time::interval(PACE);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        }
        sql.run("a transaction of the shop", &transaction(&mut random, customers)).await?;
        transactions.fetch_add(1, Ordering::Relaxed);
    }
}

/// One transaction. Statements that are sent together are one.
fn transaction(random: &mut StdRng, customers: u32) -> String {
    let customer = random.random_range(1..=customers);
    // Orders of before the workload, spread; deleted ones hit nothing, as in life.
    let order = random.random_range(1..=u64::from(customers) * 4);
    let cents = random.random_range(100..20_000);
    match random.random_range(0..100) {
        0..45 => format!(
            "WITH placed AS (INSERT INTO orders (customer_id, labels, details)
               VALUES ({customer}, '{{new,\"two words\"}}', '{{\"channel\": \"web\", \"cents\": {cents}}}') RETURNING order_id)
             INSERT INTO items SELECT order_id, line, 1 + line % 3, {cents} FROM placed, generate_series(1, 3) line"
        ),
        45..75 => format!(
            "UPDATE orders SET status = 'paid', details = details || '{{\"paid\": {cents}}}' WHERE order_id = {order};
             UPDATE items SET quantity = quantity + 1 WHERE order_id = {order} AND line = 1"
        ),
        75..85 => format!("UPDATE customers SET email = 'moved-{cents}@example.com' WHERE customer_id = {customer}"),
        // Orders before items everywhere: two connections never wait for each other in a circle.
        85..95 => format!("DELETE FROM orders WHERE order_id = {order}; DELETE FROM items WHERE order_id = {order}"),
        95..98 => format!("UPDATE items SET line = line + 100 WHERE order_id = {order} AND line = 2"),
        _ => format!("UPDATE customers SET history = coalesce(history, '') || repeat(md5('{cents}'), 100) WHERE customer_id = {customer}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a workload that leaves out a kind of change.
    #[test]
    fn every_kind_of_change_comes() {
        let mut random = StdRng::seed_from_u64(1);
        let all: String = (0..500).map(|_| transaction(&mut random, 100) + ";").collect();
        for part in [
            "INSERT INTO orders",
            "UPDATE items SET quantity",
            "DELETE FROM orders",
            "SET line = line + 100",
            "history",
        ] {
            assert!(all.contains(part), "{part}");
        }
    }
}
