//! Rules on tables and the publication.

use super::{CheckOptions, Choice, Finding, PostgresCheck, TableRules, ToastPolicy, unused};
use crate::catalog::{KeyOrigin, TABLES_MAX, TableFacts};
use crate::code;
use crate::record::SourceRecord;
use crate::sql::{name, relation};
use crate::{Identity, TableName};

pub(super) fn rules(
    check: &PostgresCheck,
    options: &CheckOptions,
    record: Option<&SourceRecord>,
    findings: &mut Vec<Finding>,
) {
    matched(check, options, findings);
    let default = TableRules::default();
    for table in &check.tables.tables {
        let of = &table.shape.name;
        let rules = options
            .tables
            .iter()
            .find(|(pattern, _)| pattern.matches(&of.schema, &of.table))
            .map_or(&default, |(_, rules)| rules);
        let before = findings.len();
        privileges(check, table, findings);
        row_security(check, table, findings);
        identity(table, rules, findings);
        large_values(table, rules, findings);
        if findings.len() == before {
            findings.push(Finding::ok(format!(
                "{}: {}, {} MB",
                relation(of),
                key_text(table),
                table.heap_bytes() >> 20
            )));
        }
        if !table.text_columns.is_empty() {
            let columns: Vec<&str> = table.text_columns.iter().map(|column| &**column).collect();
            findings.push(Finding::info(format!("{}: carried as text: {}", relation(of), columns.join(", "))));
        }
    }
    publication(check, options, record, findings);
}

fn matched(check: &PostgresCheck, options: &CheckOptions, findings: &mut Vec<Finding>) {
    let choices: Vec<Choice<'_>> = options
        .tables
        .iter()
        .map(|(pattern, rules)| Choice { pattern, columns: rules.columns.iter().collect() })
        .collect();
    findings.extend(unused(&check.tables, &choices, &check.near));
    for skipped in &check.tables.skipped {
        let of = relation(&skipped.name);
        let is_named = options
            .tables
            .iter()
            .any(|(pattern, _)| pattern.is_exact() && pattern.matches(&skipped.name.schema, &skipped.name.table));
        let text = format!("{of} is {} and is not carried", skipped.why);
        findings.push(if is_named { Finding::error(code::NOT_CARRIED, text) } else { Finding::info(text) });
    }
    if check.tables.is_cut {
        findings.push(
            Finding::error(
                code::TABLE_LIMIT,
                format!("the patterns mean more than {TABLES_MAX} tables and partitions, the most of one source"),
            )
            .help("narrow them, or divide the tables among several pipelines"),
        );
    }
}

fn privileges(check: &PostgresCheck, table: &TableFacts, findings: &mut Vec<Finding>) {
    let role = name(&check.server.user);
    let of = &table.shape.name;
    let mut grants = Vec::new();
    if !table.may_use_schema {
        grants.push(format!("GRANT USAGE ON SCHEMA {} TO {role};", name(&of.schema)));
    }
    // The copy reads leaves by their own names, which a grant on the root does not open.
    let closed = table.leaves.iter().filter(|leaf| !leaf.may_select).map(|leaf| &leaf.name);
    let root = Some(of).filter(|_| !table.may_select && table.is_partitioned);
    let closed: Vec<String> = root.into_iter().chain(closed).map(relation).collect();
    if !closed.is_empty() {
        grants.push(format!("GRANT SELECT ON {} TO {role};", closed.join(", ")));
    }
    if !grants.is_empty() {
        findings.push(
            Finding::error(code::PRIVILEGE, format!("role {role} may not read {}", relation(of))).fix(grants.join(" ")),
        );
    }
}

fn row_security(check: &PostgresCheck, table: &TableFacts, findings: &mut Vec<Finding>) {
    if table.is_row_security_active || table.leaves.iter().any(|leaf| leaf.is_row_security_active) {
        let role = name(&check.server.user);
        let of = relation(&table.shape.name);
        findings.push(
            Finding::error(
                code::ROW_SECURITY,
                format!("row security of {of} counts for role {role}: a copy would lose rows that the stream has"),
            )
            .fix(format!("ALTER ROLE {role} BYPASSRLS;")),
        );
    }
}

