//! `check` against real servers (P64): the facts that the rules judge, and that each printed statement mends.

use anyhow::{Context, Result, ensure};
use landfall_postgres::{
    CheckOptions, ConnectOptions, Finding, Identity, KeyOrigin, Level, OptionSet, PgType, PostgresCheck, SqlConnection,
    SqlError, StartupOptions, TableFacts, TableRules, apply_publication, plan_publication, read_tables,
};
use landfall_testkit::PostgresInstall;
use landfall_types::Coded;

use crate::database::Shop;

fn options(patterns: &[&str]) -> Result<CheckOptions> {
    let tables = patterns.iter().map(|pattern| Ok((pattern.parse()?, TableRules::default())));
    Ok(CheckOptions {
        startup: StartupOptions {
            pipeline: "shop".into(),
            slot: "landfall_shop".into(),
            creates_slot: true,
            adopts_slot: false,
            copies: true,
            creates_publication: true,
            row_options: OptionSet { publications: vec!["landfall_shop".into()], origin: None, messages: false },
        },
        publication: "landfall_shop".into(),
        tables: tables.collect::<Result<_>>()?,
        application_name: "landfall".into(),
    })
}

async fn findings(connect: &ConnectOptions, patterns: &[&str]) -> Result<Vec<Finding>> {
    let options = options(patterns)?;
    Ok(PostgresCheck::read(connect, &options, None).await?.findings(&options, None))
}

fn errors(findings: &[Finding]) -> Vec<String> {
    findings.iter().filter(|finding| finding.level == Level::Error).map(ToString::to_string).collect()
}

