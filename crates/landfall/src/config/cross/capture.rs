//! What a captured database and its destinations must agree on: a place for each table, names that meet in one slot.

use super::super::finding::{Finding, codes};
use super::super::section::Findings;
use super::super::sinks::{SinkConfig, SinkKind, ToChannelConfig};
use super::super::{Config, PipelineConfig};
use crate::config::TABLE_PLACE;

pub(super) fn check(config: &Config, pipeline: &PipelineConfig, findings: &Findings) {
    let Some(capture) = pipeline.capture() else {
        return no_table_place(pipeline, findings);
    };
    let name = &pipeline.name;
    let push = |code, mark, text: String, help: &str| {
        findings.push(Finding::error(code, Some(mark), text).help(help));
    };
    for sink in &pipeline.sinks {
        let to = &sink.name;
        if let Some(filter) = &sink.filter {
            let text =
                format!("`pipelines.{name}.to.{to}.where` is not served for a captured database by this version");
            push(codes::NOT_YET, filter.mark, text, "put the condition into `from.postgres.tables.<table>.sql`");
        }
        match &sink.kind {
            SinkKind::Delta(delta)
                if capture.may_be_several() && !delta.path.to_string_lossy().contains(TABLE_PLACE) =>
            {
                let text = format!(
                    "`pipelines.{name}.to.{to}`: the path `{}` is one place, and `tables` may mean several tables",
                    delta.path.display()
                );
                push(codes::CONTRADICTION, sink.mark, text, "give each a place of its own: `path: ./lake/{table}`");
            }
            SinkKind::Delta(_) => {}
            SinkKind::Files(_) => {
                let text = format!("`pipelines.{name}.to.{to}`: `files` takes no captured database in this version");
                push(
                    codes::NOT_YET,
                    sink.mark,
                    text,
                    "a file has one set of columns, and a table's may change; files cannot take back either what an interrupted copy wrote: use `delta` or `channel`",
                );
            }
            SinkKind::Channel(to) => into_channel(config, pipeline, sink, to, findings),
        }
    }
    let slot_of = |pipeline: &PipelineConfig| pipeline.capture().map(|capture| capture.slot_name(&pipeline.id));
    let own = slot_of(pipeline);
    let same_server = |other: &&PipelineConfig| {
        other.capture().is_some_and(|other| {
            (&other.connect.endpoints, &other.connect.database)
                == (&capture.connect.endpoints, &capture.connect.database)
        })
    };
    let before = config.pipelines.iter().take_while(|other| other.name != *name);
    if let Some(twin) = before.filter(same_server).find(|other| slot_of(other) == own) {
        let slot = own.unwrap_or_default();
        let text = format!("the pipelines `{}` and `{name}` would share the replication slot `{slot}`", twin.name);
        push(
            codes::CONTRADICTION,
            capture.mark,
            text,
            "a slot has one reader: give one of them its own `slot: { name: … }`",
        );
    }
}

/// The changes of tables as records.
fn into_channel(
    config: &Config,
    pipeline: &PipelineConfig,
    sink: &SinkConfig,
    to: &ToChannelConfig,
    findings: &Findings,
) {
    let key = format!("pipelines.{}.to.{}", pipeline.name, sink.name);
    if to.payload.is_some() {
        let text = format!("`{key}.payload` would leave out what each change is, and of which table");
        findings.push(
            Finding::error(codes::CONTRADICTION, Some(sink.mark), text)
                .help("remove it: a change is a JSON object of its columns, `_op`, `_table` and its place"),
        );
    }
    // Which tables there are is the database's to say; a name that no channel can have is known here.
    if let Some((before, behind)) = to.name.split_once(TABLE_PLACE) {
        let is_one = |name: &str| {
            name.strip_prefix(before).and_then(|rest| rest.strip_suffix(behind)).is_some_and(|table| !table.is_empty())
        };
        if !config.channels.iter().any(|channel| is_one(&channel.name)) {
            let text = format!("`{key}` names the channel `{}`, and `channels` defines none of the kind", to.name);
            findings.push(
                Finding::error(codes::UNDEFINED, Some(sink.mark), text)
                    .help("add one for each table, like `public.orders`, or name one channel for all tables"),
            );
        }
    }
}

/// Records have no table to name a place after.
fn no_table_place(pipeline: &PipelineConfig, findings: &Findings) {
    for sink in &pipeline.sinks {
        if let SinkKind::Delta(delta) = &sink.kind
            && delta.path.to_string_lossy().contains(TABLE_PLACE)
        {
            let text = format!(
                "`pipelines.{}.to.{}.path` has `{TABLE_PLACE}`, but records of a channel come from no table",
                pipeline.name, sink.name
            );
            findings.push(
                Finding::error(codes::CONTRADICTION, Some(sink.mark), text).help("name one table, like ./lake/orders"),
            );
        }
    }
}
