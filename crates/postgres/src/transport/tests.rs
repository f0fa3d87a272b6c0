//! The connection and the stream against a scripted server on a loopback socket.

use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};

use super::scripted::{Owned, data, error, keepalive, message};
use super::stream::ReplicationTransport;
use super::*;
use crate::connect::{ConnectError, ConnectOptions, Password, TlsMode, TlsOptions};

/// A server that does what the script says with the one connection that it gets.
async fn server<F, R>(script: F) -> ConnectOptions
where
    F: FnOnce(TcpStream) -> R + Send + 'static,
    R: Future<Output = ()> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        script(stream).await;
    });
    let tls = TlsOptions { mode: TlsMode::Disable, ca: None };
    ConnectOptions::parse(&format!("postgres://ada@127.0.0.1:{port}/shop"), None, Some(tls)).unwrap()
}

/// Reads the start-up packet.
async fn startup(stream: &mut TcpStream) -> String {
    let len = stream.read_u32().await.unwrap() as usize;
    let mut body = vec![0; len - 4];
    stream.read_exact(&mut body).await.unwrap();
    String::from_utf8_lossy(&body[4..]).replace('\0', "|")
}

/// Reads one message.
async fn hear(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let tag = stream.read_u8().await.unwrap();
    let len = stream.read_u32().await.unwrap() as usize;
    let mut body = vec![0; len - 4];
    stream.read_exact(&mut body).await.unwrap();
    (tag, body)
}

async fn say(stream: &mut TcpStream, messages: &[Vec<u8>]) {
    stream.write_all(&messages.concat()).await.unwrap();
}

/// What a server says that trusts everybody.
fn welcome() -> Vec<Vec<u8>> {
    vec![
        message(b'R', &0u32.to_be_bytes()),
        message(b'S', b"server_version\x0015.13 (Debian)\0"),
        message(b'K', &[0; 8]),
        message(b'Z', b"I"),
    ]
}

fn row(cells: &[Option<&str>]) -> Vec<u8> {
    let mut body = u16::try_from(cells.len()).unwrap().to_be_bytes().to_vec();
    for cell in cells {
        match cell {
            None => body.extend_from_slice(&(-1i32).to_be_bytes()),
            Some(text) => {
                body.extend_from_slice(&i32::try_from(text.len()).unwrap().to_be_bytes());
                body.extend_from_slice(text.as_bytes());
            }
        }
    }
    message(b'D', &body)
}

fn done() -> Vec<Vec<u8>> {
    vec![message(b'C', b"OK\0"), message(b'Z', b"I")]
}

async fn refused(options: &ConnectOptions) -> String {
    ReplicationConnection::connect(options).await.unwrap_err().to_string()
}

/// Catches a start-up that leaves the pinned settings out (P49), and answers that are read into the wrong fields.
#[tokio::test]
async fn log_in_and_commands_speak_the_protocol() {
    let options = server(|mut stream| async move {
        let startup = startup(&mut stream).await;
        for part in ["user|ada|", "database|shop|", "replication|database|", "-c TimeZone=UTC", "-c row_security=off"] {
            assert!(startup.contains(part), "{startup}");
        }
        say(&mut stream, &welcome()).await;
        for (command, cells) in [
            ("IDENTIFY_SYSTEM", vec![Some("7612345678901234567"), Some("3"), Some("1/A0"), Some("shop")]),
            (
                "CREATE_REPLICATION_SLOT \"landfall_x\" LOGICAL pgoutput (SNAPSHOT 'export')",
                vec![Some("landfall_x"), Some("0/1573178"), Some("00000003-1"), Some("pgoutput")],
            ),
            ("SHOW wal_sender_timeout", vec![Some("1min")]),
            ("TIMELINE_HISTORY 3", vec![Some("00000003.history"), Some("1\t0/50\tno reason\n\n2\t1/60\tbefore x\n")]),
        ] {
            assert_eq!(hear(&mut stream).await, (b'Q', format!("{command}\0").into_bytes()));
            say(&mut stream, &[message(b'T', &[0, 0]), message(b'N', b"Mx\0\0"), row(&cells)]).await;
            say(&mut stream, &done()).await;
        }
    })
    .await;
    let mut connection = ReplicationConnection::connect(&options).await.unwrap();
    assert_eq!(connection.version(), ServerVersion(15));
    let identity = connection.identify_system().await.unwrap();
    let expected = SystemIdentity {
        system_id: 7_612_345_678_901_234_567,
        timeline: 3,
        wal_end: Lsn(0x1_0000_00a0),
        database: Some("shop".into()),
    };
    assert_eq!(identity, expected);
    let slot = CreateSlot {
        name: "landfall_x".into(),
        is_temporary: false,
        snapshot: SnapshotUse::Export,
        is_failover: false,
    };
    let created = connection.create_slot(&slot).await.unwrap();
    assert_eq!((created.consistent_point, created.snapshot_name.as_deref()), (Lsn(0x157_3178), Some("00000003-1")));
    assert_eq!(connection.show("wal_sender_timeout").await.unwrap(), "1min");
    let history = connection.timeline_history(3).await.unwrap();
    assert_eq!(
        history.iter().map(|switch| (switch.timeline, switch.at.0)).collect::<Vec<_>>(),
        [(1, 0x50), (2, 0x1_0000_0060)]
    );
    assert_eq!(history[1].reason, "before x");
    assert_eq!(connection.timeline_history(1).await.unwrap(), []);
}

