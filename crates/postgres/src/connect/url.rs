//! What `libpq` knows in a URL and we have another place for, or none.

/// Each option with what stands in its place.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "sslmode",
        "of `libpq`'s modes the url takes disable, prefer and require; for verify-full leave it out and set `tls: { mode: verify_full }` beside the url",
    ),
    ("sslrootcert", "leave it out and set `tls: { mode: verify_full, ca: FILE }` beside the url"),
    ("sslcert", "leave it out: client certificates are not carried, the role logs in by password"),
    ("sslkey", "leave it out: client certificates are not carried, the role logs in by password"),
    ("sslpassword", "leave it out: client certificates are not carried, the role logs in by password"),
    ("sslcrl", "leave it out: lists of revoked certificates are not read"),
    ("sslcrldir", "leave it out: lists of revoked certificates are not read"),
    ("ssl_min_protocol_version", "leave it out: TLS 1.2 and 1.3 are spoken"),
    ("ssl_max_protocol_version", "leave it out: TLS 1.2 and 1.3 are spoken"),
    ("passfile", "leave it out and set `password: ${PGPASSWORD}` beside the url"),
    ("service", "leave it out and name host, port, user and database in the url"),
    ("gssencmode", "leave it out: connections are encrypted by TLS alone"),
    ("krbsrvname", "leave it out: the role logs in by password"),
    ("client_encoding", "leave it out: it is set to UTF8"),
    ("replication", "leave it out: it is asked for where it is needed"),
];

/// The first option in a URL that was refused of which is known what to do instead.
pub(super) fn not_carried(url: &str) -> Option<(&'static str, &'static str)> {
    // In a URL options stand behind the `?`; in the other form words stand side by side.
    let options = match url.contains("://") {
        true => url.split_once('?')?.1,
        false => url,
    };
    let names: Vec<&str> =
        options.split(['&', ' ', '\n', '\t']).filter_map(|option| Some(option.split_once('=')?.0.trim())).collect();
    ELSEWHERE.iter().find(|(option, _)| names.contains(option)).copied()
}
