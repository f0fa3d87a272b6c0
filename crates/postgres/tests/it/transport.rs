//! The replication connection, the pump and feedback against a real server.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use landfall_postgres::{
    ConnectError, ConnectOptions, CreateSlot, DurableLsn, FeedbackHandle, FeedbackRules, Frame, LogRecord, Lsn,
    PumpEnd, PumpParts, QueueParts, QueueSettings, QueueingSink, RecordKind, RecordSink, RecordSinkError,
    ReplicationConnection, SnapshotUse, StatusUpdate, StreamMeters, StreamOptions, TlsMode, TlsOptions, Transport,
    pump,
};
use landfall_testkit::{Postgres, PostgresInstall};
use landfall_types::Coded;

/// How long anything may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

fn options(url: &str) -> Result<ConnectOptions> {
    Ok(ConnectOptions::parse(url, None, None)?)
}

fn slot(name: &str) -> CreateSlot {
    CreateSlot { name: name.to_owned(), is_temporary: false, snapshot: SnapshotUse::Export, is_failover: false }
}

fn stream(slot: &str, from: Lsn) -> StreamOptions {
    StreamOptions {
        slot: slot.to_owned(),
        from,
        publications: vec!["landfall \"p\"".to_owned()],
        protocol: 1,
        is_streaming: false,
        with_messages: false,
        origin: None,
        max_message: 1 << 20,
    }
}

const TABLE: &str = "CREATE TABLE t (id int PRIMARY KEY, body text);
    INSERT INTO t VALUES (1, 'before');
    CREATE PUBLICATION \"landfall \"\"p\"\"\" FOR TABLE t;";

fn confirmed(server: &Postgres, slot: &str) -> Result<Lsn> {
    let sql = format!("SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '{slot}'");
    Ok(server.psql("postgres", &sql)?.parse()?)
}