/// Catches a command text that a server of some version does not take, and names that are not what they look like.
#[test]
fn command_texts_follow_the_servers_version() {
    let slot = |name: &str, is_temporary, snapshot, is_failover| CreateSlot {
        name: name.into(),
        is_temporary,
        snapshot,
        is_failover,
    };
    let text = |version, slot: &CreateSlot| commands::create_slot(ServerVersion(version), slot);
    let plain = slot("1_a", false, SnapshotUse::Export, false);
    assert_eq!(text(14, &plain).unwrap(), "CREATE_REPLICATION_SLOT \"1_a\" LOGICAL pgoutput EXPORT_SNAPSHOT");
    assert_eq!(text(18, &plain).unwrap(), "CREATE_REPLICATION_SLOT \"1_a\" LOGICAL pgoutput (SNAPSHOT 'export')");
    let other = slot("a", true, SnapshotUse::Nothing, true);
    assert_eq!(
        text(17, &other).unwrap(),
        "CREATE_REPLICATION_SLOT \"a\" TEMPORARY LOGICAL pgoutput (SNAPSHOT 'nothing', FAILOVER)"
    );
    assert!(matches!(text(16, &other), Err(ConnectError::Unsupported { .. })));
    for name in ["", "A", "a b", "a\"; DROP", "ä", &"a".repeat(64)] {
        let slot = slot(name, false, SnapshotUse::Nothing, false);
        assert!(matches!(text(15, &slot), Err(ConnectError::SlotName { .. })), "{name}");
    }
    let mut options = StreamOptions {
        slot: "s".into(),
        from: Lsn(0x1_0000_0002),
        publications: vec!["p".into(), "it's \"q\"".into()],
        protocol: 2,
        is_streaming: true,
        with_messages: true,
        origin: None,
        max_message: 1,
    };
    assert_eq!(
        commands::start(ServerVersion(15), &options).unwrap(),
        "START_REPLICATION SLOT \"s\" LOGICAL 1/2 (proto_version '2', publication_names '\"p\",\"it''s \"\"q\"\"\"', \
         streaming 'on', messages 'true')"
    );
    options.origin = Some("none".into());
    assert!(commands::start(ServerVersion(15), &options).is_err());
    assert!(commands::start(ServerVersion(16), &options).unwrap().ends_with(", origin 'none')"));
    for (text, version) in [("14.2", Some(14)), ("18beta1", Some(18)), ("", None), ("x", None)] {
        assert_eq!(ServerVersion::parse(text), version.map(ServerVersion));
    }
    assert!(commands::timeline_history("1 x\n").is_err());
}

/// Catches a refusal that is told as a lost connection, or without what to do.
#[tokio::test]
async fn refused_log_ins_say_why() {
    let answers: Vec<(Vec<u8>, &[&str])> = vec![
        (error("FATAL", "28P01", "password authentication failed"), &["LF-PG0102", "28P01"]),
        (error("FATAL", "57P03", "the database system is starting up"), &["LF-PG0106", "starting up"]),
        (message(b'R', &3u32.to_be_bytes()), &["LF-PG0102", "none is configured"]),
        (message(b'R', &7u32.to_be_bytes()), &["LF-PG0102", "GSSAPI"]),
        (message(b'R', b"\0\0\0\x0aSCRAM-SHA-256-PLUS\0\0"), &["LF-PG0102", "SCRAM-SHA-256-PLUS"]),
        (message(b'R', b"\0"), &["LF-PG0117"]),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), &["LF-PG0117"]),
        (vec![b'R', 0xff, 0xff, 0xff, 0xff], &["LF-PG0117", "1048576"]),
        (Vec::new(), &["LF-PG0107"]),
        ([message(b'R', &[0; 4]), message(b'Z', b"I")].concat(), &["LF-PG0117", "did not tell its version"]),
    ];
    for (answer, words) in answers {
        let sent = answer.clone();
        let options = server(|mut stream| async move {
            startup(&mut stream).await;
            say(&mut stream, &[sent]).await;
        })
        .await;
        let text = refused(&options).await;
        for word in words {
            assert!(text.contains(word), "{text} has no {word}");
        }
    }
}