fn identity(table: &TableFacts, rules: &TableRules, findings: &mut Vec<Finding>) {
    let of = relation(&table.shape.name);
    let foreign: Vec<String> =
        table.leaves.iter().filter(|leaf| leaf.is_foreign).map(|leaf| relation(&leaf.name)).collect();
    if !foreign.is_empty() {
        findings.push(
            Finding::error(
                code::NOT_CARRIED,
                format!("partitions of {of} are foreign tables, whose rows are in no log: {}", foreign.join(", ")),
            )
            .fix(
                foreign
                    .iter()
                    .map(|leaf| format!("ALTER TABLE {of} DETACH PARTITION {leaf};"))
                    .collect::<Vec<_>>()
                    .join(" "),
            ),
        );
    }
    let unusable: Vec<&TableName> = if table.is_partitioned {
        table
            .leaves
            .iter()
            .filter(|leaf| !leaf.has_usable_identity && !leaf.is_foreign)
            .map(|leaf| &leaf.name)
            .collect()
    } else if table.has_usable_identity {
        Vec::new()
    } else {
        vec![&table.shape.name]
    };
    // First, for an identity FULL alone would not do: the next check would ask for this.
    if let Some((reason, fix)) = table.deferrable_key_problem() {
        findings.push(
            Finding::error(code::DEFERRABLE_KEY, reason)
                .fix(fix)
                .help("or leave the table out; if it is carried all the same, it is parked at the start"),
        );
        return;
    }
    if !unusable.is_empty() {
        let names: Vec<String> = unusable.iter().map(|leaf| relation(leaf)).collect();
        let why = match table.shape.identity {
            Identity::Nothing => "its REPLICA IDENTITY is NOTHING",
            Identity::Index => "the index of its REPLICA IDENTITY is gone",
            Identity::Default | Identity::Full => "it has no primary key",
        };
        let what = if table.is_partitioned {
            format!("partitions of {of} have no usable identity: {}", names.join(", "))
        } else {
            format!("{of} has no usable identity: {why}")
        };
        findings.push(
            Finding::error(code::IDENTITY, format!("{what}; published, its UPDATEs and DELETEs would fail"))
                .fix(
                    names
                        .iter()
                        .map(|leaf| format!("ALTER TABLE {leaf} REPLICA IDENTITY FULL;"))
                        .collect::<Vec<_>>()
                        .join(" "),
                )
                .help(format!("or ALTER TABLE {of} ADD PRIMARY KEY (…);")),
        );
        return;
    }
    let has_key = table.key != KeyOrigin::None || !rules.key.is_empty();
    if !has_key && !rules.is_append {
        findings.push(
            Finding::error(
                code::IDENTITY,
                format!("{of} has no key: equal rows cannot be told apart in a target that keeps one row per key"),
            )
            .fix(format!("ALTER TABLE {of} ADD PRIMARY KEY (…);"))
            .help("or `key` under the table, or `mode: append`"),
        );
    } else if !has_key {
        findings.push(Finding::info(format!(
            "{of} has no key: its changes are kept, and no current state can be told from them"
        )));
    }
    let by_key = !rules.key.is_empty() && table.key == KeyOrigin::None;
    if by_key && table.shape.identity != Identity::Full && !rules.is_append {
        findings.push(
            Finding::error(code::IDENTITY, format!("the key of {of} is not enforced row by row, so a transaction may hold it twice for a while; that needs whole old rows"))
                .fix(format!("ALTER TABLE {of} REPLICA IDENTITY FULL;")),
        );
    }
    for column in rules.key.iter().filter(|column| !table.shape.columns.iter().any(|own| own.name == **column)) {
        findings.push(Finding::error(
            code::IDENTITY,
            format!("`key` of {of} names `{column}`, which is no column of it that is sent"),
        ));
    }
}

fn large_values(table: &TableFacts, rules: &TableRules, findings: &mut Vec<Finding>) {
    if table.shape.identity == Identity::Full {
        return;
    }
    let columns: Vec<&str> = table
        .shape
        .columns
        .iter()
        .filter(|column| column.is_toastable && !column.is_key)
        .map(|column| &*column.name)
        .collect();
    if columns.is_empty() {
        return;
    }
    let of = relation(&table.shape.name);
    let text = format!("an update of {of} leaves out large values that it does not change: {}", columns.join(", "));
    let finding = match rules.toast {
        ToastPolicy::RequireFull => Finding::error(code::TOASTABLE, text),
        ToastPolicy::Merge => Finding::warn(code::TOASTABLE, text),
    };
    let names: Vec<String> = table.leaves.iter().map(|leaf| relation(&leaf.name)).collect();
    let fix =
        names.iter().map(|leaf| format!("ALTER TABLE {leaf} REPLICA IDENTITY FULL;")).collect::<Vec<_>>().join(" ");
    findings.push(finding.fix(fix).help("updates and deletes then log the whole old row"));
}

