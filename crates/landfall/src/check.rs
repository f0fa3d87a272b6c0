//! `landfall check`: the plan of `run` without its side effects.
//!
//! Exit 0: it would start. 1: it would not. 2: it would, and something deserves a look.

use serde::Serialize;

use crate::assembly::{self, CheckPlan, PlanOptions};
use crate::cli::CheckArgs;
use crate::config::{self, Finding, FindingJson, Level, Loaded};
use crate::exit::Exit;
use crate::logging;
use crate::stdout;

#[derive(Serialize)]
struct Report<'a> {
    ok: bool,
    findings: Vec<FindingJson<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    servers: Vec<ServerJson<'a>>,
    paths: Vec<PathLine<'a>>,
    memory: &'a assembly::MemoryPlan,
    left_out: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    schemas: Option<Vec<SchemaLine<'a>>>,
}

#[derive(Serialize)]
struct PathLine<'a> {
    pipeline: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<&'a str>,
    sink: &'a str,
    guarantee: &'a str,
    why: &'a str,
}

/// A line of what a captured database's server was asked, those that are as they should be included.
#[derive(Serialize)]
struct ServerJson<'a> {
    pipeline: &'a str,
    #[serde(flatten)]
    finding: &'a landfall_postgres::Finding,
}

#[derive(Serialize)]
struct SchemaLine<'a> {
    pipeline: &'a str,
    decoded: &'a [(String, String)],
    steps: &'a [String],
    landed: Vec<String>,
}

/// Plans and prints.
pub(crate) fn run(args: &CheckArgs) -> anyhow::Result<Exit> {
    // The plan is the output; what its stand-ins log as they open is not.
    logging::start(false, "warn");
    let loaded = config::load(&args.config);
    let plan = match &loaded.config {
        Some(config) => {
            let runtime = crate::run::runtime(config.process.io_threads)?;
            let options = PlanOptions { online: !args.offline };
            runtime.block_on(assembly::plan(config, &loaded.source, options))?
        }
        None => CheckPlan::default(),
    };
    let findings: Vec<&Finding> = loaded.findings.iter().chain(&plan.findings).collect();
    let of_servers = of_servers(&plan);
    let worst = findings.iter().copied().chain(&of_servers).map(|finding| finding.level).max();
    if args.json {
        let findings: Vec<&Finding> = findings.into_iter().chain(&of_servers).collect();
        print_json(args, &findings, &plan, worst)?;
    } else {
        print_text(args, &loaded, &findings, &plan)?;
    }
    Ok(match worst {
        Some(Level::Error) => Exit::Failed,
        Some(Level::Warning) => Exit::Second,
        None => Exit::Ok,
    })
}

/// What servers have against the pipelines that capture them, as findings of the file.
fn of_servers(plan: &CheckPlan) -> Vec<Finding> {
    use landfall_postgres::Level as Of;
    let lines = plan.pipelines.iter().flat_map(|pipeline| {
        let found = pipeline.server.iter().flat_map(|server| &server.findings);
        found.map(|finding| (pipeline.mark, finding))
    });
    lines
        .filter_map(|(mark, found)| {
            let code = found.code.unwrap_or(config::codes::PEER);
            let finding = match found.level {
                Of::Ok | Of::Info => return None,
                Of::Warn => Finding::warning(code, mark, found.text.clone()),
                Of::Error => Finding::error(code, mark, found.text.clone()),
            };
            let steps: Vec<&str> = [&found.fix, &found.help].into_iter().flatten().map(String::as_str).collect();
            Some(if steps.is_empty() { finding } else { finding.help(steps.join(" — ")) })
        })
        .collect()
}