/// Catches a peer that accepts and says nothing: the log-in must end by itself.
#[tokio::test]
async fn a_log_in_is_bounded_in_time() {
    let mut options = server(|stream| async move {
        let mut stream = stream;
        let mut sink = [0; 64];
        // Until the client gives up.
        while stream.read(&mut sink).await.is_ok_and(|count| count > 0) {}
    })
    .await;
    options.connect_timeout = Duration::from_millis(50);
    let text = refused(&options).await;
    assert!(text.contains("LF-PG0101") && text.contains("50ms"), "{text}");
}

/// Catches a password that goes out in a form that was not asked for.
#[tokio::test]
async fn passwords_go_out_as_asked_for() {
    for (request, expected) in [
        (3u32.to_be_bytes().to_vec(), b"secret\0".to_vec()),
        // md5(md5("secret" + "ada") + "salt")
        ([5u32.to_be_bytes().as_slice(), b"salt"].concat(), {
            let mut text = postgres_protocol::authentication::md5_hash(b"ada", b"secret", *b"salt").into_bytes();
            assert!(text.starts_with(b"md5") && text.len() == 35);
            text.push(0);
            text
        }),
    ] {
        let mut options = server(|mut stream| async move {
            startup(&mut stream).await;
            say(&mut stream, &[message(b'R', &request)]).await;
            assert_eq!(hear(&mut stream).await, (b'p', expected));
            say(&mut stream, &welcome()).await;
        })
        .await;
        options.password = Some(Password::new("secret"));
        ReplicationConnection::connect(&options).await.unwrap();
    }
}

/// Catches a peer that is let in without proving that it knows the password.
#[tokio::test]
async fn a_server_that_cannot_prove_the_password_is_refused() {
    let mut options = server(|mut stream| async move {
        startup(&mut stream).await;
        say(&mut stream, &[message(b'R', b"\0\0\0\x0aSCRAM-SHA-256\0\0")]).await;
        let (_, first) = hear(&mut stream).await;
        let text = String::from_utf8_lossy(&first).into_owned();
        let nonce = text.rsplit("r=").next().unwrap().to_owned();
        let challenge = format!("\0\0\0\x0br={nonce}server,s=c2FsdA==,i=4096");
        say(&mut stream, &[message(b'R', challenge.as_bytes())]).await;
        hear(&mut stream).await;
        say(&mut stream, &[message(b'R', b"\0\0\0\x0cv=AAAA")]).await;
        say(&mut stream, &welcome()).await;
    })
    .await;
    options.password = Some(Password::new("secret"));
    let text = refused(&options).await;
    assert!(text.contains("the password exchange failed"), "{text}");
}

/// Catches an answer of one command that is taken for that of the next.
#[tokio::test]
async fn an_abandoned_command_makes_the_connection_useless() {
    let options = server(|mut stream| async move {
        startup(&mut stream).await;
        say(&mut stream, &welcome()).await;
        hear(&mut stream).await;
        say(&mut stream, &[error("ERROR", "42704", "no such setting"), message(b'Z', b"I")]).await;
        hear(&mut stream).await;
        // The second command never gets an answer.
        let _ = stream.read_u8().await;
    })
    .await;
    let mut connection = ReplicationConnection::connect(&options).await.unwrap();
    let error = connection.show("no_such").await.unwrap_err();
    assert_eq!(error.sqlstate(), Some("42704"));
    assert!(error.to_string().contains("SHOW was refused"), "{error}");
    {
        let mut abandoned = std::pin::pin!(connection.identify_system());
        assert!(futures::poll!(abandoned.as_mut()).is_pending());
    }
    assert!(matches!(connection.identify_system().await, Err(ConnectError::Abandoned)));
}

type Piped = ReplicationTransport<ReadHalf<DuplexStream>, WriteHalf<DuplexStream>>;