/// Catches a statement that `check` prints and that does not mend what it is printed for: a role with no rights runs
/// into every rule, each fix is executed as printed, and then nothing is left.
#[tokio::test(flavor = "multi_thread")]
async fn each_printed_statement_mends_its_finding() -> Result<()> {
    for install in PostgresInstall::oldest_and_newest()? {
        let shop = Shop::start(&install, &[])?;
        shop.psql(
            r#"
            CREATE ROLE reader LOGIN;
            CREATE SCHEMA "Closed";
            CREATE TABLE "Closed"."Order" (id int PRIMARY KEY, body text);
            CREATE TABLE public.no_key (id int);
            CREATE TABLE public.deferred (id int PRIMARY KEY DEFERRABLE);
            CREATE TABLE public.doc (id int PRIMARY KEY, body text);
            CREATE TABLE public.events (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
            CREATE TABLE public.e1 PARTITION OF public.events FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
            CREATE TABLE public.rows (id int PRIMARY KEY);
            ALTER TABLE public.rows ENABLE ROW LEVEL SECURITY;
            ALTER TABLE public.e1 REPLICA IDENTITY NOTHING;
            CREATE VIEW public.v AS SELECT 1;
            CREATE UNLOGGED TABLE public.u (id int);
        "#,
        )?;
        let mut connect = shop.options.clone();
        connect.user = "reader".into();
        let patterns = ["Closed.*", "public.*"];
        let before = findings(&connect, &patterns).await?;
        let text = format!("{before:#?}");
        for part in [
            "ALTER ROLE reader REPLICATION;",
            r#"GRANT USAGE ON SCHEMA \"Closed\" TO reader; GRANT SELECT ON \"Closed\".\"Order\" TO reader;"#,
            "ALTER TABLE public.no_key REPLICA IDENTITY FULL;",
            "ALTER TABLE public.deferred DROP CONSTRAINT deferred_pkey, ADD PRIMARY KEY (id);",
            "partitions of public.events have no usable identity: public.e1",
            "ALTER ROLE reader BYPASSRLS;",
            "an update of public.doc leaves out large values that it does not change: body",
            "public.v is a view",
            "public.u is an unlogged table",
        ] {
            ensure!(text.contains(part), "`{part}` is not in {text}");
        }
        // As printed, by a superuser; a key for the table that has none is a person's choice.
        shop.psql("ALTER TABLE public.no_key ADD PRIMARY KEY (id)")?;
        for _ in 0..2 {
            for finding in findings(&connect, &patterns).await?.iter().filter(|finding| finding.level == Level::Error) {
                let fix = finding.fix.as_deref().with_context(|| format!("no statement: {finding}"))?;
                shop.psql(fix).with_context(|| finding.to_string())?;
            }
        }
        let after = findings(&connect, &patterns).await?;
        ensure!(errors(&after).is_empty(), "{:#?}", errors(&after));
    }
    Ok(())
}

/// Catches a server setting whose name or unit differs from what the rules look for.
#[tokio::test(flavor = "multi_thread")]
async fn settings_are_read_from_a_real_server() -> Result<()> {
    for install in PostgresInstall::oldest_and_newest()? {
        let mut settings = vec![
            ("wal_level", "replica"),
            ("max_replication_slots", "0"),
            ("wal_sender_timeout", "2s"),
            ("synchronous_standby_names", "FIRST 1 (landfall)"),
            ("synchronous_commit", "local"),
            ("max_slot_wal_keep_size", "-1"),
        ];
        // 18 has it, as seconds.
        let idle = ("idle_replication_slot_timeout", "60s");
        settings.extend((install.major() >= 18).then_some(idle));
        let shop = Shop::start(&install, &settings)?;
        let text = findings(&shop.options, &[]).await?.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        for part in [
            "wal_level is replica",
            "0 of 0 replication slots",
            "wal_sender_timeout is 2000 ms",
            "max_slot_wal_keep_size is -1",
            "commits would wait",
            &format!("Postgres {}.", install.major()),
        ] {
            ensure!(text.contains(part), "`{part}` is not in\n{text}");
        }
        ensure!(text.contains("idle_replication_slot_timeout is set") == (install.major() >= 18), "{text}");
    }
    Ok(())
}

/// Catches a table's shape that differs from what the server has: types, keys, generated and dropped columns,
/// partitions, large values.
#[tokio::test(flavor = "multi_thread")]
async fn shapes_are_what_the_catalog_says() -> Result<()> {
    for install in PostgresInstall::oldest_and_newest()? {
        let shop = Shop::start(&install, &[])?;
        shop.psql(r#"
            CREATE TYPE mood AS ENUM ('good', 'bad'); CREATE TYPE pair AS (a int, b int);
            CREATE DOMAIN price AS numeric(12, 2); CREATE DOMAIN tax AS price CHECK (VALUE > 0);
            CREATE TABLE t (
              gone int, id bigint PRIMARY KEY, amount tax, plain numeric, back numeric(3, -2), moods mood[], boxes box[],
              ids int2vector, pair pair, span int4range, fixed char(3), net inet, name varchar(10), big bytea,
              twice bigint GENERATED ALWAYS AS (id * 2) STORED);
            ALTER TABLE t DROP COLUMN gone;
            CREATE TABLE by_index (a int NOT NULL, b int NOT NULL, c int PRIMARY KEY);
            CREATE UNIQUE INDEX by_index_ab ON by_index (b, a) INCLUDE (c);
            ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_ab;
            CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child () INHERITS (parent);
            CREATE TABLE full_only (id int); ALTER TABLE full_only REPLICA IDENTITY FULL;
            CREATE TABLE r (id int PRIMARY KEY, body text) PARTITION BY RANGE (id);
            CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id);
            CREATE TABLE r11 PARTITION OF r1 FOR VALUES FROM (0) TO (5);
            CREATE TABLE r12 PARTITION OF r1 DEFAULT;
            INSERT INTO r SELECT n % 10, 'x' FROM generate_series(0, 9) n;
        "#)?;
        let sql = shop.sql().await?;
        let read = read_tables(&sql, &["public.*".parse()?], &[]).await?;
        let table = |name: &str| -> Result<&TableFacts> {
            let found = read.tables.iter().find(|table| &*table.shape.name.table == name);
            found.with_context(|| format!("{name} is not among the tables"))
        };
        let names: Vec<&str> = read.tables.iter().map(|table| &*table.shape.name.table).collect();
        assert_eq!(names, ["by_index", "child", "full_only", "parent", "r", "t"]);
        let t = table("t")?;
        let kinds: Vec<(&str, i16, &PgType)> =
            t.shape.columns.iter().map(|column| (&*column.name, column.attnum, &column.kind)).collect();
        let array = |element, delimiter| PgType::Array { element: Box::new(element), delimiter };
        let expected = [
            ("id", 2, PgType::Int8),
            ("amount", 3, PgType::Numeric(Some((12, 2)))),
            ("plain", 4, PgType::Numeric(None)),
            ("back", 5, PgType::Numeric(Some((3, -2)))),
            ("moods", 6, array(PgType::Enum, ',')),
            ("boxes", 7, array(PgType::Other("box".into()), ';')),
            ("ids", 8, PgType::Other("int2vector".into())),
            ("pair", 9, PgType::Other("public.pair".into())),
            ("span", 10, PgType::Other("int4range".into())),
            ("fixed", 11, PgType::Char),
            ("net", 12, PgType::Other("inet".into())),
            ("name", 13, PgType::Text),
            ("big", 14, PgType::Bytea),
        ];
        assert_eq!(kinds, expected.iter().map(|(name, at, kind)| (*name, *at, kind)).collect::<Vec<_>>());
        ensure!(t.shape.columns.iter().filter(|column| column.is_key).map(|column| column.attnum).eq([2]));
        let toastable = |name: &str| t.shape.columns.iter().any(|column| &*column.name == name && column.is_toastable);
        ensure!(toastable("big") && toastable("amount") && !toastable("id") && !toastable("boxes_"));
        let by_index = table("by_index")?;
        assert_eq!(
            (by_index.shape.identity, &by_index.key),
            (Identity::Index, &KeyOrigin::IdentityIndex("by_index_ab".into()))
        );
        ensure!(by_index.shape.columns.iter().filter(|column| column.is_key).map(|column| column.attnum).eq([1, 2]));
        let full = table("full_only")?;
        ensure!(full.is_identified() && full.key == KeyOrigin::None && full.shape.identity == Identity::Full);
        ensure!(!table("child")?.is_identified(), "a child has no key of its parent");
        let root = table("r")?;
        let leaves: Vec<&str> = root.leaves.iter().map(|leaf| &*leaf.name.table).collect();
        assert_eq!(leaves, ["r11", "r12"]);
        ensure!(root.is_partitioned && root.heap_bytes() == 2 * 8_192 && root.is_identified());
        let named = read_tables(&sql, &["public.r11".parse()?, "public.nope".parse()?], &[]).await?;
        ensure!(named.tables.len() == 1 && named.unmatched == [1], "a leaf that is named alone is a table: {named:?}");
    }
    Ok(())
}

/// Catches a publication that is made wrongly or taken as complete: what the server has afterwards is what was asked.
#[tokio::test(flavor = "multi_thread")]
async fn a_publication_is_made_and_extended() -> Result<()> {
    for install in PostgresInstall::oldest_and_newest()? {
        let shop = Shop::start(&install, &[])?;
        shop.psql(
            "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE no_key (id int);
                   CREATE TABLE r (id int PRIMARY KEY) PARTITION BY RANGE (id);
                   CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10);",
        )?;
        let sql = shop.sql().await?;
        let tables = read_tables(&sql, &["public.*".parse()?], &[]).await?.tables;
        let publication = || landfall_postgres::PublicationFacts::read(&sql, install.major(), "p q");
        let plan = plan_publication("p q", publication().await?.as_ref(), &tables);
        ensure!(plan.is_missing && plan.refused.len() == 1);
        apply_publication(&sql, &plan).await?;
        let made = publication().await?.context("it was made")?;
        ensure!(made.is_via_root && made.missing_operations.is_empty() && !made.is_for_all_tables);
        assert_eq!(made.tables.iter().map(|table| &*table.name.table).collect::<Vec<_>>(), ["a", "r"]);
        ensure!(plan_publication("p q", Some(&made), &tables).statements.is_empty());
        // UPDATEs of the table that was refused still work on the source.
        shop.psql("INSERT INTO no_key VALUES (1); UPDATE no_key SET id = 2;")?;
        shop.psql("CREATE TABLE b (id int PRIMARY KEY); ALTER PUBLICATION \"p q\" SET (publish = 'insert', publish_via_partition_root = false);")?;
        let tables = read_tables(&sql, &["public.*".parse()?], &[]).await?.tables;
        let plan = plan_publication("p q", publication().await?.as_ref(), &tables);
        assert_eq!(plan.statements.len(), 3, "{plan:?}");
        apply_publication(&sql, &plan).await?;
        let mended = publication().await?.context("it is there")?;
        ensure!(plan_publication("p q", Some(&mended), &tables).statements.is_empty(), "{mended:?}");
    }
    Ok(())
}