fn publication(
    check: &PostgresCheck,
    options: &CheckOptions,
    record: Option<&SourceRecord>,
    findings: &mut Vec<Finding>,
) {
    let plan = &check.plan;
    let of = &options.publication;
    let is_ours_to_make = options.startup.creates_publication;
    // Of a table that was carried, and of a publication that was there, what was written since is lost to the slot.
    let carried: Vec<String> = plan
        .missing_tables
        .iter()
        .filter(|(relation, _)| record.is_some_and(|record| record.table(*relation).is_some()))
        .map(|(_, table)| relation(table))
        .collect();
    let pipeline = &options.startup.pipeline;
    for (reason, statement) in plan.reasons.iter().zip(&plan.statements) {
        // What the source will do by itself at its start is no error, if it may.
        let by_itself = is_ours_to_make && !plan.sets_mode;
        let may = check.not_owned.is_empty()
            && match &check.publication {
                None => check.may_create,
                Some(facts) => facts.is_own,
            };
        if record.is_some() && plan.is_missing {
            let help = format!(
                "it was dropped, and its successor is not found in what was written before: `landfall tables CONFIG {pipeline} resync --all` starts over with a new slot"
            );
            findings.push(Finding::error(code::PUBLICATION, reason.clone()).help(help));
        } else if !carried.is_empty() {
            let help = format!(
                "its rows pass by until then, its neighbours go on; afterwards `landfall tables CONFIG {pipeline} resync {}`, for what was written meanwhile is gone",
                carried.join("`, `resync ")
            );
            findings.push(Finding::error(code::PUBLICATION, reason.clone()).fix(statement.clone()).help(help));
        } else if by_itself && may {
            findings.push(Finding::info(format!("{reason}; it will be mended at the start")).fix(statement.clone()));
        } else if by_itself {
            let role = name(&check.server.user);
            let owners: Vec<String> = check
                .not_owned
                .iter()
                .map(|table| format!("ALTER TABLE {} OWNER TO {role};", relation(table)))
                .collect();
            let help = match &check.publication {
                _ if !owners.is_empty() => {
                    format!("run it as the tables' owner, or let the source do it: {}", owners.join(" "))
                }
                None => format!(
                    "or let the source make it: GRANT CREATE ON DATABASE {} TO {role}; and make {role} the owner of the tables",
                    name(&check.server.database)
                ),
                Some(_) => format!("or let the source do it: ALTER PUBLICATION {} OWNER TO {role};", name(of)),
            };
            findings.push(
                Finding::error(code::PUBLICATION, format!("{reason}, and role {role} may not mend it"))
                    .fix(statement.clone())
                    .help(help),
            );
        } else {
            findings.push(Finding::error(code::PUBLICATION, reason.clone()).fix(statement.clone()));
        }
    }
    let Some(facts) = &check.publication else { return };
    if plan.statements.is_empty() {
        findings.push(Finding::ok(format!("publication `{of}` has the tables, four operations and root mode")));
    }
    if facts.is_for_all_tables || facts.has_schemas {
        findings.push(Finding::info(format!(
            "publication `{of}` takes in tables by itself; those that nobody asked for are sent and skipped"
        )));
    }
    for table in &check.tables.tables {
        if let Some(filter) = &table.row_filter {
            findings.push(Finding::info(format!(
                "{}: only rows where {filter}; a row that leaves the filter arrives as a delete",
                relation(&table.shape.name)
            )));
        }
    }
}

fn key_text(table: &TableFacts) -> String {
    let columns: Vec<&str> =
        table.shape.columns.iter().filter(|column| column.is_key).map(|column| &*column.name).collect();
    let columns = columns.join(", ");
    let identity = if table.shape.identity == Identity::Full { ", identity FULL" } else { "" };
    let key = match &table.key {
        KeyOrigin::PrimaryKey => format!("primary key ({columns})"),
        KeyOrigin::IdentityIndex(index) => format!("identity index {index} ({columns})"),
        KeyOrigin::UniqueIndex(index) => format!("unique index {index} ({columns})"),
        KeyOrigin::None => "no key of its own".to_owned(),
    };
    let leaves = if table.is_partitioned { format!(", {} partitions", table.leaves.len()) } else { String::new() };
    format!("{key}{identity}{leaves}")
}