fn piped(capacity: usize, max_message: usize) -> (Piped, DuplexStream) {
    let (ours, theirs) = tokio::io::duplex(capacity);
    let (read, write) = tokio::io::split(ours);
    (ReplicationTransport::new(read, write, max_message, &[]), theirs)
}

/// P2. Catches a keepalive that is answered on receive: the answer would carry numbers that nobody made durable.
#[tokio::test]
async fn a_transport_never_acknowledges_by_itself() {
    let (mut transport, mut peer) = piped(1 << 20, 1 << 20);
    for lsn in 1..=50u64 {
        peer.write_all(&[data(lsn, b"row"), keepalive(lsn, true)].concat()).await.unwrap();
    }
    for _ in 0..100 {
        transport.next().await;
    }
    let mut byte = [0];
    let mut heard = std::pin::pin!(peer.read(&mut byte));
    assert!(futures::poll!(heard.as_mut()).is_pending(), "something was sent");
    let mut feedback = transport.feedback().unwrap();
    assert!(transport.feedback().is_none(), "there is one way back");
    feedback.send(StatusUpdate { write: Lsn(3), flush: Lsn(2), apply: Lsn(2), wants_reply: true }).await.unwrap();
    assert_eq!(heard.await.unwrap(), 1);
    let mut rest = [0; 38];
    peer.read_exact(&mut rest).await.unwrap();
    assert_eq!((byte[0], &rest[..5]), (b'd', [0, 0, 0, 38, b'r'].as_slice()));
    assert_eq!(rest[5..29], [[0, 0, 0, 0, 0, 0, 0, 3], [0, 0, 0, 0, 0, 0, 0, 2], [0, 0, 0, 0, 0, 0, 0, 2]].concat());
    assert_eq!(rest[37], 1);
}

/// P2. Catches bytes that are lost when a wait is given up in the middle of a frame.
#[tokio::test]
async fn waiting_for_a_frame_is_cancel_safe() {
    let (mut transport, mut peer) = piped(1 << 20, 1 << 20);
    let frame = data(9, &vec![5; 1_000]);
    for byte in &frame {
        {
            let mut next = std::pin::pin!(transport.next());
            assert!(futures::poll!(next.as_mut()).is_pending());
        }
        {
            let mut announced = std::pin::pin!(transport.announced());
            let _ = futures::poll!(announced.as_mut());
        }
        peer.write_all(&[*byte]).await.unwrap();
    }
    assert_eq!(Owned::of(&transport.next().await), Owned::Data(9, vec![5; 1_000]));
}

/// P5. Catches a stream that ends at a large message, and one that keeps it all in memory.
#[tokio::test]
async fn a_message_over_the_limit_comes_as_its_head_and_the_stream_lives_on() {
    let (mut transport, mut peer) = piped(64 << 10, 1 << 20);
    let writer = tokio::spawn(async move {
        let huge = vec![b'I'; 40 << 20];
        peer.write_all(&data(1, &huge)).await.unwrap();
        peer.write_all(&data(2, b"after")).await.unwrap();
        peer
    });
    let Frame::Oversized { lsn, len, head, .. } = transport.next().await else { panic!("it came whole") };
    assert_eq!((lsn, len, head.len()), (Lsn(1), 40 << 20, 64 << 10));
    assert!(head.iter().all(|byte| *byte == b'I'));
    assert_eq!(Owned::of(&transport.next().await), Owned::Data(2, b"after".to_vec()));
    drop(writer.await.unwrap());
    assert!(matches!(transport.next().await, Frame::Closed { cause: CloseCause::Lost(_) }));
    assert!(matches!(transport.next().await, Frame::Closed { cause: CloseCause::Lost(_) }), "asked again, it says so");
}

/// P11. Catches a reader that goes on while nobody has room: the bytes must stay with the peer.
#[tokio::test]
async fn bytes_stay_in_the_socket_while_nobody_takes_frames() {
    let (mut transport, mut peer) = piped(16 << 10, 1 << 20);
    let (frame, mut sent) = (data(1, &[0; 1_000]), 0);
    loop {
        if let Poll::Ready(written) = futures::poll!(std::pin::pin!(peer.write(&frame))) {
            sent += written.unwrap();
            assert!(sent < 1 << 20, "the peer could send {sent} bytes to nobody");
            continue;
        }
        // The transport may read ahead now; if that makes no room, nothing does.
        assert!(transport.announced().await.is_whole);
        let Poll::Ready(written) = futures::poll!(std::pin::pin!(peer.write(&frame))) else { break };
        sent += written.unwrap();
    }
    assert!(sent > 1_000);
}