/// Catches errors of a connection that do not say what to change, and codes that follow a text instead of the cause.
#[tokio::test(flavor = "multi_thread")]
async fn connection_errors_say_what_to_change() -> Result<()> {
    let shop = Shop::start(&PostgresInstall::any()?, &[])?;
    shop.psql("CREATE ROLE secret LOGIN PASSWORD 'right'; CREATE ROLE weak LOGIN; CREATE TABLE t (id int);")?;
    shop.server.set_hba("local all all trust\nhost shop secret 127.0.0.1/32 scram-sha-256\nhost all postgres,weak,nobody 127.0.0.1/32 trust\n")?;
    shop.server.reload()?;
    shop.wait_for("SELECT count(*) FROM pg_hba_file_rules", "3")?;
    let with = |change: &dyn Fn(&mut ConnectOptions)| {
        let mut options = shop.options.clone();
        change(&mut options);
        options
    };
    let cases: [(&str, ConnectOptions); 4] = [
        ("LF-PG0104", with(&|options| options.database = "nope".into())),
        ("LF-PG0102", with(&|options| options.user = "nobody".into())),
        ("LF-PG0103", with(&|options| options.user = "stranger".into())),
        (
            "LF-PG0102",
            with(&|options| {
                options.user = "secret".into();
                options.password = Some(landfall_postgres::Password::new("wrong"));
            }),
        ),
    ];
    for (code, options) in cases {
        let error = SqlConnection::open(&options).await.err().with_context(|| format!("{code}: it connected"))?;
        ensure!(error.code().to_string() == code, "{code}: {error}");
        ensure!(!error.to_string().contains("wrong"), "a password is in the message");
        let finding = Finding::of_connection(&error, &options);
        ensure!(finding.level == Level::Error && (finding.fix.is_some() || finding.help.is_some()), "{finding}");
    }
    let right = with(&|options| {
        options.user = "secret".into();
        options.password = Some(landfall_postgres::Password::new("right"));
    });
    SqlConnection::open(&right).await?;
    let weak = SqlConnection::open(&with(&|options| options.user = "weak".into())).await?;
    let refused = weak.rows("read the table", "SELECT * FROM t", &[]).await.err().context("it may not read")?;
    ensure!(matches!(refused, SqlError::Privilege { .. }), "{refused}");
    let nowhere = ConnectOptions::parse("postgres://postgres@127.0.0.1:1/shop", None, None)?;
    let error = SqlConnection::open(&nowhere).await.err().context("nobody listens there")?;
    ensure!(error.code().to_string() == "LF-PG0101", "{error}");
    Ok(())
}

