use super::*;

fn parse(url: &str) -> Result<ConnectOptions, ConnectError> {
    ConnectOptions::parse(url, None, None)
}

/// Catches a part of the URL that is lost on the way, and defaults that move.
#[test]
fn a_url_becomes_options_whole() {
    let options = parse("postgres://ada:s%20ecret@db.internal:6000/shop?application_name=x&connect_timeout=3").unwrap();
    assert_eq!(options.endpoints, [Endpoint::Tcp { host: "db.internal".into(), address: None, port: 6000 }]);
    assert_eq!((options.user.as_str(), options.database.as_str()), ("ada", "shop"));
    assert_eq!(options.password, Some(Password::new("s ecret")));
    assert_eq!((options.application_name.as_str(), options.connect_timeout), ("x", Duration::from_secs(3)));
    assert_eq!(options.tls, TlsOptions { mode: TlsMode::Prefer, ca: None });

    let options = parse("postgres://ada@%2Frun%2Fpg:1,other:2/").unwrap();
    let socket = Endpoint::Socket { directory: "/run/pg".into(), port: 1 };
    assert_eq!(options.endpoints, [socket, Endpoint::Tcp { host: "other".into(), address: None, port: 2 }]);
    assert_eq!(options.database, "ada");
    assert_eq!(options.connect_timeout, CONNECT_TIMEOUT);
}

/// Catches a password that the configuration gives and the URL overrides, and one that a log line would show.
#[test]
fn the_configured_password_wins_and_is_never_shown() {
    let options = ConnectOptions::parse("postgres://ada:one@h/d", Some("two"), None).unwrap();
    assert_eq!(options.password, Some(Password::new("two")));
    assert!(!format!("{options:?}").contains("two"), "{options:?}");
    let error = parse("postgres://ada:topsecret@h:notaport/d").unwrap_err().to_string();
    assert!(!error.contains("topsecret") && error.contains("LF-PG0116"), "{error}");
}

/// Catches an option that is taken and then not done: each would weaken what the operator asked for.
#[test]
fn options_that_are_not_carried_are_refused_by_name() {
    for (url, word) in [
        ("postgres://a@h/d?target_session_attrs=read-write", "target_session_attrs"),
        ("postgres://a@h/d?channel_binding=require", "channel_binding"),
        ("postgres://a@h/d?load_balance_hosts=random", "load_balance_hosts"),
        ("postgres://a@h/d?sslnegotiation=direct", "sslnegotiation"),
        ("postgres://a@h/d?sslmode=verify-full", "sslmode"),
        ("postgres://a@h/d?no_such=1", "no_such"),
        ("postgres:///d?user=a", "host"),
        ("postgres://h/d", "user"),
        ("postgres://a@h,i,j/d?port=1,2", "ports"),
    ] {
        let error = parse(url).unwrap_err().to_string();
        assert!(error.contains(word), "{url}: {error}");
    }
    for (url, step) in [
        ("postgres://a@h/d?sslmode=verify-full", "tls: { mode: verify_full }"),
        ("host=h user=a sslrootcert=ca.pem", "ca: FILE"),
        ("postgres://a:sslcert=x@h/d?passfile=/p", "password: ${PGPASSWORD}"),
    ] {
        let error = parse(url).unwrap_err().to_string();
        assert!(error.contains(step) && error.contains("LF-PG0116"), "{url}: {error}");
    }
    let tls = TlsOptions { mode: TlsMode::Require, ca: Some("ca.pem".into()) };
    let error = ConnectOptions::parse("postgres://a@h/d", None, Some(tls)).unwrap_err().to_string();
    assert!(error.contains("verify_full"), "{error}");
}

/// Catches a pinned setting that the operator's options override, and white space that splits a value (P49).
#[test]
fn pinned_settings_come_last_and_stay_whole() {
    let options = parse("postgres://a@h/d?options=-c%20DateStyle%3DGerman").unwrap();
    let text = options.with_setting("application", "a b\\c").startup_options();
    assert!(text.starts_with("-c DateStyle=German -c application=a\\ b\\\\c -c DateStyle=ISO"), "{text}");
    for (name, value) in PINNED_SETTINGS {
        assert!(text.contains(&format!("-c {name}={}", value.replace(' ', "\\ "))), "{name}");
    }
}

/// Catches a certificate file that is taken although it holds none, which would check nothing.
#[test]
fn a_ca_file_without_certificates_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, "no certificate\n").unwrap();
    let tls = TlsOptions { mode: TlsMode::VerifyFull, ca: Some(file) };
    let error = tls.client().unwrap_err().to_string();
    assert!(error.contains("no certificate") && error.contains("LF-PG0116"), "{error}");
    let missing = TlsOptions { mode: TlsMode::VerifyFull, ca: Some(folder.path().join("none.pem")) };
    assert!(missing.client().is_err());
}

/// Catches a code without a page, which `landfall explain` would not know, and two pages for one.
#[test]
fn every_stream_code_has_one_page() {
    for page in STREAM_CODES {
        let pages = STREAM_CODES.iter().chain(crate::code::CODES).filter(|other| other.code == page.code);
        assert_eq!(pages.count(), 1, "{}", page.code);
        assert!(page_of(page.code).is_some_and(|found| !found.help.is_empty()));
    }
}

/// Catches a refused log-in that sends the operator to the wrong file.
#[test]
fn a_refused_log_in_is_told_by_state_and_routine() {
    let error = |sqlstate: &str, routine: &str| ServerError {
        severity: "FATAL".into(),
        sqlstate: sqlstate.into(),
        message: String::new(),
        detail: None,
        hint: None,
        routine: Some(routine.into()),
    };
    for (sqlstate, routine, number) in [
        ("28000", "ClientAuthentication", 103),
        ("28000", "InitializeSessionUserId", 102),
        ("28P01", "auth_failed", 102),
        ("3D000", "InitPostgres", 104),
        ("57P03", "ProcessStartupPacket", 106),
        ("42501", "InitPostgres", 110),
    ] {
        assert_eq!(error(sqlstate, routine).log_in_code().number(), number, "{sqlstate} {routine}");
    }
    let changed = ConnectError::LogIn(Box::new(error("28P01", "auth_failed"))).to_string();
    assert!(changed.contains("restart"), "a process does not see a password that is changed: {changed}");
}
