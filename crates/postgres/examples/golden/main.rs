//! Records the golden messages from real servers (`record`), and shows recorded ones as text (`dump`).

mod dump;

use std::io::{BufRead, Write};
use std::path::Path;

use anyhow::{Result, bail};
use landfall_testkit::{Postgres, PostgresInstall};

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("record") => record(),
        Some("dump") => show(),
        _ => bail!("usage: golden record | golden dump <messages.hex"),
    }
}

fn record() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let workload = std::fs::read_to_string(folder.join("workload.sql"))?;
    for install in PostgresInstall::all()? {
        let cluster = Postgres::start(&install)?;
        cluster.create_database("golden")?;
        cluster.psql("golden", &workload)?;
        let messages = cluster.psql(
            "golden",
            "SET DateStyle = ISO; SET TimeZone = 'UTC';
             SELECT lsn || ' ' || encode(data, 'hex') FROM pg_logical_slot_peek_binary_changes('golden', NULL, NULL,
             'proto_version', '1', 'publication_names', 'landfall', 'messages', 'true');",
        )?;
        let path = folder.join(format!("pgoutput-{}.hex", cluster.major()));
        std::fs::write(&path, messages.clone() + "\n")?;
        println!("{}: {} messages", path.display(), messages.lines().count());
    }
    Ok(())
}

fn show() -> Result<()> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let (lsn, bytes) = dump::parse_line(&line?)?;
        match dump::dump(lsn, &bytes) {
            // Names may hold anything; a message stays a line.
            Ok(text) => writeln!(out, "{}", text.replace('\n', "\\n"))?,
            Err(error) => writeln!(out, "error {error}")?,
        }
    }
    Ok(())
}