/// Looks until the claim holds. The server moves a slot on its own time.
async fn until(what: &str, mut claim: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = tokio::time::Instant::now() + DEADLINE;
    while !claim()? {
        ensure!(tokio::time::Instant::now() < end, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Reads messages up to the next commit; gives their first bytes and the commit's end.
async fn transaction<T: Transport>(transport: &mut T) -> Result<(String, Lsn)> {
    let mut kinds = String::new();
    loop {
        let frame = tokio::time::timeout(DEADLINE, transport.next()).await.context("no frame came")?;
        match frame {
            Frame::Data { bytes, .. } => {
                let kind = bytes.first().copied().context("an empty message")?;
                kinds.push(char::from(kind));
                if kind == b'C' {
                    // Flags, commit position, end position.
                    let end = bytes.get(10..18).and_then(|eight| eight.try_into().ok()).map(u64::from_be_bytes);
                    return Ok((kinds, Lsn(end.context("a commit that is cut short")?)));
                }
            }
            Frame::KeepAlive { .. } => {}
            Frame::Oversized { .. } => kinds.push('!'),
            other => bail!("{other:?}"),
        }
    }
}

/// Catches a snapshot that does not meet its stream, a message that is lost between the two, and a confirmed position
/// that moves by anything but our word. Runs on the oldest and the newest server here: the commands differ.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_is_consistent_with_its_snapshot_and_moves_only_when_told() -> Result<()> {
    for install in PostgresInstall::oldest_and_newest()? {
        let server = Postgres::start(&install)?;
        server.psql("postgres", TABLE)?;
        let options = options(&server.url("postgres"))?;

        let mut maker = ReplicationConnection::connect(&options).await?;
        ensure!(maker.version().0 == server.major());
        let identity = maker.identify_system().await?;
        ensure!(identity.system_id > 0 && identity.timeline == 1 && identity.database.as_deref() == Some("postgres"));
        ensure!(maker.show("DateStyle").await?.starts_with("ISO"));
        let created = maker.create_slot(&slot("landfall_x")).await?;
        let snapshot = created.snapshot_name.clone().context("a snapshot was asked for")?;
        ensure!(created.consistent_point >= identity.wal_end);

        // What commits from now on is in the stream and not in the snapshot.
        server.psql("postgres", "BEGIN; INSERT INTO t VALUES (2, 'after'), (3, 'after'); COMMIT")?;
        let (client, connection) = options.connect_sql().await?;
        let driver = tokio::spawn(connection);
        client
            .batch_execute(&format!("BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '{snapshot}'"))
            .await?;
        let seen: i64 = client.query_one("SELECT count(*) FROM t", &[]).await?.get(0);
        ensure!(seen == 1, "the snapshot holds {seen} rows");
        drop((client, maker));
        driver.await??;

        let connection = ReplicationConnection::connect(&options).await?;
        let mut transport = connection.start(&stream("landfall_x", created.consistent_point)).await?;
        let (kinds, end) = transaction(&mut transport).await?;
        ensure!(kinds == "BRIIC", "{kinds}");
        ensure!(end > created.consistent_point);

        // A reply that confirms nothing new leaves the slot where it is, however much was received.
        let mut feedback = transport.feedback().context("the first one")?;
        let start = created.consistent_point;
        let before = confirmed(&server, "landfall_x")?;
        feedback.send(StatusUpdate { write: end, flush: start, apply: start, wants_reply: true }).await?;
        let replied = async {
            loop {
                if let Frame::KeepAlive { .. } = transport.next().await {
                    break;
                }
            }
        };
        tokio::time::timeout(DEADLINE, replied).await.context("the server did not answer")?;
        ensure!(confirmed(&server, "landfall_x")? == before, "the slot moved without our word");
        feedback.send(StatusUpdate { write: end, flush: end, apply: end, wants_reply: false }).await?;
        until("the slot is where we said", || Ok(confirmed(&server, "landfall_x")? == end)).await?;

        feedback.finish().await?;
        drop(transport);
        let mut other = ReplicationConnection::connect(&options).await?;
        other.drop_slot("landfall_x", true).await?;
        let gone = other.drop_slot("landfall_x", false).await.err().context("it is gone")?;
        ensure!(gone.sqlstate() == Some("42704"), "{gone}");
    }
    Ok(())
}

/// Catches a kind of log-in that a real server asks for and we get wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_password_method_of_a_real_server_lets_us_in() -> Result<()> {
    let server = Postgres::start(&PostgresInstall::any()?)?;
    server.psql(
        "postgres",
        "SET password_encryption = 'scram-sha-256'; CREATE ROLE scram LOGIN REPLICATION PASSWORD 'pässword ''1';
         CREATE ROLE plain LOGIN REPLICATION PASSWORD 'two';
         SET password_encryption = 'md5'; CREATE ROLE md5 LOGIN REPLICATION PASSWORD 'three';",
    )?;
    server.set_hba(
        "local all postgres trust
         host all scram 127.0.0.1/32 scram-sha-256
         host all md5 127.0.0.1/32 md5
         host all plain 127.0.0.1/32 password",
    )?;
    server.reload()?;
    let connect = async |user: &str, password: Option<&str>| {
        let options = ConnectOptions::parse(&server.url_as(user, "postgres"), password, None)?;
        ReplicationConnection::connect(&options).await.map(drop)
    };
    for (user, password) in [("scram", "pässword '1"), ("md5", "three"), ("plain", "two")] {
        connect(user, Some(password)).await.with_context(|| format!("{user} is not let in"))?;
        let wrong = connect(user, Some("wrong")).await.err().context("a wrong password lets us in")?;
        ensure!(wrong.code().to_string() == "LF-PG0102" && !wrong.to_string().contains("wrong"), "{wrong}");
        let none = connect(user, None).await.err().context("no password lets us in")?;
        ensure!(matches!(none, ConnectError::NoPassword), "{none}");
    }
    let stranger = connect("postgres", None).await.err().context("no line of pg_hba.conf lets it in")?;
    ensure!(stranger.code().to_string() == "LF-PG0103", "{stranger}");
    // The local socket is open to it.
    let url = format!("host={} port={} user=postgres dbname=none", server.socket_directory().display(), server.port());
    let none = ReplicationConnection::connect(&options(&url)?).await.err().context("there is no such database")?;
    ensure!(none.code().to_string() == "LF-PG0104", "{none}");
    let url = url.replace("dbname=none", "dbname=postgres");
    ReplicationConnection::connect(&options(&url)?).await?.identify_system().await?;
    Ok(())
}

/// Catches a mode that encrypts less or checks less than it says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_modes_do_what_they_say() -> Result<()> {
    let server = Postgres::start(&PostgresInstall::any()?)?;
    let tls = |mode, ca: Option<std::path::PathBuf>| TlsOptions { mode, ca };
    let url = |host: &str| format!("postgres://postgres@{host}:{}/postgres", server.port());
    let is_encrypted = async |host: &str, tls: TlsOptions| -> Result<bool, ConnectError> {
        let options = ConnectOptions::parse(&url(host), None, Some(tls))?;
        ReplicationConnection::connect(&options).await?.identify_system().await?;
        let (client, connection) = options.connect_sql().await?;
        let driver = tokio::spawn(connection);
        let row = client.query_one("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()", &[]).await;
        let is_encrypted = row.is_ok_and(|row| row.get(0));
        drop(client);
        let _ = driver.await;
        Ok(is_encrypted)
    };
    // Without TLS on the server.
    ensure!(!is_encrypted("127.0.0.1", tls(TlsMode::Prefer, None)).await?);
    let refused = is_encrypted("127.0.0.1", tls(TlsMode::Require, None)).await.err().context("it is not encrypted")?;
    ensure!(matches!(refused, ConnectError::TlsRefused { .. }), "{refused}");

    let (certificate, key) = (server.data().join("server.crt"), server.data().join("server.key"));
    let make = |is_authority: &str| -> Result<()> {
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]);
        openssl.args(["-addext", "subjectAltName=DNS:localhost", "-addext"]);
        openssl.arg(format!("basicConstraints=critical,CA:{is_authority}"));
        openssl.arg("-keyout").arg(&key).arg("-out").arg(&certificate);
        let made = openssl.output().context("openssl is needed for this test")?;
        ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        // As owned by the server's user as the rest of its directory.
        let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(server.data())?);
        for file in [&certificate, &key] {
            std::os::unix::fs::chown(file, Some(owner), None)?;
            std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        }
        Ok(())
    };
    make("FALSE")?;
    server.set("ssl", "on")?;
    server.reload()?;
    until("TLS is on", || Ok(server.psql("postgres", "SHOW ssl")? == "on")).await?;

    ensure!(!is_encrypted("127.0.0.1", tls(TlsMode::Disable, None)).await?);
    ensure!(is_encrypted("127.0.0.1", tls(TlsMode::Prefer, None)).await?);
    ensure!(is_encrypted("127.0.0.1", tls(TlsMode::Require, None)).await?);
    let ca = server.data().join("server.crt");
    ensure!(is_encrypted("localhost", tls(TlsMode::VerifyFull, Some(ca.clone()))).await?);
    for (host, ca, step) in [("127.0.0.1", Some(ca.clone()), "name the host"), ("localhost", None, "tls.ca")] {
        let refused = is_encrypted(host, tls(TlsMode::VerifyFull, ca)).await.err().context("it was not checked")?;
        ensure!(matches!(refused, ConnectError::Handshake { .. } | ConnectError::NoRoots), "{refused}");
        ensure!(refused.to_string().contains(step), "{refused}");
    }
    // Self-signed as `openssl req -x509` makes it: an authority's own. The server may still show the one before.
    make("TRUE")?;
    server.reload()?;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        let refused = is_encrypted("localhost", tls(TlsMode::VerifyFull, Some(ca.clone()))).await.err();
        if refused.as_ref().is_some_and(|refused| refused.to_string().contains("CA:FALSE")) {
            break;
        }
        ensure!(tokio::time::Instant::now() < deadline, "{refused:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

#[derive(Debug, Default)]
struct Seen {
    is_blocked: AtomicBool,
    messages: AtomicU64,
    oversized: AtomicU64,
    starts: AtomicU64,
    /// The end of the last commit.
    commit_end: AtomicU64,
    waker: futures::task::AtomicWaker,
}

struct Sees(Arc<Seen>);

impl RecordSink for Sees {
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RecordSinkError>> {
        self.0.waker.register(cx.waker());
        if self.0.is_blocked.load(Ordering::SeqCst) { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    fn on_record(&mut self, record: &LogRecord<'_>) -> Result<(), RecordSinkError> {
        let counter = match record.kind {
            RecordKind::Message => &self.0.messages,
            RecordKind::Oversized { .. } => &self.0.oversized,
            RecordKind::StreamStart => &self.0.starts,
            _ => return Ok(()),
        };
        counter.fetch_add(1, Ordering::SeqCst);
        if record.bytes.first() == Some(&b'C') {
            let end = record.bytes.get(10..18).and_then(|eight| eight.try_into().ok()).map(u64::from_be_bytes);
            self.0.commit_end.store(end.ok_or("a commit that is cut short")?, Ordering::SeqCst);
        }
        Ok(())
    }
}

struct Source {
    seen: Arc<Seen>,
    durable: Arc<DurableLsn>,
    stop: tokio::sync::watch::Sender<bool>,
    pump: tokio::task::JoinHandle<(PumpEnd, QueueingSink)>,
}

/// A whole source up to a sink that counts.
async fn source(options: &ConnectOptions, settings: QueueSettings, max_message: usize) -> Result<Source> {
    let mut connection = ReplicationConnection::connect(options).await?;
    let created = connection.create_slot(&slot("landfall_x")).await?;
    let from = created.consistent_point;
    let stream = StreamOptions { max_message, ..stream("landfall_x", from) };
    let transport = connection.start(&stream).await?;
    let seen = Arc::new(Seen::default());
    let mut queue = QueueingSink::start(Box::new(Sees(seen.clone())), QueueParts::new(settings));
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let durable = DurableLsn::new(from);
    let parts = PumpParts {
        from,
        durable: durable.clone(),
        rules: FeedbackRules::new(Duration::from_secs(10), Duration::from_secs(90), Duration::from_secs(1)),
        meters: StreamMeters::new("test"),
        stop: stopped,
    };
    let pump = tokio::spawn(async move {
        let ended = pump(transport, &mut queue, parts).await;
        (ended, queue)
    });
    Ok(Source { seen, durable, stop, pump })
}

/// F-P16, P47. Catches a sink that blocks in the middle of a transaction and costs the connection: the server's patience
/// is one second here, and the sink blocks for more than three of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f_p16_a_blocked_sink_costs_no_connection_and_no_repeat() -> Result<()> {
    let server = Postgres::start_with(&PostgresInstall::any()?, &[("wal_sender_timeout", "1s")])?;
    server.psql("postgres", TABLE)?;
    let small = QueueSettings { batch_records: 16, max_records: 64, ..QueueSettings::default() };
    let source = source(&options(&server.url("postgres"))?, small, 1 << 20).await?;
    until("the stream has begun", || Ok(source.seen.starts.load(Ordering::SeqCst) == 1)).await?;
    source.seen.is_blocked.store(true, Ordering::SeqCst);
    // 40 MB in one transaction: far more than queue, read-ahead and socket hold.
    server.psql("postgres", "INSERT INTO t SELECT n, repeat('x', 2000) FROM generate_series(10, 20009) n")?;
    let sender = "SELECT pid FROM pg_stat_replication WHERE state = 'streaming'";
    until("it streams", || Ok(!server.psql("postgres", sender)?.is_empty())).await?;
    let pid = server.psql("postgres", sender)?;
    // What is tested is that this time passes and nothing happens.
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    ensure!(!source.pump.is_finished(), "the pump gave up");
    source.seen.is_blocked.store(false, Ordering::SeqCst);
    source.seen.waker.wake();
    until("all are seen", || Ok(source.seen.messages.load(Ordering::SeqCst) == 20_003)).await?;
    ensure!(server.psql("postgres", sender)? == pid, "another connection serves us");
    ensure!(source.seen.starts.load(Ordering::SeqCst) == 1);

    // Nothing was durable so far; now it is, and a stop says so.
    let end = Lsn(source.seen.commit_end.load(Ordering::SeqCst));
    ensure!(confirmed(&server, "landfall_x")? < end, "it was confirmed before anybody made it durable");
    source.durable.advance(end);
    source.stop.send(true)?;
    let (ended, queue) = source.pump.await?;
    ensure!(matches!(ended, PumpEnd::Stopped), "{ended}");
    let report = queue.close(DEADLINE).await?;
    ensure!(report.processed >= 20_004);
    until("the slot is where we said", || Ok(confirmed(&server, "landfall_x")? == end)).await
}

/// P5, I13. Catches a row over the limit that ends the stream of a real server, and its neighbours that go with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_over_the_limit_leaves_its_neighbours_alone() -> Result<()> {
    let server = Postgres::start(&PostgresInstall::any()?)?;
    server.psql("postgres", TABLE)?;
    let source = source(&options(&server.url("postgres"))?, QueueSettings::default(), 1 << 20).await?;
    server.psql(
        "postgres",
        "BEGIN; INSERT INTO t VALUES (10, 'small'), (11, repeat('x', 5000000)), (12, 'small'); COMMIT",
    )?;
    // Begin, relation, two rows, commit.
    until("all are seen", || Ok(source.seen.messages.load(Ordering::SeqCst) == 5)).await?;
    ensure!(source.seen.oversized.load(Ordering::SeqCst) == 1);
    source.stop.send(true)?;
    ensure!(matches!(source.pump.await?.0, PumpEnd::Stopped));
    Ok(())
}

/// Catches a server that goes away and leaves the pump waiting, in order or by a kill.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_goes_away_ends_the_pump() -> Result<()> {
    for is_killed in [false, true] {
        let mut server = Postgres::start(&PostgresInstall::any()?)?;
        server.psql("postgres", TABLE)?;
        let source = source(&options(&server.url("postgres"))?, QueueSettings::default(), 1 << 20).await?;
        until("the stream has begun", || Ok(source.seen.starts.load(Ordering::SeqCst) == 1)).await?;
        // The server's shutdown waits until we have confirmed all; nothing is published, so the feedback of each second
        // does not, and the end of the fast shutdown is what ends it.
        if is_killed {
            server.kill()?
        } else {
            server.stop()?
        }
        let (ended, queue) = tokio::time::timeout(DEADLINE, source.pump).await.context("it waits")??;
        ensure!(ended.may_reconnect(), "{ended}");
        queue.close(DEADLINE).await?;
    }
    Ok(())
}