fn print_json(args: &CheckArgs, findings: &[&Finding], plan: &CheckPlan, worst: Option<Level>) -> anyhow::Result<()> {
    let planned = || plan.pipelines.iter().filter_map(|pipeline| Some((pipeline, pipeline.plan.as_ref()?)));
    let report = Report {
        ok: worst != Some(Level::Error),
        findings: findings.iter().map(|finding| FindingJson::from(*finding)).collect(),
        servers: plan
            .pipelines
            .iter()
            .flat_map(|pipeline| {
                let found = pipeline.server.iter().flat_map(|server| &server.findings);
                found.map(|finding| ServerJson { pipeline: &pipeline.name, finding })
            })
            .collect(),
        paths: planned()
            .flat_map(|(pipeline, plan)| {
                let of_tables = plan
                    .tables
                    .iter()
                    .flat_map(|table| table.sinks.iter().map(|sink| (Some(table.name.as_str()), sink)));
                plan.sinks.iter().map(|sink| (None, sink)).chain(of_tables).map(|(table, sink)| PathLine {
                    pipeline: &pipeline.name,
                    table,
                    sink: &sink.name,
                    guarantee: sink.guarantee,
                    why: &sink.why,
                })
            })
            .collect(),
        memory: &plan.memory,
        left_out: &plan.left_out,
        schemas: args.schema.then(|| {
            planned()
                .map(|(pipeline, plan)| SchemaLine {
                    pipeline: &pipeline.name,
                    decoded: &pipeline.schema,
                    steps: &pipeline.steps,
                    landed: plan.columns.iter().map(column).collect(),
                })
                .collect()
        }),
    };
    stdout::line(serde_json::to_string(&report)?)?;
    Ok(())
}

fn column(column: &landfall_engine::ColumnPlan) -> String {
    format!("{} {}{}", column.name, column.data_type, if column.nullable { "" } else { " not null" })
}

fn print_text(args: &CheckArgs, loaded: &Loaded, findings: &[&Finding], plan: &CheckPlan) -> std::io::Result<()> {
    for finding in findings {
        eprintln!("{}", finding.render(&loaded.file, &loaded.source));
    }
    let mut lines = Vec::new();
    for pipeline in &plan.pipelines {
        let Some(planned) = &pipeline.plan else {
            let name = &pipeline.name;
            lines.push(format!(
                "pipeline {name}: the schema is inferred from the first records, pinned at the first start"
            ));
            continue;
        };
        lines.push(match &pipeline.server {
            None if planned.source != "postgres" => format!(
                "pipeline {}: {} partitions, {} driver threads",
                pipeline.name, planned.partitions, planned.threads
            ),
            _ => format!("pipeline {}: tables of a Postgres database", pipeline.name),
        });
        for finding in pipeline.server.iter().flat_map(|server| &server.findings) {
            lines.extend(finding.to_string().lines().map(|line| format!("  {line}")));
        }
        lines.extend(planned.notes.iter().map(|note| format!("  {note}")));
        for sink in &planned.sinks {
            lines.push(format!("  to {}: {} ({})", sink.name, sink.guarantee, sink.why));
            lines.extend(sink.notes.iter().map(|note| format!("    {note}")));
        }
        for table in &planned.tables {
            lines.push(format!("  table {}", table.name));
            for sink in &table.sinks {
                lines.push(format!("    to {}: {} ({})", sink.name, sink.guarantee, sink.why));
                lines.extend(sink.notes.iter().map(|note| format!("      {note}")));
            }
            if args.schema {
                lines.extend(table.columns.iter().map(|landed| format!("    {}", column(landed))));
            }
        }
        if args.schema && planned.tables.is_empty() {
            lines.push("  decoded:".to_owned());
            lines.extend(pipeline.schema.iter().map(|(name, text)| format!("    {name}: {text}")));
            lines.push("  steps:".to_owned());
            lines.extend(pipeline.steps.iter().map(|step| format!("    {step}")));
            lines.push("  landed:".to_owned());
            lines.extend(planned.columns.iter().map(|landed| format!("    {}", column(landed))));
        }
    }
    if !plan.memory.terms.is_empty() {
        let mebibytes = |bytes: u64| bytes as f64 / 1_048_576.0;
        lines.push("memory, worst case:".to_owned());
        lines.extend(
            plan.memory.terms.iter().map(|term| format!("  {:>9.1} MiB  {}", mebibytes(term.bytes), term.what)),
        );
        let (total, limit) = (mebibytes(plan.memory.total), mebibytes(plan.memory.limit));
        lines.push(format!("  {total:>9.1} MiB  in all, of {limit:.1} MiB"));
    }
    lines.extend(plan.left_out.iter().map(|check| format!("not checked: {check}")));
    stdout::line(lines.join("\n"))
}
