//! A role whose own settings would break a capture: what matters of them is ours on every connection (P49).

use anyhow::Result;
use landfall_postgres::ConnectOptions;
use landfall_testkit::PostgresInstall;

use crate::capture::{Bed, end};
use crate::orders::until_streaming;

/// Values whose text depends on settings, in columns of text; and what an operator of this name would never find.
const WAITS: &str = "
    CREATE TABLE waits (id int PRIMARY KEY, wait interval, cash money, at timetz, big numeric);
    INSERT INTO waits SELECT g, '1 mon -2 days 03:04:05', 1234.5, '10:11:12.5+05:30', 0.10 FROM generate_series(1, 500) g;
    CREATE SCHEMA hostile;
    CREATE FUNCTION hostile.never(oid, oid) RETURNS bool LANGUAGE sql AS 'SELECT false';
    CREATE OPERATOR hostile.= (LEFTARG = oid, RIGHTARG = oid, FUNCTION = hostile.never);";

/// It owns what it reads by another role, and only it itself may replicate.
const ROLE: &str = "
    CREATE ROLE owner; GRANT ALL ON SCHEMA public, hostile TO owner; GRANT CREATE ON DATABASE shop TO owner;
    ALTER TABLE waits OWNER TO owner;
    CREATE ROLE landfall LOGIN REPLICATION IN ROLE owner;
    ALTER ROLE landfall SET role = 'owner';
    ALTER ROLE landfall SET search_path = hostile, pg_catalog, public;
    ALTER ROLE landfall SET lock_timeout = '100ms';
    ALTER ROLE landfall SET statement_timeout = '100ms';
    ALTER ROLE landfall SET idle_in_transaction_session_timeout = '100ms';
    ALTER ROLE landfall SET idle_session_timeout = '100ms';
    ALTER ROLE landfall SET default_transaction_read_only = on;
    ALTER ROLE landfall SET default_transaction_isolation = 'serializable';
    ALTER ROLE landfall SET DateStyle = 'SQL, DMY';
    ALTER ROLE landfall SET IntervalStyle = 'sql_standard';
    ALTER ROLE landfall SET TimeZone = 'Asia/Kolkata';
    ALTER ROLE landfall SET bytea_output = 'escape';
    ALTER ROLE landfall SET extra_float_digits = -10;
    ALTER ROLE landfall SET client_encoding = 'LATIN1';
    ALTER ROLE landfall SET row_security = on;";

/// The server makes a slot, and has waited for a writer for longer than the role would.
const HAS_WAITED: &str = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'walsender'
    AND wait_event_type = 'Lock' AND clock_timestamp() - state_change > interval '500 ms')";

/// Catches a setting of the role that ends a wait which is ours to bound, hides the catalog, forbids the publication, takes the
/// right to replicate away, or gives a value another text.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_of_hostile_settings_is_followed_all_the_same() -> Result<()> {
    let mut bed = Bed::on(&PostgresInstall::any()?, WAITS)?;
    bed.shop.psql(ROLE)?;
    let writer = bed.shop.sql().await?;
    writer.run("write", "BEGIN; UPDATE public.waits SET big = 7 WHERE id = 7").await?;
    bed.shop.options = ConnectOptions::parse(&bed.shop.server.url_as("landfall", "shop"), None, None)?;
    let (handle, _) = bed.start_ordered(|_| {})?;
    bed.shop.wait_for(HAS_WAITED, "t")?;
    writer.run("end the transaction", "COMMIT").await?;
    until_streaming(&handle, "public.waits").await?;
    bed.shop.psql("UPDATE waits SET id = -id WHERE id <= 10;")?;
    let columns = ["id", "wait", "cash", "at", "big"];
    let pinned = "ALTER DATABASE shop SET IntervalStyle = iso_8601; ALTER DATABASE shop SET lc_monetary = 'C';
                  ALTER DATABASE shop SET TimeZone = 'UTC';";
    bed.shop.psql(pinned)?;
    bed.until_equal(&handle, "public.waits", &columns, &["id"]).await?;
    assert_eq!(bed.lake.doubles("public.waits"), 0);
    end(handle).await;
    // By then a publication and a slot are there: the way of every later start.
    let (handle, _) = bed.start_ordered(|_| {})?;
    bed.shop.psql("DELETE FROM waits WHERE id > 400;")?;
    bed.until_equal(&handle, "public.waits", &columns, &["id"]).await?;
    end(handle).await;
    Ok(())
}