/// Catches a query that is given up here and goes on there: it must be cancelled on the server, and what the pinned
/// settings promise must hold.
#[tokio::test(flavor = "multi_thread")]
async fn a_query_that_is_given_up_ends_on_the_server() -> Result<()> {
    let shop = Shop::start(&PostgresInstall::any()?, &[])?;
    let sql = shop.sql().await?.with_deadline(std::time::Duration::from_millis(300));
    let error = sql.rows("sleep", "SELECT pg_sleep(600)", &[]).await.err().context("it has a deadline")?;
    ensure!(matches!(error, SqlError::Deadline { .. }), "{error}");
    let sleeping =
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(600)%' AND state = 'active'";
    shop.wait_for(sleeping, "0")?;
    let sql = shop.sql().await?;
    {
        let dropped = sql.rows("sleep", "SELECT pg_sleep(600)", &[]);
        let _ = tokio::time::timeout(std::time::Duration::from_millis(300), dropped).await;
    }
    shop.wait_for(sleeping, "0")?;
    let sql = shop.sql().await?;
    let row = sql
        .row("read a value", "SELECT '1 day'::interval::text, now()::text LIKE '%+00', '\\x00'::bytea::text", &[])
        .await?;
    assert_eq!(
        (row.try_get::<_, &str>(0)?, row.try_get::<_, bool>(1)?, row.try_get::<_, &str>(2)?),
        ("P1D", true, "\\x00")
    );
    Ok(())
}

/// Catches a query that waits for ever on a server that stands still without closing anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_server_meets_the_deadline() -> Result<()> {
    let shop = Shop::start(&PostgresInstall::any()?, &[])?;
    let sql = shop.sql().await?.with_deadline(std::time::Duration::from_millis(500));
    shop.server.freeze()?;
    let answer = sql.rows("read a value", "SELECT 1", &[]).await;
    shop.server.thaw()?;
    let error = answer.err().context("a frozen server answered")?;
    ensure!(matches!(error, SqlError::Deadline { .. }), "{error}");
    ensure!(
        sql.is_closed() || sql.rows("read a value", "SELECT 1", &[]).await.is_err(),
        "a connection whose query was given up is used on"
    );
    assert_eq!(shop.sql().await?.row("read a value", "SELECT 1", &[]).await?.try_get::<_, i32>(0)?, 1);
    Ok(())
}

/// Catches a failover set-up that is asked for under names the server does not have, or whose statement does nothing (17+).
#[tokio::test(flavor = "multi_thread")]
async fn a_standbys_copy_of_the_slot_is_asked_for_as_the_server_takes_it() -> Result<()> {
    let newest = PostgresInstall::oldest_and_newest()?.pop().context("an installation")?;
    if newest.major() < 17 {
        println!("left out: {} is older than 17", newest.major());
        return Ok(());
    }
    let shop = Shop::start(&newest, &[])?;
    shop.psql("SELECT pg_create_physical_replication_slot('standby_1'); SELECT pg_create_logical_replication_slot('landfall_shop', 'pgoutput');")?;
    let fix_with = |findings: &[Finding], part: &str| -> Option<String> {
        findings.iter().filter_map(|finding| finding.fix.clone()).find(|fix| fix.contains(part))
    };
    let before = findings(&shop.options, &[]).await?;
    let fix = fix_with(&before, "FAILOVER").with_context(|| format!("{before:#?}"))?;
    let mut command = shop.server.tool("psql");
    command.args(["-X", "-d", &format!("{}?replication=database", shop.server.url("shop")), "-c", &fix]);
    let output = command.output()?;
    ensure!(output.status.success(), "{fix}: {}", String::from_utf8_lossy(&output.stderr));
    let then = findings(&shop.options, &[]).await?;
    ensure!(fix_with(&then, "FAILOVER").is_none(), "{then:#?}");
    let fix = fix_with(&then, "synchronized_standby_slots").with_context(|| format!("{then:#?}"))?;
    shop.psql(&fix)?;
    shop.server.reload()?;
    shop.wait_for("SHOW synchronized_standby_slots", "standby_1")?;
    let after = findings(&shop.options, &[]).await?;
    ensure!(fix_with(&after, "synchronized_standby_slots").is_none(), "{after:#?}");
    Ok(())
}

/// Catches a name with a typo that nobody is told of, and a pattern behind one that takes all that it matches.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_means_nothing_is_answered_with_one_that_is_there() -> Result<()> {
    let shop = Shop::start(&PostgresInstall::any()?, &[])?;
    shop.psql("CREATE TABLE orders (id int PRIMARY KEY); CREATE TABLE \"Lines\" (id int PRIMARY KEY);")?;
    let mut options = options(&["public.ordres", "public.lines", "public.far_from_all", "public.*", "public.orders"])?;
    options.tables[3].1.columns = vec!["idd".into()];
    let findings = PostgresCheck::read(&shop.options, &options, None).await?.findings(&options, None);
    let helped = |text: &str| -> Option<String> {
        findings.iter().find(|finding| finding.text.contains(text)).and_then(|finding| finding.help.clone())
    };
    assert_eq!(helped("`public.ordres`").as_deref(), Some("did you mean `public.orders`?"));
    assert_eq!(helped("`public.lines`").as_deref(), Some("did you mean `public.\"Lines\"`?"));
    ensure!(helped("`public.far_from_all`").is_some_and(|help| !help.contains("did you mean")), "{findings:?}");
    ensure!(helped("`public.orders` decides no table").is_some_and(|help| help.contains("`public.*`")), "{findings:?}");
    ensure!(helped("names `idd`").is_some_and(|help| help.contains("did you mean `id`?")), "{findings:?}");
    Ok(())
}
